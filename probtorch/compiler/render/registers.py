"""IR registers with operators: how the formulas of the vector runtime become text.

A `Value` is a register, or a constant, of one number or of a vector of them; `LaneWriter` writes
the body of one function for a format and a width.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from probtorch.compiler.render.formats import Format

__all__ = ["LaneWriter", "Value", "typed"]


def typed(scalar_type: str, width: int) -> str:
    """Return the type of a vector of so many numbers; of one, the number's own."""
    return scalar_type if width == 1 else f"<{width} x {scalar_type}>"


class Value:
    """An IR register or constant; operators write the instruction and return its register."""

    __slots__ = ("is_float", "name", "writer")

    def __init__(self, writer: LaneWriter, name: str, is_float: bool) -> None:
        self.writer, self.name, self.is_float = writer, name, is_float

    @property
    def type(self) -> str:
        f = self.writer.format
        return typed(f.float_type if self.is_float else f.int_type, self.writer.width)

    def _binary(self, op: str, other: Value | float, swap: bool = False) -> Value:
        right = self.writer.value(other, self.is_float)
        a, b = (right, self) if swap else (self, right)
        prefix = "f" if self.is_float and op in ("add", "sub", "mul", "div") else ""
        return self.writer.emit(f"{prefix}{op} {self.type} {a.name}, {b.name}", self.is_float)

    def _compare(self, predicate: str, other: float) -> Value:
        right = self.writer.value(other, True)
        return self.writer.emit(f"fcmp {predicate} {self.type} {self.name}, {right.name}", True)

    def __add__(self, other: Value | float) -> Value:
        return self._binary("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("mul", other)

    def __truediv__(self, other: Value) -> Value:
        return self._binary("div", other)

    def __radd__(self, other: float) -> Value:
        return self._binary("add", other, swap=True)

    def __rsub__(self, other: float) -> Value:
        return self._binary("sub", other, swap=True)

    def __rtruediv__(self, other: float) -> Value:
        return self._binary("div", other, swap=True)

    def __neg__(self) -> Value:
        return self.writer.emit(f"fneg {self.type} {self.name}", True)

    def __abs__(self) -> Value:
        return self.writer.intrinsic("fabs", self)

    def __and__(self, other: int) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Value) -> Value:
        return self._binary("xor", other)

    def __rshift__(self, count: int) -> Value:
        return self._binary("lshr", count)

    def __lshift__(self, count: int) -> Value:
        return self._binary("shl", count)

    def half(self) -> Value:
        """The integer over 2, rounded down."""
        return self._binary("ashr", 1)

    def __lt__(self, other: float) -> Value:
        return self._compare("olt", other)

    def __gt__(self, other: float) -> Value:
        return self._compare("ogt", other)

    def equals(self, other: float) -> Value:
        return self._compare("oeq", other)

    def not_below(self, other: float) -> Value:
        """True where the value is at least ``other``, and for nan."""
        return self._compare("uge", other)


class LaneWriter:
    """The body of one function, for one format and width."""

    def __init__(self, f: Format, width: int, fused: bool) -> None:
        self.format, self.width, self.fused = f, width, fused
        self.lines: list[str] = []

    def emit(self, instruction: str, is_float: bool) -> Value:
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return Value(self, name, is_float)

    def argument(self, index: int, scalar_type: str, *, uniform: bool) -> Value:
        """The argument as a value of the function's width; a uniform one is copied to all lanes."""
        is_float = scalar_type == self.format.float_type
        value = Value(self, f"%a{index}", is_float)
        if not uniform or self.width == 1:
            return value
        one = f"insertelement {value.type} poison, {scalar_type} {value.name}, i32 0"
        first = self.emit(one, is_float)
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.emit(
            f"shufflevector {value.type} {first.name}, {value.type} poison, {zeros}", is_float
        )

    def value(self, x: Value | float, is_float: bool) -> Value:
        """A value as it is, a Python number as a constant in all lanes."""
        if isinstance(x, Value):
            return x
        if is_float:
            scalar_type, text = self.format.float_type, _float_text(x, self.format)
        else:
            scalar_type, text = self.format.int_type, str(int(x))
        if self.width > 1:
            text = f"<{', '.join([f'{scalar_type} {text}'] * self.width)}>"
        return Value(self, text, is_float)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        scalar = f".v{self.width}" if self.width > 1 else "."
        scalar = f"{scalar}{self.format.suffix}"
        typed = ", ".join(f"{a.type} {a.name}" for a in arguments)
        return self.emit(f"call {arguments[0].type} @llvm.{name}{scalar}({typed})", True)

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        """Return a b + c, rounded once where the processor can, and twice elsewhere."""
        b, c = self.value(b, True), self.value(c, True)
        return self.intrinsic("fma", a, b, c) if self.fused else a * b + c

    def polynomial(self, x: Value, coefficients: Sequence[Value | float]) -> Value:
        """Evaluate by Estrin's scheme, for latency, but the last step by Horner, for accuracy."""
        first, *terms = [self.value(c, True) for c in coefficients]
        power = x
        while len(terms) > 1:
            pairs = [self.fma(power, b, a) for a, b in zip(terms[::2], terms[1::2])]
            terms = pairs + terms[len(terms) & ~1 :]
            power = power * power if len(terms) > 1 else power
        return self.fma(x, terms[0], first)

    def select(self, condition: Value, a: Value | float, b: Value | float) -> Value:
        a, b = self.value(a, True), self.value(b, True)
        flag = typed("i1", self.width)
        return self.emit(
            f"select {flag} {condition.name}, {a.type} {a.name}, {b.type} {b.name}", True
        )

    def clamp(self, x: Value, low: float, high: float) -> Value:
        """Limit to [low, high]; nan stays nan because it compares false."""
        x = self.select(x < low, low, x)
        return self.select(x > high, high, x)

    def copysign(self, x: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", x, sign)

    def round(self, x: Value) -> Value:
        """Round to the nearest integer, |x| < 2**(mantissa - 2)."""
        return (x + self.format.magic) - self.format.magic

    def power_of_two(self, n: Value) -> Value:
        """Return 2**n for an integer-valued n in the range of normal exponents."""
        f = self.format
        # The low bits of n + magic are n; the shift drops all others.
        return self.from_bits((self.to_bits(n + f.magic) + f.bias) << f.mantissa)

    def to_bits(self, x: Value) -> Value:
        integer = Value(self, "", False).type
        return self.emit(f"bitcast {x.type} {x.name} to {integer}", False)

    def from_bits(self, x: Value) -> Value:
        real = Value(self, "", True).type
        return self.emit(f"bitcast {x.type} {x.name} to {real}", True)

    def bits_of(self, x: float) -> int:
        """The integer whose bits are the float's, in this format."""
        pack = ("<d", "<q") if self.format.bits == 64 else ("<f", "<i")
        return struct.unpack(pack[1], struct.pack(pack[0], x))[0]


def _float_text(x: float, f: Format) -> str:
    """An exact IR literal: the bits of a double, also for float, whose value it then is."""
    if f.bits == 32 and math.isfinite(x):
        x = struct.unpack("<f", struct.pack("<f", x))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
