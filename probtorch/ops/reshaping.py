"""Other ways to say reshape, flip and permute; see movement.py."""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.shape import normalize_dim, normalize_dims, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import expand, flip, reshape, transpose

__all__ = ["adjoint", "broadcast_to", "fliplr", "flipud", "ravel", "rot90", "unflatten"]


def broadcast_to(x: TensorLike, size: SizeLike) -> TensorBase:
    """Return `x` broadcast to a shape, as a read-only view; see `expand`."""
    return expand(x, parse_size((size,)))


def ravel(x: TensorLike) -> TensorBase:
    """Return the elements as a vector, in row-major order."""
    return reshape(x, -1)


def unflatten(x: TensorLike, dim: int, sizes: SizeLike) -> TensorBase:
    """Return `x` with one dim made several, of sizes with this product; one may be -1."""
    x = _at_least("unflatten", x, 1)
    shape, sizes = x.array.shape, parse_size((sizes,))
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
    return reshape(x, (*shape[:dim], *sizes, *shape[dim + 1 :]))


def fliplr(x: TensorLike) -> TensorBase:
    """Return `x` with the order along dim 1 reversed."""
    return flip(_at_least("fliplr", x, 2), 1)


def flipud(x: TensorLike) -> TensorBase:
    """Return `x` with the order along dim 0 reversed."""
    return flip(_at_least("flipud", x, 1), 0)


def rot90(x: TensorLike, k: int = 1, dims: tuple[int, int] | list[int] = (0, 1)) -> TensorBase:
    """Return `x` turned by 90 degrees `k` times in the plane of two dims, first towards second."""
    x = _at_least("rot90", x, 2)
    plane = normalize_dims(dims, x.array.ndim, "rot90")
    if len(plane) != 2 or isinstance(dims, int):
        raise ArgumentError(
            "rot90", expected="two dims", got=str(dims), fix="name the plane: dims=(0, 1)"
        )
    a, b = (normalize_dim(d, x.array.ndim, "rot90") for d in dims)
    k %= 4
    if k == 2:
        return flip(x, (a, b))
    if k == 0:
        return flip(flip(x, a), a)
    turned = transpose(x, a, b)
    return flip(turned, a if k == 1 else b)


def adjoint(x: TensorLike) -> TensorBase:
    """Return matrices transposed (and conjugated, which changes nothing of real numbers)."""
    x = as_tensor(x, "adjoint")
    return transpose(_at_least("adjoint", x, 2), -1, -2) if x.array.ndim else reshape(x, ())


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
