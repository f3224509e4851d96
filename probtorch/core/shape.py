"""Shapes: broadcasting, dims and sizes, with messages that show what does not fit."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, overload

from probtorch.core.typed import SizeLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError

__all__ = [
    "ALL_DIMS",
    "Size",
    "broadcast_shapes",
    "normalize_dim",
    "normalize_dims",
    "parse_size",
    "sizes",
]


class Size(tuple[int, ...]):
    """A shape: a tuple of ints that can also say how many elements it has."""

    __slots__ = ()

    def numel(self) -> int:
        """Return the product of the sizes (1 for a scalar)."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"Size({list(self)})"

    def __add__(self, other: Iterable[int]) -> Size:  # type: ignore[override]  # sizes, not anything
        return Size(tuple.__add__(self, tuple(other)))

    def __radd__(self, other: Iterable[int]) -> Size:
        return Size(tuple(other) + tuple(self))

    def __mul__(self, times: SupportsIndex) -> Size:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Size: ...
    def __getitem__(self, key: SupportsIndex | slice) -> int | Size:
        if isinstance(key, slice):
            return Size(tuple.__getitem__(self, key))
        return tuple.__getitem__(self, key)


def broadcast_shapes(*shapes: Sequence[int], op: str = "broadcast") -> tuple[int, ...]:
    """Return the shape that all `shapes` broadcast to.

    Raises
    ------
    ShapeError
        Naming `op`, the shapes one under the other and the dim that does not fit.
    """
    if len(shapes) == 1:
        return tuple(shapes[0])
    ndim = max((len(s) for s in shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for i, size in enumerate(shape, ndim - len(shape)):
            if size != 1 and out[i] != size:
                if out[i] != 1:
                    raise _mismatch(op, shapes, i - ndim, out[i], size)
                out[i] = size
    return tuple(out)


def _mismatch(
    op: str, shapes: Sequence[Sequence[int]], dim: int, one: int, other: int
) -> ShapeError:
    listed = " and ".join(str(tuple(s)) for s in shapes)
    return ShapeError(
        op,
        expected="shapes that broadcast (equal sizes, or 1, aligned from the right)",
        got=f"{listed}: dim {dim} is {one} and {other}",
        fix="reshape or unsqueeze one of them so that the dims line up",
    )


def normalize_dim(dim: int, ndim: int, op: str = "dim") -> int:
    """Return `dim` in 0..ndim-1; a 0-d tensor accepts 0 and -1, as in PyTorch."""
    span = ndim or 1
    try:
        if type(dim) is not int:
            dim = operator.index(dim)
        inside = -span <= dim < span
    except (TypeError, ValueError):
        raise _no_dim(dim, op) from None
    if not inside:
        raise TensorIndexError(
            op,
            expected=f"dim in [{-span}, {span - 1}]",
            got=str(dim),
            fix="count dims from 0, or from -1 at the end",
        )
    return dim % span


def _no_dim(dim: object, op: str) -> DTypeError:
    return DTypeError(
        op, expected="dim: an integer", got=f"{dim!r:.40}", fix="count dims from 0, or from -1"
    )


def _listed(dims: Any, op: str) -> tuple[Any, ...]:
    try:
        return tuple(dims)
    except TypeError:
        raise _no_dim(dims, op) from None


# All dims of an array by how many it has; NumPy's have at most 64.
ALL_DIMS = tuple(tuple(range(n)) for n in range(65))


def _no_dims(dim: int, op: str) -> tuple[int, ...]:
    """Check the one dim of a tensor without dims, of which there are then none."""
    normalize_dim(dim, 0, op)
    return ()


def normalize_dims(dims: Any, ndim: int, op: str = "dim") -> tuple[int, ...]:
    """Return a sorted tuple of distinct dims; None means all of them."""
    if dims is None:
        return ALL_DIMS[ndim]
    if type(dims) is int:
        return (normalize_dim(dims, ndim, op),) if ndim else _no_dims(dims, op)
    if isinstance(dims, int):
        dims = (dims,)
    elif not isinstance(dims, (tuple, list)):
        dims = (dims,) if hasattr(dims, "__index__") else _listed(dims, op)
    out = tuple(sorted(normalize_dim(d, ndim, op) for d in dims))
    if len(set(out)) != len(out):
        raise ShapeError(
            op, expected="distinct dims", got=str(tuple(dims)), fix="name each dim once"
        )
    return out if ndim else ()


def integer(op: str, name: str, value: object) -> int:
    """Return an argument as a Python integer, or refuse it by name."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what is none raises
    except (TypeError, ValueError):
        raise DTypeError(
            op,
            expected=f"{name}: an integer",
            got=f"{value!r:.60} of type {type(value).__name__}",
            fix=f"pass an int, for example int({name})",
        ) from None


def sizes(op: str, by_place: Sequence[SizeLike], size: SizeLike | None = None) -> tuple[int, ...]:
    """Return a tuple of sizes for a new tensor, none of them negative; as `parse_size`.

    They are given by place, or all as `size`.
    """
    if size is not None and by_place:
        raise ArgumentError(
            op,
            expected="sizes by place, or size=",
            got=f"{by_place} and size={size}",
            fix="leave one of them out",
        )
    shape = parse_size(by_place if size is None else (size,))
    if min(shape, default=0) < 0:
        raise ShapeError(
            op, expected="sizes >= 0", got=str(shape), fix="check where the size comes from"
        )
    return shape


_INT = frozenset((int,))


def parse_size(size: Sequence[Any]) -> tuple[int, ...]:
    """Return a tuple of ints from ``f(2, 3)``, ``f((2, 3))`` or ``f(5)`` calling styles."""
    if len(size) == 1 and not isinstance(size[0], int) and hasattr(size[0], "__iter__"):
        # A tensor or array without dims is one number.
        size = size[0] if getattr(size[0], "ndim", 1) else size
    if _INT.issuperset(map(type, size)):
        return tuple(size)
    try:
        return tuple(operator.index(s) for s in size)
    except TypeError:
        raise DTypeError(
            "size",
            expected="integers, one per dim, or one tuple of them",
            got=", ".join(f"{s!r:.40}" for s in size),
            fix="write f(2, 3) or f((2, 3))",
        ) from None
