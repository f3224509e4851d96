"""How eager execution adds up arrays of low precision: the error must not grow with the length.

Half precision is added up in single precision. NumPy adds single precision pairwise along the dim
that lies closest in memory, and one after the other along all others, where a million terms lose
1 %: these are added up in stretches, with a total in double precision, as compiled sums are.
Running sums and products are computed in the next wider dtype throughout.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core import dtype as dtypes

__all__ = ["add_up", "floats", "over_short_rows", "reduced", "wider"]

# Terms that are added one after the other.
_STRETCH = 256

# Rows shorter than this are reduced column by column where there are many: NumPy takes 40 ns to
# begin a row. Sums are the same bits, as NumPy adds up fewer than 8 numbers one after the other.
_SHORT, _MANY = 8, 1024

# Of these few numbers are added up as NumPy does it.
_PLAIN = frozenset((dtypes.float64, dtypes.float32, dtypes.int64))
_WIDER = {"float16": dtypes.float32, "float32": dtypes.float64, "complex64": dtypes.complex128}

# Below, types are ignored where NumPy's, from 2.5 on, take `keepdims` as a literal only.


def over_short_rows(
    x: np.ndarray, dims: tuple[int, ...], keepdim: bool, ufunc: np.ufunc
) -> np.ndarray | None:
    """Return the reduction of `x` where `dims` is its last dim, and short; else None."""
    if x.size < _MANY or dims != (x.ndim - 1,) or not 1 < x.shape[-1] < _SHORT:
        return None
    if not isinstance(x, np.ndarray) or x.dtype.kind == "c":
        return None
    out = ufunc(x[..., 0], x[..., 1])
    for k in range(2, x.shape[-1]):
        ufunc(out, x[..., k], out=out)
    return out[..., None] if keepdim else out


def reduced(ufunc: np.ufunc, x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Return what `x.sum` and its like do for a NumPy array, without their steps in Python."""
    return ufunc.reduce(x, dims, None, None, keepdim)  # type: ignore[call-arg,unused-ignore]


def add_up(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Return the sum of the array `x` over `dims`, in its dtype."""
    if x.size <= _STRETCH and x.dtype in _PLAIN and type(x) is np.ndarray:
        return reduced(np.add, x, dims, keepdim)
    if (
        type(x) is np.ndarray
        and x.dtype is dtypes.float32
        and x.flags.c_contiguous
        and (len(dims) == x.ndim or (dims == (x.ndim - 1,) and x.shape[-1] >= _SHORT))
    ):
        return reduced(np.add, x, dims, keepdim)  # along what lies closest: in pairs
    if x.dtype == dtypes.complex64:
        return x.sum(axis=dims, keepdims=keepdim, dtype=dtypes.complex128).astype(x.dtype)  # type: ignore[call-overload,unused-ignore]
    if x.dtype is not dtypes.float16:
        short = over_short_rows(x, dims, keepdim, np.add)
        if short is not None:
            return short
    if x.dtype.kind != "f":
        # NumPy would add up small integers in wide ones, and give these.
        return x.sum(axis=dims, keepdims=keepdim, dtype=x.dtype)  # type: ignore[call-overload,unused-ignore]
    if x.dtype is dtypes.float16:
        return x.sum(axis=dims, keepdims=keepdim, dtype=dtypes.float32).astype(x.dtype)  # type: ignore[call-overload,unused-ignore]
    if x.dtype is dtypes.float32 and x.size > 2 * _STRETCH and isinstance(x, np.ndarray):
        terms = 1
        for d in dims:
            terms *= x.shape[d]
        if terms > 2 * _STRETCH:
            return _single(x, dims, keepdim)
    if type(x) is np.ndarray:
        return reduced(np.add, x, dims, keepdim)
    return x.sum(axis=dims, keepdims=keepdim)  # type: ignore[call-overload,unused-ignore]


def _single(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    fast = min(range(x.ndim), key=lambda d: (x.shape[d] == 1, abs(x.strides[d])), default=0)
    slow = [d for d in dims if d != fast]
    terms = math.prod(x.shape[d] for d in slow)
    in_one_piece = len(dims) == x.ndim and (x.flags.c_contiguous or x.flags.f_contiguous)
    if terms <= 2 * _STRETCH or in_one_piece:
        return x.sum(axis=dims, keepdims=keepdim)  # type: ignore[call-overload,unused-ignore]
    if len(dims) == x.ndim:
        total = x.sum(axis=dims, keepdims=keepdim, dtype=dtypes.float64)  # type: ignore[call-overload,unused-ignore]
        return np.asarray(total).astype(x.dtype)
    longest = max(slow, key=lambda d: x.shape[d])
    step = max(1, _STRETCH * x.shape[longest] // terms)
    cut = [slice(None)] * x.ndim
    out: np.ndarray | float = 0.0
    for start in range(0, x.shape[longest], step):
        cut[longest] = slice(start, start + step)
        # With a step of 1 the other dims may still be long.
        out = out + _single(x[tuple(cut)], dims, keepdim).astype(dtypes.float64)
    return np.asarray(out).astype(x.dtype)


def floats(x: np.ndarray) -> np.ndarray:
    """Return the array `x`, integers in the default float dtype."""
    return x if x.dtype.kind == "f" else x.astype(dtypes.default_dtype())


def wider(x: np.ndarray) -> np.ndarray:
    """Return the array `x` in the dtype that running sums and products of it are computed in."""
    wide = _WIDER.get(x.dtype.name)
    return x if wide is None else x.astype(wide)
