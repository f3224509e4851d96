"""What a tensor or a dtype is: `is_tensor`, `numel`, `result_type` and kin, as in PyTorch."""

from __future__ import annotations

from typing import TypeGuard

from probtorch.autograd import values
from probtorch.core.dtype import as_dtype, promote
from probtorch.core.making import as_tensor
from probtorch.core.shape import Size
from probtorch.core.shape import broadcast_shapes as common_shape
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, DTypeLike, SizeLike, TensorLike
from probtorch.tensor import Tensor

__all__ = [
    "broadcast_shapes",
    "can_cast",
    "is_complex",
    "is_floating_point",
    "is_nonzero",
    "is_same_size",
    "is_signed",
    "is_tensor",
    "numel",
    "result_type",
    "typename",
]


def broadcast_shapes(*shapes: SizeLike) -> Size:
    """Return the shape that some shapes broadcast to.

    Parameters
    ----------
    *shapes : tuple of int, or int
        A number is a shape of one dim.
    """
    given = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
    return Size(common_shape(*given))


def is_tensor(obj: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor."""
    return issubclass(type(obj), Tensor)  # not by `isinstance`, which asks proxies


def is_floating_point(input: TensorLike) -> bool:
    """Return whether the elements are floating-point numbers."""
    return as_tensor(input, "is_floating_point").array.dtype.kind == "f"


def is_complex(input: TensorLike) -> bool:
    """Return whether the elements are complex numbers."""
    return as_tensor(input, "is_complex").array.dtype.kind == "c"


def is_signed(x: TensorLike) -> bool:
    """Return whether the dtype has negative numbers."""
    return as_tensor(x, "is_signed").array.dtype.kind in "ifc"


def is_same_size(x: TensorLike, other: TensorLike) -> bool:
    """Return whether two tensors have one shape."""
    return as_tensor(x, "is_same_size").array.shape == as_tensor(other, "is_same_size").array.shape


def is_nonzero(input: TensorLike) -> bool:
    """Return whether the one element is not 0.

    Raises
    ------
    ShapeError
        If there is not exactly one.
    """
    return values.is_nonzero(as_tensor(input, "is_nonzero"))


def numel(input: TensorLike) -> int:
    """Return the number of elements."""
    return as_tensor(input, "numel").array.size


def result_type(tensor1: TensorLike, tensor2: TensorLike) -> DType:
    """Return the dtype that an operation of the two would have."""
    operands = (t.array if isinstance(t, TensorBase) else t for t in (tensor1, tensor2))
    return promote(list(operands))


def can_cast(from_: DTypeLike, to: DTypeLike) -> bool:
    """Return whether a conversion keeps the kind of number: not floats to integers."""
    rank = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    a, b = as_dtype(from_), as_dtype(to)
    return rank[a.kind] <= rank[b.kind]


def typename(obj: object) -> str:
    """Return the name of a value's type with its module, of a tensor by its dtype."""
    if isinstance(obj, TensorBase):
        name: str = obj.type()
        return name
    kind = type(obj)
    room = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return room + kind.__qualname__


explain_calls(globals())
