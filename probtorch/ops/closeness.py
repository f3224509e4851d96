"""Whether tensors are equal, or equal to rounding."""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isfinite, isnan, logical_and, logical_or
from probtorch.ops.reduction import abs_, all

__all__ = ["allclose", "equal", "isclose"]


def isclose(
    x: TensorLike, y: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> TensorBase:
    """Whether ``|x - y| <= atol + rtol * |y|``, elementwise; equal infinities are close."""
    x, y = as_tensor(x, "isclose"), as_tensor(y, "isclose")
    if x.array.dtype.kind == y.array.dtype.kind == "b":
        return eq(x, y)
    both_finite = logical_and(isfinite(x), isfinite(y))
    near = abs_(where(both_finite, x, 0) - where(both_finite, y, 0)) <= atol + rtol * abs_(y)
    close = logical_or(logical_and(both_finite, near), eq(x, y))
    return logical_or(close, logical_and(isnan(x), isnan(y))) if equal_nan else close


def allclose(
    x: TensorLike, y: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, as a Python bool; see `isclose`."""
    return bool(all(isclose(x, y, rtol, atol, equal_nan)))


def equal(x: TensorLike, y: TensorLike) -> bool:
    """Whether two tensors have the same shape and the same elements, as a Python bool."""
    x, y = as_tensor(x, "equal"), as_tensor(y, "equal")
    return x.array.shape == y.array.shape and bool(all(eq(x, y)))
