"""Tensors by their memory: of buffers, and uninitialised ones with strides of one's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import wrap
from probtorch.core.shape import sizes
from probtorch.core.signatures import explain_calls
from probtorch.core.told import entered
from probtorch.core.typed import DTypeLike, Shape, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import as_tensor
from probtorch.ops.arithmetic import clone
from probtorch.tensor import Tensor

__all__ = ["asarray", "empty_permuted", "empty_strided", "frombuffer"]


def asarray(
    obj: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return `obj` as a tensor, sharing its memory where possible.

    Parameters
    ----------
    obj : Tensor, array, buffer, number or nested sequence
    dtype, device
        Those of `obj` if None; a conversion copies. Bytes and other buffers are read as `dtype`.
    copy : bool, optional
        True always copies; False refuses where memory cannot be shared.
    requires_grad : bool
        Whether operations on the tensor are recorded; a tensor keeps its place on the tape.

    Raises
    ------
    ArgumentError
        If a copy is forbidden and needed.
    """
    if isinstance(obj, (bytes, bytearray, memoryview)):
        out = frombuffer(obj, dtype=dtypes.default_dtype() if dtype is None else dtype)
        shares = True
        out = out if device is None else out.to(device=device)
    else:
        out = as_tensor(obj, dtype, device)
        given = obj.array if isinstance(obj, Tensor) else obj
        shares = isinstance(given, np.ndarray) and np.shares_memory(given, out.array)
        shares = shares or given is out.array
    if copy is False and not shares:
        raise ArgumentError(
            "asarray",
            expected="data whose memory can be shared, as copy=False asks for",
            got=f"{type(obj).__name__}, which has to be converted",
            fix="leave copy out",
        )
    out = clone(out) if copy and shares else out
    return out.requires_grad_() if requires_grad and not out.requires_grad else out


def frombuffer(
    buffer: bytes | bytearray | memoryview,
    *,
    dtype: DTypeLike,
    count: int = -1,
    offset: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """Return the numbers in a buffer as a vector that shares its memory.

    Parameters
    ----------
    buffer : bytes or anything with Python's buffer protocol
        One that cannot be written to gives a tensor that refuses changes in place.
    dtype : dtype
    count : int
        How many numbers, -1 for all.
    offset : int
        Bytes to skip.

    Raises
    ------
    ArgumentError
        If so many numbers are not there, or bytes are left over.
    """
    kind = dtypes.as_dtype(dtype)
    size = memoryview(buffer).nbytes
    left = size - offset
    fits = 0 <= offset < size and (count * kind.itemsize <= left if count > 0 else count == -1)
    if not fits or (count == -1 and left % kind.itemsize):
        raise ArgumentError(
            "frombuffer",
            expected=f"{'a number of' if count == -1 else count} elements of {kind.itemsize} bytes "
            f"each behind {offset} bytes",
            got=f"a buffer of {size} bytes",
            fix="check dtype=, count= and offset=",
        )
    out = wrap(np.frombuffer(buffer, kind, count, offset))
    entered(buffer, out)
    return out.requires_grad_() if requires_grad else out


def empty_strided(
    size: Shape,
    stride: Shape,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return an uninitialised tensor whose elements lie `stride` elements apart along each dim.

    Raises
    ------
    ShapeError
        If there is not one stride, 0 or more, for each size.
    """
    shape = sizes("empty_strided", (size,))
    steps = tuple(int(s) for s in stride)
    if len(steps) != len(shape) or min(steps, default=0) < 0:
        raise ShapeError(
            "empty_strided",
            expected=f"{len(shape)} strides of 0 or more",
            got=str(steps),
            fix="give a stride, in elements, for each dim",
        )
    kind = dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    last = sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    flat = np.empty(last + 1 if math.prod(shape) else 0, kind)
    there = np.lib.stride_tricks.as_strided(flat, shape, [s * kind.itemsize for s in steps])
    out = wrap(there)
    out = out if device is None else out.to(device=device)
    return out.requires_grad_() if requires_grad else out


def empty_permuted(
    size: Shape,
    physical_layout: Sequence[int],
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return an uninitialised tensor without gaps, whose dims lie in memory in a given order.

    Parameters
    ----------
    size : tuple of int
    physical_layout : tuple of int
        The dims, that of the largest stride first: ``(0, 2, 3, 1)`` is what images with channels
        last have.

    Raises
    ------
    ShapeError
        If it does not name each dim once.
    """
    shape = sizes("empty_permuted", (size,))
    order = [int(d) for d in physical_layout]
    if sorted(order) != list(range(len(shape))):
        raise ShapeError(
            "empty_permuted",
            expected=f"each of {len(shape)} dims once, counted from 0",
            got=str(order),
            fix="list every dim",
        )
    steps, step = [0] * len(shape), 1
    for d in reversed(order):
        steps[d], step = step, step * max(shape[d], 1)
    return empty_strided(
        shape, tuple(steps), dtype=dtype, device=device, requires_grad=requires_grad
    )


explain_calls(globals())
