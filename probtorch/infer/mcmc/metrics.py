"""Euclidean metrics: how momentum, velocity and kinetic energy depend on the mass matrix.

The covariance of the position, the inverse mass matrix, is factored as ``inverse_mass = F F^T``.
Momenta are kept whitened, ``p = F^T p_plain``, so that they are standard normal, the kinetic energy
is ``p . p / 2`` and the no-U-turn criterion needs no matrix: ``p_plain . inverse_mass . rho_plain =
p . rho``. Only two products with F per step remain, the velocity ``F p`` and the force ``F^T g``.
The trajectories are those of the plain formulation (Neal 2011, section 4.1).

A metric is a record with `velocity` and `force` in tensor ops, and for Python `inverse_mass`,
`variance` (its diagonal) and `log_determinant`. What warm-up makes them of is in estimates.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.errors import DomainError
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.ops.contraction import matmul
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.reduction import sum as total

__all__ = [
    "BlockMetric",
    "DenseMetric",
    "DiagonalMetric",
    "LowRankMetric",
    "Metric",
    "kinetic_energy",
    "sample_momentum",
]


# Directions of a low-rank metric that one pass over a vector deals with: most metrics have no more,
# and a pass costs as much as a direction or two.
TOGETHER = 4


def sample_momentum(key: Key, counter: TensorBase, dim: int) -> TensorBase:
    """Draw a whitened momentum, shape (dim,), from `dim` counters, the first being `counter`."""
    return normals(key, counter, dim)


def kinetic_energy(momentum: TensorBase) -> TensorBase:
    """Return half the squared length of a whitened momentum."""
    return 0.5 * total(momentum * momentum)


class Metric(Protocol):
    """What samplers ask of a metric, in tensor ops, and what Python does."""

    @property
    def name(self) -> str:
        """What results call it."""

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return dq/dt for a whitened momentum."""

    def force(self, grad: TensorBase) -> TensorBase:
        """Return dp/dt of the whitened momentum for a gradient of the log density."""

    def inverse_mass(self) -> np.ndarray:
        """Return the inverse mass matrix, or its diagonal where that is all."""

    def variance(self) -> np.ndarray:
        """Return the diagonal of the inverse mass matrix."""

    def log_determinant(self) -> float:
        """Return the logarithm of the determinant of the inverse mass matrix.

        Of a metric whose leaves are those of several, stacked, an array of theirs.
        """


