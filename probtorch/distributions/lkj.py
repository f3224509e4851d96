"""Random correlation matrices, and their Cholesky factors."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.source import Source
from probtorch.distributions.wishart import squared
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diag_embed, diagonal
from probtorch.ops.exponentials import exp, log, sigmoid
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma_difference, lgamma_difference
from probtorch.tensor import Tensor

__all__ = ["LKJ", "LKJCholesky"]


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices R of density proportional to det(R) ** (c - 1).

    Density ``f(x) = prod(x[i, i] ** (2 * (concentration - 1) + n - 1 - i) for i in range(n)) /
    prod((2 ** (2 * (concentration - 1) + k) * B(concentration + (k - 1) / 2, concentration +
    (k - 1) / 2)) ** k for k in range(1, n))`` with ``n = len(x)``.

    Here c is the `concentration`.

    Parameters
    ----------
    dim : int, at least 2
        Size of the matrix.
    concentration : Tensor or number, positive
        1 for uniform over correlation matrices; larger is nearer to the identity.

    References
    ----------
    Lewandowski, Kurowicka, Joe (2009), "Generating random correlation
    matrices based on vines and extended onion method"; the density of the factor is theirs times
    the Jacobian of L L^T.
    """

    dim: int = setting()
    concentration: Parameter = param(constraints.positive, default=1.0)
    support = constraints.corr_cholesky
    _also: ClassVar = {"dimension": "dim", "sample_method": None}

    def _infer_event_shape(self) -> Shape:
        if not isinstance(self.dim, int) or self.dim < 2:
            raise ArgumentError(
                "LKJCholesky",
                expected="dim, a whole number from 2 on",
                got=repr(self.dim),
                fix="for dim 1 the only correlation matrix is 1",
            )
        return (self.dim, self.dim)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # Onion: row i has squared length beta(i / 2, concentration + (dim - 1 - i) / 2) off the
        # diagonal, its direction is uniform on the sphere.
        batch, rows = shape[:-2], []
        eye = np.eye(self.dim)
        first = rng.normal(batch).new_tensor(eye[0])
        rows.append(expand(first, (*batch, self.dim)))
        for i in range(1, self.dim):
            noise = rng.normal((*batch, i))
            direction = noise / sqrt(total(noise * noise, -1, True))
            a = rng.log_gamma(wrap(np.array(0.5 * i)), batch)
            b = rng.log_gamma(self.concentration + 0.5 * (self.dim - 1 - i), batch)
            # The diagonal of nearly singular draws may underflow; its logarithm is wanted.
            inside, rest = sqrt(sigmoid(a - b)), rng.positive(sqrt(sigmoid(b - a)))
            parts = [direction * unsqueeze(inside, -1), unsqueeze(rest, -1)]
            zeros = noise.new_zeros((*batch, self.dim - 1 - i))
            rows.append(cat([*parts, zeros], -1))
        return stack(rows, -2)

    def _log_prob(self, x: Tensor) -> Tensor:
        d, c = self.dim, self.concentration
        # Row i of the factor (from 0) has exponent dim - 1 - i from the Jacobian, 2 (c - 1) from
        # det(R).
        logs = log(diagonal(x, 0, -2, -1))
        orders = x.new_tensor(np.arange(d - 1, -1, -1))
        weighted = total(orders * logs, -1) + total(logs, -1) * (2.0 * (c - 1.0))
        return weighted + self._log_normaliser()

    def _rows(self) -> tuple[Tensor, Tensor]:
        """For rows 1 on: c plus half the rows that follow, and half the number of dims."""
        c, dims = self.concentration, np.arange(1.0, self.dim)
        start = unsqueeze(c, -1) + c.new_tensor(0.5 * (self.dim - 1.0 - dims))
        return start, c.new_tensor(0.5 * dims)

    def _log_normaliser(self) -> Tensor:
        # Row i is a point of a ball in i dims, with 1 - r^2 to the power of a - 1 for
        # a = c + (d - 1 - i) / 2: an integral of pi^(i / 2) gamma(a) / gamma(a + i / 2).
        d = self.dim
        constant = total(lgamma_difference(*self._rows()), -1)
        return constant - 0.25 * d * (d - 1) * math.log(math.pi)

    def _mean_logs(self) -> Tensor:
        """Mean logs of the diagonal from row 1 on: the square of element i is beta(a, i / 2)."""
        return -0.5 * digamma_difference(*self._rows())

    def _entropy(self) -> Tensor:
        start, _ = self._rows()
        return -(self._log_normaliser() + total(2.0 * (start - 1.0) * self._mean_logs(), -1))

    def _diagonal(self, first: float, rest: Tensor) -> Tensor:
        """Return the diagonal matrix of a number and those of the other rows."""
        return diag_embed(cat([rest[..., :1] * 0.0 + first, rest], -1))

    def _mean_roots(self) -> Tensor:
        start, half = self._rows()
        return exp(lgamma_difference(start, 0.5) - lgamma_difference(start + half, 0.5))

    def _mean(self) -> Tensor:
        # Directions of rows are uniform: 0 off the diagonal.
        return self._diagonal(1.0, self._mean_roots())

    def _variance(self) -> Tensor:
        start, half = self._rows()
        roots = self._mean_roots()
        on = self._diagonal(0.0, start / (start + half) - roots * roots)
        # The squared length of row i is shared by i elements.
        each = unsqueeze(cat([start[..., :1] * 0.0, 0.5 / (start + half)], -1), -1)
        return on + each * each.new_tensor(np.tril(np.ones((self.dim, self.dim)), -1))

    def _mode(self) -> Tensor:
        # Below 1 the density grows towards singular matrices and has no highest point.
        peaked = reshape(self.concentration >= 1.0, (*self.concentration.array.shape, 1, 1))
        return where(peaked, wrap(np.eye(self.dim)), math.nan)


