"""Maps of fixed form whose parameters come from a context: sinh-arcsinh, and a smoothed spectrum.

Without a context they are `SinhArcsinhTransform` and `DiscreteCosineTransform`. The Haar transform
has no parameter that a context could set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.transforms.flows.linear import LOG_E_MINUS_1
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.rotations import DiscreteCosineTransform
from probtorch.distributions.transforms.scalar import LOG_2
from probtorch.distributions.transforms.transform import Transform
from probtorch.nn.autoregressive import DenseNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.exponentials import exp, log, log1p, softplus
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import log1p_square
from probtorch.ops.trigonometry import asinh, sinh
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalDiscreteCosine",
    "ConditionalSinhArcsinh",
    "conditional_discrete_cosine",
    "conditional_sinh_arcsinh",
]


class ConditionedSinhArcsinh(Transform):
    """``c sinh(tailweight (asinh(x) + skewness))`` of each number of a vector, as a context says.

    Parameters
    ----------
    skewness, tailweight : Tensor, shape (..., n)
        The second positive.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, skewness: Tensor, tailweight: Tensor) -> None:
        self.skewness, self.tailweight = skewness, tailweight

    def _scale(self) -> Tensor:
        return 2.0 / sinh(math.asinh(2.0) * self.tailweight)

    def _angle(self, x: Tensor) -> Tensor:
        return (asinh(x) + self.skewness) * self.tailweight

    def _call(self, x: Tensor) -> Tensor:
        return sinh(self._angle(x)) * self._scale()

    def _inverse(self, y: Tensor) -> Tensor:
        return sinh(asinh(y / self._scale()) / self.tailweight - self.skewness)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        u = absolute(self._angle(x))
        log_cosh = u + log1p(exp(-2.0 * u)) - LOG_2
        slope = log_cosh - 0.5 * log1p_square(x) + log(self.tailweight * self._scale())
        return total(slope, -1)


class ConditionalSinhArcsinh(ConditionalTransformModule):
    """Skewness and weight of the tails of each number of a vector, by a network of the context.

    Parameters
    ----------
    input_dim : int
    nn : callable
        From the context to two tensors of `input_dim` numbers: the skewness, and what makes the
        tails' weight, 1 at 0.

    References
    ----------
    Jones and Pewsey (2009), "Sinh-arcsinh distributions".
    """

    def __init__(self, input_dim: int, nn: Module) -> None:
        super().__init__()
        self.input_dim, self.nn = input_dim, nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        skewness, free = self.nn(context)
        # The tails of a network's 0 are those of x.
        return ConditionedSinhArcsinh(skewness, softplus(free + LOG_E_MINUS_1))


class ConditionedDiscreteCosine(Transform):
    """Amplitudes of cosines, weighted by frequency to a power that a context says.

    Parameters
    ----------
    smooth : Tensor, shape (..., 1)
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, smooth: Tensor) -> None:
        self.smooth = smooth

    def _weights(self, n: int) -> Tensor:
        logs = np.log(np.arange(n) + 0.5)
        return self.smooth * self.smooth.new_tensor(logs - logs.mean())

    def _call(self, x: Tensor) -> Tensor:
        return DiscreteCosineTransform()(x) * exp(self._weights(x.array.shape[-1]))

    def _inverse(self, y: Tensor) -> Tensor:
        return DiscreteCosineTransform().inv(y * exp(-self._weights(y.array.shape[-1])))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # The weights have a product of 1.
        return total(y, -1) * 0.0


class ConditionalDiscreteCosine(ConditionalTransformModule):
    """Amplitudes of cosines whose smoothness is the output of a network of the context.

    Parameters
    ----------
    nn : callable
        From the context to one number: 0 keeps white noise white, 1 makes white noise of Brownian
        noise; see `DiscreteCosineTransform`.
    """

    def __init__(self, nn: Module) -> None:
        super().__init__()
        self.nn = nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        return ConditionedDiscreteCosine(self.nn(context))


def conditional_sinh_arcsinh(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None
) -> ConditionalSinhArcsinh:
    """Return a new sinh-arcsinh transform with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.

    Returns
    -------
    ConditionalSinhArcsinh
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    return ConditionalSinhArcsinh(input_dim, DenseNN(context_dim, layers, [input_dim, input_dim]))


def conditional_discrete_cosine(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None
) -> ConditionalDiscreteCosine:
    """Return a new discrete cosine transform whose smoothness comes from a context.

    Parameters
    ----------
    input_dim, context_dim : int
        The first sets the size of the network alone.
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.

    Returns
    -------
    ConditionalDiscreteCosine
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    return ConditionalDiscreteCosine(DenseNN(context_dim, layers, [1]))


explain_calls(globals())
