"""`Graph`: what a recording becomes and what the passes and renderers read.

A graph is a list of nodes in program order, each with input values and output values; a value
knows its shape and dtype, its producer, and its array if it is constant. Loops and branches are
nodes whose attrs hold subgraphs.
"""

import itertools
from collections import Counter

import numpy as np

__all__ = ["Graph", "GraphValue", "Node", "constants", "path_key"]

_ids = itertools.count()
# Elements from which on it is worth a look whether all are the same.
MANY = 1024


class GraphValue:
    """One array of the program.

    `kind` is "input", "const" (then `array` holds it, frozen at recording), "ref" (`array` is a
    tensor, read anew at each call) or "node".
    """

    __slots__ = ("array", "dtype", "id", "index", "kind", "node", "shape", "static")

    def __init__(self, shape, dtype, kind, array=None, node=None, index=0):
        self.id = next(_ids)
        self.shape = shape if type(shape) is tuple else tuple(shape)
        self.dtype = dtype
        self.kind = kind
        self.array = array
        self.node = node
        self.index = index
        self.static = kind == "const"

    def __repr__(self):
        return f"%{self.id}:{self.dtype}{list(self.shape)}"


class Node:
    """One operation: op (its name in `name`), inputs (values or Python numbers), attrs, outputs,
    and the user's line.

    `location` is ``(file, line)`` of the innermost frame outside the package when the op was
    recorded, or None.
    """

    __slots__ = ("attrs", "inputs", "location", "name", "op", "outs")

    def __init__(self, op, name, inputs, attrs, outs, location=None):
        self.op = op
        self.name = name
        self.inputs = inputs
        self.attrs = attrs
        self.outs = outs
        self.location = location
        for i, v in enumerate(outs):
            v.node, v.index, v.kind = self, i, "node"

    @property
    def place(self):
        """The user's line as "file:line", "" if unknown."""
        return f"{self.location[0]}:{self.location[1]}" if self.location else ""

    def values(self):
        """Yield the inputs that are values."""
        return [x for x in self.inputs if type(x) is GraphValue]

    def subgraphs(self):
        """Return the graphs of a loop's or branch's parts."""
        return [self.attrs[k] for k in ("cond", "body", "then", "else") if k in self.attrs]

    def __repr__(self):
        left = ", ".join(map(repr, self.outs))
        return f"{left} = {self.name}({', '.join(map(repr, self.inputs))})"


class Graph:
    """A recorded program: inputs, nodes in order, outputs.

    `guards` lists ``(value, expected, node)`` in program order; each also stands among the
    nodes (name "guard"), so that a renderer checks it where it was taken. `updates` maps numbers of
    outputs to the outside tensors that they are the new contents of.
    """

    def __init__(self):
        self.inputs = []
        self.nodes = []
        self.outputs = []
        self.guards = []
        self.updates = {}

    def uses(self):
        """Return how often each value is read, by its id; a result of the graph once more."""
        read = itertools.chain.from_iterable(node.values() for node in self.nodes)
        return Counter(v.id for v in itertools.chain(read, self.outputs))

    def __repr__(self):
        lines = [f"inputs {self.inputs}", *map(repr, self.nodes), f"outputs {self.outputs}"]
        return "\n".join(lines)


def path_key(graph):
    """Return what tells the paths of one function apart: what its guards saw, and where."""
    found = ((i, node) for i, node in enumerate(graph.nodes) if node.name == "guard")
    # As text: 0.0 and -0.0 are equal, nan is not equal to itself.
    return tuple((i, repr(node.attrs["value"])) for i, node in found)


def constants(tensors):
    """Return values for tensors that are the same at each replay."""
    return [GraphValue(t.array.shape, t.array.dtype, "const", _in_short(t.array)) for t in tensors]


def _in_short(array):
    """Return a constant array; as one element, repeated, where all are of the same bits."""
    if type(array) is not np.ndarray or array.size < MANY or not array.flags.c_contiguous:
        return array
    size = array.dtype.itemsize
    if size not in (1, 2, 4, 8):
        return array
    bits = array.reshape(-1).view(f"u{size}")
    if (bits[:MANY] != bits[0]).any() or not (bits == bits[0]).all():
        return array
    return np.broadcast_to(array.reshape(-1)[0], array.shape)
