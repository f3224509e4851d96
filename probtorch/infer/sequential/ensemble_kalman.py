"""`EnsembleKalmanFilter`: states of a series followed by an ensemble that stands for a Gaussian.

The model is that of `ParticleFilter`: functions of all members at once. Members are moved by the
transition; an observation then shifts them, as the Kalman filter with the ensemble's own
covariances would. Nobody is weighted or resampled, so a few dozen members follow states of
thousands of numbers; what is not linear and Gaussian is followed as if it were.

- "stochastic": each member is compared with an observation that has noise of its own, and moves
  towards it by the gain.
- "etkf", the ensemble transform: the mean moves by the gain, and deviations from it are multiplied
  by a symmetric root, so that their covariance is exactly that of the Kalman filter. There is no
  noise but that of the transition.

References
----------
G. Evensen, "Sequential data assimilation with a nonlinear quasi-geostrophic model using Monte Carlo
methods to forecast error statistics", Journal of Geophysical Research 99 (1994). G. Burgers, P. J.
van Leeuwen, G. Evensen, "Analysis scheme in the ensemble Kalman filter", Monthly Weather Review 126
(1998), for the noise of observations. C. H. Bishop, B. J. Etherton, S. J. Majumdar, "Adaptive
sampling with the ensemble transform Kalman filter", Monthly Weather Review 129 (2001). B. R. Hunt,
E. J. Kostelich, I. Szunyogh, "Efficient data assimilation for spatiotemporal chaos", Physica D 230
(2007), for the symmetric root.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import linalg, special

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.arguments import choice_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.mcmc.kernel import checked
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.of_series import Given, OfSeries
from probtorch.infer.sequential.weights import ancestors, uniforms

__all__ = ["EnsembleKalmanFilter", "EnsembleStates"]

METHODS = ("stochastic", "etkf")


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleStates(OfSeries):
    """The members of all times.

    Attributes
    ----------
    members : ndarray, shape (times, members, *event)
        After the observation of that time.
    forecast : ndarray, shape (times, members, *event)
        Before it.
    log_evidence : float
        Log density of all observations, each Gaussian given those before it: exact for linear
        Gaussian models as members become many.
    increments : ndarray, shape (times,)
        Of each observation; 0 where it is missing.
    observations : ndarray, shape (times, *event of an observation)
    filter : EnsembleKalmanFilter or None
        Not kept by pickle.
    """

    members: np.ndarray
    forecast: np.ndarray
    log_evidence: float
    increments: np.ndarray
    observations: np.ndarray | None = None
    filter: EnsembleKalmanFilter | None = None
    _made: dict[object, SampledDraws] = field(default_factory=dict)

    def draws(self, num_draws: int | None = None, *, seed: int | Generator = 0) -> SampledDraws:
        """Return the members as one chain: at each time given the observations up to it.

        Parameters
        ----------
        num_draws : int, optional
            Of the members, evenly; all of them by default.
        seed : int or Generator
            Where the choice is drawn from.

        Returns
        -------
        SampledDraws
            ``states``, with the observations and their densities given these. They are no paths
            given all observations: what comes later changes nothing in them.
        """
        return self._drawn(self.members.shape[1] if num_draws is None else num_draws, seed)

    def _states(self, num_draws: int, generator: Generator) -> np.ndarray:
        count = self.members.shape[1]
        rows = np.arange(count)
        if num_draws != count:
            rows = ancestors(np.full(count, 1.0 / count), num_draws, generator, "systematic")
        return np.moveaxis(self.members, 0, 1)[rows]

    def _observation(self) -> Given | None:
        return None if self.filter is None else self.filter.observation

    def _verdict(self, draws: SampledDraws) -> str:
        return "Members stand for Gaussians: exact for linear models with Gaussian noise."

    def __getstate__(self) -> dict[str, object]:
        return {**OfSeries.__getstate__(self), "filter": None}

    def __repr__(self) -> str:
        times, count = self.members.shape[:2]
        return (
            f"EnsembleStates({times} times x {count} members, log evidence {self.log_evidence:.3f})"
        )

    @property
    def mean(self) -> np.ndarray:
        """Means of the states given the observations up to each time, shape (times, *event)."""
        found: np.ndarray = self.members.mean(axis=1)
        return found

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the states given the observations up to each time."""
        found: np.ndarray = self.members.std(axis=1, ddof=1)
        return found


