"""Rolling: a Python loop that was unrolled on the tape becomes a loop again.

A plain ``for t in range(T)`` leaves the same few operations on the tape T times over. `rolled`
finds such stretches, works out how one turn depends on the turns before it, and returns a function
that does the same with `scan`, so that code size and compile time stop growing with T.

1. Every node gets a signature: its name, shapes, dtypes, options. The longest stretch in which
   signatures repeat with a period p is a candidate; so are those before and after it.
2. For every operand of every node of the repeating piece, its values in all turns must be of one
   kind (`_Operand`): the same number or value; constants, which are stacked; a value of the same
   turn; one of a few turns ago, which the loop then carries; a slice that begins elsewhere in each
   turn (`places`); the output of an earlier loop, turn by turn. Turns at the start that do not fit
   stay outside.
3. The function walks through the recorded nodes once more, with `scan` in the place of each
   stretch. Whoever calls it records it anew, with gradients if wanted.

Nothing is assumed about the user's code: what does not fit exactly stays unrolled.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.compiler.graph import GraphValue
from probtorch.compiler.places import (
    LARGEST,
    PLACED,
    at_places,
    begins,
    form,
    gathered,
    positions,
)
from probtorch.core.dispatch import apply, wrap
from probtorch.core.told import read
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import expand, movedim, reshape

__all__ = ["MIN_NODES", "rolled"]

# Graphs with fewer nodes compile quickly as they are.
MIN_NODES = 1000
# Turns, and nodes in all turns together, from which on a stretch is worth a loop.
MIN_TURNS = 8
MIN_STRETCH = 100
# Nodes in one turn, and turns that a loop may look back.
MAX_PERIOD = 2000
MAX_LAG = 16
# Last turns that may stay outside of a loop, and turns that may become one.
MAX_DROPPED = 3
MAX_TOGETHER = 6
CANDIDATES = 16


def rolled(graph):
    """Return a function that does what `graph` does, with loops for what repeats in it.

    Parameters
    ----------
    graph : Graph
        As it was recorded, before any pass.

    Returns
    -------
    callable or None
        From the tensors of the inputs to the list of those of the outputs; None where nothing
        repeats, or the graph holds loops and branches of its own.
    """
    nodes = graph.nodes
    if any(node.op is None and node.name != "guard" for node in nodes):
        return None
    index = {id(node): i for i, node in enumerate(nodes)}
    signatures = np.array([hash(_signature(node)) for node in nodes], np.int64)
    loops: list[_Loop] = []
    for start, period, turns in _stretches(signatures, 0, len(nodes)):
        start, turns = _narrowest(nodes, index, start, period, turns)
        loop = _loop(nodes, index, loops, start, period, turns)
        if loop is not None:
            loops.append(loop)
    return _Rolled(graph, index, loops) if loops else None


# -------------------------------------------------------------------------------- finding stretches


def _signature(node):
    if node.name in PLACED:
        # Where a slice begins may differ from turn to turn.
        options: object = form(node)
    else:
        options = repr(node.attrs) if node.attrs else None
    inputs = tuple(
        (x.shape, x.dtype, x.kind == "const") if type(x) is GraphValue else type(x)
        for x in node.inputs
    )
    return node.name, options, inputs, tuple((o.shape, o.dtype) for o in node.outs)


def _stretches(signatures, low, high):
    """Return ``(start, period, turns)`` of the stretches between two positions, in order."""
    found = _longest(signatures[low:high])
    if found is None:
        return []
    start, period, turns = found
    start += low
    end = start + period * turns
    before = _stretches(signatures, low, start)
    return [*before, (start, period, turns), *_stretches(signatures, end, high)]


def _longest(signatures):
    n = len(signatures)
    if n < MIN_STRETCH:
        return None
    # How far it is from each node to the next one like it: periods are among these distances.
    order = np.argsort(signatures, kind="stable")
    alike = signatures[order[1:]] == signatures[order[:-1]]
    gaps = (order[1:] - order[:-1])[alike]
    gaps = gaps[gaps <= min(MAX_PERIOD, n // MIN_TURNS)]
    if not len(gaps):
        return None
    counts = np.bincount(gaps)
    best = None
    for period in sorted(np.argsort(counts)[::-1][:CANDIDATES]):
        if not counts[period]:
            continue
        breaks = np.flatnonzero(signatures[:-period] != signatures[period:])
        edges = np.concatenate([[-1], breaks, [n - period]])
        k = int(np.argmax(np.diff(edges)))
        start, length = int(edges[k]) + 1, int(edges[k + 1] - edges[k] - 1)
        turns = (length + period) // period
        covered = turns * period
        if turns < MIN_TURNS or covered < MIN_STRETCH:
            continue
        # A multiple of the true period covers hardly more than the period itself.
        if best is None or covered > best[1] * best[2] + 2 * period:
            best = start, int(period), turns
    return best


def _narrowest(nodes, index, start, period, turns):
    """Let turns begin where the fewest bytes go from one to the next: the loop keeps them all.

    Returns
    -------
    start, turns : int
        As they were, unless it is worth to leave a turn outside of the loop.
    """
    if turns < MIN_TURNS + MAX_DROPPED:
        return start, turns
    # What lives at each node of a turn in the middle, by the last that reads it.
    base = start + (turns // 2) * period
    last = {}
    for i in range(base - period, base + 2 * period):
        for v in nodes[i].inputs:
            if type(v) is GraphValue and v.kind == "node":
                made = index[id(v.node)]
                if base - period <= made < i:
                    last[v.id] = made, i, v.dtype.itemsize * math.prod(v.shape)
    live = np.zeros(period)
    for made, read_at, size in last.values():
        live[max(made + 1 - base, 0) : max(read_at + 1 - base, 0)] += size
    best = int(np.argmin(live))
    return (start + best, turns - 1) if 2 * live[best] < live[0] else (start, turns)


# ----------------------------------------------------------------------------------- understanding


@dataclass
class _Operand:
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
class _Loop:
    """A stretch that will be a loop: `turns` turns of the nodes in `body`."""

    start: int
    period: int
    turns: int
    body: list[object]
    operands: list[list[_Operand]]
    # (position, output) -> number among what the loop puts out, for those read outside.
    outputs: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def end(self):
        return self.start + self.period * self.turns

    def locate(self, i):
        """Return ``(turn, position)`` of a node, None if it is not one of the loop's."""
        return divmod(i - self.start, self.period) if self.start <= i < self.end else None


