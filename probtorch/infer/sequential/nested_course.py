"""The way of the live points of a `NestedSampler`, from the prior to where nothing is left.

Each round leaves the least likely of the points behind, and puts in their places points that are
drawn from the prior above the likelihood of the last of these: copies of some of those that stay,
moved by the kernel. Several points at a time make a native call worth its while, and threads have
something to share; the points there are go down with each one that is left behind, which the
volumes know (shrinkage.py). Points that are equally likely are left behind together.

All that the rest of the way depends on is plain arrays between two rounds, so that a run that is
killed goes on where it was.

References
----------
J. Skilling, "Nested sampling for general Bayesian computation", Bayesian Analysis 1 (2006). A.
Fowlie, W. Handley, L. Su, "Nested sampling with plateaus", MNRAS 503 (2021), for points of equal
likelihood, and "Nested sampling cross-checks using order statistics", MNRAS 497 (2020), for the
test of the ranks at which new points come in.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.typed import Tree
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import InferenceError, user_frame
from probtorch.infer.sequential.moved_particles import ParticleRun
from probtorch.infer.sequential.saved_particles import put_back, taken_down
from probtorch.infer.sequential.shrinkage import log_sum, log_widths, mean_log_volumes
from probtorch.infer.sequential.weights import uniforms

if TYPE_CHECKING:
    from probtorch.infer.sequential.nested_sampler import NestedSampler

__all__ = ["NestedCourse", "NestedSamplingWarning"]

# Chance of a warning about the ranks of a sound run; draws of the prior for each live point, at
# most, where the likelihood is 0 for most of them.
FALSE_ALARM, MOST_TRIES = 1e-4, 1000
# A squared correlation of likelihoods before and after moves above which points have not got away.
STANDING = 0.25
# What a snapshot has under the names of attributes: arrays and numbers.
FIELDS = (
    "positions", "log_likelihood", "log_prior", "dead_positions", "dead_likelihood", "dead_prior",
    "counts", "ranks", "before", "after", "log_share", "error_of_share", "since_fit", "level",
)  # fmt: skip


class NestedSamplingWarning(InferenceWarning):
    """Live points that are no draws of the prior above their level, or a run that was cut short."""


class NestedCourse:
    """The live points of one run, and those left behind.

    Parameters
    ----------
    sampler : NestedSampler
    run : ParticleRun
        Its first streams are those of the first points, and of which points are copied and of ties
        among the ranks.
    num_steps : int
        Transitions of a copy.

    Attributes
    ----------
    positions, log_likelihood, log_prior : ndarray, shapes (live, dim), (live,), (live,)
        The live points.
    dead_positions, dead_likelihood, dead_prior, counts : ndarray
        Those left behind in that order, and how many points there were then.
    ranks : ndarray
        Shares of the points that a new one found below itself: uniform if all goes well.
    log_share, error_of_share : float
        Log of the prior's share with a likelihood above 0, and its standard error.
    """

    def __init__(self, sampler: NestedSampler, run: ParticleRun, num_steps: int) -> None:
        self.sampler, self.num_steps = sampler, num_steps
        self.target, self.path, self.mutation = run.target, run.path, run.mutation
        self._first, self.generator, *_ = run.streams
        self.saved, self.interrupt, self.progress = run.saved, run.interrupt, run.progress
        dim = run.target.dim
        self.positions = np.empty((0, dim))
        self.log_likelihood, self.log_prior = np.empty(0), np.empty(0)
        self.dead_positions = np.empty((0, dim))
        self.dead_likelihood, self.dead_prior = np.empty(0), np.empty(0)
        self.counts, self.ranks = np.empty(0, np.int64), np.empty(0)
        self.before, self.after = np.empty(0), np.empty(0)
        self.log_share, self.error_of_share, self.level = 0.0, 0.0, -math.inf
        self.since_fit = sampler.num_live_points

    def start(self) -> None:
        """Draw the first points from the prior, until enough have a likelihood above 0.

        Raises
        ------
        InferenceError
            If hardly any has.
        """
        wanted, parts, drawn, good = self.sampler.num_live_points, [], 0, 0
        while good < wanted:
            if drawn >= MOST_TRIES * wanted:
                raise InferenceError(
                    f"NestedSampler on {self.target.name}: draws of the prior",
                    expected=f"a likelihood above 0 for at least one of {MOST_TRIES}",
                    got=f"{good} of {drawn}",
                    fix="look at priors and data, or give a reference",
                )
            count = max(wanted, drawn)
            positions = self.path.draws(count, self._first)
            ratios = self.mutation.ratios(positions)
            if np.isnan(ratios).any() or (ratios == math.inf).any():
                raise InferenceError(
                    f"NestedSampler on {self.target.name}: the log likelihood at draws of the "
                    "prior",
                    expected="numbers below infinity",
                    got=f"{int((~(ratios < math.inf)).sum())} of {count} that are not",
                    fix="look for a density that is not finite",
                )
            possible = ratios > -math.inf
            parts.append((positions[possible], ratios[possible]))
            drawn, good = drawn + count, good + int(possible.sum())
        share = good / drawn
        self.log_share = math.log(share)
        self.error_of_share = math.sqrt((1.0 - share) / good)
        self.positions = np.concatenate([p for p, _ in parts])[:wanted]
        self.log_likelihood = np.concatenate([r for _, r in parts])[:wanted]
        self.log_prior = self._prior(self.positions, self.log_likelihood)

    def _prior(self, positions: np.ndarray, log_likelihood: np.ndarray) -> np.ndarray:
        """Log densities of the prior, unconstrained: half-way the likelihood counts by half."""
        return self.mutation.half_way(positions) - 0.5 * log_likelihood

    def to_the_end(self) -> bool:
        """Go on until little is left above the level; whether it was not stopped before."""
        whole = True
        while self.remaining() > self.sampler.dlogz and np.ptp(self.log_likelihood) > 0.0:
            self.saved.update(self.snapshot)
            if self.interrupt.asked:
                whole = False
                break
            self._round()
            self._tell()
        self.saved.update(self.snapshot, last=True)
        if not whole:
            print(
                f"{self.interrupt.told}: taking the live points for all that is left, whose log "
                f"evidence may be off by {self.remaining():.3g}",
                file=sys.stderr,
                flush=True,
            )
        return whole

    def remaining(self) -> float:
        """By how much the log evidence would rise if all that is left were as likely as the best.

        Infinite before the first round.
        """
        if not len(self.counts):
            return math.inf
        volumes = mean_log_volumes(self.counts)
        found = log_sum(self.dead_likelihood + log_widths(volumes))
        return float(np.logaddexp(found, volumes[-1] + self.log_likelihood.max())) - found

    def _round(self) -> None:
        """Leave the least likely points behind, and draw as many above the last of them."""
        n = len(self.positions)
        order = np.argsort(self.log_likelihood, kind="stable")
        level = float(self.log_likelihood[order[self.sampler.num_delete - 1]])
        dead = int((self.log_likelihood <= level).sum())
        if dead == n:  # The best of all are equally likely, and more than are left behind.
            level = math.nextafter(float(self.log_likelihood.max()), -math.inf)
            dead = int((self.log_likelihood <= level).sum())
        gone, stay = order[:dead], order[dead:]
        self._bury(gone, n - np.arange(dead))
        if self.since_fit >= n // 2:
            # Half of the points are others than when the kernel was last fitted to them.
            self.mutation.fit(self.target, self.positions[stay], level)
            self.since_fit = 0
        copied = stay[self._chosen(len(stay), dead)]
        moved = self.mutation.move(self.positions[copied], level, self.num_steps)
        found = moved.ratios.array[:, 0]
        self.ranks = np.append(self.ranks, self._ranks(self.log_likelihood[stay], found))
        staying = self.log_likelihood[stay]
        self.before = np.append(self.before, _places(staying, self.log_likelihood[copied]))
        self.after = np.append(self.after, _places(staying, found))
        self.positions[gone] = moved.positions.array[:, 0]
        self.log_likelihood[gone] = found
        self.log_prior[gone] = moved.logdensity.array[:, 0]
        self.level, self.since_fit = level, self.since_fit + dead

    def _bury(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """Put live points among those left behind."""
        self.dead_positions = np.concatenate([self.dead_positions, self.positions[rows]])
        self.dead_likelihood = np.append(self.dead_likelihood, self.log_likelihood[rows])
        self.dead_prior = np.append(self.dead_prior, self.log_prior[rows])
        self.counts = np.append(self.counts, counts)

    def bury_all(self) -> None:
        """Leave all live points behind, one by one, after which nothing is left."""
        order = np.argsort(self.log_likelihood, kind="stable")
        self._bury(order, len(order) - np.arange(len(order)))

    def _chosen(self, among: int, count: int) -> np.ndarray:
        """Numbers below `among`, all different where there are as many."""
        times = -(-count // among)
        orders = [np.argsort(uniforms(self.generator, among), kind="stable") for _ in range(times)]
        return np.concatenate(orders)[:count]

    def _ranks(self, staying: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Where new points come in among those that stay and those before them, in (0, 1).

        Draws of one law come in at ranks that are uniform and independent, one after the other.
        """
        everyone, noise = np.append(staying, new), uniforms(self.generator, len(new))
        found = np.empty(len(new))
        for i, value in enumerate(new):
            others = everyone[: len(staying) + i]
            below, same = (others < value).sum(), (others == value).sum()
            found[i] = (below + noise[i] * (same + 1)) / (len(others) + 1)
        return found

    def _tell(self) -> None:
        left = self.remaining()
        share = 1.0 / (1.0 + max(math.log(max(left, 1e-300) / self.sampler.dlogz), 0.0))
        self.progress.tell(
            f"{len(self.counts)} points left behind, {left:.3g} of the log evidence to come", share
        )

    # ------------------------------------------------------------------------------------- saving

    def snapshot(self) -> Tree:
        """Return all that the rest of the way depends on, as plain values."""
        return {
            **taken_down(self, FIELDS, self.mutation),
            "generator": tuple(self.generator.get_state()),
        }

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` returned in another process.

        Raises
        ------
        ArgumentError
            If it is of another model or of other data.
        """
        put_back("NestedSampler", self, FIELDS, self.mutation, saved)
        self.generator.set_state(saved["generator"])

    # -------------------------------------------------------------------------------- what is told

    def standing(self) -> float:
        """Squared correlation of likelihoods before and after moves, by their ranks."""
        if np.ptp(self.before) == 0.0 or np.ptp(self.after) == 0.0:
            return 0.0
        return float(np.corrcoef(self.before, self.after)[0, 1]) ** 2

    def judge(self) -> None:
        """Warn of what makes the result doubtful."""
        if not len(self.ranks):
            return
        left, p = self.standing(), uniform_p_value(self.ranks)
        if left > STANDING:
            warn(
                "live points of NestedSampler stay where they were copied",
                f"moves that forget, a squared correlation of likelihoods below {STANDING}",
                f"{left:.2f} after {self.num_steps} transitions",
                f"give num_steps={4 * self.num_steps}",
            )
        if p < FALSE_ALARM:
            warn(
                "new points of NestedSampler do not come in evenly among the others",
                f"ranks that are uniform, a p value above {FALSE_ALARM:g}",
                f"{p:.2g} from {len(self.ranks)} points: a mode was lost, or moves are too few",
                f"give num_steps={4 * self.num_steps}, or more num_live_points",
            )


def _places(among: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Places of values among others, ties half-way, about the mean place."""
    order = np.sort(among)
    found = np.searchsorted(order, values) + np.searchsorted(order, values, side="right")
    return (found - found.mean()) / len(among)


def uniform_p_value(x: np.ndarray) -> float:
    """Return the p value of Kolmogorov's test that numbers are uniform on (0, 1)."""
    n, x = len(x), np.sort(x)
    steps = np.arange(n + 1) / n
    distance = max(float((steps[1:] - x).max()), float((x - steps[:-1]).max()))
    # The limit law at the distance that makes it right for few numbers, too (Stephens 1970).
    scaled = distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    terms = [(-1) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101)]
    return min(max(2.0 * sum(terms), 0.0), 1.0) if scaled > 0.3 else 1.0


def warn(subject: str, expected: str, got: str, fix: str) -> None:
    """Warn of a run of `NestedSampler`, at the line of the user's that made it."""
    warnings.warn_explicit(
        f"{subject}\n  expected: {expected}\n  got:      {got}\n  fix:      {fix}",
        NestedSamplingWarning,
        *(user_frame() or ("<unknown>", 0)),
    )
