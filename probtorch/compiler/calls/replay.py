"""`Path`: one recorded way through a function, compiled, with what it reads and changes outside.

A path is tried when its function is called with arguments of its shapes and dtypes
(`compiled_function.py`). It declines where a Python value that it met has changed, an outside
tensor is of another kind, or a guard fails; then nothing has changed either. Each thread that calls
it has a frame of its own.
"""

import math
import operator
import threading
import time

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import copy_into, device_of, shares_memory
from probtorch.compiler.calls.versions import same_ones
from probtorch.compiler.native.interrupts import raise_pending
from probtorch.compiler.nests.loops import address
from probtorch.compiler.record import rolling
from probtorch.compiler.record.followed import Numbers
from probtorch.compiler.record.gradients import LeftGradient, is_spent
from probtorch.compiler.record.record import keeping_all, record
from probtorch.compiler.record.turns import expanded, length
from probtorch.compiler.run.executable import arrays_of, owner_of
from probtorch.compiler.run.prepare import prepare
from probtorch.compiler.verify import (
    EARLY,
    OPERATION,
    QUICK,
    ComparisonCosts,
    coarsest,
    difference,
    next_due,
)
from probtorch.core.dispatch import (
    TapeNode,
    around,
    grad_enabled,
    last_change,
    mark_changed,
    wrap,
)
from probtorch.core.history import hooked, hooks_changed
from probtorch.core.saved import changed_since
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import CompileError, user_frame

__all__ = ["Path", "path_of"]

_TENSOR = object()  # where a tensor stands among the leaves of a result


def _spent_node(t):
    """Return a place on the tape like that of `t`, if nobody can go backwards from it; or None."""
    if t.grad_fn is None or not is_spent(t):
        return None
    node = TapeNode(t.grad_fn.op, (), {})
    node.inputs = None  # type: ignore[assignment]  # as after a backward pass
    return node


def _plain_gradient(leaf):
    """Whether a leaf has a gradient that is neither on the tape nor a view."""
    g = leaf._grad
    return g is not None and not g.requires_grad and g._base is None


_WANTED, _GRADIENT = operator.attrgetter("requires_grad"), operator.attrgetter("_grad")


