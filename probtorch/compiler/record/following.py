"""Turns of a Python loop are followed: nobody makes nodes while they repeat.

`Following` hears of operations in the place of the recorder. That the op is the one of the turn
before is seen at once; every few hundred operations it compares operands, attributes and shapes
with what the turns before did, and notes what changes from turn to turn. What does not fit, and
every event but an operation, ends that: the recorder goes on as if nothing had been. (Only the line
of the user's is then that of the loop, for the few operations before that look like its own.)
Tensors that nobody holds any more are forgotten.
"""

import itertools
import operator
import sys
import weakref

import numpy as np

from probtorch.compiler.graph import Node
from probtorch.compiler.record.turns import ALIAS, NUMBER, Turns, outputs, same_number
from probtorch.core.dispatch import EMPTY, set_grad_enabled
from probtorch.core.tensor_base import TensorBase

__all__ = ["FEW_TURNS", "MIN_TURNS", "Following", "least_turns", "made_by"]

# Turns that must have been alike; of so many operations, fewer.
MIN_TURNS = 8
LONG_TURN, FEW_TURNS = 100, 2
# Operations that are compared together, about; of long turns more, since each comparison looks at
# all that a turn does. Turns that are compared together then.
TOGETHER, LONG_TOGETHER = 2000, 20_000
MANY_TURNS = 16
# Operations and new tensors behind which a tensor is looked for among all.
RECENT = 64
# Further operations from which on turns stay what they are; fewer become nodes again.
WORTH = 1000


def least_turns(period):
    """Return how many turns of so many operations must have been alike."""
    return MIN_TURNS if period < LONG_TURN else FEW_TURNS


def made_by(events):
    """Return which operation made a tensor, and which of its outputs it is, by its id."""
    found = {}
    for i, event in enumerate(events):
        for k, o in enumerate(outputs(event[3])):
            found[id(o)] = i, k
    return found


def _parts(op):
    return op.extra.get("decompose") is not None


def _output(out, k):
    return out[k] if type(out) is tuple else out


def _outputs(operation, outs, k):
    """Return the output `k` of an operation in each turn, of what it put out in them."""
    if operation.op.family == "elementwise" or (k == 0 and tuple not in set(map(type, outs))):
        return outs
    return [_output(out, k) for out in outs]


def _held(made):
    """Return weak references to tensors that others than the lists in `made` hold, or were held by
    until these are emptied here: (operation, output, turn, reference).
    """
    found = []
    for r, k, tensors in made:
        counts = list(map(_references, tensors))
        if counts.count(ALONE) != len(counts):
            found += [
                (r, k, turn, weakref.ref(tensors[turn]))
                for turn, count in enumerate(counts)
                if count != ALONE
            ]
    made.clear()
    return found


class _Log(list):
    """What was heard: of each operation its inputs, its attributes and what it put out, one after
    the other in one list, of which a column of all turns is one slice.
    """

    __slots__ = ()

    @property
    def heard(self):
        """How many operations there are."""
        return len(self) // WIDTH

    def inputs(self, first=0, last=None, step=1):
        """Return the inputs of some operations."""
        return self[WIDTH * first : _wide(last) : WIDTH * step]

    def attrs(self, first=0, last=None, step=1):
        """Return the attributes of some operations."""
        return self[WIDTH * first + 1 : _wide(last) : WIDTH * step]

    def outs(self, first=0, last=None, step=1):
        """Return what some operations put out."""
        return self[WIDTH * first + 2 : _wide(last) : WIDTH * step]

    def entries(self, first=0):
        """Return the inputs, attributes and results of each operation from `first` on."""
        return zip(self.inputs(first), self.attrs(first), self.outs(first), strict=True)

    def ids_of_results(self):
        """Return the ids of all tensors that were put out, and of what holds several."""
        outs = self.outs()
        found = set(map(id, outs))
        if tuple in set(map(type, outs)):
            found.update(id(o) for out in outs if type(out) is tuple for o in out)
        return found


