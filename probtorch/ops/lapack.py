"""LAPACK and BLAS on NumPy's arrays of one matrix, where an operation can be had in fewer passes.

LAPACK counts by columns, so a row-major matrix is its transpose to it: nothing here copies one to
turn it. `cholesky_slope` is the derivative by recursive halves, all in products and triangular
solves (Murray 2016, section 4).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from probtorch.core.typed import DType

__all__ = ["cholesky_factor", "cholesky_slope", "solve_triangle"]

# Matrices up to this size are differentiated by the formula for whole ones: there the calls take
# longer than the arithmetic.
_WHOLE = 64


_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


# SciPy takes 5 us to find a routine each time.
@functools.cache
def _potrf(dtype: DType) -> Callable[..., tuple[np.ndarray, int]]:
    import scipy.linalg.lapack

    found: Callable[..., tuple[np.ndarray, int]] = getattr(
        scipy.linalg.lapack, _LETTERS[dtype.char] + "potrf"
    )
    return found


@functools.cache
def _trsm(dtype: DType) -> Callable[..., np.ndarray]:
    import scipy.linalg.blas

    found: Callable[..., np.ndarray] = getattr(scipy.linalg.blas, _LETTERS[dtype.char] + "trsm")
    return found


def cholesky_factor(a: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the lower factor of a symmetric matrix, row by row in memory, and LAPACK's verdict: 0,
    or the order of the leading minor that is not positive.
    """
    # The upper factor of what LAPACK sees, which is the transpose, is ours transposed.
    upper, info = _potrf(a.dtype)(a.T, lower=0, clean=1)
    return upper.T, info


def solve_triangle(a: np.ndarray, b: np.ndarray, upper: bool, unitriangular: bool) -> np.ndarray:
    """Return x with ``a @ x = b`` for a triangular matrix without zeros on its diagonal."""
    solve = _trsm(b.dtype)
    # x^T a^T = b^T, where the transposes are what BLAS sees.
    return solve(1.0, a.T, b.T, side=1, lower=int(upper), diag=int(unitriangular)).T


def cholesky_slope(factor: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return the gradient in the lower triangle of a matrix, for the gradient `g` of its Cholesky
    factor, of which the lower triangle counts. Real numbers only.
    """
    slope = np.array(g, order="C")
    _make_symmetric(factor, slope)
    _make_lower(slope)
    return slope


def _make_symmetric(factor: np.ndarray, g: np.ndarray) -> None:
    """Turn the gradient `g` of a factor, of which the lower triangle counts, into that of the
    matrix, symmetric.
    """
    n = factor.shape[0]
    if n <= _WHOLE:
        _make_symmetric_at_once(factor, g)
        return
    # By blocks: A11 = L11 L11^T, L21 = A21 L11^-T, and L22 is the factor of A22 - L21 L21^T.
    k = n // 2
    first, below, of_first, of_last = factor[:k, :k], factor[k:, :k], g[:k, :k], g[k:, k:]
    _make_symmetric(factor[k:, k:], of_last)
    turned = below.T @ of_last  # solves from the right are the faster ones, of columns in memory
    turned *= -2.0
    turned += g[k:, :k].T
    solve = _trsm(g.dtype)
    of_below = solve(1.0, first.T, turned.T, side=1, lower=0, trans_a=1, overwrite_b=1)
    of_first -= of_below.T @ below
    of_below *= 0.5
    g[k:, :k], g[:k, k:] = of_below, of_below.T
    _make_symmetric(first, of_first)


def _make_symmetric_at_once(factor: np.ndarray, g: np.ndarray) -> None:
    """The same as S + S^T, where 2 S = L^-T Phi(L^T G) L^-1 (Murray 2016, equation 10)."""
    lower, half = _weights(factor.shape[0], g.dtype)
    inner = factor.T @ (g * lower)
    inner *= half
    solve = _trsm(g.dtype)
    upper = np.ascontiguousarray(factor).T
    inner = solve(0.5, upper, inner.T, lower=0, overwrite_b=1)
    inner = solve(1.0, upper, inner, side=1, lower=0, trans_a=1, overwrite_b=1)
    np.add(inner, inner.T, out=g)


def _make_lower(slope: np.ndarray) -> None:
    """Turn the gradient of a symmetric matrix into that in its lower triangle alone."""
    n = slope.shape[0]
    if n <= _WHOLE:
        slope *= 2.0 * _weights(n, slope.dtype)[1]
        return
    k = n // 2
    slope[k:, :k] *= 2.0
    slope[:k, k:] = 0.0
    _make_lower(slope[:k, :k])
    _make_lower(slope[k:, k:])


@functools.lru_cache(8)
def _weights(n: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return what keeps a lower triangle, and what keeps it with half of its diagonal."""
    lower = np.tril(np.ones((n, n), dtype))
    return lower, lower - 0.5 * np.eye(n, dtype=dtype)
