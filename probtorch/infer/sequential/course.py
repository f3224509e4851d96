"""The way of the particles of `SMC`, temperature by temperature: `Course`.

A stage chooses the next temperature, weights and resamples the particles, fits the kernel to them
and moves them, again and again until they have forgotten where they stood. All that the rest of the
way depends on is plain arrays at any moment, in the midst of a move too (`snapshot`), so that a run
that is killed goes on where it was.

References
----------
See smc.py.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.typed import Tree
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import InferenceError, user_frame
from probtorch.infer.sequential.moved_particles import ParticleRun
from probtorch.infer.sequential.moves import Moved, PartialMove
from probtorch.infer.sequential.saved_particles import put_back, taken_down
from probtorch.infer.sequential.weights import (
    ancestors,
    effective_size,
    family_error,
    log_mean,
    normalised,
)

if TYPE_CHECKING:
    from probtorch.infer.sequential.smc import SMC

__all__ = ["Course", "SMCWarning", "check_ratios", "next_temperature"]

# Transitions of a stage are doubled until, over coordinates, the mean squared correlation of where
# particles stand with where they stood is this small (what chance makes of it aside), or until
# there are so many of them.
FORGOTTEN, MOST_STEPS = 0.05, 512
# A squared correlation above which particles have not got away; fewer families than this say little
# of the error.
STANDING, FEW_FAMILIES = 0.25, 10
# Halvings in the search for a temperature; stages before a path counts as endless.
HALVINGS, MOST_STAGES = 60, 1000
# What a snapshot has of a course under the names of its attributes: numbers, lists and arrays.
FIELDS = (
    "positions", "ratios", "logdensity", "temperature", "log_evidence", "temperatures", "steps",
    "acceptance", "settings", "standing", "family", "error",
)  # fmt: skip


class SMCWarning(InferenceWarning):
    """Particles that hardly move, or have too few ancestors."""


class _Stopped(Exception):
    """The run is to end while particles are on their way."""


@dataclass
class _Moving:
    """The moves of a stage, as far as they have got.

    Attributes
    ----------
    before : ndarray, shape (particles, dim)
        Where the particles stood.
    taken, block : int
        Transitions of all, and those of the move at hand.
    accept : float
        Sum of acceptance probabilities.
    pieces : PartialMove or None
        The move at hand.
    """

    before: np.ndarray
    taken: int
    block: int
    accept: float = 0.0
    pieces: PartialMove | None = None


class Course:
    """The particles of one run, and what is known of their way so far.

    Parameters
    ----------
    smc : SMC
    run : ParticleRun
        Its streams are those of the first particles and of the resampling.
    """

    def __init__(self, smc: SMC, run: ParticleRun) -> None:
        self.smc, self.target, self.path, self.mutation = smc, run.target, run.path, run.mutation
        self._first, self.generator = run.streams
        self.saved, self.interrupt, self.progress = run.saved, run.interrupt, run.progress
        self.positions, self.ratios, self.logdensity = np.empty((0, 0)), np.empty(0), np.empty(0)
        self.temperature, self.log_evidence = 0.0, 0.0
        self.temperatures: list[float] = []
        self.steps: list[int] = []
        self.acceptance: list[float] = []
        self.settings: list[dict[str, float | list[float]]] = []
        self.standing: list[float] = []  # correlations with where particles stood
        # Waste-free particles come in chains, others one by one: it is chains that are independent
        # given their parents. Which of the first ones each descends from.
        self.length = (smc.num_steps or 1) if smc.waste_free else 1
        self.family = np.empty(0, np.int64)
        self.error = math.nan
        self._moving: _Moving | None = None
        self._settled: tuple[np.ndarray, np.ndarray, dict[str, object]] | None = None

    def start(self) -> None:
        """Begin at draws of the prior."""
        self.positions = positions = self.path.draws(self.smc.num_particles, self._first)
        self.ratios = self.mutation.ratios(positions)
        self.family = np.arange(len(positions) // self.length)

    def to_the_end(self) -> bool:
        """Go on to temperature 1; whether it was come to, and not Ctrl-C or the end of the time.

        Raises
        ------
        KeyboardInterrupt
            If Ctrl-C came before the first temperature.
        InferenceError
            If the time was up before it.
        """
        try:
            while self.temperature < 1.0 or self._moving is not None:
                self._look()
                self.advance()
            self.saved.update(self.snapshot, last=True)
        except _Stopped:
            self.saved.update(self.snapshot, last=True)
            if self._settled is None:
                raise self.interrupt.without("the first temperature") from None
            now = self.result()[2]["temperatures"]
            print(
                f"{self.interrupt.told}: keeping the particles of temperature {now[-1]:.3g}, which "  # type: ignore[index]  # it is a list
                "are draws of the density on the way and not of the posterior",
                file=sys.stderr,
                flush=True,
            )
            return False
        return True

    def result(self) -> tuple[np.ndarray, np.ndarray, dict[str, object]]:
        """Positions, log densities, and facts, at the last temperature that was come to."""
        if self._settled is None or self._moving is None:
            return self.positions, self.logdensity, self._facts()
        return self._settled

    @property
    def settled(self) -> bool:
        """Whether a temperature was come to."""
        return self._settled is not None

    def advance(self) -> None:
        """Go on to the next temperature, or end the stage that was begun."""
        if self._moving is None:
            self._begin_stage()
        self._move()
        self.settings.append(self.mutation.settings)
        self._moving = None
        self._settled = self.positions, self.logdensity, self._facts()

    def _begin_stage(self) -> None:
        """Choose the temperature, resample, and fit the kernel."""
        smc = self.smc
        check_ratios("SMC", self.target.name, self.ratios)
        temperature = self._next()
        log_weights = (temperature - self.temperature) * self.ratios
        self.log_evidence += log_mean(log_weights)[0]
        weights = normalised(log_weights)
        self.error = family_error(weights.reshape(-1, self.length).sum(axis=1), self.family)
        parents = ancestors(weights, len(self.family), self.generator, smc.resampling)
        self.positions = self.positions[parents]
        self.family = self.family[parents // self.length]
        self.temperature = temperature
        self.temperatures = [*self.temperatures, temperature]
        self.mutation.fit(self.target, self.positions, temperature)
        steps = self.length - 1 if smc.waste_free else smc.num_steps or 1
        self._moving = _Moving(self.positions, 0, steps)

    def _next(self) -> float:
        """The next temperature."""
        smc, now = self.smc, self.temperature
        if smc.temperatures is not None:
            return smc.temperatures[len(self.temperatures)]
        if len(self.temperatures) == MOST_STAGES:
            raise InferenceError(
                f"SMC on {self.target.name}",
                expected=f"an end after at most {MOST_STAGES} temperatures",
                got=f"temperature {now:.3g}",
                fix="the prior is far too wide for the data: give a reference",
            )
        return next_temperature(self.ratios, now, smc.ess_threshold)

    def _move(self) -> None:
        """Move the particles at the present temperature until they have forgotten, as is wanted."""
        smc, moving = self.smc, self._moving
        assert moving is not None
        keep = self.length if smc.waste_free else 1
        while True:
            if moving.pieces is None:
                moving.pieces = self.mutation.begun(len(self.positions), keep)
            moved = self.mutation.move(
                self.positions, self.temperature, moving.block, keep=keep, pieces=moving.pieces,
                look=self._look,
            )  # fmt: skip
            moving.accept += float(moved.accept.array.sum())
            moving.taken += moving.block
            moving.pieces = None
            ends = moved.positions.array[:, -1]
            parts = self.path.parts_of(moving.before)
            left = _correlation(moving.before, ends, parts, self.path.discrete)
            enough = left <= FORGOTTEN or moving.taken >= MOST_STEPS
            if smc.waste_free or smc.num_steps is not None or enough:
                break
            self.positions = ends
            moving.block = moving.taken  # doubles the transitions
        self._settle(moved, moving.taken, moving.accept)
        self.standing.append(left)

    def _settle(self, moved: Moved, steps: int, accept: float) -> None:
        self.positions = moved.positions.array.reshape(-1, self.target.dim)
        self.ratios = moved.ratios.array.reshape(-1)
        self.logdensity = moved.logdensity.array.reshape(-1)
        self.steps.append(steps)
        self.acceptance.append(accept / (steps * len(moved.accept.array)))

    def _look(self) -> None:
        """Write a checkpoint and show how far it is, if it is time; stop if that is asked for."""
        if self.interrupt.asked:
            raise _Stopped
        self.saved.update(self.snapshot)
        moving = self._moving
        done = 0.0 if moving is None or moving.pieces is None else moving.pieces.moved.mean()
        block = 0 if moving is None else moving.block
        self.progress.tell(
            f"temperature {self.temperature:.3g}, stage {len(self.temperatures)}, "
            f"{done:.0%} of {block} transitions",
            self.temperature,
        )

    # ------------------------------------------------------------------------------------- saving

    def snapshot(self) -> Tree:
        """Return all that the rest of the way depends on, as plain values."""
        moving = self._moving
        return {
            **taken_down(self, FIELDS, self.mutation),
            "generator": tuple(self.generator.get_state()),
            "moving": None
            if moving is None
            else {
                "before": moving.before,
                "taken": moving.taken,
                "block": moving.block,
                "accept": moving.accept,
                "pieces": None if moving.pieces is None else moving.pieces.snapshot(),
            },
            "settled": self._settled,
        }

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` returned in another process.

        Raises
        ------
        ArgumentError
            If it is of another model or of other data.
        """
        put_back("SMC", self, FIELDS, self.mutation, saved)
        self.generator.set_state(saved["generator"])
        moving = saved["moving"]
        if moving is not None:
            pieces = moving["pieces"]
            pieces = None if pieces is None else PartialMove.restored(pieces)
            self._moving = _Moving(**{**moving, "pieces": pieces})
        self._settled = None if saved["settled"] is None else tuple(saved["settled"])

    # -------------------------------------------------------------------------------- what is told

    def _facts(self) -> dict[str, object]:
        """What results should carry."""
        return {
            "inference_library": "probtorch",
            "inference_method": "SMC",
            "log_evidence": self.log_evidence,
            "log_evidence_error": self.error,
            "temperatures": list(self.temperatures),
            "num_steps": list(self.steps),
            "acceptance_rates": list(self.acceptance),
            "tuned": list(self.settings),
            "evaluations": self.mutation.evaluations,
            "waste_free": self.smc.waste_free,
            "families": int(np.unique(self.family).size),
        }

    def judge(self) -> None:
        """Warn of what makes the result doubtful."""
        worst = int(np.argmax(self.standing))
        if self.standing[worst] > STANDING:
            _warn(
                "particles of SMC stay where they were resampled",
                f"positions that forget where they stood, a squared correlation below {STANDING}",
                f"{self.standing[worst]:.2f} at temperature {self.temperatures[worst]:.3g}, after "
                f"{self.steps[worst]} transitions",
                "leave num_steps out, give more, or move them by NUTS",
            )
        families = np.unique(self.family).size
        if families < FEW_FAMILIES:
            _warn(
                f"all particles of SMC descend from {families} of the first ones",
                f"at least {FEW_FAMILIES} ancestors, which the error of the evidence is told by",
                f"{families}, after {len(self.temperatures)} stages",
                "take more particles, or a larger ess_threshold",
            )


