"""What declarations of special functions share: operands, warnings, references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.told import is_number, number_alone
from probtorch.ops.scalar import numpy_algebra

if TYPE_CHECKING:
    from collections.abc import Callable

    from probtorch.core.tensor_base import TensorBase


__all__ = ["quiet", "scipy_value", "tensor_like"]


def tensor_like(x: TensorBase | float, like: TensorBase) -> TensorBase:
    """Return `x`; a Python number as a 0-d tensor of the dtype and device of `like`."""
    if is_number(x):
        return cast(number_alone(x), like.array.dtype)
    if not isinstance(x, (int, float)):
        return x
    return as_tensor(array_module(like.array).asarray(x, dtype=like.array.dtype))


def quiet(formula: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Run a formula on arrays; of its choices both sides are computed, the unused one may warn."""

    def eager(*operands: np.ndarray | float) -> np.ndarray:
        like = next(x for x in operands if not isinstance(x, (int, float)))
        xp = array_module(like)
        with np.errstate(all="ignore"):
            # A choice between two Python numbers would forget the dtype.
            return formula(numpy_algebra, *(xp.asarray(x, dtype=like.dtype) for x in operands))

    return eager


def scipy_value(name: str, *arrays: np.ndarray | float) -> np.ndarray:
    """Value of a SciPy special function, for the references."""
    import scipy.special

    return getattr(scipy.special, name)(*arrays)
