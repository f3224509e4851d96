"""Series of numbers that are seen as they are: autoregression, volatility, and sums of steps.

Given the values before it each value has a density of its own, so densities have no loop but for
the variance of GARCH, which is a linear recurrence; draws of GARCH are one as well.
Signatures are PyMC's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given, Parameter, param, setting
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.series import Series, same_dtype, whole_steps
from probtorch.distributions.source import Source
from probtorch.distributions.validation import check_parameter
from probtorch.distributions.vectors import MultivariateStudentT
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import log
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.scans import linear_recurrence
from probtorch.tensor import Tensor

__all__ = ["AR", "GARCH11", "MvGaussianRandomWalk", "MvStudentTRandomWalk", "RandomWalk"]


class AR(Series):
    """Autoregression: each value is a weighted sum of the last ones, plus normal noise.

    Density ``f(x) = init_dist(x[:n]) * prod(N(x[t], sum(rho[i] * x[t - 1 - i] for i in range(n)),
    sigma ** 2) for t in range(n, len(x)))`` with ``n = len(rho)``.

    Parameters
    ----------
    rho : Tensor, shape (..., order), or (..., 1 + order) with `constant`
        Weights, of the value just before first; with `constant` what is added comes before them.
    sigma : Tensor or number, positive, optional
        Standard deviation of the noise; 1 if neither it nor `tau` is given.
    tau : Tensor or number, positive, optional
        Its precision.
    init_dist : Distribution, optional
        Of the first `order` values: of vectors, or of numbers, which are independent then.
        Normal(0, 100) if None.
    steps : int
        Number of values after the first `order` ones.
    constant : bool
    ar_order : int, optional
        The order, to check `rho` against.

    Raises
    ------
    ArgumentError
        If `steps` is no whole number from 1 on, or both `sigma` and `tau` are given.
    ShapeError
        If `rho` or `init_dist` do not fit the order.

    Notes
    -----
    The signature is PyMC's. Draws carry gradients where those of `init_dist` do.
    """

    _parts = ("rho", "sigma", "init_dist")
    _told = ("steps", "constant")
    rho: Tensor
    sigma: Tensor
    init_dist: Distribution
    support = constraints.real_vector

    def __init__(
        self,
        rho: Given,
        sigma: Given | None = None,
        tau: Given | None = None,
        *,
        init_dist: Distribution | None = None,
        steps: int | None = None,
        constant: bool = False,
        ar_order: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if sigma is not None and tau is not None:
            raise ArgumentError(
                "AR",
                expected="one of sigma and tau",
                got="both",
                fix="drop tau, which is 1 / sigma**2",
            )
        self.steps, self.constant = whole_steps("AR", steps), bool(constant)
        given = 1.0 if sigma is None and tau is None else tau if sigma is None else sigma
        assert given is not None  # one of the two is there
        self._take(rho=rho, sigma=given)
        if tau is not None:
            self.sigma = self.sigma**-0.5
        size = self.rho.array.shape[-1] if self.rho.array.ndim else 0
        order = size - self.constant
        if order < 1 or ar_order not in (None, order):
            raise ShapeError(
                "AR",
                expected=f"a rho whose last dim has {'a constant and ' * self.constant}"
                f"{'at least 1' if ar_order is None else ar_order} weights",
                got=f"shape {self.rho.array.shape}",
                fix="give the weights of one series in the last dim",
            )
        first = Normal(0.0, 100.0) if init_dist is None else init_dist
        if not first._event_shape:
            batch = tuple(first._batch_shape)
            wide = broadcast_shapes(batch, (order,), op="AR")
            first = (first if batch == wide else first.expand(wide)).to_event(1)
        if tuple(first._event_shape) != (order,):
            raise ShapeError(
                "AR",
                expected=f"an init_dist of {order} values",
                got=f"event shape {tuple(first._event_shape)}",
                fix="give a distribution of numbers, or of vectors as long as the order",
            )
        self.init_dist = first
        self._note(first)
        shapes = (self.rho.array.shape[:-1], self.sigma.array.shape, first._batch_shape)
        batch = broadcast_shapes(*map(tuple, shapes), op="AR")
        self._shape(batch, (order + self.steps,), validate_args)
        if self._validate_args:
            check_parameter("AR", "sigma", self.sigma, constraints.positive, self)

    @property
    def ar_order(self) -> int:
        """Number of values before that a value depends on."""
        return self._event_shape[0] - self.steps

    @property
    def has_rsample(self) -> bool:
        """As `init_dist`."""
        return self.init_dist.has_rsample

    def _weights(self, like: Tensor) -> tuple[Tensor | None, Tensor]:
        rho = same_dtype(self.rho, like)
        return (rho[..., 0], rho[..., 1:]) if self.constant else (None, rho)

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        n, p = self.steps, self.ar_order
        level, weights = self._weights(value)
        expected = unsqueeze(weights[..., 0], -1) * value[..., p - 1 : p - 1 + n]
        for k in range(1, p):
            expected = expected + unsqueeze(weights[..., k], -1) * value[..., p - 1 - k : -1 - k]
        if level is not None:
            expected = expected + unsqueeze(level, -1)
        sigma = same_dtype(self.sigma, value)
        z = (value[..., p:] - expected) / unsqueeze(sigma, -1)
        noise = total(z * z, -1) * -0.5 - (log(sigma) + HALF_LOG_2PI) * float(n)
        return noise + self.init_dist._density(value[..., :p], inside)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._density(value, True)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, self.init_dist._sample)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, self.init_dist._rsample)

    def _run(self, rng: Source, shape: Shape, draw: Callable[[Source, Shape], Tensor]) -> Tensor:
        batch, p = shape[:-1], self.ar_order
        first = expand(draw(rng, (*batch, p)), (*batch, p))
        first = first if first.array.dtype == rng.dtype else cast(first, rng.dtype)
        level, weights = self._weights(first)
        noise = same_dtype(unsqueeze(self.sigma, -1), first) * rng.normal((*batch, self.steps))
        if level is not None:
            noise = noise + unsqueeze(level, -1)

        def step(last: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
            new = total(last * weights, -1) + e
            return cat([unsqueeze(new, -1), last[..., :-1]], -1), new

        _, rest = scan(step, flip(first, -1), movedim(noise, -1, 0))
        return cat([first, movedim(rest, 0, -1)], -1)


class GARCH11(Distribution):
    """Normal values of mean 0 whose variance follows the last value and the last variance.

    With s[0] = initial_vol: s[t]^2 = omega + alpha_1 x[t - 1]^2 + beta_1 s[t - 1]^2.

    Density ``f(x) = prod(N(x[t], 0, beta_1 ** t * initial_vol ** 2 + sum(beta_1 ** i * (omega +
    alpha_1 * x[t - 1 - i] ** 2) for i in range(t))) for t in range(len(x)))``.

    Parameters
    ----------
    omega : Tensor or number, positive
    alpha_1 : Tensor or number, not negative
    beta_1 : Tensor or number, not negative
        The variance stays bounded where alpha_1 + beta_1 < 1.
    initial_vol : Tensor or number, positive
        Standard deviation of the first value.
    steps : int
        Number of values after the first.

    Notes
    -----
    The signature is PyMC's; sums of alpha_1 and beta_1 of 1 and more are accepted.
    """

    omega: Parameter = param(constraints.positive)
    alpha_1: Parameter = param(constraints.nonnegative)
    beta_1: Parameter = param(constraints.nonnegative)
    initial_vol: Parameter = param(constraints.positive)
    steps: int = setting(default=1)
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        return (whole_steps("GARCH11", self.steps) + 1,)

    def _variances(self, growth: Tensor, added: Tensor, batch: Shape) -> Tensor:
        """Solve s[t]^2 = growth[t - 1] s[t - 1]^2 + added[t - 1] from the first on."""
        first = expand(unsqueeze(same_dtype(self.initial_vol, added) ** 2, -1), (*batch, 1))
        growth = expand(growth, (*batch, self.steps))
        added = expand(added, (*batch, self.steps))
        return linear_recurrence(cat([first, growth], -1), cat([first, added], -1), -1)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        e = rng.normal(shape)
        seen = e[..., :-1] ** 2
        growth = same_dtype(unsqueeze(self.alpha_1, -1), e) * seen + unsqueeze(self.beta_1, -1)
        added = same_dtype(unsqueeze(self.omega, -1), e) + seen * 0.0
        return sqrt(self._variances(same_dtype(growth, e), added, shape[:-1])) * e

    def _log_prob(self, x: Tensor) -> Tensor:
        seen = x[..., :-1] ** 2
        added = unsqueeze(self.omega, -1) + unsqueeze(self.alpha_1, -1) * seen
        shapes = (self.beta_1.array.shape, self.initial_vol.array.shape)
        batch = broadcast_shapes(added.array.shape[:-1], *shapes, op="GARCH11")
        variances = self._variances(
            same_dtype(unsqueeze(self.beta_1, -1), x), same_dtype(added, x), batch
        )
        terms = total(x * x / variances + log(variances), -1)
        return terms * -0.5 - HALF_LOG_2PI * float(self.steps + 1)

    def _mean(self) -> Tensor:
        zero = (self.omega + self.initial_vol + self.alpha_1 + self.beta_1) * 0.0
        return expand(unsqueeze(zero, -1), (*zero.array.shape, self.steps + 1))

    def _variance(self) -> Tensor:
        growth = unsqueeze(self.alpha_1 + self.beta_1, -1)
        batch = tuple((self.omega + growth[..., 0] + self.initial_vol).array.shape)
        return self._variances(growth, same_dtype(unsqueeze(self.omega, -1), growth), batch)


class RandomWalk(Series):
    """A walk of independent steps: the sums of a first value and of draws of one distribution.

    Density ``f(x) = init_dist(x[0]) * prod(innovation_dist(x[t] - x[t - 1]) for t in range(1,
    len(x)))``.

    Parameters
    ----------
    innovation_dist : Distribution
        Of a step: of numbers or of vectors, real.
    init_dist : Distribution
        Of the first value, of the same event shape.
    steps : int
        Number of values after the first; time is the first event dim.

    Notes
    -----
    The signature is PyMC's. With a `StudentT` it is a walk with jumps.
    """

    _parts = ("innovation_dist", "init_dist")
    _told = ("steps",)
    innovation_dist: Distribution
    init_dist: Distribution

    def __init__(
        self,
        innovation_dist: Distribution,
        init_dist: Distribution,
        steps: int | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        event = tuple(innovation_dist._event_shape)
        if tuple(init_dist._event_shape) != event:
            raise ShapeError(
                "RandomWalk",
                expected=f"an init_dist of event shape {event}, as innovation_dist has",
                got=f"event shape {tuple(init_dist._event_shape)}",
                fix="make both distributions of numbers, or of vectors of one length",
            )
        self.steps = whole_steps("RandomWalk", steps)
        self._take(innovation_dist=innovation_dist, init_dist=init_dist)
        shapes = (innovation_dist._batch_shape, init_dist._batch_shape)
        batch = broadcast_shapes(*map(tuple, shapes), op="RandomWalk")
        self._shape(batch, (self.steps + 1, *event), validate_args)

    @constraints.dependent_property(event_dim=1, is_discrete=False)
    def support(self) -> Constraint:
        """Real numbers."""
        return constraints.independent(constraints.real, len(self._event_shape))

    @property
    def has_rsample(self) -> bool:
        """Whether both parts have it."""
        return self.innovation_dist.has_rsample and self.init_dist.has_rsample

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        n = len(self._event_shape)
        walk = movedim(value, -n, 0)
        steps = self.innovation_dist.log_prob(walk[1:] - walk[:-1])
        return total(steps, 0) + self.init_dist._density(walk[0], inside)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._density(value, True)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, self.innovation_dist._sample, self.init_dist._sample)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, self.innovation_dist._rsample, self.init_dist._rsample)

    def _run(
        self,
        rng: Source,
        shape: Shape,
        step: Callable[[Source, Shape], Tensor],
        first: Callable[[Source, Shape], Tensor],
    ) -> Tensor:
        n = len(self._event_shape)
        cut = len(shape) - n
        one = (*shape[:cut], *shape[cut + 1 :])
        begun = expand(first(rng, one), one)
        steps = expand(step(rng, (self.steps, *one)), (self.steps, *one))
        return movedim(cumsum(cat([unsqueeze(begun, 0), steps], 0), 0), 0, cut)

    def _mean(self) -> Tensor:
        return self._growing(self.init_dist.mean, self.innovation_dist.mean)

    def _variance(self) -> Tensor:
        return self._growing(self.init_dist.variance, self.innovation_dist.variance)

    def _growing(self, first: Tensor, each: Tensor) -> Tensor:
        # Distances from the start, along the first event dim.
        n = len(self._event_shape) - 1
        times = reshape(each.new_tensor(np.arange(self.steps + 1.0)), (-1, *(1,) * n))
        return unsqueeze(first, -1 - n) + unsqueeze(each, -1 - n) * times


def MvGaussianRandomWalk(
    mu: Given,
    scale_tril: Given,
    init_dist: Distribution,
    steps: int,
    *,
    validate_args: bool | None = None,
) -> RandomWalk:
    """Return a walk of vectors whose steps are normal: PyMC's name for it.

    Parameters
    ----------
    mu : Tensor, shape (..., n)
        Mean of a step.
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
        Cholesky factor of its covariance; PyMC's chol.
    init_dist : Distribution of vectors
        Of the first value.
    steps : int
        Number of values after the first.
    validate_args : bool, optional
    """
    step = MultivariateNormal(mu, scale_tril=scale_tril, validate_args=validate_args)
    return RandomWalk(step, init_dist, steps, validate_args=validate_args)


def MvStudentTRandomWalk(
    df: Given,
    mu: Given,
    scale_tril: Given,
    init_dist: Distribution,
    steps: int,
    *,
    validate_args: bool | None = None,
) -> RandomWalk:
    """Return a walk of vectors whose steps follow Student's t distribution: PyMC's name for it.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom; PyMC's nu.
    mu : Tensor, shape (..., n)
        Center of a step.
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
    init_dist : Distribution of vectors
        Of the first value.
    steps : int
        Number of values after the first.
    validate_args : bool, optional
    """
    step = MultivariateStudentT(df, mu, scale_tril, validate_args=validate_args)
    return RandomWalk(step, init_dist, steps, validate_args=validate_args)


explain_calls(globals())
