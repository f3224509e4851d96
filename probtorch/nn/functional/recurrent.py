"""One step of recurrent layers, given what the input contributes.

`projected` is ``x @ weight_ih.T + bias_ih``, for all gates side by side; layers compute it for a
whole sequence in one product. `weight_hh` comes transposed, (hidden, gates * hidden).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.core.making import as_tensor
from probtorch.errors import ArgumentError
from probtorch.factories import zeros
from probtorch.ops.arithmetic import relu
from probtorch.ops.contraction import matmul
from probtorch.ops.exponentials import sigmoid
from probtorch.ops.pieces import cat, chunk, split, stack, unbind
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "bound",
    "by_steps",
    "gru_step",
    "lstm_step",
    "nonlinearity_of",
    "parts",
    "rnn_step",
    "steps",
]


class _Steps(Function):
    """The slices along dim 0; their gradients are stacked once.

    Slice by slice, each gradient would be padded to the whole sequence: quadratic in its length.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> tuple[Tensor, ...]:
        return unbind(x, 0)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return stack(grads)

    # The base says None for "no rule".
    @staticmethod
    def jvp(ctx: FunctionCtx, tangent: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return unbind(tangent, 0)


def steps(x: Tensor) -> tuple[Tensor, ...]:
    """Return the slices of `x` along dim 0, in time linear in their number, gradient included."""
    return _Steps.apply(x) if x.shape[0] else ()


class _Parts(Function):
    """Pieces along dim 0 of given sizes; their gradients are joined once, as those of `_Steps`."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        ctx.sizes = sizes
        return split(x, sizes)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return cat(grads), None

    # The base says None for "no rule".
    @staticmethod
    def jvp(  # type: ignore[override]
        ctx: FunctionCtx, tangent: Tensor, sizes: None
    ) -> tuple[Tensor, ...]:
        return split(tangent, ctx.sizes)


def by_steps(
    step: Callable[..., tuple[Tensor, ...]],
    projected: Tensor,
    state: tuple[Tensor, ...],
    fixed: Sequence[Tensor | None],
    *,
    reverse: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the outputs of steps one after the other, (L, N, size), and the last state."""
    pieces, outputs = steps(projected), []
    for p in reversed(pieces) if reverse else pieces:
        state = step(p, state, fixed)
        outputs.append(state[0])
    if not outputs:
        return zeros((0, *state[0].shape), dtype=projected.dtype), state
    return stack(outputs[::-1] if reverse else outputs), state


def parts(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Return pieces of `x` along dim 0, in time linear in their number, gradient included."""
    return _Parts.apply(x, sizes)


def _linear(x: Tensor) -> Tensor:
    return x


_NONLINEARITIES: dict[str | None, Callable[[Tensor], Tensor]] = {
    "tanh": tanh,
    "relu": relu,
    "linear": _linear,
    None: _linear,
}


def bound(hidden_size: int) -> float:
    """Return the bound of the uniform draws that weights start with."""
    return 1.0 / math.sqrt(hidden_size)


def nonlinearity_of(
    owner: str, nonlinearity: str | Callable[[Tensor], Tensor] | None
) -> Callable[[Tensor], Tensor]:
    """Return the function meant by a name, None (linear) or a function.

    Raises
    ------
    ArgumentError
        For another name.
    """
    if callable(nonlinearity):
        return nonlinearity
    if nonlinearity not in _NONLINEARITIES:
        raise ArgumentError(
            owner,
            expected="nonlinearity: 'tanh', 'relu', 'linear', None or a function",
            got=repr(nonlinearity),
            fix="pass the function itself, for example probtorch.sin",
        )
    return _NONLINEARITIES[nonlinearity]


def _recurrent(h: Tensor, weight_hh: Tensor, bias_hh: Tensor | None) -> Tensor:
    y = matmul(h, weight_hh)
    return y if bias_hh is None else y + bias_hh


def rnn_step(
    projected: Tensor,
    h: Tensor,
    weight_hh: Tensor,
    bias_hh: Tensor | None,
    nonlinearity: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return ``nonlinearity(projected + h @ weight_hh + bias_hh)``."""
    return as_tensor(nonlinearity(projected + _recurrent(h, weight_hh, bias_hh)))


def gru_step(projected: Tensor, h: Tensor, weight_hh: Tensor, bias_hh: Tensor | None) -> Tensor:
    """Return the next state of a gated recurrent unit; gates are reset, update, new."""
    xr, xz, xn = chunk(projected, 3, -1)
    hr, hz, hn = chunk(_recurrent(h, weight_hh, bias_hh), 3, -1)
    z = sigmoid(xz + hz)
    n = tanh(xn + sigmoid(xr + hr) * hn)
    return n + z * (h - n)


def lstm_step(
    projected: Tensor,
    h: Tensor,
    c: Tensor,
    weight_hh: Tensor,
    bias_hh: Tensor | None,
    weight_hr: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the next (output, cell) of an LSTM; gates are input, forget, cell, output."""
    i, f, g, o = chunk(projected + _recurrent(h, weight_hh, bias_hh), 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    return (h if weight_hr is None else matmul(h, weight_hr)), c
