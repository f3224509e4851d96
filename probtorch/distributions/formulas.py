"""What formulas of densities are made with: sums over event dims, masks, facts about values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder
from probtorch.core.told import is_constant
from probtorch.core.typed import DType, SizeLike, TensorLike
from probtorch.ops.arithmetic import minimum
from probtorch.ops.demands import distinct
from probtorch.ops.movement import expand, reshape
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    *(
        "at_most",
        "finite",
        "grown",
        "known_small",
        "known_true",
        "sum_rightmost",
        "with_event_dims",
    ),
]


def sum_rightmost(x: Tensor, n: int) -> Tensor:
    """Sum the last `n` dims of `x`."""
    return total(x, tuple(range(-n, 0))) if n else x


def at_most(x: Tensor, dtype: DType, given: TensorLike | None = None) -> Tensor:
    """Return floats no wider than a dtype and a tensor or array given, both of which count.

    Parameters that are Python's numbers are kept in double, and two 0-d tensors promote each other.
    """
    if x.array.dtype.kind != "f" or dtype.kind != "f":
        return x
    other = getattr(given, "dtype", None)
    if other is not None and other.kind == "f" and other.itemsize > dtype.itemsize:
        dtype = other
    return cast(x, dtype) if x.array.dtype.itemsize > dtype.itemsize else x


def grown(x: Tensor, shape: SizeLike) -> Tensor:
    """Return `x` expanded to a shape, itself where it has it."""
    return x if x.array.shape == shape else expand(x, shape)


def with_event_dims(mask: Tensor, n: int) -> Tensor:
    """Append `n` dims of size 1 to a mask over batch dims, to meet values with event dims."""
    return reshape(mask, (*mask.array.shape, *(1,) * n)) if n else mask


def finite(rate: Tensor, *beside: Tensor) -> Tensor:
    """A positive parameter, the largest float for an infinite one.

    Where its logarithm meets a term that is infinite then, so that the density is 0 and not nan.
    A number in double precision may be infinite in that of the tensors `beside` it.
    """
    dtype = min((x.array.dtype for x in (rate, *beside)), key=lambda dtype: dtype.itemsize)
    return minimum(rate, float(dtypes.finfo(dtype).max))


# Up to here a plain form (logarithms times numbers, less lgammas) loses at most 1e-12 of a log
# density, in float32 3e-6.
_SMALL = {8: 500.0, 4: 16.0}


def known_small(*values: Tensor, beside: Sequence[Tensor] = ()) -> bool:
    """Whether `values` are such that plain forms of densities are exact, and stay so.

    `beside` are the other operands, of any size. In a recording only constants stay what they are.
    None is below 0: those are no parameters, and the general forms say what they are. What is
    differentiated is above 0, where some plain forms have no slope.
    """
    active = recorder()
    if active is not None and not all(map(active.is_constant, values)):
        return False
    size = min(x.array.dtype.itemsize for x in (*values, *beside))
    return size in _SMALL and all(_is_small(x, _SMALL[size]) for x in values)


def _is_small(x: Tensor, most: float) -> bool:
    """Whether all elements are, which nan is not; a device is not waited for."""
    a, positive = x.array, x.requires_grad
    if not isinstance(a, np.ndarray) or not a.size:
        return False
    if a.ndim == 0:
        value = a.item()
        return bool(0.0 <= value <= most) and not (positive and value == 0.0)
    a = distinct(a)
    least = a.min()
    return bool(a.max() <= most) and bool(least > 0.0 if positive else least >= 0.0)


def known_true(mask: Tensor) -> bool:
    """Whether `mask` is True everywhere, now and (a constant of the recording) on replay."""
    return is_constant(mask) and bool(mask.array.all())
