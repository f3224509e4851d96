"""Gaussian fields on graphs: conditional autoregressions, proper and intrinsic (Besag 1974)."""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import check_sizes
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.exponentials import log, log1p
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["CAR", "ICAR"]


class CAR(Distribution):
    """Normal numbers on the nodes of a graph, each near the mean of its neighbours.

    Density ``f(x) = sqrt(det(Q) / (2 * pi) ** len(x)) * exp(-z @ Q @ z / 2)`` with ``z = x -
    loc`` and ``Q = conditional_precision * (diag(degrees(adj_matrix)) - correlation *
    adj_matrix)``.

    The precision matrix is ``conditional_precision * (D - correlation * W)`` for the adjacency W
    and the numbers of neighbours D.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Mean.
    correlation : Tensor or number in (-1, 1)
    conditional_precision : Tensor or number, positive
    adj_matrix : Tensor, shape (n, n)
        Symmetric; every node has a neighbour.
    is_sparse : bool
        For calls written for NumPyro, and not used.

    Notes
    -----
    The determinant comes from eigenvalues of the adjacency, computed once: a density costs one
    product with W. The adjacency is data, without a gradient.
    """

    loc: Parameter = param(constraints.real_vector)
    correlation: Parameter = param(constraints.open_interval(-1.0, 1.0))
    conditional_precision: Parameter = param(constraints.positive)
    adj_matrix: Parameter = param(constraints.independent(constraints.nonnegative, 2))
    is_sparse: bool = setting(default=False)
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        n = self.loc.array.shape[-1]
        check_sizes("CAR", "an adj_matrix", (n, n), self.adj_matrix)
        return (n,)

    def _degrees(self) -> Tensor:
        return total(self.adj_matrix, -1)

    def _log_det(self) -> Tensor:
        """Log of the determinant of D - correlation W."""
        w = to_host(self.adj_matrix.array)
        root = 1.0 / np.sqrt(w.sum(-1))
        values = np.linalg.eigvalsh(w * root[..., None] * root[..., None, :])
        spread = log1p(unsqueeze(self.correlation, -1) * self.correlation.new_tensor(-values))
        return total(spread, -1) + total(log(self._degrees()), -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        n, z = self._event_shape[0], x - self.loc
        neighbours = reshape(self.adj_matrix @ unsqueeze(z, -1), z.array.shape)
        square = total(z * (self._degrees() * z - unsqueeze(self.correlation, -1) * neighbours), -1)
        t = self.conditional_precision
        return 0.5 * (n * log(t) + self._log_det() - t * square) - n * HALF_LOG_2PI

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of the covariance, shape (..., n, n)."""
        eye = self.adj_matrix.new_tensor(np.eye(self._event_shape[0]))
        wide = lambda v: unsqueeze(unsqueeze(v, -1), -1)
        inner = unsqueeze(self._degrees(), -1) * eye - wide(self.correlation) * self.adj_matrix
        return wide(self.conditional_precision) * inner

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        tril = cholesky(self.precision_matrix)
        n = shape[-1]
        # P = L L^T, so L^-T noise has covariance P^-1.
        upper = expand(tril.mT, (*shape[:-1], n, n))
        noise = solve_triangular(upper, unsqueeze(rng.normal(shape), -1), upper=True)
        return self.loc + reshape(noise, shape)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean


class ICAR(Distribution):
    """Intrinsic autoregression: a density of differences of neighbours, and a sum near 0.

    Density ``f(x) = exp(-x @ (diag(degrees(adj_matrix)) - adj_matrix) @ x / (2 * sigma ** 2)) *
    N(sum(x), 0, (len(x) * zero_sum_stdev) ** 2)``.

    Parameters
    ----------
    adj_matrix : Tensor, shape (n, n)
        Symmetric.
    sigma : Tensor or number, positive
        Standard deviation of a difference.
    zero_sum_stdev : Tensor or number, positive
        Standard deviation of the mean of all numbers; small to pin it to 0.

    Notes
    -----
    The density is not normalised, and there are no draws: it is a prior for NUTS.
    """

    adj_matrix: Parameter = param(constraints.independent(constraints.nonnegative, 2))
    sigma: Parameter = param(constraints.positive, default=1.0)
    zero_sum_stdev: Parameter = param(constraints.positive, default=0.001)
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        n = self.adj_matrix.array.shape[-1]
        check_sizes("ICAR", "an adj_matrix", (n, n), self.adj_matrix)
        return (n,)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = float(self._event_shape[0])
        neighbours = reshape(self.adj_matrix @ unsqueeze(x, -1), x.array.shape)
        # Each pair of neighbours once: x^T (D - W) x.
        pairs = total(x * (total(self.adj_matrix, -1) * x - neighbours), -1)
        z = total(x, -1) / (self.zero_sum_stdev * n)
        centre = z * z * -0.5 - log(self.zero_sum_stdev * (n * math.sqrt(2.0 * math.pi)))
        return centre - 0.5 * pairs / (self.sigma * self.sigma)

    def _mean(self) -> Tensor:
        zero = unsqueeze(self.sigma * 0.0, -1)
        return expand(zero, (*self.sigma.array.shape, self._event_shape[0]))

    _mode = _mean
