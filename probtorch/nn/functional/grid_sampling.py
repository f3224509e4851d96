"""Reading images and volumes at places that a grid says: spatial transformers [jaderberg2015]_.

A coordinate runs from -1 to 1 over the input, x (the last dim) first. `grid_sample` interpolates
between neighbours, so it is differentiable in the input and in the grid; `affine_grid` makes the
grids of affine maps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import int64, promote_types
from probtorch.core.making import as_tensor
from probtorch.core.shape import parse_size
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.nn.functional.interpolation import cubic_weights
from probtorch.ops.arithmetic import abs, floor, round, where
from probtorch.ops.comparisons import eq, ge, le, lt
from probtorch.ops.contraction import matmul
from probtorch.ops.movement import permute, reshape, unsqueeze
from probtorch.ops.padding import beside
from probtorch.ops.pieces import unbind
from probtorch.ops.take_put import take
from probtorch.tensor import Tensor

__all__ = ["affine_grid", "grid_sample"]

_DIMS = {2: ("(N, C, H, W)", "(N, H', W', 2)"), 3: ("(N, C, D, H, W)", "(N, D', H', W', 3)")}


def grid_sample(
    input: TensorLike,
    grid: TensorLike,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Read an image or a volume at the places of a grid.

    Parameters
    ----------
    input : Tensor, shape (N, C, H, W) or (N, C, D, H, W)
    grid : Tensor, shape (N, H', W', 2) or (N, D', H', W', 3)
        Places, (x, y) or (x, y, z): -1 and 1 are the ends of the input along its last dim, the one
        before it, and so on.
    mode : {"bilinear", "nearest", "bicubic"}
        "bilinear" is trilinear for volumes; "bicubic" is for images only.
    padding_mode : {"zeros", "border", "reflection"}
        What lies outside: zeros, the outermost elements, or the input mirrored.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the outermost elements, or (by default) their edges.

    Returns
    -------
    Tensor, shape (N, C, H', W') or (N, C, D', H', W')

    Raises
    ------
    ShapeError
        If the shapes do not go together.
    ArgumentError
        For an unknown mode.
    DTypeError
        If the input or the grid has integers.
    """
    x, places = as_tensor(input, "grid_sample"), as_tensor(grid, "grid_sample")
    n = _check(x, places, mode, padding_mode)
    dtype = promote_types(x.array.dtype, places.array.dtype)
    # From here on x is (N, D, H, W, C): what one place reads lies side by side.
    x = permute(cast(x, dtype), (0, *range(2, n + 2), 1))
    sizes = x.array.shape[1:-1]
    ends = bool(align_corners)
    at = [
        _in_elements(c, size, ends)
        for c, size in zip(reversed(unbind(cast(places, dtype), -1)), sizes, strict=True)
    ]
    y = _READERS[mode](x, at, padding_mode, ends)
    return permute(y, (0, n + 1, *range(1, n + 1)))


def _check(x: Tensor, grid: Tensor, mode: str, padding_mode: str) -> int:
    """Return the number of spatial dims."""
    n = x.array.ndim - 2
    if mode not in _READERS or padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(
            "grid_sample",
            expected="mode 'bilinear', 'nearest' or 'bicubic', and padding_mode 'zeros', 'border' "
            "or 'reflection'",
            got=f"mode={mode!r}, padding_mode={padding_mode!r}",
            fix="'bilinear' is trilinear for volumes",
        )
    if n not in _DIMS or (mode == "bicubic" and n == 3):
        raise ShapeError(
            "grid_sample",
            expected="an input (N, C, H, W)" + ("" if mode == "bicubic" else " or (N, C, D, H, W)"),
            got=str(x.array.shape),
            fix="unsqueeze the missing dims",
        )
    shape = grid.array.shape
    if len(shape) != n + 2 or shape[-1] != n or shape[0] != x.array.shape[0]:
        raise ShapeError(
            "grid_sample",
            expected=f"grid {_DIMS[n][1]}, for an input {_DIMS[n][0]} with N = {x.array.shape[0]}",
            got=str(shape),
            fix="the last dim holds x, y (and z); the batch is that of the input",
        )
    if "f" not in x.array.dtype.kind or "f" not in grid.array.dtype.kind:
        raise DTypeError(
            "grid_sample",
            expected="floats",
            got=f"{x.array.dtype} and {grid.array.dtype}",
            fix="convert them with .float()",
        )
    if min(x.array.shape[2:]) < 1:
        raise ShapeError(
            "grid_sample",
            expected="spatial dims with elements",
            got=f"shape {x.array.shape}",
            fix="check for empty data",
        )
    return n


# ------------------------------------------------------------------------------------------- places


def _in_elements(c: Tensor, size: int, ends: bool) -> Tensor:
    """Return coordinates from -1 to 1 as positions in elements."""
    return (c + 1.0) * ((size - 1) / 2.0) if ends else ((c + 1.0) * float(size) - 1.0) * 0.5


def _moved_inside(p: Tensor, size: int, padding_mode: str, ends: bool) -> Tensor:
    """Return positions, those outside moved to where the padding mode reads them."""
    if padding_mode == "reflection":
        # Mirrors are the outermost elements, or their outer edges.
        p = _reflected(p, *((0.0, float(size - 1)) if ends else (-0.5, float(size))))
    if padding_mode != "zeros":
        # Not clamp: at the ends the slope is 0, as in PyTorch.
        p = where(le(p, 0.0), 0.0, where(ge(p, size - 1.0), size - 1.0, p))
    return p


