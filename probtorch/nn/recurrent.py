"""Recurrent layers: `RNN` with any nonlinearity, `GRU` and `LSTM`, over sequences.

The input's part of all steps is one matrix product; what remains per step is the product with the
state and the gates, in `functional/recurrent.py`. Parameter names are PyTorch's
(``weight_ih_l0``, ``weight_hh_l0_reverse``), and so is the order of the gates.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from probtorch.autograd.scan import scan
from probtorch.core.dispatch import recorder
from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, Shape, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import zeros
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import documented_by, fraction, whole
from probtorch.nn.functional.recurrent import (
    bound,
    by_steps,
    gru_step,
    lstm_step,
    nonlinearity_of,
    parts,
    rnn_step,
)
from probtorch.nn.functional.recurrent_layers import whole_layer
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.nn.utils.rnn import PackedSequence
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import permute, reshape, swapaxes
from probtorch.ops.pieces import cat, stack
from probtorch.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]

# Compiled code of so many steps is a loop; of fewer, the steps one after the other: what lies
# between two of them is done in one go, and the forward pass is not run twice.
ROLLED_FROM = 16

# A padded batch or one sequence, or a packed batch: `forward` answers in kind.
Sequences = TypeVar("Sequences", Tensor, PackedSequence)


class RNNBase(Module):
    """Layers of recurrent cells over a sequence: what `RNN`, `GRU` and `LSTM` have in common.

    Shapes: the input is ``(L, N, input_size)``, or ``(N, L, input_size)`` with `batch_first`, or
    ``(L, input_size)``, or a `PackedSequence`, whose output is packed in the same way. States are
    ``(layers * directions, N, size)``, zeros if not given. The output has the states of the last
    layer, ``(L, N, directions * size)``.

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
        start = init.uniform(-bound(hidden_size), bound(hidden_size))
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
        return x, self._states(x, states, x.array.shape[1], batched), batched

    def _states(
        self, x: Tensor, states: Sequence[TensorLike] | None, batch: int, batched: bool
    ) -> list[Tensor]:
        """Return the states to begin with, (K, N, size): those given, checked, or zeros."""
        name, count = type(self).__name__, self.num_layers * (1 + self.bidirectional)
        shapes = [(count, batch, size) for size in self._sizes()]
        if states is None:
            return [zeros(shape, dtype=x.dtype, device=x.device) for shape in shapes]
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
        return given

    def _run(
        self, input: TensorLike, states: Sequence[TensorLike] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output and the tuple of last states, in the layout of the input."""
        x, begun, batched = self._prepared(input, states)
        x, final = self._layers(x, begun, None)
        if not batched:
            return reshape(x, (x.array.shape[0], -1)), tuple(e.squeeze(1) for e in final)
        return (swapaxes(x, 0, 1) if self.batch_first else x), final

    def _run_packed(
        self, input: PackedSequence, states: Sequence[TensorLike] | None
    ) -> tuple[PackedSequence, tuple[Tensor, ...]]:
        """Return the packed output and the tuple of last states, in the order of the sequences."""
        sizes = input.batch_sizes.tolist()
        x = as_tensor(input.data, type(self).__name__)
        order, back = input.sorted_indices, input.unsorted_indices
        if x.array.ndim != 2 or x.array.shape[-1] != self.input_size:
            raise ShapeError(
                type(self).__name__,
                expected=f"packed data (elements, {self.input_size})",
                got=str(x.array.shape),
                fix="input_size is the last size of the input",
            )
        begun = self._states(x, states, sizes[0], True)
        if order is not None:
            begun = [index_select(s, 1, order) for s in begun]
        x, final = self._layers(x, begun, sizes)
        if back is not None:
            final = tuple(index_select(s, 1, back) for s in final)
        return input._replace(data=x), final

    def _layers(
        self, x: Tensor, begun: list[Tensor], sizes: list[int] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all layers over (L, N, F), or over packed data whose steps have `sizes` rows."""
        last: list[list[Tensor]] = [[] for _ in begun]
        directions = 1 + self.bidirectional
        for layer in range(self.num_layers):
            outputs = []
            for d in range(directions):
                k = layer * directions + d
                suffix = f"_l{layer}" + ("_reverse" if d else "")
                start = tuple([s[k] for s in begun])
                if sizes is None:
                    found, end = self._direction(x, start, suffix, reverse=bool(d))
                else:
                    found, end = self._packed_direction(x, start, sizes, suffix, reverse=bool(d))
                outputs.append(found)
                for ends, state in zip(last, end):
                    ends.append(state)
            x = outputs[0] if directions == 1 else cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(stack(ends) for ends in last)

    def _direction(
        self, x: Tensor, state: tuple[Tensor, ...], suffix: str, reverse: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction; returns the outputs (L, N, size) and the last state."""
        projected, fixed = self._projected(x, suffix)
        if recorder() is not None and projected.array.shape[0] >= ROLLED_FROM:

            def step(now: tuple[Tensor, ...], p: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
                after = self.step(p, now, fixed)
                return after, after[0]

            end, found = scan(step, state, projected, reverse=reverse)
            return found, end
        one_op = len(fixed) == 2 and _ONE_OPERATION.get(getattr(self.step, "__func__", None))
        whole = one_op and whole_layer(one_op, self.step, projected, state, *fixed, reverse=reverse)
        return whole or by_steps(self.step, projected, state, fixed, reverse=reverse)

    def _packed_direction(
        self,
        x: Tensor,
        state: tuple[Tensor, ...],
        sizes: list[int],
        suffix: str,
        reverse: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction over packed data; the longest sequences come first.

        Forwards, sequences leave the state from below as they end; backwards, they join it there.
        """
        projected, fixed = self._projected(x, suffix)
        pieces = parts(projected, sizes)
        begun, outputs = state, []
        ended: list[tuple[Tensor, ...]] = []
        at = sizes[-1] if reverse else sizes[0]
        state = tuple(s[:at] for s in begun)
        for t in reversed(range(len(sizes))) if reverse else range(len(sizes)):
            if sizes[t] < at:
                ended.append(tuple(s[sizes[t] :] for s in state))
                state = tuple(s[: sizes[t]] for s in state)
            elif sizes[t] > at:
                state = tuple(cat([s, b[at : sizes[t]]]) for s, b in zip(state, begun))
            at = sizes[t]
            state = self.step(pieces[t], state, fixed)
            outputs.append(state[0])
        if ended:
            state = tuple(cat(rows) for rows in zip(state, *reversed(ended)))
        return cat(outputs[::-1] if reverse else outputs), state

    def _projected(self, x: Tensor, suffix: str) -> tuple[Tensor, list[Tensor]]:
        """Return the input's part of all steps, and what is the same in each."""
        weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = self._weights(suffix)
        fixed = [permute(weight_hh, (1, 0)), bias_hh]
        if weight_hr is not None:
            fixed.append(permute(weight_hr, (1, 0)))
        return F.linear(x, weight_ih, bias_ih), fixed

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


class _OneState(RNNBase):
    """What cells without another memory share."""

    if TYPE_CHECKING:
        # What `forward` says of both kinds of input, which checkers lose on the way through Module.
        @overload  # type: ignore[override]
        def __call__(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
        @overload
        def __call__(
            self, input: PackedSequence, hx: Tensor | None = None
        ) -> tuple[PackedSequence, Tensor]: ...
        def __call__(
            self, input: Sequences, hx: Tensor | None = None
        ) -> tuple[Sequences, Tensor]: ...

    def forward(self, input: Sequences, hx: TensorLike | None = None) -> tuple[Sequences, Tensor]:
        """Return (outputs, last state); a `PackedSequence` is answered with one."""
        states = None if hx is None else [hx]
        if isinstance(input, PackedSequence):
            packed, (h,) = self._run_packed(input, states)
            return packed, h
        output, (h,) = self._run(input, states)
        return output, h


@documented_by(RNNBase)
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


@documented_by(RNNBase)
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


@documented_by(RNNBase)
class LSTM(RNNBase):
    """Long short-term memory [hochreiter1997]_; the state is the pair (h, c).

    With `proj_size` the output is projected to that size before it is used again [sak2014]_.
    """

    gates = 4
    has_cell = True

    if TYPE_CHECKING:
        # What `forward` says of both kinds of input, which checkers lose on the way through Module.
        @overload  # type: ignore[override]
        def __call__(
            self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...
        @overload
        def __call__(
            self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None = None
        ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]: ...
        def __call__(
            self, input: Sequences, hx: tuple[Tensor, Tensor] | None = None
        ) -> tuple[Sequences, tuple[Tensor, Tensor]]: ...

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
        self, input: Sequences, hx: tuple[TensorLike, TensorLike] | None = None
    ) -> tuple[Sequences, tuple[Tensor, Tensor]]:
        """Return (outputs, (last h, last c)); a `PackedSequence` is answered with one."""
        if isinstance(input, PackedSequence):
            packed, (h, c) = self._run_packed(input, hx)
            return packed, (h, c)
        output, (h, c) = self._run(input, hx)
        return output, (h, c)


# Steps that are nobody else's: those of a subclass are taken one by one.
_ONE_OPERATION: dict[object, str] = {GRU.step: "gru", LSTM.step: "lstm"}
