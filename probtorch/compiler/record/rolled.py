"""`Rolled`: the function of a graph whose repeating stretches are loops; see rolling.py.

It says what a loop is (`RolledLoop`), how its turns come by their operands (`Operand`), and carries
all out: nodes one by one, stretches by `scan`.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.compiler.graph import GraphValue
from probtorch.compiler.places import at_places, gathered
from probtorch.compiler.record.turns import place_of
from probtorch.core.dispatch import apply, wrap
from probtorch.core.told import read
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import expand, movedim, reshape

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
    body: list[object]
    operands: list[list[Operand]]
    # (position, output) -> number among what the loop puts out, for those read outside.
    outputs: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def end(self):
        return self.start + self.period * self.turns

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

    def __init__(self, graph, nodes, index, loops):
        self.graph, self.nodes, self.index, self.loops = graph, nodes, index, loops
        self._note_reads()

    def _note_reads(self):
        """Find what is read outside of the loop that makes it."""

        def read(v, reader):
            row = row_of(v, self.index, self.loops)
            if row is not None and row[0] != reader:
                outputs = self.loops[row[0]].outputs
                outputs.setdefault(row[1:3], len(outputs))

        # What all turns read is said by their operands.
        inside = np.zeros(len(self.nodes), bool)
        for number, loop in enumerate(self.loops):
            inside[loop.start : loop.end] = True
            for operand in itertools.chain.from_iterable(loop.operands):
                if operand.kind == "rows":
                    made, *place = operand.value
                    outputs = self.loops[made].outputs
                    outputs.setdefault(tuple(place), len(outputs))
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
        self.stacks = {}  # number of a loop -> what it put out

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
                found = x.array
            else:
                found = wrap(x.array)
            self.made[x.id] = found
        return found

    def stack(self, key):
        """Return the outputs of all turns at one position of a loop."""
        number, position, output = key
        return self.stacks[number][self.rolled.loops[number].outputs[position, output]]

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
            stack, first = self.stack(row[:3]), row[3]
            if len(inputs) < stack.array.shape[0]:
                stack = stack[first : first + len(inputs)]
            shape = [
                n * len(inputs) if d == dim % len(v.shape) else n for d, n in enumerate(v.shape)
            ]
            found.append(reshape(movedim(stack, 0, dim % len(v.shape)), shape))
        return found

    def loop(self, loop):
        """Carry out a stretch as a scan."""
        registers, slices = {}, []
        plan = []
        for node, row in zip(loop.body, loop.operands, strict=True):
            plan.append((node, [self._prepared(o, loop, registers, slices) for o in row]))
        keys = list(registers)
        init = [[self.value(v) for v in registers[key]] for key in keys]
        wanted = sorted(loop.outputs, key=loop.outputs.__getitem__)

        def step(carry, xs):
            held = dict(zip(keys, carry, strict=True))
            local = []
            for node, row in plan:
                operands = [get(local, held, xs) for get in row]
                if row and row[0].moved:
                    out = operands[0]
                elif len(row) > len(node.inputs):
                    out = at_places(node, operands, [get.dim for get in row[len(node.inputs) :]])
                else:
                    out = apply(node.op, tuple(operands), node.attrs)
                local.append(out if type(out) is tuple else (out,))
            after = [
                [local[position][output], *held[key][:-1]]
                for key in keys
                for position, output in [key[0]]
            ]
            return after, [local[position][output] for position, output in wanted]

        if keys or slices:
            _, ys = scan(step, init, slices, length=loop.turns)
        else:
            # Nothing changes from turn to turn: once is enough.
            ys = [expand(y, (loop.turns, *y.array.shape)) for y in step([], [])[1]]
        self.stacks[self.rolled.loops.index(loop)] = ys

    def _prepared(self, operand, loop, registers, slices):
        """Return how a step gets an operand: a function of its own values, the carried ones and
        its slices.
        """
        if operand.kind == "same":
            value = self.value(operand.value)
            return _Getter(lambda local, held, xs: value)
        if operand.kind == "here":
            position, output = operand.value
            return _Getter(lambda local, held, xs: local[position][output])
        if operand.kind == "carried":
            key = operand.value, tuple(v.id for v in operand.first)
            registers[key] = operand.first
            return _Getter(lambda local, held, xs: held[key][-1])
        number = len(slices)
        slices.append(self._slices(operand, loop))
        dim = operand.attrs if operand.kind == "places" else None
        return _Getter(lambda local, held, xs: xs[number], operand.kind == "moving", dim)

    def _slices(self, operand, loop):
        """Return what the turns take one slice each of."""
        if operand.kind in ("stacked", "places"):
            return wrap(operand.value)
        if operand.kind == "rows":
            first, step = operand.attrs
            rows = np.arange(loop.turns) * step + first
            whole = self.stack(operand.value)
            if step == 1 and first == 0 and len(rows) == whole.array.shape[0]:
                return whole
            return index_select(whole, 0, wrap(rows))
        return gathered(self.value(operand.value), *operand.attrs)


class _Getter:
    """How a step gets one operand; `moved` where it is the slice itself and not what is sliced,
    `dim` where it is positions along that dim.
    """

    __slots__ = ("dim", "get", "moved")

    def __init__(self, get, moved=False, dim=None):
        self.get, self.moved, self.dim = get, moved, dim

    def __call__(self, local, held, xs):
        return self.get(local, held, xs)