def _loop(nodes, index, earlier, start, period, turns):
    """Return the loop that a stretch is, perhaps without turns at its ends; None if it is none.

    The first turns may differ from the rest, the last ones too: a backward pass ends with what
    the forward loop began with. Several turns may have to be taken as one: where an earlier loop
    did, whose outputs are read (enumerated chains reuse their dims in turn).
    """
    for together in range(1, MAX_TOGETHER + 1):
        # The last turns that stay outside, and then first ones, so that the rest is a multiple.
        for dropped in range(MAX_DROPPED + together):
            rest = (turns - dropped) % together
            first, count = start + rest * period, (turns - dropped) // together
            found = _fit(nodes, index, earlier, first, period * together, count)
            if found is not None:
                return found
    return None


def _fit(nodes, index, earlier, start, period, turns):
    """Return the loop that ends with the last of these turns, perhaps without the first ones."""
    while turns >= MIN_TURNS and turns * period >= MIN_STRETCH:
        operands, unfit = [], 0
        for r in range(period):
            column = nodes[start + r : start + turns * period : period]
            row, turn = _operands(column, index, earlier, start, period)
            if row is None:
                unfit = max(unfit, turn + 1)
            operands.append(row)
        if not unfit:
            return _Loop(start, period, turns, nodes[start : start + period], operands)
        start += unfit * period
        turns -= unfit
    return None


def _operands(column, index, earlier, start, period):
    """Return the operands of one position; or None and the last turn that does not fit."""
    first = column[0]
    row = []
    for j in range(len(first.inputs)):
        values = [node.inputs[j] for node in column]
        operand, turn = _operand(values, index, earlier, start, period)
        if operand is None:
            return None, turn
        if operand.kind == "stacked" and operand.value.dtype == object:
            operand.value = _as_operand(operand.value, first, j)
            if operand.value is None:
                return None, len(column) - 1
        row.append(operand)
    if first.name in PLACED and any(n.attrs["spec"] != first.attrs["spec"] for n in column):
        return _placed(row, column)
    return row, -1


def _as_operand(numbers, node, j):
    """Return Python numbers, input `j` of a node in all turns, in the dtype that the op gives them;
    None if that is not known.
    """
    masks = node.op.extra.get("mask_inputs", ()) if node.op is not None else None
    if masks is None or node.op.family != "elementwise" or j in masks:
        return None
    dtypes = {
        x.dtype for i, x in enumerate(node.inputs) if type(x) is GraphValue and i not in masks
    }
    if len(dtypes) != 1:
        return None
    try:
        return numbers.astype(*dtypes)
    except OverflowError:
        return None


def _operand(values, index, earlier, start, period):
    """Return what an operand is in all turns; or None and the last turn that does not fit."""
    last = values[-1]
    turns = len(values)
    if type(last) is not GraphValue:
        if all(type(v) is type(last) and (v == last) for v in values):
            return _Operand("same", last), -1
        if all(type(v) in (int, float) for v in values):
            return _Operand("stacked", np.array(values, object)), -1
        return None, turns - 1
    if last.kind == "const":
        if all(v is last for v in values):
            return _Operand("same", last), -1
        return _Operand("stacked", np.stack([v.array for v in values])), -1
    where = _where(last, index, start, period)
    if where is None or where[0] < 0:
        return _outside(values, index, earlier, start)
    lag, position = turns - 1 - where[0], where[1]
    if lag > MAX_LAG:
        return None, turns - 1
    for t in range(turns - 1, lag - 1, -1):
        if _where(values[t], index, start, period) != (t - lag, position, last.index):
            return None, t
    if not lag:
        return _Operand("here", (position, last.index)), -1
    for t in range(lag):
        v = values[t]
        made = _where(v, index, start, period)
        if type(v) is not GraphValue or (made is not None and made[0] >= 0):
            return None, t
    # `first[i]` is what the turn i + 1 turns before the first one would have made.
    first = tuple(values[lag - 1 - i] for i in range(lag))
    return _Operand("carried", (position, last.index), lag, first), -1


