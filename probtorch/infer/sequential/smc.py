"""`SMC`: particles that go from the prior to the posterior by temperatures, with the evidence.

Particles are drawn from the prior. Each stage raises the temperature by so much that a given share
of them is left in effective number, weights and resamples them, fits the kernel to them and moves
them by it (mutation.py). The product of the mean weights estimates the evidence. The path is in
tempering.py, the resampling in weights.py.

With `waste_free` few particles are resampled and moved for long, and all places that they come by
are particles of the next stage.

References
----------
N. Chopin, "A sequential particle filter method for static models", Biometrika 89 (2002). P. Del
Moral, A. Doucet, A. Jasra, "Sequential Monte Carlo samplers", JRSS B 68 (2006). A. Jasra, D. A.
Stephens, A. Doucet, T. Tsagaris, "Inference for Levy-driven stochastic volatility models via
adaptive sequential Monte Carlo", Scandinavian Journal of Statistics 38 (2011), for temperatures by
the effective number. H.-D. Dau, N. Chopin, "Waste-free sequential Monte Carlo", JRSS B 84 (2022).
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.diagnostics.checks import InferenceWarning
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, InferenceError, user_frame
from probtorch.infer.forgotten import warn_of_no_data
from probtorch.infer.mcmc.kernel import Kernel, checked
from probtorch.infer.mcmc.pilot import in_form
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.mutation import Moved, Mutation
from probtorch.infer.sequential.tempering import TemperedPath
from probtorch.infer.sequential.weights import (
    ancestors,
    checked_resampling,
    effective_size,
    family_error,
    log_mean,
    normalised,
)

__all__ = ["SMC", "SMCDraws", "SMCWarning"]

# Transitions of a stage are doubled until, over coordinates, the mean squared correlation of where
# particles stand with where they stood is this small (what chance makes of it aside), or until
# there are so many of them.
FORGOTTEN, MOST_STEPS = 0.05, 512
# A squared correlation above which particles have not got away; fewer families than this say little
# of the error.
STANDING, FEW_FAMILIES = 0.25, 10
# Length of the chains of waste-free SMC, unless told.
CHAIN_LENGTH = 20
# Halvings in the search for a temperature; stages before a path counts as endless.
HALVINGS, MOST_STAGES = 60, 1000


class SMCWarning(InferenceWarning):
    """Particles that hardly move, or have too few ancestors."""


@dataclass(frozen=True, eq=False, repr=False)
class SMCDraws(SampledDraws):
    """The particles at the end, equal in weight, as one chain; and what their way told.

    All of the latter is in `attrs`, so it is saved with the draws.
    """

    @property
    def log_evidence(self) -> float:
        """Estimate of the log marginal likelihood."""
        return float(self.attrs["log_evidence"])

    @property
    def log_evidence_error(self) -> float:
        """Its standard error; nan where all particles have one ancestor."""
        return float(self.attrs["log_evidence_error"])

    @property
    def temperatures(self) -> list[float]:
        """Those that were gone through, the last one 1."""
        return list(self.attrs["temperatures"])

    @property
    def num_steps(self) -> list[int]:
        """Transitions of each particle at each temperature."""
        return list(self.attrs["num_steps"])


class SMC:
    """Tempered sequential Monte Carlo with any kernel: draws, and the marginal likelihood.

    Where chains stay in one mode, particles from the prior find several; and the evidence comes
    with its error. It costs more gradients than `NUTS` for one mode.

    Parameters
    ----------
    kernel : Kernel
        Moves the particles: ``SMC(NUTS(model))``. Its step size and metric are learnt from the
        particles at each temperature.
    num_particles : int
    num_steps : int, optional
        Transitions of each particle at each temperature; by default as many as it takes for
        particles to forget where they stood. With `waste_free`, the length of the chains (20).
    ess_threshold : float, in (0, 1)
        Share of the particles that each next temperature leaves in effective number.
    temperatures : sequence of float, optional
        Those to go through instead, ascending, the last one 1.
    waste_free : bool
        Resample ``num_particles / num_steps`` particles, and keep all places they come by
        [dau2022]_.
    resampling : {"systematic", "stratified", "multinomial", "residual"}
    reference : Distribution, optional
        Where to begin instead of the prior, a distribution of the unconstrained vector; needed for
        a density that is no model.
    num_threads : int, optional
        As many as there are processors. The draws do not depend on it.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    Raises
    ------
    ArgumentError
        If a setting is out of its range, or the kernel moves ensembles or needs a chain of its own.

    References
    ----------
    [delmoral2006]_, [chopin2002]_, [jasra2011]_, [dau2022]_, and [chan2013]_ for the error.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SMC, RandomWalk
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> draws = SMC(RandomWalk(coin), num_particles=500, seed=0).run(y)
    >>> bool(abs(draws.log_evidence - np.log(1 / 20)) < 4 * draws.log_evidence_error)
    True
    >>> draws["p"].shape
    (1, 500)
    """

    @explained("SMC", meant={"draws": "num_particles", "num_samples": "num_particles"})
    def __init__(
        self,
        kernel: Kernel,
        num_particles: int = 1000,
        *,
        num_steps: int | None = None,
        ess_threshold: float = 0.5,
        temperatures: Sequence[float] | None = None,
        waste_free: bool = False,
        resampling: str = "systematic",
        reference: Distribution | None = None,
        num_threads: int | None = None,
        seed: int | Generator | None = None,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise ArgumentError(
                "SMC(kernel)",
                expected="a kernel such as NUTS(model)",
                got=type(kernel).__name__,
                fix="wrap the model: SMC(NUTS(model), num_particles=1000)",
            )
        if kernel.members:
            raise ArgumentError(
                "SMC(kernel)",
                expected="a kernel whose state is one point",
                got=f"{kernel.name}, whose state is {kernel.members} points",
                fix="use NUTS, MALA or RandomWalk: the particles are an ensemble already",
            )
        if not kernel.moves_particles:
            raise ArgumentError(
                "SMC(kernel)",
                expected="a kernel that leaves each density between prior and posterior as it is "
                "from its first step on",
                got=f"{kernel.name}, which does not",
                fix="use NUTS, MALA, RandomWalk or another that does",
            )
        self.kernel = kernel
        self.num_particles = checked_count("SMC", "num_particles", num_particles, 2)
        self.waste_free = bool(waste_free)
        if num_steps is None:
            self.num_steps = CHAIN_LENGTH if waste_free else None
        else:
            self.num_steps = checked_count("SMC", "num_steps", num_steps, 1 + self.waste_free)
        if self.waste_free and (
            self.num_particles % (self.num_steps or 1)
            or self.num_particles < 4 * (self.num_steps or 1)
        ):
            raise ArgumentError(
                "SMC(waste_free=True)",
                expected=f"num_particles a multiple of num_steps={self.num_steps}, at least 4 "
                "times as large",
                got=f"num_particles={self.num_particles}",
                fix=f"write num_particles={50 * (self.num_steps or 1)}",
            )
        self.ess_threshold = checked("SMC", "ess_threshold", ess_threshold, 0.0, 1.0)
        self.temperatures = None if temperatures is None else _ladder(temperatures)
        self.resampling = checked_resampling("SMC", resampling)
        self.reference = reference
        self.num_threads = (
            os.cpu_count() or 1
            if num_threads is None
            else checked_count("SMC", "num_threads", num_threads)
        )
        self._generator = seed if isinstance(seed, Generator) or seed is None else Generator(seed)

    def __repr__(self) -> str:
        return f"SMC({self.kernel!r}, num_particles={self.num_particles})"

    def run(self, *args: object, **kwargs: object) -> SMCDraws:
        """Go from the prior to the posterior, given the arguments of the model.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.

        Returns
        -------
        SMCDraws
            `sample_stats` has ``lp``; neighbours among the draws have common ancestors.

        Raises
        ------
        InferenceError
            If no particle has any weight, or the log likelihood is infinite.

        Warns
        -----
        SMCWarning
            If particles did not get away from where they stood, or come from too few ancestors.
        """
        began = time.perf_counter()
        kernel, _ = in_form(self.kernel, args, kwargs, shown=False)
        example = None
        if kernel.model is None and self.reference is not None:
            example = np.zeros(tuple(self.reference.event_shape))
        target = kernel.target(args, kwargs, example)
        if isinstance(target, ModelTarget):
            warn_of_no_data(target.without_data, target.array_arguments)
        path = TemperedPath(target, self.reference)
        root = self._generator or default_generator
        start, resampling, moves = root.spawn(3)
        mutation = Mutation(kernel, path, moves, self.num_threads)
        positions = path.draws(self.num_particles, start)
        course = _Course(self, target, mutation, resampling, positions)
        while course.temperature < 1.0:
            course.advance()
        course.judge()
        draws = make_draws(
            target, course.positions[None], {"lp": course.logdensity[None]},
            {**kernel.attrs(), **course.attrs(), "sampling_time": time.perf_counter() - began},
        )  # fmt: skip
        return SMCDraws(**vars(draws))


class _Course:
    """The particles of one run, and what is known of their way so far."""

    def __init__(
        self,
        smc: SMC,
        target: Target,
        mutation: Mutation,
        generator: Generator,
        positions: np.ndarray,
    ) -> None:
        self.smc, self.target, self.mutation, self.generator = smc, target, mutation, generator
        self.positions = positions
        self.ratios = mutation.ratios(positions)
        self.logdensity = np.empty(0)
        self.temperature, self.log_evidence = 0.0, 0.0
        self.temperatures: list[float] = []
        self.steps: list[int] = []
        self.acceptance: list[float] = []
        self.settings: list[dict[str, float]] = []
        self.standing: list[float] = []  # correlations with where particles stood
        # Waste-free particles come in chains, others one by one: it is chains that are independent
        # given their parents. Which of the first ones each descends from.
        self.length = (smc.num_steps or 1) if smc.waste_free else 1
        self.family = np.arange(len(positions) // self.length)
        self.error = math.nan

    def advance(self) -> None:
        """Go on to the next temperature."""
        smc = self.smc
        self._check_ratios()
        temperature = self._next()
        log_weights = (temperature - self.temperature) * self.ratios
        self.log_evidence += log_mean(log_weights)[0]
        weights = normalised(log_weights)
        self.error = family_error(weights.reshape(-1, self.length).sum(axis=1), self.family)
        parents = ancestors(weights, len(self.family), self.generator, smc.resampling)
        self.positions = self.positions[parents]
        self.family = self.family[parents // self.length]
        self.temperature = temperature
        self.temperatures.append(temperature)
        self.mutation.fit(self.target, self.positions, temperature)
        self._move()
        self.settings.append(self.mutation.settings)

    def _check_ratios(self) -> None:
        """Refuse log likelihoods that make no weights."""
        largest = self.ratios.max()
        if not np.isfinite(largest) or np.isnan(self.ratios).any():
            raise InferenceError(
                f"SMC on {self.target.name}: the log likelihood at {len(self.ratios)} particles",
                expected="finite numbers, at least one",
                got=f"a largest one of {largest}",
                fix="look for a density that is not finite"
                if largest > 0.0 or np.isnan(largest)
                else "no draw of the prior can have made the data: look at priors and data",
            )

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
        # Those without any weight are lost at any temperature.
        wanted = smc.ess_threshold * np.isfinite(self.ratios).sum()
        rest = 1.0 - now
        if effective_size(rest * self.ratios) >= wanted:
            return 1.0
        # By halves of the logs: the first step from a wide prior may be tiny.
        low, high = -700.0, math.log(rest)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            if effective_size(math.exp(middle) * self.ratios) >= wanted:
                low = middle
            else:
                high = middle
        return max(now + math.exp(low), math.nextafter(now, 2.0))

    def _move(self) -> None:
        """Move the particles at the present temperature."""
        smc, mutation, now = self.smc, self.mutation, self.temperature
        before = self.positions
        if smc.waste_free:
            moved = mutation.move(before, now, self.length - 1, keep=self.length)
            ends = moved.positions.array[:, -1]
            self._settle(moved, self.length - 1)
            self.standing.append(_correlation(before, ends))
            return
        taken, block = 0, smc.num_steps or 1
        accept = 0.0
        while True:
            moved = mutation.move(self.positions, now, block)
            accept += float(moved.accept.array.sum())
            self.positions = moved.positions.array[:, -1]
            taken += block
            left = _correlation(before, self.positions)
            if smc.num_steps is not None or left <= FORGOTTEN or taken >= MOST_STEPS:
                break
            block = taken  # doubles the transitions
        self._settle(moved, taken, accept)
        self.standing.append(left)

    def _settle(self, moved: Moved, steps: int, accept: float | None = None) -> None:
        dim = self.target.dim
        self.positions = moved.positions.array.reshape(-1, dim)
        self.ratios = moved.ratios.array.reshape(-1)
        self.logdensity = moved.logdensity.array.reshape(-1)
        total = float(moved.accept.array.sum()) if accept is None else accept
        self.steps.append(steps)
        self.acceptance.append(total / (steps * len(moved.accept.array)))

    def attrs(self) -> dict[str, object]:
        """What results should carry."""
        return {
            "inference_library": "probtorch",
            "inference_method": "SMC",
            "log_evidence": self.log_evidence,
            "log_evidence_error": self.error,
            "temperatures": self.temperatures,
            "num_steps": self.steps,
            "acceptance_rates": self.acceptance,
            "tuned": self.settings,
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


def _correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Mean over coordinates of the squared correlation, less what chance makes of it."""
    one, other = before - before.mean(axis=0), after - after.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = (one * other).sum(axis=0) ** 2 / ((one**2).sum(axis=0) * (other**2).sum(axis=0))
    # A coordinate that all particles agree on has not moved.
    squares = np.where(np.isfinite(squares), squares, 1.0)
    return float(squares.mean()) - 1.0 / len(before)


def _ladder(temperatures: Sequence[float]) -> list[float]:
    """Temperatures as they have to be."""
    try:
        steps = [float(t) for t in temperatures]
    except (TypeError, ValueError):
        steps = []
    if not steps or steps[-1] != 1.0 or any(b <= a for a, b in zip([0.0, *steps], steps)):
        raise ArgumentError(
            "SMC(temperatures=...)",
            expected="ascending numbers in (0, 1], the last one 1",
            got=f"{temperatures!r:.60}",
            fix="leave it out: temperatures are chosen by ess_threshold",
        )
    return steps


def _warn(subject: str, expected: str, got: str, fix: str) -> None:
    warnings.warn_explicit(
        f"{subject}\n  expected: {expected}\n  got:      {got}\n  fix:      {fix}",
        SMCWarning,
        *(user_frame() or ("<unknown>", 0)),
    )


explain_calls(globals())
