"""Resizing signals, images and volumes: `interpolate`, and the names it had before.

Every mode but "area" is a product of maps of one dim: each element of the output is a weighted sum
of a few of the input, its taps. Which they are, and their weights, follows from the sizes alone and
is computed once by NumPy. The transpose of such a map has taps too, so the gradient gathers just as
the value does, and nothing is ever added up in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.typed import DType, SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.arithmetic import clone
from probtorch.ops.padding import beside
from probtorch.ops.pooling import adaptive_avg_pool
from probtorch.ops.take_put import take
from probtorch.ops.windows import number_per_dim
from probtorch.tensor import Tensor

__all__ = ["interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]

# One factor for all dims, or one for each.
Factors: TypeAlias = float | Sequence[float]
Numbers = TypeVar("Numbers", np.ndarray, Tensor)


@dataclass(frozen=True, eq=False)
class _Taps:
    """A map from one dim of `size` elements to another: row j is ``sum(weight[j] * x[index[j]])``.

    `index` and `weight` have shape (out, taps); rows with fewer taps repeat one with weight 0.
    `weight` is None where every row is one element as it is.
    """

    size: int
    index: np.ndarray
    weight: np.ndarray | None

    @functools.cached_property
    def transposed(self) -> _Taps:
        """Return the map whose matrix is the transpose."""
        out, taps = self.index.shape
        weight = np.ones((out, taps)) if self.weight is None else self.weight
        matrix_row = np.repeat(np.arange(out), taps)
        used = weight.reshape(-1) != 0.0
        column, row = self.index.reshape(-1)[used], matrix_row[used]
        order = np.argsort(column, kind="stable")
        column, row, value = column[order], row[order], weight.reshape(-1)[used][order]
        counts = np.bincount(column, minlength=self.size)
        width = max(int(np.max(counts, initial=0)), 1)
        index = np.zeros((self.size, width), np.int64)
        back = np.zeros((self.size, width), weight.dtype)
        place = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
        index[column, place], back[column, place] = row, value
        # Beside another tap of the row, not at element 0, which may be infinite.
        index = np.where(np.arange(width) < counts[:, None], index, index[:, :1])
        return _Taps(out, index, back)


def _gathered(x: Tensor, dim: int, taps: _Taps) -> Tensor:
    total: Tensor | None = None
    for k in range(taps.index.shape[1]):
        term = take(x, (dim,), [beside(x, np.ascontiguousarray(taps.index[:, k]))])
        if taps.weight is not None:
            w = taps.weight[:, k].astype(x.array.dtype)
            term = term * beside(x, w.reshape(-1, *[1] * (x.array.ndim - dim - 1)))
        total = term if total is None else total + term
    assert total is not None
    return total


class _Resized(Function):
    """A map of taps along a dim; its gradient is the transposed map."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, dim: int, taps: _Taps) -> Tensor:
        ctx.dim, ctx.taps = dim, taps
        return _gathered(x, dim, taps)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor, None, None]:
        return _Resized.apply(g, ctx.dim, ctx.taps.transposed), None, None

    # The base says None for "no rule".
    @staticmethod
    def jvp(  # type: ignore[override]
        ctx: FunctionCtx, tangent: Tensor, dim: None, taps: None
    ) -> Tensor:
        return _Resized.apply(tangent, ctx.dim, ctx.taps)


# ---------------------------------------------------------------------------------- taps of one dim


def _ratio(size: int, out: int, scale: float | None, ends_meet: bool, real: type) -> np.floating:
    """Return how many elements of the input one step of the output is, in PyTorch's precision."""
    if ends_meet:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0.0 else real(size) / real(out)


def _nearest(
    size: int, out: int, scale: float | None, ends_meet: bool, real: type, shift: float
) -> _Taps:
    at = (np.arange(out).astype(real) + real(shift)) * _ratio(size, out, scale, False, real)
    index = np.clip(np.floor(at).astype(np.int64), 0, size - 1)
    return _Taps(size, index[:, None], None)


