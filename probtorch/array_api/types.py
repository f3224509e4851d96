"""Dtypes of the array API, conversions, and what a library may ask about both."""

from __future__ import annotations

import builtins

import numpy as np

from probtorch.backends.registry import is_available
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, DTypeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import clone
from probtorch.ops.transfer import to

__all__ = [
    "__array_namespace_info__",
    "astype",
    "bool",
    "can_cast",
    "finfo",
    "float32",
    "float64",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "result_type",
    "uint8",
]

bool = dtypes.bool_
int8, int16, int32, int64 = dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64
uint8, float32, float64 = dtypes.uint8, dtypes.float32, dtypes.float64

_KINDS = {
    "bool": (bool,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8,),
    "integral": (int8, int16, int32, int64, uint8),
    "real floating": (float32, float64),
    "complex floating": (),
    "numeric": (int8, int16, int32, int64, uint8, float32, float64),
}


def astype(
    x: TensorBase, dtype: DTypeLike, /, *, copy: builtins.bool = True, device: str | None = None
) -> TensorBase:
    """Return `x` in another dtype; with ``copy=False`` itself, if it has that one."""
    wanted = dtypes.as_dtype(dtype)
    found = clone(x) if copy and x.array.dtype == wanted else cast(x, wanted)
    return found if device is None else to(found, device=device)


def can_cast(from_: DTypeLike | TensorBase, to: DTypeLike, /) -> builtins.bool:
    """Whether every value of one dtype, or of a tensor's, is one of the other."""
    found = from_.array.dtype if isinstance(from_, TensorBase) else dtypes.as_dtype(from_)
    return np.can_cast(found, dtypes.as_dtype(to))


def finfo(type: DTypeLike | TensorBase, /) -> np.finfo:
    """Return limits of a floating dtype, or of a tensor's."""
    return np.finfo(type.array.dtype if isinstance(type, TensorBase) else dtypes.as_dtype(type))


def iinfo(type: DTypeLike | TensorBase, /) -> np.iinfo:
    """Return limits of an integer dtype, or of a tensor's."""
    return np.iinfo(type.array.dtype if isinstance(type, TensorBase) else dtypes.as_dtype(type))


def isdtype(dtype: DTypeLike, kind: DTypeLike | str | tuple[DTypeLike | str, ...]) -> builtins.bool:
    """Whether a dtype is of a kind: another dtype, a name such as "real floating", or several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ArgumentError(
                "isdtype",
                expected=f"a dtype, or one of {', '.join(_KINDS)}",
                got=repr(kind),
                fix='write isdtype(x.dtype, "real floating")',
            )
        return dtypes.as_dtype(dtype) in _KINDS[kind]
    return dtypes.as_dtype(dtype) == dtypes.as_dtype(kind)


def result_type(*arrays_and_dtypes: TensorLike | DType) -> DType:
    """Return the dtype of the sum of what is given: tensors, dtypes and Python numbers."""
    if not arrays_and_dtypes:
        raise ArgumentError(
            "result_type", expected="at least one tensor or dtype", got="none", fix="give one"
        )
    typed = [x for x in arrays_and_dtypes if not isinstance(x, (int, float, complex))]
    found: DType | None = None
    for x in typed:
        kind = x if isinstance(x, np.dtype) else as_tensor(x).array.dtype
        found = kind if found is None else dtypes.promote_types(found, kind)
    for number in arrays_and_dtypes:
        if isinstance(number, float) and (found is None or found.kind != "f"):
            found = dtypes.get_default_dtype()
        elif isinstance(number, int) and found is None:
            found = bool if number is True or number is False else int64
    assert found is not None
    return found


class _Info:
    """What the standard's `__array_namespace_info__` answers."""

    def capabilities(self) -> dict[str, object]:
        """What of the optional parts there is."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Where new tensors are."""
        return "cpu"

    def devices(self) -> list[str]:
        """Where tensors can be."""
        return ["cpu", *(["cuda"] if is_available("cuda") else [])]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python's numbers."""
        return {
            "real floating": dtypes.get_default_dtype(),
            "integral": int64,
            "indexing": int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """All dtypes by name, or those of a kind."""
        every = _KINDS["bool"] + _KINDS["numeric"]
        wanted = [d for d in every if kind is None or isdtype(d, kind)]
        return {d.name: d for d in wanted}


def __array_namespace_info__() -> _Info:
    """Return what is asked about devices, dtypes and capabilities."""
    return _Info()
