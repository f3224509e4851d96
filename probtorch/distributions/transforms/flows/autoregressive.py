"""Affine autoregressive flows: each number is shifted and scaled by functions of those before it.

``y_i = mean_i(x_<i) + scale_i(x_<i) * x_i``, with mean and scale from one masked network
(`AutoRegressiveNN`). Draws take one pass of the network and densities one per number: the inverse
autoregressive flow (Kingma et al. 2016). The other direction, ``.inv``, is the masked
autoregressive flow (Papamakarios et al. 2017), whose densities take one pass.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.nn.autoregressive import AutoRegressiveNN, ConditionalAutoRegressiveNN
from probtorch.ops.arithmetic import neg, where
from probtorch.ops.exponentials import exp, sigmoid, softplus
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "AffineAutoregressive",
    "Autoregressive",
    "ConditionalAffineAutoregressive",
    "InContext",
    "affine_autoregressive",
    "conditional_affine_autoregressive",
    "soft_clip",
]


def soft_clip(x: Tensor, low: float, high: float) -> Tensor:
    """Return `x` for small values, and for large ones something that stays in (low, high).

    ``high tanh(x / high)`` above 0 and ``low tanh(x / low)`` below: smooth, so that gradients are
    those of the value, and never 0.
    """
    return where(x > 0.0, high * tanh(x / high), low * tanh(x / low))


class Autoregressive(OnePass, TransformModule):
    """Base of transforms that are elementwise once the numbers before are known.

    Parameters
    ----------
    autoregressive_nn : callable
        From x to the parameters of the elementwise map; its `permutation` is the order.

    Notes
    -----
    The inverse makes one pass of the network per number: pass k has the right values for the first
    k numbers in the order, which is all that the next one depends on.
    """

    costly_inverse = True

    def __init__(self, autoregressive_nn: Any) -> None:
        super().__init__()
        self.arn = autoregressive_nn

    @abc.abstractmethod
    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(y, log derivatives)``, elementwise."""

    @abc.abstractmethod
    def _backward(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return x, elementwise."""

    def _call(self, x: Tensor) -> Tensor:
        return self._forward(self.arn(x), x)[0]

    def call_and_ladj(self, x: Any) -> tuple[Tensor, Tensor]:
        y, log_slope = self._forward(self.arn(x), x)
        return y, total(log_slope, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        place = np.argsort(to_host(self.arn.permutation.array))
        x = y.new_zeros(y.array.shape)
        for k in range(place.size):
            # What is not settled yet stays 0, so that it cannot grow from pass to pass.
            settled = y.new_tensor(place <= k) > 0.5
            x = where(settled, self._backward(self.arn(x), y), 0.0)
        return x


class AffineAutoregressive(Autoregressive):
    """``y = mean(x) + scale(x) * x`` with autoregressive mean and scale.

    Parameters
    ----------
    autoregressive_nn : callable
        An `AutoRegressiveNN` with ``param_dims=[1, 1]``: mean and log scale (logit if `stable`).
    log_scale_min_clip, log_scale_max_clip : float
        Bounds of the log scale, which it nears smoothly (`soft_clip`).
    sigmoid_bias : float
        Added to the logit if `stable`.
    stable : bool
        ``y = s x + (1 - s) mean`` with s the sigmoid of the network's output: scales below 1 only.

    Notes
    -----
    Pyro cuts the log scale off and lets the gradient through as if it had not; here the bound is
    smooth, and the gradient that of the value.

    References
    ----------
    [kingma2016]_, [papamakarios2017]_.
    """

    def __init__(
        self,
        autoregressive_nn: Any,
        log_scale_min_clip: float = -5.0,
        log_scale_max_clip: float = 3.0,
        sigmoid_bias: float = 2.0,
        stable: bool = False,
    ) -> None:
        super().__init__(autoregressive_nn)
        self.log_scale_min_clip, self.log_scale_max_clip = log_scale_min_clip, log_scale_max_clip
        self.sigmoid_bias, self.stable = sigmoid_bias, stable

    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = parameters
        if self.stable:
            logit = raw + self.sigmoid_bias
            scale = sigmoid(logit)
            return scale * x + (1.0 - scale) * mean, neg(softplus(neg(logit)))
        log_scale = soft_clip(raw, self.log_scale_min_clip, self.log_scale_max_clip)
        return mean + exp(log_scale) * x, log_scale

    def _backward(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        mean, raw = parameters
        if self.stable:
            logit = raw + self.sigmoid_bias
            # (1 - s) / s = exp(-logit), 1 / s = 1 + exp(-logit).
            odds = exp(neg(logit))
            return y + odds * (y - mean)
        log_scale = soft_clip(raw, self.log_scale_min_clip, self.log_scale_max_clip)
        return (y - mean) * exp(neg(log_scale))


class InContext:
    """A conditional network with its context filled in; what else is asked of it, it has.

    Parameters
    ----------
    network : callable
        Called as ``network(x, context)``.
    context : Tensor
    """

    def __init__(self, network: Any, context: Tensor) -> None:
        self.network, self.context = network, context

    def __call__(self, x: TensorLike) -> Tensor:
        """Return the network's outputs for this context."""
        return self.network(x, self.context)

    @property
    def permutation(self) -> Tensor:
        """The order of an autoregressive network."""
        return self.network.permutation


class ConditionalAffineAutoregressive(ConditionalTransformModule):
    """`AffineAutoregressive` whose network also sees a context.

    Parameters
    ----------
    autoregressive_nn : ConditionalAutoRegressiveNN
    **kwargs
        Settings of `AffineAutoregressive`.
    """

    def __init__(self, autoregressive_nn: Any, **kwargs: Any) -> None:
        super().__init__()
        self.nn, self.kwargs = autoregressive_nn, kwargs

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        return AffineAutoregressive(InContext(self.nn, context), **self.kwargs)


def affine_autoregressive(
    input_dim: int, hidden_dims: Sequence[int] | None = None, **kwargs: Any
) -> AffineAutoregressive:
    """Return a new affine autoregressive flow.

    Parameters
    ----------
    input_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[3 * input_dim + 1]`` if None.
    **kwargs
        Settings of `AffineAutoregressive`.

    Returns
    -------
    AffineAutoregressive
    """
    hidden_dims = [3 * input_dim + 1] if hidden_dims is None else hidden_dims
    return AffineAutoregressive(AutoRegressiveNN(input_dim, hidden_dims), **kwargs)


def conditional_affine_autoregressive(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None, **kwargs: Any
) -> ConditionalAffineAutoregressive:
    """Return a new affine autoregressive flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[10 * input_dim]`` if None.
    **kwargs
        Settings of `AffineAutoregressive`.

    Returns
    -------
    ConditionalAffineAutoregressive
    """
    layers = hidden_sizes(hidden_dims, input_dim, 1)
    network = ConditionalAutoRegressiveNN(input_dim, context_dim, layers)
    return ConditionalAffineAutoregressive(network, **kwargs)


explain_calls(globals())
