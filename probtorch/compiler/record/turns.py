"""`Turns`: what is left of the turns of a Python loop for which no nodes were made.

A recording of a long loop is the same few operations over and over. Where they repeat
(watching.py), they are followed (following.py): nobody makes nodes of them, and what changes from
turn to turn is noted in columns. In the graph stands one node "turns". It takes the place of all
the nodes that were not made: rolling.py makes a loop of it, `expanded` gives the nodes back. Values
of the tensors that somebody holds all the same, in a list or by the tape, have a `Turn` as their
node: a place.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field

import numpy as np

from probtorch.compiler.graph import Graph, GraphValue, Node
from probtorch.compiler.passes.nan import CARRIES
from probtorch.compiler.record.places import PLACED
from probtorch.core.tensor_base import TensorBase

__all__ = [
    "ALIAS",
    "NUMBER",
    "Column",
    "Operation",
    "Turns",
    "expanded",
    "length",
    "outputs",
    "place_of",
    "same_number",
    "spread",
]


_chained = itertools.chain.from_iterable


class _Event:
    """Stands among operations for what is none."""

    family, extra = "", {}

    def __init__(self, name):
        self.name = name


# What gives a tensor the value of another; what says that a tensor must not have nan.
ALIAS, NUMBER = _Event("alias"), _Event("number")


def outputs(out):
    """Return what an operation puts out as a tuple."""
    return out if type(out) is tuple else (out,)


def same_number(x, y):
    """Whether two operands that are no tensors are the same, the signs of zeros too."""
    if x is y:
        return True
    return type(x) is type(y) and bool(x == y) and (x != 0 or repr(x) == repr(y))


def length(graph):
    """Return how many nodes were recorded."""
    turns = [node.attrs["turns"].length for node in graph.nodes if node.name == "turns"]
    return len(graph.nodes) - len(turns) + sum(turns)


def expanded(graph):
    """Return the graph with all nodes in the place of turns; the same one if there are none."""
    if all(node.name != "turns" for node in graph.nodes):
        return graph
    out = Graph()
    out.inputs, out.outputs, out.guards = graph.inputs, graph.outputs, graph.guards
    out.updates = graph.updates
    for node in graph.nodes:
        out.nodes += node.attrs["turns"].nodes() if node.name == "turns" else [node]
    return out


def spread(graph):
    """Return the list of all nodes that were recorded, None where turns have none, and the place of
    each node and each of `Turns` in it, by its id.
    """
    nodes, index = [], {}
    for node in graph.nodes:
        turns = node.attrs["turns"] if node.name == "turns" else None
        index[id(node if turns is None else turns)] = len(nodes)
        nodes += [node] if turns is None else [None] * turns.length
    return nodes, index


def place_of(v, index):
    """Return the place of the node that makes a value, see `spread`."""
    node = v.node
    return index[id(node.turns)] + node.at if type(node) is Turn else index[id(node)]


class Turn:
    """Where a node of `turns` would be: the place `at` among those of all turns."""

    __slots__ = ("at", "turns")
    name = "turns"

    def __init__(self, turns, at):
        self.turns, self.at = turns, at


@dataclass(slots=True)
class Column:
    """One operand of one operation, in all turns.

    `kind` is "same" (`value`: number or tensor), "numbers" (`value`: their type, `data`: them),
    "arrays" (`value`: shape and dtype, `data`: arrays of several turns each) or "made" (by the
    operation `place` of the turn `lag` turns ago, its output `output`; `first`: the tensors that
    the first `lag` turns have instead). Arrays are `made`, too, if an operation made them.
    """

    kind: str
    value: object = None
    made: bool = False
    place: int = 0
    output: int = 0
    lag: int = 0
    first: list = field(default_factory=list)
    data: list = field(default_factory=list)


class Operation:
    """One operation of a turn: its columns, and what is known of its attributes and results.

    `node` is that of the first turn, None where all is constant; `source` is, of an alias, the
    operation and its output that it stands for.
    """

    __slots__ = (
        "attrs",
        "begins",
        "form",
        "forms",
        "location",
        "node",
        "op",
        "position",
        "source",
        "text",
    )

    def __init__(self, event):
        self.op, _, self.attrs, out, self.node = event
        self.text = repr(self.attrs) if self.attrs else ""
        self.location = self.attrs.get("line") if self.node is None else self.node.location
        self.forms = [(o.array.shape, o.requires_grad) for o in outputs(out)]
        self.begins, self.form, self.position, self.source = None, None, 0, None
        if self.op.name in PLACED:
            self.begins = []
            self.form = np.array([i[1:] for i in self.attrs["spec"]], np.int64).reshape(-1, 2)

    def misfits(self, attrs):
        """Return the turns whose attributes differ, and where their slices begin."""
        if self.form is not None:
            specs, dims = [a["spec"] for a in attrs], len(self.form)
            wrong = set()
            if list(map(len, specs)).count(dims) != len(specs):
                wrong.update(t for t, spec in enumerate(specs) if len(spec) != dims)
            shape = self.attrs.get("shape")
            if shape is not None:
                wrong.update(t for t, a in enumerate(attrs) if a["shape"] != shape)
            if wrong:
                return list(wrong), None
            numbers = _chained(_chained(specs))
            spec = np.fromiter(numbers, np.int64, 3 * dims * len(specs))
            spec = spec.reshape(len(specs), dims, 3)
            fits = (spec[:, :, 1:] == self.form).all((1, 2))
            return list(np.flatnonzero(~fits)), spec[:, :, 0]
        first = self.attrs
        # Of what is empty, as attributes of elementwise operations are, equal is the same.
        if not first and attrs.count(first) == len(attrs):
            return (), None
        if all(map(operator.is_, attrs, itertools.repeat(first))):
            return (), None
        return [t for t, a in enumerate(attrs) if a is not first and repr(a) != self.text], None


class Turns:
    """The turns of a loop, each of which does what the others do.

    Attributes
    ----------
    operations : list of Operation
        Of one turn, with those that are constant.
    columns : list of list of Column
    body : list of Node
        Of the first turn.
    turns : int
        How many there are by now.
    """

    def __init__(self, operations, columns):
        self.operations, self.columns, self.turns = operations, columns, 0
        self.body = []
        for operation in operations:
            operation.position = len(self.body)
            if operation.node is not None:
                self.body.append(operation.node)
        self._values = {}  # (place, output) -> GraphValue
        self._nodes: list[Node] = []  # once they were made
        # What must not have nan, as columns with the user's lines, and what of that nothing else
        # tells: see `nan_reaches`.
        self.numbers, self.unreached = [], []

    @property
    def length(self):
        """How many nodes there are in all turns."""
        return len(self.body) * self.turns

    def at(self, turn, operation):
        """Return the place of the node of an operation."""
        return turn * len(self.body) + self.operations[operation].position

    def made(self, operation, output):
        """Return which operation makes an output, and which of its outputs that is; None for one
        that is a constant.
        """
        found = self.operations[operation]
        if found.source is not None:
            return self.made(*found.source)
        return None if found.node is None else (operation, output)

    def value(self, at, output):
        """Return the value that is an output of the node at a place."""
        if self._nodes:
            return self._nodes[at].outs[output]
        v = self._values.get((at, output))
        if v is None:
            like = self.body[at % len(self.body)].outs[output]
            v = GraphValue(like.shape, like.dtype, "node", node=Turn(self, at), index=output)
            self._values[at, output] = v
        return v

    def adopt(self, node, at):
        """Let the outputs of a node that was recorded be those at a place."""
        for output, v in enumerate(node.outs):
            v.node = Turn(self, at)
            self._values[at, output] = v

    def settle(self, value_of):
        """Find what all turns read from outside; to be called once, at the end."""
        for column in itertools.chain.from_iterable(self.columns):
            if column.kind == "same" and isinstance(column.value, TensorBase):
                column.value = value_of(column.value)
            if column.kind == "made":
                column.place, column.output = self.made(column.place, column.output)
            column.first = [value_of(t) for t in column.first]

        for operation, columns in zip(self.operations, self.columns, strict=True):
            if operation.op is NUMBER:
                self.numbers.append((*columns, operation.location))
        self.unreached = self.numbers

    def nan_reaches(self, found):
        """Add to ids of values, of which any nan makes a certain number nan, those that turns make
        or read; `unreached` are then the numbers of which not all turns have theirs among them.
        """
        by_turn = {}
        for (at, output), v in self._values.items():
            turn, position = divmod(at, len(self.body))
            by_turn.setdefault(turn, []).append(((position, output), v))
        rows, later, known, missed = list(self.rows()), {}, {}, set()
        for turn in reversed(range(self.turns)):
            values = by_turn.get(turn, ())
            seed = later.pop(turn, frozenset()) | {place for place, v in values if v.id in found}
            if seed not in known:  # most turns are read in the same way
                known[seed] = self._nan_reaches_in(rows, seed, found)
            reached, carried, missing = known[seed]
            missed |= missing
            for place, column in carried:
                if turn < column.lag:
                    found.add(column.first[turn].id)
                else:
                    before = turn - column.lag
                    later[before] = later.get(before, frozenset()) | {place}
            found.update(v.id for place, v in values if place in reached)
        for i, (column, _) in enumerate(self.numbers):
            outer = column.first if column.kind == "made" else [column.value]
            if any(v.id not in found for v in outer):
                missed.add(i)
        self.unreached = [self.numbers[i] for i in sorted(missed)]

    def _nan_reaches_in(self, rows, seed, found):
        """Follow nan in one turn from places (position, output) that reach a number; returns all
        such places, what is carried from turns before as (place, column), and the indices of those
        numbers that are not among the places. What all turns read is added to `found`.
        """
        reached, carried = set(seed), []
        for operation, columns in reversed(rows):
            node = operation.node
            if node.name not in CARRIES or (operation.position, 0) not in reached:
                continue
            (out,) = node.outs
            if 0 in out.shape or out.dtype.kind != "f":
                continue
            for column in columns:
                if column.kind == "made":
                    place, v = self._place(column)
                    if v.dtype.kind == "f" and column.lag:
                        carried.append((place, column))
                    elif v.dtype.kind == "f":
                        reached.add(place)
                elif type(column.value) is GraphValue and column.value.dtype.kind == "f":
                    found.add(column.value.id)
        missing = {
            i
            for i, (column, _) in enumerate(self.numbers)
            if column.kind == "made" and self._place(column)[0] not in reached
        }
        return reached, carried, missing

    def _place(self, column):
        """Return where in a turn a column is made, as (position, output), and that output there."""
        position = self.operations[column.place].position
        return (position, column.output), self.body[position].outs[column.output]

    def unreached_numbers(self):
        """Return the values and lines of `unreached` in all turns, of which there are nodes."""
        found = []
        for column, line in self.unreached:
            if column.kind == "made":
                found += [(self._input(column, turn, {}), line) for turn in range(self.turns)]
            else:
                found.append((column.value, line))
        return found

    def rows(self):
        """Yield the operations that have nodes, with their columns."""
        for operation, columns in zip(self.operations, self.columns, strict=True):
            if operation.node is not None:
                yield operation, columns

    def nodes(self):
        """Return the nodes of all turns."""
        if not self._nodes:
            known = self._values
            stacks = {
                id(column): np.concatenate(column.data)
                for column in itertools.chain.from_iterable(self.columns)
                if column.kind == "arrays" and column.data
            }
            rows = [(*row, _starts(row[0])) for row in self.rows()]
            for turn in range(self.turns):
                for operation, columns, starts in rows:
                    inputs = tuple(self._input(c, turn, stacks) for c in columns)
                    self._nodes.append(self._node(operation, inputs, turn, starts, known))
        return self._nodes

    def _node(self, operation, inputs, turn, starts, known):
        at, attrs = len(self._nodes), operation.attrs
        if starts is not None:
            spec = zip(starts[turn].tolist(), operation.form.tolist(), strict=True)
            attrs = {**attrs, "spec": tuple((begin, *rest) for begin, rest in spec)}
        outs = tuple(
            known.get((at, i)) or GraphValue(v.shape, v.dtype, "node")
            for i, v in enumerate(operation.node.outs)
        )
        return Node(operation.op, operation.op.name, inputs, attrs, outs, operation.location)

    def _input(self, column, turn, stacks):
        if column.kind == "same":
            return column.value
        if column.kind == "numbers":
            return column.data[turn]
        if column.kind == "arrays":
            array = stacks[id(column)][turn]
            return GraphValue(array.shape, array.dtype, "const", array)
        if turn < column.lag:
            return column.first[turn]
        return self._nodes[self.at(turn - column.lag, column.place)].outs[column.output]


def _starts(operation):
    return None if operation.begins is None else np.concatenate(operation.begins)
