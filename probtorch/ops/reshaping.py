"""Other ways to say reshape, flip, permute and split; see movement.py and pieces.py."""

from __future__ import annotations

from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim, normalize_dims, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone
from probtorch.ops.complex_numbers import conj
from probtorch.ops.diagonals import diag_embed
from probtorch.ops.diagonals import diagonal as take_diagonal
from probtorch.ops.gathering import narrow
from probtorch.ops.movement import expand, permute, reshape, transpose
from probtorch.ops.pieces import flip, split
from probtorch.ops.reduction import sum_to

__all__ = [
    "adjoint",
    "broadcast_to",
    "diag",
    "diagflat",
    "fliplr",
    "flipud",
    "narrow_copy",
    "ravel",
    "rot90",
    "split_with_sizes",
    "sum_to_size",
    "t",
    "unflatten",
]


def broadcast_to(input: TensorLike, shape: SizeLike) -> TensorBase:
    """Return `input` broadcast to a shape, as a read-only view; see `expand`."""
    return expand(input, parse_size((shape,)))


def ravel(input: TensorLike) -> TensorBase:
    """Return the elements as a vector, in row-major order."""
    return reshape(input, -1)


def unflatten(input: TensorLike, dim: int, sizes: SizeLike) -> TensorBase:
    """Return `input` with one dim made several, of sizes with this product; one may be -1."""
    input = _at_least("unflatten", input, 1)
    shape, sizes = input.array.shape, parse_size((sizes,))
    dim = normalize_dim(dim, len(shape), "unflatten")
    known = 1
    for n in sizes:
        known *= n if n != -1 else 1
    n = shape[dim]
    if not sizes or (known != n if -1 not in sizes else not known or n % known):
        raise ShapeError(
            "unflatten",
            expected=f"sizes with the product {n}, that of dim {dim}",
            got=str(sizes),
            fix="use -1 for the size that should follow from the others",
        )
    sizes = tuple(n // known if s == -1 else s for s in sizes)
    return reshape(input, (*shape[:dim], *sizes, *shape[dim + 1 :]))


def fliplr(input: TensorLike) -> TensorBase:
    """Return `input` with the order along dim 1 reversed."""
    return flip(_at_least("fliplr", input, 2), 1)


def flipud(input: TensorLike) -> TensorBase:
    """Return `input` with the order along dim 0 reversed."""
    return flip(_at_least("flipud", input, 1), 0)


@in_our_words
def rot90(input: TensorLike, k: int = 1, dims: tuple[int, int] | list[int] = (0, 1)) -> TensorBase:
    """Return `input` turned by 90 degrees `k` times in a plane, its first dim to the second."""
    input = _at_least("rot90", input, 2)
    plane = normalize_dims(dims, input.array.ndim, "rot90")
    if len(plane) != 2 or isinstance(dims, int):
        raise ArgumentError(
            "rot90", expected="two dims", got=str(dims), fix="name the plane: dims=(0, 1)"
        )
    a, b = (normalize_dim(d, input.array.ndim, "rot90") for d in dims)
    k %= 4
    if k == 2:
        return flip(input, (a, b))
    if k == 0:
        return flip(flip(input, a), a)
    turned = transpose(input, a, b)
    return flip(turned, a if k == 1 else b)


def adjoint(input: TensorLike) -> TensorBase:
    """Return matrices transposed and conjugated, which changes nothing of real numbers."""
    input = as_tensor(input, "adjoint")
    input = conj(input)
    return (
        transpose(_at_least("adjoint", input, 2), -1, -2)
        if input.array.ndim
        else reshape(input, ())
    )


def t(input: TensorLike) -> TensorBase:
    """Return a matrix transposed; vectors and numbers are themselves."""
    input = as_tensor(input, "t")
    ndim = input.array.ndim
    if ndim > 2:
        raise ShapeError(
            "t",
            expected="at most 2 dims",
            got=f"shape {input.array.shape}",
            fix="use .mT for matrices in the last two dims, or transpose(dim0, dim1)",
        )
    return permute(input, tuple(range(ndim))[::-1])


@takes_out
def diag(input: TensorLike, diagonal: int = 0, *, out: TensorBase | None = None) -> TensorBase:
    """Return the matrix with vector `input` on a diagonal, or that diagonal of a matrix `input`."""
    input = as_tensor(input, "diag")
    if input.array.ndim == 1:
        return diag_embed(input, diagonal)
    if input.array.ndim == 2:
        return take_diagonal(input, diagonal, 0, 1)
    raise ShapeError(
        "diag",
        expected="a vector or a matrix",
        got=f"shape {input.array.shape}",
        fix="use diagonal or diag_embed for batches",
    )


@in_our_words
def diagflat(input: TensorLike, offset: int = 0) -> TensorBase:
    """Return the square matrix with the elements of `input`, in row-major order, on a diagonal."""
    return diag_embed(ravel(input), offset)


def split_with_sizes(x: TensorLike, split_sizes: Shape, dim: int = 0) -> tuple[TensorBase, ...]:
    """Return pieces of `x` of given sizes along `dim`; see `split`."""
    if isinstance(split_sizes, int):
        raise ArgumentError(
            "split_with_sizes",
            expected="a size for each piece",
            got=str(split_sizes),
            fix="use split for pieces of one size",
        )
    return split(x, parse_size((split_sizes,)), dim)


@takes_out
def narrow_copy(
    input: TensorLike, dim: int, start: int, length: int, *, out: TensorBase | None = None
) -> TensorBase:
    """Return a copy of `length` slices along `dim` from `start` on; see `narrow`."""
    return clone(narrow(input, dim, start, length))


def sum_to_size(x: TensorLike, *size: SizeLike) -> TensorBase:
    """Return `x` summed over the dims along which `size` would broadcast to its shape.

    Raises
    ------
    ShapeError
        If `size` does not broadcast to the shape of `x`.
    """
    x, shape = as_tensor(x, "sum_to_size"), parse_size(size)
    have = x.array.shape
    pad = len(have) - len(shape)
    if pad < 0 or any(n not in (1, m) for n, m in zip(shape, have[pad:], strict=True)):
        raise ShapeError(
            "sum_to_size",
            expected=f"a shape that broadcasts to {have}",
            got=str(shape),
            fix="sizes are those of the tensor, counted from the last, or 1",
        )
    if x.array.dtype.kind in "iub" and (shape != have or not shape):
        x = cast(x, int64)  # as sums are
    return sum_to(x, shape)


def _at_least(op: str, x: TensorLike, ndim: int) -> TensorBase:
    x = as_tensor(x, op)
    if x.array.ndim < ndim:
        raise ShapeError(
            op,
            expected=f"at least {ndim} dim{'s' if ndim > 1 else ''}",
            got=f"shape {x.array.shape}",
            fix="unsqueeze it first",
        )
    return x
