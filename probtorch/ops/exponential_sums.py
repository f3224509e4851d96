"""Shares and logarithms of sums of exponentials: logsumexp, softmax, log_softmax, and the latter at
one class for each row.

The largest element is subtracted first. x - logsumexp(x) would have the absolute error of the
rounded x: at logits of 1e6 in single precision, shares that sum to 0.97.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, converted, to_float
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.ops.accumulate import add_up, floats, over_short_rows, reduced
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isfinite
from probtorch.ops.exponentials import exp, log
from probtorch.ops.extremes import peak
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, reshape, squeeze, unsqueeze
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

__all__ = ["class_log_probs", "log_softmax", "logsumexp", "softmax"]


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


# ---------------------------------------------------------------------------------------- logsumexp


def _run_logsumexp(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_logsumexp(x.astype(dtypes.float32), dims, keepdim).astype(x.dtype)
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
    out = xp.log(add_up(e, dims, True)) + top
    return out if keepdim else out.reshape([s for i, s in enumerate(x.shape) if i not in dims])


def _decomposed_logsumexp(x: TensorBase, dims: tuple[int, ...], keepdim: bool) -> TensorBase:
    if x.array.size == 0:
        return log(sum(x, dims, keepdim))
    top = peak(x, dims)
    top = where(isfinite(top), top, 0.0)
    out = log(sum(exp(x - top), dims, True)) + top
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


def _below_top(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Return a new array, `x` less its largest elements."""
    return namespace(x).asarray(x - _top(x, dims))  # of no dims a number


def _run_softmax(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_softmax(x.astype(dtypes.float32), dims).astype(x.dtype)
    native = native_rows("softmax", x, dims)
    if native is not None:
        return native(x)
    x = floats(x)
    xp, e = namespace(x), _below_top(x, dims)
    xp.exp(e, out=e)
    e /= add_up(e, dims, True)
    return e


def _run_log_softmax(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_log_softmax(x.astype(dtypes.float32), dims).astype(x.dtype)
    native = native_rows("log_softmax", x, dims)
    if native is not None:
        return native(x)
    x = floats(x)
    xp, z = namespace(x), _below_top(x, dims)
    z -= xp.log(add_up(xp.exp(z), dims, True))
    return z


def _decomposed_below_top(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    x = to_float(x)
    return x - peak(x, dims) if x.array.size else x


def _decomposed_softmax(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    e = exp(_decomposed_below_top(x, dims))
    return e / sum(e, dims, True)


def _decomposed_log_softmax(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    z = _decomposed_below_top(x, dims)
    return z - log(sum(exp(z), dims, True))


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
    if native is not None and alike(g.array, out.array):
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


def _shares(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
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
    reference=_shares,
    doc="exp(x) divided by its sum over dims.",
    extra={"decompose": _decomposed_softmax},
)
_LOG_SOFTMAX = structured(
    "log_softmax",
    "reduction",
    run=_run_log_softmax,
    vjp=_log_softmax_vjp,
    jvp=_log_softmax_jvp,
    saves="out",
    core="dims",
    samples=_softmax_samples,
    reference=lambda x, dims: np.log(_shares(x, dims)),
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


# ---------------------------------------------------------------------------------- of one class


def _run_class_log_probs(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if index.shape == x.shape[:-1] and index.dtype is dtypes.int64:
        native = native_rows("class_log_probs", x, (x.ndim - 1,))
        if native is not None:
            at_class, logp = native(x, index)
            return np.asarray(at_class), logp
    logp = _run_log_softmax(x, (x.ndim - 1,))
    if index.shape != x.shape[:-1]:
        shape = broadcast_shapes(index.shape, x.shape[:-1])
        xp = namespace(x)
        index = xp.broadcast_to(index, shape)
        logp = xp.ascontiguousarray(xp.broadcast_to(logp, (*shape, x.shape[-1])))
    if logp.ndim == 2:
        return logp[_rows(logp), index], logp
    return namespace(x).take_along_axis(logp, index[..., None], -1)[..., 0], logp


def _rows(x: np.ndarray) -> np.ndarray:
    return namespace(x).arange(x.shape[0])


def _decomposed_class_log_probs(x: TensorBase, index: TensorBase) -> tuple[TensorBase, TensorBase]:
    shape = broadcast_shapes(index.array.shape, x.array.shape[:-1])
    logp = expand(log_softmax(x, -1), (*shape, x.array.shape[-1]))
    return _at_class(logp, expand(index, shape)), logp


def _at_class(x: TensorBase, index: TensorBase) -> TensorBase:
    return squeeze(gather(x, -1, unsqueeze(index, -1)), -1)


def _class_log_probs_vjp(
    g: Sequence[TensorBase | None],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    (at_class, of_all), (_, logp), (x, index) = g, out, inputs
    if (
        at_class is not None
        and of_all is None
        and unseen(at_class, logp)
        and logp.array.ndim == 2
        and x.array.shape == logp.array.shape
    ):
        native = native_rows("class_slope", logp.array, (1,))
        if native is not None and index.array.dtype is dtypes.int64:
            return wrap(native(logp.array, index.array, at_class.array)), None
        slope = np.exp(logp.array)
        slope *= -at_class.array[:, None]
        slope[_rows(slope), index.array] += at_class.array
        return wrap(slope), None
    if at_class is not None:
        classes = wrap(namespace(logp.array).arange(logp.array.shape[-1]))
        hot = cast(eq(unsqueeze(index, -1), classes), logp.array.dtype)
        mine = hot * unsqueeze(at_class, -1)
        of_all = mine if of_all is None else of_all + mine
    assert of_all is not None
    slopes = of_all - exp(logp) * sum(of_all, -1, True)
    return unbroadcast(slopes, x.array.shape), None


def _class_log_probs_jvp(
    tangents: list[TensorBase],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
) -> tuple[TensorBase, TensorBase]:
    (_, logp), index = out, inputs[1]
    moved = expand(tangents[0] - sum(exp(logp) * tangents[0], -1, True), logp.array.shape)
    return _at_class(moved, expand(index, logp.array.shape[:-1])), moved


def _class_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        ((rng.standard_normal((4, 3)), np.array([0, 2, 1, 2])), {}),
        ((rng.standard_normal((2, 3, 4)), rng.integers(0, 4, (2, 3))), {}),
        ((rng.standard_normal(3), np.array(1)), {}),
    ]


def _class_reference(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logp = np.log(_shares(x, (x.ndim - 1,)))
    return np.take_along_axis(logp, np.asarray(index)[..., None], -1)[..., 0], logp


_CLASS_LOG_PROBS = structured(
    "class_log_probs",
    "reduction",
    run=_run_class_log_probs,
    vjp=_class_log_probs_vjp,
    jvp=_class_log_probs_jvp,
    saves="index out",
    num_outputs=2,
    core="(c),()->(),(c)",
    samples=_class_samples,
    reference=_class_reference,
    doc="Log softmax over the last dim, at one class of each row and at all.",
    extra={"decompose": _decomposed_class_log_probs},
)


def class_log_probs(
    x: TensorBase, index: TensorBase, dim: int = -1
) -> tuple[TensorBase, TensorBase]:
    """Return `log_softmax` of `x` at one class of each row, and at all of them (which see `dim`
    last): as one operation, what the loss of a classifier takes.

    Parameters
    ----------
    x : Tensor of floats
        Its dim `dim` is that of the classes.
    index : Tensor of int64, in the shape of `x` without that dim
        Numbers of classes, known to be in range.
    """
    last = x.array.ndim - 1
    return apply(_CLASS_LOG_PROBS, (x if dim in (last, -1) else movedim(x, dim, last), index))
