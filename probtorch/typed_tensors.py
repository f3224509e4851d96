"""PyTorch's older names for tensors of a dtype: ``FloatTensor(2, 3)``, ``x.type(LongTensor)``.

None is a class of its own: calling one makes a `Tensor`, and each tensor of the dtype is an
instance of it.
"""

from __future__ import annotations

from probtorch.core import dtype as dtypes
from probtorch.core.dtype import DType
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.tensor import Tensor

__all__ = [
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]


class _OfDtype(type):
    dtype: DType

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TensorBase) and instance.array.dtype == cls.dtype

    @explained("a tensor of a dtype")
    def __call__(cls, *data: TensorLike) -> Tensor:
        return Tensor(*data, dtype=cls.dtype)


class FloatTensor(metaclass=_OfDtype):
    """A tensor of float32: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.float32


class DoubleTensor(metaclass=_OfDtype):
    """A tensor of float64: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.float64


class HalfTensor(metaclass=_OfDtype):
    """A tensor of float16: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.float16


class LongTensor(metaclass=_OfDtype):
    """A tensor of int64: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.int64


class IntTensor(metaclass=_OfDtype):
    """A tensor of int32: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.int32


class ShortTensor(metaclass=_OfDtype):
    """A tensor of int16: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.int16


class CharTensor(metaclass=_OfDtype):
    """A tensor of int8: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.int8


class ByteTensor(metaclass=_OfDtype):
    """A tensor of uint8: of these numbers, or uninitialised of these sizes."""

    dtype = dtypes.uint8


class BoolTensor(metaclass=_OfDtype):
    """A tensor of booleans: of these, or uninitialised of these sizes."""

    dtype = dtypes.bool_
