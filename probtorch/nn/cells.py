"""Single steps of recurrent layers: `RNNCell`, `GRUCell` and `LSTMCell`.

The formulas are those of `functional/recurrent.py`, and so is the order of the gates.
"""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ShapeError
from probtorch.factories import zeros
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import documented_by, whole
from probtorch.nn.functional.recurrent import (
    bound,
    gru_step,
    lstm_step,
    nonlinearity_of,
    rnn_step,
)
from probtorch.nn.module import Module
from probtorch.ops.movement import permute
from probtorch.tensor import Tensor

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]


class RNNCellBase(Module):
    """One step of a recurrent layer: what the cells have in common.

    Shapes: inputs (N, input_size) or (input_size,), states (N, hidden_size) or (hidden_size,),
    zeros if not given.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    device, dtype
        Of the parameters, which start uniform on ``(-1, 1) / sqrt(hidden_size)``.
    """

    gates: int

    def _build(self, input_size: int, hidden_size: int, bias: bool) -> None:
        whole(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        start = init.uniform(-bound(hidden_size), bound(hidden_size))
        self.parameter("weight_ih", (rows, input_size), init=start)
        self.parameter("weight_hh", (rows, hidden_size), init=start)
        self.parameter("bias_ih", (rows,) if bias else None, init=start)
        self.parameter("bias_hh", (rows,) if bias else None, init=start)

    def _prepared(
        self, input: TensorLike, states: Sequence[TensorLike | None]
    ) -> tuple[Tensor, list[Tensor], bool]:
        """Return the projected input (N, rows), states (N, hidden), and if there was a batch."""
        name, x = type(self).__name__, as_tensor(input, type(self).__name__)
        if x.array.ndim not in (1, 2) or x.array.shape[-1] != self.input_size:
            raise ShapeError(
                name,
                expected=f"an input (N, {self.input_size}) or ({self.input_size},)",
                got=str(x.array.shape),
                fix="input_size is the last size of the input",
            )
        batched = x.array.ndim == 2
        x = x if batched else x.unsqueeze(0)
        shape = (x.array.shape[0], self.hidden_size)
        found = []
        for given in states:
            s = (
                zeros(shape, dtype=x.dtype, device=x.device)
                if given is None
                else as_tensor(given, name)
            )
            s = s.unsqueeze(0) if not batched and s.array.ndim == 1 else s
            if s.array.shape != shape:
                raise ShapeError(
                    name,
                    expected=f"a state of shape {shape if batched else shape[1:]}",
                    got=str(s.array.shape),
                    fix="states have the batch of the input, and hidden_size",
                )
            found.append(s)
        return F.linear(x, self.weight_ih, self.bias_ih), found, batched

    def _fixed(self) -> tuple[Tensor, Tensor | None]:
        return permute(self.weight_hh, (1, 0)), self.bias_hh

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        return text if self.bias else f"{text}, bias=False"


@documented_by(RNNCellBase)
class RNNCell(RNNCellBase):
    """One step of an `RNN`; `nonlinearity` as there, after `bias`."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self.nonlinearity = nonlinearity
        nonlinearity_of("RNNCell", nonlinearity)
        self._build(input_size, hidden_size, bias)

    def forward(self, input: TensorLike, hx: TensorLike | None = None) -> Tensor:
        """Return the next state."""
        projected, (h,), batched = self._prepared(input, [hx])
        fn = nonlinearity_of("RNNCell", self.nonlinearity)
        weight_hh, bias_hh = self._fixed()
        h = rnn_step(projected, h, weight_hh, bias_hh, fn)
        return h if batched else h.squeeze(0)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity}"


@documented_by(RNNCellBase)
class GRUCell(RNNCellBase):
    """One step of a `GRU`."""

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(input_size, hidden_size, bias)

    def forward(self, input: TensorLike, hx: TensorLike | None = None) -> Tensor:
        """Return the next state."""
        projected, (h,), batched = self._prepared(input, [hx])
        h = gru_step(projected, h, *self._fixed())
        return h if batched else h.squeeze(0)


@documented_by(RNNCellBase)
class LSTMCell(RNNCellBase):
    """One step of an `LSTM`; the state is the pair (h, c)."""

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(input_size, hidden_size, bias)

    def forward(
        self, input: TensorLike, hx: tuple[TensorLike, TensorLike] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next (h, c)."""
        projected, states, batched = self._prepared(input, (None, None) if hx is None else hx)
        h, c = lstm_step(projected, states[0], states[1], *self._fixed())
        return (h, c) if batched else (h.squeeze(0), c.squeeze(0))
