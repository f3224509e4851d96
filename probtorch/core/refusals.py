"""Errors for operands that no operation of ours, or none of the array library, takes.

They are made apart from where they are raised, so that the doors in dispatch.py stay short. Every
check that knows an op better stands with that op.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, DeviceError, DomainError, DTypeError, ProbtorchError

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op

__all__ = [
    "complex_refused",
    "library_refused",
    "mixed_devices",
    "no_numbers",
    "not_taken",
    "real_only",
    "refuse_masked",
    "refuse_raw",
    "shown",
    "too_large",
]


def refuse_masked(array: Any) -> None:
    """Refuse an array with masked elements: a tensor would take the numbers under the mask."""
    if (
        hasattr(array, "mask")
        and type(array).__module__.startswith("numpy.ma")
        and array.mask.any()
    ):
        raise DTypeError(
            "tensor",
            expected="an array without masked elements",
            got=f"a masked array, {int(array.mask.sum())} of {array.size} elements masked",
            fix="fill it, x.filled(numpy.nan), and say which elements count: "
            "handlers.mask(mask=~x.mask), or index the others",
        )


def shown(number: int) -> str:
    """Return a whole number as text: thousands of digits are not to be read, and Python refuses to
    write them.
    """
    size = int(abs(number).bit_length() * 0.30103)
    return repr(number) if size < 30 else f"a whole number of about {size} digits"


def too_large(op: str, number: int) -> DomainError:
    """Error for a whole number of Python's that no dtype has."""
    return DomainError(
        op,
        expected="a number that a dtype can hold: in int64 up to 9.2e18, in float64 up to 1.8e308",
        got=shown(number),
        fix="write a float, such as 1e20, or math.inf",
    )


def no_numbers(op: str, array: np.ndarray, data: object) -> DTypeError:
    """Error for an array of text or objects, made of `data`: of a frame it names the columns."""
    got, fix = f"data of dtype {array.dtype}", _cure_for(array, data)
    if array.dtype.kind == "O":
        got = "".join(f"{odd!r:.40} in " for odd in itertools.islice(_odd(array), 1)) + got
    dtypes: Any = getattr(data, "dtypes", None)
    if hasattr(dtypes, "items"):
        others = [f"{k!r} ({d})" for k, d in dtypes.items() if d.kind not in "biufc"]
        got = f"a frame with columns that hold none: {', '.join(others[:5])}"
        fix = (
            "choose columns, df[['a', 'b']], or give categories numbers: "
            "pandas.Categorical(df.a, categories=names).codes, with the names in their order"
        )
    return DTypeError(op, expected="numbers", got=got, fix=fix)


def _odd(array: np.ndarray) -> Iterator[object]:
    """The elements of an array of objects that are no numbers."""
    return (x for x in array.flat if not isinstance(x, Number))


def _cure_for(array: np.ndarray, data: object) -> str:
    """What to write for data that are no numbers, by their dtype and the first that is none."""
    if hasattr(getattr(data, "dtype", None), "categories"):
        # Not pandas.factorize: its numbers follow the order of rows, not that of the categories.
        codes = "x.cat.codes" if hasattr(data, "cat") else "x.codes"
        return f"give categories their numbers, {codes}; one that is missing is -1 there"
    if array.dtype.kind in "Mm":
        return "count from a date: (x - x.min()) / numpy.timedelta64(1, 'D')"
    odd = list(itertools.islice(_odd(array), 1)) if array.dtype.kind == "O" else ["text"]
    if not odd:
        return "convert fractions and integers of any size to floats: numpy.asarray(x, float)"
    first = odd[0]
    if isinstance(first, str) and array.dtype.kind in "OUST":
        return (
            "give categories numbers: pandas.Categorical(x, categories=names).codes, with the "
            "names in their order; numbers as text: x.astype(float)"
        )
    if first is None or not str(first).strip("<NAT> "):
        return "mark what is missing by nan, pandas.to_numeric(x), and mask it: .mask(~isnan(x))"
    return "convert the data to numbers"


def real_only(op: str, *values: object) -> None:
    """Refuse complex tensors where what they are computed with would take them, and be wrong.

    Raises
    ------
    DTypeError
        If one of `values` is a tensor of complex numbers.
    """
    for x in values:
        if isinstance(x, TensorBase) and x.array.dtype.kind == "c":
            raise DTypeError(
                op,
                expected="real numbers",
                got=f"{x.array.dtype}, for which it is not defined",
                fix="take x.real, x.imag or x.abs(), or probtorch.view_as_real(x)",
            )


def complex_refused(op: Op) -> DTypeError:
    """Error for complex numbers where an op has no value or no derivative for them."""
    if op.name == "cast":
        return DTypeError(
            "a conversion of complex numbers",
            expected="a complex dtype, or bool",
            got="a real one, which has no place for the imaginary part of complex numbers",
            fix="take x.real, x.imag, x.abs() or x.angle()",
        )
    return DTypeError(
        op.name,
        expected="real numbers: float32 or float64, integers or booleans",
        got="complex ones, for which it is not defined",
        fix="take x.real, x.imag or x.abs(), or probtorch.view_as_real(x)",
    )


def not_taken(op: Op, operands: Sequence[object], e: Exception) -> DTypeError | DomainError:
    """Error for what NumPy's function refuses: a dtype, or values of it."""
    got = " and ".join(
        str(x.array.dtype) if isinstance(x, TensorBase) else repr(x) for x in operands
    )
    if isinstance(e, TypeError):
        return DTypeError(
            op.name,
            expected="a dtype that it is defined for",
            got=got,
            fix="cast with .float() or .long() first",
        )
    return DomainError(
        op.name,
        expected=op.extra.get("takes", "values that it is defined for"),
        got=f"{got} ({str(e)[:100]})",
        fix="cast with .float() first",
    )


def mixed_devices(op: Op, tensors: Sequence[TensorBase]) -> DeviceError:
    """Error for tensors on different devices."""
    return DeviceError(
        op.name,
        expected="all tensors on one device, numbers of shape () aside",
        got=", ".join("cpu" if type(x.array) is np.ndarray else "cuda" for x in tensors),
        fix="move one of them with .to(device)",
    )


def library_refused(
    op: Op, tensors: Sequence[TensorBase], attrs: Attrs, e: Exception
) -> ArgumentError:
    """Error for what the array library refuses and no check of ours did."""
    settings = ", ".join(f"{k}={v!r:.40}" for k, v in attrs.items())
    return ArgumentError(
        op.name,
        expected="operands that fit together and to the settings",
        got=f"shapes {', '.join(str(x.array.shape) for x in tensors)}, dtypes "
        f"{', '.join(str(x.array.dtype) for x in tensors)}" + (f"; {settings}" if settings else ""),
        fix=f"{type(e).__name__} of the array library: {str(e)[:120]}",
    )


def refuse_raw(op: Op, inputs: Sequence[object], attrs: Attrs, error: Exception) -> None:
    """Raise an error of ours for what the array library says of operands; others are left."""
    raw = isinstance(error, (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError))
    if not raw or isinstance(error, (ProbtorchError, np.linalg.LinAlgError)):
        return
    tensors = [x for x in inputs if isinstance(x, TensorBase)]
    if len({type(x.array) for x in tensors}) > 1:
        raise mixed_devices(op, tensors) from None
    raise library_refused(op, tensors, attrs, error) from error