def _where(v, index, start, period):
    """Return ``(turn, position, output)`` of a value, turn -1 for all before; None if no node's."""
    if type(v) is not GraphValue or v.kind != "node":
        return None
    turn, position = divmod(index[id(v.node)] - start, period)
    return (turn, position, v.index) if turn >= 0 else (-1, position, v.index)


def _outside(values, index, earlier, start):
    """An operand made before the loop: always the same one, or the rows of an earlier loop."""
    last = values[-1]
    for t in range(len(values) - 1, -1, -1):
        if values[t] is not last:
            break
    else:
        return _Operand("same", last), -1
    if t < len(values) - 2:
        return None, t
    rows = [_row(v, index, earlier) for v in values]
    if rows[-1] is None or rows[-2] is None:
        return None, t
    step = rows[-1][3] - rows[-2][3]
    for t in range(len(values) - 1, -1, -1):
        at = rows[-1][3] - step * (len(values) - 1 - t)
        if rows[t] is None or rows[t][:3] != rows[-1][:3] or rows[t][3] != at:
            return None, t
    return _Operand("rows", rows[-1][:3], attrs=(rows[0][3], step)), -1


def _row(v, index, earlier):
    """Return ``(loop, position, output, turn)`` of a value that an earlier loop makes, or None."""
    if type(v) is GraphValue and v.kind == "node":
        i = index[id(v.node)]
        for number, loop in enumerate(earlier):
            found = loop.locate(i)
            if found is not None:
                return number, found[1], v.index, found[0]
    return None


def _placed(row, column):
    """A slice that begins elsewhere in each turn: of one tensor for all turns, or of any."""
    first = column[0]
    starts, dims = begins(column)
    if first.name == "slice" and row[0].kind == "same":
        if len(column) * int(np.prod(first.outs[0].shape)) <= LARGEST:
            spec = first.attrs["spec"]
            return [_Operand("moving", row[0].value, attrs=(spec, starts, dims))], -1
    found = positions(first, starts, dims)
    if found is None:
        return None, len(column) - 1
    return [*row, *(_Operand("places", at, attrs=d) for d, at in zip(dims, found))], -1


# ---------------------------------------------------------------------------------- doing it again


class _Rolled:
    """The function of a graph whose stretches are loops."""

    def __init__(self, graph, index, loops):
        self.graph, self.index, self.loops = graph, index, loops
        self._note_reads()

    def _note_reads(self):
        """Find what is read outside of the loop that makes it."""

        def read(v, reader):
            row = _row(v, self.index, self.loops)
            if row is not None and row[0] != reader:
                outputs = self.loops[row[0]].outputs
                outputs.setdefault(row[1:3], len(outputs))

        inside = np.full(len(self.graph.nodes) + 1, -1)
        for number, loop in enumerate(self.loops):
            inside[loop.start : loop.end] = number
        for i, node in enumerate(self.graph.nodes):
            for v in node.inputs:
                if type(v) is GraphValue and v.kind == "node":
                    read(v, inside[i])
        for v in self.graph.outputs:
            read(v, -1)

    def __call__(self, *inputs):
        """Run on tensors; returns the list of results."""
        run = _Run(self, inputs)
        i, loops = 0, iter(self.loops)
        loop = next(loops, None)
        while i < len(self.graph.nodes):
            if loop is not None and i == loop.start:
                run.loop(loop)
                i, loop = loop.end, next(loops, None)
                continue
            run.node(self.graph.nodes[i])
            i += 1
        return [run.value(v) for v in self.graph.outputs]


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
            row = _row(x, self.rolled.index, self.rolled.loops)
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
        together = self._concatenated(node) if node.name == "cat" else None
        if together is None:
            together = apply(node.op, tuple(map(self.value, node.inputs)), node.attrs)
        results = together if type(together) is tuple else (together,)
        self.made.update((v.id, t) for v, t in zip(node.outs, results, strict=True))

    def _concatenated(self, node):
        """The concatenation of what all turns of a loop put out; None if it is something else."""
        rows = [_row(v, self.rolled.index, self.rolled.loops) for v in node.inputs]
        if any(row is None or row[:3] != rows[0][:3] for row in rows):
            return None
        turns = self.rolled.loops[rows[0][0]].turns
        if [row[3] for row in rows] != list(range(turns)):
            return None
        dim = node.attrs["dim"]
        return reshape(movedim(self.stack(rows[0][:3]), 0, dim), node.outs[0].shape)

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
