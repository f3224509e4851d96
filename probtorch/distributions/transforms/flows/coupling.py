"""Affine coupling layers (real NVP): one part of the vector shifts and scales the other.

Both directions take one pass of the network (Dinh, Sohl-Dickstein and Bengio 2017). Between two
layers the parts have to change places: `permute`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributions import constraints
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
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat, split
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
    dim : int, below 0
        The dim that is cut, for images; it and those behind it form one element, which the network
        sees as a vector.

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
        *,
        dim: int = -1,
    ) -> None:
        super().__init__()
        _below_zero("AffineCoupling", dim)
        self.split_dim, self.nn, self.dim = split_dim, hypernet, dim
        self.domain = self.codomain = constraints.independent(constraints.real, -dim)
        self.log_scale_min_clip, self.log_scale_max_clip = log_scale_min_clip, log_scale_max_clip

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.dim == -1:
            return last_part(x, 0, self.split_dim), last_part(x, self.split_dim)
        first, second = split(
            x, [self.split_dim, x.array.shape[self.dim] - self.split_dim], self.dim
        )
        return first, second

    def _moments(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log scale, in the shape of the second part."""
        if self.dim == -1:
            mean, raw = self.nn(first)
        else:
            mean, raw = self.nn(reshape(first, (*first.array.shape[: self.dim], -1)))
            event = second.array.shape[self.dim :]
            mean, raw = (reshape(v, (*v.array.shape[:-1], *event)) for v in (mean, raw))
        return mean, soft_clip(raw, self.log_scale_min_clip, self.log_scale_max_clip)

    def _size(self, log_scale: Tensor) -> Tensor:
        return total(log_scale, tuple(range(self.dim, 0)))

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self._parts(x)
        mean, log_scale = self._moments(first, second)
        return cat([first, mean + exp(log_scale) * second], self.dim), self._size(log_scale)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._inverse_and_ladj(y)[0]

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self._parts(y)
        mean, log_scale = self._moments(first, second)
        back = (second - mean) * exp(neg(log_scale))
        return cat([first, back], self.dim), self._size(log_scale)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._size(self._moments(*self._parts(x))[1])


class ConditionalAffineCoupling(ConditionalTransformModule):
    """`AffineCoupling` whose network also sees a context.

    Parameters
    ----------
    split_dim : int
    hypernet : ConditionalDenseNN
    dim : int, below 0
    **kwargs
        Settings of `AffineCoupling`.
    """

    def __init__(
        self, split_dim: int, hypernet: Callable[..., Tree], *, dim: int = -1, **kwargs: float
    ) -> None:
        super().__init__()
        _below_zero("ConditionalAffineCoupling", dim)
        self.dim = dim
        self.split_dim, self.nn, self.kwargs = split_dim, hypernet, kwargs

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        network = InContext(self.nn, context)
        return AffineCoupling(self.split_dim, network, dim=self.dim, **self.kwargs)


def affine_coupling(
    input_dim: int | Sequence[int],
    hidden_dims: Sequence[int] | None = None,
    split_dim: int | None = None,
    dim: int = -1,
    **kwargs: float,
) -> AffineCoupling:
    """Return a new affine coupling layer.

    Parameters
    ----------
    input_dim : int, or event shape of ``-dim`` sizes
        At least 2 along `dim`.
    hidden_dims : sequence of int, optional
        Of the network; ten times the size of an element if None.
    split_dim : int, optional
        Size of the first part; half if None.
    dim : int, below 0
        The dim that is cut.
    **kwargs
        Settings of `AffineCoupling`.

    Returns
    -------
    AffineCoupling
    """
    split_dim, first, rest = _sizes("affine_coupling", input_dim, split_dim, dim)
    layers = hidden_sizes(hidden_dims, first + rest, 1)
    return AffineCoupling(split_dim, DenseNN(first, layers, [rest, rest]), dim=dim, **kwargs)


def _sizes(
    owner: str, input_dim: int | Sequence[int], split_dim: int | None, dim: int
) -> tuple[int, int, int]:
    """Return where to cut along `dim`, and the numbers of elements of the two parts."""
    shape = event_shape_of(owner, input_dim, dim)
    split_dim = split_of(owner, shape[0], split_dim)
    behind = math.prod(shape[1:])
    return split_dim, split_dim * behind, (shape[0] - split_dim) * behind


def event_shape_of(owner: str, input_dim: int | Sequence[int], dim: int) -> tuple[int, ...]:
    """Return the shape from `dim` on.

    Raises
    ------
    ArgumentError
        If `input_dim` has not that many sizes, or `dim` is not counted from the end.
    """
    _below_zero(owner, dim)
    shape = tuple(input_dim) if isinstance(input_dim, Sequence) else (operator.index(input_dim),)
    if len(shape) != -dim:
        raise ArgumentError(
            owner,
            expected=f"an input_dim of {-dim} sizes, those from dim {dim} on",
            got=repr(input_dim),
            fix="give the event shape as input_dim, or dim=-1",
        )
    return shape


def _below_zero(owner: str, dim: int) -> None:
    if dim >= 0:
        raise ArgumentError(
            owner,
            expected="dim, counted from the end",
            got=repr(dim),
            fix="-1 is the last dim",
        )


def conditional_affine_coupling(
    input_dim: int | Sequence[int],
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    split_dim: int | None = None,
    dim: int = -1,
    **kwargs: float,
) -> ConditionalAffineCoupling:
    """Return a new affine coupling layer with a context.

    Parameters
    ----------
    input_dim : int, or event shape of ``-dim`` sizes
    context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; ten times the size of an element if None.
    split_dim : int, optional
        Size of the first part; half if None.
    dim : int, below 0
        The dim that is cut.
    **kwargs
        Settings of `AffineCoupling`.

    Returns
    -------
    ConditionalAffineCoupling
    """
    split_dim, first, rest = _sizes("conditional_affine_coupling", input_dim, split_dim, dim)
    layers = hidden_sizes(hidden_dims, first + rest, 1)
    network = ConditionalDenseNN(first, context_dim, layers, [rest, rest])
    return ConditionalAffineCoupling(split_dim, network, dim=dim, **kwargs)


def permute(
    input_dim: int | Sequence[int],
    permutation: Tensor | Sequence[int] | None = None,
    dim: int = -1,
) -> PermuteTransform:
    """Return a permutation of vectors, or of slices along another dim.

    Parameters
    ----------
    input_dim : int, or event shape of ``-dim`` sizes
    permutation : sequence of int, optional
        Drawn at random if None.
    dim : int, below 0
        The dim to permute.

    Returns
    -------
    PermuteTransform
    """
    size = event_shape_of("permute", input_dim, dim)[0]
    return PermuteTransform(randperm(size).tolist() if permutation is None else permutation, dim)


explain_calls(globals())
