"""Block autoregressive flows: one network of the whole vector with a triangular Jacobian.

Each number has units of its own in every layer, which see those of the numbers before it, and of
their own number with positive weights only (De Cao, Titov and Aziz 2019). The slopes of the blocks
on the diagonal are multiplied out in logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.flows.roots import increasing_root
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ArgumentError
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import DenseNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import minimum, neg, where
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, sigmoid, softplus
from probtorch.ops.movement import movedim, reshape, squeeze, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "BlockAutoregressive",
    "ConditionalBlockAutoregressive",
    "block_autoregressive",
    "conditional_block_autoregressive",
]

ACTIVATIONS = ("ELU", "LeakyReLU", "tanh")
RESIDUALS = (None, "gated", "normal")
# Slope of the leaky ReLU below 0.
LEAK = 0.01
LOG_2 = math.log(2.0)

Pair: TypeAlias = tuple[Tensor, Tensor]


class _InShift(OnePass):
    """A block autoregressive map, whose first layer may be shifted by a context."""

    costly_inverse = True

    def __init__(self, network: BlockAutoregressive, shift: Tensor | None) -> None:
        self.network, self.shift = network, shift

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, log_slopes = self.network._mapped(x, self.shift)
        return y, total(log_slopes, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        # Number k depends on those before it alone.
        n, layers = y.array.shape[-1], self.network._layers()
        x = y * 0.0
        for k in range(n):
            here = y.new_tensor(np.arange(n) == k) > 0.5

            def at(t: Tensor, k: int = k, x: Tensor = x, here: Tensor = here) -> Pair:
                moved = where(here, unsqueeze(t, -1), x)
                value, log_slopes = self.network._mapped(moved, self.shift, layers)
                return value[..., k], log_slopes[..., k]

            x = where(here, unsqueeze(increasing_root(at, y[..., k]), -1), x)
        return x


class BlockAutoregressive(_InShift, TransformModule):
    """A network with positive weights on the diagonal blocks, and none above them.

    Parameters
    ----------
    input_dim : int
    hidden_factors : sequence of int
        Units per number of each hidden layer.
    activation : {"tanh", "ELU", "LeakyReLU"}
    residual : {None, "normal", "gated"}
        Add the argument: ``f(x) + x``, or ``g f(x) + (1 - g) x`` with a learned gate g.

    Raises
    ------
    ArgumentError
        If activation or residual is another.

    Notes
    -----
    Without a residual, tanh reaches only a box: the inverse of what lies outside means nothing.

    References
    ----------
    De Cao, Titov and Aziz (2019), "Block neural autoregressive flow".
    """

    def __init__(
        self,
        input_dim: int,
        hidden_factors: Sequence[int] = (8, 8),
        activation: str = "tanh",
        residual: str | None = None,
    ) -> None:
        TransformModule.__init__(self)
        sizes = {f"hidden_factors[{i}]": h for i, h in enumerate(hidden_factors)}
        whole("BlockAutoregressive", input_dim=input_dim, **sizes)
        for name, given, known in (
            ("activation", activation, ACTIVATIONS),
            ("residual", residual, RESIDUALS),
        ):
            if given not in known:
                raise ArgumentError(
                    f"BlockAutoregressive({name}=...)",
                    expected=f"one of {', '.join(map(repr, known))}",
                    got=repr(given),
                    fix="leave it out for the default",
                )
        self.input_dim, self.hidden_factors = input_dim, list(hidden_factors)
        self.activation, self.residual = activation, residual
        self.factors = [1, *self.hidden_factors, 1]
        n = input_dim
        for i, (a, b) in enumerate(itertools.pairwise(self.factors)):
            bound = (n * a) ** -0.5
            self.parameter(f"weight{i}", (n * b, n * a), init=init.uniform(-bound, bound))
            self.parameter(f"log_norm{i}", (n * b, 1), init=init.uniform(-LOG_2, 0.0))
            self.parameter(f"bias{i}", (n * b,), init=init.uniform(-bound, bound))
        if residual == "gated":
            self.parameter("gate", (), init=init.normal(0.0, 1.0))

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, log_slopes = self._mapped(x, None)
        return y, total(log_slopes, -1)

    @property
    def network(self) -> BlockAutoregressive:  # type: ignore[override]  # that of the base is given
        """Itself."""
        return self

    @property
    def shift(self) -> None:  # type: ignore[override]  # that of the base is given
        """No context moves it."""
        return None

    def _layers(self) -> list[Pair]:
        return [self._layer(i) for i in range(len(self.factors) - 1)]

    def _layer(self, i: int) -> Pair:
        """Return the weights, shape (n b, n a), and the logs of the blocks on the diagonal."""
        n, a, b = self.input_dim, self.factors[i], self.factors[i + 1]
        raw = getattr(self, f"weight{i}")
        rows, columns = np.arange(n * b)[:, None] // b, np.arange(n * a) // a
        below = raw.new_tensor(rows > columns) > 0.5
        there = raw.new_tensor(rows == columns) > 0.5
        # Rows are divided by their length, which is learned apart.
        free = where(there, exp(where(there, raw, 0.0)), where(below, raw, 0.0))
        log_scale = getattr(self, f"log_norm{i}") - 0.5 * log(total(free * free, -1, keepdim=True))
        blocks = reshape(raw + log_scale, (n, b, n, a))
        return free * exp(log_scale), movedim(diagonal(blocks, 0, 0, 2), -1, 0)

    def _mapped(self, x: Tensor, shift: Tensor | None, layers: Sequence[Pair] = ()) -> Pair:
        """Return the value and the log slope of each number; `layers` if they are known."""
        n, h, logs = self.input_dim, x, None
        layers = layers or self._layers()
        for i, (weight, log_block) in enumerate(layers):
            h = h @ weight.mT + getattr(self, f"bias{i}")
            if i == 0 and shift is not None:
                h = h + shift
            # Of each number: from the (…, n, a) log slopes of its units to (…, n, b).
            if logs is None:
                logs = squeeze(log_block, -1) + unsqueeze(x, -1) * 0.0
            else:
                logs = logsumexp(log_block + unsqueeze(logs, -2), -1)
            if i < len(layers) - 1:
                h, slopes = self._activated(h)
                logs = logs + reshape(slopes, (*x.array.shape[:-1], n, self.factors[i + 1]))
        assert logs is not None  # there is a layer
        log_slopes = squeeze(logs, -1)
        if self.residual == "normal":
            return h + x, softplus(log_slopes)
        if self.residual == "gated":
            # log(g exp(s) + 1 - g).
            g = self.gate
            both = neg(softplus(-g)), neg(softplus(g))
            above = softplus(log_slopes + both[0] - both[1]) + both[1]
            return sigmoid(g) * h + (1.0 - sigmoid(g)) * x, above
        return h, log_slopes

    def _activated(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation and the log of its slope."""
        if self.activation == "tanh":
            return tanh(h), 2.0 * (LOG_2 - h - softplus(-2.0 * h))
        low = minimum(h, 0.0)
        if self.activation == "ELU":
            return where(h > 0.0, h, exp(low) - 1.0), low
        return where(h > 0.0, h, LEAK * h), where(h > 0.0, h * 0.0, math.log(LEAK))


