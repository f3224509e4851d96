"""Linear flows: reflections (Householder), and normalisation by a batch's moments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
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
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import log, softplus
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import mean, var
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "BatchNorm",
    "ConditionalBatchNorm",
    "ConditionalHouseholder",
    "Householder",
    "batchnorm",
    "conditional_batchnorm",
    "conditional_householder",
    "householder",
]

# softplus of it is 1.
LOG_E_MINUS_1 = math.log(math.expm1(1.0))


class ConditionedHouseholder(Transform):
    """Reflections ``x - 2 u (u x) / (u u)``, one after the other, with given directions.

    Parameters
    ----------
    u_unnormed : Tensor, shape (..., count, n)
        Directions; their length does not matter.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, u_unnormed: Tensor) -> None:
        self.u_unnormed = u_unnormed

    def _reflected(self, x: Tensor, order: Iterable[int]) -> Tensor:
        for i in order:
            u = self.u_unnormed[..., i, :]
            x = x - (2.0 * total(u * x, -1, keepdim=True) / total(u * u, -1, keepdim=True)) * u
        return x

    def _call(self, x: Tensor) -> Tensor:
        return self._reflected(x, range(self.u_unnormed.array.shape[-2]))

    def _inverse(self, y: Tensor) -> Tensor:
        # A reflection is its own inverse; only their order turns around.
        return self._reflected(y, reversed(range(self.u_unnormed.array.shape[-2])))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[:-1])


class Householder(ConditionedHouseholder, TransformModule):
    """Learned reflections: an orthogonal map, which keeps volumes.

    Parameters
    ----------
    input_dim : int
    count_transforms : int
        Number of reflections; as many as `input_dim` make any orthogonal matrix of their sign.

    References
    ----------
    [tomczak2016]_
    """

    def __init__(self, input_dim: int, count_transforms: int = 1) -> None:
        TransformModule.__init__(self)
        whole("Householder", input_dim=input_dim, count_transforms=count_transforms)
        self.input_dim = input_dim
        self.parameter("u_unnormed", (count_transforms, input_dim), init=init.normal())


class ConditionalHouseholder(ConditionalTransformModule):
    """Reflections whose directions are the outputs of a network of the context.

    Parameters
    ----------
    input_dim : int
    nn : callable
        From the context to ``count_transforms * input_dim`` numbers.
    count_transforms : int
    """

    def __init__(self, input_dim: int, nn: Module, count_transforms: int = 1) -> None:
        super().__init__()
        self.input_dim, self.nn, self.count_transforms = input_dim, nn, count_transforms

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        u = self.nn(context)
        return ConditionedHouseholder(
            reshape(u, (*u.array.shape[:-1], self.count_transforms, self.input_dim))
        )


class RunningMoments(Module):
    """Means and variances of the numbers of a vector, in this batch and over the batches seen.

    Parameters
    ----------
    input_dim : int
    momentum : float
        Weight of a new batch in the running moments.
    epsilon : float
        Added to variances.
    """

    def __init__(self, input_dim: int, momentum: float, epsilon: float) -> None:
        super().__init__()
        whole(type(self).__name__, input_dim=input_dim)
        self.input_dim, self.momentum, self.epsilon = input_dim, momentum, epsilon
        self.buffer("moving_mean", (input_dim,), init=init.constant(0.0))
        self.buffer("moving_variance", (input_dim,), init=init.constant(1.0))

    def _moments(self, y: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance that `y` is normalised by."""
        if not self.training:
            return self.moving_mean, self.moving_variance
        if y.array.ndim < 2 or y.array.shape[0] < 2:
            raise ShapeError(
                f"{type(self).__name__} in training",
                expected="a batch of at least 2 rows",
                got=f"shape {tuple(y.array.shape)}",
                fix="call eval() on the transform, or pass a batch",
            )
        return mean(y, 0), var(y, 0)

    def _see(self, middle: Tensor, spread: Tensor) -> None:
        """Move the running moments towards those of a batch, in training."""
        if self.training:
            with no_grad():
                for moving, new in ((self.moving_mean, middle), (self.moving_variance, spread)):
                    moving.mul_(1.0 - self.momentum).add_(new.detach() * self.momentum)


class ConditionedBatchNorm(Transform):
    """Normalisation by a batch's moments, then a given scale and shift, seen from data to noise.

    Parameters
    ----------
    moments : RunningMoments
    gamma, beta : Tensor, shape (..., n)
        The scale, in a free form, and the shift.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, moments: RunningMoments, gamma: Tensor, beta: Tensor) -> None:
        self.moments, self.gamma, self.beta = moments, gamma, beta

    def _call(self, x: Tensor) -> Tensor:
        known = self.moments
        scale = sqrt(known.moving_variance + known.epsilon) / softplus(self.gamma)
        return (x - self.beta) * scale + known.moving_mean

    def _inverse(self, y: Tensor) -> Tensor:
        middle, spread = self.moments._moments(y)
        self.moments._see(middle, spread)
        scale = softplus(self.gamma) / sqrt(spread + self.moments.epsilon)
        return (y - middle) * scale + self.beta

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        spread = self.moments._moments(y)[1]
        scales = 0.5 * log(spread + self.moments.epsilon) - log(softplus(self.gamma))
        return total(scales + y.new_zeros(y.array.shape), -1)


