"""Pieces of tensors: what joins tensors, takes them apart, or turns them over."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, unseen, untaped_view, wrap
from probtorch.core.dtype import promote_types
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim, normalize_dims, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.families import structured
from probtorch.ops.movement import slice_, slice_at, unsqueeze

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["cat", "chunk", "flip", "has_dims", "split", "stack", "unbind"]


def flip(input: TensorLike, *along: SizeLike, dims: SizeLike | None = None) -> TensorBase:
    """Return `input` with the order along dims, by place or as `dims`, reversed, as a view."""
    input = as_tensor(input, "flip")
    dims = normalize_dims(parse_size(along or (dims,)), input.array.ndim, "flip")
    return slice_(
        input,
        tuple((n - 1, -1, n) if i in dims else (0, 1, n) for i, n in enumerate(input.array.shape)),
    )


def _cat_vjp(
    g: TensorBase,
    out: TensorBase | None,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> list[TensorBase | None]:
    dim, at, grads = attrs["dim"], 0, []
    shape = out.array.shape if out is not None else g.array.shape
    for x, need in zip(inputs, needs, strict=True):
        n = x.array.shape[dim]
        spec = tuple((at, 1, n) if i == dim else (0, 1, s) for i, s in enumerate(shape))
        grads.append(slice_(g, spec) if need else None)
        at += n
    return grads


def _cat_jvp(
    tangents: list[TensorBase | None], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    filled = [x * 0.0 if t is None else t for t, x in zip(tangents, inputs, strict=True)]
    return apply(_CAT, tuple(filled), attrs)


_CAT = structured(
    "cat",
    "movement",
    run=lambda *xs, dim: namespace(xs[0]).concatenate(xs, dim),
    vjp=_cat_vjp,
    jvp=_cat_jvp,
    saves="",
    core="dim",
    samples=lambda rng: [
        (
            (rng.standard_normal((2, 3)), rng.standard_normal((2, 0)), rng.standard_normal((2, 1))),
            {"dim": 1},
        )
    ],
    reference=lambda *xs, dim: np.concatenate(xs, dim),
    complex=True,
    doc="Tensors joined along one dim.",
)


@takes_out
def cat(
    tensors: Iterable[TensorBase],
    dim: int = 0,
    *,
    axis: int | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Join tensors along dim `dim` (NumPy's `axis`); the other sizes must agree.

    Raises
    ------
    ShapeError
        Naming the first tensor that does not fit.
    """
    dim = dim if axis is None else axis
    if isinstance(dim, TensorBase) and dim.array.ndim:
        raise DTypeError(
            "cat",
            expected="a list of tensors, and a number after it",
            got=f"a tensor of shape {dim.array.shape} in the place of dim",
            fix="write cat([a, b]): the tensors are one argument",
        )
    tensors = [t if isinstance(t, TensorBase) else as_tensor(t, "cat") for t in tensors]
    if not tensors:
        raise ArgumentError(
            "cat",
            expected="at least one tensor",
            got="an empty sequence",
            fix="pass the tensors to join",
        )
    first = tensors[0].array
    if first.ndim == 0:
        raise ShapeError(
            "cat", expected="tensors with at least one dim", got="a 0-d tensor", fix="use stack"
        )
    dim = normalize_dim(dim, first.ndim, "cat")
    dtype, a = first.dtype, first.shape
    alike = True
    for i, t in enumerate(tensors[1:], 1):
        b = t.array.shape
        if b != a and (len(a) != len(b) or a[:dim] + a[dim + 1 :] != b[:dim] + b[dim + 1 :]):
            raise ShapeError(
                "cat",
                expected=f"shapes equal to {a} except in dim {dim}",
                got=f"{b} for tensor {i}",
                fix="check the dim argument, or use stack to join along a new dim",
            )
        if t.array.dtype is not dtype:
            alike, dtype = False, promote_types(dtype, t.array.dtype)
    if not alike:
        tensors = [cast(t, dtype) for t in tensors]
    return apply(_CAT, tuple(tensors), {"dim": dim})


