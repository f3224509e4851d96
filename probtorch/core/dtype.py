"""Dtypes are NumPy's; the promotion rules are PyTorch's.

`promote` is the whole rule: categories (bool < integer < float < complex) decide first; among
operands of one category, tensors with dimensions beat 0-d tensors, which beat Python numbers. See
docs/internals/decisions/core.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from probtorch.core.typed import DType, DTypeLike
from probtorch.errors import DomainError, DTypeError

__all__ = [
    "as_dtype",
    "bool_",
    "category",
    "check_fits",
    "class_name",
    "complex64",
    "complex128",
    "default_complex",
    "default_dtype",
    "default_dtype_as",
    "dtype",
    "finfo",
    "float16",
    "float32",
    "float64",
    "get_default_dtype",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "promote",
    "promote_types",
    "set_default_dtype",
    "shared",
    "uint8",
]

bool_ = np.dtype(np.bool_)
uint8 = np.dtype(np.uint8)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
complex64 = np.dtype(np.complex64)
complex128 = np.dtype(np.complex128)
dtype = np.dtype  # the type of all of them
iinfo = np.iinfo

_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
_default = float32


class _Rules(threading.local):
    """What `default_dtype_as` changed in this thread: inference runs beside other threads' work.

    `default` is None outside its blocks. `scalar_rank` is where 0-d tensors stand in promotion:
    below tensors with dims (1), or among them (0).
    """

    def __init__(self) -> None:
        self.default: np.dtype | None = None
        self.scalar_rank = 1


_RULES = _Rules()


def get_default_dtype() -> DType:
    """Return the dtype of new tensors made from Python floats (float32 unless changed)."""
    return _RULES.default or _default


def finfo(type: DTypeLike | None = None) -> np.finfo[np.floating]:
    """Return the limits of a floating dtype, by default of the default one."""
    dtype = get_default_dtype() if type is None else as_dtype(type)
    if dtype.kind != "f":
        raise DTypeError(
            "finfo", expected="a floating dtype", got=str(dtype), fix="iinfo tells of integers"
        )
    return np.finfo(dtype)


def set_default_dtype(dtype: DTypeLike) -> None:
    """Set the dtype of new floating tensors made from Python numbers, as in PyTorch.

    It holds for all threads; inside a `default_dtype_as` block for this one, until the block ends.

    Raises
    ------
    DTypeError
        If `dtype` is not a floating dtype.
    """
    global _default
    dtype = _floating(dtype)
    if _RULES.default is None:
        _default = dtype
    else:
        _RULES.default = dtype


def _floating(dtype: DTypeLike | None) -> DType:
    dtype = as_dtype(dtype)
    if dtype.kind != "f":
        raise DTypeError(
            "set_default_dtype",
            expected="a floating dtype",
            got=str(dtype),
            fix="use probtorch.float32 or float64",
        )
    return dtype


class default_dtype_as:
    """Context manager that changes the default dtype of this thread inside its block.

    Parameters
    ----------
    dtype : floating dtype
    strong_scalars : bool
        Whether 0-d tensors count like those with dims in promotion. Inference wants this: a float64
        scalar parameter times float32 data is float64 there.
    """

    def __init__(self, dtype: DTypeLike, *, strong_scalars: bool = False) -> None:
        self.dtype = dtype
        self.strong_scalars = strong_scalars

    def __enter__(self) -> None:
        dtype = _floating(self.dtype)
        self.before = _RULES.default, _RULES.scalar_rank
        _RULES.default, _RULES.scalar_rank = dtype, 0 if self.strong_scalars else 1

    def __exit__(self, *exc: object) -> None:
        _RULES.default, _RULES.scalar_rank = self.before


def rules_of_thread() -> tuple[DType | None, int]:
    """Return what `default_dtype_as` changed in this thread, for `set_rules_of_thread`."""
    return _RULES.default, _RULES.scalar_rank


def set_rules_of_thread(rules: tuple[DType | None, int]) -> None:
    """Let this thread have the rules of another one, which works for it."""
    _RULES.default, _RULES.scalar_rank = rules


def promotion_rules() -> tuple[DType, int]:
    """Return what promotion depends on: the default dtype, and where 0-d tensors stand."""
    return default_dtype(), _RULES.scalar_rank


def default_dtype() -> DType:
    """Alias of `get_default_dtype` for internal use."""
    return _RULES.default or _default


def default_complex() -> DType:
    """Return the complex dtype whose parts have the default dtype: Python's complex numbers'."""
    return complex128 if default_dtype() == float64 else complex64


# What Python's numbers are as tensors.
_PYTHON = {bool: lambda: bool_, int: lambda: int64, float: default_dtype, complex: default_complex}

# Classes that PyTorch once had for each dtype, whose names are still written.
_CLASSES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "LongTensor": "int64",
    "IntTensor": "int32",
    "ShortTensor": "int16",
    "CharTensor": "int8",
    "ByteTensor": "uint8",
    "BoolTensor": "bool",
    "ComplexFloatTensor": "complex64",
    "ComplexDoubleTensor": "complex128",
}


def class_name(dtype: DType) -> str:
    """Return the name of the class that PyTorch had for tensors of `dtype`."""
    return next((name for name, of in _CLASSES.items() if of == dtype.name), f"{dtype.name}Tensor")


def shared(array: np.ndarray) -> np.ndarray:
    """Return an array with the one object that stands for its dtype: pickled arrays bring others,
    and who asks for the same dtype asks for the same object.
    """
    if type(array) is np.ndarray:
        usual = np.dtype(array.dtype.str)
        if array.dtype is not usual and array.dtype == usual:
            return array.view(usual)
    return array


def as_dtype(dtype: DTypeLike | None) -> DType:
    """Return the NumPy dtype meant by `dtype`: a dtype, a scalar type, a Python type or a name."""
    if dtype is float or dtype is complex:
        return _PYTHON[dtype]()
    if isinstance(dtype, str):
        dtype = dtype.removeprefix("torch.").removeprefix("probtorch.")
        dtype = {
            "float": "float32",
            "double": "float64",
            "long": "int64",
            "int": "int32",
            "half": "float16",
            "cfloat": "complex64",
            "cdouble": "complex128",
            **_CLASSES,
        }.get(dtype, dtype)
    try:
        out = np.dtype(dtype)
    except TypeError:
        out = None
    if out is None or out.kind not in _CATEGORY:
        raise DTypeError(
            "dtype",
            expected="a numeric dtype such as probtorch.float32",
            got=repr(dtype),
            fix="pass one of those",
        )
    return out


def category(dtype: DType) -> int:
    """Return where `dtype` stands among boolean (0), integer (1), floating (2) and complex (3)."""
    return _CATEGORY[dtype.kind]


def promote_types(type1: DType, type2: DType) -> DType:
    """Return the common dtype of two; integers never widen a float or complex, as in PyTorch."""
    ca, cb = _CATEGORY[type1.kind], _CATEGORY[type2.kind]
    if ca == cb or min(ca, cb) == 0:
        return np.promote_types(type1, type2)
    if min(ca, cb) == 1:
        return type1 if ca > cb else type2
    return np.promote_types(type1, type2)


def promote(operands: Iterable[Any]) -> Any:
    """Return the result dtype of operands: Python numbers, and what has a dtype and ndim."""
    ranks: list[np.dtype | None] = [None, None, None]  # with dims, 0-d, Python numbers
    for x in operands:
        dtype = getattr(x, "dtype", None)
        if dtype is None:
            rank, dtype = 2, _PYTHON[type(x)]()
        else:
            rank = 0 if x.ndim else _RULES.scalar_rank
        before = ranks[rank]
        ranks[rank] = dtype if before is None else promote_types(before, dtype)
    out = None
    for dtype in ranks:
        if dtype is None:
            continue
        if out is None:
            out = dtype
        elif _CATEGORY[dtype.kind] > _CATEGORY[out.kind]:
            out = promote_types(out, dtype)
    return out


def check_fits(op: str, value: object, dtype: DType) -> None:
    """Raise unless a number can be an element of a dtype; floats are cut to integers."""
    if np.dtype(dtype).kind not in "iu":
        return
    info = np.iinfo(dtype)
    if isinstance(value, (int, float)) and not info.min <= value <= info.max:
        raise DomainError(
            op,
            expected=f"a number from {info.min} to {info.max}, which {np.dtype(dtype)} can hold",
            got=repr(value),
            fix="choose another dtype",
        )