class ConditionalBlockAutoregressive(ConditionalTransformModule):
    """`BlockAutoregressive` whose first layer is shifted by a network of the context.

    Parameters
    ----------
    flow : BlockAutoregressive
    nn : callable
        From the context to as many numbers as the first layer has units.
    """

    def __init__(self, flow: BlockAutoregressive, nn: Module) -> None:
        super().__init__()
        self.flow, self.nn = flow, nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        return _InShift(self.flow, self.nn(context))


def block_autoregressive(
    input_dim: int,
    hidden_factors: Sequence[int] = (8, 8),
    activation: str = "tanh",
    residual: str | None = None,
) -> BlockAutoregressive:
    """Return a new block autoregressive flow.

    Parameters
    ----------
    input_dim, hidden_factors, activation, residual
        As of `BlockAutoregressive`.

    Returns
    -------
    BlockAutoregressive
    """
    return BlockAutoregressive(input_dim, hidden_factors, activation, residual)


def conditional_block_autoregressive(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    hidden_factors: Sequence[int] = (8, 8),
    activation: str = "tanh",
    residual: str | None = None,
) -> ConditionalBlockAutoregressive:
    """Return a new block autoregressive flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the context's network; two layers of ``10 * input_dim`` if None.
    hidden_factors, activation, residual
        As of `BlockAutoregressive`.

    Returns
    -------
    ConditionalBlockAutoregressive
    """
    flow = BlockAutoregressive(input_dim, hidden_factors, activation, residual)
    layers = hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(context_dim, layers, [input_dim * flow.factors[1]])
    return ConditionalBlockAutoregressive(flow, network)


explain_calls(globals())
