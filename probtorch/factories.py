"""Tensors made from nothing: filled ones, ranges, grids, and `as_tensor`.

Signatures are PyTorch's. Sizes come as ``zeros(2, 3)`` or ``zeros((2, 3))``; the dtype is the
default float dtype unless given, or follows from the numbers where PyTorch lets it (`full`,
`arange`). `tensor` and `from_numpy` are in tensor.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from probtorch.backends.registry import device_of, parse_device, to_device
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor as wrap_value
from probtorch.core.memory_format import memory_format as MemoryFormat
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import parse_size, sizes
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number
from probtorch.core.typed import DType, DTypeLike, SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nesting import followed
from probtorch.ops.arithmetic import clone
from probtorch.ops.movement import expand, reshape
from probtorch.tensor import Tensor, tensor

__all__ = [
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "meshgrid",
    "ones",
    "ones_like",
    "range_",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
    "zeros_like",
]


def _made(array: np.ndarray, device: str | None, requires_grad: bool) -> Tensor:
    """Wrap a new array, on its device, as a leaf."""
    t = wrap(array if device is None else to_device(array, device))
    return t.requires_grad_() if requires_grad else t


def _dtype_of(value: object) -> DType:
    """Dtype PyTorch gives to a fill value: bool, int64 or the default float dtype."""
    if isinstance(value, (TensorBase, np.generic, np.ndarray)) and not is_number(value):
        return (value.array if isinstance(value, TensorBase) else value).dtype
    if type(value) is complex:
        return dtypes.default_complex()
    return {bool: dtypes.bool_, int: dtypes.int64}.get(type(value), dtypes.default_dtype())


# ------------------------------------------------------------------------------------------- filled


@takes_out
def full(
    size: SizeLike,
    fill_value: complex | Tensor,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return a tensor filled with one value.

    Parameters
    ----------
    size : int or tuple of int
    fill_value : number
        Its kind decides the dtype unless `dtype` is given: booleans bool, integers int64, floats
        the default, complex numbers the complex one beside it. A 0-d tensor keeps its gradient.
    dtype : dtype, optional
    device : str, optional
        "cpu" if None.
    requires_grad : bool
        Whether operations on the tensor are recorded.

    Returns
    -------
    Tensor, shape `size`

    Raises
    ------
    ShapeError
        If a size is negative.
    """
    dtype = _dtype_of(fill_value) if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(fill_value, TensorBase) and followed(fill_value):
        filled = clone(expand(cast(fill_value, dtype), sizes("full", (size,))))
        return filled if device is None else filled.to(device=device)
    value = fill_value.array if isinstance(fill_value, TensorBase) else fill_value
    dtypes.check_fits("full", value, dtype)
    return _made(np.full(sizes("full", (size,)), value, dtype), device, requires_grad)


