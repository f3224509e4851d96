"""`Path`: one recorded way through a function, native, with what it reads and changes outside.

A path is tried when its function is called with arguments of its shapes and dtypes (`compile.py`).
It declines where a Python value that it met has changed, an outside tensor is of another kind, or a
guard fails; then nothing has changed either. A `_Caller` is the memory of one thread that calls it.
"""

import contextlib
import operator
import threading

import numpy as np

from probtorch.backends.registry import contiguous, shares_memory
from probtorch.compiler.explain.profile import Kept
from probtorch.compiler.interrupts import raise_pending
from probtorch.compiler.nests.loops import address
from probtorch.compiler.repeat import Commit
from probtorch.compiler.verify import coarsest, next_due
from probtorch.core.dispatch import grad_enabled, last_change, mark_changed, wrap
from probtorch.core.history import hooked, hooks_changed
from probtorch.core.saved import changed_since
from probtorch.errors import user_frame

__all__ = ["DATA", "WANTED", "BasePath", "Path"]

# A step of Python per tensor would take most of the time of a short call.
DATA, WANTED = operator.attrgetter("array"), operator.attrgetter("requires_grad")
GRADIENT = operator.attrgetter("_grad")


class BasePath:
    """What a path on a CPU and one on a GPU have in common.

    Parameters
    ----------
    program : Program or GpuProgram
    rebuild : callable
        From the tensors among the results to the result.
    rec : Recorder
    environment : Environment
        The Python values that were met.
    lock : Lock
        That of the function: its paths change the same tensors.
    saving : bool
        Keep what updated tensors held before the last run, for `restore`.
    """

    def __init__(self, program, rebuild, rec, environment, lock, saving=False):
        self.program = program
        self.rebuild = rebuild
        self.environment = environment
        self.refs = program.plan.refs
        self.wanted = list(map(WANTED, self.refs))
        self.updates = list(rec.updates.values())
        # All outside tensors: those that are read, and those that are only written.
        self.tensors = list({id(t): t for t in (*self.refs, *self.updates)}.values())
        self.draws = rec.draws
        used = {id(generator) for generator, *_ in self.draws}
        # Of generators made inside those that draw; the state of others may be seen afterwards.
        self.restarts = {}
        for number, found in rec.restarts.items():
            kept = [(g, state) for g, how, state in found if how != "made" or id(g) in used]
            if kept:
                self.restarts[number] = kept
        self.ungraded, self.reached, self.hooks = rec.ungraded, rec.reached, hooks_changed()
        self.strides = [t.array.strides for t in rec.given] if rec.layout else None
        self.saving = saving
        # What updated tensors held before the recording, and whose memory the last run was in.
        self.originals, self.ran = rec.originals, None
        self.local = threading.local()
        self.count = 0  # of runs so far
        self.size = coarsest(rec.graph)
        # Draws and updates go through tensors that all threads share.
        shared = self.updates or self.draws or self.restarts
        self.lock = lock if shared else contextlib.nullcontext()

    def until_due(self):
        """How many runs there are until the next one that is verified."""
        return next_due(self.count) - self.count - 1

    def restart(self, number, before):
        """Set generators as the function does ahead of a draw; `before` gets their states."""
        for generator, state in self.restarts.get(number, ()):
            before.insert(0, (generator, generator.get_state()))
            generator.set_state(state)

    def fits(self, arrays):
        """Whether gradients, hooks and, where they were looked at, strides are what they were."""
        if self.ungraded and any(g is not None for g in map(GRADIENT, self.ungraded)):
            return False
        if self.hooks != hooks_changed():
            if any(map(hooked, self.reached)):
                return False
            self.hooks = hooks_changed()
        return self.strides is None or self.strides == [x.strides for x in arrays]