@record
class DiagonalMetric:
    """A diagonal inverse mass matrix.

    Parameters
    ----------
    scale : Tensor, shape (dim,)
        Its square root: about the standard deviation of each coordinate.
    """

    name = "diag"

    scale: TensorBase

    @classmethod
    def unit(cls, dim: int) -> DiagonalMetric:
        """Return the identity."""
        return cls(wrap(np.ones(dim)))

    @classmethod
    def from_inverse_mass(cls, variance: np.ndarray) -> DiagonalMetric:
        """Return the metric whose inverse mass matrix has this diagonal, array of shape (dim,).

        Raises
        ------
        DomainError
            Unless all entries are positive and finite.
        """
        variance = np.asarray(variance, np.float64)
        # Of nan neither is true.
        if not (variance.min(initial=1.0) > 0.0 and variance.max(initial=1.0) < np.inf):
            bad = np.flatnonzero(~((variance > 0) & np.isfinite(variance)))
            raise DomainError(
                "inverse mass matrix",
                expected="positive finite variances",
                got=f"{variance[bad[0]]} at index {bad[0]}",
                fix="give variances of the unconstrained parameters",
            )
        return cls(wrap(np.sqrt(variance)))

    def inverse_mass(self) -> np.ndarray:
        """Return the diagonal of the inverse mass matrix as an array."""
        return self.scale.array**2

    variance = inverse_mass

    def log_determinant(self) -> float:
        """Return the logarithm of the determinant of the inverse mass matrix."""
        return 2.0 * np.log(self.scale.array).sum(axis=-1)

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return dq/dt for a whitened momentum."""
        return self.scale * momentum

    def force(self, grad: TensorBase) -> TensorBase:
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        return self.scale * grad


@record
class LowRankMetric:
    """A diagonal, and a few directions along which the scaled position is wider or narrower.

    The inverse mass matrix is ``S (I + V (L - I) V^T) S`` with the scales S, orthonormal directions
    V and their variances L. Its symmetric factor before S is ``I + V (sqrt(L) - I) V^T``, so a
    product takes O(directions x dim).

    Parameters
    ----------
    scale : Tensor, shape (dim,)
    directions : Tensor, shape (blocks, TOGETHER, dim)
        Orthonormal rows; those from `count` on are zero, and blocks of them cost nothing.
    stretch : Tensor, shape (blocks, TOGETHER)
        Square root of each variance, less 1.
    count : Tensor, 0-d int64
        Directions in use.
    """

    scale: TensorBase
    directions: TensorBase
    stretch: TensorBase
    count: TensorBase

    @property
    def name(self) -> str:
        """Return "diag" where there are no directions, else "low_rank"."""
        return "low_rank" if int(self.count.array) else "diag"

    @classmethod
    def of(
        cls, scale: np.ndarray, directions: np.ndarray, variances: np.ndarray, room: int
    ) -> LowRankMetric:
        """Return the metric with these rows of `directions`, of which there are at most `room`."""
        count, dim = directions.shape
        blocks = -(-room // TOGETHER)
        rows, stretch = np.zeros((blocks * TOGETHER, dim)), np.zeros((blocks, TOGETHER))
        rows[:count], stretch.flat[:count] = directions, np.sqrt(variances) - 1.0
        together = wrap(rows.reshape(blocks, TOGETHER, dim))
        return cls(wrap(np.asarray(scale)), together, wrap(stretch), wrap(np.array(count)))

    @classmethod
    def unit(cls, dim: int, room: int) -> LowRankMetric:
        """Return the identity, with room for so many directions."""
        return cls.of(np.ones(dim), np.zeros((0, dim)), np.zeros(0), room)

    def in_use(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the directions, rows of an array, and their variances."""
        count = int(self.count.array)
        rows = self.directions.array.reshape(-1, len(self.scale.array))
        return rows[:count], (1.0 + self.stretch.array.reshape(-1)[:count]) ** 2

    def inverse_mass(self) -> np.ndarray:
        """Return the inverse mass matrix as an array."""
        (rows, variances), scale = self.in_use(), self.scale.array
        inner = np.eye(len(scale)) + (rows.T * (variances - 1.0)) @ rows
        return scale[:, None] * inner * scale

    def variance(self) -> np.ndarray:
        """Return the diagonal of the inverse mass matrix."""
        rows, variances = self.in_use()
        return self.scale.array**2 * (1.0 + (variances - 1.0) @ rows**2)

    def log_determinant(self) -> float:
        """Return the logarithm of the determinant of the inverse mass matrix."""
        stretch = self.stretch.array  # 0 where a direction is not in use
        stretches = np.log1p(stretch.reshape(*stretch.shape[:-2], -1)).sum(axis=-1)
        return 2.0 * (np.log(self.scale.array).sum(axis=-1) + stretches)

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return dq/dt for a whitened momentum."""
        return self.scale * self._stretched(momentum)

    def force(self, grad: TensorBase) -> TensorBase:
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        return self._stretched(self.scale * grad)

    def _stretched(self, x: TensorBase) -> TensorBase:
        directions, stretch = self.directions, self.stretch

        def add(state: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
            block, out = state
            # Row by row: a block would be copied, which takes as long as a product.
            rows = [directions[block, i] for i in range(TOGETHER)]
            along = [stretch[block, i] * total(row * x) for i, row in enumerate(rows)]
            for row, length in zip(rows, along):
                out = out + length * row
            return block + 1, out

        first = wrap(np.zeros((), np.int64))
        blocks = (self.count + (TOGETHER - 1)) // TOGETHER
        return while_loop(lambda state: state[0] < blocks, add, (first, x))[1]


@record
class DenseMetric:
    """A full inverse mass matrix.

    Parameters
    ----------
    factor : Tensor, shape (dim, dim)
        Its lower Cholesky factor.
    """

    name = "dense"

    factor: TensorBase

    @classmethod
    def unit(cls, dim: int) -> DenseMetric:
        """Return the identity."""
        return cls(wrap(np.eye(dim)))

    @classmethod
    def from_inverse_mass(cls, covariance: np.ndarray) -> DenseMetric:
        """Return the metric with this inverse mass matrix, array of shape (dim, dim).

        Raises
        ------
        DomainError
            If it is not symmetric and positive definite.
        """
        covariance = np.asarray(covariance, np.float64)
        fix = "give the covariance of the unconstrained parameters, or leave it out"
        if not np.allclose(covariance, covariance.T, rtol=1e-8, atol=0.0):
            raise DomainError(
                "inverse mass matrix",
                expected="a symmetric matrix",
                got="an asymmetric one",
                fix=fix,
            )
        try:
            return cls(wrap(np.linalg.cholesky(covariance)))
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(covariance)[0] if np.isfinite(covariance).all() else np.nan
            raise DomainError(
                "inverse mass matrix",
                expected="a positive definite matrix",
                got=f"smallest eigenvalue {least:.3g}",
                fix=fix,
            ) from None

    def inverse_mass(self) -> np.ndarray:
        """Return the inverse mass matrix as an array."""
        return self.factor.array @ self.factor.array.T

    def variance(self) -> np.ndarray:
        """Return the diagonal of the inverse mass matrix."""
        return (self.factor.array**2).sum(axis=1)

    def log_determinant(self) -> float:
        """Return the logarithm of the determinant of the inverse mass matrix."""
        return 2.0 * np.log(self.factor.array.diagonal(0, -2, -1)).sum(axis=-1)

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return dq/dt for a whitened momentum."""
        return matmul(self.factor, momentum)

    def force(self, grad: TensorBase) -> TensorBase:
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        return matmul(grad, self.factor)


