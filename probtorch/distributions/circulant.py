"""Normal vectors on a circle of places, whose covariance depends on the distance alone.

A circulant covariance is diagonal in the Fourier basis: density and draws take one product with
that basis, and no factorisation.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import circulant_spectrum
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.source import Source
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import log
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["CirculantNormal"]


@functools.cache
def _basis(n: int) -> np.ndarray:
    """The orthonormal real Fourier basis of n places, a function in each column."""
    turns = 2.0 * math.pi * np.outer(np.arange(n), np.arange(n // 2 + 1)) / n
    both = np.empty((n, n))
    orders = _orders(n)
    first = np.concatenate([[True], orders[1:] != orders[:-1]])
    both[:, first] = np.cos(turns)
    both[:, ~first] = np.sin(turns[:, orders[~first]])
    return both / np.linalg.norm(both, axis=0)


def _orders(n: int) -> np.ndarray:
    """The order of each function of the basis: twice each, but for 0 and the one of two places."""
    return (np.arange(n) + 1) // 2


class CirculantNormal(Distribution):
    """Normal vectors whose covariance is the same between all pairs of one distance on a circle.

    Density ``f(x) = N(x, loc, circulant(covariance_row))``.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Mean.
    covariance_row : Tensor, shape (..., n), optional
        First row of the covariance: that with places at distance 0, 1, ..., and back to 1.
    covariance_rfft : Tensor, shape (..., n // 2 + 1), positive, optional
        Its eigenvalues, the real Fourier transform of that row; exactly one of both is given.

    Notes
    -----
    The signature is NumPyro's. A density costs one product with an n by n matrix that is the same
    for all parameters.
    """

    loc: Parameter = param(constraints.real_vector)
    covariance_row: Parameter = param(constraints.positive_definite_circulant_vector, default=None)
    covariance_rfft: Parameter = param(
        constraints.independent(constraints.positive, 1), default=None
    )
    given = one_of("covariance_row", "covariance_rfft")
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        n = self.loc.array.shape[-1]
        row = self._given("covariance_row")
        given = (self.covariance_row if row else self.covariance_rfft).array.shape
        size, name = (n, "covariance_row") if row else (n // 2 + 1, "covariance_rfft")
        if given[-1] != size:
            raise ShapeError(
                "CirculantNormal",
                expected=f"a {name} of shape (..., {size}), to match loc of {n} places",
                got=f"shape {given}",
                fix="give one covariance for each place, or one eigenvalue for each order",
            )
        return (n,)

    def _covariance_row(self) -> Tensor:
        n, sizes = self.loc.array.shape[-1], self._sizes()
        basis = sizes.new_tensor(_basis(n))
        return (sizes * basis[0]) @ basis.mT

    def _covariance_rfft(self) -> Tensor:
        row = self.covariance_row
        return row @ row.new_tensor(circulant_spectrum(row.array.shape[-1]))

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance, shape (..., n, n)."""
        sizes = self._sizes()
        basis = sizes.new_tensor(_basis(self._event_shape[0]))
        return (basis * sizes[..., None, :]) @ basis.mT

    def _sizes(self) -> Tensor:
        """Variances in the Fourier basis."""
        values = self.covariance_rfft
        orders = _orders(self.loc.array.shape[-1])
        return index_select(values, -1, values.new_tensor(orders).long())

    def _in_basis(self, x: Tensor) -> Tensor:
        """Return vectors in the Fourier basis, in which places are independent."""
        return x @ x.new_tensor(_basis(self._event_shape[0]))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        sizes = self._sizes()
        return self.loc + (sqrt(sizes) * rng.normal(shape)) @ sizes.new_tensor(_basis(shape[-1]).T)

    def _log_prob(self, x: Tensor) -> Tensor:
        sizes, n = self._sizes(), self._event_shape[0]
        z = self._in_basis(x - self.loc)
        return total(z * z / sizes + log(sizes), -1) * -0.5 - n * HALF_LOG_2PI

    def _entropy(self) -> Tensor:
        n = self._event_shape[0]
        return 0.5 * total(log(self._sizes()), -1) + n * (0.5 + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        sizes = self._sizes()
        n = self._event_shape[0]
        each = total(sizes, -1, True) / n
        return expand(each, (*each.array.shape[:-1], n))