class Path(BasePath):
    """One native path: the program, how to rebuild its result, and what it read and changes.

    Parameters are those of `BasePath`.
    """

    def __init__(self, program, rebuild, rec, environment, lock, saving=False):
        super().__init__(program, rebuild, rec, environment, lock, saving)
        self.signature = [(t.array.shape, t.array.dtype) for t in self.tensors]
        # Where each run finds the seed, the stream and the first counter of its draws.
        self.words = [[t.array.view(np.uint64) for t in tensors] for _, _, *tensors in rec.draws]
        # The tick at which the last run ended.
        self.tick = -1
        # The user's line where it ran first: to look for it at each run takes longer than the rest.
        self.place = None
        self.kept = Kept(program)

    def caller(self, arrays):
        """Return this thread's memory, attached to `arrays`, or None where the path does not fit.

        It fits if Python values and outside tensors are what they were: of the same shape and
        dtype, and in need of a gradient as they were. What it writes must share no memory with
        anything else that it knows, which was so when it was recorded.
        """
        if not self.fits(arrays):
            return None
        now = list(map(DATA, self.tensors))
        caller = getattr(self.local, "caller", None)
        if caller is None or not all(map(operator.is_, now, caller.arrays)):
            caller = self.local.caller = None
            if [(x.shape, x.dtype) for x in now] != self.signature or self._overlaps():
                return None
            caller = self.local.caller = _Caller(self, now)
        if grad_enabled() and list(map(WANTED, self.refs)) != self.wanted:
            return None
        if self.updates and caller.touched_by(arrays):
            return None
        if self.environment.changed() is not None:
            return None
        return caller

    def _overlaps(self):
        """Whether memory that is written is also that of another outside tensor."""
        sharing = {}
        for t in self.tensors:
            sharing.setdefault(id(_owner(t.array)), []).append(t)
        return any(
            other is not t and shares_memory(other.array, t.array)
            for t in self.updates
            for other in sharing[id(_owner(t.array))]
        )

    def run(self, arrays):
        """Return ``(result,)``, or None where the path does not fit or a guard fails.

        `arrays` are those of the arguments themselves: a copy shares no memory with anything.
        """
        caller = self.caller(arrays)
        if caller is None:
            return None
        arrays = list(map(contiguous, arrays))
        self.kept.keep(arrays)
        with self.lock:
            before = self.draw()
            out = caller.results()
            self._refresh(caller)
            status = caller.run(arrays, out)
            if status:
                for generator, state in before:
                    generator.set_state(state)
                raise_pending()
                return None
            if self.updates:
                caller.commit()
                self._note(caller)
        self.count += 1
        return (self.rebuild([wrap(x) for x in out]),)

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
        caller = self.caller(arrays)
        first = self.program.outputs[0]
        results = np.empty((steps, *first.shape), first.dtype)
        if caller is None or self.restarts or not isinstance(caller.commit, Commit):
            return results[:0], []
        arrays = list(map(contiguous, arrays))
        self.kept.keep(arrays)
        with self.lock:
            before = self.draw()
            totals = {}
            for generator, count, *_ in self.draws:
                totals[generator] = totals.get(generator, 0) + count
            rows = [(address(first.array), totals[g]) for g, *_, first in self.draws]
            out = caller.results()
            caller.attach(arrays, out)
            self._refresh(caller)
            draws = np.array(rows, np.int64).reshape(-1, 2)
            done = caller.commit.repeat(draws, out[0], results)
            if done == 0:
                for generator, state in before:
                    generator.set_state(state)
                raise_pending()
            elif done > 1:
                # Each has advanced for the first run only.
                for generator, total in totals.items():
                    generator.advance(total * (done - 2))
                before = [(g, g.get_state()) for g in totals]
                for generator, total in totals.items():
                    generator.advance(total)
            if done:
                self._note(caller)
                self.count += done
        return results[:done], before

    def example(self):
        """Return ``(inputs, references)`` to profile the program on, None if they are gone."""
        inputs = self.kept.arrays()
        # Copies: some are updated in place.
        refs = [t.array.copy(order="C") for t in self.refs]
        return None if inputs is None else (inputs, refs)

    def _refresh(self, caller):
        if not self.saving or (self.ran is caller and last_change() == self.tick):
            return
        if self.ran is not caller or any(changed_since(t, self.tick) for t in self.updates):
            caller.commit.refresh()

    def _note(self, caller):
        self.place = self.place or user_frame(2)
        self.tick, self.ran = mark_changed(*self.updates, place=self.place), caller

    def restore(self):
        """Put what the last run changed back to what it was before."""
        with self.lock:
            previous = self.originals if self.ran is None else self.ran.commit.previous()
            for t, before in zip(self.updates, previous, strict=True):
                np.copyto(t.array, before)
            mark_changed(*self.updates)

    def draw(self):
        """Reserve this run's draws; returns the generators and the states they had before."""
        before = []
        for i, ((generator, count, *_), (seed, stream, first)) in enumerate(
            zip(self.draws, self.words, strict=True)
        ):
            self.restart(i, before)
            before.insert(0, (generator, generator.get_state()))
            seed[()], stream[()] = generator.initial_seed(), generator.stream
            first[()] = generator.advance(count)
        self.restart(len(self.draws), before)
        return before