class EnsembleKalmanFilter:
    """An ensemble Kalman filter for a state-space model that is given by functions [evensen1994]_.

    Parameters
    ----------
    initial, transition
        As for `ParticleFilter`.
    observation : callable
        ``observation(states, t)``, that of the observation at time t: batch shape (members,). Its
        mean is what a member predicts, and its covariance, averaged over members, that of the
        noise.
    num_members : int
    method : {"etkf", "stochastic"}
        How members are shifted [bishop2001]_, [burgers1998]_.
    inflation : float, at least 1
        What deviations from the mean are multiplied by before each observation: small ensembles
        are too sure of themselves.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    Raises
    ------
    ArgumentError
        If a setting is out of its range.

    Notes
    -----
    Everything is computed in float64. Elements of observations that are nan are missing. Where
    states are not near Gaussian, `ParticleFilter` is right and this is not.

    References
    ----------
    [evensen1994]_, [burgers1998]_, [bishop2001]_, [hunt2007]_.

    Examples
    --------
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import EnsembleKalmanFilter
    >>> walk = EnsembleKalmanFilter(
    ...     dist.Normal(0.0, 1.0),
    ...     lambda x, t: dist.Normal(x, 1.0),
    ...     lambda x, t: dist.Normal(x, 0.5),
    ...     num_members=2000,
    ...     seed=0,
    ... )
    >>> found = walk.run([0.3, 1.1, 2.0])
    >>> bool(abs(found.log_evidence + 3.9105) < 0.1)
    True
    """

    @explained(
        "EnsembleKalmanFilter", meant={"emission": "observation", "num_particles": "num_members"}
    )
    def __init__(
        self,
        initial: Distribution | Callable[[], Distribution],
        transition: Given,
        observation: Given,
        num_members: int = 100,
        *,
        method: str = "etkf",
        inflation: float = 1.0,
        seed: int | Generator | None = None,
    ) -> None:
        name = "EnsembleKalmanFilter"
        for what, fn in (("transition", transition), ("observation", observation)):
            if not callable(fn) or isinstance(fn, Distribution):
                raise ArgumentError(
                    f"{name}({what})",
                    expected="a function that returns a distribution",
                    got=type(fn).__name__,
                    fix="write lambda states, t: dist.Normal(states, 1.0)",
                )
        self.initial, self.transition, self.observation = initial, transition, observation
        self.num_members = checked_count(name, "num_members", num_members, 2)
        self.method = choice_of(name, "method", method, METHODS)
        self.inflation = (
            1.0 if inflation == 1.0 else checked(name, "inflation", inflation, 1.0, 10.0)
        )
        self._generator = None if seed is None else generator_of(seed)

    def __repr__(self) -> str:
        return f"EnsembleKalmanFilter(num_members={self.num_members}, method={self.method!r})"

    def run(
        self, observations: TensorLike, *, seed: int | Generator | None = None
    ) -> EnsembleStates:
        """Filter a series.

        Parameters
        ----------
        observations : array_like, shape (times, *event of an observation)
        seed : int or Generator, optional
            In place of that of the constructor.

        Returns
        -------
        EnsembleStates

        Raises
        ------
        ShapeError
            If a distribution has not a row per member, or an observation another shape.
        InferenceError
            If members are not finite any more.
        """
        rng = generator_of(self._generator if seed is None else seed)
        with no_grad(), in_float64():
            y = to_host(lifted(as_value(observations, "observations")).array).astype(np.float64)
            if not y.ndim or not len(y):
                raise ShapeError(
                    "EnsembleKalmanFilter.run(observations)",
                    expected="at least one time along the first dim",
                    got=f"shape {y.shape}",
                    fix="pass an array of shape (times, ...)",
                )
            before, after, increments = [], [], []
            states: np.ndarray | None = None
            for t, seen in enumerate(y):
                states = self._moved(states, t, rng)
                before.append(states)
                states, gained = self._shifted(states, seen, t, rng)
                after.append(states)
                increments.append(gained)
        return EnsembleStates(
            np.stack(after), np.stack(before), float(np.sum(increments)), np.array(increments), y,
            self,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ the steps

    def _moved(self, states: np.ndarray | None, t: int, rng: Generator) -> np.ndarray:
        """Members at time t before its observation, shape (members, *event)."""
        if states is None:
            first = self.initial
            fn = first if isinstance(first, Distribution) else first()
            if tuple(fn.batch_shape):
                raise ShapeError(
                    "EnsembleKalmanFilter: initial",
                    expected="a distribution of batch shape () at time 0",
                    got=f"batch shape {tuple(fn.batch_shape)}",
                    fix="write .to_event(1) for a state that is a vector",
                )
            drawn = fn.sample((self.num_members,), generator=rng)
        else:
            drawn = self._rows(self.transition(wrap(states), t), "transition", t).sample(
                (), generator=rng
            )
        members = np.array(to_host(drawn.array), np.float64)
        if not np.isfinite(members).all():
            raise InferenceError(
                f"EnsembleKalmanFilter: members at time {t}",
                expected="finite numbers",
                got="some that are not",
                fix="look at the transition, and at an inflation that is too large",
            )
        if self.inflation != 1.0:
            mean = members.mean(axis=0)
            members = mean + self.inflation * (members - mean)
        return members

    def _rows(self, fn: Distribution, name: str, t: int) -> Distribution:
        """A distribution that has a row per member, or an error."""
        count = self.num_members
        if not tuple(fn.batch_shape):
            return fn.expand((count,))
        if tuple(fn.batch_shape) == (count,):
            return fn
        raise ShapeError(
            f"EnsembleKalmanFilter: {name} at time {t}",
            expected=f"batch shape ({count},), a row per member",
            got=f"batch shape {tuple(fn.batch_shape)}, event shape {tuple(fn.event_shape)}",
            fix="index states from the left, (members, ...), and write .to_event(1) for vectors",
        )

    def _predicted(self, states: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """What members predict, (members, size), and the noise's covariance, (size, size)."""
        fn = self._rows(self.observation(wrap(states), t), "observation", t)
        mean = to_host(fn.mean.array).reshape(self.num_members, -1)
        covariance = getattr(fn, "covariance_matrix", None)
        if covariance is not None:
            noise = to_host(covariance.array).reshape(-1, mean.shape[1], mean.shape[1]).mean(axis=0)
        else:
            noise = np.diag(to_host(fn.variance.array).reshape(-1, mean.shape[1]).mean(axis=0))
        return mean.astype(np.float64), noise.astype(np.float64)

    def _shifted(
        self, states: np.ndarray, y: np.ndarray, t: int, rng: Generator
    ) -> tuple[np.ndarray, float]:
        """Members after an observation, and the log density that it had."""
        predicted, noise = self._predicted(states, t)
        y = y.reshape(-1)
        if y.size != predicted.shape[1]:
            raise ShapeError(
                f"EnsembleKalmanFilter: the observation at time {t}",
                expected=f"{predicted.shape[1]} numbers, as the observation's distribution has",
                got=f"{y.size}",
                fix="give observations of shape (times, *event)",
            )
        there = ~np.isnan(y)
        if not there.any():
            return states, 0.0
        y, predicted, noise = y[there], predicted[:, there], noise[np.ix_(there, there)]
        flat = states.reshape(len(states), -1)
        mean, middle = flat.mean(axis=0), predicted.mean(axis=0)
        away, off = flat - mean, predicted - middle
        # Both in units in which the noise is standard normal.
        root = linalg.cholesky(noise, lower=True)
        scaled = linalg.solve_triangular(root, off.T, lower=True) / math.sqrt(len(flat) - 1)
        left, sizes, right = linalg.svd(scaled, full_matrices=False)
        gap = linalg.solve_triangular(root, y - middle, lower=True)
        along = left.T @ gap
        gained = -0.5 * (
            gap @ gap
            - along @ (sizes**2 / (1.0 + sizes**2) * along)
            + np.log1p(sizes**2).sum()
            + y.size * math.log(2.0 * math.pi)
        ) - float(np.log(np.diag(root)).sum())
        # The gain, for gaps in these units: deviations^T right^T s / (1 + s^2) left^T / root(n-1).
        pull = away.T @ right.T / math.sqrt(len(flat) - 1) * (sizes / (1.0 + sizes**2))
        if self.method == "stochastic":
            z = self._noise(rng, y.size)
            gaps = linalg.solve_triangular(root, (y - predicted).T, lower=True) + z
            new = flat + (pull @ (left.T @ gaps)).T
        else:
            shrunk = 1.0 / np.sqrt(1.0 + sizes**2) - 1.0
            turned = away + (right.T * shrunk) @ (right @ away)
            new = mean + pull @ along + turned
        return new.reshape(states.shape), float(gained)

    def _noise(self, rng: Generator, size: int) -> np.ndarray:
        """Standard normals, (size, members), whose mean over members is 0."""
        drawn = special.ndtri(uniforms(rng, size * self.num_members))
        z: np.ndarray = drawn.reshape(size, self.num_members)
        return z - z.mean(axis=1, keepdims=True)


explain_calls(globals())
