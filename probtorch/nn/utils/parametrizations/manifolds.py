"""Matrices from their free coordinates: symmetric, positive definite, orthonormal, of low rank.

The original of each is a vector of as many numbers as such a matrix has degrees of freedom (two
factors for a low rank), so nothing in it is redundant. Where the map is a bijection,
``log_abs_det_jacobian(x, y)`` says how it stretches volume; the measure on the matrices is the
Lebesgue measure of their lower triangles, or for orthonormal ones the invariant measure.
"""

from __future__ import annotations

import functools
import math
from typing import TypeVar

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.factories import eye, zeros
from probtorch.nn.module import Module
from probtorch.nn.utils.parametrizations.orthogonal import (
    check_matrices,
    completed,
    nearest_orthonormal,
)
from probtorch.nn.utils.parametrize import register_parametrization
from probtorch.ops.arithmetic import maximum
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.contraction import matmul
from probtorch.ops.determinants import slogdet
from probtorch.ops.exponentials import exp, log
from probtorch.ops.gathering import index_select
from probtorch.ops.linalg import solve
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total
from probtorch.ops.spectral import eigh, svd
from probtorch.tensor import Tensor

__all__ = [
    "LowRankWeight",
    "PositiveDefiniteWeight",
    "StiefelWeight",
    "SymmetricWeight",
    "low_rank",
    "positive_definite",
    "stiefel",
    "symmetric",
]

M = TypeVar("M", bound=Module)


# ------------------------------------------------------------------------------------- triangles


