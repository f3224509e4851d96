"""States that are seen as they are: linear ones, and those of a stochastic differential equation.

Given the state before it each state has a density of its own, so densities have no loop.
Signatures are NumPyro's. States that are not seen are in `gaussian_hmm.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from probtorch.autograd.scan import scan
from probtorch.autograd.vmap import vmap
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.multivariate_normal import MultivariateNormal, squared_length
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.series import Series, broadcast, same_dtype, whole_steps
from probtorch.distributions.source import Source
from probtorch.distributions.validation import check_parameter
from probtorch.distributions.vectors import check_sizes, half_log_det
from probtorch.distributions.wishart import inverse_of_factor
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import log
from probtorch.ops.movement import expand, movedim, reshape, squeeze, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["EulerMaruyama", "GaussianStateSpace"]


class EulerMaruyama(Series):
    """A stochastic differential equation dy = f dt + g dW, in steps between the times `t`.

    Density ``f(x) = init_dist(x[0]) * prod(N(x[k], x[k - 1] + h[k] * drift(x[k - 1], t[k - 1]),
    h[k] * diffusion(x[k - 1], t[k - 1]) ** 2) for k in range(1, len(x)))`` with ``h =
    differences(t)``.

    There `drift` and `diffusion` are what `sde_fn` returns, f and g in the formula.

    Parameters
    ----------
    t : Tensor, shape (..., n), increasing
        Times of the values.
    sde_fn : callable
        From ``(y, t)`` to drift f and diffusion g. Where `init_dist` is of numbers it is called
        with many values at once and has to be written in elementwise functions, of what broadcasts
        with shape (..., n - 1); else it is called with one state and one time, and mapped.
    init_dist : Distribution
        Of the state at the first time.

    Raises
    ------
    ArgumentError
        If `init_dist` is no distribution.

    Notes
    -----
    The signature is NumPyro's. The density is that of the steps, exact for the equation only where
    steps are short.
    """

    _parts = ("t", "init_dist")
    _told = ("sde_fn",)
    t: Tensor
    init_dist: Distribution

    def __init__(
        self,
        t: Given,
        sde_fn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        init_dist: Distribution,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(init_dist, Distribution) or not callable(sde_fn):
            raise ArgumentError(
                "EulerMaruyama",
                expected="a function and a distribution of first states",
                got=f"{type(sde_fn).__name__} and {type(init_dist).__name__}",
                fix="write EulerMaruyama(t, lambda y, t: (-y, 0.1), Normal(0.0, 1.0))",
            )
        self._take(t=t, init_dist=init_dist)
        self.sde_fn = sde_fn
        shape = tuple(self.t.array.shape)
        if not shape or shape[-1] < 2:
            raise ShapeError(
                "EulerMaruyama",
                expected="times of shape (..., n), n from 2 on",
                got=f"shape {shape}",
                fix="give at least the first time and another",
            )
        batch = broadcast_shapes(shape[:-1], tuple(init_dist._batch_shape), op="EulerMaruyama")
        self._shape(batch, (shape[-1], *init_dist._event_shape), validate_args)
        if self._validate_args:
            check_parameter("EulerMaruyama", "t", self.t, constraints.ordered_vector, self)

    @constraints.dependent_property(event_dim=1, is_discrete=False)
    def support(self) -> Constraint:
        """Real numbers."""
        return constraints.independent(constraints.real, len(self._event_shape))

    @property
    def has_rsample(self) -> bool:
        """As `init_dist`."""
        return self.init_dist.has_rsample

    def _slopes(self, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Drift and diffusion in the shape of y, shape (..., n, *event), at t, shape (..., n)."""
        event = tuple(self._event_shape[1:])
        if not event:
            f, g = self.sde_fn(y, t)
            f, g = f + y * 0.0, g + y * 0.0
            return same_dtype(f, y), same_dtype(g, y)
        shape = tuple(y.array.shape)
        cut = len(shape) - len(event)
        times = reshape(expand(t, shape[:cut]), (-1,))

        def one(y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            f, g = self.sde_fn(y, t)
            return f + y * 0.0, g + y * 0.0

        f, g = vmap(one)(reshape(y, (-1, *event)), times)
        return same_dtype(reshape(f, shape), y), same_dtype(reshape(g, shape), y)

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        k = len(self._event_shape) - 1
        t = same_dtype(self.t, value)
        path = movedim(value, -1 - k, 0)
        before, after = movedim(path[:-1], 0, -1 - k), movedim(path[1:], 0, -1 - k)
        shapes = (before.array.shape[: before.array.ndim - 1 - k], t.array.shape[:-1])
        batch = broadcast_shapes(*shapes, op="EulerMaruyama")
        before = broadcast(before, batch, 1 + k)
        f, g = self._slopes(before, t[..., :-1])
        dt = t[..., 1:] - t[..., :-1]
        dt = reshape(dt, (*dt.array.shape, *(1,) * k))
        scale = g * sqrt(dt)
        z = (after - before - f * dt) / scale
        terms = z * z * -0.5 - (log(scale) + HALF_LOG_2PI)
        return sum_rightmost(terms, 1 + k) + self.init_dist._density(path[0], inside)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._density(value, True)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, self.init_dist._sample)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, self.init_dist._rsample)

    def _run(self, rng: Source, shape: Shape, draw: Callable[[Source, Shape], Tensor]) -> Tensor:
        k = len(self._event_shape) - 1
        cut = len(shape) - 1 - k
        one, steps = (*shape[:cut], *shape[cut + 1 :]), shape[cut] - 1
        first = expand(draw(rng, one), one)
        first = first if first.array.dtype == rng.dtype else cast(first, rng.dtype)
        noise = rng.normal((steps, *one))
        t = movedim(expand(same_dtype(self.t, first), (*shape[:cut], steps + 1)), -1, 0)

        def step(y: Tensor, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            e, begin, end = now
            # With a time dim of size 1, as the function has it in the density.
            f, g = self._slopes(unsqueeze(y, cut), unsqueeze(begin, -1))
            dt = reshape(end - begin, (*shape[:cut], *(1,) * k))
            new = y + reshape(f, one) * dt + reshape(g, one) * sqrt(dt) * e
            return new, new

        _, rest = scan(step, first, (noise, t[:-1], t[1:]))
        return movedim(cat([unsqueeze(first, 0), rest], 0), 0, cut)


class GaussianStateSpace(Series):
    """Vectors that follow each other linearly: z[t] = A z[t - 1] + noise[t].

    Density ``f(x) = N(x[0], transition_matrix @ initial_value, S) * prod(N(x[t], transition_matrix
    @ x[t - 1], S) for t in range(1, len(x)))`` with ``S = scale_tril @ transpose(scale_tril)``.

    Parameters
    ----------
    num_steps : int
    transition_matrix : Tensor, shape (..., n, n)
        The matrix A.
    covariance_matrix : Tensor, shape (..., n, n), positive definite, optional
        Of the noise.
    precision_matrix : Tensor, shape (..., n, n), positive definite, optional
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal, optional
        Exactly one of the three is given.
    initial_value : Tensor, shape (..., n), optional
        The state z[0] before the first one of the series; 0 if None.

    Notes
    -----
    The signature is NumPyro's. Where the states are not seen as they are, or not all, the series is
    a `GaussianHMM`, whose transition matrix is the transpose of A.
    """

    _parts = ("transition_matrix", "scale_tril", "initial_value")
    _told = ("num_steps",)
    transition_matrix: Tensor
    scale_tril: Tensor
    initial_value: Tensor
    support = constraints.real_matrix

    def __init__(
        self,
        num_steps: int,
        transition_matrix: Given,
        covariance_matrix: Given | None = None,
        precision_matrix: Given | None = None,
        scale_tril: Given | None = None,
        initial_value: Given | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.num_steps = whole_steps("GaussianStateSpace", num_steps)
        self._take(transition_matrix=transition_matrix)
        matrix = self.transition_matrix
        n = matrix.array.shape[-1] if matrix.array.ndim else 1
        check_sizes("GaussianStateSpace", "a transition_matrix", (n, n), matrix)
        noise = MultivariateNormal(
            matrix.new_zeros((n,)),
            covariance_matrix,
            precision_matrix,
            scale_tril,
            validate_args=validate_args,
        )
        self._note(noise)
        self.scale_tril = noise.scale_tril
        if initial_value is None:
            self.initial_value = matrix.new_zeros((n,))
        else:
            self._take(transition_matrix=matrix, initial_value=initial_value)
            self._note(noise)
            check_sizes("GaussianStateSpace", "an initial_value", (n,), self.initial_value)
        batch = broadcast_shapes(*self._batches(), op="GaussianStateSpace")
        self._shape(batch, (self.num_steps, n), validate_args)

    def _batches(self) -> list[Shape]:
        """Return the batch shapes of the parts."""
        dims = ((self.transition_matrix, 2), (self.scale_tril, 2), (self.initial_value, 1))
        return [tuple(x.array.shape[: x.array.ndim - k]) for x, k in dims]

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance of the noise, shape (..., n, n)."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of the covariance of the noise, shape (..., n, n)."""
        inverse = inverse_of_factor(self.scale_tril)
        return inverse.mT @ inverse

    def _step(self, z: Tensor) -> Tensor:
        """Return A z for vectors z, shape (..., steps, n)."""
        return z @ same_dtype(self.transition_matrix, z).mT

    def _log_prob(self, z: Tensor) -> Tensor:
        n, tril = self._event_shape[1], same_dtype(self.scale_tril, z)
        a, _, before = self._batches()
        batch = broadcast_shapes(z.array.shape[:-2], a, before, op="log_prob")
        start = expand(unsqueeze(same_dtype(self.initial_value, z), -2), (*batch, 1, n))
        noise = z - self._step(cat([start, expand(z[..., :-1, :], (*batch, -1, n))], -2))
        square = squared_length(_over_time(tril), noise)
        size = half_log_det(tril) + n * HALF_LOG_2PI
        return total(square, -1) * -0.5 - size * float(self.num_steps)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        batch, n = shape[:-2], shape[-1]
        e = rng.normal(shape)
        noise = expand(e @ same_dtype(self.scale_tril, e).mT, (*batch, self.num_steps, n))
        matrix = same_dtype(self.transition_matrix, e).mT

        def step(z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
            new = reshape(unsqueeze(z, -2) @ matrix, z.array.shape) + e
            return new, new

        start = expand(same_dtype(self.initial_value, e), (*batch, n))
        _, path = scan(step, start, movedim(noise, -2, 0))
        return movedim(path, 0, -2)

    def _mean(self) -> Tensor:
        a, batch = self.transition_matrix, broadcast_shapes(*self._batches())
        start = expand(same_dtype(self.initial_value, a), (*batch, self._event_shape[1]))

        def step(z: Tensor, _: None) -> tuple[Tensor, Tensor]:
            new = squeeze(a @ unsqueeze(z, -1), -1)
            return new, new

        _, path = scan(step, start, length=self.num_steps)
        return movedim(path, 0, -2)

    _mode = _mean

    def _variance(self) -> Tensor:
        tril, a = self.scale_tril, self.transition_matrix
        shape = (*broadcast_shapes(*self._batches()), *tril.array.shape[-2:])

        def step(spread: Tensor, _: None) -> tuple[Tensor, Tensor]:
            return a @ spread, total(spread * spread, -1)

        _, added = scan(step, expand(tril, shape), length=self.num_steps)
        return movedim(cumsum(added, 0), 0, -2)


def _over_time(tril: Tensor) -> Tensor:
    """Return a factor with a time dim, where it has batch dims that time stands behind."""
    return unsqueeze(tril, -3) if tril.array.ndim > 2 else tril


explain_calls(globals())
