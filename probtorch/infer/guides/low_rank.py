"""`LowRankNormal`, the distribution behind `AutoLowRankMultivariateNormal`, and where it begins.

With covariance D + W W^T, D diagonal and W with few columns, density and draws cost O(n r^2): by
Woodbury's identity the inverse of the covariance needs that of the small "capacitance" matrix
C = I + W^T D^-1 W, and log det = log det C + log det D.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.distributions.source import Source

__all__ = ["LowRankNormal", "check_rank", "directions"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def check_rank(rank: int | None, guide: str, numbers: str) -> None:
    """Raise ArgumentError unless the `rank` of a guide is a number of directions, or left out."""
    if rank is not None:
        least = "a number of directions"
        fix = f"leave it out for the square root of {numbers}"
        count_of(guide, "rank", rank, expected=least, fix=fix)


def directions(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return rows of length 1 in general position, the same in every run."""
    rows = np.random.default_rng(0).standard_normal(shape)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(dtype)


class LowRankNormal(Distribution):
    """Normal distribution of vectors with covariance ``diag(cov_diag) + cov_factor cov_factor^T``.

    Parameters
    ----------
    loc : Tensor, shape (n,)
        Mean.
    cov_factor : Tensor, shape (n, r)
    cov_diag : Tensor, shape (n,), > 0
    """

    loc: Parameter = param(constraints.real_vector)
    cov_factor: Parameter = param(constraints.real_matrix)
    cov_diag: Parameter = param(constraints.independent(constraints.positive, 1))
    support = constraints.real_vector

    def _infer_event_shape(self) -> tuple[int, ...]:
        n = self.loc.array.shape[-1]
        factor, diag = self.cov_factor.array.shape, self.cov_diag.array.shape
        if len(factor) != 2 or factor[0] != n or diag != (n,):
            raise ShapeError(
                "LowRankNormal",
                expected=f"cov_factor of shape ({n}, r) and cov_diag of shape ({n},)",
                got=f"shapes {factor} and {diag}",
                fix="give one row of the factor per entry of loc, without batch dims",
            )
        return (n,)

    def _rsample(self, rng: Source, shape: tuple[int, ...]) -> TensorBase:
        r = self.cov_factor.array.shape[1]
        few = rng.normal((*shape[:-1], r))
        return self.loc + few @ self.cov_factor.mT + sqrt(self.cov_diag) * rng.normal(shape)

    def _log_prob(self, x: TensorBase) -> TensorBase:
        n, r = self.cov_factor.array.shape
        shift = x - self.loc
        scaled = self.cov_factor / unsqueeze(self.cov_diag, -1)
        capacitance = self.cov_factor.mT @ scaled
        capacitance = capacitance + capacitance.new_tensor(np.eye(r))
        tril = cholesky(capacitance)
        y = solve_triangular(tril, reshape(shift @ scaled, (-1, r)).mT, upper=False)
        explained = reshape(total(y * y, 0), shift.array.shape[:-1])
        squares = total(shift * shift / self.cov_diag, -1) - explained
        half_log_det = total(log(diagonal(tril, 0, -2, -1)), -1) + 0.5 * total(log(self.cov_diag))
        return squares * -0.5 - (half_log_det + n * HALF_LOG_2PI)

    def _mean(self) -> TensorBase:
        return self.loc

    _mode = _mean

    def _variance(self) -> TensorBase:
        return self.cov_diag + total(self.cov_factor * self.cov_factor, -1)
