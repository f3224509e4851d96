"""Shares and logarithms of sums of exponentials: logsumexp, softmax, log_softmax. The latter at one
class for each row is in classes.py.

The largest element is subtracted first. x - logsumexp(x) would have the absolute error of the
rounded x: at logits of 1e6 in single precision, shares that sum to 0.97.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, converted, to_float
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.ops.accumulate import add_up, floats, over_short_rows, reduced
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isfinite
from probtorch.ops.exponentials import exp, log
from probtorch.ops.extremes import peak
from probtorch.ops.families import structured
from probtorch.ops.movement import reshape
from probtorch.ops.native_rows import alike, as_rows, native_rows
from probtorch.ops.reduction import (
    Sample,
    in_single,
    kept_shape,
    laid_over,
    reduction_arguments,
    reduction_samples,
    sum,
)

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op

__all__ = ["has_few_columns", "log_softmax", "logsumexp", "run_log_softmax", "shares", "softmax"]


def _top(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """The largest elements over dims, which are kept."""
    if x.size == 0:
        return x.max(axis=dims, keepdims=True, initial=-math.inf)
    short = over_short_rows(x, dims, True, np.maximum)
    if short is not None:
        return short
    if type(x) is np.ndarray:
        return reduced(np.maximum, x, dims, True)
    return x.max(axis=dims, keepdims=True)


def _wide_sum(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    # The logarithm of a sum of 1 and little else has no digits but those beyond the 1: at a loss of
    # 1e-5, in single precision, two.
    if x.dtype is dtypes.float32:
        return x.sum(axis=dims, keepdims=True, dtype=dtypes.float64)  # type: ignore[call-overload,unused-ignore]
    return add_up(x, dims, True)


# ---------------------------------------------------------------------------------------- logsumexp


def _run_logsumexp(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_logsumexp(x.astype(dtypes.float32), dims, keepdim).astype(x.dtype)
    if has_few_columns(x, dims):
        out = _run_logsumexp(np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T), (0,), False)
        return out.reshape(kept_shape(x.shape, dims) if keepdim else x.shape[:-1])
    native = native_rows("logsumexp", x, dims, several=True)
    if native is not None:
        out = np.asarray(native(as_rows(x, dims)))
        return out.reshape(kept_shape(x.shape, dims)) if keepdim else out
    xp = namespace(x)
    top = _top(x, dims)
    finite = xp.isfinite(top)
    if not finite.all():
        top = xp.where(finite, top, xp.zeros_like(top))
    e = xp.asarray(x - top)
    xp.exp(e, out=e)
    out = (xp.log(_wide_sum(e, dims)) + top).astype(e.dtype)
    return out if keepdim else out.reshape([s for i, s in enumerate(x.shape) if i not in dims])


def _decomposed_logsumexp(x: TensorBase, dims: tuple[int, ...], keepdim: bool) -> TensorBase:
    if x.array.size == 0:
        return log(sum(x, dims, keepdim))
    top = peak(x, dims)
    top = where(isfinite(top), top, 0.0)
    e = exp(x - top)
    total = sum(cast(e, dtypes.float64), dims, True)
    out = cast(log(total) + cast(top, dtypes.float64), e.array.dtype)
    return (
        out if keepdim else reshape(out, [s for i, s in enumerate(x.array.shape) if i not in dims])
    )


def _softmax_of(x: TensorBase, out: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    """exp(x - logsumexp(x)), with the limits 1 where both are +inf and 0 where all are -inf."""
    z = laid_over(out, x, dims)
    same = eq(x, z)
    return where(eq(x, -math.inf), 0.0, exp(where(same, 0.0, x - where(same, 0.0, z))))


def _logsumexp_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), dims = inputs, attrs["dims"]
    if unseen(g, x, out):
        native = native_rows("logsumexp_slope", x.array, dims, several=True)
        if native is not None and g.array.dtype is x.array.dtype:
            rows = as_rows(x.array, dims)
            kept = rows.shape[:-1]
            slope = native(rows, out.array.reshape(kept), g.array.reshape(kept))
            return (wrap(slope.reshape(x.array.shape)),)
        z = laid_over(out, x, dims).array
        if np.isfinite(z).all():
            slope = np.asarray(x.array - z)
            np.exp(slope, out=slope)
            slope *= laid_over(g, x, dims).array
            return (wrap(slope),)
    return (laid_over(g, x, dims) * _softmax_of(x, out, dims),)


def _logsumexp_jvp(
    tangents: list[TensorBase], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    (x,), dims = inputs, attrs["dims"]
    return sum(tangents[0] * _softmax_of(x, out, dims), dims, attrs["keepdim"])


_LOGSUMEXP = structured(
    "logsumexp",
    "reduction",
    run=_run_logsumexp,
    vjp=_logsumexp_vjp,
    jvp=_logsumexp_jvp,
    saves="x out",
    core="dims",
    samples=reduction_samples,
    doc="log(sum(exp(x))) over dims without overflow.",
    reference=lambda x, dims, keepdim: np.log(np.sum(np.exp(x), axis=dims, keepdims=keepdim)),
    extra={"decompose": _decomposed_logsumexp},
)


@takes_out
@in_single
def logsumexp(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """log(sum(exp(x))) over `dim` without overflow; of -inf alone it is -inf with gradient 0."""
    input, dims = reduction_arguments(input, dim, axis, "logsumexp")
    return apply(_LOGSUMEXP, (to_float(input),), {"dims": dims, "keepdim": keepdim or keepdims})


# ------------------------------------------------------------------------------------------ softmax

# Of so many numbers at most, a dim that is not the last is laid along it: rows are native code.
_FEW = 2**16
# Rows of so few numbers, if there are so many, are taken column by column: 25,000 rows of 4 take a
# quarter of the time of native rows, 1000 an eighth; rows of 16 twice as long.
_FEW_COLUMNS, _MANY_ROWS = 8, 100


def _below_top(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Return a new array, `x` less its largest elements."""
    return namespace(x).asarray(x - _top(x, dims))  # of no dims a number


