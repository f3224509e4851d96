"""Native code for rows: which arrays it takes, and where to find it.

Operations along the last dims of an array, whose rows lie one after the other, are each a pass or
two over a row that stays in the cache; NumPy makes five passes over all of them. What is not so
(other dims, gaps, no elements, other dtypes, arrays that are none of NumPy's) is left to NumPy, and
so is everything where there is no native code (compiler/machine/eager_code.py says when).

The functions are ufuncs, so they broadcast their operands but for the row itself.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.config import settings
from probtorch.core import dtype as dtypes
from probtorch.core.native_code import native_function

__all__ = ["alike", "as_rows", "certain_elements", "native_elements", "native_rows"]

_LETTERS = {dtypes.float64: "d", dtypes.float32: "f"}
# Functions by name and dtype, where asked for before; None where there is none.
_known: dict[tuple[str, np.dtype], np.ufunc | None] = {}


def native_rows(
    name: str, x: np.ndarray, dims: tuple[int, ...], *, several: bool = False
) -> np.ufunc | None:
    """Return the function for `x` along `dims`; None where NumPy serves.

    With `several` it may be for more dims than one, and takes the array that `as_rows` makes. The
    steps within rows are not looked at, so it must not be given `out` with gaps in its rows.
    """
    if type(x) is not np.ndarray or not settings.jit or not x.flags.c_contiguous or not x.size:
        return None
    if dims != (x.ndim - 1,) and (not several or not dims or _scattered(dims, x.ndim)):
        return None
    try:
        return _known[name, x.dtype]
    except KeyError:
        return _found(name, x.dtype)


def native_elements(name: str, x: np.ndarray) -> np.ufunc | None:
    """Return the function for the elements of `x`; None where NumPy serves."""
    if type(x) is not np.ndarray or not settings.jit:
        return None
    try:
        return _known[name, x.dtype]
    except KeyError:
        return _found(name, x.dtype)


def certain_elements(name: str, x: np.ndarray) -> np.ufunc:
    """Return `native_elements` where it is known that there are such."""
    found = native_elements(name, x)
    assert found is not None
    return found


def _scattered(dims: tuple[int, ...], ndim: int) -> bool:
    """Whether `dims` are not the last of so many."""
    return sorted(dims) != list(range(ndim - len(dims), ndim))


def _found(name: str, dtype: np.dtype) -> np.ufunc | None:
    letter = _LETTERS.get(dtype) if dtype.isnative else None
    found = None if letter is None else native_function(f"rows {name} {letter}")
    assert found is None or isinstance(found, np.ufunc)
    _known[name, dtype] = found
    return found


def alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether `x` can go beside the rows of `y`."""
    return x.dtype is y.dtype and x.shape == y.shape and x.flags.c_contiguous


def as_rows(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Return `x` with its last dims, of which there are as many as `dims`, as one."""
    if len(dims) == 1:
        return x
    kept = x.shape[: x.ndim - len(dims)]
    return x.reshape(*kept, math.prod(x.shape[len(kept) :]))
