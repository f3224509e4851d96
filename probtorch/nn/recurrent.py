"""Recurrent layers: `RNN` with any nonlinearity, `GRU` and `LSTM`, over sequences; and their cells.

The input's part of all steps is one matrix product; what remains per step is the product with the
state and the gates, in `functional/recurrent.py`. Parameter names are PyTorch's
(``weight_ih_l0``, ``weight_hh_l0_reverse``), and so is the order of the gates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, Shape, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import zeros
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import documented_by, fraction, whole
from probtorch.nn.functional.recurrent import gru_step, lstm_step, nonlinearity_of, rnn_step, steps
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.ops.movement import cat, permute, reshape, stack, swapaxes
from probtorch.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


def _bound(hidden_size: int) -> float:
    return 1.0 / math.sqrt(hidden_size)


class _Recurrent(Module):
    """Layers of recurrent cells over a sequence.

    Shapes: the input is ``(L, N, input_size)``, or ``(N, L, input_size)`` with `batch_first`, or
    ``(L, input_size)``. States are ``(layers * directions, N, size)``, zeros if not given. The
    output has the states of the last layer, ``(L, N, directions * size)``.

    Parameters
    ----------
    input_size, hidden_size : int
    num_layers : int
        Layers on top of each other.
    bias : bool
    batch_first : bool
        Whether the batch is dim 0 of inputs and outputs (not of states).
    dropout : float
        Between layers, in training.
    bidirectional : bool
        Whether to run each layer in both directions and join the outputs.
    device, dtype
        Of the parameters, which start uniform on ``(-1, 1) / sqrt(hidden_size)``.
    """

    gates: int
    has_cell = False

    def _build(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj: int,
    ) -> None:
        name = type(self).__name__
        whole(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        whole(name, 0, proj_size=proj)
        fraction(name, "dropout", dropout)
        if proj >= hidden_size:
            raise ArgumentError(
                name,
                expected="proj_size smaller than hidden_size",
                got=f"proj_size={proj}, hidden_size={hidden_size}",
                fix="0 means no projection",
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"{name}: dropout acts between layers, so with num_layers=1 dropout={dropout} has "
                "no effect",
                stacklevel=3,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj
        size, directions, rows = proj or hidden_size, 1 + bidirectional, self.gates * hidden_size
        start = init.uniform(-_bound(hidden_size), _bound(hidden_size))
        for suffix, layer in self._suffixes():
            width = input_size if layer == 0 else size * directions
            self.parameter(f"weight_ih{suffix}", (rows, width), init=start)
            self.parameter(f"weight_hh{suffix}", (rows, size), init=start)
            if bias:
                self.parameter(f"bias_ih{suffix}", (rows,), init=start)
                self.parameter(f"bias_hh{suffix}", (rows,), init=start)
            if proj:
                self.parameter(f"weight_hr{suffix}", (proj, hidden_size), init=start)

    def _suffixes(self) -> Iterator[tuple[str, int]]:
        """Yield the ending of parameter names and the layer, for every layer and direction."""
        for layer in range(self.num_layers):
            yield f"_l{layer}", layer
            if self.bidirectional:
                yield f"_l{layer}_reverse", layer

    def _weights(self, suffix: str) -> list[Any]:
        kinds = {
            "weight_ih": True,
            "weight_hh": True,
            "bias_ih": self.bias,
            "bias_hh": self.bias,
            "weight_hr": self.proj_size,
        }
        # As attributes: a subclass may have something else than a parameter there.
        return [getattr(self, kind + suffix) if there else None for kind, there in kinds.items()]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """Parameters of every layer and direction, as lists."""
        return [
            [w for w in self._weights(suffix) if w is not None] for suffix, _ in self._suffixes()
        ]

    def flatten_parameters(self) -> None:
        """Do nothing: there is no library that wants the weights side by side."""

    # ------------------------------------------------------------------------------------- forward

    def _sizes(self) -> Shape:
        """Return the size of each state: output, and cell if there is one."""
        size = self.proj_size or self.hidden_size
        return (size, self.hidden_size) if self.has_cell else (size,)

    def _prepared(
        self, input: TensorLike, states: Sequence[TensorLike] | None
    ) -> tuple[Tensor, list[Tensor], bool]:
        """Return the input as (L, N, F), states as (K, N, size), and whether there was a batch."""
        name, x = type(self).__name__, as_tensor(input, type(self).__name__)
        if x.array.ndim not in (2, 3) or x.array.shape[-1] != self.input_size:
            order = "(N, L" if self.batch_first else "(L, N"
            raise ShapeError(
                name,
                expected=f"an input {order}, {self.input_size}) or (L, {self.input_size})",
                got=str(x.array.shape),
                fix="input_size is the last size of the input",
            )
        batched = x.array.ndim == 3
        if not batched:
            x = reshape(x, (x.array.shape[0], 1, -1))
        elif self.batch_first:
            x = swapaxes(x, 0, 1)
        count, batch = self.num_layers * (1 + self.bidirectional), x.array.shape[1]
        shapes = [(count, batch, size) for size in self._sizes()]
        if states is None:
            zero = [zeros(shape, dtype=x.dtype, device=x.device) for shape in shapes]
            return x, zero, batched
        given = [as_tensor(s, name) for s in states]
        if len(given) != len(shapes):
            raise ArgumentError(
                name,
                expected=f"{len(shapes)} states",
                got=str(len(given)),
                fix="an LSTM takes the pair (h_0, c_0), others h_0 alone",
            )
        if not batched:
            given = [s.unsqueeze(1) if s.array.ndim == 2 else s for s in given]
        for s, shape in zip(given, shapes):
            if s.array.shape != shape:
                raise ShapeError(
                    name,
                    expected=f"a state of shape {shape if batched else (shape[0], shape[2])}",
                    got=str(s.array.shape),
                    fix="states are (layers * directions, batch, size), also with batch_first",
                )
        return x, given, batched

    def _run(
        self, input: TensorLike, states: Sequence[TensorLike] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output and the tuple of last states, in the layout of the input."""
        x, begun, batched = self._prepared(input, states)
        last: list[list[Tensor]] = [[] for _ in begun]
        directions = 1 + self.bidirectional
        for layer in range(self.num_layers):
            outputs = []
            for d in range(directions):
                k = layer * directions + d
                suffix = f"_l{layer}" + ("_reverse" if d else "")
                found, end = self._direction(
                    x, tuple([s[k] for s in begun]), suffix, reverse=bool(d)
                )
                outputs.append(found)
                for ends, state in zip(last, end):
                    ends.append(state)
            x = outputs[0] if directions == 1 else cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        final = tuple(stack(ends) for ends in last)
        if not batched:
            return reshape(x, (x.array.shape[0], -1)), tuple(e.squeeze(1) for e in final)
        return (swapaxes(x, 0, 1) if self.batch_first else x), final

    def _direction(
        self, x: Tensor, state: tuple[Tensor, ...], suffix: str, reverse: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction; returns the outputs (L, N, size) and the last state."""
        weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = self._weights(suffix)
        projected = steps(F.linear(x, weight_ih, bias_ih))
        fixed = [permute(weight_hh, (1, 0)), bias_hh]
        if weight_hr is not None:
            fixed.append(permute(weight_hr, (1, 0)))
        outputs = []
        for p in reversed(projected) if reverse else projected:
            state = self.step(p, state, fixed)
            outputs.append(state[0])
        if not outputs:
            return zeros((0, *state[0].shape), dtype=x.dtype), state
        return stack(outputs[::-1] if reverse else outputs), state

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        for name, usual in (
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        return text


class _OneState(_Recurrent):
    """What cells without another memory share."""

    def forward(self, input: TensorLike, hx: TensorLike | None = None) -> tuple[Tensor, Tensor]:
        """Return (outputs, last state)."""
        output, (h,) = self._run(input, None if hx is None else [hx])
        return output, h


@documented_by(_Recurrent)
class RNN(_OneState):
    """``h = f(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)`` at each step.

    `nonlinearity`, the argument after `num_layers`, is "tanh", "relu", "linear" (or None), or any
    function of a tensor.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self.nonlinearity = nonlinearity
        nonlinearity_of("RNN", nonlinearity)
        self._build(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0
        )

    def step(
        self, projected: Tensor, state: tuple[Tensor, ...], fixed: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the next state, given the input's part of the step."""
        fn = nonlinearity_of("RNN", self.nonlinearity)
        return (rnn_step(projected, state[0], fixed[0], fixed[1], fn),)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity}"


@documented_by(_Recurrent)
class GRU(_OneState):
    """Gated recurrent units [cho2014]_, with the reset gate behind the product, as in PyTorch."""

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0
        )

    def step(
        self, projected: Tensor, state: tuple[Tensor, ...], fixed: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the next state, given the input's part of the step."""
        return (gru_step(projected, state[0], *fixed),)


@documented_by(_Recurrent)
class LSTM(_Recurrent):
    """Long short-term memory [hochreiter1997]_; the state is the pair (h, c).

    With `proj_size` the output is projected to that size before it is used again [sak2014]_.
    """

    gates = 4
    has_cell = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
        )

    def step(
        self, projected: Tensor, state: tuple[Tensor, ...], fixed: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the next (h, c), given the input's part of the step."""
        return lstm_step(projected, state[0], state[1], *fixed)

    def forward(
        self, input: TensorLike, hx: tuple[TensorLike, TensorLike] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return (outputs, (last h, last c))."""
        output, (h, c) = self._run(input, hx)
        return output, (h, c)


# -------------------------------------------------------------------------------------------- cells


class _Cell(Module):
    """One step of a recurrent layer.

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
        start = init.uniform(-_bound(hidden_size), _bound(hidden_size))
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


@documented_by(_Cell)
class RNNCell(_Cell):
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


@documented_by(_Cell)
class GRUCell(_Cell):
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


@documented_by(_Cell)
class LSTMCell(_Cell):
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