def has_few_columns(x: np.ndarray, dims: tuple[int, ...]) -> bool:
    """Whether `x` has many rows of so few numbers that NumPy serves best, column by column: native
    code takes a row at a time, with most of a vector empty.
    """
    width = x.shape[-1] if x.ndim else 0
    few = type(x) is np.ndarray and dims == (x.ndim - 1,) and 1 < width <= _FEW_COLUMNS
    return few and x.size >= _MANY_ROWS * width


def _by_columns(run: Callable[..., np.ndarray], x: np.ndarray) -> np.ndarray:
    columns = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)
    return np.ascontiguousarray(run(columns, (0,)).T).reshape(x.shape)


def _run_softmax(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_softmax(x.astype(dtypes.float32), dims).astype(x.dtype)
    if has_few_columns(x, dims):
        return _by_columns(_run_softmax, x)
    native = native_rows("softmax", x, dims)
    if native is not None:
        return native(x)
    if len(dims) == 1 and 0 < x.size <= _FEW and x.shape[dims[0]] > _FEW_COLUMNS:
        rows = np.ascontiguousarray(x.swapaxes(dims[0], -1))
        native = native_rows("softmax", rows, (x.ndim - 1,))
        if native is not None:
            return np.ascontiguousarray(native(rows).swapaxes(dims[0], -1))
    x = floats(x)
    xp, e = namespace(x), _below_top(x, dims)
    xp.exp(e, out=e)
    e /= add_up(e, dims, True)
    return e


def run_log_softmax(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Return the log softmax of an array."""
    if x.dtype == dtypes.float16:
        return run_log_softmax(x.astype(dtypes.float32), dims).astype(x.dtype)
    if has_few_columns(x, dims):
        return _by_columns(run_log_softmax, x)
    native = native_rows("log_softmax", x, dims)
    if native is not None:
        return native(x)
    x = floats(x)
    xp, z = namespace(x), _below_top(x, dims)
    z -= xp.log(_wide_sum(xp.exp(z), dims))
    return z


def _decomposed_below_top(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    x = to_float(x)
    return x - peak(x, dims) if x.array.size else x


def _decomposed_softmax(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    e = exp(_decomposed_below_top(x, dims))
    return e / sum(e, dims, True)


def _decomposed_log_softmax(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    z = _decomposed_below_top(x, dims)
    total = sum(cast(exp(z), dtypes.float64), dims, True)
    return z - cast(log(total), z.array.dtype)


def _softmax_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    weighted = out * tangents[0]
    return weighted - out * sum(weighted, attrs["dims"], True)


def _softmax_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    if not unseen(g, out):
        return (_softmax_jvp((g,), out, inputs, attrs),)
    y = out.array
    native = native_rows("softmax_slope", y, attrs["dims"])
    if native is not None and alike(g.array, y):
        return (wrap(native(g.array, y)),)
    slope = np.asarray(y * g.array)
    total = add_up(slope, attrs["dims"], True)
    np.subtract(g.array, total, out=slope)
    slope *= y
    return (wrap(slope),)


def _log_softmax_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    if not unseen(g, out):
        return (g - exp(out) * sum(g, attrs["dims"], True),)
    native = native_rows("log_softmax_slope", out.array, attrs["dims"])
    few = has_few_columns(out.array, attrs["dims"])
    if not few and native is not None and alike(g.array, out.array):
        return (wrap(native(g.array, out.array)),)
    slope = np.asarray(np.exp(out.array))
    slope *= add_up(g.array, attrs["dims"], True)
    return (wrap(np.subtract(g.array, slope, out=slope)),)


def _log_softmax_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    return tangents[0] - sum(exp(out) * tangents[0], attrs["dims"], True)


def _softmax_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        ((rng.standard_normal((2, 3, 4)),), {"dims": (1,)}),
        ((rng.standard_normal((2, 3, 4)),), {"dims": (0, 2)}),
        ((rng.standard_normal(()),), {"dims": ()}),
        ((rng.standard_normal((0, 3)),), {"dims": (0,)}),
    ]


def shares(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Return the softmax of an array as its formula says, which tests hold results against."""
    return np.exp(x) / np.sum(np.exp(x), axis=dims, keepdims=True)


_SOFTMAX = structured(
    "softmax",
    "reduction",
    run=_run_softmax,
    vjp=_softmax_vjp,
    jvp=_softmax_jvp,
    saves="out",
    core="dims",
    samples=_softmax_samples,
    reference=shares,
    doc="exp(x) divided by its sum over dims.",
    extra={"decompose": _decomposed_softmax},
)
_LOG_SOFTMAX = structured(
    "log_softmax",
    "reduction",
    run=run_log_softmax,
    vjp=_log_softmax_vjp,
    jvp=_log_softmax_jvp,
    saves="out",
    core="dims",
    samples=_softmax_samples,
    reference=lambda x, dims: np.log(shares(x, dims)),
    doc="Logarithm of the softmax over dims.",
    extra={"decompose": _decomposed_log_softmax},
)


@takes_out
def log_softmax(
    input: TensorLike,
    dim: Dims = -1,
    dtype: DTypeLike | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Logarithm of `softmax` along `dim`: x - logsumexp(x), exact for large x too."""
    return _along("log_softmax", _LOG_SOFTMAX, converted(input, dtype, "log_softmax"), dim)


@takes_out
def softmax(
    input: TensorLike,
    dim: Dims = -1,
    dtype: DTypeLike | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """exp(x) divided by its sum along `dim`: positive, summing to 1; in `dtype` where given.

    nan where all inputs are -inf, and where one is +inf, as in PyTorch.
    """
    return _along("softmax", _SOFTMAX, converted(input, dtype, "softmax"), dim)


def _along(name: str, op: Op, x: TensorBase, dim: Dims) -> TensorBase:
    if x.array.dtype == dtypes.float16:  # in single precision
        return cast(_along(name, op, cast(x, dtypes.float32), dim), dtypes.float16)
    ndim = x.array.ndim
    if x.array.dtype.kind == "f" and type(dim) is int and -ndim <= dim < ndim:
        return apply(op, (x,), {"dims": (dim % ndim,)})  # as below, with nothing to ask for
    x, dims = reduction_arguments(x, dim, None, name)
    return apply(op, (to_float(x),), {"dims": dims})