@takes_out
def stack(
    tensors: Iterable[TensorBase],
    dim: int = 0,
    *,
    axis: int | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Join tensors of one shape along a new dim `dim`."""
    dim = dim if axis is None else axis
    tensors = [as_tensor(t, "stack") for t in tensors]
    for i, t in enumerate(tensors[1:], 1):
        if t.array.shape != tensors[0].array.shape:
            raise ShapeError(
                "stack",
                expected=f"shape {tensors[0].array.shape}, that of the first",
                got=f"{t.array.shape} for tensor {i}",
                fix="expand or reshape the tensors to one shape",
            )
    if tensors and unseen(*tensors):
        arrays = [t.array for t in tensors]
        first = arrays[0].dtype
        if all(a.dtype is first for a in arrays):
            at = normalize_dim(dim, arrays[0].ndim + 1, "stack")
            return wrap(np.array(arrays) if at == 0 else np.stack(arrays, at))
    return cat([unsqueeze(t, dim) for t in tensors], dim)


def unbind(input: TensorLike, dim: int = 0) -> tuple[TensorBase, ...]:
    """Return a tuple of the slices of `input` along `dim`, without that dim."""
    input = as_tensor(input, "unbind")
    has_dims("unbind", input)
    dim = normalize_dim(dim, input.array.ndim, "unbind")
    count = input.array.shape[dim]
    if unseen(input):
        rows = input.array.swapaxes(0, dim) if dim < 2 else np.moveaxis(input.array, dim, 0)
        return _views(input, [rows[i, ...] for i in range(count)])
    return tuple([slice_at(input, dim, i) for i in range(count)])


def _views(x: TensorBase, parts: list[np.ndarray]) -> tuple[TensorBase, ...]:
    """Return views of the memory of `x`, which is `unseen`, as tensors."""
    return tuple([untaped_view(x, part) for part in parts])  # type: ignore[misc]  # not None then


def has_dims(name: str, x: TensorBase) -> None:
    """Refuse a tensor without dims."""
    if not x.array.ndim:
        raise ShapeError(
            name, expected="at least one dim", got="a 0-d tensor", fix="reshape it to (1,)"
        )


@in_our_words
def split(
    tensor: TensorLike, split_size_or_sections: SizeLike, dim: int = 0
) -> tuple[TensorBase, ...]:
    """Return pieces of `tensor` along `dim`: of given sizes, or one (the last may be smaller)."""
    tensor = as_tensor(tensor, "split")
    has_dims("split", tensor)
    dim = normalize_dim(dim, tensor.array.ndim, "split")
    n = tensor.array.shape[dim]
    if isinstance(split_size_or_sections, int):
        if split_size_or_sections < 1 and n:
            raise ArgumentError(
                "split",
                expected="split_size >= 1",
                got=str(split_size_or_sections),
                fix="give a size",
            )
        sizes = (
            [min(split_size_or_sections, n - i) for i in range(0, n, split_size_or_sections)]
            if n
            else [0]
        )
    else:
        sizes = list(split_size_or_sections)
        if sum(sizes) != n or min(sizes, default=0) < 0:
            raise ShapeError(
                "split",
                expected=f"sizes, none of them negative, that add up to {n}",
                got=str(sizes),
                fix="check split_size",
            )
    ends = list(itertools.accumulate(sizes, initial=0))
    if unseen(tensor):
        array, before = tensor.array, (slice(None),) * dim
        parts = [array[(*before, slice(at, end))] for at, end in itertools.pairwise(ends)]
        return _views(tensor, parts)
    whole = [(0, 1, s) for s in tensor.array.shape]
    return tuple(
        slice_(tensor, (*whole[:dim], (at, 1, size), *whole[dim + 1 :]))
        for at, size in zip(ends, sizes, strict=False)
    )


@in_our_words
def chunk(input: TensorLike, chunks: int, dim: int = 0) -> tuple[TensorBase, ...]:
    """Return `input` split into `chunks` pieces along `dim`, the last perhaps smaller.

    There may be fewer pieces; of a dim of size 0 there are all, of size 0.
    """
    input = as_tensor(input, "chunk")
    has_dims("chunk", input)
    n = input.array.shape[normalize_dim(dim, input.array.ndim, "chunk")]
    if not isinstance(chunks, int) or chunks < 1:
        raise ArgumentError(
            "chunk", expected="chunks >= 1", got=repr(chunks), fix="say how many pieces"
        )
    if n == 0:
        return split(input, [0] * chunks, dim)
    return split(input, max(1, -(-n // chunks)), dim)
