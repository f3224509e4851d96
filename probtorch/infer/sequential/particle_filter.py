"""`ParticleFilter`: states of a series given by functions, filtered, smoothed, with the evidence.

A state-space model is three functions: of the first state, of the next state given one, and of an
observation given a state. They work on all particles at once, a batch dim in front. Particles are
weighted by each observation and resampled where their weights have become uneven; who descends from
whom is kept, so that trajectories can be traced back (`FilteredStates.trajectories`) or simulated
backwards through the transition density (`smooth`), which does not degenerate. A filter that is
given a trajectory keeps it among its particles and draws its ancestors anew: conditional sequential
Monte Carlo with ancestor sampling, which leaves the law of trajectories given the data invariant.

References
----------
N. J. Gordon, D. J. Salmond, A. F. M. Smith, "Novel approach to nonlinear/non-Gaussian Bayesian
state estimation", IEE Proceedings F 140 (1993). S. J. Godsill, A. Doucet, M. West, "Monte Carlo
smoothing for nonlinear time series", JASA 99 (2004), for backward simulation. F. Lindsten, M. I.
Jordan, T. B. Schon, "Particle Gibbs with ancestor sampling", JMLR 15 (2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.validation import validation_enabled
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.mcmc.kernel import checked
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.sequential.filtered_states import FilteredStates, choose
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.of_series import Given
from probtorch.infer.sequential.weights import (
    ancestors,
    checked_resampling,
    effective_size,
    family_error,
    log_mean,
    normalised,
)

__all__ = ["ParticleFilter"]

# Fewer families than this say nothing of the error of the evidence.
FEW_FAMILIES = 10


class ParticleFilter:
    """A particle filter for a state-space model that is given by functions [gordon1993]_.

    Parameters
    ----------
    initial : Distribution or callable
        The distribution of the first state, or ``initial()`` that returns it: batch shape (), any
        event shape.
    transition : callable
        ``transition(states, t)``, that of the states at time t given those at t - 1, of shape
        (particles, *event): batch shape (particles,).
    observation : callable
        ``observation(states, t)``, that of the observation at time t: batch shape (particles,).
    num_particles : int
    ess_threshold : float, in (0, 1]
        Particles are resampled before a time at whose start they have less than this share of their
        number in effective number; 1 resamples always.
    resampling : {"systematic", "stratified", "multinomial", "residual"}
    proposal : callable, optional
        ``proposal(states, y, t)``, what states at time t are drawn from in place of the transition;
        at time 0 states are None. Same batch and event shape; for the first, batch shape ().
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    Raises
    ------
    ArgumentError
        If a setting is out of its range.

    Notes
    -----
    Everything is computed in float64. Observations that are nan, wholly, are missing: they weigh
    nothing.

    References
    ----------
    [gordon1993]_, [godsill2004]_, [lindsten2014]_.

    Examples
    --------
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import ParticleFilter
    >>> walk = ParticleFilter(
    ...     dist.Normal(0.0, 1.0),
    ...     lambda x, t: dist.Normal(x, 1.0),
    ...     lambda x, t: dist.Normal(x, 0.5),
    ...     num_particles=2000,
    ...     seed=0,
    ... )
    >>> found = walk.run([0.3, 1.1, 2.0])
    >>> found.mean.shape, found.smooth(10).shape
    ((3,), (10, 3))
    >>> bool(abs(found.log_evidence + 3.9105) < 4 * found.log_evidence_error)
    True
    """

    @explained("ParticleFilter", meant={"emission": "observation", "n_particles": "num_particles"})
    def __init__(
        self,
        initial: Distribution | Callable[[], Distribution],
        transition: Given,
        observation: Given,
        num_particles: int = 1000,
        *,
        ess_threshold: float = 0.5,
        resampling: str = "systematic",
        proposal: Callable[[TensorBase | None, TensorBase, int], Distribution] | None = None,
        seed: int | Generator | None = None,
    ) -> None:
        for name, fn in (("transition", transition), ("observation", observation)):
            if not callable(fn) or isinstance(fn, Distribution):
                raise ArgumentError(
                    f"ParticleFilter({name})",
                    expected="a function that returns a distribution",
                    got=type(fn).__name__,
                    fix="write lambda states, t: dist.Normal(states, 1.0)",
                )
        self.initial, self.transition, self.observation = initial, transition, observation
        self.proposal = proposal
        self.num_particles = checked_count("ParticleFilter", "num_particles", num_particles, 2)
        self.ess_threshold = checked("ParticleFilter", "ess_threshold", ess_threshold, 0.0, 1.1)
        self.resampling = checked_resampling("ParticleFilter", resampling)
        self._generator = None if seed is None else generator_of(seed)

    def __repr__(self) -> str:
        return f"ParticleFilter(num_particles={self.num_particles})"

    def generator(self, seed: int | Generator | None = None) -> Generator:
        """Return where random numbers come from."""
        return generator_of(self._generator if seed is None else seed)

    def run(
        self,
        observations: TensorLike,
        trajectory: TensorLike | None = None,
        *,
        seed: int | Generator | None = None,
    ) -> FilteredStates:
        """Filter a series.

        Parameters
        ----------
        observations : array_like, shape (times, *event of an observation)
        trajectory : array_like, shape (times, *event of a state), optional
            States to keep among the particles: a draw of ``run(y, x).trajectories(1)[0]`` is then
            the next of a Markov chain whose law is that of the states given the observations
            [lindsten2014]_. Resampling is multinomial and at all times; the evidence is of no use.
        seed : int or Generator, optional
            In place of that of the constructor.

        Returns
        -------
        FilteredStates

        Raises
        ------
        ShapeError
            If a distribution has not a row per particle, or the trajectory not one per time.
        InferenceError
            If no particle has any weight, or a weight is nan.
        """
        rng = self.generator(seed)
        with no_grad(), in_float64():
            y = lifted(as_value(observations, "observations"))
            if not y.array.ndim or not y.array.shape[0]:
                raise ShapeError(
                    "ParticleFilter.run(observations)",
                    expected="at least one time along the first dim",
                    got=f"shape {tuple(y.array.shape)}",
                    fix="pass an array of shape (times, ...)",
                )
            kept = None
            if trajectory is not None:
                kept = to_host(lifted(as_value(trajectory, "trajectory")).array)
                if kept.shape[:1] != y.array.shape[:1]:
                    raise ShapeError(
                        "ParticleFilter.run(trajectory=...)",
                        expected=f"a state for each of {y.array.shape[0]} times",
                        got=f"shape {kept.shape}",
                        fix="pass a row of what trajectories() or smooth() returned",
                    )
            return self._filtered(y, kept, rng)

    def evidence(
        self, observations: TensorLike, num_runs: int = 10, *, seed: int | Generator | None = None
    ) -> tuple[float, float]:
        """Return the log marginal likelihood from several runs, and its standard error.

        Parameters
        ----------
        observations, seed
            As for `run`.
        num_runs : int
            At least 2; the error comes from their spread.

        Returns
        -------
        log_evidence, error : float
        """
        runs = checked_count("ParticleFilter.evidence", "num_runs", num_runs, 2)
        streams = self.generator(seed).spawn(runs)
        return log_mean(np.array([self.run(observations, seed=s).log_evidence for s in streams]))

    def log_transition(self, states: np.ndarray, following: np.ndarray, t: int) -> np.ndarray:
        """Return log densities of going from each of n states to each of m others at time t.

        Returns
        -------
        ndarray, shape (m, n)
        """
        with no_grad(), in_float64():
            fn = self._rows(self.transition(wrap(states), t), "transition", t)
            return to_host(fn.log_prob(wrap(following[:, None])).array)

    # ------------------------------------------------------------------------------------ the steps

    def _filtered(self, y: TensorBase, kept: np.ndarray | None, rng: Generator) -> FilteredStates:
        times, count = y.array.shape[0], self.num_particles
        equal = np.full(count, -math.log(count))
        log_weights, family = equal, np.arange(count)
        particles, weights, parents, increments, ess = [], [], [], [], []
        states: np.ndarray | None = None
        for t in range(times):
            chosen = np.arange(count)
            if states is not None and kept is not None:
                chosen = self._conditional(states, log_weights, kept[t], t, rng)
                log_weights = equal
            elif effective_size(log_weights) < self.ess_threshold * count:
                chosen = ancestors(normalised(log_weights), count, rng, self.resampling)
                log_weights = equal
            before = None if states is None else states[chosen]
            family = family[chosen]
            states, gained = self._step(before, y[t], t, kept, rng)
            total = self._total(log_weights + gained, t)
            log_weights = log_weights + gained - total
            particles.append(states)
            weights.append(log_weights)
            parents.append(chosen)
            increments.append(total)
            ess.append(effective_size(log_weights))
        error = math.nan
        if kept is None and np.unique(family).size >= FEW_FAMILIES:
            error = family_error(np.exp(log_weights), family)
        return FilteredStates(
            np.stack(particles),
            np.stack(weights),
            np.stack(parents),
            float(np.sum(increments)),
            error,
            np.array(increments),
            np.array(ess),
            self,
            to_host(y.array),
        )

    def _conditional(
        self, states: np.ndarray, log_weights: np.ndarray, kept: np.ndarray, t: int, rng: Generator
    ) -> np.ndarray:
        """Ancestors of all particles, the last of which goes to the state that is kept."""
        free = ancestors(normalised(log_weights), len(states) - 1, rng, "multinomial")
        to_kept = log_weights + self.log_transition(states, kept[None], t)[0]
        return np.append(free, choose(to_kept[None], rng))

    def _step(
        self,
        states: np.ndarray | None,
        y: TensorBase,
        t: int,
        kept: np.ndarray | None,
        rng: Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """States at time t, and what their log weights gain."""
        count = self.num_particles
        now = None if states is None else wrap(states)
        prior = self._prior(now, t)
        fn = prior
        if self.proposal is not None:
            fn = self.proposal(now, y, t)
            fn = self._single(fn, "proposal") if now is None else self._rows(fn, "proposal", t)
        drawn = fn.sample((count,) if now is None else (), generator=rng)
        new = to_host(drawn.array)
        if kept is not None:
            new = np.array(new)
            new[-1] = kept[t]
        x = wrap(new)
        gained = np.zeros(count)
        missing = y.array.dtype.kind == "f" and bool(np.isnan(to_host(y.array)).all())
        if not missing:
            # Particles that cannot have made it have no weight; who validates would refuse it.
            with validation_enabled(False):
                seen = self._rows(self.observation(x, t), "observation", t)
                gained = gained + to_host(seen.log_prob(y).array)
        if self.proposal is not None:
            gained = gained + to_host((prior.log_prob(x) - fn.log_prob(x)).array)
        return new, gained

    def _prior(self, states: TensorBase | None, t: int) -> Distribution:
        if states is None:
            first = self.initial
            return self._single(first if isinstance(first, Distribution) else first(), "initial")
        return self._rows(self.transition(states, t), "transition", t)

    def _single(self, fn: Distribution, name: str) -> Distribution:
        if tuple(fn.batch_shape):
            raise ShapeError(
                f"ParticleFilter: {name}",
                expected="a distribution of batch shape () at time 0",
                got=f"batch shape {tuple(fn.batch_shape)}",
                fix="write .to_event(1) for a state that is a vector",
            )
        return fn

    def _rows(self, fn: Distribution, name: str, t: int) -> Distribution:
        """A distribution that has a row per particle, or an error."""
        count = self.num_particles
        if tuple(fn.batch_shape) == (count,):
            return fn
        if not tuple(fn.batch_shape):
            return fn.expand((count,))
        raise ShapeError(
            f"ParticleFilter: {name} at time {t}",
            expected=f"batch shape ({count},), a row per particle",
            got=f"batch shape {tuple(fn.batch_shape)}, event shape {tuple(fn.event_shape)}",
            fix="index states from the left, (particles, ...), and write .to_event(1) for vectors",
        )

    def _total(self, log_weights: np.ndarray, t: int) -> float:
        """The log of the sum of weights, or an error where there are none."""
        largest = float(log_weights.max())
        if not math.isfinite(largest):
            raise InferenceError(
                f"ParticleFilter: weights at time {t}",
                expected="finite log weights, at least one",
                got=f"a largest one of {largest}",
                fix="no particle can have made this observation: use more particles, a proposal "
                "that sees it, or an observation with heavier tails"
                if largest < 0.0
                else "look for a density that is not finite",
            )
        return largest + math.log(float(np.exp(log_weights - largest).sum()))


explain_calls(globals())
