"""Gaussian and Student's t processes at points, and normal vectors on grids.

A kernel is any function from two sets of points, shapes (n, d) and (m, d), to the matrix of
covariances, shape (n, m). Names and arguments are TFP's; what is returned is the joint distribution
of the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self, TypeAlias

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import INSTANCE_STATE, Given, Values, as_parameter
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.source import Source
from probtorch.distributions.validation import check_parameter
from probtorch.distributions.vectors import MultivariateStudentT, half_log_det
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "GaussianProcess",
    "GaussianProcessRegressionModel",
    "KroneckerNormal",
    "StudentTProcess",
]

Kernel: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Mean: TypeAlias = Callable[[Tensor], Tensor]


def _points(x: Given, name: str) -> Tensor:
    points = as_parameter(x, name)[0]
    if points.array.ndim != 2:
        raise ShapeError(
            "GaussianProcess",
            expected=f"{name} of shape (points, dims)",
            got=f"shape {tuple(points.array.shape)}",
            fix="write points on a line as x[:, None]",
        )
    return points


def _mean_at(mean_fn: Mean | None, x: Tensor) -> Tensor:
    return x[:, 0] * 0.0 if mean_fn is None else mean_fn(x)


def _noisy(matrix: Tensor, noise: Given, jitter: float) -> Tensor:
    """Return a covariance with a variance, and a little more, added to its diagonal."""
    more = as_parameter(noise, "observation_noise_variance")[0] + jitter
    return matrix + more * matrix.new_tensor(np.eye(matrix.array.shape[-1]))


def GaussianProcess(
    kernel: Kernel,
    index_points: Given,
    mean_fn: Mean | None = None,
    observation_noise_variance: Given = 0.0,
    jitter: float = 1e-6,
    *,
    validate_args: bool | None = None,
) -> MultivariateNormal:
    """Return the normal distribution of the values of a Gaussian process at points.

    Parameters
    ----------
    kernel : callable
        From two sets of points to their covariances.
    index_points : Tensor, shape (n, dims)
    mean_fn : callable, optional
        From points to means, shape (n,); 0 without it.
    observation_noise_variance : Tensor or number, nonnegative
        Of noise that is added to the values.
    jitter : float
        Added to the diagonal, for a Cholesky factor of close points.
    validate_args : bool, optional
    """
    x = _points(index_points, "index_points")
    cov = _noisy(kernel(x, x), observation_noise_variance, jitter)
    tril = cholesky(cov)
    return MultivariateNormal(_mean_at(mean_fn, x), scale_tril=tril, validate_args=validate_args)


def StudentTProcess(
    df: Given,
    kernel: Kernel,
    index_points: Given,
    mean_fn: Mean | None = None,
    observation_noise_variance: Given = 0.0,
    jitter: float = 1e-6,
    *,
    validate_args: bool | None = None,
) -> MultivariateStudentT:
    """Return Student's t distribution of the values of a process at points, heavier in the tails.

    Parameters
    ----------
    df : Tensor or number, above 2
        Degrees of freedom.
    kernel : callable
        From two sets of points to their covariances, which the values have.
    index_points : Tensor, shape (n, dims)
    mean_fn : callable, optional
        From points to means, shape (n,); 0 without it.
    observation_noise_variance : Tensor or number, nonnegative
        Added to the variances.
    jitter : float
        Added to the diagonal.
    validate_args : bool, optional
    """
    x, nu = _points(index_points, "index_points"), as_parameter(df, "df")[0]
    check_parameter("StudentTProcess", "df", nu, constraints.greater_than(2.0), UNNAMED)
    tril = cholesky(_noisy(kernel(x, x), observation_noise_variance, jitter))
    scale = tril * sqrt((nu - 2.0) / nu)
    return MultivariateStudentT(nu, _mean_at(mean_fn, x), scale, validate_args=validate_args)


def GaussianProcessRegressionModel(
    kernel: Kernel,
    index_points: Given,
    observation_index_points: Given,
    observations: Given,
    observation_noise_variance: Given = 0.0,
    predictive_noise_variance: Given | None = None,
    mean_fn: Mean | None = None,
    jitter: float = 1e-6,
    *,
    validate_args: bool | None = None,
) -> MultivariateNormal:
    """Return what a Gaussian process is at points, given its noisy values at others.

    Parameters
    ----------
    kernel : callable
        From two sets of points to their covariances.
    index_points : Tensor, shape (n, dims)
        Where the values are asked for.
    observation_index_points : Tensor, shape (m, dims)
    observations : Tensor, shape (..., m)
    observation_noise_variance : Tensor or number, nonnegative
    predictive_noise_variance : Tensor or number, optional
        Of noise in the values asked for; that of the observations without it, as in TFP.
    mean_fn : callable, optional
        From points to means; 0 without it.
    jitter : float
        Added to both diagonals.
    validate_args : bool, optional
    """
    new = _points(index_points, "index_points")
    old = _points(observation_index_points, "observation_index_points")
    y = as_parameter(observations, "observations")[0]
    noise = observation_noise_variance
    tril = cholesky(_noisy(kernel(old, old), noise, jitter))
    shared = solve_triangular(tril, kernel(old, new), upper=False)
    rest = unsqueeze(y - _mean_at(mean_fn, old), -1)
    seen = solve_triangular(
        expand(tril, (*rest.array.shape[:-2], *tril.array.shape)), rest, upper=False
    )
    shift = shared.mT @ seen
    mean = _mean_at(mean_fn, new) + reshape(shift, shift.array.shape[:-1])
    ahead = noise if predictive_noise_variance is None else predictive_noise_variance
    cov = _noisy(kernel(new, new) - shared.mT @ shared, ahead, jitter)
    return MultivariateNormal(mean, scale_tril=cholesky(cov), validate_args=validate_args)


class KroneckerNormal(Distribution):
    """Normal vectors on a grid, whose covariance is a Kronecker product of small matrices.

    Density ``f(x) = N(x, loc, L @ transpose(L))`` with ``L = kron(scale_trils)``.

    Parameters
    ----------
    loc : Tensor, shape (..., n), n the product of the sizes
        Mean; the last factor's dim changes fastest.
    scale_trils : sequence of Tensor, shape (n_i, n_i), lower-triangular with positive diagonal
        Cholesky factors of the matrices; PyMC's chols.

    Notes
    -----
    A density costs O(n (n_1 + n_2 + ...)) instead of O(n ** 3).
    """

    __tree_fields__ = ("loc", "scale_trils")
    __static_fields__ = INSTANCE_STATE
    support = constraints.real_vector

    def __init__(
        self, loc: Given, scale_trils: Sequence[Given], *, validate_args: bool | None = None
    ) -> None:
        self.loc, weak = as_parameter(loc, "loc")
        self.scale_trils = [as_parameter(f, "scale_trils")[0] for f in scale_trils]
        sizes = [f.array.shape for f in self.scale_trils]
        n = math.prod(s[-1] for s in sizes) if all(sizes) else 0
        shape = self.loc.array.shape
        if not sizes or any(len(s) != 2 or s[0] != s[1] for s in sizes) or shape[-1:] != (n,):
            raise ShapeError(
                "KroneckerNormal",
                expected="square factors, and a loc as long as the product of their sizes",
                got=f"factors of shapes {[tuple(s) for s in sizes]} and loc of {tuple(shape)}",
                fix="give a list of matrices, and loc with n_1 * n_2 * ... elements",
            )
        dtype = None if weak else self.loc.array.dtype
        self._set_shapes(shape[:-1], shape[-1:], dtype=dtype, validate_args=validate_args)
        if self._validate_args:
            for factor in self.scale_trils:
                check_parameter(
                    "KroneckerNormal", "scale_trils", factor, constraints.lower_cholesky, self
                )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(values["loc"], values["scale_trils"], validate_args=False)

    def _tree_names(self) -> tuple[str, ...]:
        return ("loc", "scale_trils")

    def _each(self, x: Tensor, fn: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Apply a function of a factor and of columns along each dim of the grid."""
        sizes = tuple(f.array.shape[-1] for f in self.scale_trils)
        batch, k = x.array.shape[:-1], len(sizes)
        grid = reshape(x, (math.prod(batch), *sizes))
        for dim, factor in enumerate(self.scale_trils, 1):
            first = movedim(grid, dim, 0)
            columns = reshape(first, (sizes[dim - 1], math.prod(first.array.shape[1:])))
            grid = movedim(reshape(fn(factor, columns), first.array.shape), 0, dim)
        assert grid.array.ndim == k + 1  # one dim for each factor, and the batch
        return reshape(grid, (*batch, math.prod(sizes)))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.loc + self._each(rng.normal(shape), lambda tril, x: tril @ x)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = self._event_shape[0]
        apart = x - self.loc
        z = self._each(apart, lambda tril, v: solve_triangular(tril, v, upper=False))
        size = sum(
            (half_log_det(f) * (n / f.array.shape[-1]) for f in self.scale_trils),
            n * HALF_LOG_2PI,
        )
        return total(z * z, -1) * -0.5 - size

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        out = self.loc[..., :1] * 0.0 + 1.0
        for f in self.scale_trils:
            each = total(f * f, -1)
            out = reshape(unsqueeze(out, -1) * each, (*out.array.shape[:-1], -1))
        return out


# What a parameter is checked for, where there is no distribution of the name.
UNNAMED = Distribution()

explain_calls(globals())
