"""Turns of a Python loop are looked for while it is recorded.

`TurnsWatch` looks at the last operations from time to time, ever more of them. Where these repeat,
and operands come from the same places in each turn, it returns a `Following` (following.py).
"""

import itertools
import math
import operator

import numpy as np

from probtorch.compiler.graph import GraphValue
from probtorch.compiler.record.following import (
    FEW_TURNS,
    MIN_TURNS,
    Following,
    least_turns,
    made_by,
)
from probtorch.compiler.record.periods import likely_periods, repeats
from probtorch.compiler.record.places import form
from probtorch.compiler.record.turns import ALIAS, Column, Operation, outputs, same_number
from probtorch.core.tensor_base import TensorBase

__all__ = ["TurnsWatch"]

# Operations after which turns are first looked for, and the most that are looked at together.
FIRST_LOOK = 1000
LAST_LOOK = 24_000
# Operations of one turn, and how far a turn may look back.
MAX_PERIOD = 40_000
MAX_LAG = 16
# Looks in vain, or that found no more than a few turns, after which there are no others.
MAX_VAIN = 10
# Turns of a loop around others that may go by between two looks.
MAX_UNSEEN = 16


class TurnsWatch:
    """Looks for turns that repeat among the operations that a recorder hears of.

    Attributes
    ----------
    events : list of (Op, inputs, attrs, out, Node or None)
        The last operations. The recorder adds to it, and calls `look` when there are `due` of them.
    """

    def __init__(self, recorder):
        self.recorder = recorder
        self.events, self.due = [], FIRST_LOOK
        self._chances = MAX_VAIN
        self._signatures = []
        # Operations that were heard before `events`; the periods of turns that ended, and how many
        # had been heard then; the period of a loop around them that is being waited for.
        self.heard = 0
        self._ends = []
        self._around = 0

    def forget(self):
        """Look at no operation that was heard before."""
        self.heard += len(self.events)
        self.events.clear()
        self._signatures.clear()
        self.due, self._chances = FIRST_LOOK, MAX_VAIN

    def later(self):
        """Put off the next look: nothing was found that lasts."""
        if len(self.events) >= LAST_LOOK:
            old = len(self.events) - LAST_LOOK // 2
            self.heard += old
            del self._signatures[:old], self.events[:old]
        while self.due <= len(self.events):
            self.due = min(3 * self.due // 2, LAST_LOOK)

    def look(self):
        """Return a `Following` if the last operations are turns of a loop, else None."""
        events, signatures = self.events, self._signatures
        if not self._around and not repeats([op.name for op, *_ in events]):
            self.vain()
            self.later()
            return None
        signatures += map(hash, map(_signature, events[len(signatures) :]))
        heard = np.array(signatures, np.int64)
        following = None
        if self._around:
            # Turns of the outer loop may look like so many of the inner one.
            covered = _covered(heard, self._around)
            following = _begin(self.recorder, events, self._around, covered)
        if following is None:
            found = _period(heard)
            following = None if found is None else _begin(self.recorder, events, *found)
        if self._around:
            self._around = 0
            self._ends.clear()
        if following is None:
            self.vain()
            self.later()
        return following

    def ended(self, period, behind):
        """Hear that turns of so many operations ended, and put off the next look; `behind` them are
        so many of the last operations.

        Where that happened before, they may be the turns of a loop in a loop. The outer one is
        looked for when there are enough of its turns.
        """
        now = self.heard + len(self.events) - behind
        self._ends = [*self._ends, (period, now)][-3:]
        self.later()
        gaps = [b - a for (p, a), (q, b) in itertools.pairwise(self._ends) if p == q == period]
        # Turns of the outer loop may have gone by unseen between two ends.
        around = math.gcd(*gaps)
        if period < around <= MAX_PERIOD and max(gaps) <= MAX_UNSEEN * around:
            self._around = around
            self.due = (least_turns(around) + 2) * around

    def vain(self):
        """Hear that a look was in vain."""
        self._chances -= 1
        if not self._chances:
            self.recorder.watch = None


def _signature(event):
    op, inputs, attrs, out, node = event
    kinds = [
        (x.array.shape, x.array.dtype.num) if isinstance(x, TensorBase) else type(x) for x in inputs
    ]
    if node is not None:
        kinds += [v.kind == "const" for v in node.inputs if type(v) is GraphValue]
    kinds += [(o.array.shape, o.array.dtype.num) for o in outputs(out)]
    return op.name, form(op.name, attrs), node is None, *kinds


def _period(signatures):
    """Return how many operations the last turns have, and how many there are in all of them."""
    n, best = len(signatures), None
    for period in likely_periods(signatures, min(MAX_PERIOD, n // FEW_TURNS)):
        covered = _covered(signatures, period)
        if covered < least_turns(period) * period:
            continue
        # A multiple of the true period covers no more than the period itself.
        if best is None or covered > best[1] + 2 * period:
            best = period, covered
    return best


def _covered(signatures, period):
    """Return how many operations there are in the last turns of so many, as far as one can see."""
    breaks = np.flatnonzero(signatures[:-period] != signatures[period:])
    return len(signatures) - (int(breaks[-1]) + 1 if len(breaks) else 0)


def _behind_last_turn(events, made, period, covered):
    """Return how many operations there are behind the last turn, if turns begin where the first of
    them did; or where the fewest bytes go on, if these are less than half: the loop keeps them all.
    """
    n = len(events)
    last = {}
    for i in range(n - 3 * period, n):
        for x in events[i][1]:
            e = made.get(id(x), (-1,))[0]
            if n - 3 * period <= e < n - 2 * period and (
                events[e][4] is not None or events[e][0] is ALIAS
            ):
                last[id(x)] = e, i, x.array.nbytes
    live = np.zeros(period, np.int64)
    for e, i, size in last.values():
        for c in range(e, i):
            live[(n - 1 - c) % period] += size
    best, natural = int(np.argmin(live)), covered % period
    return best if 2 * live[best] < live[natural] else natural


def _begin(recorder, events, period, covered):
    """Return the `Following` of turns that end with the last operations; None if they are none."""
    if covered < (least_turns(period) + 1) * period:
        return None
    made = made_by(events)
    behind = _behind_last_turn(events, made, period, covered)
    turns = (covered - behind) // period
    start = len(events) - behind - turns * period
    last = [*events[start + (turns - 1) * period :][:period]]
    operations = list(map(Operation, last))
    columns = []
    for r in range(period):
        inputs = [event[1] for event in events[start + r : len(events) - behind : period]]
        row = [
            _column(recorder, made, start, period, [x[j] for x in inputs])
            for j in range(len(last[r][1]))
        ]
        if None in row:
            return None
        if operations[r].op is ALIAS and row[0].kind == "made":
            operations[r].source = row[0].place, row[0].output
            if row[0].lag:
                return None
        elif operations[r].op is ALIAS and row[0].kind == "same":
            return None
        columns.append(row)
    nodes = [event[4] for event in events[start:] if event[4] is not None]
    if len(nodes) > len(recorder.graph.nodes) or not all(
        map(operator.is_, nodes, recorder.graph.nodes[-len(nodes) :] if nodes else ())
    ):
        return None  # a guard, say, stands among them
    if all(operation.node is None for operation in operations):
        return None
    return Following.of(recorder, events[start:], operations, columns)


def _column(recorder, made, start, period, values):
    """Return what an operand is that had these values in the last turns; None if it is nothing that
    a loop could have.
    """
    x, before, turns = values[-1], values[-2], len(values)
    if not isinstance(x, TensorBase):
        if all(same_number(v, x) for v in values[-MIN_TURNS:]):
            return Column("same", x)
        if all(type(v) is type(x) for v in values) and type(x) in (int, float):
            return Column("numbers", type(x))
        return None
    if x is before:
        return None if id(x) in recorder._stale else Column("same", x)
    at, output = made.get(id(x), (-1, 0))
    if at < start:
        return Column("arrays", _form(x)) if _constant(recorder, x) else None
    turn, place = divmod(at - start, period)
    lag = turns - 1 - turn
    if lag > MAX_LAG or lag < 0:
        return None
    constant = recorder.value_of(x).static
    if constant and not _constant(recorder, x):
        return None
    kind, value = ("arrays", _form(x)) if constant else ("made", None)
    return Column(kind, value, made=True, place=place, output=output, lag=lag)


def _form(x):
    return x.array.shape, x.array.dtype


def _constant(recorder, x):
    return recorder.value_of(x).static and type(x.array) is np.ndarray
