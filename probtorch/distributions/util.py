"""Helpers of `pyro.distributions.util`, beside those of PyTorch in `utils.py`."""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.utils import (
    broadcast_all,
    clamp_probs,
    lazy_property,
    logits_to_probs,
    probs_to_logits,
)
from probtorch.distributions.validation import (
    enable_validation,
    is_validation_enabled,
    validation_enabled,
)
from probtorch.errors import ShapeError
from probtorch.factories import eye, zeros_like
from probtorch.ops.arithmetic import where
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "broadcast_all",
    "broadcast_shape",
    "clamp_probs",
    "enable_validation",
    "eye_like",
    "is_identically_one",
    "is_identically_zero",
    "is_validation_enabled",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
    "scalar_like",
    "scale_and_mask",
    "sum_leftmost",
    "sum_rightmost",
    "validation_enabled",
]


def broadcast_shape(*shapes: Sequence[int], strict: bool = False) -> tuple[int, ...]:
    """Return the shape that some shapes broadcast to.

    Parameters
    ----------
    *shapes : tuple of int
    strict : bool
        Dims of size 1 count as sizes, too: dims are added in front, and none is resized.
    """
    ends = [shape[-n:] for shape in shapes for n in [min(map(len, shapes))] if n]
    longest = max(shapes, key=len, default=())
    if strict and any(tuple(s) != tuple(longest[len(longest) - len(s) :]) for s in shapes):
        raise ShapeError(
            "broadcast_shape(strict=True)",
            expected="shapes that end alike",
            got=" and ".join(str(tuple(end)) for end in ends),
            fix="expand the dims of size 1 first",
        )
    return tuple(broadcast_shapes(*map(tuple, shapes), op="broadcast_shape"))


def sum_rightmost(value: Tensor | float, dim: float) -> Tensor | float:
    """Sum out the last `dim` dims, all of them if it is infinite; a negative one leaves -dim."""
    return _summed(value, dim, last=True)


def sum_leftmost(value: Tensor | float, dim: float) -> Tensor | float:
    """Sum out the first `dim` dims, all of them if it is infinite; a negative one leaves -dim."""
    return _summed(value, dim, last=False)


def _summed(value: Tensor | float, dim: float, last: bool) -> Tensor | float:
    if not isinstance(value, TensorBase):
        return value
    n = int(min(dim + value.array.ndim if dim < 0 else dim, value.array.ndim))
    if not n:
        return value
    return total(value, tuple(range(-n, 0) if last else range(n)))


def is_identically_zero(x: object) -> bool:
    """Whether something is the number 0, or an integer tensor without dims that is 0."""
    return _is_number(x, 0)


def is_identically_one(x: object) -> bool:
    """Whether something is the number 1, or an integer tensor without dims that is 1."""
    return _is_number(x, 1)


def _is_number(x: object, number: int) -> bool:
    if isinstance(x, TensorBase):
        return x.array.ndim == 0 and x.array.dtype.kind == "i" and bool(x.array == number)
    return isinstance(x, (int, float, complex)) and x == number


def scale_and_mask(
    tensor: Tensor | float, scale: Tensor | float = 1.0, mask: Tensor | bool | None = None
) -> Tensor | float:
    """Multiply by a scale, and put 0 where a mask is False.

    Parameters
    ----------
    tensor : Tensor, or the number 0
    scale : Tensor or number
    mask : Tensor of bool, or bool, optional
    """
    if not isinstance(tensor, TensorBase) and is_identically_zero(tensor):
        return tensor
    scaled = as_tensor(tensor, "scale_and_mask")
    if not is_identically_one(scale):
        scaled = scaled * scale
    if mask is None or mask is True:
        return scaled
    return zeros_like(scaled) if mask is False else where(mask, scaled, 0.0)


def scalar_like(prototype: Tensor, fill_value: float) -> Tensor:
    """Return a number as a tensor of the dtype and on the device of another."""
    return prototype.new_tensor(fill_value)


def eye_like(value: Tensor, m: int, n: int | None = None) -> Tensor:
    """Return an identity matrix, m by n, of the dtype and on the device of another tensor."""
    return eye(m, m if n is None else n, dtype=value.dtype, device=value.device)
