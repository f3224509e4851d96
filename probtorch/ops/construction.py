"""Copies of what `tensor` is given: tensors, arrays, numbers, what converts itself to an array.

`tensor` itself stands in probtorch/tensor.py, nested sequences in probtorch/nesting.py, tensors of
sizes (`zeros`, `arange` ...) in probtorch/factories.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, cast_array
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.making import array_from
from probtorch.core.refusals import no_numbers, refuse_masked
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import alias
from probtorch.core.typed import DType
from probtorch.ops import arithmetic

__all__ = ["array_of", "copied", "tensors_in"]


def copied(data: TensorBase, dtype: DType | None, leaf: bool) -> TensorBase:
    """A copy of a tensor: on the tape, unless it is to be a leaf of its own."""
    if data.requires_grad and grad_enabled() and not leaf:
        return arithmetic.clone(data) if dtype is None else cast(arithmetic.clone(data), dtype)
    array = data.array.copy()
    t = wrap(array if dtype is None else array.astype(dtype))
    if recorder() is not None:
        alias(cast(data.detach(), t.array.dtype), t, taped=False)
    return t


def tensors_in(data: object) -> TensorBase | None:
    """The nested lists of an array or a Series of objects, if there are tensors among them."""
    if getattr(getattr(data, "dtype", None), "kind", "") != "O":
        return None
    data = np.asarray(data)
    return data.tolist() if any(isinstance(x, TensorBase) for x in data.flat) else None


def array_of(data: Any, dtype: DType | None) -> np.ndarray:
    """A new array of an array, a number or what converts itself to one."""
    if isinstance(data, (np.ndarray, np.generic)):
        refuse_masked(data)
        array = np.array(data)
    elif hasattr(data, "__cuda_array_interface__"):
        array = data.copy()
    else:
        # In two steps, since not everybody's `__array__` takes NumPy's wish for a copy.
        array = np.array(array_from(data))
        if dtype is None and array.dtype.kind in "fc" and not hasattr(data, "__array__"):
            array = array.astype(dtypes.as_dtype(float if array.dtype.kind == "f" else complex))
    if array.dtype.kind not in "biufc":
        raise no_numbers("tensor", array, data)
    return array if dtype is None else cast_array(array, dtype)
