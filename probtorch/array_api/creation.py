"""Functions of the array API that make arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops import diagonals, movement
from probtorch.ops.arithmetic import clone
from probtorch.ops.transfer import to

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]


def _made(
    array: np.ndarray, dtype: DTypeLike | None, device: str | None, *, floats: bool = False
) -> TensorBase:
    """A tensor of a new array: in a dtype, else floats in the default one, on a device."""
    if dtype is not None:
        array = array.astype(dtypes.as_dtype(dtype), copy=False)
    elif floats and array.dtype.kind == "f":
        array = array.astype(dtypes.get_default_dtype(), copy=False)
    t = wrap(array)
    return t if device is None else to(t, device=device)


def asarray(
    obj: TensorLike | Sequence[object],
    /,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> TensorBase:
    """Return a tensor of a tensor, an array, a number, or nested sequences of these.

    Raises
    ------
    ArgumentError
        If there must be no copy, ``copy=False``, and there must be one.
    """
    t = as_tensor(obj, "asarray")
    shared = isinstance(obj, (TensorBase, np.ndarray)) or hasattr(obj, "__array__")
    found = t if dtype is None else cast(t, dtypes.as_dtype(dtype))
    found = found if device is None else to(found, device=device)
    if copy is False and (not shared or found is not t):
        raise ArgumentError(
            "asarray(copy=False)",
            expected="a tensor or an array that can be used as it is",
            got=f"{type(obj).__name__}, which has to be converted",
            fix="leave copy out",
        )
    return clone(found) if copy and shared and found is t else found


def from_dlpack(
    x: TensorBase, /, *, device: str | None = None, copy: bool | None = None
) -> TensorBase:
    """Return a tensor that shares the memory of an array with ``__dlpack__``."""
    found = x if isinstance(x, TensorBase) else as_tensor(np.from_dlpack(x), "from_dlpack")
    found = clone(found) if copy else found
    return found if device is None else to(found, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> TensorBase:
    """Return evenly spaced numbers from `start` (0 if there is no `stop`) up to `stop`."""
    first, last = (0, start) if stop is None else (start, stop)
    return _made(np.arange(first, last, step), dtype, device, floats=True)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> TensorBase:
    """Return `num` evenly spaced numbers from `start` to `stop`."""
    array = np.linspace(start, stop, num, endpoint=endpoint, dtype=np.float64)
    return _made(array, dtype, device, floats=True)


def full(
    shape: int | tuple[int, ...],
    fill_value: complex,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> TensorBase:
    """Return a tensor of one number."""
    return _made(np.full(shape, fill_value), dtype, device, floats=True)


def zeros(
    shape: int | tuple[int, ...], *, dtype: DTypeLike | None = None, device: str | None = None
) -> TensorBase:
    """Return a tensor of zeros, in the default float dtype."""
    return full(shape, 0.0, dtype=dtype, device=device)


def ones(
    shape: int | tuple[int, ...], *, dtype: DTypeLike | None = None, device: str | None = None
) -> TensorBase:
    """Return a tensor of ones, in the default float dtype."""
    return full(shape, 1.0, dtype=dtype, device=device)


# Without a value: zeros, so that no run differs from another.
empty = zeros


def full_like(
    x: TensorBase,
    /,
    fill_value: complex,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> TensorBase:
    """Return a tensor of one number, of the shape, dtype and device of another."""
    dtype = x.array.dtype if dtype is None else dtype
    made = full(tuple(x.array.shape), fill_value, dtype=dtype)
    return to(made, device=x.device if device is None else device)


def zeros_like(
    x: TensorBase, /, *, dtype: DTypeLike | None = None, device: str | None = None
) -> TensorBase:
    """Return zeros, of the shape, dtype and device of another tensor."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(
    x: TensorBase, /, *, dtype: DTypeLike | None = None, device: str | None = None
) -> TensorBase:
    """Return ones, of the shape, dtype and device of another tensor."""
    return full_like(x, 1, dtype=dtype, device=device)


empty_like = zeros_like


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> TensorBase:
    """Return a matrix with ones on its diagonal number `k`."""
    return _made(np.eye(n_rows, n_cols, k=k), dtype, device, floats=True)


def meshgrid(*arrays: TensorBase, indexing: str = "xy") -> list[TensorBase]:
    """Return the coordinates of a grid, from those of its axes.

    Raises
    ------
    ArgumentError
        If `indexing` is neither "xy" nor "ij".
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(
            "meshgrid", expected='indexing "xy" or "ij"', got=repr(indexing), fix="write one"
        )
    sizes = [x.array.size for x in arrays]
    shaped = [
        movement.reshape(x, (1,) * i + (n,) + (1,) * (len(sizes) - i - 1))
        for i, (x, n) in enumerate(zip(arrays, sizes, strict=True))
    ]
    grids = [clone(movement.expand(x, tuple(sizes))) for x in shaped]
    turned = indexing == "xy" and len(grids) > 1
    return [movement.transpose(g, 0, 1) for g in grids] if turned else grids


def tril(x: TensorBase, /, *, k: int = 0) -> TensorBase:
    """Return `x` with zeros above diagonal `k` of its last two dims."""
    return diagonals.tril(x, k)


def triu(x: TensorBase, /, *, k: int = 0) -> TensorBase:
    """Return `x` with zeros below diagonal `k` of its last two dims."""
    return diagonals.triu(x, k)
