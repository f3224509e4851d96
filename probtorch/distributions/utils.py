"""Helpers of `torch.distributions.utils`, for distributions written for PyTorch.

Unlike PyTorch's they clamp nothing: the log odds of a probability of 0 are minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, Self, TypeVar, overload

from probtorch.core.casting import to_float
from probtorch.core.dtype import finfo
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import DTypeLike, SizeLike, TensorLike
from probtorch.ops.arithmetic import clamp
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import log, sigmoid
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.ops.sampling import randn
from probtorch.ops.special import logit
from probtorch.tensor import Tensor

__all__ = [
    "broadcast_all",
    "clamp_probs",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
]

T = TypeVar("T")
V = TypeVar("V")


def broadcast_all(*values: TensorLike) -> tuple[Tensor, ...]:
    """Return tensors, arrays and numbers as float tensors of one shape.

    Parameters
    ----------
    *values : Tensor, array or number
    """
    tensors = [to_float(as_tensor(v, "broadcast_all")) for v in values]
    shape = broadcast_shapes(*(t.array.shape for t in tensors), op="broadcast_all")
    return tuple(t if t.array.shape == shape else expand(t, shape) for t in tensors)


def _standard_normal(shape: SizeLike, dtype: DTypeLike, device: str) -> Tensor:
    """Return standard normal draws, by the name that samplers written for PyTorch call."""
    return randn(shape, dtype=dtype, device=device)


def _sum_rightmost(value: Tensor, dim: int) -> Tensor:
    """Sum the last `dim` dims, by the name that densities written for PyTorch call."""
    return total(value, tuple(range(-dim, 0))) if dim else value


def clamp_probs(probs: Tensor) -> Tensor:
    """Return probabilities moved into [eps, 1 - eps] of their dtype.

    Parameters
    ----------
    probs : Tensor
    """
    eps = float(finfo(probs.array.dtype).eps)
    return clamp(probs, eps, 1.0 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Return probabilities: a sigmoid of log odds, or a softmax along the last dim.

    Parameters
    ----------
    logits : Tensor
    is_binary : bool
        Whether they are log odds of single events.
    """
    return sigmoid(logits) if is_binary else softmax(logits, -1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Return log odds of probabilities, or their logarithms.

    Parameters
    ----------
    probs : Tensor
    is_binary : bool
        Whether they are of single events.
    """
    if is_binary:
        return logit(probs)
    return log(probs)


class lazy_property(Generic[T, V]):
    """A property that is computed once: the value becomes an attribute of the instance.

    Parameters
    ----------
    wrapped : callable
        From the instance to the value.
    """

    def __init__(self, wrapped: Callable[[T], V]) -> None:
        self.wrapped = wrapped
        update_wrapper(self, wrapped)  # type: ignore[arg-type]  # not called itself

    @overload
    def __get__(self, instance: None, owner: object = None) -> Self: ...
    @overload
    def __get__(self, instance: T, owner: object = None) -> V: ...
    def __get__(self, instance: T | None, owner: object = None) -> V | Self:
        if instance is None:
            return self
        value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


explain_calls(globals())
