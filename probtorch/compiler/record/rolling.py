"""Rolling: a Python loop that was unrolled on the tape becomes a loop again.

A plain ``for t in range(T)`` leaves the same few operations on the tape T times over. `rolled`
finds such stretches, works out how one turn depends on the turns before it, and returns a function
that does the same with `scan`, so that code size and compile time stop growing with T.

1. Every node gets a signature: its name, shapes, dtypes, options. The longest stretch in which
   signatures repeat with a period p is a candidate; so are those before and after it.
2. For every operand of every node of the repeating piece, its values in all turns must be of one
   kind (`Operand`): the same number or value; constants, which are stacked; a value of the same
   turn; one of a few turns ago, which the loop then carries; a slice that begins elsewhere in each
   turn (`places`); the output of an earlier loop, turn by turn. Turns at the start that do not fit
   stay outside.
3. The function (`rolled.py`) walks through the recorded nodes once more, with `scan` in the place
   of each stretch. Whoever calls it records it anew, with gradients if wanted.
4. A turn that is a stretch of stretches is recorded by itself and rolled in the same way, so that
   loops stand in loops. What its operands have in one place in all turns is a table (`slices.py`).

Nothing is assumed about the user's code: what does not fit exactly stays unrolled.
"""

import itertools
import math
import operator

import numpy as np

from probtorch.compiler.graph import GraphValue
from probtorch.compiler.record.periods import likely_periods, repeats
from probtorch.compiler.record.places import LARGEST, PLACED, begins, form, moving, positions
from probtorch.compiler.record.rolled import Operand, Rolled, RolledLoop, row_of
from probtorch.compiler.record.turns import Turns, expanded, place_of, same_number, spread

__all__ = ["MIN_NODES", "rolled"]

# Graphs with fewer nodes compile quickly as they are.
MIN_NODES = 1000
# Turns, and nodes in all turns together, from which on a stretch is worth a loop.
MIN_TURNS = 8
MIN_STRETCH = 100
# Nodes in one turn, and turns that a loop may look back.
MAX_PERIOD = 40_000
MAX_LAG = 16
# Last turns that may stay outside of a loop, and turns that may become one.
MAX_DROPPED = 3
MAX_TOGETHER = 6


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
    if any(node.op is None and node.name not in ("guard", "turns") for node in graph.nodes):
        return None
    segments = [(low, found) for low, found in _segments(graph) if _may_repeat(found)]
    if not segments:
        return None
    nodes, index = spread(graph)
    loops: list[RolledLoop] = []
    for low, found in segments:
        if type(found) is Turns:
            loop = _of_turns(found, low)
            if loop is None:
                return rolled(expanded(graph))
            loops.append(loop)
            continue
        _search(nodes, index, loops, _signatures(found), low, 0, len(found))
    if not loops:
        return None
    return Rolled(graph, nodes, index, loops, rolled)


def _search(nodes, index, loops, signatures, offset, low, high):
    """Add the loops between two positions of a segment, which begins at `offset`, in order."""
    found = _longest(signatures[low:high])
    if found is None:
        return
    start, period, turns = found
    start += low
    end = start + period * turns
    _search(nodes, index, loops, signatures, offset, low, start)
    start, turns = _narrowest(nodes, index, offset + start, period, turns)
    loop = _loop(nodes, index, loops, start, period, turns)
    if loop is not None:
        # What stays outside may have loops of its own, which this one may read.
        count = len(loops)
        if loop.start - offset < end:
            _search(nodes, index, loops, signatures, offset, start - offset, loop.start - offset)
        if len(loops) > count:
            loop = _loop(nodes, index, loops, loop.start, loop.period, loop.turns) or loop
        loops.append(loop)
        end = min(end, loop.end - offset)
    _search(nodes, index, loops, signatures, offset, end, high)


def _segments(graph):
    """Yield turns that were followed, and what nodes there are between, with their places."""
    at = 0
    for of_turns, run in itertools.groupby(graph.nodes, lambda node: node.name == "turns"):
        if of_turns:
            for node in run:
                yield at, node.attrs["turns"]
                at += node.attrs["turns"].length
        else:
            between = list(run)
            yield at, between
            at += len(between)


def _may_repeat(found):
    """Whether a segment may have turns, or is some; without a look at each operand."""
    return type(found) is Turns or repeats([node.name for node in found])


