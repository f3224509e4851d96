"""The look at all chains at the end of warm-up: who is not warm goes on, who is lost starts anew.

A chain that is still under way, whose step size or acceptance is out of line, or whose mass matrix
was learnt elsewhere than the others', gets half a warm-up more, twice at most. One that sits in a
mode whose share of the posterior is nil, compared with what another chain found, goes on from where
that chain stands. What is still wrong then is told, chain by chain, before the draws are there to
be believed. The look depends on the chains' warm-ups only, so that a run is the same for any number
of threads, and after a break.

The share of a mode is judged by its evidence: the mean log density there plus half the log
determinant of the adapted covariance. Log densities alone would call the wide mouth of a funnel
worse than its neck, and each broad mode worse than a spike.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.diagnostics.findings import ConvergenceWarning
from probtorch.errors import ProbtorchError
from probtorch.infer.mcmc.warm_up.adapted import aims_of
from probtorch.infer.mcmc.warm_up.mass_matrix import MassMatrix, shifts

if TYPE_CHECKING:
    from probtorch.infer.mcmc.chain import ChainRun
    from probtorch.infer.mcmc.metrics import Metric


__all__ = ["Trouble", "WarmupGuard"]

# How often a warm-up is made longer, and by which share of its length, this many iterations at
# least.
ROUNDS, SHARE, AT_LEAST = 2, 0.5, 50
# A mode this many nats below another has no share of the posterior that draws could show; and the
# log densities there are apart by this many of their standard deviations.
LOST, APART = 20.0, 6.0
# Thirds of the course, or of the windows, that differ by so many standard deviations.
DRIFT, MOVED = 2.0, 4.0
# Step sizes, and lengths of trajectories, of chains that differ by more than this factor;
# acceptance this far below its target.
STEP_RATIO, ACCEPTANCE_GAP = 5.0, 0.2
# Where volumes of mass matrices are so many nats apart (those of warm chains are by 7 at most, in
# docs/benchmarks.md's posteriors), trajectories longer by this factor are enough.
VOLUMES, LONGER = 10.0, 2.0
# With fewer iterations of warm-up there is nothing to judge by.
SHORTEST = 50


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a chain at the end of its warm-up.

    Parameters
    ----------
    chain : int
    got, fix : str
        The message.
    donor : int or None
        The chain whose place it should take.
    """

    chain: int
    got: str
    fix: str
    donor: int | None = None


class WarmupGuard:
    """Decides who goes on warming up.

    Parameters
    ----------
    runs : list of ChainRun
        All chains, in order.

    Attributes
    ----------
    left : list of Trouble
        What was still wrong when no more could be done about it.
    """

    def __init__(self, runs: list[ChainRun]) -> None:
        self._runs = runs
        self.left: list[Trouble] = []

    def look(self, warm: list[ChainRun]) -> list[ChainRun]:
        """Return the chains of `warm` that shall go on, after `extend` was called for them."""
        judged = [run for run in warm if _can_be_judged(run)]
        again = []
        self.left = []
        for trouble in self._troubles(judged):
            run = self._runs[trouble.chain]
            if len(run.extensions) >= ROUNDS:
                self.left.append(trouble)
                continue
            donor = None if trouble.donor is None else self._runs[trouble.donor].runner.chain
            again.append((run, max(int(SHARE * run.num_warmup), AT_LEAST), donor))
        # All looked at first: a chain that is moved must not be anyone's donor by then.
        for run, length, donor in again:
            run.extend(length, donor)
        return [run for run, _, _ in again]

    def warn(self, stacklevel: int) -> None:
        """Warn of what is left, in one warning for all chains."""
        if not self.left:
            return
        first = self.left[0]
        named = ", ".join(str(t.chain) for t in self.left)
        message = ProbtorchError(
            f"chain{'s' if len(self.left) > 1 else ''} {named} did not settle in warm-up",
            expected="chains that are warm, after a warm-up that was made longer twice",
            got="; ".join(f"chain {t.chain}: {t.got}" for t in self.left),
            fix=first.fix,
        )
        warnings.warn(str(message), ConvergenceWarning, stacklevel=stacklevel + 1)

    def _troubles(self, judged: Sequence[ChainRun]) -> Iterator[Trouble]:
        """One trouble per chain at most, the gravest."""
        index = {id(run): i for i, run in enumerate(self._runs)}
        if not judged:
            return
        standings = [
            _Standing(index[id(run)], run, course, shift, size, volume)
            for run, course, shift, size, volume in zip(
                judged,
                _Course.of(judged),
                _shifts(judged),
                _step_sizes(judged),
                _log_volumes(judged),
            )
        ]
        best = max(standings, key=lambda s: s.evidence)
        usual = float(np.median([s.step_size for s in standings]))
        steps = float(np.median([s.run.effort for s in standings]))
        for standing in standings:
            yield from _first(
                _lost(standing, best),
                _drifting(standing),
                _moved(standing),
                _rejecting(standing),
                _out_of_step(standing, usual, len(standings)),
                _wandering(standing, steps, len(standings)),
                _elsewhere(standing, best),
            )


