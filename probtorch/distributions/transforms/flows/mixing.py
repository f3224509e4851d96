"""Flows that multiply by an invertible matrix: its exponential, or Glow's 1 x 1 convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.core.signatures import also_called, explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ShapeError
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import DenseNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.diagonals import diag_embed, diagonal, tril, triu
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import reshape, squeeze, unsqueeze
from probtorch.ops.products import matrix_exp
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalGeneralizedChannelPermute",
    "ConditionalMatrixExponential",
    "GeneralizedChannelPermute",
    "MatrixExponential",
    "conditional_generalized_channel_permute",
    "conditional_matrix_exponential",
    "generalized_channel_permute",
    "matrix_exponential",
]


class ConditionedMatrixExponential(Transform):
    """y = exp(weights) x, whose inverse is exp(-weights) and whose log-determinant a trace.

    Parameters
    ----------
    weights : Tensor, shape (..., n, n)
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def _times(self, x: Tensor, sign: float) -> Tensor:
        return squeeze(matrix_exp(self.weights * sign) @ unsqueeze(x, -1), -1)

    def _call(self, x: Tensor) -> Tensor:
        return self._times(x, 1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._times(y, -1.0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return total(diagonal(self.weights, 0, -2, -1), -1) + x.new_zeros(x.array.shape[:-1])


class MatrixExponential(ConditionedMatrixExponential, TransformModule):
    """Product with the exponential of a learned matrix: any linear map that keeps orientation.

    Parameters
    ----------
    input_dim : int

    References
    ----------
    Hoogeboom, Garcia Satorras, Tomczak and Welling (2020), "The convolution exponential".
    """

    # Pyro sums as many terms as it is told; here the exponential is exact.
    @also_called(None, iterations=None)
    def __init__(self, input_dim: int) -> None:
        TransformModule.__init__(self)
        whole("MatrixExponential", input_dim=input_dim)
        self.input_dim = input_dim
        bound = input_dim**-0.5
        self.parameter("weights", (input_dim, input_dim), init=init.uniform(-bound, bound))


class ConditionalMatrixExponential(ConditionalTransformModule):
    """A matrix exponential whose matrix is the output of a network of the context.

    Parameters
    ----------
    input_dim : int
    nn : callable
        From the context to ``input_dim ** 2`` numbers.
    """

    @also_called(None, iterations=None)
    def __init__(self, input_dim: int, nn: Module) -> None:
        super().__init__()
        self.input_dim, self.nn = input_dim, nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        w, n = self.nn(context), self.input_dim
        return ConditionedMatrixExponential(reshape(w, (*w.array.shape[:-1], n, n)))


class ConditionedGeneralizedChannelPermute(Transform):
    """Images whose channels are mixed at each point by the matrix permutation L (U + diag(U_diag)).

    Parameters
    ----------
    permutation : Tensor, shape (channels, channels)
    LU : Tensor, shape (..., channels, channels)
        Below the diagonal that of L, which has ones on it; above it that of U.
    U_diag : Tensor, shape (..., channels)
        Not 0.
    """

    domain = constraints.independent(constraints.real, 3)
    codomain = constraints.independent(constraints.real, 3)

    def __init__(self, permutation: Tensor, LU: Tensor, U_diag: Tensor) -> None:
        self.permutation, self.LU, self.U_diag = permutation, LU, U_diag

    def _factors(self) -> tuple[Tensor, Tensor]:
        eye = self.LU.new_tensor(np.eye(self.LU.array.shape[-1]))
        return tril(self.LU, -1) + eye, triu(self.LU, 1) + diag_embed(self.U_diag)

    def _mixed(self, weight: Tensor, x: Tensor) -> Tensor:
        shape = x.array.shape
        if len(shape) < 3 or shape[-3] != weight.array.shape[-1]:
            raise ShapeError(
                "GeneralizedChannelPermute",
                expected=f"images of shape (..., {weight.array.shape[-1]}, height, width)",
                got=f"shape {shape}",
                fix="put the channels third from the end",
            )
        return reshape(weight @ reshape(x, (*shape[:-2], shape[-2] * shape[-1])), shape)

    def _call(self, x: Tensor) -> Tensor:
        lower, upper = self._factors()
        return self._mixed(self.permutation @ lower @ upper, x)

    def _inverse(self, y: Tensor) -> Tensor:
        lower, upper = self._factors()
        eye = (lower * 0.0) + self.LU.new_tensor(np.eye(self.LU.array.shape[-1]))
        below = solve_triangular(lower, eye, upper=False)
        return self._mixed(solve_triangular(upper, below, upper=True) @ self.permutation.mT, y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        shape = x.array.shape
        logs = total(log(absolute(self.U_diag)), -1) * float(shape[-2] * shape[-1])
        return logs + x.new_zeros(shape[:-3])


class GeneralizedChannelPermute(ConditionedGeneralizedChannelPermute, TransformModule):
    """Learned mixing of the channels of images: Glow's invertible 1 x 1 convolution.

    Parameters
    ----------
    channels : int
    permutation : Tensor, shape (channels,), optional
        Order in which the channels are written at first; reversed if None.

    References
    ----------
    Kingma and Dhariwal (2018), "Glow: generative flow with invertible 1x1 convolutions".
    """

    def __init__(
        self, channels: int = 3, permutation: Tensor | Sequence[int] | None = None
    ) -> None:
        TransformModule.__init__(self)
        whole("GeneralizedChannelPermute", channels=channels)
        self.channels = channels
        self.buffer("permutation", (channels, channels), init=init.constant(0.0))
        self.permutation.copy_(self.permutation.new_tensor(_permutation(channels, permutation)))
        self.parameter("LU", (channels, channels), init=init.normal(0.0, 0.1))
        self.parameter("U_diag", (channels,), init=init.constant(1.0))


class ConditionalGeneralizedChannelPermute(ConditionalTransformModule):
    """Mixing of the channels of images by a matrix that a network makes of the context.

    Parameters
    ----------
    nn : callable
        From the context to ``channels ** 2`` and `channels` numbers.
    channels : int
    permutation : Tensor, shape (channels,), optional
    """

    def __init__(
        self, nn: Module, channels: int = 3, permutation: Tensor | Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.nn, self.channels = nn, channels
        self.buffer("permutation", (channels, channels), init=init.constant(0.0))
        self.permutation.copy_(self.permutation.new_tensor(_permutation(channels, permutation)))

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        lu, scales = self.nn(context)
        n = self.channels
        lu = reshape(lu, (*lu.array.shape[:-1], n, n))
        return ConditionedGeneralizedChannelPermute(self.permutation, lu, scales)


def _permutation(channels: int, order: Tensor | Sequence[int] | None) -> np.ndarray:
    rows = list(range(channels))[::-1] if order is None else [int(i) for i in order]
    if sorted(rows) != list(range(channels)):
        raise ShapeError(
            "GeneralizedChannelPermute",
            expected=f"each of 0 to {channels - 1} once",
            got=str(rows),
            fix="use randperm(channels)",
        )
    return np.eye(channels)[rows]


@also_called("matrix_exponential", iterations=None)
def matrix_exponential(input_dim: int) -> MatrixExponential:
    """Return a new matrix exponential.

    Parameters
    ----------
    input_dim : int

    Returns
    -------
    MatrixExponential
    """
    return MatrixExponential(input_dim)


@also_called("conditional_matrix_exponential", iterations=None)
def conditional_matrix_exponential(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None
) -> ConditionalMatrixExponential:
    """Return a new matrix exponential with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.

    Returns
    -------
    ConditionalMatrixExponential
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    return ConditionalMatrixExponential(
        input_dim, DenseNN(context_dim, layers, [input_dim * input_dim])
    )


def generalized_channel_permute(channels: int = 3) -> GeneralizedChannelPermute:
    """Return a new mixing of channels.

    Parameters
    ----------
    channels : int

    Returns
    -------
    GeneralizedChannelPermute
    """
    return GeneralizedChannelPermute(channels)


def conditional_generalized_channel_permute(
    context_dim: int, channels: int = 3, hidden_dims: Sequence[int] | None = None
) -> ConditionalGeneralizedChannelPermute:
    """Return a new mixing of channels with a context.

    Parameters
    ----------
    context_dim : int
    channels : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * channels`` if None.

    Returns
    -------
    ConditionalGeneralizedChannelPermute
    """
    layers = hidden_sizes(hidden_dims, channels)
    network = DenseNN(context_dim, layers, [channels * channels, channels])
    return ConditionalGeneralizedChannelPermute(network, channels)


explain_calls(globals())
