"""`Builder`: the one writer of the kernel language, and the `s` of op formulas.

It has the names that formulas use (`where`, `exp`, `lgamma`, ...; those of ops/scalar.py follow
from its table) with NumPy's meaning of integers, nan and signed zeros, and makes the nodes they
consist of. Lines of text gather in `lines`, spelled by a `Printer`. `function.py` adds variables,
loops and branches.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.cells import Array, passed
from probtorch.compiler.lang.nodes import Operand, Value
from probtorch.compiler.lang.types import (
    BYTE,
    BYTES,
    FLOATS,
    INTEGERS,
    SHORT,
    integer_of,
    ir_type,
    limits,
    rounded,
)
from probtorch.errors import CompileError
from probtorch.ops.scalar import INTRINSICS, Intrinsic

if TYPE_CHECKING:
    from probtorch.compiler.graph import Node
    from probtorch.compiler.lang.function import KernelFunction

__all__ = ["Builder", "CodeModule", "Printer"]


class CodeModule(Protocol):
    """What gathers the text of a program or of a runtime.

    Attributes
    ----------
    functions : list of str
        Those that are finished.
    runtime : set of str
        Names of the functions of the runtime that they call.
    """

    functions: list[str]
    runtime: set[str]


class Builder:
    """The scalar algebra `s` of op formulas, as text.

    Parameters
    ----------
    module : CodeModule
        Of a kind that the printer writes.
    printer : Printer, optional
        Of the target; a class that is for one target states it instead.
    flags : str
        Of arithmetic: "contract" in formulas, "" where each operation must be rounded by itself.
    """

    module: CodeModule
    printer: Printer

    def __init__(
        self, module: CodeModule, printer: Printer | None = None, *, flags: str = "contract"
    ) -> None:
        if printer is not None:
            self.printer = printer
        self.module = module
        self.flags = flags
        self.lines: list[str] = []
        self.count = 0
        self.default = "double"

    # ------------------------------------------------------------------------------------- plumbing

    def fresh(self, prefix: str = "v") -> str:
        """Return a new name."""
        self.count += 1
        return f"{self.printer.sigil}{prefix}{self.count}"

    def emit(self, text: str, ty: str) -> Value:
        """Write a definition in the target's own words and return what it defines."""
        self.count += 1
        name = f"{self.printer.sigil}v{self.count}"
        self.lines.append(self.printer.definition(name, text, ty))
        return Value(name, ty, self)

    def put(self, node: nodes.Node) -> Any:
        """Print a node; returns what it gives."""
        return self.printer.kinds[type(node)](self, node)

    def value(self, x: Operand, ty: str) -> Value:
        """Return `x` as a value: numbers become constants of type `ty`."""
        return x if isinstance(x, Value) else Value(self.printer.constant(x, ty), ty, self)

    def load_at(self, place: Value, ty: str) -> Value:
        """Read from a place in memory."""
        return self.put(nodes.Load(place, ty))

    def store_at(self, v: Value, place: Value) -> None:
        """Write to a place in memory."""
        self.put(nodes.Store(v, place))

    def fail_if(self, bad: Value) -> None:
        """Refuse the whole run where `bad` holds: eager execution would raise an error there."""
        raise CompileError(
            "a formula that can fail",
            expected="a loop nest around it",
            got=f"a test {bad.name}",
            fix="render it in a nest, which returns a status",
        )

    def _pair(self, a: Operand, b: Operand) -> tuple[Value, Value, str]:
        ty = a.ty if isinstance(a, Value) else b.ty if isinstance(b, Value) else self.default
        return self.value(a, ty), self.value(b, ty), ty

    # ----------------------------------------------------------------------------------- arithmetic

    def binary(self, op: str, a: Operand, b: Operand, flags: str | None = None) -> Value:
        """Write an arithmetic operation; of booleans a sum is "or", a product "and"."""
        a, b, ty = self._pair(a, b)
        if ty == "i1":
            op = {"add": "or", "mul": "and"}[op]
        flags = self.flags if flags is None else flags
        wraps = ty in INTEGERS and "nsw" not in flags
        return self.put(nodes.Binary(op, a, b, "" if wraps or ty == "i1" else flags))

    def divide_integers(self, op: str, a: Value, b: Value) -> Value:
        """Write a quotient ("sdiv") or remainder ("srem") of integers; a divisor of 0 fails."""
        zero = self.compare("eq", b, 0)
        self.fail_if(zero)
        # -1 would overflow for the smallest integer, with a trap; its quotient is a negation.
        minus = self.compare("eq", b, -1) if limits(b.ty)[0] < 0 else self.truth(False)
        safe = self.where(self.logical_or(zero, minus), 1, b)
        got = self.put(nodes.Binary(op, a, safe))
        return self.where(minus, -a if op == "sdiv" else 0, got)

    def quotient(self, a: Value, b: Operand) -> Value:
        """Write the quotient of integers >= 0, for a divisor that is not 0."""
        return self.put(nodes.Binary("sdiv", a, self.value(b, a.ty)))

    def rest(self, a: Value, b: Operand) -> Value:
        """Write the remainder of integers >= 0, for a divisor that is not 0."""
        return self.put(nodes.Binary("srem", a, self.value(b, a.ty)))

    def floor_divide(self, a: Operand, b: Operand) -> Value:
        """Write the quotient of integers, rounded down."""
        a, b, _ = self._pair(a, b)
        quotient = self.divide_integers("sdiv", a, b)
        rest = a - quotient * b
        return self.where(
            self.logical_and(rest != 0, self.compare("lt", rest, 0) != (b < 0)),
            quotient - 1,
            quotient,
        )

    def power_of_integers(self, a: Value, b: Operand) -> Value:
        """Write an integer power; a negative exponent fails."""
        if not isinstance(b, Value) and 0 <= b <= 4:
            out = self.value(1, a.ty)
            for _ in range(int(b)):
                out = out * a
            return out
        a, b, ty = self._pair(a, b)
        self.fail_if(b < 0)
        words = [self.convert(a, "i64"), self.convert(b, "i64")]
        return self.convert(self.runtime("pt_power", "i64", *words), ty)

    def negate(self, a: Value) -> Value:
        """Write a negation."""
        return self.put(nodes.Negate(a))

    def absolute(self, a: Value) -> Value:
        """Write the size of a number."""
        return self.abs(a)

    def compare(self, test: str, a: Operand, b: Operand) -> Value:
        """Write a comparison; exact for numbers that the type of the other side cannot hold."""
        turned = not isinstance(a, Value)
        x, y = (b, a) if turned else (a, b)
        # Of integers with a Python number, which may lie beyond them on either side.
        if not isinstance(y, Value) and isinstance(x, Value) and x.ty in INTEGERS:
            low, high = limits(x.ty)
            if not low <= y <= high:
                below = (y > high) != turned  # whether the left side is the smaller one
                holds = {"lt": below, "le": below, "gt": not below, "ge": not below}
                return self.truth(holds.get(test, test == "ne"))
        a, b, _ = self._pair(a, b)
        return self.put(nodes.Compare(test, a, b))

    def bits(self, op: str, a: Operand, b: Operand) -> Value:
        """Write a bitwise operation; shifts by more than the width leave nothing, as NumPy's."""
        known = not isinstance(b, Value)
        a, amount, ty = self._pair(a, b)
        if op not in ("shl", "ashr"):
            return self.put(nodes.Binary(op, a, amount))
        last = BYTES[ty] * 8 - 1
        if known and 0 <= b <= last:
            return self.put(nodes.Binary(op, a, amount))
        inside = self.put(nodes.Compare("ule", amount, self.value(last, ty)))
        # A number without a sign has nothing left after one bit more; others have their sign.
        most = last + (ty == BYTE)
        out = self.put(nodes.Binary(op, a, self.where(inside, amount, most if op == "ashr" else 0)))
        return out if op == "ashr" else self.where(inside, out, 0)

    def lshr(self, a: Value, count: int) -> Value:
        """Write a shift to the right that fills up with zeros."""
        return self.put(nodes.Binary("lshr", a, self.value(count, a.ty)))

    def truth(self, a: Operand) -> Value:
        """Return `a` as a boolean."""
        if not isinstance(a, Value):
            return self.value(bool(a), "i1")
        return a if a.ty == "i1" else self.compare("ne", a, 0)

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """Return a b + c, rounded once where the processor can, and twice elsewhere."""
        b, c = self.value(b, a.ty), self.value(c, a.ty)
        return self.put(nodes.Intrinsic(_FMA, [a, b, c])) if self.printer.fuses else a * b + c

    def scaled(self, y: Value, n: Value) -> Value | None:
        """Return y 2**n for an integer-valued n, rounded once, where an instruction does that; None
        elsewhere.
        """
        return self.put(nodes.Intrinsic(_SCALED, [y, n])) if self.printer.scales else None

    def to_bits(self, x: Value) -> Value:
        """Return the bits of a float as an integer."""
        return self.put(nodes.Cast(x, integer_of(x.ty), bits=True))

    def from_bits(self, x: Value, ty: str = "double") -> Value:
        """Return the float that has these bits."""
        return self.put(nodes.Cast(x, ty, bits=True))

    # ------------------------------------------------------------------------------------ op graphs

    def evaluate(self, node: Node, operands: list[Operand]) -> Value:
        """Write an elementwise op or a cast of a graph on operands; returns its value."""
        ty = ir_type(node.outs[0].dtype)
        if node.name == "cast":
            (x,) = operands
            return self.convert(self.value(x, ty), ty)
        operands = self._promoted(node, operands, ty)
        self.default = next((o.ty for o in operands if isinstance(o, Value) and o.ty != "i1"), ty)
        operands = self._numbers(operands)
        form = _INTEGER_FORMS.get(node.name) if ty not in FLOATS else None
        formula = node.op.formula if form is None else getattr(type(self), form)
        return self.convert(self.value(formula(self, *operands), ty), ty)

    def _promoted(self, node: Node, operands: list[Operand], ty: str) -> list[Operand]:
        """Turn booleans into the integers that NumPy computes with where the result is one."""
        if ty == "i1" or node.op.result == "bool":
            return operands
        masks = node.op.extra.get("mask_inputs", ())
        return [
            self.convert(o, ty) if isinstance(o, Value) and o.ty == "i1" and i not in masks else o
            for i, o in enumerate(operands)
        ]

    def _numbers(self, operands: list[Operand]) -> list[Operand]:
        """Round numbers as memory would, because formulas look at them; make all operands values
        when all are numbers, so that operators have something to act on.
        """
        if not any(isinstance(o, Value) for o in operands):
            return [self.value(o, self.default) for o in operands]
        if self.default != "float":
            return operands
        return [rounded(o, "float") if isinstance(o, float) else o for o in operands]

    # ----------------------------------------------------------------------- the names formulas use

    def where(self, c: Operand, x: Operand, y: Operand) -> Value:
        """Write a choice."""
        c = self.truth(c)
        x, y, _ = self._pair(x, y)
        return self.put(nodes.Select(c, x, y))

    def _extreme(self, name: str, test: str, x: Operand, y: Operand) -> Value:
        x, y, ty = self._pair(x, y)
        if ty in FLOATS:
            return self.put(nodes.Intrinsic(INTRINSICS[name], [x, y]))
        return self.where(self.compare(test, x, y), x, y)

    def maximum(self, x: Operand, y: Operand) -> Value:
        """Write a maximum in which nan wins."""
        return self._extreme("maximum", "gt", x, y)

    def minimum(self, x: Operand, y: Operand) -> Value:
        """Write a minimum in which nan wins."""
        return self._extreme("minimum", "lt", x, y)

    def isnan(self, x: Operand) -> Value:
        """Write a test for nan."""
        x = self.value(x, self.default)
        return self.put(nodes.Compare("uno", x, x)) if x.ty in FLOATS else self.truth(False)

    def isinf(self, x: Operand) -> Value:
        """Write a test for infinities."""
        x = self.value(x, self.default)
        return self.compare("eq", self.abs(x), math.inf) if x.ty in FLOATS else self.truth(False)

    def logical_and(self, x: Operand, y: Operand) -> Value:
        """Write a logical and."""
        return self.bits("and", self.truth(x), self.truth(y))

    def logical_or(self, x: Operand, y: Operand) -> Value:
        """Write a logical or."""
        return self.bits("or", self.truth(x), self.truth(y))

    def logical_not(self, x: Operand) -> Value:
        """Write a logical not."""
        return self.bits("xor", self.truth(x), True)

    def wide(self, x: Operand) -> Operand:
        """Write a conversion to double precision, which the formula's numbers have from then on."""
        self.default = "double"
        return self.convert(x, "double") if isinstance(x, Value) else x

    def convert(self, x: Value, ty: str) -> Value:
        """Write a conversion between types, as NumPy's astype."""
        if x.ty == ty:
            return x
        if ty == "i1":
            return self.truth(x)
        if x.ty in FLOATS and ty in SHORT:
            return self.convert(self.convert(x, "i32"), ty)
        return self.put(nodes.Cast(x, ty, unsigned=x.ty == "i1"))

    def pow(self, x: Operand, y: Operand) -> Value:
        """Write a power; exponents 3, 2, 1 and -1 are products, 0.5 is a root, as NumPy's."""
        if not isinstance(y, Value) and y in (1, 2, 3, -1, 0.5):
            base = self.value(x, self.default)
            forms: dict[float, Callable[[], Value]] = {
                1: lambda: base,
                2: lambda: base * base,
                3: lambda: base * base * base,
                -1: lambda: 1.0 / base,
                0.5: lambda: self.sqrt(base),
            }
            return forms[y]()
        x, y, _ = self._pair(x, y)
        return self.put(nodes.Intrinsic(INTRINSICS["pow"], [x, y]))

    def philox(self, seed: Operand, stream: Operand, counter: Operand) -> Value:
        """Write the call for 64 random bits."""
        words = [self.convert(self.value(v, "i64"), "i64") for v in (seed, stream, counter)]
        return self.runtime("pt_philox", "i64", *words)

    def bits_to_uniform(self, bits: Value) -> Value:
        """Write ((bits >> 11) | 1) * 2^-53, a double in (0, 1), as core/philox.py does."""
        odd = self.lshr(bits, 11) | 1
        return self.put(nodes.Cast(odd, "double", unsigned=True)) * 2.0**-53

    def normal_of_uniform(self, u: Value) -> Value:
        """Write the call for the normal number of a double in (0, 1), as ops/exact.py has it."""
        return self.runtime("pt_normal_of_uniform", "double", self.convert(u, "double"))

    def runtime(self, symbol: str, result: str, *args: Value | Array) -> Value:
        """Write the call of a function of the runtime that programs ask for by name."""
        self.printer.requires(self, symbol)
        return self.put(nodes.Call(symbol, result, passed(args)))

    def __getattr__(self, name: str) -> Callable[..., Value]:
        row = INTRINSICS.get(name)
        if row is None:
            raise AttributeError(name)

        def call(*args: Operand) -> Value:
            ty = next((a.ty for a in args if isinstance(a, Value)), self.default)
            if ty not in FLOATS:
                return self._of_integers(name, ty, [self.value(a, ty) for a in args])
            return self.put(nodes.Intrinsic(row, [self.value(a, ty) for a in args]))

        return call

    def _of_integers(self, name: str, ty: str, args: list[Value]) -> Value:
        if name in ("floor", "ceil", "trunc", "rint"):
            return args[0]
        if name == "abs":
            return args[0] if ty == "i1" else self.where(args[0] < 0, -args[0], args[0])
        if name == "fmod":
            return self.divide_integers("srem", *self._pair(*args)[:2])
        if name == "copysign":
            x, y, _ = self._pair(*args)
            size = self.where(x < 0, -x, x)
            return self.where(y < 0, -size, size)
        raise CompileError(f"{name} of {ty}", expected="floats", got=ty, fix="cast to float first")


