"""Elements again, or in a circle: repeat, tile and roll, which give copies."""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import unseen, wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import normalize_dim, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone
from probtorch.ops.movement import expand, reshape
from probtorch.ops.pieces import cat, split

__all__ = ["repeat", "roll", "tile"]


def repeat(x: TensorLike, *sizes: SizeLike) -> TensorBase:
    """Return `x` tiled `sizes` times along each dim (new leading dims first), as a copy."""
    x = as_tensor(x, "repeat")
    sizes = parse_size(sizes)
    shape = (1,) * (len(sizes) - x.array.ndim) + x.array.shape
    if len(sizes) < len(shape):
        raise ShapeError(
            "repeat",
            expected=f"at least {len(shape)} counts",
            got=str(sizes),
            fix="give one count per dim",
        )
    if min(sizes, default=0) < 0:
        raise ArgumentError(
            "repeat", expected="counts >= 0", got=str(sizes), fix="say how often each dim repeats"
        )
    apart = [n for pair in zip((1,) * len(shape), shape, strict=True) for n in pair]
    tall = [n for pair in zip(sizes, shape, strict=True) for n in pair]
    tiled = reshape(
        expand(reshape(x, apart), tall), [a * b for a, b in zip(sizes, shape, strict=True)]
    )
    return clone(tiled) if tiled is x or tiled._base is not None else tiled


def tile(input: TensorLike, dims: SizeLike, *more: SizeLike) -> TensorBase:
    """Return `input` tiled as NumPy's tile does: missing counts are 1; or `dims` one by one."""
    input = as_tensor(input, "tile")
    dims = parse_size((dims, *more))
    return repeat(input, (1,) * (input.array.ndim - len(dims)) + dims)


@in_our_words
def roll(input: TensorLike, shifts: SizeLike, dims: Dims = None) -> TensorBase:
    """Return `input` rotated by `shifts` along `dims` (flattened when dims is None), as a copy."""
    input = whole = as_tensor(input, "roll")
    if dims is None:
        return reshape(roll(reshape(input, -1), sum(parse_size((shifts,))), 0), input.array.shape)
    if not input.array.ndim:
        return clone(input)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    if len(dims) != len(shifts):
        raise ArgumentError(
            "roll",
            expected="one shift per dim",
            got=f"shifts={shifts}, dims={dims}",
            fix="give both as tuples of one length",
        )
    for shift, dim in zip(shifts, dims, strict=True):
        n = input.array.shape[normalize_dim(dim, input.array.ndim, "roll")]
        if n and shift % n:
            if unseen(input):
                before = (slice(None),) * (dim % input.array.ndim)
                cut, array = n - shift % n, input.array
                parts = array[(*before, slice(cut, None))], array[(*before, slice(cut))]
                input = wrap(np.concatenate(parts, dim))
                continue
            input = cat(split(input, (n - shift % n, shift % n), dim)[::-1], dim)
    return clone(input) if input is whole else input
