"""`Rolled`: the function of a graph whose repeating stretches are loops; see rolling.py.

It says what a loop is (`RolledLoop`), how its turns come by their operands (`Operand`), and carries
all out: nodes one by one, stretches by `scan`.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.compiler.graph import GraphValue, Node
from probtorch.compiler.record.places import at_places
from probtorch.compiler.record.record import record
from probtorch.compiler.record.slices import Slices
from probtorch.compiler.record.turns import place_of
from probtorch.core.dispatch import apply, wrap
from probtorch.core.told import is_number, number_alone, read
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import expand, movedim, reshape
from probtorch.ops.pieces import stack

__all__ = ["Operand", "Rolled", "RolledLoop", "row_of"]


@dataclass
class Operand:
    """How the turns of a loop come by one operand.

    `kind` is "same" (`value`: number or Value), "stacked" (`value`: the array of all turns), "here"
    (`value`: position and output in the same turn), "carried" (`value` as for "here", `lag` turns
    ago, `first` the values before the first turn), "moving" (`value`: a Value, `attrs`: the
    slice of it in the first turn, where it begins in all turns, and the dims in which it moves),
    "rows" (`value`: loop, position and output of an earlier loop, `attrs` first turn and step), or
    "places" (`value`: positions along a dim in all turns, `attrs` that dim).
    """

    kind: str
    value: object
    lag: int = 0
    first: tuple[GraphValue, ...] = ()
    attrs: object = None


@dataclass
class RolledLoop:
    """A stretch that will be a loop: `turns` turns of the nodes in `body`."""

    start: int
    period: int
    turns: int
    body: list[Node]
    operands: list[list[Operand]]
    # Whether stretches of the body may be loops themselves.
    nests: bool = False
    # Places (position, output) of what is read outside, as keys.
    outputs: dict[tuple[int, int], None] = field(default_factory=dict)

    @property
    def end(self):
        return self.start + self.period * self.turns

    def tables(self):
        """Return the places (position, output) that each tensor put out has, a list of lists.

        Where turns hold loops, what has one form is one tensor: a column for each, those of one
        line next to each other.
        """
        if not self.nests:
            return [[place] for place in self.outputs]
        found = {}
        for position, output in self.outputs:
            v = self.body[position].outs[output]
            found.setdefault((v.shape, v.dtype), []).append((position, output))
        return [sorted(x, key=lambda at: (self.body[at[0]].place, at)) for x in found.values()]

    def locate(self, i):
        """Return ``(turn, position)`` of a node, None if it is not one of the loop's."""
        return divmod(i - self.start, self.period) if self.start <= i < self.end else None


def row_of(v, index, earlier):
    """Return ``(loop, position, output, turn)`` of a value that an earlier loop makes, or None."""
    if type(v) is GraphValue and v.kind == "node":
        i = place_of(v, index)
        for number, loop in enumerate(earlier):
            found = loop.locate(i)
            if found is not None:
                return number, found[1], v.index, found[0]
    return None


class Rolled:
    """The function of a graph whose stretches are loops."""

    def __init__(self, graph, nodes, index, loops, roll):
        self.graph, self.nodes, self.index, self.loops = graph, nodes, index, loops
        self.roll = roll  # for what turns hold
        self._note_reads()

    def _note_reads(self):
        """Find what is read outside of the loop that makes it."""

        def read(v, reader):
            row = row_of(v, self.index, self.loops)
            if row is not None and row[0] != reader:
                self.loops[row[0]].outputs[row[1:3]] = None

        # What all turns read is said by their operands.
        inside = np.zeros(len(self.nodes), bool)
        for number, loop in enumerate(self.loops):
            inside[loop.start : loop.end] = True
            for operand in itertools.chain.from_iterable(loop.operands):
                if operand.kind == "rows":
                    made, *place = operand.value
                    self.loops[made].outputs[tuple(place)] = None
                elif operand.kind != "here":
                    for v in operand.first or (operand.value,):
                        read(v, number)
        for i in np.flatnonzero(~inside):
            for v in self.nodes[i].inputs:
                read(v, -1)
        for v in self.graph.outputs:
            read(v, -1)

    def __call__(self, *inputs):
        """Run on tensors; returns the list of results."""
        run = _Run(self, inputs)
        i, loops = 0, iter(self.loops)
        loop = next(loops, None)
        while i < len(self.nodes):
            if loop is not None and i == loop.start:
                run.loop(loop)
                i, loop = loop.end, next(loops, None)
                continue
            run.node(self.nodes[i])
            i += 1
        return [run.value(v) for v in self.graph.outputs]


