"""Elements again, or in a circle: repeat, tile and roll, which give copies."""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import normalize_dim, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone
from probtorch.ops.movement import cat, expand, reshape, split

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


def tile(x: TensorLike, dims: SizeLike) -> TensorBase:
    """Return `x` tiled as NumPy's tile does: missing counts are 1."""
    x = as_tensor(x, "tile")
    dims = parse_size((dims,)) if not isinstance(dims, int) else (dims,)
    return repeat(x, (1,) * (x.array.ndim - len(dims)) + dims)


@in_our_words
def roll(x: TensorLike, shifts: SizeLike, dims: Dims = None) -> TensorBase:
    """Return `x` rotated by `shifts` along `dims` (flattened when dims is None), as a copy."""
    x = whole = as_tensor(x, "roll")
    if dims is None:
        return reshape(roll(reshape(x, -1), sum(parse_size((shifts,))), 0), x.array.shape)
    if not x.array.ndim:
        return clone(x)
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
        n = x.array.shape[normalize_dim(dim, x.array.ndim, "roll")]
        if n and shift % n:
            x = cat(split(x, (n - shift % n, shift % n), dim)[::-1], dim)
    return clone(x) if x is whole else x
