"""Shares and logarithms of sums of exponentials: logsumexp, softmax, log_softmax.

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
from probtorch.core.casting import to_float
from probtorch.core.dispatch import apply
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, TensorLike
from probtorch.ops.accumulate import add_up, floats, over_short_rows
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isfinite
from probtorch.ops.exponentials import exp, log
from probtorch.ops.families import structured
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import (
    Sample,
    amax,
    in_single,
    laid_over,
    reduction_arguments,
    reduction_samples,
    sum,
)

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["log_softmax", "logsumexp", "softmax"]


def _top(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """The largest elements over dims, which are kept."""
    if x.size == 0:
        return x.max(axis=dims, keepdims=True, initial=-math.inf)
    short = over_short_rows(x, dims, True, np.maximum)
    return x.max(axis=dims, keepdims=True) if short is None else short


# ---------------------------------------------------------------------------------------- logsumexp


def _run_logsumexp(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_logsumexp(x.astype(dtypes.float32), dims, keepdim).astype(x.dtype)
    xp = namespace(x)
    top = _top(x, dims)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    out = xp.log(add_up(xp.exp(x - top), dims, True)) + top
    return out if keepdim else out.reshape([s for i, s in enumerate(x.shape) if i not in dims])


def _decomposed_logsumexp(x: TensorBase, dims: tuple[int, ...], keepdim: bool) -> TensorBase:
    if x.array.size == 0:
        return log(sum(x, dims, keepdim))
    top = amax(x, dims, True)
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
    x: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """log(sum(exp(x))) over `dim` without overflow; of -inf alone it is -inf with gradient 0."""
    x, dims = reduction_arguments(x, dim, axis, "logsumexp")
    return apply(_LOGSUMEXP, (to_float(x),), {"dims": dims, "keepdim": keepdim or keepdims})


# ------------------------------------------------------------------------------------------ softmax


def _run_softmax(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_softmax(x.astype(dtypes.float32), dims).astype(x.dtype)
    x = floats(x)
    e = namespace(x).exp(x - _top(x, dims))
    return e / add_up(e, dims, True)


def _run_log_softmax(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if x.dtype == dtypes.float16:
        return _run_log_softmax(x.astype(dtypes.float32), dims).astype(x.dtype)
    x = floats(x)
    xp, z = namespace(x), x - _top(x, dims)
    return z - xp.log(add_up(xp.exp(z), dims, True))


def _decomposed_below_top(x: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    x = to_float(x)
    return x - amax(x, dims, True) if x.array.size else x


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


def _log_softmax_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    return (g - exp(out) * sum(g, attrs["dims"], True),)


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
    vjp=lambda g, out, inputs, attrs, needs: (_softmax_jvp((g,), out, inputs, attrs),),
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
@in_single
def log_softmax(x: TensorLike, dim: Dims = -1, *, out: TensorBase | None = None) -> TensorBase:
    """Logarithm of `softmax` along `dim`: x - logsumexp(x), exact for large x too."""
    x, dims = reduction_arguments(x, dim, None, "log_softmax")
    return apply(_LOG_SOFTMAX, (to_float(x),), {"dims": dims})


@takes_out
@in_single
def softmax(x: TensorLike, dim: Dims = -1, *, out: TensorBase | None = None) -> TensorBase:
    """exp(x) divided by its sum along `dim`: positive, summing to 1.

    nan where all inputs are -inf, and where one is +inf, as in PyTorch.
    """
    x, dims = reduction_arguments(x, dim, None, "softmax")
    return apply(_SOFTMAX, (to_float(x),), {"dims": dims})