@dataclass(frozen=True)
class _Course:
    """What the log density was in the later part of a warm-up.

    Parameters
    ----------
    mean, sd : float
        Of its later half.
    change, spread : float
        From its first third to its last, and the larger standard deviation there.
    """

    mean: float
    sd: float
    change: float
    spread: float

    @classmethod
    def of(cls, runs: Sequence[ChainRun]) -> list[_Course]:
        """Return those of some chains; with many, NumPy's calls would cost more than numbers."""
        courses = []
        for run in runs:
            whole = np.concatenate([*run.course, np.zeros(0)])
            courses.append(whole[int(0.4 * len(whole)) :])
        found: dict[int, _Course] = {}
        for length in {len(course) for course in courses}:
            places = [i for i, course in enumerate(courses) if len(course) == length]
            rows = np.stack([courses[i] for i in places])
            late, third = rows[:, length // 2 :], max(length // 3, 1)
            before, after = rows[:, :third], rows[:, -third:]
            columns = (
                late.mean(axis=1),
                late.std(axis=1),
                after.mean(axis=1) - before.mean(axis=1),
                np.maximum(after.std(axis=1), before.std(axis=1)),
            )
            for place, *numbers in zip(places, *(x.tolist() for x in columns)):
                found[place] = cls(*numbers)
        return [found[i] for i in range(len(courses))]


class _Standing:
    """What is known of a chain when its warm-up has ended."""

    def __init__(
        self,
        number: int,
        run: ChainRun,
        course: _Course,
        shift: float | None,
        step_size: float,
        log_volume: float,
    ) -> None:
        self.number, self.run, self.course, self.shift = number, run, course, shift
        self.mean, self.sd, self.step_size = course.mean, course.sd, step_size
        self.log_volume = log_volume
        evidence = self.mean + log_volume
        self.evidence = evidence if math.isfinite(evidence) else -math.inf


def _log_volumes(runs: Sequence[ChainRun]) -> list[float]:
    """Half of the log determinants of what was learnt; of chains that are rows found together.

    Without a metric nothing is known of the volume, nan, and nobody is called lost.
    """
    found, stacks = [], dict[int, np.ndarray]()
    for run in runs:
        row = run.runner.row
        if row is None or not row[0].has("metric"):
            metric = cast("Metric | None", run.runner.held("metric"))
            found.append(np.nan if metric is None else 0.5 * metric.log_determinant())
            continue
        stack, number = row
        if id(stack) not in stacks:
            whole = cast("Metric", stack.field("metric").whole())
            stacks[id(stack)] = 0.5 * np.asarray(whole.log_determinant())
        found.append(float(stacks[id(stack)][number]))
    return found


def _step_sizes(runs: Sequence[ChainRun]) -> list[float]:
    """What was tuned, as it would be kept; of chains that are rows together found together."""
    found, stacks = [], dict[int, dict[str, np.ndarray]]()
    for run in runs:
        tuner, row = run.warmup.tuner, run.runner.row
        settled: dict[str, np.ndarray] = {}
        if tuner is not None and run.warmup.follows:
            if row is None:
                settled = run.runner.settled()
            else:
                stack, number = row
                if id(stack) not in stacks:
                    stacks[id(stack)] = stack.settled()
                settled = {name: x[number] for name, x in stacks[id(stack)].items()}
        if tuner is not None and tuner.tunes in settled:
            found.append(float(settled[tuner.tunes].mean()))
        else:
            found.append(run.step_size)
    return found


def _shifts(runs: Sequence[ChainRun]) -> list[float | None]:
    """How far apart the windows of each chain are, where that is known."""
    learners = [run.learner for run in runs]
    matrices = [learner for learner in learners if type(learner) is MassMatrix]
    if len(matrices) == len(learners):
        return shifts(matrices)
    return [None if learner is None else learner.shift() for learner in learners]


def _can_be_judged(run: ChainRun) -> bool:
    """Whether the warm-up of a chain was long enough, and adapted anything."""
    return run.warming_up and run.warmup.does_something and sum(map(len, run.course)) >= SHORTEST


def _first(*troubles: Trouble | None) -> list[Trouble]:
    return [t for t in troubles if t is not None][:1]


def _lost(standing: _Standing, best: _Standing) -> Trouble | None:
    behind = best.evidence - standing.evidence
    apart = best.mean - standing.mean
    if standing is best or not behind > LOST or not apart > APART * (standing.sd + best.sd):
        return None
    return Trouble(
        standing.number,
        f"log density {standing.mean:.4g}, {apart:.3g} below that of chain {best.number}",
        "the posterior has a mode of no weight in which chains are caught: start elsewhere "
        "(init_strategy=init_to_median(), another seed), or give priors that exclude it",
        donor=best.number,
    )


def _drifting(standing: _Standing) -> Trouble | None:
    course = standing.course
    # One nat is no drift, however steady the log density.
    if not abs(course.change) > max(1.0, DRIFT * course.spread):
        return None
    return Trouble(
        standing.number,
        f"its log density was still changing, by {course.change:+.3g} in the last part of warm-up",
        "more warm-up: warmup_steps=1000; a start nearer to the posterior",
    )


def _moved(standing: _Standing) -> Trouble | None:
    shift = standing.shift
    if shift is None or not shift > MOVED:
        return None
    return Trouble(
        standing.number,
        f"it moved by {shift:.3g} standard deviations between two windows of warm-up",
        "more warm-up (warmup_steps=1000); if the posterior has several modes, each chain should "
        "see one: compare them, and give the model what tells them apart",
    )


def _rejecting(standing: _Standing) -> Trouble | None:
    tuner = standing.run.warmup.tuner
    if tuner is None or not standing.run.warmup.follows:
        return None
    got = standing.run.acceptance
    # A chain may aim at less than it was given, never at more.
    if not got < float(tuner.target.array.mean()) - ACCEPTANCE_GAP:
        return None
    (aim,) = aims_of([standing.run])
    target = float(aim.mean())
    if not got < target - ACCEPTANCE_GAP:
        return None
    return Trouble(
        standing.number,
        f"acceptance {got:.2f} at the end of warm-up, {target:g} was aimed at",
        "the curvature varies from place to place: write hierarchical sites non-centred, or "
        "NUTS(..., adaptive_steps=True)",
    )


def _out_of_step(standing: _Standing, usual: float, count: int) -> Trouble | None:
    if count < 3 or not standing.step_size * STEP_RATIO < usual:
        return None
    return Trouble(
        standing.number,
        f"step size {standing.step_size:.2g}, {usual:.2g} in other chains",
        "it is in a place with other scales: compare its draws with the others', write "
        "hierarchical sites non-centred, or NUTS(..., adaptive_steps=True)",
    )


def _wandering(standing: _Standing, usual: float, count: int) -> Trouble | None:
    """A chain whose mass matrix is that of another place: its trajectories take many more steps."""
    steps = standing.run.effort
    if count < 3 or not steps > STEP_RATIO * usual:
        return None
    return Trouble(
        standing.number,
        f"{steps:.3g} steps a trajectory, {usual:.3g} in other chains",
        "more warm-up: warmup_steps=1000; a start nearer to the posterior",
    )


def _elsewhere(standing: _Standing, best: _Standing) -> Trouble | None:
    """A chain that learnt its mass matrix in a neck, say, which it has left or will leave.

    The log density is higher there, so that it is not lost, and two such chains of four make their
    steps the usual ones. But its matrix has a smaller volume than the best chain's: by more than
    the log density makes up for, or its steps do not fit where it is by now.
    """
    off = standing.log_volume - best.log_volume
    if standing is best or not abs(off) > VOLUMES:
        return None
    steps, usual = standing.run.effort, best.run.effort
    if not (steps > LONGER * usual or best.evidence - standing.evidence > LOST):
        return None
    return Trouble(
        standing.number,
        f"its mass matrix is that of another place: its volume is {off:+.3g} nats from that of "
        f"chain {best.number}, with {steps:.3g} steps a trajectory, {usual:.3g} there",
        "more warm-up: warmup_steps=1000; write hierarchical sites non-centred",
    )
