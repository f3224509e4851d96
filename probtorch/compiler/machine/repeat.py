"""Native code around a program's `run`: writing its updates back, and doing so many times over.

A program computes the new elements of outside tensors into buffers of its own, so that a run whose
guard fails has changed nothing. `Commit` then copies them over. Three buffers take turns: one is
written by the next run, one holds what the tensors are now, one what they were before the last run.
What the program writes in place (`in_place.py`) is not copied, and of two buffers one is given what
was there before. `Commit.repeat` does run and copy `steps` times without going back to Python, each
time with the next draws: the inner loop of SVI on fixed data.
"""

import functools
import operator

import numpy as np

from probtorch.compiler.machine import engine
from probtorch.compiler.nests.loops import address
from probtorch.compiler.render.runtime.replays import ROW

__all__ = ["Commit", "run_many"]


@functools.cache
def _native():
    """Return the functions of `render/runtime/replays.py`."""
    return engine.runtime_function("pt_commit"), engine.runtime_function("pt_repeat")


def run_many(program, table, steps):
    """Run the code at address `program` on the pointer table at address `table`, over and over.

    Returns how many runs were completed: fewer than `steps` where a guard failed. Nothing is
    copied anywhere between runs.
    """
    nothing = np.zeros(1)
    return _native()[1](
        program, table, None, 0, None, 0, address(nothing), 0, address(nothing), steps
    )


class Commit:
    """Copies results over the arrays that they are the new contents of, but for those in place.

    Parameters
    ----------
    frame : CpuFrame
    first : int
        Number of the first output that is an update.
    targets : list of ndarray
    saving : bool
        Keep what the targets held before the last run, see `previous`.

    Attributes
    ----------
    repeats : bool
        Whether `repeat` may be called: not where a target is not contiguous, whose elements pass
        through memory that is.
    """

    def __init__(self, frame, first, targets, saving):
        self._frame, self._targets = frame, targets
        plan = frame.program.plan
        self._in_place = [first + i in plan.in_place for i in range(len(targets))]
        counts = [(2 if in_place else 3) if saving else 1 for in_place in self._in_place]
        self._buffers = [
            [np.empty(x.shape, x.dtype) for _ in range(count)]
            for x, count in zip(targets, counts, strict=True)
        ]
        self._runs = 0
        frame.point(plan.inputs + first, [buffers[0] for buffers in self._buffers])
        slot = address(frame.table) + 8 * (plan.inputs + first)
        self._places = [x if x.flags.c_contiguous else np.empty(x.shape, x.dtype) for x in targets]
        rows = zip(targets, self._places, self._in_place, strict=True)
        self._apart = [(x, place) for x, place, placed in rows if place is not x and not placed]
        self.repeats = all(map(operator.is_, targets, self._places))
        self._rows = np.zeros((len(targets), ROW), np.int64)
        for i, place in enumerate(self._places):
            # Of those in place the second (what the target is now) is not looked at.
            turns = [address(self._buffers[i][k % counts[i]]) for k in (0, 1, -1)]
            nbytes = 0 if self._in_place[i] else place.nbytes
            self._rows[i] = address(place), *turns, nbytes, slot + 8 * i
        self._native = _native()
        self._address = address(self._rows)

    def __call__(self):
        """Copy once."""
        self._native[0](self._address, len(self._rows))
        for target, place in self._apart:
            np.copyto(target, place)
        self._runs += 1

    def previous(self):
        """Return arrays with what the targets held before the last run."""
        # In place, the last run wrote it; else it went the way from first to second to third.
        return [
            buffers[(self._runs - 1) % 2 if in_place else (2 - self._runs) % 3]
            for buffers, in_place in zip(self._buffers, self._in_place, strict=True)
        ]

    def refresh(self):
        """Take in what others have written to the targets since the last run."""
        rows = zip(self._targets, self._buffers, self._in_place, strict=True)
        for target, buffers, in_place in rows:
            if not in_place:
                np.copyto(buffers[(1 - self._runs) % 3], target)

    def repeat(self, draws, result, results):
        """Run the program and copy, over and over.

        Parameters
        ----------
        draws : int64 array, shape (draws, 2)
            Address of a counter, and what it advances by between runs.
        result : ndarray
            What each run leaves in place.
        results : ndarray, shape (steps, *result.shape)
            Filled with it.

        Returns
        -------
        int
            How many runs were completed: fewer than `steps` where a guard failed.
        """
        done = self._native[1](
            *self._frame.entry,
            self._address,
            len(self._rows),
            address(draws) if len(draws) else None,
            len(draws),
            address(result),
            result.nbytes,
            address(results),
            len(results),
        )
        self._runs += done
        return done
