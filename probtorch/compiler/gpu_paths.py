"""`GpuPath`: what `paths.Path` is on the CPU, for a path whose program runs on a GPU."""

import math
import operator

import numpy as np

from probtorch.backends import cupy_
from probtorch.backends.registry import device_of, shares_memory, to_device
from probtorch.compiler.paths import DATA, WANTED, BasePath
from probtorch.core.dispatch import grad_enabled, mark_changed, wrap

__all__ = ["GpuPath"]

# Bytes up to which a result is computed in memory of the path's own and copied: where all results
# are kept, a list of losses say, their addresses never come back, and no graph would.
_COPIED = 2**16


class GpuPath(BasePath):
    """One compiled path of a function on a GPU.

    Parameters
    ----------
    devices : list of str
        Where each result lies.
    program, rebuild, rec, environment, lock, saving
        Those of `BasePath`.

    Notes
    -----
    Updates of contiguous tensors on the device are part of the program; those of other tensors are
    copied when it has run.
    """

    def __init__(self, program, rebuild, rec, environment, devices, lock, saving=False):
        super().__init__(program, rebuild, rec, environment, lock, saving)
        self.devices = devices
        self.signature = _kinds([t.array for t in self.tensors])
        copied = sum(device_of(t.array) == "cpu" for t in self.updates) + devices.count("cpu")
        if copied:
            program.schedule.notes.append(f"copies {copied} results to the host, and waits for it")

    def run(self, arrays):
        """Return ``(result,)``, or None where the path does not fit or a guard fails."""
        if not self.fits(arrays):
            return None
        if grad_enabled() and list(map(WANTED, self.refs)) != self.wanted:
            return None
        caller = self._caller()
        if caller is None or caller.touched_by(arrays) or self.environment.changed() is not None:
            return None
        with self.lock:
            before = self._draw()
            status, out = caller.run(arrays)
            if status:
                for generator, state in before:
                    generator.set_state(state)
                return None
            if self.updates:
                self.ran = caller
                mark_changed(*self.updates)
        results = zip(out, self.devices, strict=True)
        self.count += 1
        return (self.rebuild([wrap(to_device(x, device)) for x, device in results]),)

    def example(self):
        """Return None: kernels are not profiled one by one."""

    def repeat(self, arrays, steps):
        """Return no results: steps on a GPU are started one by one."""
        first = self.program.graph.outputs[0]
        return np.empty((0, *first.shape), first.dtype), []

    def restore(self):
        """Put what the last run changed back to what it was before."""
        with self.lock, cupy_.on_device(self.program.device):
            previous = self.originals if self.ran is None else self.ran.previous()
            for t, before in zip(self.updates, previous, strict=True):
                t.array[...] = to_device(before, device_of(t.array))
            mark_changed(*self.updates)

    def _caller(self):
        """Return this thread's memory, or None where outside tensors are of another kind."""
        now = list(map(DATA, self.tensors))
        caller = getattr(self.local, "caller", None)
        if caller is not None and all(map(operator.is_, now, caller.arrays)):
            return caller
        if _kinds(now) != self.signature or self._overlaps():
            return None
        if caller is None:
            caller = self.local.caller = _Caller(self)
        caller.attach(now)
        return caller

    def _overlaps(self):
        """Whether memory that is written is also that of another outside tensor."""
        return any(
            other is not t and shares_memory(other.array, t.array)
            for t in self.updates
            for other in self.tensors
        )

    def _draw(self):
        """Reserve this run's draws; returns the generators and the states they had before."""
        before = []
        for i, (generator, count, seed, stream, first) in enumerate(self.draws):
            self.restart(i, before)
            before.insert(0, (generator, generator.get_state()))
            words = (generator.initial_seed(), generator.stream, generator.advance(count))
            for t, word in zip((seed, stream, first), words, strict=True):
                t.array[...] = np.array(word, np.uint64).view(np.int64)
        self.restart(len(self.draws), before)
        return before


class _Caller:
    """One thread's memory for a path, with outside tensors and updates."""

    def __init__(self, path):
        self.path = path
        program = path.program
        self.binding = program.bind()
        outputs = program.graph.outputs
        self.first = len(outputs) - len(path.updates)
        # Room for new elements, in which the old ones lie after a run.
        self.rooms = [self._room(outputs[self.first :])]
        if path.saving and program.schedule.checked:
            # A run that fails leaves its new elements; what was before the last one that did not
            # must be somewhere else.
            self.rooms.append(self._room(outputs[self.first :]))
        self.results = outputs[: self.first]
        # Where small results are computed, by number.
        small = [i for i, v in enumerate(self.results) if _nbytes(v) <= _COPIED]
        self.small = dict(zip(small, self._room([self.results[i] for i in small]), strict=True))
        self.exchanged = {k - self.first for k in program.schedule.updates}
        self.copies = [i for i in range(len(path.updates)) if i not in self.exchanged]
        self.before = {}

    def _room(self, values):
        """Return memory for some of the program's outputs."""
        with cupy_.on_device(self.path.program.device):
            empty = cupy_.namespace().empty
            return [empty(v.shape, v.dtype) for v in values]

    def attach(self, arrays):
        """Take the arrays of the path's outside tensors."""
        path = self.path
        self.arrays = arrays
        places = {id(t): x for t, x in zip(path.tensors, arrays, strict=True)}
        self.targets = [places[id(t)] for t in path.updates]
        self.read = [places[id(t)] for t in path.refs]
        self._attach()
        bounds = [cupy_.bounds(self.targets[i]) for i in self.exchanged]
        self.starts, self.ends = np.array(bounds, np.uint64).reshape(-1, 2).T

    def _attach(self):
        targets = {self.first + i: self.targets[i] for i in self.exchanged}
        with cupy_.on_device(self.path.program.device):
            self.binding.attach(self.read, targets, self.rooms[-1])

    def touched_by(self, arrays):
        """Whether an argument may share memory with an updated tensor."""
        if not self.targets:
            return False
        for x in arrays:
            if cupy_.owns(x):
                start, end = cupy_.bounds(x)
                if ((start < self.ends) & (end > self.starts)).any():
                    return True
            if any(shares_memory(self.targets[i], x) for i in self.copies):
                return True
        return False

    def run(self, arrays):
        """Run and update; returns the status, and results other than updates."""
        with cupy_.on_device(self.path.program.device):
            empty, small = cupy_.namespace().empty, self.small
            out = [
                small[i] if i in small else empty(v.shape, v.dtype)
                for i, v in enumerate(self.results)
            ]
            status, _ = self.binding.run(arrays, outputs=out)
            if status == 0:
                out = [x.copy() if i in small else x for i, x in enumerate(out)]
                for i in self.copies:
                    target = self.targets[i]
                    if self.path.saving:
                        self.before[i] = target.copy()
                    target[...] = to_device(self.rooms[-1][i], device_of(target))
                if len(self.rooms) > 1:
                    # The next run leaves this room, the first from now on, alone.
                    self.rooms.reverse()
                    self._attach()
        return status, out

    def previous(self):
        """Return what updated tensors held before the last run."""
        return [self.before.get(i, x) for i, x in enumerate(self.rooms[0])]


def _nbytes(v):
    return math.prod(v.shape) * v.dtype.itemsize


def _kinds(arrays):
    return [(x.shape, x.dtype, device_of(x), x.flags.c_contiguous) for x in arrays]