def _places(
    size: int, out: int, scale: float | None, ends_meet: bool, real: type
) -> tuple[np.ndarray, np.floating]:
    """Return where each element of the output lies between those of the input, and the step."""
    ratio = _ratio(size, out, scale, ends_meet, real)
    j = np.arange(out).astype(real)
    return j * ratio if ends_meet else (j + real(0.5)) * ratio - real(0.5), ratio


def _linear(size: int, out: int, scale: float | None, ends_meet: bool, real: type) -> _Taps:
    at = np.maximum(_places(size, out, scale, ends_meet, real)[0], real(0))
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    share = np.clip(at - low.astype(real), real(0), real(1))
    index = np.stack([low, np.minimum(low + 1, size - 1)], 1)
    return _Taps(size, index, np.stack([real(1) - share, share], 1))


def cubic_weights(share: Numbers, a: float) -> list[Numbers]:
    """Return the weights of four neighbours; `share` is the way from the second to the third.

    The cubic convolution kernel with parameter `a` [keys1981]_; it works on tensors as well.
    """
    t, far = share, share + 1.0
    near_end, far_end = 1.0 - share, 2.0 - share
    return [
        ((far * a - 5.0 * a) * far + 8.0 * a) * far - 4.0 * a,
        (t * (a + 2.0) - (a + 3.0)) * t * t + 1.0,
        (near_end * (a + 2.0) - (a + 3.0)) * near_end * near_end + 1.0,
        ((far_end * a - 5.0 * a) * far_end + 8.0 * a) * far_end - 4.0 * a,
    ]


def _cubic(size: int, out: int, scale: float | None, ends_meet: bool, real: type) -> _Taps:
    at = _places(size, out, scale, ends_meet, real)[0]
    low = np.floor(at).astype(np.int64)
    index = np.clip(low[:, None] + np.arange(-1, 3), 0, size - 1)
    # -0.75 as in PyTorch, and in OpenCV.
    return _Taps(size, index, np.stack(cubic_weights(at - low.astype(real), -0.75), 1).astype(real))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _keys(x: np.ndarray) -> np.ndarray:
    # -0.5 here, as in PyTorch, and in Pillow.
    a, x = -0.5, np.abs(x)
    inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    outer = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, inner, np.where(x < 2.0, outer, 0.0))


def _smooth(
    size: int,
    out: int,
    scale: float | None,
    ends_meet: bool,
    real: type,
    kernel: Callable[[np.ndarray], np.ndarray],
    reach: float,
) -> _Taps:
    """Return the taps of a kernel stretched over what one output element stands for."""
    ratio = _ratio(size, out, scale, ends_meet, real)
    stretch = max(float(ratio), 1.0)
    support = reach * stretch
    centre = (np.arange(out).astype(real) + real(0.5)) * ratio
    first = np.maximum((centre - real(support) + real(0.5)).astype(np.int64), 0)
    last = np.minimum((centre + real(support) + real(0.5)).astype(np.int64), size)
    width = max(int((last - first).max(initial=1)), 1)
    inside = np.arange(width)[None, :] < (last - first)[:, None]
    index = first[:, None] + np.arange(width)
    weight = kernel((index - centre[:, None].astype(np.float64) + 0.5) / stretch) * inside
    weight = weight / weight.sum(1, keepdims=True)
    return _Taps(size, np.where(inside, index, first[:, None]), weight.astype(real))


