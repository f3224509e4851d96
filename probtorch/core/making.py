"""Tensors of what is none yet: numbers, arrays, and what converts itself to one.

Memory is shared where it can be; `probtorch.tensor.tensor`, which users call, copies. Sequences are
the business of probtorch/nesting.py, since tensors among them have to be stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import apply, around, wrap
from probtorch.core.op import REGISTRY
from probtorch.core.refusals import no_numbers, too_large
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import entered, is_number, number_alone
from probtorch.core.typed import DType
from probtorch.errors import DTypeError

__all__ = ["array_from", "as_tensor"]

# probtorch/nesting.py fills the door: from a sequence, a dtype and the name of an op to a tensor.
_nesting = cast("Callable[[Sequence[object], DType | None, str], TensorBase]", None)


def as_tensor(value: Any, op: str = "tensor", to: DType | None = None) -> TensorBase:
    """Return `value` as a tensor.

    Tensors come back as they are, arrays without a copy, Python numbers in their default dtype:
    floats that are to be written to other floats in the dtype of these, `to`, which may have more
    digits.
    """
    if isinstance(value, TensorBase):
        if value._extra is None or not is_number(value):
            return value
        dtype = to if to is not None and to.kind == "f" else dtypes.default_dtype()
        # By its name, as the op is made later.
        return apply(REGISTRY["cast"], (number_alone(value),), {"dtype": dtype})
    kind = type(value)
    if kind is float or kind is complex:
        dtype = dtypes.as_dtype(kind)
        t = wrap(np.array(value, to if to is not None and to.kind == dtype.kind else dtype))
        entered(value, t)
        return t
    if kind is bool or kind is int:
        array = np.array(value)
        if array.dtype.kind == "O":
            raise too_large(op, value)
        return wrap(array)
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__cuda_array_interface__"):
        array = value if not isinstance(value, np.generic) else np.asarray(value)
        if _has_tensors(array):
            return _nesting(array.tolist(), None, op)
        if array.dtype.kind not in "biufc":
            raise no_numbers(op, array, array)
        # A number of NumPy's never changes, as an array may.
        t = wrap(array) if array is not value else around(array)
        entered(value, t)
        return t
    if isinstance(value, (list, tuple)):
        return _nesting(value, None, op)
    if hasattr(value, "__array__"):
        array = array_from(value)
        if array.dtype.kind not in "biufc" and not _has_tensors(array):
            raise no_numbers(op, array, value)  # here, since the array has no categories
        return as_tensor(array, op)
    if issubclass(kind, int):  # a member of an IntEnum
        return as_tensor(int.__int__(value), op, to)
    if issubclass(kind, float):
        return as_tensor(float.__float__(value), op, to)
    sparse = type(value).__module__.startswith("scipy.sparse")
    raise DTypeError(
        op,
        expected="a tensor, array or number",
        got=f"{type(value).__name__} {value!r:.60}".partition("\n")[0],
        fix="a sparse matrix multiplies tensors by X @ b; X.toarray() is a dense one"
        if sparse
        else "wrap it in probtorch.tensor",
    )


def _has_tensors(array: np.ndarray) -> bool:
    return array.dtype.kind == "O" and any(isinstance(x, TensorBase) for x in array.flat)


class _Table(Protocol):
    """What is asked of a data frame or of a column."""

    def to_numpy(self, dtype: type, *, na_value: float) -> np.ndarray: ...


def array_from(value: object) -> np.ndarray:
    """Return the array that an object makes of itself; of a table whose columns are numbers or
    truths, or of one such column, one of floats, nan for what is missing, where pandas makes one
    of objects.
    """
    array = np.asarray(value)
    if array.dtype.kind == "O" and hasattr(value, "to_numpy"):
        columns = getattr(getattr(value, "dtypes", None), "items", None)
        dtypes_ = [d for _, d in columns()] if columns else [getattr(value, "dtype", None)]
        if all(getattr(dtype, "kind", "O") in "biuf" for dtype in dtypes_):
            return cast(_Table, value).to_numpy(np.float64, na_value=np.nan)
    return array
