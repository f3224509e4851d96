"""Affine coupling layers (real NVP): one part of the vector shifts and scales the other.

Both directions take one pass of the network (Dinh, Sohl-Dickstein and Bengio 2017). Between two
layers the parts have to change places: `permute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributions.transforms.flows.autoregressive import InContext, soft_clip
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import PermuteTransform, last_part
from probtorch.errors import ArgumentError
from probtorch.nn.autoregressive import ConditionalDenseNN, DenseNN
from probtorch.ops.arithmetic import neg
from probtorch.ops.exponentials import exp
from probtorch.ops.pieces import cat
from probtorch.ops.random_integers import randperm
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "AffineCoupling",
    "ConditionalAffineCoupling",
    "affine_coupling",
    "conditional_affine_coupling",
    "permute",
    "split_of",
]


def split_of(owner: object, input_dim: int, split_dim: int | None) -> int:
    """Return where to cut a vector in two, in the middle if `split_dim` is None.

    Raises
    ------
    ArgumentError
        If one of the parts were empty.
    """
    split_dim = input_dim // 2 if split_dim is None else split_dim
    if not 0 < split_dim < input_dim:
        raise ArgumentError(
            owner,
            expected="vectors of at least 2 numbers, cut into two parts that are not empty",
            got=f"input_dim={input_dim}, split_dim={split_dim}",
            fix="for a single number use spline(1) or AffineTransform",
        )
    return split_dim


class AffineCoupling(OnePass, TransformModule):
    """``y = (x1, mean(x1) + scale(x1) * x2)`` for the two parts of x.

    Parameters
    ----------
    split_dim : int
        Size of the first part.
    hypernet : callable
        From the first part to ``(mean, log scale)`` of the second.
    log_scale_min_clip, log_scale_max_clip : float
        Bounds of the log scale, which it nears smoothly.

    References
    ----------
    [dinh2017]_
    """

    def __init__(
        self,
        split_dim: int,
        hypernet: Callable[..., Tree],
        log_scale_min_clip: float = -5.0,
        log_scale_max_clip: float = 3.0,
    ) -> None:
        super().__init__()
        self.split_dim, self.nn = split_dim, hypernet
        self.log_scale_min_clip, self.log_scale_max_clip = log_scale_min_clip, log_scale_max_clip

    def _moments(self, first: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.nn(first)
        return mean, soft_clip(raw, self.log_scale_min_clip, self.log_scale_max_clip)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = last_part(x, 0, self.split_dim), last_part(x, self.split_dim)
        mean, log_scale = self._moments(first)
        return cat([first, mean + exp(log_scale) * second], -1), total(log_scale, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._inverse_and_ladj(y)[0]

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = last_part(y, 0, self.split_dim), last_part(y, self.split_dim)
        mean, log_scale = self._moments(first)
        return cat([first, (second - mean) * exp(neg(log_scale))], -1), total(log_scale, -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return total(self._moments(last_part(x, 0, self.split_dim))[1], -1)


class ConditionalAffineCoupling(ConditionalTransformModule):
    """`AffineCoupling` whose network also sees a context.

    Parameters
    ----------
    split_dim : int
    hypernet : ConditionalDenseNN
    **kwargs
        Settings of `AffineCoupling`.
    """

    def __init__(self, split_dim: int, hypernet: Callable[..., Tree], **kwargs: float) -> None:
        super().__init__()
        self.split_dim, self.nn, self.kwargs = split_dim, hypernet, kwargs

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        return AffineCoupling(self.split_dim, InContext(self.nn, context), **self.kwargs)


def affine_coupling(
    input_dim: int,
    hidden_dims: Sequence[int] | None = None,
    split_dim: int | None = None,
    **kwargs: float,
) -> AffineCoupling:
    """Return a new affine coupling layer.

    Parameters
    ----------
    input_dim : int
        At least 2.
    hidden_dims : sequence of int, optional
        Of the network; ``[10 * input_dim]`` if None.
    split_dim : int, optional
        Size of the first part; half if None.
    **kwargs
        Settings of `AffineCoupling`.

    Returns
    -------
    AffineCoupling
    """
    split_dim = split_of("affine_coupling", input_dim, split_dim)
    layers = hidden_sizes(hidden_dims, input_dim, 1)
    rest = input_dim - split_dim
    return AffineCoupling(split_dim, DenseNN(split_dim, layers, [rest, rest]), **kwargs)


def conditional_affine_coupling(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    split_dim: int | None = None,
    **kwargs: float,
) -> ConditionalAffineCoupling:
    """Return a new affine coupling layer with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ``[10 * input_dim]`` if None.
    split_dim : int, optional
        Size of the first part; half if None.
    **kwargs
        Settings of `AffineCoupling`.

    Returns
    -------
    ConditionalAffineCoupling
    """
    split_dim = split_of("conditional_affine_coupling", input_dim, split_dim)
    layers = hidden_sizes(hidden_dims, input_dim, 1)
    rest = input_dim - split_dim
    network = ConditionalDenseNN(split_dim, context_dim, layers, [rest, rest])
    return ConditionalAffineCoupling(split_dim, network, **kwargs)


def permute(input_dim: int, permutation: Tensor | Sequence[int] | None = None) -> PermuteTransform:
    """Return a permutation of vectors.

    Parameters
    ----------
    input_dim : int
    permutation : sequence of int, optional
        Drawn at random if None.

    Returns
    -------
    PermuteTransform
    """
    return PermuteTransform(randperm(input_dim).tolist() if permutation is None else permutation)


explain_calls(globals())