_TAPS: dict[str, Callable[[int, int, float | None, bool, type], _Taps]] = {
    "nearest": functools.partial(_nearest, shift=0.0),
    "nearest-exact": functools.partial(_nearest, shift=0.5),
    "linear": _linear,
    "bicubic": _cubic,
    "smooth linear": functools.partial(_smooth, kernel=_triangle, reach=1.0),
    "smooth bicubic": functools.partial(_smooth, kernel=_keys, reach=2.0),
}
# By mode: the numbers of spatial dims it is for, and which taps it has.
_MODES = {
    "nearest": ((1, 2, 3), "nearest"),
    "nearest-exact": ((1, 2, 3), "nearest-exact"),
    "linear": ((1,), "linear"),
    "bilinear": ((2,), "linear"),
    "trilinear": ((3,), "linear"),
    "bicubic": ((2,), "bicubic"),
    "area": ((1, 2, 3), "area"),
}


@functools.lru_cache(maxsize=256)
def _taps(
    kind: str, size: int, out: int, scale: float | None, ends_meet: bool, dtype: DType
) -> _Taps:
    return _TAPS[kind](size, out, scale, ends_meet, dtype.type)


# -------------------------------------------------------------------------------------- interpolate


@in_our_words
def interpolate(
    input: TensorLike,
    size: SizeLike | None = None,
    scale_factor: Factors | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize the dims after the first two.

    Parameters
    ----------
    input : Tensor, shape (N, C, L), (N, C, H, W) or (N, C, D, H, W)
    size : int or tuple of int, optional
        Sizes of the output's spatial dims.
    scale_factor : float or tuple of float, optional
        By how much to multiply the sizes; give either this or `size`.
    mode : {"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"}
        "linear" is for signals, "bilinear" and "bicubic" for images, "trilinear" for volumes.
        "nearest" rounds down to the element on the left, as old versions of OpenCV do;
        "nearest-exact" takes the element that is nearest.
    align_corners : bool, optional
        Whether the centres of the outermost elements coincide, instead of their outer edges;
        "linear" to "bicubic" only.
    recompute_scale_factor : bool, optional
        Compute positions from the sizes, which are whole, instead of from `scale_factor`.
    antialias : bool
        Average over what one output element stands for when sizes become smaller; "bilinear" and
        "bicubic" only.

    Returns
    -------
    Tensor, shape (N, C, *sizes)

    Raises
    ------
    ArgumentError
        For an unknown mode, or arguments that do not go together.
    ShapeError
        If the input's dims are not those of the mode, or a size is 0.
    DTypeError
        If integers are to be averaged.

    Examples
    --------
    >>> import probtorch
    >>> interpolate(probtorch.tensor([[[1.0, 2.0]]]), scale_factor=2)
    tensor([[[1., 1., 2., 2.]]])
    """
    x = as_tensor(input, "interpolate")
    kind = _kind(x, mode, align_corners, antialias)
    n = x.array.ndim - 2
    spatial = x.array.shape[2:]
    sizes, scales = _sizes(spatial, size, scale_factor, recompute_scale_factor)
    if min(spatial, default=1) < 1:
        raise ShapeError(
            "interpolate",
            expected="spatial dims with elements",
            got=f"shape {x.array.shape}",
            fix="check for empty data",
        )
    if kind == "area":
        return adaptive_avg_pool("interpolate", n, x, sizes)
    if not kind.startswith("nearest") and x.array.dtype.kind != "f":
        raise DTypeError(
            "interpolate",
            expected=f"floats in mode {mode!r}",
            got=str(x.array.dtype),
            fix="convert them with .float(), or use mode 'nearest'",
        )
    # In single precision, as PyTorch does.
    half = x.array.dtype is dtypes.float16
    y = cast(x, dtypes.float32) if half else x
    real = y.array.dtype if y.array.dtype.kind == "f" else dtypes.float32
    for i, (old, new, scale) in enumerate(zip(spatial, sizes, scales, strict=True)):
        # A scale that changes no size changes nothing, as in PyTorch: in any dim when smoothing, in
        # all of them when interpolating. "nearest" follows the scale.
        unchanged = old == new
        if unchanged and (scale is None or not kind.startswith("nearest")):
            continue
        y = _Resized.apply(y, 2 + i, _taps(kind, old, new, scale, bool(align_corners), real))
    y = clone(y) if y is x else y
    return cast(y, dtypes.float16) if half else y


def _kind(x: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> str:
    """Return which taps are meant."""
    if not isinstance(mode, str) or mode not in _MODES:
        raise ArgumentError(
            "interpolate",
            expected=f"mode among {', '.join(map(repr, _MODES))}",
            got=repr(mode),
            fix="use 'nearest', the default",
        )
    dims, kind = _MODES[mode]
    if x.array.ndim - 2 not in dims:
        raise ShapeError(
            "interpolate",
            expected=f"an input with {' or '.join(str(d + 2) for d in dims)} dims in mode {mode!r}",
            got=f"shape {x.array.shape}",
            fix="batch and channels come first; 'linear' is for signals, 'bilinear' and 'bicubic' "
            "for images, 'trilinear' for volumes",
        )
    if kind in ("nearest", "nearest-exact", "area") and align_corners is not None:
        raise ArgumentError(
            "interpolate",
            expected="align_corners only with 'linear', 'bilinear', 'bicubic' or 'trilinear'",
            got=f"align_corners={align_corners}, mode={mode!r}",
            fix="leave the argument out",
        )
    if not antialias:
        return kind
    if mode not in ("bilinear", "bicubic"):
        raise ArgumentError(
            "interpolate",
            expected="antialias with 'bilinear' or 'bicubic'",
            got=f"antialias=True, mode={mode!r}",
            fix="leave the argument out; 'area' averages whole elements",
        )
    return f"smooth {kind}"


def _sizes(
    spatial: tuple[int, ...],
    size: SizeLike | None,
    scale_factor: Factors | None,
    recompute: bool | None,
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return the new sizes, and the scales that positions are computed from, if not from these."""
    n = len(spatial)
    if (size is None) == (scale_factor is None):
        raise ArgumentError(
            "interpolate",
            expected="either size or scale_factor",
            got="both" if size is not None else "neither",
            fix="pass size=(...) or scale_factor=2",
        )
    if scale_factor is None:
        if recompute:
            raise ArgumentError(
                "interpolate",
                expected="recompute_scale_factor together with scale_factor",
                got="size",
                fix="leave the argument out: positions follow from the sizes anyway",
            )
        return number_per_dim("interpolate", "size", size, n), (None,) * n
    given: Sequence[float]
    if isinstance(scale_factor, Sequence) and not isinstance(scale_factor, str):
        given = scale_factor
    else:
        given = (scale_factor,) * n
    fits = len(given) == n and all(
        isinstance(f, (int, float, np.number)) and math.isfinite(f) and m * f >= 1.0
        for f, m in zip(given, spatial)
    )
    if not fits:
        raise ArgumentError(
            "interpolate",
            expected=f"scale_factor: a number, or {n} of them, that leave sizes of at least 1",
            got=f"scale_factor={scale_factor!r} for spatial sizes {spatial}",
            fix=f"give one positive number per spatial dim, {n} here, or use size=",
        )
    sizes = tuple(math.floor(float(m) * float(f)) for m, f in zip(spatial, given))
    return sizes, (None,) * n if recompute else tuple(float(f) for f in given)


@in_our_words
def upsample(
    input: TensorLike,
    size: SizeLike | None = None,
    scale_factor: Factors | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Resize the dims after the first two: an older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


@in_our_words
def upsample_nearest(
    input: TensorLike, size: SizeLike | None = None, scale_factor: Factors | None = None
) -> Tensor:
    """Resize by repeating elements: `interpolate` in mode "nearest"."""
    return interpolate(input, size, scale_factor, "nearest")


@in_our_words
def upsample_bilinear(
    input: TensorLike, size: SizeLike | None = None, scale_factor: Factors | None = None
) -> Tensor:
    """Resize images between aligned corners: `interpolate` in mode "bilinear"."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)