def _reflected(p: Tensor, low: float, span: float) -> Tensor:
    if span == 0.0:
        return p * 0.0
    away = abs(p - low)
    turns = floor(away / span)
    rest = away - turns * span
    even = eq(turns - floor(turns * 0.5) * 2.0, 0.0)
    return where(even, rest, span - rest) + low


def _read(x: Tensor, at: list[Tensor]) -> Tensor:
    """Return the elements at whole positions, (N, *places, C), and 0 outside."""
    inside: Tensor | None = None
    index = []
    for p, size in zip(at, x.array.shape[1:-1], strict=True):
        here = ge(p, 0.0) & lt(p, float(size))
        inside = here if inside is None else inside & here
        index.append(cast(where(here, p, 0.0), int64))
    assert inside is not None
    n = x.array.shape[0]
    batch = beside(x, np.arange(n).reshape(n, *[1] * (len(index[0].array.shape) - 1)))
    found = take(x, tuple(range(len(index) + 1)), [batch, *index])
    # A choice, not a product: what is not read may be infinite.
    return where(unsqueeze(inside, -1), found, 0.0)


def _weighted(x: Tensor, corners: list[list[tuple[Tensor, Tensor]]]) -> Tensor:
    """Return the sum over all corners of what is there, times the product of its weights."""
    total: Tensor | None = None
    for corner in itertools.product(*corners):
        weight = corner[0][1]
        for _, w in corner[1:]:
            weight = weight * w
        term = _read(x, [p for p, _ in corner]) * unsqueeze(weight, -1)
        total = term if total is None else total + term
    assert total is not None
    return total


def _nearest(x: Tensor, at: list[Tensor], padding_mode: str, ends: bool) -> Tensor:
    sizes = x.array.shape[1:-1]
    moved = [_moved_inside(p, m, padding_mode, ends) for p, m in zip(at, sizes, strict=True)]
    return _read(x, [round(p.detach()) for p in moved])


def _bilinear(x: Tensor, at: list[Tensor], padding_mode: str, ends: bool) -> Tensor:
    corners = []
    for p, size in zip(at, x.array.shape[1:-1], strict=True):
        p = _moved_inside(p, size, padding_mode, ends)
        low = floor(p.detach())
        share = p - low
        corners.append([(low, 1.0 - share), (low + 1.0, share)])
    return _weighted(x, corners)


def _bicubic(x: Tensor, at: list[Tensor], padding_mode: str, ends: bool) -> Tensor:
    corners = []
    for p, size in zip(at, x.array.shape[1:-1], strict=True):
        low = floor(p.detach())
        # -0.75 as `interpolate` has it.
        weights = cubic_weights(p - low, -0.75)
        # Each neighbour is moved by itself: the curve goes on to where the mirror is.
        places = [_moved_inside(low + float(k), size, padding_mode, ends) for k in range(-1, 3)]
        corners.append(list(zip(places, weights, strict=True)))
    return _weighted(x, corners)


_READERS: dict[str, Callable[[Tensor, list[Tensor], str, bool], Tensor]] = {
    "bilinear": _bilinear,
    "nearest": _nearest,
    "bicubic": _bicubic,
}


# -------------------------------------------------------------------------------------- affine_grid


def affine_grid(theta: TensorLike, size: SizeLike, align_corners: bool | None = None) -> Tensor:
    """Return the grid of an affine map, for `grid_sample`.

    Parameters
    ----------
    theta : Tensor, shape (N, 2, 3) or (N, 3, 4)
        Matrices that take (x, y, 1) of the output, or (x, y, z, 1), to places of the input.
    size : tuple of int
        Shape of the output, (N, C, H, W) or (N, C, D, H, W).
    align_corners : bool, optional
        As in `grid_sample`.

    Returns
    -------
    Tensor, shape (N, H, W, 2) or (N, D, H, W, 3)

    Raises
    ------
    ShapeError
        If `theta` does not go with `size`.
    DTypeError
        If `theta` has integers.
    """
    t = as_tensor(theta, "affine_grid")
    shape = parse_size((size,))
    n = len(shape) - 2
    if n not in _DIMS or t.array.shape != (shape[0], n, n + 1) or min(shape) < 1:
        raise ShapeError(
            "affine_grid",
            expected="theta (N, 2, 3) for a size (N, C, H, W), (N, 3, 4) for (N, C, D, H, W)",
            got=f"theta {t.array.shape}, size {shape}",
            fix="the first number of size is the batch of theta, and no number is 0",
        )
    if t.array.dtype.kind != "f":
        raise DTypeError(
            "affine_grid",
            expected="theta with floats",
            got=str(t.array.dtype),
            fix="convert it with .float()",
        )
    axes = []
    for m in shape[2:]:
        steps = np.linspace(-1.0, 1.0, m) if m > 1 else np.zeros(1)
        axes.append(steps if align_corners else steps * ((m - 1) / m))
    columns = [c.reshape(-1) for c in np.meshgrid(*axes, indexing="ij")]
    base = np.stack([*reversed(columns), np.ones_like(columns[0])], -1).astype(t.array.dtype)
    return reshape(matmul(beside(t, base), permute(t, (0, 2, 1))), (shape[0], *shape[2:], n))
