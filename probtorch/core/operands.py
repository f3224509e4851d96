"""Operands that the doors of elementwise ops do not take as they are.

The doors in dispatch.py run what is most frequent: tensors of one dtype, and Python numbers beside
floats. All else comes here: mixed dtypes and devices, arrays, booleans, and results that are
written into ``out``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast as typed

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import finish, wrap
from probtorch.core.in_place import assign
from probtorch.core.making import as_tensor
from probtorch.core.op import Op, Operand
from probtorch.core.outputs import resized
from probtorch.core.reflected import by_right_operand
from probtorch.core.refusals import complex_refused, mixed_devices, not_taken, too_large
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number, number_alone
from probtorch.core.typed import DType
from probtorch.errors import DomainError, DTypeError

__all__ = ["general", "of_one_dtype", "prepared", "written"]

_ndarray = np.ndarray
_PYTHON_NUMBERS = (bool, int, float, complex)
# Products and quotients of halves and a number that is none, such as 1e6, are computed in single,
# as in PyTorch; other operations round the number first.
_ROUNDED_ONCE = frozenset(("div", "mul"))


def _operand(x: Operand, op: Op) -> Operand:
    """Return a number of NumPy's floats as Python's, which it is (as in PyTorch, whatever its bits
    are it does not decide on a dtype), a member of an IntEnum too, and all else as a tensor.
    """
    if isinstance(x, float):
        return float.__float__(x)
    return int.__int__(x) if isinstance(x, int) else as_tensor(x, op.name)


def general(
    op: Op,
    fn: Callable[..., np.ndarray],
    operands: tuple[Operand, ...],
    out: TensorBase | None = None,
) -> TensorBase:
    """Elementwise call in full: mixed dtypes, Python numbers, arrays, errors, devices."""
    if len(operands) == 2 and type(operands[1]) not in _PYTHON_NUMBERS:
        answer = by_right_operand(op.name, *operands)
        if answer is not NotImplemented:
            return typed(TensorBase, answer)  # whatever it is: as Python's operators
    operands = tuple(
        x if isinstance(x, TensorBase) or type(x) in _PYTHON_NUMBERS else _operand(x, op)
        for x in operands
    )
    if not any(isinstance(x, TensorBase) for x in operands):
        operands = tuple(as_tensor(x, op.name) for x in operands)
    skip = op.extra.get("mask_inputs", ())
    meant = [x for i, x in enumerate(operands) if i not in skip]
    common = dtypes.promote([_deciding(x) for x in meant])
    if common.kind == "c":
        if not op.complex:
            raise complex_refused(op)
    elif op.result == "float" and common.kind != "f":
        common = dtypes.default_dtype()
    if op.extra.get("integers_only") and common.kind in "fc":
        raise DTypeError(
            op.name,
            expected="integers or booleans",
            got=str(common),
            fix="cast with .long() or .bool() first",
        )
    inputs = tuple(
        (cast(x, dtypes.bool_) if isinstance(x, TensorBase) else bool(x))
        if i in skip
        else (cast(x, common) if isinstance(x, TensorBase) else _number(x, common, op))
        for i, x in enumerate(operands)
    )
    if all(i in skip or not isinstance(x, TensorBase) for i, x in enumerate(inputs)):
        # Numbers alone carry no dtype into the kernel, as in where(mask, 1.0, 0.0).
        inputs = tuple(
            x if i in skip else wrap(np.asarray(x, common)) for i, x in enumerate(inputs)
        )
    arrays = [x.array if isinstance(x, TensorBase) else x for x in inputs]
    if len({type(a) for a in arrays if not isinstance(a, _PYTHON_NUMBERS)}) > 1:
        inputs = _on_one_device(op, inputs)
        arrays = [x.array if isinstance(x, TensorBase) else x for x in inputs]
    in_single = common is dtypes.float16 and op.name in _ROUNDED_ONCE
    if in_single:
        arrays = [a if isinstance(a, _PYTHON_NUMBERS) else a.astype(np.float32) for a in arrays]
    try:
        result = fn(*arrays)
        result = result.astype(common) if in_single else result
    except DomainError:
        raise
    except (TypeError, ValueError, OverflowError) as e:
        broadcast_shapes(*(np.shape(a) for a in arrays), op=op.name)
        raise not_taken(op, inputs, e) from None
    if out is not None:
        return written(op, inputs, result, out)
    return finish(op, inputs, result)


def _deciding(x: Operand) -> object:
    """What of an operand decides on a dtype: of a tensor that stands for a number, that it is."""
    if not isinstance(x, TensorBase):
        return x
    return x.array if x._extra is None or not is_number(x) else 0.0


def of_one_dtype(
    op: Op, fn: Callable[..., np.ndarray], operands: tuple[Operand, ...]
) -> TensorBase | None:
    """Elementwise call on floats of one dtype, numbers beside them, and masks that are booleans;
    None for all else.
    """
    skip = op.extra.get("mask_inputs", ())
    dtype: DType | None = None
    arrays: list[np.ndarray | float] = []
    for i, x in enumerate(operands):
        if isinstance(x, TensorBase):
            array = x.array
            if type(array) is not _ndarray or is_number(x):
                return None
            if i in skip:
                if array.dtype.kind != "b":
                    return None
            elif array.dtype is not dtype and (dtype is None or array.dtype != dtype):
                if dtype is not None or array.dtype.kind != "f":
                    return None
                dtype = array.dtype
            arrays.append(array)
        elif type(x) is float and i not in skip:
            arrays.append(x)
        elif type(x) is int and i not in skip:
            try:
                number = float(x)
            except OverflowError:
                return None
            operands = (*operands[:i], number, *operands[i + 1 :])
            arrays.append(number)
        else:
            return None
    if dtype is None:
        return None
    try:
        result = fn(*arrays)
    except (TypeError, ValueError, DomainError):
        return None  # for an error of ours
    return finish(op, operands, result)


def prepared(op: Op, x: TensorBase) -> TensorBase:
    """Return the operand of a one-argument op as a tensor of the dtype that `op` computes in.

    Floats are taken in theirs, tensors in the place of a Python number in the default one.
    """
    if is_number(x):
        return cast(number_alone(x), dtypes.default_dtype())
    try:
        dtype = x.array.dtype
    except AttributeError:
        x = as_tensor(x, op.name)
        dtype = x.array.dtype
        if dtype.kind == "f":
            return x
    if dtype.kind == "c":
        if not op.complex:
            raise complex_refused(op)
        return x
    if op.result == "float":
        return cast(x, dtypes.default_dtype())
    if dtype.kind == "b" and "booleans_as_integers" in op.extra:
        return cast(x, dtypes.int64)
    return x


def _number(x: complex, dtype: DType, op: Op) -> complex:
    """Return the Python number `x` as the kind of number `dtype` holds.

    Integers that int64 has wrap around in a smaller one; patterns of 64 bits are numbers to
    operations on bits alone.
    """
    if dtype.kind == "c":
        return complex(x)
    assert not isinstance(x, complex)
    if dtype.kind == "f":
        try:
            return float(x)
        except OverflowError:
            raise too_large(op.name, int(x)) from None
    if dtype.kind in "iu":
        if int(x) != x:
            raise DTypeError(
                "number",
                expected=f"an integer for dtype {dtype}",
                got=repr(x),
                fix="cast the tensor to float",
            )
        x = int(x)
        if op.result == "bool":
            return x  # comparisons are exact for any integer
        if not -(2**63) <= x < (2**64 if op.extra.get("integers_only") else 2**63):
            raise too_large(op.name, x)
        bits = 8 * dtype.itemsize
        x &= (1 << bits) - 1
        return x - (1 << bits) if dtype.kind == "i" and x >> (bits - 1) else x
    return x


def _on_one_device(op: Op, inputs: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Return inputs of several devices on one: single numbers on the host go where others are.

    Raises
    ------
    DeviceError
        If that leaves arrays on different devices.
    """
    tensors = [x for x in inputs if isinstance(x, TensorBase)]
    if any(x.array.ndim and type(x.array) is np.ndarray for x in tensors):
        raise mixed_devices(op, tensors)
    device = next(device_of(x.array) for x in tensors if type(x.array) is not np.ndarray)
    return tuple(
        x.to(device=device) if isinstance(x, TensorBase) and type(x.array) is np.ndarray else x
        for x in inputs
    )


def written(
    op: Op, inputs: tuple[Operand, ...], result: np.ndarray | None, out: TensorBase
) -> TensorBase:
    """Write an elementwise result into the tensor `out`; returns that.

    Where there is no result yet, it is what the op computes of complex operands.

    A tensor of another shape gets new memory, with a warning, if no other tensor depends on it.
    """
    if not isinstance(out, TensorBase):
        raise DTypeError(
            op.name,
            expected="out: a tensor",
            got=f"{type(out).__name__} {out!r}"[:80],
            fix="pass probtorch.empty(0), or take what the function returns",
        )
    if result is not None:
        value = finish(op, inputs, result)
    else:
        assert callable(op.complex)
        value = op.complex(*inputs)
    resized(op.name, value, out)
    return assign(out, value, op.name)
