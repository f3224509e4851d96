"""What is told of a chain while it runs, and what its warm-up is judged by: `ChainTally`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernel import Kernel, statistics
from probtorch.infer.mcmc.running import RunningTrace
from probtorch.infer.mcmc.standstill import Standstill

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.adaptation import Tuner

__all__ = [
    *("ACCEPTED", "DIVERGENCES", "EVALUATIONS", "ITERATION", "NUMBERS", "STEP_SIZE"),
    *("WARMUP_EVALUATIONS", "ChainTally", "tallies_of"),
]

# Where in a row of numbers each is: counts, the step size, and three sums.
ITERATION, DIVERGENCES, EVALUATIONS, WARMUP_EVALUATIONS, STEP_SIZE = range(5)
ACCEPTED, NUMBERS = slice(5, 8), 8


def _count(place: int) -> property:
    """A count that is kept in the row of numbers."""

    def get(self: ChainTally) -> int:
        return int(self.numbers[place])

    def put(self: ChainTally, value: int) -> None:
        self.numbers[place] = value

    return property(get, put)


class ChainTally:
    """How far a chain is, and how it does.

    Parameters
    ----------
    kernel : Kernel
        As the user made it.
    step_size : object
        Of the kernel as the chain has it; None if it has none.
    tuner : Tuner or None
    warming_up : bool

    Attributes
    ----------
    numbers : ndarray, shape (8,)
        Where counts, the step size and `accepted` are kept; of chains that go together a row of
        one table.
    iteration, divergences, evaluations, warmup_evaluations : int
        So far, where the kernel tells; divergences after warm-up only.
    course : list of array
        Log densities during warm-up, in parts.
    trace : RunningTrace
        Of the log density, coarsely, for displays.
    accepted : ndarray, shape (3,)
        Sums since something learnt was set last: of what the tuner follows, of evaluations, and of
        transitions.
    acceptance : float
        Mean of what the tuner follows in the last segment of the warm-up.
    effort : float
        Mean number of evaluations of a transition there.
    standstill : Standstill
    step_size : float
        Nan if the kernel tells of none.
    warming_up : bool
    """

    iteration, divergences = _count(ITERATION), _count(DIVERGENCES)
    evaluations, warmup_evaluations = _count(EVALUATIONS), _count(WARMUP_EVALUATIONS)

    def __init__(
        self, kernel: Kernel, step_size: object, tuner: Tuner | None, *, warming_up: bool
    ) -> None:
        self.kernel, self._tuner, self.warming_up = kernel, tuner, warming_up
        self._fields = _fields(kernel.info)
        self.numbers = np.zeros(NUMBERS)
        self.course: list[np.ndarray] = []
        self.trace = RunningTrace()
        self.standstill = Standstill()
        self.step_size = np.nan
        if isinstance(step_size, TensorBase) and "step_size" in self._fields:
            self.step_size = _mean(step_size.array) if step_size.array.size else np.nan

    @property
    def step_size(self) -> float:
        """The last one; nan if the kernel tells of none."""
        return float(self.numbers[STEP_SIZE])

    @step_size.setter
    def step_size(self, value: float) -> None:
        self.numbers[STEP_SIZE] = value

    @property
    def accepted(self) -> np.ndarray:
        """Sums since something learnt was set last, a view."""
        return self.numbers[ACCEPTED]

    @accepted.setter
    def accepted(self, values: np.ndarray) -> None:
        self.numbers[ACCEPTED] = values

    @property
    def acceptance(self) -> float:
        """Mean of what the tuner follows since something learnt was set last; nan before."""
        total, _, count = self.accepted.tolist()
        return total / count if count else np.nan

    @property
    def effort(self) -> float:
        """Mean number of evaluations of a transition since then; nan before."""
        _, total, count = self.accepted.tolist()
        return total / count if count else np.nan

    def told(self, info: object, name: str) -> np.ndarray | None:
        """Return what an info tells under a name of results, None if it does not."""
        return getattr(info, self._fields[name]) if name in self._fields else None

    def report(self, positions: np.ndarray, info: object) -> None:
        """Take down what a call has done.

        Parameters
        ----------
        positions : ndarray, shape (transitions, dim) or (transitions, members, dim)
        info : record of arrays
        """
        self.standstill.update(positions, lambda name: self.told(info, name))
        count = len(positions)
        taken, diverging = self.told(info, "n_steps"), self.told(info, "diverging")
        evaluations = 0 if taken is None else int(taken.sum())
        self.add(count, evaluations, 0 if diverging is None else int(diverging.sum()))
        if (step_size := self.told(info, "step_size")) is not None:
            self.step_size = _mean(step_size[-1])
        lp = self.told(info, "lp")
        if lp is not None:
            self.trace.add(_mean(lp[-1]))
        if self.warming_up:
            if lp is not None:
                self.course.append(lp.copy() if lp.ndim == 1 else lp.mean(axis=1))
            followed = 0.0
            if self._tuner is not None:
                rates = np.asarray(getattr(info, self._tuner.follows))
                followed = rates.sum() * (count / rates.size)
            self.accepted += (followed, evaluations, count)

    def add(self, count: int, evaluations: int, divergences: int) -> None:
        """Count so many transitions, and what happened in them."""
        self.iteration += count
        self.evaluations += evaluations
        if self.warming_up:
            self.warmup_evaluations += evaluations
        else:
            self.divergences += divergences


def tallies_of(tallies: Sequence[ChainTally]) -> np.ndarray:
    """Return the numbers of some chains as a table whose rows they share from now on."""
    table = np.stack([tally.numbers for tally in tallies])
    for tally, row in zip(tallies, table):
        tally.numbers = row
    return table


@functools.lru_cache(maxsize=64)
def _fields(info: type) -> dict[str | None, str]:
    """Fields by the names that results have; not to be changed."""
    return {s.name: s.field for s in statistics(info)}


def _mean(values: np.ndarray | np.number) -> float:
    return float(values.mean()) if values.ndim else float(values)