def check_ratios(owner: str, name: str, ratios: np.ndarray) -> None:
    """Refuse log likelihoods that make no weights.

    Parameters
    ----------
    owner, name : str
        The engine and the target, for messages.
    ratios : ndarray, shape (particles,)

    Raises
    ------
    InferenceError
        If one is nan, or none is finite.
    """
    largest = np.max(ratios)
    if not np.isfinite(largest) or np.isnan(ratios).any():
        raise InferenceError(
            f"{owner} on {name}: the log likelihood at {len(ratios)} particles",
            expected="finite numbers, at least one",
            got=f"a largest one of {largest}",
            fix="look for a density that is not finite"
            if largest > 0.0 or np.isnan(largest)
            else "no draw of the prior can have made the data: look at priors and data",
        )


def next_temperature(ratios: np.ndarray, now: float, share: float) -> float:
    """Return the temperature, above `now`, that leaves a share of particles in effective number.

    Parameters
    ----------
    ratios : ndarray, shape (particles,)
        Log likelihoods.
    now, share : float
    """
    # Those without any weight are lost at any temperature.
    wanted = share * np.isfinite(ratios).sum()
    rest = 1.0 - now
    if effective_size(rest * ratios) >= wanted:
        return 1.0
    # By halves of the logs: the first step from a wide prior may be tiny.
    low, high = -700.0, math.log(rest)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if effective_size(math.exp(middle) * ratios) >= wanted:
            low = middle
        else:
            high = middle
    return max(now + math.exp(low), math.nextafter(now, 2.0))


def _correlation(
    before: np.ndarray, after: np.ndarray, parts: np.ndarray, discrete: np.ndarray
) -> float:
    """Mean over coordinates of the squared correlation, less what chance makes of it; of particles
    that stood in one part of a reference, since its parts may be modes that none can leave.
    """
    one, other = before.copy(), after.copy()
    for part in np.unique(parts):
        same = parts == part
        one[same] -= one[same].mean(axis=0)
        other[same] -= other[same].mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = (one * other).sum(axis=0) ** 2 / ((one**2).sum(axis=0) * (other**2).sum(axis=0))
    # A coordinate that all particles agree on has not moved, unless there is nothing else to be.
    squares = np.where(np.isfinite(squares), squares, np.where(discrete, 0.0, 1.0))
    return float(squares.mean()) - 1.0 / len(before)


def _warn(subject: str, expected: str, got: str, fix: str) -> None:
    warnings.warn_explicit(
        f"{subject}\n  expected: {expected}\n  got:      {got}\n  fix:      {fix}",
        SMCWarning,
        *(user_frame() or ("<unknown>", 0)),
    )
