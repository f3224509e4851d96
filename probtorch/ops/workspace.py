"""Working memory of the native routines that ops declare; sizes are those that LAPACK asks for, so
blocking is as in eager execution.
"""

from __future__ import annotations

import functools

import numpy as np

from probtorch.core.native import Space
from probtorch.core.typed import DType

__all__ = ["eigh_space", "pivots", "pivots_and_logs", "qr_space", "sorting_space", "svd_space"]


def pivots(dtype: DType, n: int, **_: int) -> dict[str, Space]:
    """Row exchanges of one factorisation."""
    return {"pivots": Space("integer", n)}


def pivots_and_logs(dtype: DType, n: int, count: int) -> dict[str, Space]:
    """Row exchanges, and a logarithm for each matrix."""
    return {"pivots": Space("integer", n), "logs": Space("float", count)}


def sorting_space(dtype: DType, n: int, **_: int) -> dict[str, Space]:
    """Keys and indices of one row, twice."""
    return {"space": Space("byte", 2 * n * (8 + dtype.itemsize))}


def eigh_space(dtype: DType, n: int, **_: int) -> dict[str, Space]:
    """What ?syevd asks for."""
    # SciPy has no query for these; the blocked reduction wants 64 columns at the most.
    floats = 1 + 6 * n + 2 * n * n + 64 * n
    return {"floats": Space("float", floats), "integers": Space("integer", 3 + 5 * n)}


def svd_space(dtype: DType, m: int, n: int, **_: int) -> dict[str, Space]:
    """What ?gesdd asks for."""
    # The query counts in floats of the format: in single precision it may round down.
    size = _asked(_letter(dtype) + "gesdd", m, n, compute_uv=1, full_matrices=0) + 64
    return {"floats": Space("float", size), "integers": Space("integer", 8 * min(m, n))}


def qr_space(dtype: DType, m: int, n: int, **_: int) -> dict[str, Space]:
    """What ?geqrf asks for."""
    k = min(m, n)
    size = max(_asked(_letter(dtype) + "geqrf", m, n), 64 * k) + 64
    return {"heads": Space("float", k), "floats": Space("float", size)}


def _letter(dtype: DType) -> str:
    return "d" if dtype == np.float64 else "s"


@functools.cache
def _asked(name: str, m: int, n: int, **options: object) -> int:
    from scipy.linalg import lapack

    size, _ = getattr(lapack, f"{name}_lwork")(m, n, **options)
    return int(size)