# What is kept of each operation.
WIDTH = 3


def _wide(last):
    return None if last is None else WIDTH * last


_chained = itertools.chain.from_iterable
_wants_gradient = operator.attrgetter("requires_grad")
_shape_of = operator.attrgetter("array.shape")
_references = sys.getrefcount
# References that Python counts of what one list alone holds.
(ALONE,) = map(_references, [TensorBase()])


class Following:
    """Hears of operations while they repeat.

    `log` holds what it heard since the comparison before, and of the turns before that as many as
    a turn may look back to.
    """

    def __init__(self, recorder, turns):
        self.recorder, self.turns = recorder, turns
        self.period = len(turns.operations)
        self.lag = max((c.lag for c in itertools.chain.from_iterable(turns.columns)), default=0)
        self.log, self.fresh = _Log(), []
        self.known = 0  # turns at the beginning of the log that were compared
        # What the recorder made of the first operations: how many they are, and their nodes.
        self.began, self.removed = 0, []
        self.forgotten = 0  # entries that are not in the log any more
        self.cut = set()  # what is off the tape in each turn: see Recording.cut
        self.worth = False  # whether there have been enough turns for a loop

    @classmethod
    def of(cls, recorder, events, operations, columns):
        """Return one that goes on after `events`, which the recorder made nodes of; None where
        fewer turns of these fit than there must be.
        """
        period = len(operations)
        turns = Turns(operations, columns)
        found = cls(recorder, turns)
        log = _Log(_chained((inputs, attrs, out) for _, inputs, attrs, out, _ in events))
        # First turns may not fit.
        while True:
            count = log.heard // period
            if count < least_turns(period) + found.lag:
                return None
            misfits = found._compare(log, 0, count)[0] | found._too_early(log)
            if not misfits:
                break
            skipped = (max(misfits) + 1) * period
            del log[: WIDTH * skipped]
            events = events[skipped:]
        found.log = log
        # Nodes that were made give way to those of turns.
        for operation, event in zip(operations, events, strict=False):
            operation.node = event[4]
        turns.body[:] = [x.node for x in operations if x.node is not None]
        found.cut = {
            (r, k)
            for r, event in enumerate(events[:period])
            for k, o in enumerate(outputs(event[3]))
            if id(o) in recorder.cut
        }
        found.began = len(events)
        found.removed = [event[4] for event in events if event[4] is not None]
        nodes = recorder.graph.nodes
        del nodes[len(nodes) - len(found.removed) :]
        for at, node in enumerate(found.removed):
            turns.adopt(node, at)
        nodes.append(Node(None, "turns", (), {"turns": turns}, ()))
        found._note()
        return found

    def begin(self):
        """Hear of operations in the place of the recorder, until it takes its methods back."""
        recorder, extend = self.recorder, self.log.extend
        # None, which is no operation, comes when it is time to compare. An operation with parts
        # comes as a tuple: what is heard of it are these.
        ops = [(x.op,) if _parts(x.op) else x.op for x in self.turns.operations]
        lines = [x.attrs for x in self.turns.operations]
        behind = self.log.heard % self.period
        together = max(TOGETHER // self.period, min(LONG_TOGETHER // self.period, MANY_TURNS))
        order = [*ops * max(together, MIN_TURNS), None]
        following = itertools.chain(order[behind:], itertools.cycle(order)).__next__

        def applied(op, inputs, attrs, out):
            expected = following()
            if op is expected:
                extend((inputs, attrs, out))
                return
            if expected is None:
                expected = following() if self._note() else None
            if op is expected:
                extend((inputs, attrs, out))
            elif type(expected) is tuple and op is expected[0]:
                extend(((), attrs, ()))
                recorder._record_parts(op, inputs, attrs, out)
            else:
                recorder.leave_turns()
                recorder.applied(op, inputs, attrs, out)

        def expects(event):
            expected = following()
            if expected is None:
                expected = following() if self._note() else None
            return expected is event

        def alias(source, t, taped):
            if expects(ALIAS):
                extend(((source,), EMPTY, t))
            else:
                recorder.leave_turns()
                recorder.alias(source, t, taped)

        def not_nan(t):
            if expects(NUMBER):
                extend(((t,), lines[self.log.heard % self.period], ()))
            else:
                recorder.leave_turns()
                recorder._not_nan(t)

        # Only the recorder's own thread tells of anything.
        recorder.applied, recorder.alias, recorder._not_nan = applied, alias, not_nan
        recorder.fresh = self.fresh.append

    def _too_early(self, log):
        """Return the turns up to which the turns of a log make what all of them read."""
        made = made_by([(None, None, None, out) for out in log.outs()])
        wrong = set()
        for r, columns in enumerate(self.turns.columns):
            for j, column in enumerate(columns):
                first = range(column.lag) if column.kind == "made" else ()
                heard = log.inputs(r, step=self.period)
                found = [made.get(id(heard[t][j])) for t in first]
                wrong.update(t for t, place in zip(first, found, strict=True) if place is not None)
                if column.kind == "same" and id(column.value) in made:
                    wrong.add(made[id(column.value)][0] // self.period)
        return wrong

    # ------------------------------------------------------------------------- what is asked of it

    def name(self, t):
        """Return what no other tensor is called, whether somebody still follows turns or not: the
        id of a value, or a place among all that was heard; None if neither is known.
        """
        v = self._value(t)
        if v is not None:
            return v.id
        i, k = self._find(t)
        return None if i is None else ("turns", id(self.turns), self.forgotten + i, k)

    def is_constant(self, t):
        """Whether a tensor is the same at each replay; None if that is not known here.

        What was computed by the turns before counts as computed; that it was a constant there says
        nothing of a turn that was not compared with them yet: its operands have to.
        """
        v = self._value(t)
        if v is not None:
            return v.static
        i, k = self._find(t)
        if i is None:
            recorder, key = self.recorder, id(t)
            if key in recorder.turned or key in recorder._stale:
                return None
            made = key in recorder._made or any(t is x for x in self.fresh[-RECENT:])
            return True if made or recorder.frozen else None
        if self.turns.made(i % self.period, k) is not None:
            return False
        if i < self.known * self.period:
            return True
        inputs = self.log[WIDTH * i]
        found = [self.is_constant(x) for x in inputs if isinstance(x, TensorBase)]
        return False if False in found else None if None in found else True

    def _value(self, t):
        """Return the value of a tensor that was known before these turns, else None."""
        recorder = self.recorder
        return None if id(t) in recorder._stale else recorder._values.get(id(t))

    def _find(self, t):
        """Return which entry of the log made a tensor, and as which output; None and 0 if none."""
        outs = self.log.outs()
        last, first = len(outs) - 1, max(len(outs) - RECENT, 0) - 1
        for i in range(last, first, -1):
            if outs[i] is t:
                return i, 0
        if id(t) not in self.log.ids_of_results():
            return None, 0
        for i in range(last, -1, -1):
            for k, o in enumerate(outputs(outs[i])):
                if o is t:
                    return i, k
        return None, 0

    # ----------------------------------------------------------------------------------- comparing

    def _compare(self, log, first, count):
        """Compare turns from `first` on, of `count` in the log, with what a turn does.

        Returns
        -------
        misfits : set of int
            Turns that do something else, from `first` on.
        rows : list
            For each operation what its columns hold, and where slices begin.
        """
        period, turns = self.period, self.turns
        end = count * period
        results = [log.outs(r, end, period) for r in range(period)]
        misfits, rows = set(), []
        constants = _Constants(self.recorder, log, self.fresh)
        for r, (operation, of_turn) in enumerate(zip(turns.operations, turns.columns, strict=True)):
            begin = first * period + r
            inputs, outs = log.inputs(begin, end, period), results[r][first:]
            wrong, begins = operation.misfits(log.attrs(begin, end, period))
            misfits.update(wrong)
            for k, (shape, wanted) in enumerate(operation.forms):
                found = _outputs(operation, outs, k)
                if (not wanted) in map(_wants_gradient, found):
                    misfits.update(t for t, o in enumerate(found) if o.requires_grad is not wanted)
                if operation.op.family == "elementwise":
                    continue  # follows from that of the operands
                found = list(map(_shape_of, found))
                if found.count(shape) != len(found):
                    misfits.update(t for t, s in enumerate(found) if s != shape)
            row, heard_of = [], _transposed(inputs, len(of_turn))
            if heard_of is None:
                return set(range(count - first)), []
            for column, heard in zip(of_turn, heard_of, strict=True):
                made = None
                if column.made:
                    maker = turns.operations[column.place]
                    before = results[column.place][max(first - column.lag, 0) :]
                    made = _outputs(maker, before, column.output)
                wrong, data = _fit(column, heard, made, first, constants)
                misfits.update(wrong)
                row.append(data)
            rows.append((row, begins))
        return misfits, rows

    def _note(self):
        """Compare what was heard, and keep what differs from turn to turn; returns whether all of
        it fits. What does not stays in the log.
        """
        log, turns, first = self.log, self.turns, self.known
        count = log.heard // self.period
        if count == first:
            return True
        misfits, rows = self._compare(log, first, count)
        fitting = min(misfits, default=count - first)
        if misfits and fitting:
            _, rows = self._compare(log, first, first + fitting)
        if fitting:
            for operation, of_turn, (row, begins) in zip(
                turns.operations, turns.columns, rows, strict=True
            ):
                if begins is not None:
                    operation.begins.append(begins)
                for column, data in zip(of_turn, row, strict=True):
                    if column.kind == "made":
                        column.first += data
                    else:
                        column.data += data
        turns.turns += fitting
        self.known = first + fitting
        if not self.worth and self.known * self.period >= self.began + WORTH:
            self.worth = True
            self.recorder.watch.forget()
        if self.worth:
            self._forget(self.known - self.lag)
        return not misfits

    def _forget(self, count):
        """Forget the first turns of the log but for tensors that somebody holds."""
        turns, recorder, period = self.turns, self.recorder, self.period
        before, self.known = turns.turns - self.known, self.known - count
        size, made = count * period, []
        self.forgotten += size
        for r, operation in enumerate(turns.operations):
            outs = self.log.outs(r, size, period)
            for k in range(len(operation.forms)):
                made.append((r, k, _outputs(operation, outs, k)))
        fresh = list(map(weakref.ref, self.fresh))
        # Of turns that were compared only the results are wanted.
        end = size + self.known * period
        self.log[WIDTH * size : WIDTH * end : WIDTH] = [()] * (end - size)
        del self.log[: WIDTH * size]
        self.fresh.clear()
        del outs  # which `made` alone is to hold
        for r, k, turn, ref in _held(made):
            t = ref()
            if t is None:
                continue
            place = turns.made(r, k)
            if place is not None:
                place = turns, turns.at(before + turn, place[0]), place[1]
            recorder.keep(t, place)
            if (r, k) in self.cut:
                recorder.cut.add(id(t))
        kept = [t for t in [ref() for ref in fresh] if t is not None]
        if kept:
            still = self.log.ids_of_results()
            for t in kept:
                if id(t) not in still:
                    recorder.keep(t)

    # ------------------------------------------------------------------------------------- the end

    def end(self):
        """Let the recorder make nodes of what is no whole turn, and go on by itself; of all where
        there were few turns.
        """
        recorder, watch, nodes = self.recorder, self.recorder.watch, self.recorder.graph.nodes
        self._note()
        behind = self.log.heard - self.known * self.period
        if self.worth:
            rest = list(self.log.entries(self.known * self.period))
            self._forget(self.known)
            self.turns.settle(recorder.value_of)
            watch.heard += self.turns.turns * self.period - self.began
            if self.turns.numbers:
                recorder.turns_of_numbers.append(self.turns)
        else:
            rest = list(self.log.entries(self.began))
            nodes[-1:] = self.removed
            for removed in self.removed:
                for v in removed.outs:
                    v.node = removed
            for t in self.fresh:
                recorder.keep(t)
            watch.vain()
        at = 0 if self.worth else self.began
        for i, (inputs, attrs, out) in enumerate(rest, at):
            operation = self.turns.operations[i % self.period]
            if operation.op is ALIAS:
                recorder.alias(*inputs, out, False)
                continue
            if operation.op is NUMBER:
                recorder._not_nan(*inputs)
                continue
            if _parts(operation.op):
                watch.events.append((operation.op, (), attrs, (), None))
                continue
            values = [recorder._values.get(id(o)) for o in outputs(out)]
            known = None if None in values else values
            grad = set_grad_enabled(False)  # what was off the tape is looked for
            node = recorder._append_node(
                operation.op, inputs, attrs, out, operation.location, known
            )
            set_grad_enabled(grad)
            watch.events.append((operation.op, inputs, attrs, out, node))
        watch.ended(self.period, behind)


def _transposed(inputs, count):
    """Return each of `count` operands in all turns, None where a turn has another number."""
    if set(map(len, inputs)) != {count}:
        return None
    flat = list(_chained(inputs))
    return [flat[j::count] for j in range(count)]


class _Constants:
    """Which tensors are constants that no operation made."""

    def __init__(self, recorder, log, fresh):
        self._recorder, self._log, self._fresh = recorder, log, fresh
        self._outs: set[int] | None = None
        self._made: set[int] = set()

    def __call__(self, t):
        recorder, key = self._recorder, id(t)
        if type(t.array) is not np.ndarray or key in recorder._stale:
            return False
        v = recorder._values.get(key)
        if v is not None:
            return v.static
        if self._outs is None:
            self._outs = self._log.ids_of_results()
            self._made = set(map(id, self._fresh))
        if key in self._outs or key in recorder.turned:
            return False
        return recorder.frozen or key in self._made or key in recorder._made


def _fit(column, heard, made, first, constants):
    """Return the turns (from `first` on) in which an operand is not what its column says, and what
    the column gets; `made` is what the operation put out that it comes from, if it does.
    """
    if column.kind == "same":
        x = column.value
        if all(map(operator.is_, heard, itertools.repeat(x))):
            return (), ()
        if isinstance(x, TensorBase):
            return [t for t, v in enumerate(heard) if v is not x], ()
        return [t for t, v in enumerate(heard) if not same_number(v, x)], ()
    if column.kind == "numbers":
        return [t for t, v in enumerate(heard) if type(v) is not column.value], heard
    wrong: list[int] = []
    outside: list[TensorBase] = []
    if column.made:
        skipped = max(column.lag - first, 0)
        ours = heard[skipped:]
        if not all(map(operator.is_, ours, made)):
            pairs = zip(ours, made, strict=False)
            wrong = [skipped + t for t, (v, o) in enumerate(pairs) if v is not o]
        outside = list(heard[:skipped])
        if column.kind == "made":
            if not all(isinstance(v, TensorBase) for v in outside):
                wrong += range(skipped)
            return wrong, outside
    else:
        outside = list(heard)
    wrong += [t for t, v in enumerate(outside) if not (isinstance(v, TensorBase) and constants(v))]
    if wrong:
        return wrong, ()
    arrays, (shape, dtype) = [v.array for v in heard], column.value
    wrong = [t for t, a in enumerate(arrays) if a.shape != shape or a.dtype != dtype]
    return (wrong, ()) if wrong else ((), (np.stack(arrays),))
