"""All steps of a recurrent layer as one operation, where nobody listens.

What remains of a step is a product with weights and one pass of native code over the gates of each
row (compiler/render/runtime/cells.py), forwards and backwards; gradients of weights are one product
over all steps at the end. Elsewhere, and for derivatives of derivatives, layers go step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast as typed

import numpy as np

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled, unheard, wrap
from probtorch.nn.functional.recurrent import by_steps
from probtorch.ops.movement import another
from probtorch.ops.native_rows import certain_elements, native_elements
from probtorch.tensor import Tensor

__all__ = ["whole_layer"]

# Outputs and last states of a layer.
Made = tuple[Tensor, tuple[Tensor, ...]]


def whole_layer(
    kind: str,
    step: Callable[..., tuple[Tensor, ...]],
    projected: Tensor,
    states: tuple[Tensor, ...],
    weight: Tensor,
    bias: Tensor | None,
    *,
    reverse: bool,
) -> Made | None:
    """Return outputs (L, N, hidden) and last states of an "lstm" or "gru"; None where it has to go
    step by step.

    Parameters
    ----------
    kind : str
    step : callable
        One step, of what the input contributes to it, states, and ``[weight, bias]``.
    projected : Tensor, shape (L, N, gates * hidden)
        What the input contributes.
    states : tuple of Tensor, shape (N, hidden)
    weight : Tensor, shape (hidden, gates * hidden)
    bias : Tensor, shape (gates * hidden,), optional
    reverse : bool
        Whether to begin at the last step.
    """
    tensors = [projected, *states, weight, *([] if bias is None else [bias])]
    first = projected.array
    if not unheard() or first.dtype.char not in "fd" or not first.size:
        return None
    if any(type(t.array) is not np.ndarray or t.array.dtype != first.dtype for t in tensors):
        return None
    if native_elements(kind, first) is None:
        return None
    one = _Lstm if kind == "lstm" else _Gru
    made = one.apply(reverse, step, projected, weight, bias, *states)
    return made[0], made[1:]


def _again(
    ctx: FunctionCtx, saved: Sequence[Tensor | None], gs: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated: those of the steps, taken once more."""
    # None where there is no bias.
    under = typed(list[Tensor], [t if t is None else another(t) for t in saved])
    projected, weight, bias, *states = under
    found, last = by_steps(ctx.step, projected, tuple(states), [weight, bias], reverse=ctx.reverse)
    wanted = [t for t in under if t is not None and t.requires_grad]
    grads = iter(grad((found, *last), wanted, gs, create_graph=True))
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in under)


def _order(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _of_weights(
    ctx: FunctionCtx, before: np.ndarray, into: np.ndarray
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients of weight and bias, of the states before each step and what came back."""
    _, _, _, weight, bias, *_ = ctx.needs_input_grad
    rows = into.reshape(-1, into.shape[-1])
    return (
        wrap(before.reshape(-1, before.shape[-1]).T @ rows) if weight else None,
        wrap(np.add.reduce(rows, 0)) if bias else None,
    )


class _Lstm(Function):
    """Input, forget, cell and output gates; states are output and cell."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        reverse: bool,
        one_step: Callable[..., tuple[Tensor, ...]],
        projected: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        h0: Tensor,
        c0: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        step = certain_elements("lstm", projected.array)
        p, w = np.ascontiguousarray(projected.array), weight.array
        count, n, wide = p.shape
        kept = count if any(ctx.needs_input_grad) else 1  # of one step where nobody comes back
        # Of each step what it began with, in the order of the steps.
        h, c = (np.empty((count + 1, n, wide // 4), p.dtype) for _ in range(2))
        bent, gates = np.empty((kept, n, wide // 4), p.dtype), np.empty((kept, n, wide), p.dtype)
        of_state = np.empty((n, wide), p.dtype)
        h[0], c[0] = h0.array, c0.array
        for k, t in enumerate(_order(count, reverse)):
            np.matmul(h[k], w, of_state)
            if bias is not None:
                of_state += bias.array
            at = k % kept
            step(p[t], of_state, c[k], h[k + 1], c[k + 1], bent[at], gates[at])
        ctx.save_for_backward(projected, weight, typed(Tensor, bias), h0, c0)
        ctx.kept, ctx.reverse, ctx.step = (h, c, bent, gates), reverse, one_step
        found = h[:0:-1] if reverse else h[1:]
        return wrap(found.copy()), wrap(h[-1].copy()), wrap(c[-1].copy())

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor, gh: Tensor, gc: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if grad_enabled():
            return None, None, *_again(ctx, saved, (g, gh, gc))
        (h, c, bent, gates), w = ctx.kept, saved[1].array.T
        step = certain_elements("lstm_slope", h)
        into, places = np.empty_like(gates), gates.shape[0]
        of_h, of_c = gh.array.copy(), np.ascontiguousarray(gc.array)
        for k in range(places - 1, -1, -1):
            of_h += g.array[places - 1 - k if ctx.reverse else k]
            back = np.empty_like(of_c)
            step(of_h, of_c, gates[k], bent[k], c[k], into[k], back)
            np.matmul(into[k], w, of_h)
            of_c = back
        of_weights = _of_weights(ctx, h[:-1], into)
        found = into[::-1].copy() if ctx.reverse else into
        return None, None, wrap(found), *of_weights, wrap(of_h), wrap(of_c)


class _Gru(Function):
    """Reset, update and new gates; the state is the output."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        reverse: bool,
        one_step: Callable[..., tuple[Tensor, ...]],
        projected: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        h0: Tensor,
    ) -> tuple[Tensor, Tensor]:
        step = certain_elements("gru", projected.array)
        p, w = np.ascontiguousarray(projected.array), weight.array
        count, n, wide = p.shape
        kept = count if any(ctx.needs_input_grad) else 1
        h = np.empty((count + 1, n, wide // 3), p.dtype)
        gates, of_state = (np.empty((kept, n, wide), p.dtype) for _ in range(2))
        h[0] = h0.array
        for k, t in enumerate(_order(count, reverse)):
            at = k % kept
            np.matmul(h[k], w, of_state[at])
            if bias is not None:
                of_state[at] += bias.array
            step(p[t], of_state[at], h[k], h[k + 1], gates[at])
        ctx.save_for_backward(projected, weight, typed(Tensor, bias), h0)
        ctx.kept, ctx.reverse, ctx.step = (h, of_state, gates), reverse, one_step
        found = h[:0:-1] if reverse else h[1:]
        return wrap(found.copy()), wrap(h[-1].copy())

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor, gh: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if grad_enabled():
            return None, None, *_again(ctx, saved, (g, gh))
        (h, of_state, gates), w = ctx.kept, saved[1].array.T
        step = certain_elements("gru_slope", h)
        into, into_state, places = np.empty_like(gates), np.empty_like(gates), gates.shape[0]
        of_h = gh.array.copy()
        beside = np.empty_like(of_h)
        for k in range(places - 1, -1, -1):
            of_h += g.array[places - 1 - k if ctx.reverse else k]
            step(of_h, gates[k], of_state[k], h[k], into[k], into_state[k], beside)
            np.matmul(into_state[k], w, of_h)
            of_h += beside
        of_weights = _of_weights(ctx, h[:-1], into_state)
        found = into[::-1].copy() if ctx.reverse else into
        return None, None, wrap(found), *of_weights, wrap(of_h)
