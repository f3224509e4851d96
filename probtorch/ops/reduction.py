"""Reductions: ops that combine elements along dims, and what is made of them (mean, var, norms).

The primitives take normalised `dims` and `keepdim`; the public functions accept PyTorch's `dim`,
`keepdim` and NumPy's `axis`, `keepdims`. Ties of amax and amin share the gradient evenly.

Half precision is added up in single precision, and so are means, norms and spreads of it computed:
70,000 halves have a mean although their sum is beyond 65,504. Spreads and running sums of single
precision are computed in double precision, from which they are rounded once.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, converted, to_float
from probtorch.core.dispatch import (
    apply,
    unheard,
    unseen,
    untaped_view,
    unwatched,
    whole_door,
    wrap,
)
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim, normalize_dims, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.errors import DTypeError, users_stacklevel
from probtorch.ops.accumulate import add_up, floats, reduced
from probtorch.ops.arithmetic import add, sqrt, where
from probtorch.ops.comparisons import eq, logical_not
from probtorch.ops.complex_numbers import imag, real
from probtorch.ops.families import linear, structured, unbroadcast
from probtorch.ops.movement import expand, expanded, reshape
from probtorch.ops.pieces import flip
from probtorch.ops.running import others, running, sums_back

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "Sample",
    "all",
    "any",
    "centred",
    "count_over",
    "cumsum",
    "in_single",
    "kept_shape",
    "laid_over",
    "mean",
    "prod",
    "quick_variance",
    "reduction_arguments",
    "reduction_samples",
    "safe_sqrt",
    "std",
    "sum",
    "sum_to",
    "var",
]


F = TypeVar("F", bound=Callable[..., TensorBase])
Sample = tuple[tuple[np.ndarray, ...], dict[str, object]]


def reduction_samples(rng: np.random.Generator) -> list[Sample]:
    """Return `samples` of an op whose attributes are `dims` and `keepdim`."""
    x = rng.standard_normal((2, 3, 4))
    return [
        ((x,), {"dims": (0, 1, 2), "keepdim": False}),
        ((x,), {"dims": (1,), "keepdim": True}),
        ((x,), {"dims": (0, 2), "keepdim": False}),
        ((rng.standard_normal(()),), {"dims": (), "keepdim": False}),
    ]


def _samples_or_empty(rng: np.random.Generator) -> list[Sample]:
    return [
        *reduction_samples(rng),
        ((rng.standard_normal((0, 3)),), {"dims": (0,), "keepdim": False}),
    ]


def kept_shape(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` with the sizes of `dims` replaced by 1."""
    return tuple(1 if i in dims else s for i, s in enumerate(shape))