def _of_turns(turns, start):
    """Return the loop that turns are which were followed; None if it could not be carried out."""
    operands = []
    for operation, columns in turns.rows():
        node, row = operation.node, []
        for j, column in enumerate(columns):
            operand = _of_column(turns, column)
            if operand.kind == "stacked" and operand.value.dtype == object:
                operand.value = _as_operand(operand.value, node, j)
                if operand.value is None:
                    return None
            row.append(operand)
        if operation.begins is not None:
            row, _ = _placed(row, node, *moving(np.concatenate(operation.begins)))
            if row is None:
                return None
        operands.append(row)
    body = turns.body
    return RolledLoop(start, len(body), turns.turns, body, operands, _nests(body))


def _nests(body):
    """Whether stretches of a turn may be loops themselves."""
    return _longest(_signatures(body)) is not None


def _of_column(turns, column):
    if column.kind == "same":
        return Operand("same", column.value)
    if column.kind == "numbers":
        numbers = column.data
        if all(map(same_number, numbers, itertools.repeat(numbers[0]))):
            return Operand("same", numbers[0])
        return Operand("stacked", np.array(numbers, object))
    if column.kind == "arrays":
        return Operand("stacked", np.concatenate(column.data))
    made = turns.operations[column.place].position, column.output
    if not column.lag:
        return Operand("here", made)
    # `first[i]` is what the turn i + 1 turns before the first one would have made.
    return Operand("carried", made, column.lag, tuple(column.first[::-1]))


# -------------------------------------------------------------------------------- finding stretches


def _signatures(nodes):
    return np.array([hash(_signature(node)) for node in nodes], np.int64)


def _signature(node):
    # By the numbers of dtypes, whose hashes take longer than all the rest.
    inputs = [
        (x.shape, x.dtype.num, x.kind == "const") if type(x) is GraphValue else type(x)
        for x in node.inputs
    ]
    return (
        node.name,
        form(node.name, node.attrs),
        *inputs,
        *[(o.shape, o.dtype.num) for o in node.outs],
    )


