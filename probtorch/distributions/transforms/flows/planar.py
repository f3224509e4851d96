"""Planar, Sylvester and radial flows: bends of the whole space, along planes or around a point.

Rezende and Mohamed (2015); van den Berg, Hasenclever, Tomczak and Welling (2018). The inverse of a
planar flow is the root of one monotone equation, found to rounding and differentiable; a Sylvester
flow takes one such equation per number, a radial one a quadratic equation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.distributions.transforms.flows.linear import Householder
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import DenseNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.control import while_loop
from probtorch.ops.diagonals import diag_embed, triu
from probtorch.ops.exponentials import log1p, softplus
from probtorch.ops.movement import squeeze, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalPlanar",
    "ConditionalRadial",
    "Planar",
    "Radial",
    "Sylvester",
    "conditional_planar",
    "conditional_radial",
    "planar",
    "radial",
    "sylvester",
]

# Newton's method needs a handful of steps, bisection about 60 to rounding.
MAX_STEPS = 100


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
        height = _height(total(self.w * y, -1), product, self.bias)
        return y - u * unsqueeze(tanh(height + self.bias), -1)


# Root, its bounds, whether it still moves, and the number of steps.
State: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _height(s: Tensor, c: Tensor, b: Tensor) -> Tensor:
    """Return the a that solves ``a + c tanh(a + b) = s``, for c > -1; differentiable.

    The root is found without gradients, by Newton's method kept inside a shrinking bracket. Two
    more steps of Newton's method, with gradients, then give it the derivatives of the true root, up
    to the third order.
    """
    a = _root(*(t.detach() for t in (s, c, b)))
    for _ in range(2):
        bend = tanh(a + b)
        a = a - (a + c * bend - s) / (1.0 + c * (1.0 - bend * bend))
    return a


def _root(s: Tensor, c: Tensor, b: Tensor) -> Tensor:
    # The three broadcast once, so that the state keeps its shape.
    s = s + (c + b) * 0.0
    reach = absolute(c) + s * 0.0
    tolerance = 4.0 * float(np.finfo(s.array.dtype).eps)
    none = s.new_zeros(())

    def moving(state: State) -> Tensor:
        return state[3] * (state[4] < MAX_STEPS) > 0.5

    def step(state: State) -> State:
        a, low, high, _, count = state
        bend = tanh(a + b)
        excess = a + c * bend - s
        low, high = where(excess > 0.0, low, a), where(excess > 0.0, a, high)
        newton = a - excess / (1.0 + c * (1.0 - bend * bend))
        new = where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        far = some(absolute(new - a) > tolerance * (1.0 + absolute(new)))
        return new, low, high, where(far, none + 1.0, none), count + 1.0

    return while_loop(moving, step, (s, s - reach, s + reach, none + 1.0, none))[0]


def _spread(input_dim: int) -> Callable[[Tensor], object]:
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
        fill = _spread(input_dim)
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


class Sylvester(OnePass, TransformModule):
    """``y = x + Q R tanh(S Q' x + b)``: as many planar bends at once as there are numbers.

    Parameters
    ----------
    input_dim : int
    count_transforms : int
        Reflections whose product is the orthogonal matrix Q.

    Notes
    -----
    R and S are upper triangular, with diagonals in (-1, 1), so that every bend is invertible. The
    inverse solves one equation per number, from the last to the first.

    References
    ----------
    [berg2018]_
    """

    costly_inverse = True

    def __init__(self, input_dim: int, count_transforms: int = 1) -> None:
        super().__init__()
        whole("Sylvester", input_dim=input_dim)
        self.input_dim = input_dim
        self.q = Householder(input_dim, count_transforms)
        fill = _spread(input_dim)
        for name in ("r", "s"):
            self.parameter(f"{name}_dense", (input_dim, input_dim), init=fill)
            self.parameter(f"{name}_diagonal", (input_dim,), init=fill)
        self.parameter("bias", (input_dim,), init=init.constant(0.0))

    def _triangles(self) -> list[Tensor]:
        """R and S, with their diagonals."""
        found = []
        for name in ("r", "s"):
            diagonal = tanh(getattr(self, f"{name}_diagonal"))
            upper = triu(getattr(self, f"{name}_dense"), 1)
            found += [upper + diag_embed(diagonal), diagonal]
        return found

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r, r_diagonal, s, s_diagonal = self._triangles()
        bend = tanh(self.q._inverse(x) @ s.mT + self.bias)
        ladj = total(log1p(r_diagonal * s_diagonal * (1.0 - bend * bend)), -1)
        return x + self.q._call(bend @ r.mT), ladj

    def _inverse(self, y: Tensor) -> Tensor:
        r, r_diagonal, s, s_diagonal = self._triangles()
        rest = self.q._inverse(y)
        slopes = self.bias + y.new_zeros(y.array.shape)
        heights = []
        for i in reversed(range(self.input_dim)):
            # h + c tanh(s h + d) = e, as an equation for s h.
            scaled = _height(
                s_diagonal[i] * rest[..., i], s_diagonal[i] * r_diagonal[i], slopes[..., i]
            )
            bend = tanh(scaled + slopes[..., i])
            height = rest[..., i] - r_diagonal[i] * bend
            heights.append(height)
            # What is left of the equations before, of which this one's number is known now.
            rest = rest - unsqueeze(bend, -1) * r[:, i]
            slopes = slopes + unsqueeze(height, -1) * s[:, i]
        return self.q._call(stack(heights[::-1], -1))


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
        fill = _spread(input_dim)
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


def sylvester(input_dim: int, count_transforms: int | None = None) -> Sylvester:
    """Return a new Sylvester flow.

    Parameters
    ----------
    input_dim : int
    count_transforms : int, optional
        ``input_dim // 2 + 1`` if None.

    Returns
    -------
    Sylvester
    """
    count_transforms = input_dim // 2 + 1 if count_transforms is None else count_transforms
    return Sylvester(input_dim, count_transforms)


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