def of_unit_diagonal(x: Tensor) -> Tensor:
    """Return a covariance matrix as a correlation matrix."""
    roots = sqrt(diagonal(x, 0, -2, -1))
    return x / (unsqueeze(roots, -1) * unsqueeze(roots, -2))


class LKJ(Distribution):
    """Correlation matrices R of density proportional to det(R) ** (concentration - 1).

    Density ``f(x) = det(x) ** (concentration - 1) / prod((2 ** (2 * (concentration - 1) + k) *
    B(concentration + (k - 1) / 2, concentration + (k - 1) / 2)) ** k for k in range(1,
    len(x)))``.

    Parameters
    ----------
    dim : int, at least 2
        Size of the matrix.
    concentration : Tensor or number, positive
        1 for uniform over correlation matrices; larger is nearer to the identity.

    Notes
    -----
    In models `LKJCholesky` is the better choice: it spares a factorisation at each density.
    """

    dim: int = setting()
    concentration: Parameter = param(constraints.positive, default=1.0)
    support = constraints.corr_matrix
    _also: ClassVar = LKJCholesky._also
    _infer_event_shape = LKJCholesky._infer_event_shape
    _mode = LKJCholesky._mode

    def _factors(self) -> LKJCholesky:
        return LKJCholesky(self.dim, self.concentration, validate_args=False)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # As a factor it may be nearly singular; rounded as a matrix it would not be definite. What
        # has to be kept are the digits of the result.
        factor = cast(self._factors()._rsample(rng, shape), rng.dtype)
        return of_unit_diagonal(squared(factor))

    def _log_prob(self, x: Tensor) -> Tensor:
        factor = cholesky(x)
        # The determinant of L -> L L^T on the rows of length 1.
        weights = x.new_tensor(np.arange(self.dim - 1.0, -1.0, -1.0))
        slope = total(weights * log(diagonal(factor, 0, -2, -1)), -1)
        return self._factors()._log_prob(factor) - slope

    def _entropy(self) -> Tensor:
        factors = self._factors()
        weights = factors.concentration.new_tensor(np.arange(self.dim - 2.0, -1.0, -1.0))
        return factors._entropy() + total(weights * factors._mean_logs(), -1)

    def _mean(self) -> Tensor:
        zero = reshape(self.concentration * 0.0, (*self.concentration.array.shape, 1, 1))
        return zero + wrap(np.eye(self.dim))

    def _variance(self) -> Tensor:
        # Each correlation is 2 b - 1 for b beta with both exponents concentration + dim / 2 - 1.
        spread = 1.0 / (2.0 * self.concentration + (self.dim - 1.0))
        off = reshape(spread, (*spread.array.shape, 1, 1))
        return off * wrap(1.0 - np.eye(self.dim))