@record
class BlockMetric:
    """An inverse mass matrix with dense blocks, each of some coordinates, and a diagonal elsewhere.

    Parameters
    ----------
    scale : Tensor, shape (dim,)
        Square root of the diagonal; what it holds inside a block is not looked at.
    places : tuple of Tensor, each (size,), int64
        The coordinates of each block; no two blocks share one.
    factors : tuple of Tensor, each (size, size)
        Lower Cholesky factors of the blocks.
    """

    name = "blocks"

    scale: TensorBase
    places: tuple[TensorBase, ...]
    factors: tuple[TensorBase, ...]

    @classmethod
    def unit(cls, dim: int, places: Sequence[np.ndarray]) -> BlockMetric:
        """Return the identity with blocks at the given coordinates, a sequence of arrays."""
        return cls(
            wrap(np.ones(dim)),
            tuple(wrap(np.asarray(at, np.int64)) for at in places),
            tuple(wrap(np.eye(len(at))) for at in places),
        )

    @classmethod
    def from_inverse_mass(
        cls,
        variance: np.ndarray,
        places: Sequence[np.ndarray],
        covariances: Sequence[np.ndarray],
    ) -> BlockMetric:
        """Return the metric with these variances, and covariances of the blocks at `places`.

        Raises
        ------
        DomainError
            As `DiagonalMetric` and `DenseMetric` do.
        """
        return cls(
            DiagonalMetric.from_inverse_mass(variance).scale,
            tuple(wrap(np.asarray(at, np.int64)) for at in places),
            tuple(DenseMetric.from_inverse_mass(c).factor for c in covariances),
        )

    def inverse_mass(self) -> np.ndarray:
        """Return the inverse mass matrix as an array."""
        whole = np.diag(self.scale.array**2)
        for at, factor in zip(self.places, self.factors):
            whole[np.ix_(at.array, at.array)] = factor.array @ factor.array.T
        return whole

    def variance(self) -> np.ndarray:
        """Return the diagonal of the inverse mass matrix."""
        variance = self.scale.array**2
        for at, factor in zip(self.places, self.factors):
            variance[at.array] = (factor.array**2).sum(axis=1)
        return variance

    def log_determinant(self) -> float:
        """Return the logarithm of the determinant of the inverse mass matrix."""
        logs = np.log(self.scale.array)
        for at, factor in zip(self.places, self.factors):
            np.put_along_axis(logs, at.array, np.log(factor.array.diagonal(0, -2, -1)), -1)
        return 2.0 * logs.sum(axis=-1)

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return dq/dt for a whitened momentum."""
        out = self.scale * momentum
        for at, factor in zip(self.places, self.factors):
            out = index_put(out, (at,), matmul(factor, momentum[at]))
        return out

    def force(self, grad: TensorBase) -> TensorBase:
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        out = self.scale * grad
        for at, factor in zip(self.places, self.factors):
            out = index_put(out, (at,), matmul(grad[at], factor))
        return out