class _Caller:
    """One thread's memory for a path, with outside tensors and updates in place."""

    def __init__(self, path, arrays):
        self.arrays = arrays
        # A tensor may be a reference more than once: in a loop, and outside of it.
        places = {id(t): x for t, x in zip(path.tensors, arrays, strict=True)}
        self.refs = refs = [places[id(t)] for t in path.refs]
        self.program = path.program
        self.binding = path.program.bind()
        # Contiguous copies where a tensor is none; made anew at each run.
        self.copied = [i for i, x in enumerate(refs) if not x.flags.c_contiguous]
        first = len(path.program.outputs) - len(path.updates)
        self.shapes = [(v.shape, v.dtype) for v in path.program.outputs[:first]]
        self.binding.attach((), (), [np.asarray(x, order="C") for x in refs])
        targets = [t.array for t in path.updates]
        kind = Commit if all(x.flags.c_contiguous for x in targets) else _Scatter
        self.commit = kind(self.binding, first, targets, path.saving)
        # In place a program writes to a copy where it could not be given the tensor's memory.
        placed = (
            [path.updates[k - first] for k in path.program.plan.in_place] if self.copied else ()
        )
        numbers = {id(t): i for i, t in enumerate(path.refs)}
        self.written = [i for i in (numbers[id(t)] for t in placed) if i in self.copied]
        self.owners = {id(_owner(x)) for x in targets}

    def touched_by(self, arrays):
        """Whether an argument may share memory with an updated tensor."""
        return any(id(_owner(x)) in self.owners for x in arrays)

    def results(self):
        return [np.empty(shape, dtype) for shape, dtype in self.shapes]

    def attach(self, arrays, out):
        """Put contiguous arguments and room for results in place."""
        refs = [np.asarray(x, order="C") for x in self.refs] if self.copied else ()
        self.binding.attach(arrays, out, refs)
        self.attached = refs

    def run(self, arrays, out):
        """Run on contiguous arguments; returns the status."""
        self.attach(arrays, out)
        status = self.program.call(self.binding.address)
        if status == 0:
            for i in self.written:
                np.copyto(self.refs[i], self.attached[i])
        return status


class _Scatter:
    """`Commit` for targets that are not contiguous; it knows no `repeat`."""

    def __init__(self, binding, first, targets, saving):
        self._targets, self._saving = targets, saving
        self._new = [np.empty(x.shape, x.dtype) for x in targets]
        self._previous = [np.array(x) for x in targets]
        placed = binding.program.plan.in_place
        self._in_place = [first + i in placed for i in range(len(targets))]
        binding.attach_outputs(self._new, first)

    def __call__(self):
        rows = zip(self._targets, self._new, self._previous, self._in_place, strict=True)
        for target, new, previous, in_place in rows:
            if in_place:
                np.copyto(previous, new)
            else:
                np.copyto(previous, target)
                np.copyto(target, new)

    def previous(self):
        return self._previous

    def refresh(self):
        """Nothing: each run copies anew."""


def _owner(array):
    """The object that owns the memory of an array; NumPy keeps chains of views short."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array
