"""`FilteredStates`: the particles of all times that a `ParticleFilter` returns, and paths of them.

References
----------
S. J. Godsill, A. Doucet, M. West, "Monte Carlo smoothing for nonlinear time series", JASA 99
(2004), for backward simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.of_series import Given, OfSeries
from probtorch.infer.sequential.weights import uniforms

if TYPE_CHECKING:
    from probtorch.infer.sequential.particle_filter import ParticleFilter

__all__ = ["FilteredStates", "choose"]

# Numbers in one evaluation of the transition density for smoothing: 32 MiB.
BLOCK_ELEMENTS = 2**22
# Draws that results are told by, unless asked for others: each goes back through all particles.
NUM_DRAWS = 200


@dataclass(frozen=True, eq=False, repr=False)
class FilteredStates(OfSeries):
    """The particles of all times, with weights and ancestors.

    Attributes
    ----------
    particles : ndarray, shape (times, particles, *event)
    log_weights : ndarray, shape (times, particles)
        After the observation of that time; the weights of a time sum to 1.
    ancestors : ndarray, shape (times, particles), int
        Which particle of the time before each one comes from; of the first time, its own number.
    log_evidence : float
        Estimate of the log marginal likelihood of all observations; its exponential is unbiased.
    log_evidence_error : float
        Its standard error by the families that are left; nan if they are fewer than 10, as they are
        after a long time: then see `ParticleFilter.evidence`.
    increments : ndarray, shape (times,)
        Log density of each observation given those before it.
    ess : ndarray, shape (times,)
        Effective number of particles after each observation.
    filter : ParticleFilter
    observations : ndarray, shape (times, *event of an observation)
    """

    particles: np.ndarray
    log_weights: np.ndarray
    ancestors: np.ndarray
    log_evidence: float
    log_evidence_error: float
    increments: np.ndarray
    ess: np.ndarray
    filter: ParticleFilter
    observations: np.ndarray | None = None
    _made: dict[object, SampledDraws] = field(default_factory=dict)

    def draws(self, num_draws: int = NUM_DRAWS, *, seed: int | Generator = 0) -> SampledDraws:
        """Return draws of all states given all observations, as one chain, by `smooth`.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator
            Where they are drawn from; an int gives the same draws every time.

        Returns
        -------
        SampledDraws
            ``states``, with the observations and their densities given these.
        """
        return self._drawn(num_draws, seed)

    def _states(self, num_draws: int, generator: Generator) -> np.ndarray:
        return self.smooth(num_draws, seed=generator)

    def _observation(self) -> Given:
        return self.filter.observation

    def _verdict(self, draws: SampledDraws) -> str:
        return f"At least {self.ess.min():.0f} of {self._size} particles are effective."

    def __repr__(self) -> str:
        times, count = self.log_weights.shape
        return (
            f"FilteredStates({times} times x {count} particles, log evidence "
            f"{self.log_evidence:.3f} +- {self.log_evidence_error:.2g}, at least "
            f"{self.ess.min():.0f} effective)"
        )

    @property
    def mean(self) -> np.ndarray:
        """Means of the states given the observations up to each time, shape (times, *event)."""
        return self._expected(self.particles)

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the states given the observations up to each time."""
        squares = (self.particles - self.mean[:, None]) ** 2
        return np.sqrt(self._expected(squares))

    def _expected(self, values: np.ndarray) -> np.ndarray:
        return np.einsum("tn,tn...->t...", np.exp(self.log_weights), values)

    def trajectories(
        self, num_draws: int = 100, *, seed: int | Generator | None = None
    ) -> np.ndarray:
        """Return draws of all states given all observations, by tracing ancestors back.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator, optional
            Where random numbers come from; that of the filter if None.

        Returns
        -------
        ndarray, shape (num_draws, times, *event)
            Far from the last time they have few different values; `smooth` has not that weakness.
        """
        count = checked_count("FilteredStates.trajectories", "num_draws", num_draws)
        rng = self.filter.generator(seed)
        last = np.broadcast_to(self.log_weights[-1], (count, self._size))
        index, rows = choose(last, rng), []
        for t in reversed(range(len(self.particles))):
            rows.append(self.particles[t, index])
            index = self.ancestors[t, index]
        return np.stack(rows[::-1], axis=1)

    def smooth(self, num_draws: int = 100, *, seed: int | Generator | None = None) -> np.ndarray:
        """Return draws of all states given all observations, by simulating backwards.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator, optional
            Where random numbers come from; that of the filter if None.

        Returns
        -------
        ndarray, shape (num_draws, times, *event)
            At each time a particle by its weight times the density of a transition to the next
            state of the draw [godsill2004]_. It costs ``times * num_draws * particles`` densities.
        """
        count = checked_count("FilteredStates.smooth", "num_draws", num_draws)
        rng = self.filter.generator(seed)
        last = np.broadcast_to(self.log_weights[-1], (count, self._size))
        now = self.particles[-1, choose(last, rng)]
        rows = [now]
        for t in reversed(range(len(self.particles) - 1)):
            log_weights = np.empty((count, self._size))
            block = max(1, BLOCK_ELEMENTS // max(1, self.particles[t].size))
            for i in range(0, count, block):
                part = slice(i, i + block)
                to = self.filter.log_transition(self.particles[t], now[part], t + 1)
                log_weights[part] = self.log_weights[t] + to
            now = self.particles[t, choose(log_weights, rng)]
            rows.append(now)
        return np.stack(rows[::-1], axis=1)

    @property
    def _size(self) -> int:
        return self.log_weights.shape[1]


def choose(log_weights: np.ndarray, rng: Generator) -> np.ndarray:
    """Return one index per row of log weights (m, n), each by its row's weights."""
    largest = log_weights.max(axis=1, keepdims=True)
    edges = np.cumsum(np.exp(log_weights - largest), axis=1)
    points = uniforms(rng, len(edges))[:, None] * edges[:, -1:]
    return np.minimum((edges <= points).sum(axis=1), log_weights.shape[1] - 1)


explain_calls(globals())
