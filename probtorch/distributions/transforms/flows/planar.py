"""Planar and radial flows: bends of the whole space, along planes or around a point.

Rezende and Mohamed (2015). The inverse of a planar flow is the root of one monotone equation, found
to rounding and differentiable, that of a radial one a quadratic equation. Many planes at once are a
Sylvester flow, in `sylvester`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.flows.roots import bent_root
from probtorch.distributions.transforms.transform import Transform
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import DenseNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import log1p, softplus
from probtorch.ops.movement import squeeze, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalPlanar",
    "ConditionalRadial",
    "Planar",
    "Radial",
    "conditional_planar",
    "conditional_radial",
    "planar",
    "radial",
]


class ConditionedPlanar(OnePass):
    """``y = x + u tanh(w x + b)`` with given parameters.

    Parameters
    ----------
    bias : Tensor, shape (...)
    u, w : Tensor, shape (..., n)
        `u` is moved along `w` as far as is needed for the map to be invertible.
    """

    costly_inverse = True

    def __init__(self, bias: Tensor, u: Tensor, w: Tensor) -> None:
        self.bias, self.u, self.w = bias, u, w

    def _direction(self) -> tuple[Tensor, Tensor]:
        """Return u with w u > -1, and w u itself."""
        product = total(self.w * self.u, -1)
        raised = softplus(product) - 1.0
        step = (raised - product) / total(self.w * self.w, -1)
        return self.u + unsqueeze(step, -1) * self.w, raised

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, product = self._direction()
        bend = tanh(total(self.w * x, -1) + self.bias)
        return x + u * unsqueeze(bend, -1), log1p(product * (1.0 - bend * bend))

    def _inverse(self, y: Tensor) -> Tensor:
        u, product = self._direction()
        height = bent_root(total(self.w * y, -1), product, self.bias)
        return y - u * unsqueeze(tanh(height + self.bias), -1)


def spread(input_dim: int) -> Callable[[Tensor], object]:
    """How weights start: uniform on ``(-1, 1) / sqrt(input_dim)``."""
    return init.uniform(-(input_dim**-0.5), input_dim**-0.5)


class Planar(ConditionedPlanar, TransformModule):
    """A learned planar flow, ``y = x + u tanh(w x + b)``.

    Parameters
    ----------
    input_dim : int

    References
    ----------
    [rezende2015]_
    """

    def __init__(self, input_dim: int) -> None:
        TransformModule.__init__(self)
        whole("Planar", input_dim=input_dim)
        self.input_dim = input_dim
        fill = spread(input_dim)
        self.parameter("bias", (), init=init.constant(0.0))
        self.parameter("u", (input_dim,), init=fill)
        self.parameter("w", (input_dim,), init=fill)


class ConditionalPlanar(ConditionalTransformModule):
    """A planar flow whose parameters are the outputs of a network of the context.

    Parameters
    ----------
    nn : callable
        From the context to ``(bias, u, w)`` with 1, n and n numbers.
    """

    def __init__(self, nn: Module) -> None:
        super().__init__()
        self.nn = nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        bias, u, w = self.nn(context)
        return ConditionedPlanar(squeeze(bias, -1), u, w)


class ConditionedRadial(OnePass):
    """``y = x + b h(r) (x - x0)`` with ``h = 1 / (a + r)`` and ``r = |x - x0|``.

    Parameters
    ----------
    x0 : Tensor, shape (..., n)
    alpha_prime, beta_prime : Tensor, shape (...)
        Free forms of a > 0 and b > -a.
    """

    def __init__(self, x0: Tensor, alpha_prime: Tensor, beta_prime: Tensor) -> None:
        self.x0, self.alpha_prime, self.beta_prime = x0, alpha_prime, beta_prime

    def _settings_now(self) -> tuple[Tensor, Tensor]:
        alpha = softplus(self.alpha_prime)
        return alpha, softplus(self.beta_prime) - alpha

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        alpha, beta = self._settings_now()
        shift = x - self.x0
        h = 1.0 / (alpha + _length(shift))
        n = x.array.shape[-1]
        # Across the radius the map stretches by 1 + b h, along it by 1 + b h + b h' r.
        ladj = (n - 1) * log1p(beta * h) + log1p(beta * alpha * h * h)
        return x + unsqueeze(beta * h, -1) * shift, ladj

    def _inverse(self, y: Tensor) -> Tensor:
        alpha, beta = self._settings_now()
        shift = y - self.x0
        reach = _length(shift)
        # r (1 + b / (a + r)) = R: r^2 + p r = a R; the root is written without cancellation.
        p = alpha + beta - reach
        root = sqrt(p * p + 4.0 * alpha * reach)
        r = where(p > 0.0, 2.0 * alpha * reach / (absolute(p) + root), 0.5 * (root - p))
        return self.x0 + shift / unsqueeze(1.0 + beta / (alpha + r), -1)


def _length(x: Tensor) -> Tensor:
    """Norm of vectors, with gradient 0 at 0."""
    squares = total(x * x, -1)
    nothing = squares == 0.0
    return where(nothing, 0.0, sqrt(where(nothing, 1.0, squares)))


class Radial(ConditionedRadial, TransformModule):
    """A learned radial flow, ``y = x + b (x - x0) / (a + |x - x0|)``.

    Parameters
    ----------
    input_dim : int

    References
    ----------
    [rezende2015]_
    """

    def __init__(self, input_dim: int) -> None:
        TransformModule.__init__(self)
        whole("Radial", input_dim=input_dim)
        self.input_dim = input_dim
        fill = spread(input_dim)
        self.parameter("x0", (input_dim,), init=fill)
        self.parameter("alpha_prime", (), init=fill)
        self.parameter("beta_prime", (), init=fill)


class ConditionalRadial(ConditionalTransformModule):
    """A radial flow whose parameters are the outputs of a network of the context.

    Parameters
    ----------
    nn : callable
        From the context to ``(x0, alpha_prime, beta_prime)`` with n, 1 and 1 numbers.
    """

    def __init__(self, nn: Module) -> None:
        super().__init__()
        self.nn = nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        x0, alpha, beta = self.nn(context)
        return ConditionedRadial(x0, squeeze(alpha, -1), squeeze(beta, -1))


def planar(input_dim: int) -> Planar:
    """Return a new planar flow.

    Parameters
    ----------
    input_dim : int

    Returns
    -------
    Planar
    """
    return Planar(input_dim)


def conditional_planar(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None
) -> ConditionalPlanar:
    """Return a new planar flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.

    Returns
    -------
    ConditionalPlanar
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    return ConditionalPlanar(DenseNN(context_dim, layers, [1, input_dim, input_dim]))


def radial(input_dim: int) -> Radial:
    """Return a new radial flow.

    Parameters
    ----------
    input_dim : int

    Returns
    -------
    Radial
    """
    return Radial(input_dim)


def conditional_radial(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None
) -> ConditionalRadial:
    """Return a new radial flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.

    Returns
    -------
    ConditionalRadial
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    return ConditionalRadial(DenseNN(context_dim, layers, [input_dim, 1, 1]))


explain_calls(globals())