def _stretch_of(place, row):
    """Return what is the same for rows of one output of a loop that follow each other."""
    return (-1, place) if row is None else (*row[:3], row[3] - place)


class _Run:
    """One walk through the nodes, with the tensors made so far."""

    def __init__(self, rolled, inputs):
        self.rolled = rolled
        self.made = {v.id: t for v, t in zip(rolled.graph.inputs, inputs, strict=True)}
        self.stacks = {}  # loop, position and output -> what all turns put out there
        self.columns = {}  # the same -> table that it is a column of, and which

    def value(self, x):
        """Return the tensor (or number) that an input of a node stands for."""
        if type(x) is not GraphValue:
            return x
        found = self.made.get(x.id)
        if found is None:
            row = row_of(x, self.rolled.index, self.rolled.loops)
            if row is not None:
                found = self.stack(row[:3])[row[3]]
            elif x.kind == "ref":
                found = number_alone(x.array) if is_number(x.array) else x.array
            else:
                found = wrap(x.array)
            self.made[x.id] = found
        return found

    def stack(self, key):
        """Return the outputs of all turns at one position of a loop."""
        if key not in self.stacks:
            table, column = self.columns[key]
            self.stacks[key] = table[:, column]
        return self.stacks[key]

    def stacks_of(self, keys):
        """Return what all turns of one loop put out at several places of one form, as columns."""
        table = self.columns[keys[0]][0]
        at = np.array([self.columns[key][1] for key in keys])
        if np.array_equal(at, np.arange(table.array.shape[1])):
            return table
        return index_select(table, 1, wrap(at))

    def node(self, node):
        """Carry out one node outside of loops."""
        if node.name == "guard":
            read("bool()", self.value(node.inputs[0]), node.attrs["value"])
            return
        inputs = self._together(node) if node.name == "cat" else map(self.value, node.inputs)
        together = apply(node.op, tuple(inputs), node.attrs)
        results = together if type(together) is tuple else (together,)
        self.made.update((v.id, t) for v, t in zip(node.outs, results, strict=True))

    def _together(self, node):
        """What is to be concatenated: what the turns of a loop put out one after the other is one
        tensor.
        """
        dim, found = node.attrs["dim"], []
        rows = [row_of(v, self.rolled.index, self.rolled.loops) for v in node.inputs]
        # Rows of one output follow each other where turn and place among the inputs go up together.
        numbered = enumerate(zip(node.inputs, rows, strict=True))
        for _, run in itertools.groupby(numbered, lambda x: _stretch_of(x[0], x[1][1])):
            inputs = [pair for _, pair in run]
            v, row = inputs[0]
            if len(inputs) == 1:
                found.append(self.value(v))
                continue
            whole, first = self.stack(row[:3]), row[3]
            if len(inputs) < whole.array.shape[0]:
                whole = whole[first : first + len(inputs)]
            shape = [
                n * len(inputs) if d == dim % len(v.shape) else n for d, n in enumerate(v.shape)
            ]
            found.append(reshape(movedim(whole, 0, dim % len(v.shape)), shape))
        return found

    def loop(self, loop):
        """Carry out a stretch as a scan."""
        registers, outside, slices = {}, {}, Slices(loop.nests)
        plan = []
        for node, row in zip(loop.body, loop.operands, strict=True):
            plan.append((node, [self._prepared(o, registers, slices, outside) for o in row]))
        keys, closed = list(registers), [t for _, t in outside.values()]
        init = [[self.value(v) for v in registers[key]] for key in keys]
        tables = loop.tables()

        def turn(carry, xs, closed):
            now = _Now(dict(zip(keys, carry, strict=True)), xs, closed)
            for node, row in plan:
                operands = [get(now) for get in row]
                if row and row[0].moved:
                    out = operands[0]
                elif len(row) > len(node.inputs):
                    out = at_places(node, operands, [get.dim for get in row[len(node.inputs) :]])
                else:
                    out = apply(node.op, tuple(operands), node.attrs)
                now.local.append(out if type(out) is tuple else (out,))
            after = [
                [now.local[position][output], *now.held[key][:-1]]
                for key in keys
                for position, output in [key[0]]
            ]
            put_out = [[now.local[position][output] for position, output in x] for x in tables]
            return after, [x[0] if len(x) == 1 else stack(x) for x in put_out]

        xs = slices.tensors(loop.turns, self)
        step = self._with_loops(turn, init, xs, closed) if loop.nests else turn
        if keys or xs:
            _, ys = scan(lambda carry, xs: step(carry, xs, closed), init, xs, length=loop.turns)
        else:
            # Nothing changes from turn to turn: once is enough.
            ys = [expand(y, (loop.turns, *y.array.shape)) for y in step([], [], closed)[1]]
        number = self.rolled.loops.index(loop)
        for places, y in zip(tables, ys, strict=True):
            for column, place in enumerate(places):
                if len(places) == 1:
                    self.stacks[number, *place] = y
                else:
                    self.columns[number, *place] = y, column

    def _with_loops(self, turn, init, xs, closed):
        """Return the function `turn` with loops in the place of what repeats in it: it is recorded
        by itself, and that is rolled.
        """
        given, structure = flatten((init, [wrap(x.array[0]) for x in xs], closed))
        results: list[Structure] = []

        def flat(*leaves):
            found, result = flatten(turn(*unflatten(structure, leaves)))
            results.append(result)
            return found

        recorded, _ = record(flat, [wrap(x.array.copy()) for x in given], abstract=True)
        inner = self.rolled.roll(recorded.graph)
        if inner is None or recorded.unsupported:
            return turn
        return lambda *now: unflatten(results[0], inner(*flatten(now)[0]))

    def _prepared(self, operand, registers, slices, outside):
        """Return how a turn gets an operand, from what it has by then (`_Now`)."""
        kind, value = operand.kind, operand.value
        if kind == "same":
            if type(value) is not GraphValue or value.static:
                number = self.value(value)
                return _Getter(lambda now: number)
            k, _ = outside.setdefault(value.id, (len(outside), self.value(value)))
            return _Getter(lambda now: now.closed[k])
        if kind == "here":
            position, output = value
            return _Getter(lambda now: now.local[position][output])
        if kind == "carried":
            key = value, tuple(v.id for v in operand.first)
            registers[key] = operand.first
            return _Getter(lambda now: now.held[key][-1])
        get = slices.add(operand, self.rolled.loops)
        dim = operand.attrs if kind == "places" else None
        return _Getter(lambda now: get(now.xs), kind == "moving", dim)


class _Now:
    """What a turn has: carried values, slices, what it closes over, and what it made so far."""

    __slots__ = ("closed", "held", "local", "xs")

    def __init__(self, held, xs, closed):
        self.held, self.xs, self.closed, self.local = held, xs, closed, []


class _Getter:
    """How a turn gets one operand; `moved` where it is the slice itself and not what is sliced,
    `dim` where it is positions along that dim.
    """

    __slots__ = ("dim", "get", "moved")

    def __init__(self, get, moved=False, dim=None):
        self.get, self.moved, self.dim = get, moved, dim

    def __call__(self, now):
        return self.get(now)
