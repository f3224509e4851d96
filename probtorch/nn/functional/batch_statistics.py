"""Batch normalisation in training as one operation, where nobody listens: two passes of native code
(compiler/render/runtime/channels.py) forwards, and two backwards.
"""

from __future__ import annotations

import numpy as np

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled, unheard, unseen, wrap
from probtorch.ops.movement import another, reshape
from probtorch.ops.native_rows import certain_elements, native_elements
from probtorch.ops.standardise import standardise
from probtorch.tensor import Tensor

__all__ = ["batch_normalised"]


def batch_normalised(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return `x`, (N, C, ...), standardised over all dims but its channels, times `weight` plus
    `bias`, (C,), with mean and variance of each channel; None where that is not the shorter way.
    """
    first = x.array
    if not unheard() or first.dtype.char not in "fd" or not first.size:
        return None
    for t in (x, weight, bias):
        if type(t.array) is not np.ndarray or t.array.dtype != first.dtype:
            return None
    if native_elements("batch_norm", first) is None:
        return None
    shape = *first.shape[:2], first.size // (first.shape[0] * first.shape[1])
    statistics: list[np.ndarray] = []
    if unseen(x, weight, bias):
        y, *statistics = _normalised(first.reshape(shape), weight, bias, eps)[:3]
        return wrap(y.reshape(first.shape)), *_rounded(statistics, first.dtype)
    flat = reshape(x, shape)
    y = _BatchNorm.apply(flat, weight, bias, float(eps), statistics)
    return reshape(y, first.shape), *_rounded(statistics, first.dtype)


def _normalised(x: np.ndarray, weight: Tensor, bias: Tensor, eps: float) -> tuple[np.ndarray, ...]:
    """Return the result, and mean, variance and inverse deviation of each channel in doubles."""
    native = certain_elements("batch_norm", x)
    laid = (np.ascontiguousarray(a) for a in (x, weight.array, bias.array))
    return tuple(native(*laid, eps))


def _rounded(statistics: list[np.ndarray], dtype: np.dtype) -> tuple[Tensor, Tensor]:
    mean, variance = (wrap(s.astype(dtype, copy=False)) for s in statistics)
    return mean, variance


class _BatchNorm(Function):
    """What native code computes of (N, C, L)."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        statistics: list[np.ndarray],
    ) -> Tensor:
        y, mean, variance, inverse = _normalised(x.array, weight, bias, eps)
        statistics += mean, variance
        ctx.save_for_backward(x, weight, bias)
        ctx.kept, ctx.eps = (mean, inverse), eps
        return wrap(y)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        if grad_enabled():
            return *_again(x, weight, bias, ctx.eps, g), None, None
        native = certain_elements("batch_norm_slope", x.array)
        laid = (np.ascontiguousarray(t.array) for t in (g, x, weight))
        slopes, *sums = native(*laid, *ctx.kept)
        dtype = x.array.dtype
        return wrap(slopes), *(wrap(s.astype(dtype, copy=False)) for s in sums), None, None


def _again(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, g: Tensor
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated: those of the operations by themselves."""
    under = [another(t) for t in (x, weight, bias)]
    across = (1, -1, 1)
    y = standardise(under[0], (0, 2), eps)[0] * reshape(under[1], across)
    wanted = [t for t in under if t.requires_grad]
    found = iter(grad([y + reshape(under[2], across)], wanted, [g], create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in under)
