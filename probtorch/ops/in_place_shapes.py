"""Other shapes for the tensor itself: `t_`, `squeeze_`, `resize_` and kin.

A tensor takes over the layout of one of its views. To the tape, and to a recording, a tensor is one
place in memory with one shape; so this is for tensors off the tape alone, a compiled function that
does it runs eagerly, and gradients of what was computed from the tensor before are refused, as
after other changes in place.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import mark_changed
from probtorch.core.history import root_of
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import sizes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import Dims, Shape, SizeLike, TensorLike
from probtorch.errors import AutogradError, ShapeError
from probtorch.ops import movement, reshaping, striding

__all__ = [
    "as_strided_",
    "resize_",
    "resize_as_",
    "set_",
    "squeeze_",
    "t_",
    "transpose_",
    "unsqueeze_",
]


def _check(op: str, x: TensorBase) -> None:
    read(f"{op}, which gives a tensor another shape")
    root = root_of(x)
    if x.requires_grad or (root is not None and root.requires_grad):
        raise AutogradError(
            f"{op}: another shape for a tensor on the tape",
            expected="a tensor without a gradient",
            got=f"one of shape {x.array.shape} with a gradient",
            fix=f"give the result a name: x = x.{op.removesuffix('_')}(...)",
        )


def _shaped(x: TensorBase, array: np.ndarray) -> TensorBase:
    """Give `x` other elements, or an order of its own ones, and note when."""
    x.array = array
    tick = mark_changed(x)
    x._extra = {**(x._extra or {}), "shaped": tick}
    return x


def t_(x: TensorBase) -> TensorBase:
    """Transpose a matrix in place."""
    _check("t_", x)
    return _shaped(x, reshaping.t(x).array)


def transpose_(x: TensorBase, dim0: int, dim1: int) -> TensorBase:
    """Swap two dims in place."""
    _check("transpose_", x)
    return _shaped(x, movement.transpose(x, dim0, dim1).array)


def squeeze_(x: TensorBase, dim: Dims = None) -> TensorBase:
    """Take dims of size 1 away in place; see `squeeze`."""
    _check("squeeze_", x)
    return _shaped(x, movement.squeeze(x, dim).array)


def unsqueeze_(x: TensorBase, dim: int) -> TensorBase:
    """Insert a dim of size 1 in place."""
    _check("unsqueeze_", x)
    return _shaped(x, movement.unsqueeze(x, dim).array)


def as_strided_(
    x: TensorBase, size: Shape, stride: Shape, storage_offset: int | None = None
) -> TensorBase:
    """Give a tensor another shape and other strides on its memory; see `as_strided`."""
    _check("as_strided_", x)
    return _shaped(x, striding.as_strided(x, size, stride, storage_offset).array)


@in_our_words
def resize_(x: TensorBase, *size: SizeLike) -> TensorBase:
    """Give a tensor another size: its first elements, in row-major order, in the new shape.

    Where there are more elements than before, it gets memory of its own, whose further elements are
    not initialised; views of it keep the old memory.

    Raises
    ------
    ShapeError
        If it is a view, whose memory belongs to another tensor, and would have more elements.
    """
    shape = sizes("resize_", size)
    _check("resize_", x)
    if shape == x.array.shape:
        return x
    count = math.prod(shape)
    if count <= x.array.size and x.array.flags.c_contiguous:
        return _shaped(x, x.array.reshape(-1)[:count].reshape(shape))
    if x._base is not None:
        raise ShapeError(
            "resize_",
            expected=f"at most {x.array.size} elements, those that the view has, without gaps",
            got=f"shape {shape} for a view of shape {x.array.shape}",
            fix="resize the tensor that owns the memory, or clone() the view first",
        )
    grown = namespace(x.array).empty(count, x.array.dtype)
    kept = min(count, x.array.size)
    grown[:kept] = x.array.reshape(-1)[:kept]
    return _shaped(x, grown.reshape(shape))


def resize_as_(x: TensorBase, other: TensorLike) -> TensorBase:
    """Give a tensor the size of another; see `resize_`."""
    return resize_(x, as_tensor(other, "resize_as_").array.shape)


def set_(x: TensorBase, source: TensorBase) -> TensorBase:
    """Let a tensor be another one's memory, in its shape: changes are seen in both."""
    _check("set_", x)
    if not isinstance(source, TensorBase) or source.array.dtype != x.array.dtype:
        raise ShapeError(
            "set_",
            expected=f"a tensor of dtype {x.array.dtype}",
            got=f"{getattr(source, 'dtype', type(source).__name__)}",
            fix="convert it with .to(dtype) first",
        )
    _shaped(x, source.array)
    if source is not x:
        x._base = source if source._base is None else source._base
        x._extra = {**(x._extra or {}), "root": None}
    return x
