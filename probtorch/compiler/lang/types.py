"""Types of the kernel language: numbers as registers hold them.

They have LLVM's names; functions for processors may have vectors of floats, too. An unsigned byte
is a signed number of 9 bits between 0 and 255: so every operation for signed numbers is right for
it too, and only results must be brought back into range.
"""

import math
import struct

from probtorch.errors import CompileError

__all__ = [
    *("BYTE", "BYTES", "FLOATS", "INTEGERS", "SHORT"),
    *("element_of", "integer_of", "ir_type", "limits", "rounded", "vector"),
]

BYTE = "i9"
_TYPES = {
    "float64": "double",
    "float32": "float",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": BYTE,
    "bool": "i1",
}
BYTES = {"double": 8, "float": 4, "i64": 8, "i32": 4, "i16": 2, "i8": 1, BYTE: 1, "i1": 1}
FLOATS = ("double", "float")
INTEGERS = ("i64", "i32", "i16", "i8", BYTE)
# Integers that floats become by way of an i32, whose last bits they are.
SHORT = (BYTE, "i8", "i16")


def ir_type(dtype: object) -> str:
    """Return the type of a dtype.

    Raises
    ------
    CompileError
        If the dtype cannot be compiled (float16, complex, other unsigned integers).
    """
    found = _TYPES.get(str(dtype))
    if found is None:
        raise CompileError(
            f"dtype {dtype}",
            expected=f"one of {', '.join(_TYPES)}",
            got=str(dtype),
            fix="cast it first",
        )
    return found


def integer_of(ty: str) -> str:
    """Return the integer type that has as many bits as a float."""
    return {"double": "i64", "float": "i32"}[ty]


def vector(ty: str, lanes: int) -> str:
    """Return the type of so many floats in one register."""
    return f"<{lanes} x {ty}>"


def element_of(ty: str) -> str:
    """Return the type of a vector's elements; a number's own."""
    return ty.partition(" x ")[2][:-1] if ty[0] == "<" else ty


def limits(ty: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    if ty in ("i1", BYTE):
        return 0, 1 if ty == "i1" else 255
    half = 2 ** (BYTES[ty] * 8 - 1)
    return -half, half - 1


def rounded(value: float, ty: str) -> float:
    """Return a Python number as one that the float type `ty` has."""
    value = float(value)
    if ty == "double" or not math.isfinite(value):
        return value
    if abs(value) > 3.4028235677973366e38:
        return math.copysign(math.inf, value)
    return float(struct.unpack("f", struct.pack("f", value))[0])
