"""The CPU backend: NumPy, with SciPy's special functions and triangular solve.

The functions are those every backend has; see `registry.py`. SciPy's subpackages are imported when
first asked for, because a program that needs neither should not wait for them.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = [
    "contiguous",
    "device_of",
    "linalg",
    "namespace",
    "owns",
    "solve_triangular",
    "special",
    "to_host",
    "unavailable_reason",
]

_SCALARS = (bool, int, float, complex, np.generic)


def owns(array: Any) -> bool:
    """Whether `array` is a NumPy array or a number."""
    return isinstance(array, (np.ndarray, *_SCALARS))


def namespace() -> Any:
    """Return NumPy."""
    return np


def unavailable_reason(index: int | None) -> str | None:
    """Return None: there is always a CPU."""
    return None


def contiguous(array: Any) -> np.ndarray:
    """Return the array in row-major order: itself if it is, else a copy."""
    return np.asarray(array, order="C")


def device_of(array: Any) -> str:
    """Return "cpu"."""
    return "cpu"


def to_host(array: Any) -> np.ndarray:
    """Return `array` itself, or a 0-d array for a number."""
    return np.asarray(array)


def special() -> Any:
    """Return `scipy.special`."""
    import scipy.special

    return scipy.special


def linalg() -> Any:
    """Return `numpy.linalg`'s functions and `solve_triangular`."""
    return _LINALG


def solve_triangular(
    a: np.ndarray,
    b: np.ndarray,
    *,
    lower: bool = False,
    transpose: bool = False,
    unit_diagonal: bool = False,
) -> np.ndarray:
    """Solve ``a @ x = b`` (or ``a.T @ x = b``) for triangular `a`, over broadcast batches.

    Parameters
    ----------
    a : ndarray, shape (..., n, n)
        Only the named triangle is read.
    b : ndarray, shape (..., n, k)
        Right-hand sides, a column each.
    lower : bool
        Whether `a` is lower triangular.
    transpose : bool
        Solve with the transpose of `a` (not conjugated).
    unit_diagonal : bool
        Take the diagonal of `a` to be 1 without reading it.

    Returns
    -------
    x : ndarray, shape (..., n, k)

    Raises
    ------
    numpy.linalg.LinAlgError
        If a diagonal entry is exactly 0.
    """
    import scipy.linalg

    def solve(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_triangular(
            matrix,
            columns,
            trans=1 if transpose else 0,
            lower=lower,
            unit_diagonal=unit_diagonal,
            check_finite=False,
        )

    if a.ndim == 2 and b.ndim == 2 and b.size:
        return solve(a, b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.empty(batch + b.shape[-2:], np.result_type(a, b))
    if x.size:
        a = np.broadcast_to(a, batch + a.shape[-2:])
        b = np.broadcast_to(b, batch + b.shape[-2:])
        for index in np.ndindex(batch):
            x[index] = solve(a[index], b[index])
    return x


_LINALG = SimpleNamespace(
    **{name: getattr(np.linalg, name) for name in np.linalg.__all__},
    solve_triangular=solve_triangular,
)
