"""Windows: what convolution, pooling and unfolding read, one window per place of a regular grid.

`windows` copies them out, with the dims of the window first, so that a reduction over a window is a
reduction over whole arrays; `overlap_add` is its transpose. `window_sum` and `window_max` reduce
without the copy. All run one array operation per element of the window, never per window: for 2x2
pooling that is thirty times faster than NumPy's reduction over a strided view.

Primitives take normalised attributes: `sizes`, `stride` and `dilation`, one number for each of the
last dims. Read `convolution.py` next.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import maximum
from probtorch.ops.comparisons import eq
from probtorch.ops.extremes import amax
from probtorch.ops.families import linear, structured
from probtorch.ops.movement import expand, permute, reshape, slice_, unslice
from probtorch.ops.padding import pad
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "drop_first",
    "fold",
    "number_per_dim",
    "overlap_add",
    "unfold",
    "window_counts",
    "window_max",
    "window_sum",
    "windows",
]


def window_counts(
    spatial: Sequence[int], sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return how many windows fit along each dim."""
    return tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(spatial, sizes, stride, dilation, strict=True)
    )


def _places(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every place of a window, in row-major order."""
    return itertools.product(*(range(k) for k in sizes))


def _key(
    at: tuple[int, ...], counts: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[EllipsisType | slice, ...]:
    """Return the index that reads place `at` of every window."""
    starts = [i * d for i, d in zip(at, dilation, strict=True)]
    return (
        Ellipsis,
        *(slice(a, a + s * (c - 1) + 1, s) for a, s, c in zip(starts, stride, counts)),
    )


@functools.lru_cache(256)
def _keys(
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[EllipsisType | slice, ...], ...]:
    """Return that index for every place of a window."""
    return tuple(_key(at, counts, stride, dilation) for at in _places(sizes))


def _spec(
    shape: tuple[int, ...],
    at: tuple[int, ...],
    counts: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], ...]:
    """Return the slice spec (see ops/movement.py) that reads place `at` of every window."""
    lead = shape[: len(shape) - len(at)]
    return (
        *((0, 1, n) for n in lead),
        *((i * d, s, c) for i, d, s, c in zip(at, dilation, stride, counts, strict=True)),
    )


def _run_windows(
    x: np.ndarray, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> np.ndarray:
    n = len(sizes)
    counts = window_counts(x.shape[-n:], sizes, stride, dilation)
    out = namespace(x).empty((*sizes, *x.shape[:-n], *counts), x.dtype)
    for at, key in zip(_places(sizes), _keys(sizes, counts, stride, dilation), strict=True):
        out[at] = x[key]
    return out


def _decomposed_windows(
    x: TensorBase, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> TensorBase:
    n, shape = len(sizes), x.array.shape
    counts = window_counts(shape[-n:], sizes, stride, dilation)
    pieces = [slice_(x, _spec(shape, at, counts, stride, dilation)) for at in _places(sizes)]
    out = cat([reshape(p, (1, *p.array.shape)) for p in pieces])
    return reshape(out, (*sizes, *shape[:-n], *counts))


def _windows_reference(
    x: np.ndarray, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> np.ndarray:
    n = len(sizes)
    axes = tuple(range(x.ndim - n, x.ndim))
    spans = tuple(d * (k - 1) + 1 for k, d in zip(sizes, dilation))
    seen = np.lib.stride_tricks.sliding_window_view(x, spans, axes)
    places = tuple(slice(None, None, s) for s in stride)
    inside = tuple(slice(None, None, d) for d in dilation)
    seen = seen[(*[slice(None)] * (x.ndim - n), *places, *inside)]
    return np.moveaxis(seen, range(x.ndim, x.ndim + n), range(n))


def _window_samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray, ...], Attrs]]:
    return [
        (
            (rng.standard_normal((2, 7, 6)),),
            {"sizes": (3, 2), "stride": (2, 3), "dilation": (2, 1)},
        ),
        ((rng.standard_normal((3, 5)),), {"sizes": (3,), "stride": (1,), "dilation": (1,)}),
    ]


_WINDOWS = linear(
    "windows",
    "movement",
    run=_run_windows,
    transpose=lambda g, x, sizes, stride, dilation: overlap_add(
        g, x.array.shape[-len(sizes) :], sizes, stride, dilation
    ),
    samples=_window_samples,
    reference=_windows_reference,
    doc="Windows of the last dims, copied out; the dims of the window come first.",
)
_WINDOWS.extra["decompose"] = _decomposed_windows


def windows(
    x: TensorBase, sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> TensorBase:
    """Return the windows of the last dims of `x`.

    Parameters
    ----------
    x : Tensor, shape (..., *spatial)
    sizes, stride, dilation : tuple of int
        One number for each spatial dim.

    Returns
    -------
    Tensor, shape (*sizes, ..., *counts)
    """
    return apply(_WINDOWS, (x,), {"sizes": sizes, "stride": stride, "dilation": dilation})


def _run_overlap_add(
    x: np.ndarray,
    spatial: tuple[int, ...],
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> np.ndarray:
    n = len(sizes)
    counts = x.shape[-n:]
    out = namespace(x).zeros((*x.shape[n:-n], *spatial), x.dtype)
    for at, key in zip(_places(sizes), _keys(sizes, counts, stride, dilation), strict=True):
        out[key] += x[at]
    return out


def _decomposed_overlap_add(
    x: TensorBase,
    spatial: tuple[int, ...],
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> TensorBase:
    n, shape = len(sizes), x.array.shape
    target = (*shape[n:-n], *spatial)

    def term(at: tuple[int, ...]) -> TensorBase:
        one = tuple((i, 1, 1) for i in at) + tuple((0, 1, m) for m in shape[n:])
        piece = reshape(slice_(x, one), shape[n:])
        return unslice(piece, _spec(target, at, shape[-n:], stride, dilation), target)

    return functools.reduce(operator.add, map(term, _places(sizes)))


def _overlap_add_reference(
    x: np.ndarray,
    spatial: tuple[int, ...],
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> np.ndarray:
    n = len(sizes)
    out = np.zeros((*x.shape[n:-n], *spatial), x.dtype)
    for index in np.ndindex(*sizes, *x.shape[-n:]):
        at, window = index[:n], index[n:]
        place = tuple(w * s + i * d for w, s, i, d in zip(window, stride, at, dilation))
        out[(Ellipsis, *place)] += x[(*at, Ellipsis, *window)]
    return out


_OVERLAP_ADD = linear(
    "overlap_add",
    "movement",
    run=_run_overlap_add,
    transpose=lambda g, x, spatial, sizes, stride, dilation: windows(g, sizes, stride, dilation),
    samples=lambda rng: [
        (
            (rng.standard_normal((3, 2, 2, 2, 2)),),
            {"spatial": (7, 6), "sizes": (3, 2), "stride": (2, 3), "dilation": (2, 1)},
        ),
        (
            (rng.standard_normal((3, 2, 3)),),
            {"spatial": (5,), "sizes": (3,), "stride": (1,), "dilation": (1,)},
        ),
    ],
    reference=_overlap_add_reference,
    doc="Windows added up where they overlap: the transpose of `windows`.",
)
_OVERLAP_ADD.extra["decompose"] = _decomposed_overlap_add


def overlap_add(
    x: TensorBase,
    spatial: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> TensorBase:
    """Add up windows, shape (*sizes, ..., *counts), at their places in zeros (..., *spatial)."""
    return apply(
        _OVERLAP_ADD,
        (x,),
        {"spatial": tuple(spatial), "sizes": sizes, "stride": stride, "dilation": dilation},
    )


# --------------------------------------------------------------------------------------- reductions


def _reduce(combine: np.ufunc) -> Callable[..., np.ndarray]:
    def run(
        x: np.ndarray, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
    ) -> np.ndarray:
        counts = window_counts(x.shape[-len(sizes) :], sizes, stride, dilation)
        first, *keys = _keys(sizes, counts, stride, dilation)
        out = x[first].copy()
        for key in keys:
            combine(out, x[key], out=out)
        return out

    return run


def _spread(
    g: TensorBase,
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    spatial: tuple[int, ...],
) -> TensorBase:
    """Add `g`, one number per window, to every place of the window."""
    return overlap_add(expand(g, (*sizes, *g.array.shape)), spatial, sizes, stride, dilation)


_WINDOW_SUM = linear(
    "window_sum",
    "reduction",
    run=_reduce(np.add),
    transpose=lambda g, x, sizes, stride, dilation: _spread(
        g, sizes, stride, dilation, x.array.shape[-len(sizes) :]
    ),
    core="(*sizes)->(*sizes)",
    samples=_window_samples,
    reference=lambda x, sizes, stride, dilation: _windows_reference(x, sizes, stride, dilation).sum(
        tuple(range(len(sizes)))
    ),
    doc="Sum over each window of the last dims.",
)
# `sum` widens small integers; adding in place does not.
_WINDOW_SUM.extra["decompose"] = lambda x, sizes, stride, dilation: cast(
    sum(windows(x, sizes, stride, dilation), tuple(range(len(sizes)))), x.array.dtype
)


def window_sum(
    x: TensorBase, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> TensorBase:
    """Return the sums of the windows of the last dims of `x`, shape (..., *counts)."""
    return apply(_WINDOW_SUM, (x,), {"sizes": sizes, "stride": stride, "dilation": dilation})


def _hits(
    x: TensorBase,
    out: TensorBase,
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> TensorBase:
    """Return where the windows of `x` reach their largest element, as shares that add up to 1."""
    hit = cast(eq(windows(x, sizes, stride, dilation), out), x.array.dtype)
    return hit / maximum(sum(hit, tuple(range(len(sizes)))), 1.0)


_FEW = 2048


def _max_slopes(
    g: np.ndarray,
    x: np.ndarray,
    out: np.ndarray,
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> np.ndarray:
    """`g` times `_hits`, added up at its places, on arrays."""
    keys = _keys(sizes, out.shape[-len(sizes) :], stride, dilation)
    hits = [x[key] == out for key in keys]
    count = functools.reduce(np.add, hits, np.zeros(out.shape, x.dtype))
    share, slopes = g * (1.0 / np.maximum(count, 1.0)), np.zeros_like(x)
    apart = all(s > d * (k - 1) for k, s, d in zip(sizes, stride, dilation))
    if apart and g.size < _FEW:  # fewer steps, each of which takes longer for each number
        for key, hit in zip(keys, hits, strict=True):
            np.copyto(slopes[key], share, where=hit)
        return slopes
    for key, hit in zip(keys, hits, strict=True):
        slopes[key] += share * hit
    return slopes


def _window_max_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), spatial = inputs, inputs[0].array.shape[-len(attrs["sizes"]) :]
    if unseen(g, x, out):
        return (wrap(_max_slopes(g.array, x.array, out.array, **attrs)),)
    return (overlap_add(g * _hits(x, out, **attrs), spatial, **attrs),)


def _window_max_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    shares = _hits(inputs[0], out, **attrs)
    return sum(shares * windows(tangents[0], **attrs), tuple(range(len(attrs["sizes"]))))


_WINDOW_MAX = structured(
    "window_max",
    "reduction",
    run=_reduce(np.maximum),
    vjp=_window_max_vjp,
    jvp=_window_max_jvp,
    saves="x out",
    core="(*sizes)->(*sizes)",
    samples=_window_samples,
    reference=lambda x, sizes, stride, dilation: _windows_reference(x, sizes, stride, dilation).max(
        tuple(range(len(sizes)))
    ),
    doc="Largest element of each window of the last dims; ties share the gradient.",
    extra={
        "picks": True,
        "decompose": lambda x, sizes, stride, dilation: amax(
            windows(x, sizes, stride, dilation), tuple(range(len(sizes)))
        ),
    },
)


def window_max(
    x: TensorBase, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> TensorBase:
    """Return the largest elements of the windows of the last dims of `x`, shape (..., *counts)."""
    return apply(_WINDOW_MAX, (x,), {"sizes": sizes, "stride": stride, "dilation": dilation})


# ------------------------------------------------------------------------------- unfolding, folding


def number_per_dim(op: str, name: str, value: Any, n: int, least: int = 1) -> tuple[int, ...]:
    """Return `value`, an int or a sequence of them, as a tuple of `n` ints.

    Raises
    ------
    ArgumentError
        If it has another length, or an element below `least`.
    """
    given = value
    if type(value) is int and value >= least:
        return (value,) * n
    if isinstance(value, (list, tuple)):
        value = tuple(value) * n if len(value) == 1 else tuple(value)
    else:
        value = (value,) * n
    if len(value) != n or any(
        isinstance(v, bool) or not hasattr(v, "__index__") or v.__index__() < least for v in value
    ):
        raise ArgumentError(
            op,
            expected=f"{name}: an integer >= {least}, or {n} of them",
            got=f"{name}={given!r}",
            fix=f"give one number for all {n} spatial dims, or one for each",
        )
    return tuple(v.__index__() for v in value)


def _unfold_arguments(
    op: str,
    kernel_size: SizeLike | str,
    dilation: SizeLike | str,
    padding: SizeLike | str,
    stride: SizeLike | str,
) -> tuple[tuple[int, ...], ...]:
    return (
        number_per_dim(op, "kernel_size", kernel_size, 2),
        number_per_dim(op, "stride", stride, 2),
        number_per_dim(op, "dilation", dilation, 2),
        number_per_dim(op, "padding", padding, 2, least=0),
    )


@in_our_words
def unfold(
    input: TensorLike,
    kernel_size: SizeLike,
    dilation: SizeLike = 1,
    padding: SizeLike | str = 0,
    stride: SizeLike = 1,
) -> TensorBase:
    """Return the windows of images as columns.

    Parameters
    ----------
    input : Tensor, shape (N, C, H, W) or (C, H, W)
    kernel_size, dilation, padding, stride : int or pair of int

    Returns
    -------
    Tensor, shape (N, C * product of kernel_size, L)
        One column per window, in row-major order.

    Raises
    ------
    ShapeError
        If the windows do not fit into the padded image.
    """
    x = as_tensor(input, "unfold")
    sizes, stride, dilation, padding = _unfold_arguments(
        "unfold", kernel_size, dilation, padding, stride
    )
    if x.array.ndim == 3:
        return drop_first(unfold(reshape(x, (1, *x.array.shape)), sizes, dilation, padding, stride))
    if x.array.ndim != 4:
        raise ShapeError(
            "unfold",
            expected="images of shape (N, C, H, W) or (C, H, W)",
            got=str(x.array.shape),
            fix="reshape the input",
        )
    x = pad(x, (padding[1], padding[1], padding[0], padding[0]))
    counts = window_counts(x.array.shape[-2:], sizes, stride, dilation)
    if min(counts) < 1:
        raise ShapeError(
            "unfold",
            expected=f"a padded image at least as large as the window of size {sizes}",
            got=f"{x.array.shape[-2:]} with dilation {dilation}",
            fix="use a smaller kernel_size or more padding",
        )
    n, c = x.array.shape[:2]
    out = permute(windows(x, sizes, stride, dilation), (2, 3, 0, 1, 4, 5))
    return reshape(out, (n, c * math.prod(sizes), math.prod(counts)))


@in_our_words
def fold(
    input: TensorLike,
    output_size: SizeLike,
    kernel_size: SizeLike,
    dilation: SizeLike = 1,
    padding: SizeLike | str = 0,
    stride: SizeLike = 1,
) -> TensorBase:
    """Add up columns of windows to images: the transpose of `unfold`, same arguments.

    Parameters
    ----------
    input : Tensor, shape (N, C * product of kernel_size, L) or without N
    output_size : int or pair of int
        Sizes (H, W) of the images.

    Raises
    ------
    ShapeError
        If the number of rows or columns does not go with the sizes.
    """
    x = as_tensor(input, "fold")
    sizes, stride, dilation, padding = _unfold_arguments(
        "fold", kernel_size, dilation, padding, stride
    )
    size = number_per_dim("fold", "output_size", output_size, 2)
    if x.array.ndim == 2:
        x = reshape(x, (1, *x.array.shape))
        return drop_first(fold(x, size, sizes, dilation, padding, stride))
    spatial = tuple(n + 2 * p for n, p in zip(size, padding))
    counts = window_counts(spatial, sizes, stride, dilation)
    shape, k = x.array.shape, math.prod(sizes)
    if x.array.ndim != 3 or shape[1] % k or shape[2] != math.prod(counts):
        raise ShapeError(
            "fold",
            expected=f"shape (N, C * {k}, {math.prod(counts)}) for images of size {size}",
            got=str(shape),
            fix="fold takes back what unfold gave: check output_size and the other arguments",
        )
    n, c = shape[0], shape[1] // k
    x = permute(reshape(x, (n, c, *sizes, *counts)), (2, 3, 0, 1, 4, 5))
    out = overlap_add(x, spatial, sizes, stride, dilation)
    return slice_(out, ((0, 1, n), (0, 1, c), *((p, 1, s) for p, s in zip(padding, size))))


def drop_first(x: TensorBase) -> TensorBase:
    """Drop a first dim of size 1."""
    return reshape(x, x.array.shape[1:])
