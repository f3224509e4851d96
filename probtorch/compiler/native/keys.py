"""The name of a recorded graph: equal for graphs that become the same code, and only for those.

`key_of_graph` walks a recording once, before any pass, and writes down what passes, lowering and
renderers look at: ops, inputs, Python numbers by their bits, static arguments by type and value,
shapes, dtypes, wiring, subgraphs of loops and branches, guards. A hash of that names an entry of
the disk cache (`plans.py`), so that a second process runs no pass and writes no text.

A constant array counts for what the compiler may ask of it: its dtype, shape and strides; which
others lie at the same address or, of small ones, have the same elements, since these are merged;
the bounds of whole numbers, which may be indices; and the element of those that have one only,
since ones and zeros vanish. Other elements (data) are read when the program runs and do not count.

What is not known here has no key: attributes of other types, ops declared outside the package
(their formulas may change with no file of ours), arrays that are none of NumPy's. Such a graph is
compiled the long way.

The name also holds what else the code depends on: the machine (`host`) and the compiler itself
(`sources`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probtorch.compiler.graph import Graph, GraphValue, Node
from probtorch.compiler.native import cache
from probtorch.compiler.native.sources import sources
from probtorch.compiler.nests.lowering import SMALL, arranged, rule_of
from probtorch.core.op import REGISTRY

__all__ = ["GraphKey", "key_of_graph"]

# Part of every key: raise it when what is written down changes its meaning.
VERSION = 1


@dataclass(frozen=True)
class GraphKey:
    """The name of a graph, and its constants and references in the order in which it met them.

    Attributes
    ----------
    name : str
        64 hex digits.
    given : list of Value
    numbers : dict of int to int
        The place in `given` by a value's id.
    """

    name: str
    given: list[GraphValue]
    numbers: dict[int, int]


class _Unknown(Exception):
    """Something that cannot be named."""


def key_of_graph(graph: Graph) -> GraphKey | None:
    """Return the key of a graph that no pass has changed yet; None for one that has none."""
    here = sources()
    if here is None:
        return None
    walk = _Walk()
    try:
        walk.graph(graph)
    except _Unknown:
        return None
    text = "\n".join(walk.lines)
    return GraphKey(cache.key_of(text, VERSION, here), walk.given, walk.numbers)


class _Walk:
    """One walk through a graph and its subgraphs; `lines` is what it is."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.given: list[GraphValue] = []
        self.numbers: dict[int, int] = {}
        self._names: dict[int, str] = {}  # of values, by id
        # By their ids, with what is to live as long: their hashes take longer than all the rest.
        self._types: dict[int, tuple[np.dtype, str]] = {}
        self._kinds: dict[object, int] = {}  # numbers of elements and addresses
        self._ours: dict[str, bool] = {}
        self._encoders: dict[type, Callable[..., str]] = {
            bool: repr,
            type(None): repr,
            int: lambda x: hex(x),
            float: _bits,
            str: lambda x: f"s{json.dumps(x)}",
            tuple: lambda x: f"({','.join(map(self._encode, x))})",
            list: lambda x: f"[{','.join(map(self._encode, x))}]",
            slice: lambda x: f"slice{self._encode((x.start, x.stop, x.step))}",
            Graph: self._inner,
        }

    def graph(self, graph: Graph) -> None:
        """Write a graph down."""
        write = self.lines.append
        write("inputs " + " ".join(map(self._new, graph.inputs)))
        names, encode, new, ours = self._names, self._encode, self._new, self._ours
        for node in graph.nodes:
            # By the thousand in a first call.
            known = ours.get(node.name)
            if not (self._known(node) if known is None else known):
                raise _Unknown
            parts = [node.name if node.op is not None else f"!{node.name}"]
            for x in node.inputs:
                if type(x) is GraphValue:
                    parts.append(names.get(x.id) or self._given(x))
                else:
                    parts.append(encode(x))
            if node.attrs:
                parts += [f"{key}={encode(value)}" for key, value in node.attrs.items()]
            parts.append(">")
            for v in node.outs:
                parts.append(new(v))
            write(" ".join(parts))
        write(f"guards {len(graph.guards)}")
        write("outputs " + " ".join([names.get(v.id) or self._given(v) for v in graph.outputs]))
        if graph.updates:
            numbers = {id(v.array): i for i, v in enumerate(self.given) if v.kind == "ref"}
            write(
                "updates " + " ".join(f"{k}:{numbers.get(id(t))}" for k, t in graph.updates.items())
            )

    def _inner(self, graph: Graph) -> str:
        self.lines.append("{")
        self.graph(graph)
        self.lines.append("}")
        return "graph"

    def _encode(self, x: object) -> str:
        encoder = self._encoders.get(type(x))
        if encoder is not None:
            return encoder(x)
        if isinstance(x, np.dtype):
            return self._type(x)
        if isinstance(x, np.generic):
            return f"n{self._type(x.dtype)}{x.tobytes().hex()}"
        raise _Unknown

    def _type(self, dtype: np.dtype) -> str:
        if id(dtype) not in self._types:
            if dtype.kind not in "biuf" or not dtype.isnative:
                raise _Unknown
            self._types[id(dtype)] = dtype, dtype.str
        return self._types[id(dtype)][1]

    def _new(self, v: GraphValue, what: str = "") -> str:
        """Name a value; returns what is to be written where it is first met."""
        name = f"%{len(self._names)}"
        if self._names.setdefault(v.id, name) is not name:
            raise _Unknown  # met before it was made
        known = self._types.get(id(v.dtype))
        return f"{name}:{self._type(v.dtype) if known is None else known[1]}{v.shape}{what}"

    def _given(self, v: GraphValue) -> str:
        """Name a constant or reference."""
        if v.kind == "const" and isinstance(v.array, np.ndarray):
            text = self._new(v, self._constant(v.array))
        elif v.kind == "ref":
            text = self._new(v, "ref")
        else:
            raise _Unknown
        self.numbers[v.id] = len(self.given)
        self.given.append(v)
        return text

    def _constant(self, array: np.ndarray) -> str:
        """What the compiler may ask of a constant."""
        moved, _ = arranged(array)
        dtype = self._type(array.dtype)
        text = f"const{dtype}{array.shape}{array.strides}"
        # Also of an expanded number: a pass merges it with an array of as many equal elements.
        if array.size <= SMALL:
            text += f"#{self._kind_of((dtype, array.shape, array.tobytes()))}"
        if moved.size == 1:
            return f"{text}={moved.tobytes().hex()}"
        if moved.size <= SMALL:
            text += f"#{self._kind_of((dtype, moved.shape, moved.tobytes(), 'moved'))}"
        else:
            text += f"@{self._kind_of(array.__array_interface__['data'][0])}"
        if dtype[1] != "f" and array.size:
            text += f" {array.min()} {array.max()}"
        return text

    def _kind_of(self, what: object) -> int:
        """A number for what is the same among constants."""
        return self._kinds.setdefault(what, len(self._kinds))

    def _known(self, node: Node) -> bool:
        """Whether an op that is new here, its formula and its rule are the package's own."""
        op = node.op
        parts = [rule_of(node.name, op), op and (op.formula or op.run)]
        same = REGISTRY.get(node.name) is node.op
        known = self._ours[node.name] = same and all(_ours(f) for f in parts if f is not None)
        return known


def _ours(function: object) -> bool:
    return getattr(function, "__module__", "").startswith("probtorch.")


def _bits(x: float) -> str:
    # Not its text: there are many nan, and -0.0 is another number than 0.0.
    return "f" + struct.pack("<d", x).hex()