def laid_over(t: TensorBase, x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    """Return what a reduction of `x` gave, or its cotangent, in a shape that broadcasts with `x`.

    A single number does so as it is.
    """
    return t if t.array.ndim == 0 else reshape(t, kept_shape(x.array.shape, dims))


def reduction_arguments(
    x: TensorLike, dim: Dims, axis: Dims, op: str
) -> tuple[TensorBase, tuple[int, ...]]:
    """Return a tensor and its dims, as they are meant by PyTorch's `dim` or NumPy's `axis`."""
    x = as_tensor(x, op)
    return x, normalize_dims(axis if dim is None else dim, x.array.ndim, op)


def in_single(fn: F) -> F:
    """Return `fn` for half precision too: computed in single precision, its result rounded back."""

    @functools.wraps(fn)
    def call(*args: object, **options: object) -> TensorBase:
        x = args[0] if args else options.get("input")
        half = isinstance(x, TensorBase) and x.array.dtype is dtypes.float16
        if not isinstance(x, TensorBase) or not half or options.get("dtype") is not None:
            return fn(*args, **options)
        wide = cast(x, dtypes.float32)
        if args:
            return cast(fn(wide, *args[1:], **options), dtypes.float16)
        return cast(fn(**{**options, "input": wide}), dtypes.float16)

    return call  # type: ignore[return-value]  # the same arguments and results


# ------------------------------------------------------------------------------------- sum and mean


def _spread(g: TensorBase, x: TensorBase, dims: tuple[int, ...], keepdim: bool) -> TensorBase:
    if g.array.ndim == 0 and type(g.array) is np.ndarray and x.array.ndim:
        quick = untaped_view(g, expanded(g.array, x.array.shape))
        if quick is not None:
            return quick
    return expand(laid_over(g, x, dims), x.array.shape)


_SUM = linear(
    "sum",
    "reduction",
    run=add_up,
    transpose=_spread,
    core="dims",
    native="reduce",
    samples=_samples_or_empty,
    reference=lambda x, dims, keepdim: np.sum(x, axis=dims, keepdims=keepdim),
    doc="Sum over dims.",
)


@functools.partial(whole_door, _SUM)
@takes_out
def sum(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Sum over `dim` (all dims if None); integers and booleans give int64.

    Parameters
    ----------
    input : Tensor
    dim : int or tuple of int, optional
    keepdim : bool
        Keep the summed dims with size 1.
    dtype : dtype, optional
        Cast to it before summing.

    Returns
    -------
    Tensor
    """
    input, dims = reduction_arguments(input, dim, axis, "sum")
    if dtype is not None:
        input = cast(input, dtypes.as_dtype(dtype))
    elif input.array.dtype.kind in "bui":
        input = cast(input, dtypes.int64)
    return apply(_SUM, (input,), {"dims": dims, "keepdim": keepdim or keepdims})


def sum_to(x: TensorBase, shape: Sequence[int]) -> TensorBase:
    """Sum `x` over the dims along which `shape` was broadcast to get its shape."""
    return reshape(unbroadcast(x, shape if type(shape) is tuple else parse_size((shape,))), shape)


def count_over(x: TensorBase, dims: tuple[int, ...]) -> int:
    """Return how many elements there are along `dims`."""
    return math.prod(x.array.shape[d] for d in dims)


@takes_out
@in_single
def mean(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Arithmetic mean over `dim` (all dims if None).

    Of integers and booleans it is that of their exact sum, in the default dtype: ``(a > b).mean()``
    is the share of draws in which a is larger. PyTorch asks for ``.float()`` there.

    Raises
    ------
    DTypeError
        If `dtype` is none of floats.
    """
    input, dims = reduction_arguments(input, dim, axis, "mean")
    if dtype is not None:
        if dtypes.as_dtype(dtype) == dtypes.float16 and input.array.dtype.kind == "f":
            # Rounded once, at the end.
            wide = cast(input, dtypes.float32) if input.array.dtype.itemsize < 4 else input
            return cast(mean(wide, dims, keepdim or keepdims), dtypes.float16)
        input = cast(input, dtypes.as_dtype(dtype))
        if input.array.dtype.kind not in "fc":
            raise DTypeError(
                "mean",
                expected="dtype as a floating dtype, or a complex one",
                got=str(input.array.dtype),
                fix="leave dtype out",
            )
    n = count_over(input, dims)
    if input.array.dtype.kind in "biu":
        total = sum(input, dims, keepdim or keepdims)
        return total / float(n) if n else to_float(total) * math.nan
    total = apply(_SUM, (input,), {"dims": dims, "keepdim": keepdim or keepdims})
    return total / float(n) if n else total * math.nan


def centred(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    """Return `x` less its mean over `dims`, exact where the mean is large beside the spread.

    The first difference is exact to rounding but for a shift, that of the rounded mean, which the
    second one takes away.
    """
    y = x - mean(x, dims, True)
    return y if x.array.dtype == dtypes.float64 else y - mean(y, dims, True)


def _run_variance(
    x: np.ndarray, dims: tuple[int, ...], correction: float, keepdim: bool
) -> np.ndarray:
    x = floats(x)
    n = _size(x, dims)
    if type(x) is np.ndarray:
        d = x - np.add.reduce(x, dims, dtypes.float64, keepdims=True) / n
        d *= d
        total = reduced(np.add, d, dims, keepdim) / (n - correction)
        if not total.ndim:
            return x.dtype.type(total)
    else:
        d = x - x.sum(axis=dims, keepdims=True, dtype=dtypes.float64) / n
        d *= d
        total = d.sum(axis=dims, keepdims=keepdim) / (n - correction)
    return total.astype(x.dtype, copy=False)


def _size(array: np.ndarray, dims: tuple[int, ...]) -> int:
    return math.prod(array.shape[d] for d in dims)


def _slope_of_variance(x: TensorBase, dims: tuple[int, ...], correction: float) -> TensorBase:
    return centred(x, dims) * (2.0 / (count_over(x, dims) - correction))


def _variance_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), dims = inputs, attrs["dims"]
    slope = _slope_of_variance(x, dims, attrs["correction"])
    return (slope * laid_over(g, x, dims),)


def _variance_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    slope = _slope_of_variance(inputs[0], attrs["dims"], attrs["correction"])
    return sum(slope * tangents[0], attrs["dims"], attrs["keepdim"])


def _decomposed_variance(
    x: TensorBase, dims: tuple[int, ...], correction: int, keepdim: bool
) -> TensorBase:
    d = centred(to_float(x), dims)
    total = apply(_SUM, (d * d,), {"dims": dims, "keepdim": keepdim})
    return total / float(count_over(x, dims) - correction)


_VARIANCE = structured(
    "variance",
    "reduction",
    run=_run_variance,
    vjp=_variance_vjp,
    jvp=_variance_jvp,
    saves="x",
    core="dims",
    samples=lambda rng: [
        (args, {**attrs, "correction": c})
        for c, (args, attrs) in zip((1, 0, 1.5), reduction_samples(rng), strict=False)
    ],
    reference=lambda x, dims, correction, keepdim: (
        ((x - x.mean(axis=dims, keepdims=True)) ** 2).sum(axis=dims, keepdims=keepdim)
        / (_size(x, dims) - correction)
    ),
    doc="Squares about the mean summed over dims, divided by n - correction.",
    extra={"decompose": _decomposed_variance},
)


@takes_out
@in_single
def var(
    input: TensorLike,
    dim: Dims = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    unbiased: bool | None = None,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Variance over `dim`: squares summed and divided by n - correction.

    The correction is 1 by default, as in PyTorch; ``unbiased=False`` means 0. With too few elements
    the result is nan, with a warning. Single precision keeps its digits however large the mean.
    """
    input, dims = reduction_arguments(input, dim, axis, "var")
    if unbiased is not None:
        correction = 1 if unbiased else 0
    if input.array.dtype.kind == "c":
        parts = (
            var(part, dims, correction, keepdim or keepdims) for part in (real(input), imag(input))
        )
        return add(*parts)
    input, keep = to_float(input), keepdim or keepdims
    n = count_over(input, dims)
    if n - correction > 0:
        return apply(_VARIANCE, (input,), {"dims": dims, "correction": correction, "keepdim": keep})
    warnings.warn(
        f"var, std: {n} element(s) leave no degrees of freedom with correction={correction}; "
        "the result is nan",
        stacklevel=users_stacklevel(),
    )
    return apply(_SUM, (input,), {"dims": dims, "keepdim": keep}) * math.nan


def quick_variance(
    x: TensorBase, dims: tuple[int, ...], correction: float, keepdim: bool
) -> np.ndarray | None:
    """Return what `var` gives, of arrays; None where operations are asked for, or it warns."""
    if x.array.dtype.char not in "fd" or not unwatched(x) or type(keepdim) is not bool:
        return None
    if not isinstance(correction, (int, float)) or count_over(x, dims) - correction <= 0:
        return None
    return _run_variance(x.array, dims, correction, keepdim)


def safe_sqrt(x: TensorBase) -> TensorBase:
    """Sqrt whose derivative at 0 is 0 instead of infinite."""
    if unseen(x):
        return wrap(np.sqrt(x.array))
    flat = eq(x, 0.0)
    return where(flat, 0.0, sqrt(where(flat, 1.0, x)))


@takes_out
@in_single
def std(
    input: TensorLike,
    dim: Dims = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    unbiased: bool | None = None,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Standard deviation over `dim`; see `var`. The gradient at constant data is 0."""
    input, dims = reduction_arguments(input, dim, axis, "std")
    given = correction if unbiased is None else int(unbiased)
    quick = quick_variance(input, dims, given, keepdim or keepdims)
    if quick is not None:
        return wrap(np.sqrt(quick))
    return safe_sqrt(
        var(input, dim, correction, keepdim, unbiased=unbiased, axis=axis, keepdims=keepdims)
    )


@takes_out
def any(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Whether any element along `dim` is true (nonzero); False for no elements."""
    input, dims = reduction_arguments(input, dim, axis, "any")
    if unheard() and type(input.array) is np.ndarray:
        return wrap(reduced(np.logical_or, input.array, dims, keepdim or keepdims))
    return sum(cast(input, dtypes.bool_), dims, keepdim or keepdims) > 0


@takes_out
def all(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Whether all elements along `dim` are true (nonzero); True for no elements."""
    input, dims = reduction_arguments(input, dim, axis, "all")
    if unheard() and type(input.array) is np.ndarray:
        return wrap(reduced(np.logical_and, input.array, dims, keepdim or keepdims))
    return logical_not(any(logical_not(input), dims, keepdim or keepdims))


# ---------------------------------------------------------------------------------- products, scans


def _prod_flat(
    x: TensorBase, dims: tuple[int, ...]
) -> tuple[TensorBase, tuple[int, ...], tuple[int, ...]]:
    """Return `x` with `dims` merged into one last dim."""
    keep = tuple(i for i in range(x.array.ndim) if i not in dims)
    moved = x.permute(keep + dims)
    return (
        reshape(moved, (*(x.array.shape[i] for i in keep), count_over(x, dims))),
        moved.array.shape,
        keep + dims,
    )


def _prod_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), dims = inputs, attrs["dims"]
    if not dims:
        return (g,)
    flat, moved, order = _prod_flat(x, dims)
    apart = reshape(others(flat), moved).permute(tuple(int(i) for i in np.argsort(order)))
    return (apart * laid_over(g, x, dims),)


def _prod_jvp(
    tangents: list[TensorBase], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    (grad,) = _prod_vjp(out * 0.0 + 1.0, out, inputs, attrs, (True,))
    return sum(grad * tangents[0], attrs["dims"], attrs["keepdim"])


def _run_prod(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    wide = dtypes.float32 if x.dtype == dtypes.float16 else x.dtype
    out = x.prod(axis=dims, keepdims=keepdim, dtype=wide)  # type: ignore[call-overload,unused-ignore]
    return out.astype(x.dtype, copy=False)


_PROD = structured(
    "prod",
    "reduction",
    run=_run_prod,
    vjp=_prod_vjp,
    jvp=_prod_jvp,
    saves="x",
    core="dims",
    native="reduce",
    samples=reduction_samples,
    reference=lambda x, dims, keepdim: np.prod(x, axis=dims, keepdims=keepdim),
    complex=True,
    doc="Product over dims.",
)


@takes_out
def prod(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Product over `dim`; its gradient is exact where elements are 0 (n log n steps).

    Cast to `dtype` first where that is given; integers and booleans give int64.
    """
    input, dims = reduction_arguments(converted(input, dtype, "prod"), dim, axis, "prod")
    if dtype is None and input.array.dtype.kind in "bui":
        input = cast(input, dtypes.int64)
    return apply(_PROD, (input,), {"dims": dims, "keepdim": keepdim or keepdims})


def _cumsum_transposed(g: TensorBase, x: TensorBase, dim: int) -> TensorBase:
    back = sums_back(g, dim)
    return flip(apply(_CUMSUM, (flip(g, dim),), {"dim": dim}), dim) if back is None else back


_CUMSUM = linear(
    "cumsum",
    "scan",
    run=lambda x, dim: running("running_sum", x, dim),
    transpose=_cumsum_transposed,
    core="dim",
    native="scan",
    samples=lambda rng: [
        ((rng.standard_normal((3, 4)),), {"dim": 1}),
        ((rng.standard_normal((3, 0)),), {"dim": 0}),
    ],
    reference=lambda x, dim: np.cumsum(x, dim),
    doc="Running sum along one dim.",
)


@takes_out
def cumsum(
    input: TensorLike,
    dim: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    axis: int | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Running sum along `dim`; without it, of the flattened tensor. Cast to `dtype` first."""
    input = converted(input, dtype, "cumsum")
    if dtype is None and input.array.dtype.kind in "bui":
        input = cast(input, dtypes.int64)
    dim = axis if dim is None else dim
    if dim is None:
        input, dim = reshape(input, -1), 0
    dim = normalize_dim(dim, input.array.ndim, "cumsum")
    return apply(_CUMSUM, (input,), {"dim": dim}) if input.array.ndim else input
