"""The nodes of the kernel language: all that code can do, each with the types that it allows.

A node is made, checked and printed at once, so no tree is kept: what has a body begins it, and an
`End` closes it. `Value` is what a node gives: a name, or a constant, of a type. Its operators make
nodes by the builder that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from probtorch.compiler.lang.types import FLOATS, element_of
from probtorch.errors import CompileError
from probtorch.ops.scalar import Intrinsic as Row

__all__ = [
    *("Atomic", "Barrier", "Binary", "Break", "Call", "Cast", "Compare", "End", "Fail", "For"),
    *("If", "Intrinsic", "Leave", "Load", "Loop", "Negate", "Node", "Offset", "Operand"),
    *("Select", "Shuffle", "Store", "Value", "Variable"),
]


class Arithmetic(Protocol):
    """What makes the nodes of operators: a `Builder`."""

    def binary(self, op: str, a: Operand, b: Operand) -> Value: ...

    def bits(self, op: str, a: Operand, b: Operand) -> Value: ...

    def compare(self, test: str, a: Operand, b: Operand) -> Value: ...

    def quotient(self, a: Value, b: Operand) -> Value: ...

    def rest(self, a: Value, b: Operand) -> Value: ...

    def negate(self, a: Value) -> Value: ...

    def absolute(self, a: Value) -> Value: ...


class Value:
    """A value of the language: its name or spelling, and its type; operators make nodes."""

    __slots__ = ("e", "name", "ty")

    def __init__(self, name: str, ty: str, e: Arithmetic) -> None:
        self.name, self.ty, self.e = name, ty, e

    def __add__(self, o: Operand) -> Value:
        return self.e.binary("add", self, o)

    def __radd__(self, o: Operand) -> Value:
        return self.e.binary("add", o, self)

    def __sub__(self, o: Operand) -> Value:
        return self.e.binary("sub", self, o)

    def __rsub__(self, o: Operand) -> Value:
        return self.e.binary("sub", o, self)

    def __mul__(self, o: Operand) -> Value:
        return self.e.binary("mul", self, o)

    def __rmul__(self, o: Operand) -> Value:
        return self.e.binary("mul", o, self)

    def __truediv__(self, o: Operand) -> Value:
        return self.e.binary("div", self, o)

    def __rtruediv__(self, o: Operand) -> Value:
        return self.e.binary("div", o, self)

    def __floordiv__(self, o: Operand) -> Value:
        return self.e.quotient(self, o)

    def __mod__(self, o: Operand) -> Value:
        return self.e.rest(self, o)

    def __neg__(self) -> Value:
        return self.e.negate(self)

    def __abs__(self) -> Value:
        return self.e.absolute(self)

    def __lt__(self, o: Operand) -> Value:
        return self.e.compare("lt", self, o)

    def __le__(self, o: Operand) -> Value:
        return self.e.compare("le", self, o)

    def __gt__(self, o: Operand) -> Value:
        return self.e.compare("gt", self, o)

    def __ge__(self, o: Operand) -> Value:
        return self.e.compare("ge", self, o)

    def __eq__(self, o: Operand) -> Value:  # type: ignore[override]
        return self.e.compare("eq", self, o)

    def __ne__(self, o: Operand) -> Value:  # type: ignore[override]
        return self.e.compare("ne", self, o)

    def __and__(self, o: Operand) -> Value:
        return self.e.bits("and", self, o)

    def __or__(self, o: Operand) -> Value:
        return self.e.bits("or", self, o)

    def __xor__(self, o: Operand) -> Value:
        return self.e.bits("xor", self, o)

    def __lshift__(self, o: Operand) -> Value:
        return self.e.bits("shl", self, o)

    def __rshift__(self, o: Operand) -> Value:
        return self.e.bits("ashr", self, o)

    def __rand__(self, o: Operand) -> Value:
        return self.e.bits("and", o, self)

    def __ror__(self, o: Operand) -> Value:
        return self.e.bits("or", o, self)

    def __rxor__(self, o: Operand) -> Value:
        return self.e.bits("xor", o, self)

    def __rlshift__(self, o: Operand) -> Value:
        return self.e.bits("shl", o, self)

    def __rrshift__(self, o: Operand) -> Value:
        return self.e.bits("ashr", o, self)

    __hash__ = object.__hash__

    def __str__(self) -> str:
        return self.name


# What operators and formulas take: a number becomes a constant of the other side's type.
Operand: TypeAlias = Value | float


def _expect(holds: bool, what: str, expected: str, got: str) -> None:
    if not holds:
        raise CompileError(what, expected=expected, got=got, fix="cast in the formula")


class Node:
    """Anything that a printer spells."""

    __slots__ = ()


@dataclass(slots=True)
class Binary(Node):
    """Arithmetic: add, sub, mul, div of floats, sdiv and srem of integers; and, or, xor, shl, ashr,
    lshr of bits, by less than the width; umulh, the high word of a product without signs.

    Integers wrap around, but for those with the flag "nsw", which are known not to. With the flag
    "contract" a product and a sum may be rounded as one; without it each is rounded by itself.
    """

    op: str
    a: Value
    b: Value
    flags: str = ""

    def __post_init__(self) -> None:
        if self.a.ty != self.b.ty:
            _expect(False, "a formula mixes types", self.a.ty, self.b.ty)


@dataclass(slots=True)
class Negate(Node):
    """Minus a number."""

    a: Value


@dataclass(slots=True)
class Compare(Node):
    """A test: lt, le, gt, ge, eq, ne; ult, ule of integers without signs; uno: either is nan."""

    test: str
    a: Value
    b: Value

    def __post_init__(self) -> None:
        if self.a.ty != self.b.ty:
            _expect(False, "a formula mixes types", self.a.ty, self.b.ty)


@dataclass(slots=True)
class Select(Node):
    """One of two values, both of which have been computed."""

    c: Value
    a: Value
    b: Value

    def __post_init__(self) -> None:
        if element_of(self.c.ty) != "i1" or self.a.ty != self.b.ty:
            _expect(False, "a choice", f"i1, {self.a.ty}", f"{self.c.ty}, {self.b.ty}")


@dataclass(slots=True)
class Intrinsic(Node):
    """A function of ops/scalar.py, or one such, on floats of one type."""

    row: Row
    args: list[Value]

    def __post_init__(self) -> None:
        if any(a.ty != self.args[0].ty for a in self.args) or self.args[0].ty not in FLOATS:
            _expect(False, self.row.name, "floats of one type", str([a.ty for a in self.args]))


@dataclass(slots=True)
class Cast(Node):
    """A conversion as NumPy's astype; floats beyond the integers give the nearest one, nan 0. As a
    vector a float has the same in all lanes.

    `unsigned` for bits of an integer that mean a number without a sign; `bits` for the same bits
    as another type: of a float or pointer as an integer, or back. A vector becomes one of wider or
    narrower floats, or the number in its first lane.
    """

    x: Value
    ty: str
    unsigned: bool = False
    bits: bool = False


@dataclass(slots=True)
class Shuffle(Node):
    """A vector of elements of two others, by their numbers in both together."""

    a: Value
    b: Value
    places: list[int]


@dataclass(slots=True)
class Call(Node):
    """A function of the runtime, of this module, or at an address."""

    symbol: str | Value
    result: str
    args: list[Value]


@dataclass(slots=True)
class Variable(Node):
    """A cell that is read and written, or memory for so many elements, not set to anything;
    declared at the head of the function.
    """

    name: str
    ty: str
    count: int | None = None


@dataclass(slots=True)
class Offset(Node):
    """A place in memory: so many elements of a type behind another place, both of type "ptr"."""

    pointer: Value
    index: Value
    ty: str


@dataclass(slots=True)
class Load(Node):
    """What lies at a place in memory, or what a variable holds now.

    Of a vector with a `mask` only what it holds for is read; `fill` is in other lanes.
    """

    place: Value | Variable
    ty: str
    mask: Value | None = None
    fill: Value | None = None


@dataclass(slots=True)
class Store(Node):
    """A new element at a place in memory, or a new value of a variable; of a vector with a `mask`
    only what it holds for is written.
    """

    x: Value
    place: Value | Variable
    mask: Value | None = None

    def __post_init__(self) -> None:
        if isinstance(self.place, Variable) and self.place.ty != self.x.ty:
            _expect(False, "a variable", self.place.ty, self.x.ty)


@dataclass(slots=True)
class Barrier(Node):
    """Wait for the other threads of the block, or for those of all blocks (`everyone`)."""

    everyone: bool


@dataclass(slots=True)
class Fail(Node):
    """Note that this run does not count if the condition holds; what follows still runs."""

    c: Value
    code: int = -1


@dataclass(slots=True)
class Atomic(Node):
    """What other threads see at once, in one order for all: "load", "store", "add", "or", "xchg" of
    an i64, which give what was there, or "cmpxchg", if `old` is there, which gives whether it was.
    """

    op: str
    pointer: Value
    x: Value
    old: Value | None = None


@dataclass(slots=True)
class For(Node):
    """Run the body for i = start, start + step, ... below stop; `certain`: at least once; `unroll`
    where all turns should be written out, `rolled` where a processor's code is to have them once.
    """

    start: Value
    stop: Value
    step: Value | int = 1
    certain: bool = False
    unroll: bool = False
    rolled: bool = False
    notes: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Loop(Node):
    """Run the body until a `Break`."""

    notes: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Break(Node):
    """Leave the loop unless the condition holds."""

    loop: Loop
    c: Value


@dataclass(slots=True)
class If(Node):
    """Run the body if the condition holds; `both` if there is another for when it does not."""

    c: Value
    both: bool
    notes: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Leave(Node):
    """Return from the function if the condition holds; of one that gives nothing, x is None."""

    c: Value
    x: Value | None


@dataclass(slots=True)
class End(Node):
    """The end of a body; after that of an `If` the `other` one may begin."""

    of: For | Loop | If
    other: bool = False