class Path:
    """One compiled path: the program, how to rebuild its result, and what it read and changes.

    Parameters
    ----------
    program : Executable
    found : (list, structure, Ties)
        Leaves of the result of the recorded call, their structure, and how the tensors among them
        hang together on the tape.
    rec : Recorder
    environment : Environment
        The Python values that were met.
    lock : Lock
        That of the function: its paths change the same tensors.
    saving : bool
        Keep what updated tensors held before the last run, for `restore`.

    Attributes
    ----------
    flows : list of bool
        Which tensors among the results needed a gradient.
    first_of : sequence of int
        For each of these tensors the first one that is the same.
    ties : Ties
    repeatable : bool
        Whether another run would leave nothing else: no draw from a generator that was there
        before, and no tensor outside with other numbers or another `.grad`.
    own_rules : bool
        Whether code of the user's, a hook or a `Function`, runs when gradients are taken.
    as_numbers : dict
        Places among these tensors of those that callers get as numbers, and their dtypes.
    """

    def __init__(self, program, found, rec, environment, lock, saving):
        self.program, self.environment = program, environment
        leaves, self._structure, self.ties = found
        self.flows = [x.requires_grad for x in leaves if is_tensor(x)]
        self.spent = [_spent_node(x) for x in leaves if is_tensor(x)]
        of_results = same_ones([x for x in leaves if is_tensor(x)])
        self.first_of = range(len(self.flows)) if of_results is None else of_results
        self.as_numbers = {} if rec.returned is None else rec.returned.kinds(leaves)
        self._fixed = [_TENSOR if is_tensor(x) else x for x in leaves]
        self.refs, self.updates = program.refs, program.updates
        self.tensors = program.tensors
        self.wanted = list(map(_WANTED, self.refs))
        self.kinds = list(map(program.kind, arrays_of(self.tensors)))
        self.draws = rec.draws
        # Where each run finds the seed, the stream and the first counter of its draws.
        self.words = [[t.array.view(np.uint64) for t in tensors] for _, _, *tensors in rec.draws]
        used = {id(generator) for generator, *_ in self.draws}
        # Of generators made inside those that draw; the state of others may be seen afterwards.
        self.restarts = {}
        for number, found in rec.restarts.items():
            kept = [(g, state) for g, how, state in found if how != "made" or id(g) in used]
            if kept:
                self.restarts[number] = kept
        # Tensors outside by what their .grad has to be: None, or a tensor; and those of which a run
        # sets it, to None or to the outputs that follow the results.
        self.ungraded, self.graded = [*rec.ungraded.values()], [g.leaf for g in rec.graded.values()]
        self.placed, self.own_rules = rec.placed, rec.own_rules
        self.regraded = [(leaf, leaf._grad is not None) for leaf in rec.regraded.values()]
        acts = any(how != "made" for found in rec.restarts.values() for _, how, _ in found)
        made = {id(g) for found in rec.restarts.values() for g, how, _ in found if how == "made"}
        self.repeatable = used <= made and not (acts or self.updates or self.regraded)
        self.numbers = Numbers(rec.followed)
        self.reached, self.hooks = rec.reached, hooks_changed()
        for g in rec.graded.values():
            g.settle()
        self.strides = [t.array.strides for t in rec.given] if rec.layout else None
        for p in self.placed:
            p.settle()
        # What comes has to be none that code knows: it may ask who is who in more ways than its
        # text shows (a list that is compared with another, a copy of both, buffers of a module).
        self._known = set(environment.tensors()) if self.placed else set()
        self._looks = bool(self.ungraded or self.graded or self.placed or self.strides is not None)
        self.saving = saving
        # What updated tensors held before the recording, which frame ran last, and the tick then.
        self.originals, self.ran, self.tick = rec.originals, None, -1
        # The user's line where it ran first: to look for it at each run takes longer than the rest.
        self.place = None
        self.local = threading.local()
        # How many floats of its tensors Python looked at: a path for each value of these.
        self.looks = sum(type(value) is float for _, value, _ in rec.graph.guards)
        self.count, self.due = 0, 1  # runs so far, and the number of the next that is verified
        self.costs = ComparisonCosts()
        self._seconds = 0.0  # of a run, once one was timed
        self._compared = 0  # the number of the last run that was made in Python, too
        self.size = coarsest(rec.graph)
        # Draws and updates go through tensors that all threads share.
        shared = self.updates or self.draws or self.restarts or self.regraded or self.numbers
        self.pure, self.lock = not shared, lock
        # Whether the result is a tensor, and nothing else.
        alone = self.spent == [None] and self._structure == ("leaf",)
        self._alone = alone and not self.as_numbers and not self.ties.leaves

    def rebuild(self, tensors):
        """Put tensors back among the numbers of a result."""
        tensors = [tensors[i] for i in self.first_of]
        for t, node in zip(tensors, self.spent, strict=True):
            if node is not None:
                t.requires_grad, t.grad_fn = True, node
        self.ties.set_leaves(tensors)
        if self.as_numbers:
            tensors = [t.array.item() if i in self.as_numbers else t for i, t in enumerate(tensors)]
        walk = iter(tensors)
        return unflatten(self._structure, [next(walk) if x is _TENSOR else x for x in self._fixed])

    def with_tensors(self, leaves):
        """Return the leaves of a result with tensors in the place of their numbers."""
        if not self.as_numbers or len(leaves) != len(self._fixed):
            return leaves
        places = [i for i, x in enumerate(self._fixed) if x is _TENSOR]
        kinds = {places[k]: dtype for k, dtype in self.as_numbers.items()}
        return [
            wrap(np.array(x, kinds[i])) if i in kinds and isinstance(x, (int, float)) else x
            for i, x in enumerate(leaves)
        ]

    def apart(self, result, tensors):
        """Return the recorded tensors of a result, copied where they share memory with arguments,
        what is read or one another: on later calls none does.
        """
        others, found = [*arrays_of((*tensors, *self.refs)), *self.program.consts], []
        for x in result:
            shared = any(shares_memory(x.array, a) for a in others)
            found.append(wrap(x.array.copy(order="K")) if shared else x)
            others.append(found[-1].array)
        return found

    def until_due(self):
        """How many runs there are until the next one that is verified."""
        return max(self.due - self.count - 1, 0)

    def affords_comparison(self):
        """Whether the run that is due may be made in Python, too: see `verify.FREE`."""
        self.costs.native = self.count * self._seconds
        return self.costs.allow_another(self.count + 1)

    def run_before_comparison(self, arrays):
        """Run, and put off the comparison that is due until runs have taken long enough for it."""
        began = time.perf_counter()
        out = self.run(arrays)
        if out is not None:
            self._took(time.perf_counter() - began)
            needed = self.costs.wait(self.count + 1) / self._seconds
            self.due = max(self.count + 1, math.ceil(needed))
        return out

    def _took(self, seconds):
        """Note what a run took: the shortest, since others had the processor in longer ones."""
        self._seconds = max(min(seconds, self._seconds or seconds), 1e-9)

    def owes_comparison(self):
        """Whether most runs came after the last one that was compared, and Python is quick."""
        late = self.count >= 2 * max(self._compared, EARLY)
        return late and (self.costs.eager <= QUICK or self.affords_comparison())

    def compared(self, native, eager, seconds):
        """Note what a comparison took: a native run, one in Python, and all but the native one."""
        self._took(native)
        self.costs.eager = eager
        self.costs.compared += seconds
        self._compared, self.due = self.count, next_due(self.count)

    def agreed(self):
        """Note that the last run was compared with what Python had computed already."""
        self._compared, self.due = self.count, next_due(self.count)

    def compare_recorded(self, result, tensors):
        """Compare with what Python computed while it was recorded, if the next comparison has to
        wait: a difference that rounding does not explain at once makes it due.
        """
        if self.affords_comparison() or not self.pure:
            return
        out = self.run(arrays_of(tensors))
        self.count = 0
        if out is None:
            return
        leaves = self.with_tensors(flatten(out[0])[0])
        native = [x for x in leaves if is_tensor(x)]
        pairs = [[("result", t.array) for t in found] for found in (native, result)]
        if difference(pairs[0], pairs[1], size=self.size) is not None:
            self.costs.eager = 0.0

    def frame(self, arrays):
        """Return this thread's memory, or None where the path does not fit the arrays given.

        It fits if gradients, hooks, Python values and outside tensors are what they were, and
        strides where they were looked at. What it writes must share no memory with anything else
        that it knows, which was so when it was recorded.
        """
        if self._looks and not self._as_before(arrays):
            return None
        if self.hooks != hooks_changed():
            if any(map(hooked, self.reached)):
                return None
            self.hooks = hooks_changed()
        frame = getattr(self.local, "frame", None)
        if frame is None or self.tensors:
            now = arrays_of(self.tensors)
            if frame is None or not all(map(operator.is_, now, frame.arrays)):
                shares = bool(self.updates) and self._overlaps()
                if shares or list(map(self.program.kind, now)) != self.kinds:
                    return None
                frame = self.local.frame = self.program.bind(now, saving=self.saving, old=frame)
        if self.refs and grad_enabled() and list(map(_WANTED, self.refs)) != self.wanted:
            return None
        if self.updates and frame.touched_by(arrays):
            return None
        return frame if self.environment.changed() is None else None

    def _as_before(self, arrays):
        """Whether gradients outside, tensors in whose places others come, and strides, are what
        they were where Python looked.
        """
        if any(g is not None for g in map(_GRADIENT, self.ungraded)):
            return False
        if not all(map(_plain_gradient, self.graded)):
            return False
        if self.placed and not self._fit(arrays):
            return False
        return self.strides is None or self.strides == [x.strides for x in arrays]

    def _fit(self, arrays):
        """Whether what is in the places of tensors now may take the place of these."""
        if not all(p.fits() for p in self.placed):
            return False
        now = [p.now for p in self.placed]
        theirs = {id(t.array) for t in now}
        alone = len(theirs) == len(now) and theirs.isdisjoint(map(id, arrays))
        return alone and self._known.isdisjoint(map(id, now))

    def _overlaps(self):
        """Whether memory that is written is also that of another outside tensor."""
        sharing = {}
        for t in self.tensors:
            sharing.setdefault(id(owner_of(t.array)), []).append(t)
        return any(
            other is not t and shares_memory(other.array, t.array)
            for t in self.updates
            for other in sharing[id(owner_of(t.array))]
        )

    def run(self, arrays):
        """Return ``(result,)``, or None where the path does not fit or a guard fails.

        `arrays` are those of the arguments themselves: a copy shares no memory with anything.
        """
        frame = self.frame(arrays)
        if frame is None:
            return None
        if self.pure:
            out = frame.new_outputs()
            if frame.run(arrays, out):
                raise_pending()
                return None
            self.count += 1
            return (around(out[0]) if self._alone else self.rebuild(list(map(around, out))),)
        with self.lock:
            done = self.numbers.fill()
            if done is None:
                return None
            before = self._draw()
            out = frame.new_outputs()
            self._refresh(frame)
            if frame.run(arrays, out):
                self.numbers.undo(done)
                _set_back(before)
                raise_pending()
                return None
            if self.updates:
                self._note(frame)
            self._leave(out)
        self.count += 1
        return (self.rebuild([wrap(x) for x in out[: len(self.flows)]]),)

    def _leave(self, out):
        """Put gradients, outputs that follow the results, where the function leaves them; and make
        the calls that come last, which are told the outputs after those.
        """
        at = len(self.flows)
        for leaf, filled in self.regraded:
            leaf._grad = wrap(out[at]) if filled else None
            at += filled
        self.numbers.act(out[at:])

    def repeat(self, arrays, steps):
        """Run `steps` times on the same arguments, without going back to Python.

        Returns
        -------
        results : ndarray, shape (runs, ...)
            The first result of each completed run: fewer than `steps` where a guard failed.
        before : list of (Generator, state)
            The states that generators had before the last completed run.

        Notes
        -----
        Nothing is run where the path does not fit, or does not write to contiguous memory.
        """
        frame = self.frame(arrays)
        first = self.program.outputs[0]
        results = np.empty((steps, *first.shape), first.dtype)
        left = self.numbers.acts or any(filled for _, filled in self.regraded)
        if frame is None or self.restarts or left or not frame.repeats:
            return results[:0], []
        with self.lock:
            if self.numbers.fill() is None:
                return results[:0], []
            before = self._draw()
            totals = {}
            for generator, count, *_ in self.draws:
                totals[generator] = totals.get(generator, 0) + count
            rows = [(address(first.array), totals[g]) for g, *_, first in self.draws]
            self._refresh(frame)
            began = time.perf_counter()
            done = frame.repeat(np.array(rows, np.int64).reshape(-1, 2), arrays, results)
            if done == 0:
                _set_back(before)
                raise_pending()
            elif done > 1:
                # Each has advanced for the first run only.
                for generator, total in totals.items():
                    generator.advance(total * (done - 2))
                before = [(g, g.get_state()) for g in totals]
                for generator, total in totals.items():
                    generator.advance(total)
            if done:
                self._took((time.perf_counter() - began) / done)
                self._leave([])
                self._note(frame)
                self.count += done
        return results[:done], before

    def _refresh(self, frame):
        if (
            not self.saving
            or not self.updates
            or (self.ran is frame and last_change() == self.tick)
        ):
            return
        if self.ran is not frame or any(changed_since(t, self.tick) for t in self.updates):
            frame.refresh()

    def _note(self, frame):
        self.place = self.place or user_frame(2)
        changed = [t.now if isinstance(t, LeftGradient) else t for t in self.updates]
        self.tick, self.ran = mark_changed(*changed, place=self.place), frame

    def restore(self):
        """Put what the last run changed back to what it was before."""
        with self.lock:
            previous = self.originals if self.ran is None else self.ran.previous()
            for t, before in zip(self.updates, previous, strict=True):
                copy_into(t.array, before)
            mark_changed(*self.updates)

    def _draw(self):
        """Reserve this run's draws; returns the generators and the states they had before."""
        before = []
        for i, ((generator, count, *_), (seed, stream, first)) in enumerate(
            zip(self.draws, self.words, strict=True)
        ):
            self._restart(i, before)
            before.insert(0, (generator, generator.get_state()))
            seed[()], stream[()] = generator.initial_seed(), generator.stream
            first[()] = generator.advance(count)
        self._restart(len(self.draws), before)
        return before

    def _restart(self, number, before):
        """Set generators as the function does ahead of a draw; `before` gets their states."""
        for generator, state in self.restarts.get(number, ()):
            before.insert(0, (generator, generator.get_state()))
            generator.set_state(state)