def _longest(signatures):
    n = len(signatures)
    if n < MIN_STRETCH:
        return None
    best = None
    for period in likely_periods(signatures, min(MAX_PERIOD, n // MIN_TURNS)):
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
            best = start, period, turns
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
                made = place_of(v, index)
                if base - period <= made < i:
                    last[v.id] = made, i, v.dtype.itemsize * math.prod(v.shape)
    live = np.zeros(period)
    for made, read_at, size in last.values():
        live[max(made + 1 - base, 0) : max(read_at + 1 - base, 0)] += size
    best = int(np.argmin(live))
    return (start + best, turns - 1) if 2 * live[best] < live[0] else (start, turns)


# ----------------------------------------------------------------------------------- understanding


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
    # Turns may read what turns put out that hold loops: one place after the other of each.
    count, together = _turns_of_rows(nodes, index, earlier, start, period, turns)
    if not together:
        return None
    first, together = start + count % together * period, together * period
    return _fit(nodes, index, earlier, first, together, count * period // together)


def _turns_of_rows(nodes, index, earlier, start, period, turns):
    """Return how many turns there are up to the last that reads what turns with loops put out, and
    after how many they come to the same place again; 0 and 0 where none does.
    """
    for r in range(period):
        column = nodes[start + r : start + turns * period : period]
        for j in range(len(column[0].inputs)):
            last, row = turns, None
            while last and (row is None or not earlier[row[0]].nests):
                last -= 1
                row = row_of(column[last].inputs[j], index, earlier)
            if row is None:
                continue
            for k in range(2, last // MIN_TURNS):
                before = row_of(column[last - k].inputs[j], index, earlier)
                if before is None:
                    break
                if before[:3] == row[:3]:
                    return last + 1, k
    return 0, 0


def _fit(nodes, index, earlier, start, period, turns):
    """Return the loop that ends with the last of these turns, perhaps without the first ones."""
    while turns >= MIN_TURNS and turns * period >= MIN_STRETCH:
        operands, unfit = [], 0
        for r in range(period):
            column = nodes[start + r : start + turns * period : period]
            row, turn = _operands(column, nodes, index, earlier, start, period)
            if row is None:
                unfit = max(unfit, turn + 1)
            operands.append(row)
        if not unfit:
            body = nodes[start : start + period]
            return RolledLoop(start, period, turns, body, operands, _nests(body))
        start += unfit * period
        turns -= unfit
    return None


def _operands(column, nodes, index, earlier, start, period):
    """Return the operands of one position; or None and the last turn that does not fit."""
    first = column[0]
    row = []
    for j in range(len(first.inputs)):
        values = [node.inputs[j] for node in column]
        operand, turn = _operand(values, nodes, index, earlier, start, period)
        if operand is None:
            return None, turn
        if operand.kind == "stacked" and operand.value.dtype == object:
            operand.value = _as_operand(operand.value, first, j)
            if operand.value is None:
                return None, len(column) - 1
        row.append(operand)
    if first.name in PLACED and any(n.attrs["spec"] != first.attrs["spec"] for n in column):
        return _placed(row, first, *begins(column))
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


def _operand(values, nodes, index, earlier, start, period):
    """Return what an operand is in all turns; or None and the last turn that does not fit."""
    last = values[-1]
    turns = len(values)
    if type(last) is not GraphValue:
        if all(same_number(v, last) for v in values):
            return Operand("same", last), -1
        if all(type(v) in (int, float) for v in values):
            return Operand("stacked", np.array(values, object)), -1
        return None, turns - 1
    if last.kind == "const":
        if all(v is last for v in values):
            return Operand("same", last), -1
        return Operand("stacked", np.stack([v.array for v in values])), -1
    where = _where(last, index, start, period)
    if where is None or where[0] < 0:
        return _outside(values, index, earlier)
    lag, position = turns - 1 - where[0], where[1]
    if lag > MAX_LAG:
        return None, turns - 1
    made = nodes[start + position : start + period * (turns - lag) : period]
    if not _outputs_of(values[lag:], made, last.index):
        for t in range(turns - 1, lag - 1, -1):
            if _where(values[t], index, start, period) != (t - lag, position, last.index):
                return None, t
    if not lag:
        return Operand("here", (position, last.index)), -1
    for t in range(lag):
        v = values[t]
        made = _where(v, index, start, period)
        if type(v) is not GraphValue or (made is not None and made[0] >= 0):
            return None, t
    # `first[i]` is what the turn i + 1 turns before the first one would have made.
    first = tuple(values[lag - 1 - i] for i in range(lag))
    return Operand("carried", (position, last.index), lag, first), -1


def _outputs_of(values, nodes, number):
    """Whether values are the outputs of this number of nodes, one by one."""
    return all(type(v) is GraphValue and v.index == number for v in values) and all(
        map(operator.is_, [v.node for v in values], nodes)
    )


def _where(v, index, start, period):
    """Return ``(turn, position, output)`` of a value, turn -1 for all before; None if no node's."""
    if type(v) is not GraphValue or v.kind != "node":
        return None
    turn, position = divmod(place_of(v, index) - start, period)
    return (turn, position, v.index) if turn >= 0 else (-1, position, v.index)


def _outside(values, index, earlier):
    """An operand made before the loop: always the same one, or the rows of an earlier loop."""
    last = values[-1]
    for t in range(len(values) - 1, -1, -1):
        if values[t] is not last:
            break
    else:
        return Operand("same", last), -1
    if t < len(values) - 2:
        return None, t
    rows = [row_of(v, index, earlier) for v in values]
    if rows[-1] is None or rows[-2] is None:
        return None, t
    step = rows[-1][3] - rows[-2][3]
    for t in range(len(values) - 1, -1, -1):
        at = rows[-1][3] - step * (len(values) - 1 - t)
        if rows[t] is None or rows[t][:3] != rows[-1][:3] or rows[t][3] != at:
            return None, t
    return Operand("rows", rows[-1][:3], attrs=(rows[0][3], step)), -1


def _placed(row, first, starts, dims):
    """A slice that begins elsewhere in each turn: of one tensor for all turns, or of any."""
    if not dims:
        return row, -1
    if first.name == "slice" and row[0].kind == "same":
        if len(starts) * int(np.prod(first.outs[0].shape)) <= LARGEST:
            spec = first.attrs["spec"]
            return [Operand("moving", row[0].value, attrs=(spec, starts, dims))], -1
    found = positions(first, starts, dims)
    if found is None:
        return None, len(starts) - 1
    return [*row, *(Operand("places", at, attrs=d) for d, at in zip(dims, found, strict=True))], -1
