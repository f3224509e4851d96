"""The replications of a calibration: data in, posterior draws out, one after the other; and ranks.

Who draws is one of chains.py and engines.py: a `Drawer`, which gets the data of a replication and a
generator, and returns points of the target that are as good as independent, or tells that they are
not.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from probtorch.config import configure, settings
from probtorch.core.rng import Generator
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError, DomainError, InferenceError
from probtorch.infer.calibration.displays import TurnProgress
from probtorch.infer.calibration.simulated import BLOCK_ELEMENTS, Arrays, SimulatedTarget
from probtorch.infer.control import ended_before, told_to_end
from probtorch.infer.remote.all_of import all_of
from probtorch.infer.remote.pools import ExecutorLike

__all__ = ["Drawer", "Drawn", "Interrupted", "Replications"]

# Replications that a worker does in one task.
BLOCK = 16
_alone = threading.Lock()


@dataclass(frozen=True)
class Drawn:
    """Posterior draws of one replication.

    Attributes
    ----------
    points : ndarray, shape (draws, dim)
        Unconstrained.
    ess : float
        Effective draws before thinning; nan where it is not known.
    thinning : int
        How many draws there were for each that is kept.
    divergences : int
    """

    points: np.ndarray
    ess: float
    thinning: int = 1
    divergences: int = 0


class Drawer(Protocol):
    """What draws from the posterior."""

    @property
    def name(self) -> str:
        """What results call it."""

    def __call__(self, data: Arrays, stream: Generator) -> Drawn:
        """Return draws given data by site, all randomness being that of the generator."""


class Interrupted(Exception):
    """Ctrl-C came while a replication ran, or who holds the handle of the run ended it."""


@dataclass(frozen=True)
class _Run:
    """One replication: what was drawn, the point that it should be like, and its data."""

    drawn: Drawn
    truth: np.ndarray
    data: np.ndarray


@dataclass(frozen=True)
class _Replication:
    """One replication that is still to be run."""

    number: int
    stream: Generator
    truth: np.ndarray


def replicate(
    replications: Replications, block: Sequence[_Replication]
) -> dict[int, _Run | Exception]:
    """Run a block of replications, in whatever process this is; see `Replications.block`."""
    with _alone:  # the target has the data of one at a time
        return replications.block(block)


class Replications:
    """All replications of one call.

    Parameters
    ----------
    target : SimulatedTarget
    drawer : Drawer
    drawn : dict of ndarray
        Parameters and data by site, each (replications, *shape).
    names : sequence of str
        The sites that are data.

    Attributes
    ----------
    done : list
    failed : dict of int to Exception
    """

    def __init__(
        self, target: SimulatedTarget, drawer: Drawer, drawn: Arrays, names: Sequence[str]
    ) -> None:
        self.target, self.drawer, self.drawn, self.names = target, drawer, drawn, names
        self.done: list[_Run] = []
        self.failed: dict[int, Exception] = {}

    def run(
        self, streams: Sequence[Generator], shown: bool, executor: ExecutorLike | None = None
    ) -> None:
        """Run one after the other, or in blocks on an executor, until done or Ctrl-C comes."""
        points = self.target.points(self.drawn)
        if executor is not None:
            self._run_on(executor, streams, points, shown)
            return
        with TurnProgress(len(streams), "replications", shown=shown) as progress:
            try:
                for number, stream in enumerate(streams):
                    if told_to_end():
                        raise Interrupted("told to end")
                    try:
                        self.target.exchange(self._data_of(number))
                        one = _Replication(number, stream, points(number))
                        self.done.append(self._replicate(one))
                    except (InferenceError, DomainError) as error:
                        if told_to_end():  # which may be why
                            raise Interrupted("told to end") from error
                        self.failed[number] = error
                    progress.update(math.nan)
            except (KeyboardInterrupt, Interrupted):
                if not self.done:
                    raise ended_before("sbc", "the first replication") from None
                print(
                    f"interrupted: keeping the {len(self.done)} replications that are done",
                    file=sys.stderr,
                    flush=True,
                )

    def _run_on(
        self,
        executor: ExecutorLike,
        streams: Sequence[Generator],
        points: Callable[[int], np.ndarray],
        shown: bool,
    ) -> None:
        """Run blocks of replications, which are the same whatever the workers."""
        blocks: list[list[_Replication]] = []
        for number, stream in enumerate(streams):
            try:
                self.target.exchange(self._data_of(number))
                one = _Replication(number, stream, points(number))
            except DomainError as error:
                self.failed[number] = error
                continue
            if not blocks or len(blocks[-1]) == BLOCK:
                blocks.append([])
            blocks[-1].append(one)
        with TurnProgress(len(blocks), "blocks of replications", shown=shown) as progress:
            done = all_of(
                replicate,
                self,
                blocks,
                executor=executor,
                names=[f"replications {b[0].number} to {b[-1].number}" for b in blocks],
                what="a model and its kernel",
                finished=lambda number: progress.update(math.nan),
            )
        for i, block in enumerate(blocks):
            for one in block:
                found = done.failed.get(i) or done.results.get(i, {}).get(one.number)
                if isinstance(found, Exception):
                    self.failed[one.number] = found
                elif found is not None:
                    self.done.append(found)
        if done.interrupted and not self.done:
            raise ended_before("sbc", "the first replications")

    def _data_of(self, number: int) -> Arrays:
        return {name: self.drawn[name][number] for name in self.names}

    def block(self, replications: Sequence[_Replication]) -> dict[int, _Run | Exception]:
        """Return what came of some replications, or of those that failed the errors."""
        found: dict[int, _Run | Exception] = {}
        forget = getattr(self.drawer, "forget", None)
        if forget is not None:
            forget()
        for one in replications:
            self.target.exchange(self._data_of(one.number))
            try:
                found[one.number] = self._replicate(one)
            except (InferenceError, DomainError) as error:
                found[one.number] = error
        return found

    def _replicate(self, one: _Replication) -> _Run:
        """Draw; the target has the data."""
        data = self._data_of(one.number)
        # Compiled code is compared with Python's answer now and then, less and less often.
        verify = settings.verify and one.number & (one.number - 1) == 0
        with warnings.catch_warnings(), configure(verify=verify):
            # Thousands of runs: what each of them has to say is counted instead.
            warnings.simplefilter("ignore", InferenceWarning)
            found = self.drawer(data, one.stream)
        return _Run(found, one.truth, self.target.pack_data(data))

    @property
    def ess(self) -> np.ndarray:
        """Effective draws of each replication."""
        return np.array([run.drawn.ess for run in self.done])

    @property
    def thinning(self) -> np.ndarray:
        """Draws for each one that was kept, by replication."""
        return np.array([run.drawn.thinning for run in self.done])

    @property
    def divergences(self) -> np.ndarray:
        """Divergences of each replication."""
        return np.array([run.drawn.divergences for run in self.done])

    def ranks(self, generator: Generator) -> dict[str, np.ndarray]:
        """Ranks (replications,) of the truth among the draws, by label."""
        rng = np.random.default_rng([generator.initial_seed(), generator.stream])
        draws = len(self.done[0].drawn.points)
        row = (1 + draws) * (self.target.dim + self.done[0].data.size)
        block = max(1, BLOCK_ELEMENTS // row)
        labels: list[str] = []
        parts, bad, lowest, highest = [], [], [], []
        for start in range(0, len(self.done), block):
            runs = self.done[start : start + block]
            points = np.concatenate([np.vstack([r.truth[None], r.drawn.points]) for r in runs])
            data = np.repeat([run.data for run in runs], 1 + draws, axis=0)
            labels, values = self.target.columns(self.target.scores(points, data))
            values = values.reshape(len(runs), 1 + draws, -1)
            truth, others = values[:, :1], values[:, 1:]
            below, equal = (others < truth).sum(axis=1), (others == truth).sum(axis=1)
            parts.append(below + rng.integers(0, equal + 1))
            bad.append(np.isnan(values).any(axis=(0, 1)))
            lowest.append(values.min(axis=(0, 1)))
            highest.append(values.max(axis=(0, 1)))
        ranks, nan = np.concatenate(parts), np.any(bad, axis=0)
        if nan.any():
            name = labels[int(np.flatnonzero(nan)[0])]
            raise ArgumentError(
                f"sbc: quantity {name!r}",
                expected="a number at every draw",
                got="nan at some",
                fix="mend it, or leave it out, so that it can be ranked",
            )
        varies = np.min(lowest, axis=0) < np.max(highest, axis=0)
        return {label: ranks[:, i] for i, label in enumerate(labels) if varies[i]}