class BatchNorm(ConditionedBatchNorm, RunningMoments, TransformModule):
    """Normalisation by the moments of a batch, seen from data to noise.

    The inverse is ``x = gamma (y - mean) / sqrt(var + epsilon) + beta``, with the moments of the
    batch `y` in training, of which running ones are kept, and the running ones otherwise. The
    transform itself, from noise to data, always uses the running ones.

    Parameters
    ----------
    input_dim : int
    momentum : float
        Weight of a new batch in the running moments.
    epsilon : float

    Raises
    ------
    ShapeError
        In training, if a batch has fewer than two rows.

    Notes
    -----
    In training a density then depends on the other rows of its batch, so it is no density: switch
    to evaluation mode (``eval()``) before using one.
    """

    def __init__(self, input_dim: int, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        RunningMoments.__init__(self, input_dim, momentum, epsilon)
        self.parameter("gamma", (input_dim,), init=init.constant(LOG_E_MINUS_1))
        self.parameter("beta", (input_dim,), init=init.constant(0.0))

    # Read from the module itself, where `ConditionedBatchNorm` is given one.
    @property
    def moments(self) -> RunningMoments:  # type: ignore[override]
        """What knows the moments: the transform."""
        return self


class ConditionalBatchNorm(RunningMoments, ConditionalTransformModule):
    """`BatchNorm` whose scale and shift are the outputs of a network of the context.

    The moments are those of all contexts together.

    Parameters
    ----------
    input_dim : int
    nn : callable
        From the context to two tensors of `input_dim` numbers: what makes the scale, 1 at 0, and
        the shift.
    momentum, epsilon
        See `BatchNorm`.

    Raises
    ------
    ShapeError
        In training, if a batch has fewer than two rows.
    """

    def __init__(
        self, input_dim: int, nn: Module, momentum: float = 0.1, epsilon: float = 1e-5
    ) -> None:
        super().__init__(input_dim, momentum, epsilon)
        self.nn = nn

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        free, beta = self.nn(context)
        return ConditionedBatchNorm(self, free + LOG_E_MINUS_1, beta)


def householder(input_dim: int, count_transforms: int | None = None) -> Householder:
    """Return new reflections.

    Parameters
    ----------
    input_dim : int
    count_transforms : int, optional
        ``input_dim // 2 + 1`` if None.

    Returns
    -------
    Householder
    """
    count_transforms = input_dim // 2 + 1 if count_transforms is None else count_transforms
    return Householder(input_dim, count_transforms)


def conditional_householder(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    count_transforms: int = 1,
) -> ConditionalHouseholder:
    """Return new reflections with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    count_transforms : int

    Returns
    -------
    ConditionalHouseholder
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(context_dim, layers, [count_transforms * input_dim])
    return ConditionalHouseholder(input_dim, network, count_transforms)


def batchnorm(input_dim: int, **kwargs: float) -> BatchNorm:
    """Return a new normalisation; keywords are those of `BatchNorm`.

    Parameters
    ----------
    input_dim : int
    **kwargs

    Returns
    -------
    BatchNorm
    """
    return BatchNorm(input_dim, **kwargs)


def conditional_batchnorm(
    input_dim: int, context_dim: int, hidden_dims: Sequence[int] | None = None, **kwargs: float
) -> ConditionalBatchNorm:
    """Return a new normalisation with a context; keywords are those of `BatchNorm`.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    **kwargs

    Returns
    -------
    ConditionalBatchNorm
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(context_dim, layers, [input_dim, input_dim])
    return ConditionalBatchNorm(input_dim, network, **kwargs)


explain_calls(globals())
