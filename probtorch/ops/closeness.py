"""Whether tensors are equal, or equal to rounding."""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import abs, where
from probtorch.ops.comparisons import eq, isfinite, isnan, logical_and, logical_or
from probtorch.ops.reduction import all

__all__ = ["allclose", "equal", "isclose"]


def isclose(
    input: TensorLike,
    other: TensorLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> TensorBase:
    """Whether ``|input - other| <= atol + rtol * |other|``, elementwise.

    Equal infinities are close.
    """
    input, other = as_tensor(input, "isclose"), as_tensor(other, "isclose")
    if input.array.dtype.kind == other.array.dtype.kind == "b":
        return eq(input, other)
    both_finite = logical_and(isfinite(input), isfinite(other))
    apart = abs(where(both_finite, input, 0) - where(both_finite, other, 0))
    near = apart <= atol + rtol * abs(other)
    close = logical_or(logical_and(both_finite, near), eq(input, other))
    return logical_or(close, logical_and(isnan(input), isnan(other))) if equal_nan else close


def allclose(
    input: TensorLike,
    other: TensorLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Whether all elements are close, as a Python bool; see `isclose`."""
    return bool(all(isclose(input, other, rtol, atol, equal_nan)))


def equal(input: TensorLike, other: TensorLike) -> bool:
    """Whether two tensors have the same shape and the same elements, as a Python bool."""
    input, other = as_tensor(input, "equal"), as_tensor(other, "equal")
    return input.array.shape == other.array.shape and bool(all(eq(input, other)))