def scalar_tensor(
    s: float,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a number as a tensor without dims, of the default float dtype."""
    if wrap_value(s, "scalar_tensor").array.size != 1:
        raise ShapeError(
            "scalar_tensor", expected="one number", got=f"{s!r:.60}", fix="use tensor or as_tensor"
        )
    return full((), _number(s), dtype=_floating(dtype), device=device, requires_grad=requires_grad)


def _floating(dtype: DTypeLike | None) -> DType:
    return dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype)


@takes_out
def zeros(
    *shape: SizeLike,
    size: SizeLike | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return zeros of the default float dtype; arguments as in `full`."""
    return _made(np.zeros(sizes("zeros", shape, size), _floating(dtype)), device, requires_grad)


@takes_out
def ones(
    *shape: SizeLike,
    size: SizeLike | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return ones of the default float dtype; arguments as in `full`."""
    return _made(np.ones(sizes("ones", shape, size), _floating(dtype)), device, requires_grad)


@takes_out
def empty(
    *shape: SizeLike,
    size: SizeLike | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return a tensor whose values are whatever its memory held; arguments as in `full`."""
    return _made(np.empty(sizes("empty", shape, size), _floating(dtype)), device, requires_grad)


def full_like(
    input: TensorLike,
    fill_value: float | TensorBase,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> Tensor:
    """Return a filled tensor in the shape of `input`, by default in its dtype and on its device.

    Its elements lie in row-major order, whatever `memory_format` says.
    """
    input = wrap_value(input, "full_like")
    if dtype is device is None and type(fill_value) is int and type(input.array) is np.ndarray:
        if input.array.dtype.char in "fdl" and abs(fill_value) < 2**53 and not requires_grad:
            return wrap(np.full(input.array.shape, fill_value, input.array.dtype))
    dtype = input.array.dtype if dtype is None else dtype
    device = device_of(input.array) if device is None else device
    return full(
        input.array.shape, fill_value, dtype=dtype, device=device, requires_grad=requires_grad
    )


def zeros_like(
    input: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> Tensor:
    """Return zeros in the shape of `input`, by default in its dtype and on its device."""
    if isinstance(input, Tensor) and dtype is device is None and not requires_grad:
        if type(input.array) is np.ndarray:
            return wrap(np.zeros(input.array.shape, input.array.dtype))
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(
    input: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> Tensor:
    """Return ones in the shape of `input`, by default in its dtype and on its device."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def empty_like(
    input: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> Tensor:
    """Return an uninitialised tensor in the shape, dtype and on the device of `input`."""
    input = wrap_value(input, "empty_like")
    dtype = input.array.dtype if dtype is None else dtype
    device = device_of(input.array) if device is None else device
    return empty(input.array.shape, dtype=dtype, device=device, requires_grad=requires_grad)


# ------------------------------------------------------------------------------------------- ranges


def _number(x: float | Tensor) -> float:
    """Return a tensor with one element as a Python number, and anything else as it is."""
    return x.item() if isinstance(x, Tensor) else x


@takes_out
def arange(
    start: float | Tensor | None = None,
    end: float | Tensor | None = None,
    step: float | Tensor = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return ``start, start + step, ...`` up to but without `end`; `arange(end)` starts at 0.

    Parameters
    ----------
    start, end, step : number
        The dtype is int64 if all are integers, else the default float dtype.
    dtype, device, requires_grad
        As in `full`.

    Raises
    ------
    ArgumentError
        If `step` is 0 or points away from `end`.
    """
    if end is None:
        start, end = None, start
    if end is None:
        raise ArgumentError(
            "arange", expected="arange(end)", got="no number", fix="say where the range ends"
        )
    start = 0 if start is None else start
    first, last, by = _number(start), _number(end), _number(step)
    if not all(math.isfinite(v) for v in (first, last, by)):
        raise ArgumentError(
            "arange",
            expected="finite numbers",
            got=f"start={first}, end={last}, step={by}",
            fix="an endless range has no tensor",
        )
    if by == 0 or (last - first) / by < 0:
        raise ArgumentError(
            "arange",
            expected="a step that leads from start to end",
            got=f"start={first}, end={last}, step={by}",
            fix="change the sign of step, or swap start and end",
        )
    if dtype is None:
        whole = all(isinstance(v, (int, np.integer)) for v in (first, last, by))
        dtype = dtypes.int64 if whole else dtypes.default_dtype()
    dtype = dtypes.as_dtype(dtype)
    if dtype.kind == "f":
        # Elements from their index, in float64, so that the last one carries no sum of roundings.
        array = (first + by * np.arange(math.ceil((last - first) / by))).astype(dtype)
    else:
        array = np.arange(first, last, by).astype(dtype)
    return _made(array, device, requires_grad)


@takes_out
def range_(
    start: float | Tensor,
    end: float | Tensor,
    step: float | Tensor = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return ``start, start + step, ...`` up to `end`, which belongs to it, as floats.

    PyTorch's older form of `arange`, which leaves the end out.
    """
    first, last, by = _number(start), _number(end), _number(step)
    if not all(math.isfinite(v) for v in (first, last, by)) or not by or (last - first) / by < 0:
        raise ArgumentError(
            "range",
            expected="finite numbers, and a step that leads from start to end",
            got=f"start={first}, end={last}, step={by}",
            fix="change the sign of step, or swap start and end",
        )
    array = first + by * np.arange(math.floor((last - first) / by) + 1)
    return _made(array.astype(_floating(dtype)), device, requires_grad)


@takes_out
def linspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return `steps` numbers at equal distances from `start` to `end`, both included."""
    if steps < 0:
        raise ArgumentError(
            "linspace", expected="steps >= 0", got=str(steps), fix="check the count"
        )
    array = np.linspace(_number(start), _number(end), int(steps)).astype(_floating(dtype))
    return _made(array, device, requires_grad)


@takes_out
def logspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return ``base ** x`` for `steps` equally spaced x from `start` to `end`, both included."""
    if steps < 0:
        raise ArgumentError(
            "logspace", expected="steps >= 0", got=str(steps), fix="check the count"
        )
    array = np.power(float(base), np.linspace(_number(start), _number(end), int(steps)))
    return _made(array.astype(_floating(dtype)), device, requires_grad)


# ------------------------------------------------------------------------------- matrices and grids


@takes_out
def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> Tensor:
    """Return the identity matrix of shape (n, n), or ones on the diagonal of shape (n, m)."""
    shape = sizes("eye", (n, n if m is None else m))
    return _made(np.eye(*shape, dtype=_floating(dtype)), device, requires_grad)


def _indices(
    name: str,
    find: Callable[[int, int, int], tuple[np.ndarray, np.ndarray]],
    row: int,
    col: int,
    offset: int,
    dtype: DTypeLike | None,
    device: str | None,
) -> Tensor:
    sizes = parse_size((row, col, offset))
    if min(sizes[:2]) < 0:
        raise ArgumentError(name, expected="sizes >= 0", got=f"{row} x {col}", fix="check them")
    pair = find(row, offset, col)
    return _made(np.stack(pair).astype(dtypes.as_dtype(dtype)), device, False)


@in_our_words
def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: DTypeLike | None = dtypes.int64,
    device: str | None = None,
) -> Tensor:
    """Return rows and columns, shape (2, count), of the places on and below a diagonal."""
    return _indices("tril_indices", np.tril_indices, row, col, offset, dtype, device)


@in_our_words
def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: DTypeLike | None = dtypes.int64,
    device: str | None = None,
) -> Tensor:
    """Return rows and columns, shape (2, count), of the places on and above a diagonal."""
    return _indices("triu_indices", np.triu_indices, row, col, offset, dtype, device)


def meshgrid(
    *tensors: TensorLike | Sequence[TensorLike], indexing: str = "ij"
) -> tuple[Tensor, ...]:
    """Return the vectors expanded to a grid, one tensor per vector.

    Parameters
    ----------
    *tensors : Tensor, 0-d or 1-d
    indexing : {"ij", "xy"}
        "xy" swaps the first two dims, as in plots.

    Returns
    -------
    tuple of Tensor, each of shape (n1, n2, ...)
        Views: they share the memory of the vectors.
    """
    if indexing not in ("ij", "xy"):
        raise ArgumentError("meshgrid", expected='"ij" or "xy"', got=repr(indexing), fix='use "ij"')
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    vectors = [reshape(wrap_value(t, "meshgrid"), -1) for t in given]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(order)
    for v, d in zip(vectors, order, strict=True):
        shape[d] = v.array.shape[0]
    return tuple(
        expand(reshape(v, [-1 if i == d else 1 for i in range(len(shape))]), shape)
        for v, d in zip(vectors, order, strict=True)
    )


# --------------------------------------------------------------------------------------- conversion


def as_tensor(
    data: TensorLike, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """Return `data` as a tensor, without a copy where possible.

    Parameters
    ----------
    data : Tensor, array, number or nested sequence
        Tensors are returned as they are and arrays share their memory, unless dtype or device
        differ. Python floats take the default float dtype; NumPy arrays keep theirs.
    dtype : dtype, optional
    device : str, optional

    Returns
    -------
    Tensor
    """
    shared = isinstance(data, (TensorBase, np.ndarray, np.generic)) or hasattr(
        data, "__cuda_array_interface__"
    )
    t = (
        wrap_value(data, "as_tensor")
        if shared and not is_number(data)
        else tensor(data, dtype=dtype)
    )
    if dtype is not None:
        t = cast(t, dtypes.as_dtype(dtype))
    if device is not None and parse_device(device) != parse_device(device_of(t.array)):
        t = t.to(device=device)
    return t


explain_calls(globals())