@keeping_all()
def path_of(rec, tensors, found, environment, lock, saving):
    """Compile a recording, with loops where Python's loops left many nodes alike.

    Parameters
    ----------
    rec : Recorder
    tensors : list of Tensor
        Among the arguments of the recorded call.
    found, environment, lock, saving
        As for `Path`.

    Raises
    ------
    CompileError
        If something in it has no form where its tensors are.
    """
    rec.graph.outputs += [rec.value_of(t) for t in rec.updates.values()]
    recorded = rec.graph
    loops = _rolled(recorded, tensors)
    rec.graph = loops or expanded(recorded)
    left = [leaf._grad for leaf in rec.regraded.values() if leaf._grad is not None]
    places = [device_of(x.array) for x in (*found[0], *left) if is_tensor(x)]
    places += [device_of(array) for act in rec.followed.acts for _, array in act.told]
    devices = (*map(device_of, arrays_of(tensors)), *places, rec.device())
    try:
        program = _prepared(rec, devices, places)
    except CompileError:
        if loops is None:
            raise
        rec.graph = expanded(recorded)
        program = _prepared(rec, devices, places)
    program.keep(arrays_of(tensors))
    path = Path(program, found, rec, environment, lock, saving)
    path.costs.eager = OPERATION * length(recorded) + rec.spared
    return path


def _rolled(graph, tensors):
    """Return a graph with loops in the place of nodes that are alike, None where there is none."""
    if length(graph) < rolling.MIN_NODES:
        return None
    stand_ins = [wrap(t.array) for t in tensors]
    try:
        fn = rolling.rolled(graph)
        if fn is None:
            return None
        with no_grad(), np.errstate(all="ignore"):
            again, _ = record(fn, stand_ins, frozen=False, abstract=not graph.guards)
    except Exception:
        # The long way is right, too. What cannot be rolled is no error of the user's.
        return None
    return None if again.unsupported else again.graph


def _prepared(rec, devices, places):
    first = len(rec.graph.outputs) - len(rec.updates)
    rec.graph.updates = dict(enumerate(rec.updated(), first))
    return prepare(rec.graph, devices, places)


def _set_back(before):
    for generator, state in before:
        generator.set_state(state)