# A product and a sum, rounded once.
_FMA = Intrinsic("fma", "", "llvm.fma", "fma", 3)
_SCALED = Intrinsic("scaled", "", "x86.scalef", "", 2)
# Ops whose formula is meant for floats: the method that says what they are for integers.
_INTEGER_FORMS = {"floor_divide": "floor_divide", "pow": "power_of_integers"}


class Printer(ABC):
    """Spells nodes: a method of the node's name in lower case for each kind.

    Attributes
    ----------
    sigil : str
        What names begin with.
    fuses : bool
        Whether a product and a sum are one instruction.
    scales : bool
        Whether a product with a power of two is, whatever its exponent.
    thread, block, blocks : str
        The number of this thread in its block, of the block, and how many blocks there are.
    threads : int
        Of each block.
    grid : tuple of str
        What functions of several blocks hand on to each other.
    """

    sigil: ClassVar[str] = ""
    fuses: bool = False
    scales: bool = False
    thread: ClassVar[str] = "0"
    block: ClassVar[str] = "0"
    blocks: ClassVar[str] = "1"
    threads: ClassVar[int] = 1
    grid: ClassVar[tuple[str, ...]] = ()

    @functools.cached_property
    def kinds(self) -> dict[type, Callable[..., object]]:
        """What writes a node of each kind into a builder's lines, and returns what it gives."""
        return {kind: getattr(self, name) for kind, name in _METHODS.items()}

    @abstractmethod
    def definition(self, name: str, text: str, ty: str) -> str:
        """Return the line that gives a name to what `text` computes."""

    @abstractmethod
    def constant(self, x: float, ty: str) -> str:
        """Return the spelling of a Python number."""

    def requires(self, b: Builder, symbol: str) -> None:
        """Note that the module calls a function of the runtime."""
        b.module.runtime.add(symbol)

    @abstractmethod
    def argument(self, i: int) -> str:
        """Return the name of a function's argument."""

    @abstractmethod
    def function(self, f: KernelFunction, result: Value | None) -> str:
        """Return the text of a function whose lines are written."""


_METHODS = {
    kind: name + "_" * iskeyword(name)
    for kind in nodes.Node.__subclasses__()
    for name in [kind.__name__.lower()]
}
