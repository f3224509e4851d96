"""State space models with normal noise: hidden states, and what is seen of them.

Signatures are Pyro's. All is exact by the Kalman filter in `kalman.py`, missing values (nan) too;
`GammaGaussianHMM` is the same model with one unknown scale for all noise, which makes its values
Student distributed. Densities are loops over time, O(T).
"""

from __future__ import annotations

import math

from probtorch.core.rng import Generator, generator_for
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.distributions.distribution import Distribution, Independent
from probtorch.distributions.fields import Given
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.kalman import (
    Filtered,
    LinearGaussian,
    conditioned,
    kalman,
    marginals,
    smoothed,
)
from probtorch.distributions.linear_hmm import NAMES, LinearHMM
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import LowRankMultivariateNormal
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.movement import movedim, unsqueeze
from probtorch.ops.special import lgamma_difference
from probtorch.tensor import Tensor

__all__ = ["GammaGaussianHMM", "GaussianHMM", "check_normal"]


class GaussianHMM(LinearHMM):
    """A linear state space model with normal noise: density, filter and smoother are exact.

    Values that are nan are missing: they are summed out, each element for itself.

    Density ``f(x) = integral(initial_dist(z[0]) * prod(transition_dist(z[t + 1] - transpose(A) @
    z[t]) * observation_dist(x[t] - transpose(H) @ z[t + 1]) for t in range(n)) for z in states(n +
    1))`` with ``n = len(x)`` and ``A = transition_matrix`` and ``H = observation_matrix``.

    There the integral is over all states.

    Parameters
    ----------
    initial_dist : MultivariateNormal or Normal(...).to_event(1), event shape (h,)
        Of the state before the first step.
    transition_matrix : Tensor, shape (..., h, h) or (..., steps or 1, h, h)
        Rows are old states, columns new ones: z @ transition_matrix + noise.
    transition_dist : as initial_dist, batch shape () or (..., steps or 1)
        Noise of the states.
    observation_matrix : Tensor, shape (..., h, n) or (..., steps or 1, h, n)
    observation_dist : as initial_dist, event shape (n,), batch shape () or (..., steps or 1)
        Noise of the values.
    validate_args : bool, optional
    duration : int, optional
        Number of steps, for draws where no parameter has a time dim.

    Raises
    ------
    ArgumentError
        If noise is not normal.
    ShapeError
        If the parameters do not agree in sizes or steps.

    Notes
    -----
    The signature is Pyro's. Costs O(steps (h^3 + n^3)).
    """

    _may_miss = True

    def __init__(
        self,
        initial_dist: Distribution,
        transition_matrix: Given,
        transition_dist: Distribution,
        observation_matrix: Given,
        observation_dist: Distribution,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        for d in (initial_dist, transition_dist, observation_dist):
            check_normal("GaussianHMM", d)
        super().__init__(
            initial_dist,
            transition_matrix,
            transition_dist,
            observation_matrix,
            observation_dist,
            validate_args,
            duration,
        )

    def filter(self, value: TensorLike) -> MultivariateNormal:
        """Return the distribution of the last state, given all values.

        Parameters
        ----------
        value : Tensor, shape (..., steps, n), nan where missing

        Returns
        -------
        MultivariateNormal, event shape (h,)
            It can be the `initial_dist` of a model of what comes after.
        """
        found = kalman(self._model(), self._as_sequence(value))
        return MultivariateNormal(found.loc, scale_tril=cholesky(found.cov))

    def smooth(self, value: TensorLike) -> MultivariateNormal:
        """Return the distribution of the state at each step, given all values.

        Parameters
        ----------
        value : Tensor, shape (..., steps, n), nan where missing

        Returns
        -------
        MultivariateNormal, batch shape (..., steps), event shape (h,)
        """
        loc, cov = smoothed(self._model(), self._as_sequence(value))
        return MultivariateNormal(loc, scale_tril=cholesky(cov))

    def rsample_posterior(
        self,
        value: TensorLike,
        sample_shape: SizeLike = (),
        generator: Generator | None = None,
    ) -> Tensor:
        """Draw the states of all steps, given all values.

        Parameters
        ----------
        value : Tensor, shape (..., steps, n), nan where missing
        sample_shape : tuple of int
        generator : Generator, optional
            The default generator if None.

        Returns
        -------
        Tensor, shape ``sample_shape + batch_shape + (steps, h)``
            With gradients in parameters and values.
        """
        x = self._as_sequence(value)
        batch = broadcast_shapes(x.array.shape[:-2], tuple(self._batch_shape), op="GaussianHMM")
        draws = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        dtype = x.array.dtype
        rng = Source(generator_for(generator), dtype, self._device)
        noise = rng.normal((*draws, *batch, x.array.shape[-2], self.hidden_dim))
        return conditioned(self._model(), x, noise)

    def prefix_condition(self, data: TensorLike) -> GaussianHMM:
        """Return the distribution of the remaining steps, given the first ones.

        Parameters
        ----------
        data : Tensor, shape (..., t, n), nan where missing
            Values of the first t steps, fewer than the duration.

        Returns
        -------
        GaussianHMM, event shape (duration - t, n)
        """
        self._needs_duration("prefix_condition")
        data = self._as_value(data)
        count, t = self._event_shape[0], data.array.shape[-2] if data.array.ndim > 1 else 0
        if not 0 < t < count:
            raise ShapeError(
                "GaussianHMM.prefix_condition",
                expected=f"data of shape (..., t, {self.obs_dim}), t below {count}",
                got=f"shape {tuple(data.array.shape)}",
                fix="give the values of the first steps, and leave some to come",
            )
        model = self._model()
        first = {name: _cut(getattr(model, name), k, slice(None, t)) for name, k in _DIMS}
        rest = {name: _cut(getattr(model, name), k, slice(t, None)) for name, k in _DIMS}
        found = kalman(LinearGaussian(model.loc, model.cov, **first), data)
        normal = MultivariateNormal
        return GaussianHMM(
            normal(found.loc, scale_tril=cholesky(found.cov)),
            rest["F"],
            normal(rest["c"], rest["Q"], validate_args=False),
            rest["H"],
            normal(rest["d"], rest["R"], validate_args=False),
            duration=count - t,
        )

    def _mean(self) -> Tensor:
        self._needs_duration("mean")
        return marginals(self._model(), self._event_shape[0])[0]

    def _variance(self) -> Tensor:
        self._needs_duration("variance")
        return marginals(self._model(), self._event_shape[0])[1]


_DIMS = (("F", 2), ("c", 1), ("Q", 2), ("H", 2), ("d", 1), ("R", 2))


def _cut(x: Tensor, event_dim: int, part: slice) -> Tensor:
    """Return some steps of a parameter, all of one that all steps share."""
    at = x.array.ndim - event_dim - 1
    if at < 0 or x.array.shape[at] == 1:
        return x
    return movedim(movedim(x, at, 0)[part], 0, at)


def check_normal(owner: str, d: object) -> None:
    """Raise ArgumentError unless a distribution is a normal one of vectors."""
    normal = (MultivariateNormal, LowRankMultivariateNormal)
    numbers = isinstance(d, Independent) and isinstance(d.base_dist, Normal)
    if not (isinstance(d, normal) or numbers):
        raise ArgumentError(
            owner,
            expected="noise that is MultivariateNormal or Normal(...).to_event(1)",
            got=type(d).__name__,
            fix="take LinearHMM for other noise, which has draws but no density",
        )


class GammaGaussianHMM(LinearHMM):
    """A linear state space model whose noise has one unknown scale: Student distributed values.

    A precision s is drawn once from `scale_dist`; it multiplies those of all noise.

    Density ``f(x) = integral(scale_dist(s) * g(x, s) for s in between(0, inf))``.

    There g(x, s) is the density of the `GaussianHMM` whose noise has its covariances divided by s.

    Parameters
    ----------
    scale_dist : Gamma
        Of s.
    initial_dist, transition_dist, observation_dist : Distribution
        As of `GaussianHMM`, for s = 1.
    transition_matrix, observation_matrix : Tensor
        As of `GaussianHMM`.
    validate_args : bool, optional
    duration : int, optional
        Number of steps, for draws where no parameter has a time dim.

    Raises
    ------
    ArgumentError
        If `scale_dist` is no Gamma, or noise is not normal.
    ShapeError
        If the parameters do not agree in sizes or steps.

    Notes
    -----
    The signature is Pyro's. The filter does not depend on s, so s is integrated out at its end
    (Tronarp, Karvonen and Särkkä 2019). With Gamma(df / 2, df / 2) the values are jointly Student
    distributed with df degrees of freedom.
    """

    _may_miss = True
    _parts = ("scale_dist", *NAMES)
    scale_dist: Gamma

    def __init__(
        self,
        scale_dist: Gamma,
        initial_dist: Distribution,
        transition_matrix: Given,
        transition_dist: Distribution,
        observation_matrix: Given,
        observation_dist: Distribution,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        if not isinstance(scale_dist, Gamma):
            raise ArgumentError(
                "GammaGaussianHMM",
                expected="a Gamma as scale_dist",
                got=type(scale_dist).__name__,
                fix="pass Gamma(df / 2, df / 2) for Student noise with df degrees of freedom",
            )
        for d in (initial_dist, transition_dist, observation_dist):
            check_normal("GammaGaussianHMM", d)
        self._take(
            scale_dist=scale_dist,
            initial_dist=initial_dist,
            transition_matrix=transition_matrix,
            transition_dist=transition_dist,
            observation_matrix=observation_matrix,
            observation_dist=observation_dist,
        )
        self._arrange(duration, validate_args, tuple(scale_dist._batch_shape))

    def _of_seen(self, found: Filtered) -> Tensor:
        a, b = self.scale_dist.concentration, self.scale_dist.rate
        half = found.seen * 0.5
        constant = lgamma_difference(a, half) - half * log(b) - found.half_log_det
        return constant - found.seen * HALF_LOG_2PI - (a + half) * log1p(found.square * 0.5 / b)

    def filter(self, value: TensorLike) -> tuple[Gamma, MultivariateNormal]:
        """Return the distributions of the scale, and of the last state for s = 1.

        Parameters
        ----------
        value : Tensor, shape (..., steps, n), nan where missing

        Returns
        -------
        scale : Gamma
        state : MultivariateNormal, event shape (h,)
        """
        found = kalman(self._model(), self._as_sequence(value))
        a = self.scale_dist.concentration + found.seen * 0.5
        b = self.scale_dist.rate + found.square * 0.5
        return Gamma(a, b), MultivariateNormal(found.loc, scale_tril=cholesky(found.cov))

    def _spread(self, rng: Source, batch: Shape) -> Tensor:
        a, b = self.scale_dist.concentration, self.scale_dist.rate
        return exp((log(b) - rng.log_gamma(a, batch)) * 0.5)

    def _mean(self) -> Tensor:
        self._needs_duration("mean")
        a = self._over_event(self.scale_dist.concentration)
        return where(a > 0.5, marginals(self._model(), self._event_shape[0])[0], math.nan)

    def _variance(self) -> Tensor:
        self._needs_duration("variance")
        a, b = (self._over_event(x) for x in (self.scale_dist.concentration, self.scale_dist.rate))
        unit = marginals(self._model(), self._event_shape[0])[1]
        size = where(a > 1.0, b / (where(a > 1.0, a, 2.0) - 1.0), math.inf)
        return unit * where(a > 0.5, size, math.nan)

    def _over_event(self, x: Tensor) -> Tensor:
        return unsqueeze(unsqueeze(x, -1), -1)


explain_calls(globals())