@functools.cache
def _places(n: int, below: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the elements of a triangle are among those of the matrix, and the other way round.

    The triangle begins `below` the diagonal and is counted by rows; the second array has for each
    element of the matrix its number, and the number after the last where it is not in the triangle.
    """
    rows, columns = np.tril_indices(n, -below)
    flat = rows * n + columns
    numbers = np.full(n * n, flat.size, np.int64)
    numbers[flat] = np.arange(flat.size)
    return flat.astype(np.int64), numbers


def _filled(x: Tensor, n: int, below: int = 0) -> Tensor:
    """Matrices with a triangle from vectors, and zeros elsewhere."""
    _, numbers = _places(n, below)
    padded = cat([x, zeros((*x.shape[:-1], 1), dtype=x.dtype, device=x.device)], -1)
    return reshape(index_select(padded, -1, wrap(numbers)), (*x.shape[:-1], n, n))


def _triangle(matrix: Tensor, below: int = 0) -> Tensor:
    """The triangle of matrices as vectors."""
    n = matrix.shape[-1]
    flat, _ = _places(n, below)
    return index_select(reshape(matrix, (*matrix.shape[:-2], n * n)), -1, wrap(flat))


def _rows(x: Tensor) -> int:
    """How many rows the matrix has whose lower triangle is a vector."""
    return (math.isqrt(8 * x.shape[-1] + 1) - 1) // 2


def _check_square(what: str, value: Tensor) -> None:
    check_matrices(what, value)
    if value.shape[-2] != value.shape[-1]:
        raise ShapeError(
            what,
            expected="square matrices",
            got=f"shape {tuple(value.shape)}",
            fix="choose a layer with as many outputs as inputs",
        )


# ------------------------------------------------------------------------------------ the manifolds


class SymmetricWeight(Module):
    """Symmetric matrices from their lower triangles, row by row.

    The log-determinant is 0: elements of the triangle are coordinates of the matrix.

    Examples
    --------
    >>> from probtorch import tensor
    >>> SymmetricWeight()(tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [2., 3.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return matrices, shape (..., n, n), from vectors, shape (..., n (n + 1) / 2)."""
        n = _rows(x)
        lower = _filled(x, n)
        return lower + lower.tril(-1).mT

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the lower triangle of the symmetric part of `value`."""
        _check_square("symmetric", value)
        return _triangle((value + value.mT) * 0.5)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 0."""
        return total(x * 0.0)


class PositiveDefiniteWeight(Module):
    """Positive definite matrices from their Cholesky factors, diagonals as logarithms.

    The log-determinant is with respect to the lower triangle of the matrix.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return matrices, shape (..., n, n), from vectors, shape (..., n (n + 1) / 2)."""
        lower = _filled(x, _rows(x))
        diagonal = exp(lower.diagonal(dim1=-2, dim2=-1)).diag_embed()
        factor = lower.tril(-1) + diagonal
        return matmul(factor, factor.mT)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return what gives `value`.

        Raises
        ------
        DomainError
            If it is not positive definite.
        """
        _check_square("positive_definite", value)
        with no_grad():
            values = eigh((value + value.mT) * 0.5)[0]
        if value.numel() and not (values > 0.0).all():
            raise DomainError(
                "positive_definite",
                expected="a symmetric matrix with positive eigenvalues",
                got=f"a least eigenvalue of {values.min().item():.4g}",
                fix="add a multiple of the identity",
            )
        factor = cholesky((value + value.mT) * 0.5)
        diagonal = log(factor.diagonal(dim1=-2, dim2=-1)).diag_embed()
        return _triangle(factor.tril(-1) + diagonal)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``sum_i (log 2 + (n - i + 2) log L_ii)`` with i from 1, for Y = L L'.

        The triangle of L L' has the derivative ``2^n prod_i L_ii^(n - i + 1)`` with respect to that
        of L (Muirhead 1982, theorem 2.1.9), and L_ii = exp(x_ii) one of L_ii.
        """
        n = _rows(x)
        logs = _filled(x, n).diagonal(dim1=-2, dim2=-1)
        powers = wrap((n + 1.0 - np.arange(n)).astype(x.array.dtype))
        return total(logs * powers + math.log(2.0))


class StiefelWeight(Module):
    """Matrices with orthonormal columns, by Cayley's transform of their free coordinates.

    Parameters
    ----------
    shape : tuple of int
        Of the matrices, (..., n, k); with more columns than rows it is rows that are orthonormal.

    Attributes
    ----------
    base : Tensor, shape (..., n, n)
        Orthogonal; its first columns are the matrix that the vector 0 gives.

    Notes
    -----
    With B skew-symmetric, of k (k - 1) / 2 elements below its diagonal, and C of n - k rows::

        S = I - B / 2 + C'C / 4,    W = base [2 / S - I; C / S]

    which are the first columns of Cayley's transform of [[B, -C'], [C, 0]] / 2. It is a bijection
    onto nearly all of the Stiefel manifold (of the rotations, where n = k). The log-determinant is
    ``-(n - 1) log det S`` with respect to the invariant measure: with B and C changing, the
    elements below the diagonal of ``M' dA M`` are ``M_11' dB M_11 + ...`` and ``dC M_11 + ...``
    with M_11 the inverse of S, and what is left out does not add to the determinant.

    References
    ----------
    M. Jauch, P. D. Hoff, D. B. Dunson, "Random orthogonal matrices and the Cayley transform",
    Bernoulli 26, 2020, who compute the determinant from the whole Jacobian.
    """

    base: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        if len(shape) < 2:
            check_matrices("stiefel", zeros(shape))
        self.shape = tuple(shape)
        self.wide = shape[-2] < shape[-1]
        self.n, self.k = max(shape[-2:]), min(shape[-2:])
        self.register_buffer("base", None)

    def extra_repr(self) -> str:
        return f"{self.shape}"

    def _coordinates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """B, C and S of a vector."""
        n, k = self.n, self.k
        turning = k * (k - 1) // 2
        lower = _filled(x[..., :turning], k, 1)
        b = lower - lower.mT
        c = reshape(x[..., turning:], (*x.shape[:-1], n - k, k))
        one = eye(k, dtype=x.dtype, device=x.device)
        return b, c, one - b * 0.5 + matmul(c.mT, c) * 0.25

    def forward(self, x: Tensor) -> Tensor:
        """Return matrices from vectors, shape (..., n k - k (k + 1) / 2)."""
        _, c, s = self._coordinates(x)
        one = eye(self.k, dtype=x.dtype, device=x.device)
        inverse = solve(s, one.expand(s.shape))
        q = matmul(self.base, cat([inverse * 2.0 - one, matmul(c, inverse)], -2))
        return q.mT if self.wide else q

    @no_grad
    def right_inverse(self, value: Tensor) -> Tensor:
        """Set `base` to `value`, or the nearest matrix with orthonormal columns; returns zeros."""
        if tuple(value.shape) != self.shape:
            raise ShapeError(
                "stiefel",
                expected=f"a tensor of shape {self.shape}",
                got=str(tuple(value.shape)),
                fix="assign a tensor of the shape of the weight",
            )
        self.base = completed(nearest_orthonormal(value.mT if self.wide else value))
        count = self.n * self.k - self.k * (self.k + 1) // 2
        return zeros((*self.shape[:-2], count), dtype=value.dtype, device=value.device)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``-(n - 1) log det S``, summed over matrices."""
        _, _, s = self._coordinates(x)
        return total(slogdet(s).logabsdet) * -(self.n - 1.0)


class LowRankWeight(Module):
    """Matrices of a rank, as products of two factors.

    Parameters
    ----------
    rank : int

    Notes
    -----
    No bijection: ``(A G, inverse(G) B)`` is the same matrix as ``(A, B)``.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        if not isinstance(rank, int) or rank < 1:
            raise ArgumentError(
                "LowRankWeight",
                expected="a rank that is an integer > 0",
                got=repr(rank),
                fix="pass 1",
            )
        self.rank = rank

    def extra_repr(self) -> str:
        return f"rank={self.rank}"

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the product of factors of shapes (..., n, rank) and (..., rank, m)."""
        return matmul(left, right)

    def right_inverse(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return equal factors of the nearest matrix of that rank."""
        check_matrices("low_rank", value)
        if self.rank > min(value.shape[-2:]):
            raise ArgumentError(
                "low_rank",
                expected=f"a rank of at most {min(value.shape[-2:])}, the smaller dim",
                got=str(self.rank),
                fix="a matrix of full rank needs no parametrization",
            )
        u, s, vh = svd(value, full_matrices=False)
        root = s[..., : self.rank] ** 0.5
        return u[..., :, : self.rank] * root[..., None, :], vh[..., : self.rank, :] * root[
            ..., None
        ]


# ------------------------------------------------------------------------------------ registering


def symmetric(module: M, name: str = "weight") -> M:
    """Keep a square weight symmetric; it starts as its symmetric part.

    Parameters
    ----------
    module : Module
    name : str

    Returns
    -------
    Module
        `module`, which has changed. The original is the lower triangle, a vector.
    """
    return register_parametrization(module, name, SymmetricWeight())


def positive_definite(module: M, name: str = "weight") -> M:
    """Keep a square weight symmetric with positive eigenvalues.

    Parameters
    ----------
    module : Module
    name : str

    Returns
    -------
    Module
        `module`, which has changed. Its weight starts as its symmetric part with the absolute
        values of the eigenvalues, those near 0 brought up to a thousandth of the largest.
    """
    weight = getattr(module, name, None)
    if isinstance(weight, Tensor) and weight.ndim > 1 and weight.shape[-1] == weight.shape[-2]:
        with no_grad():
            part = (weight + weight.mT) * 0.5
            values, vectors = eigh(part)
            if not (values > 0.0).all():
                values = maximum(abs(values), abs(values).max() * 1e-3)
                weight.copy_(matmul(vectors * values[..., None, :], vectors.mT))
    return register_parametrization(module, name, PositiveDefiniteWeight())


def stiefel(module: M, name: str = "weight") -> M:
    """Keep the columns of a weight orthonormal, or its rows if it has more columns than rows.

    Parameters
    ----------
    module : Module
    name : str
        A tensor of shape (..., n, k).

    Returns
    -------
    Module
        `module`, which has changed. Its weight starts as the nearest one with orthonormal columns.
        The original has the n k - k (k + 1) / 2 free coordinates, so the weight can carry a prior.

    Examples
    --------
    >>> from probtorch import nn
    >>> from probtorch.nn.utils.parametrize import log_abs_det_jacobian
    >>> layer = stiefel(nn.Linear(2, 5))
    >>> tuple(layer.parametrizations.weight.original.shape)
    (7,)
    >>> log_abs_det_jacobian(layer, "weight").item() == 0.0  # at the base
    True
    """
    weight = getattr(module, name, None)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else (0, 0)
    return register_parametrization(module, name, StiefelWeight(shape))


def low_rank(module: M, name: str = "weight", rank: int = 1) -> M:
    """Keep the rank of a weight; it starts as the nearest matrix of that rank.

    Parameters
    ----------
    module : Module
    name : str
        A tensor of shape (..., n, m).
    rank : int

    Returns
    -------
    Module
        `module`, which has changed. The originals are factors of shapes (..., n, rank) and
        (..., rank, m).
    """
    return register_parametrization(module, name, LowRankWeight(rank))


explain_calls(globals())
