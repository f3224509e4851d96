"""The text algebra: op formulas become lines of LLVM IR.

`Algebra` is the `s` of a formula; the values it hands out (`V`) carry a register name and an IR
type, and their operators write instructions. Strict IEEE arithmetic plus ``contract``. Numbers
appear as bit patterns.
"""

import math
import struct

from probtorch.compiler import library
from probtorch.compiler.render import mathlib
from probtorch.errors import CompileError
from probtorch.ops.scalar import INTRINSICS

__all__ = [
    "BYTES",
    "FLOATS",
    "SHORT",
    "Algebra",
    "V",
    "in_memory",
    "ir_type",
    "limits",
    "literal",
    "rounded",
]

# An unsigned byte is a signed number of 9 bits between 0 and 255: so every instruction for signed
# numbers is right for it too, and only results must be brought back into the range.
_BYTE = "i9"
_TYPES = {
    "float64": "double",
    "float32": "float",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": _BYTE,
    "bool": "i1",
}
BYTES = {"double": 8, "float": 4, "i64": 8, "i32": 4, "i16": 2, "i8": 1, _BYTE: 1, "i1": 1}
FLOATS = ("double", "float")
# Integers that floats become by way of an i32, whose last bits they are.
SHORT = (_BYTE, "i8", "i16")
_IN_MEMORY = {"i1": "i8", _BYTE: "i8"}
_PURE = "nounwind willreturn memory(none)"


def ir_type(dtype):
    """Return the IR type of a dtype.

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


def in_memory(ty):
    """Return the IR type that values of register type `ty` have in memory."""
    return _IN_MEMORY.get(ty, ty)


def limits(ty):
    """Return the smallest and the largest integer of an IR type."""
    if ty in ("i1", _BYTE):
        return 0, 1 if ty == "i1" else 255
    half = 2 ** (BYTES[ty] * 8 - 1)
    return -half, half - 1


def rounded(value, ty):
    """Return a Python number as one that the floating-point IR type `ty` has."""
    value = float(value)
    if ty == "double" or not math.isfinite(value):
        return value
    if abs(value) > 3.4028235677973366e38:
        return math.copysign(math.inf, value)
    return struct.unpack("f", struct.pack("f", value))[0]


def literal(value, ty):
    """Return the spelling of a Python number as a constant of IR type `ty`."""
    if ty == "i1":
        return "true" if value else "false"
    if ty in FLOATS:
        value = rounded(value, ty)
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(value))


class V:
    """A value of the text algebra: a register name or literal and its type; operators emit
    instructions.
    """

    __slots__ = ("e", "name", "ty")

    def __init__(self, name, ty, emitter):
        self.name, self.ty, self.e = name, ty, emitter

    def __add__(self, o):
        return self.e.binary("add", self, o)

    def __radd__(self, o):
        return self.e.binary("add", o, self)

    def __sub__(self, o):
        return self.e.binary("sub", self, o)

    def __rsub__(self, o):
        return self.e.binary("sub", o, self)

    def __mul__(self, o):
        return self.e.binary("mul", self, o)

    def __rmul__(self, o):
        return self.e.binary("mul", o, self)

    def __truediv__(self, o):
        return self.e.binary("div", self, o)

    def __rtruediv__(self, o):
        return self.e.binary("div", o, self)

    def __neg__(self):
        return self.e.negate(self)

    def __lt__(self, o):
        return self.e.compare("lt", self, o)

    def __le__(self, o):
        return self.e.compare("le", self, o)

    def __gt__(self, o):
        return self.e.compare("gt", self, o)

    def __ge__(self, o):
        return self.e.compare("ge", self, o)

    def __eq__(self, o):
        return self.e.compare("eq", self, o)

    def __ne__(self, o):
        return self.e.compare("ne", self, o)

    def __and__(self, o):
        return self.e.bits("and", self, o)

    def __or__(self, o):
        return self.e.bits("or", self, o)

    def __xor__(self, o):
        return self.e.bits("xor", self, o)

    def __lshift__(self, o):
        return self.e.bits("shl", self, o)

    def __rshift__(self, o):
        return self.e.bits("ashr", self, o)

    def __rand__(self, o):
        return self.e.bits("and", o, self)

    def __ror__(self, o):
        return self.e.bits("or", o, self)

    def __rxor__(self, o):
        return self.e.bits("xor", o, self)

    def __rlshift__(self, o):
        return self.e.bits("shl", o, self)

    def __rrshift__(self, o):
        return self.e.bits("ashr", o, self)

    __hash__ = object.__hash__


_FLOAT_TESTS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INT_TESTS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}


class Algebra:
    """The scalar algebra `s` of op formulas, writing IR lines into `lines`."""

    def __init__(self, module):
        self.module = module
        self.lines = []
        self.count = 0
        self.default = "double"

    # ------------------------------------------------------------------------------------- plumbing

    def fresh(self, prefix="v"):
        """Return a new local identifier."""
        self.count += 1
        return f"%{prefix}{self.count}"

    def emit(self, text, ty):
        """Write ``name = text`` and return the value."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return V(name, ty, self)

    def value(self, x, ty):
        """Return `x` as a value: numbers become literals of type `ty`."""
        return x if isinstance(x, V) else V(literal(x, ty), ty, self)

    def load_at(self, pointer, ty):
        """Emit a load."""
        v = self.emit(f"load {in_memory(ty)}, ptr {pointer}", in_memory(ty))
        if ty == "i1":
            return self.emit(f"icmp ne i8 {v.name}, 0", "i1")
        return self.emit(f"zext i8 {v.name} to {ty}", ty) if ty == _BYTE else v

    def store_at(self, v, pointer):
        """Emit a store."""
        if v.ty != in_memory(v.ty):
            v = self.emit(f"{'zext' if v.ty == 'i1' else 'trunc'} {v.ty} {v.name} to i8", "i8")
        self.lines.append(f"  store {v.ty} {v.name}, ptr {pointer}")

    def fail_if(self, bad):
        """Refuse the whole run where `bad` holds: eager execution would raise an error there."""
        raise CompileError(
            "a formula that can fail",
            expected="a loop nest around it",
            got=f"a test {bad.name}",
            fix="render it in a nest, which returns a status",
        )

    def _integer(self, text, ty):
        """Emit an integer instruction whose result may leave the range of an unsigned byte."""
        v = self.emit(text, ty)
        return self.emit(f"and {ty} {v.name}, 255", ty) if ty == _BYTE else v

    def _pair(self, a, b):
        ty = a.ty if isinstance(a, V) else b.ty if isinstance(b, V) else self.default
        if isinstance(a, V) and isinstance(b, V) and a.ty != b.ty:
            raise CompileError(
                "a formula mixes types", expected=a.ty, got=b.ty, fix="cast in the formula"
            )
        return self.value(a, ty), self.value(b, ty), ty

    def binary(self, op, a, b, flags="contract"):
        """Emit an arithmetic instruction."""
        a, b, ty = self._pair(a, b)
        if ty in FLOATS:
            return self.emit(f"f{op} {flags} {ty} {a.name}, {b.name}", ty)
        if ty == "i1":
            return self.emit(
                {"add": f"or i1 {a.name}, {b.name}", "mul": f"and i1 {a.name}, {b.name}"}[op], ty
            )
        return self._integer(f"{op} {ty} {a.name}, {b.name}", ty)

    def divide_integers(self, op, a, b):
        """Emit a quotient ("sdiv") or remainder ("srem") of integers; a divisor of 0 fails."""
        zero = self.compare("eq", b, 0)
        self.fail_if(zero)
        # -1 would overflow for the smallest integer, with a trap; its quotient is a negation.
        minus = self.compare("eq", b, -1) if limits(b.ty)[0] < 0 else V("false", "i1", self)
        safe = self.where(self.logical_or(zero, minus), 1, b)
        got = self.emit(f"{op} {a.ty} {a.name}, {safe.name}", a.ty)
        return self.where(minus, -a if op == "sdiv" else 0, got)

    def floor_divide(self, a, b):
        """Emit the quotient of integers, rounded down."""
        a, b, _ = self._pair(a, b)
        quotient = self.divide_integers("sdiv", a, b)
        rest = a - quotient * b
        return self.where(
            self.logical_and(rest != 0, self.compare("lt", rest, 0) != (b < 0)),
            quotient - 1,
            quotient,
        )

    def power_of_integers(self, a, b):
        """Emit an integer power; a negative exponent fails."""
        if not isinstance(b, V) and 0 <= b <= 4:
            out = self.value(1, a.ty)
            for _ in range(b):
                out = out * a
            return out
        a, b, ty = self._pair(a, b)
        self.fail_if(b < 0)
        self.module.helpers.add("power")
        base, exponent = self.convert(a, "i64"), self.convert(b, "i64")
        wide = self.emit(f"call i64 @pt_power(i64 {base.name}, i64 {exponent.name})", "i64")
        return self.convert(wide, ty)

    def negate(self, a):
        """Emit a negation."""
        if a.ty in FLOATS:
            return self.emit(f"fneg {a.ty} {a.name}", a.ty)
        return self._integer(f"sub {a.ty} 0, {a.name}", a.ty)

    def compare(self, test, a, b):
        """Emit a comparison."""
        a, b, ty = self._pair(a, b)
        if ty in FLOATS:
            return self.emit(f"fcmp {_FLOAT_TESTS[test]} {ty} {a.name}, {b.name}", "i1")
        if ty == "i1":
            test_name = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}.get(
                test, _INT_TESTS[test]
            )
            return self.emit(f"icmp {test_name} i1 {a.name}, {b.name}", "i1")
        return self.emit(f"icmp {_INT_TESTS[test]} {ty} {a.name}, {b.name}", "i1")

    def bits(self, op, a, b):
        """Emit a bitwise instruction; shifts by more than the width leave nothing, as NumPy's."""
        a, b, ty = self._pair(a, b)
        if op in ("shl", "ashr"):
            last = BYTES[ty] * 8 - 1
            inside = self.emit(f"icmp ule {ty} {b.name}, {last}", "i1")
            # A number without a sign has nothing left after one bit more; others have their sign.
            most = last + (ty == _BYTE)
            amount = self.where(inside, b, most if op == "ashr" else 0)
            out = self._integer(f"{op} {ty} {a.name}, {amount.name}", ty)
            return out if op == "ashr" else self.where(inside, out, 0)
        return self.emit(f"{op} {ty} {a.name}, {b.name}", ty)

    def truth(self, a):
        """Return `a` as an i1."""
        if not isinstance(a, V):
            return V(literal(bool(a), "i1"), "i1", self)
        if a.ty == "i1":
            return a
        return self.compare("ne", a, 0)

    def evaluate(self, node, operands):
        """Write an elementwise op or a cast of a graph on operands; returns its value."""
        ty = ir_type(node.outs[0].dtype)
        if node.name == "cast":
            (x,) = operands
            return self.convert(x, ty)
        operands = self._promoted(node, operands, ty)
        self.default = next((o.ty for o in operands if isinstance(o, V) and o.ty != "i1"), ty)
        operands = self._numbers(operands)
        form = _INTEGER_FORMS.get(node.name) if ty not in FLOATS else None
        formula = node.op.formula if form is None else getattr(type(self), form)
        return self.convert(self.value(formula(self, *operands), ty), ty)

    def _promoted(self, node, operands, ty):
        """Turn booleans into the integers that NumPy computes with where the result is one."""
        if ty == "i1" or node.op.result == "bool":
            return operands
        masks = node.op.extra.get("mask_inputs", ())
        return [
            self.convert(o, ty) if isinstance(o, V) and o.ty == "i1" and i not in masks else o
            for i, o in enumerate(operands)
        ]

    def _numbers(self, operands):
        """Round numbers as memory would, because formulas look at them; make all operands values
        when all are numbers, so that operators have something to act on.
        """
        if not any(isinstance(o, V) for o in operands):
            return [self.value(o, self.default) for o in operands]
        if self.default != "float":
            return operands
        return [rounded(o, "float") if isinstance(o, float) else o for o in operands]

    # ----------------------------------------------------------------------- the names formulas use

    def where(self, c, x, y):
        """Emit a select."""
        c = self.truth(c)
        x, y, ty = self._pair(x, y)
        return self.emit(f"select i1 {c.name}, {ty} {x.name}, {ty} {y.name}", ty)

    def _extreme(self, name, test, x, y):
        x, y, ty = self._pair(x, y)
        if ty in FLOATS:
            return self._intrinsic(f"llvm.{name}", ty, [x, y])
        return self.where(self.compare(test, x, y), x, y)

    def maximum(self, x, y):
        """Emit a maximum in which nan wins."""
        return self._extreme("maximum", "gt", x, y)

    def minimum(self, x, y):
        """Emit a minimum in which nan wins."""
        return self._extreme("minimum", "lt", x, y)

    def isnan(self, x):
        """Emit a test for nan."""
        x = self.value(x, self.default)
        return (
            self.emit(f"fcmp uno {x.ty} {x.name}, {x.name}", "i1")
            if x.ty in FLOATS
            else self.truth(False)
        )

    def isinf(self, x):
        """Emit a test for infinities."""
        x = self.value(x, self.default)
        return self.compare("eq", self.abs(x), math.inf) if x.ty in FLOATS else self.truth(False)

    def logical_and(self, x, y):
        """Emit a logical and."""
        return self.bits("and", self.truth(x), self.truth(y))

    def logical_or(self, x, y):
        """Emit a logical or."""
        return self.bits("or", self.truth(x), self.truth(y))

    def logical_not(self, x):
        """Emit a logical not."""
        return self.bits("xor", self.truth(x), True)

    def wide(self, x):
        """Emit a conversion to double precision, which the formula's numbers have from then on."""
        self.default = "double"
        return self.convert(x, "double") if isinstance(x, V) else x

    def cast_like(self, x, y):
        """Emit a conversion to the type of `y`."""
        return self.convert(self.value(x, y.ty), y.ty)

    def convert(self, x, ty):
        """Emit a conversion between types, as NumPy's astype."""
        a = x.ty
        if a == ty:
            return x
        if ty == "i1":
            return self.truth(x)
        if a in FLOATS and ty in FLOATS:
            return self.emit(f"{'fpext' if ty == 'double' else 'fptrunc'} {a} {x.name} to {ty}", ty)
        if a in FLOATS and ty in SHORT:
            return self.convert(self.convert(x, "i32"), ty)
        if a in FLOATS:
            name = f"llvm.fptosi.sat.{ty}.f{BYTES[a] * 8}"
            self.module.declare(f"declare {ty} @{name}({a})")
            return self.emit(f"call {ty} @{name}({a} {x.name})", ty)
        if ty in FLOATS:
            return self.emit(f"{'uitofp' if a == 'i1' else 'sitofp'} {a} {x.name} to {ty}", ty)
        if int(a[1:]) < int(ty[1:]):
            return self._integer(f"{'zext' if a == 'i1' else 'sext'} {a} {x.name} to {ty}", ty)
        return self._integer(f"trunc {a} {x.name} to {ty}", ty)

    def pow(self, x, y):
        """Emit a power; the exponents 2, 1 and -1 are products, 0.5 is a root, as NumPy's."""
        if not isinstance(y, V) and y in (1, 2, -1, 0.5):
            forms = {1: lambda: x, 2: lambda: x * x, -1: lambda: 1.0 / x, 0.5: lambda: self.sqrt(x)}
            return forms[y]()
        x, y, ty = self._pair(x, y)
        return self._libm("pow", ty, [x, y])

    def philox(self, seed, stream, counter):
        """Emit the call for 64 random bits."""
        self.module.runtime.add("pt_philox")
        words = [self.convert(self.value(v, "i64"), "i64") for v in (seed, stream, counter)]
        args = ", ".join(f"i64 {v.name}" for v in words)
        return self.emit(f"call i64 @pt_philox({args})", "i64")

    def bits_to_uniform(self, bits):
        """Emit ((bits >> 11) | 1) * 2^-53, a double in (0, 1), as core/rng.py does."""
        high = self.emit(f"lshr i64 {bits.name}, 11", "i64")
        odd = self.emit(f"or i64 {high.name}, 1", "i64")
        return self.emit(f"uitofp i64 {odd.name} to double", "double") * 2.0**-53

    def _intrinsic(self, name, ty, args):
        full = f"{name}.f{BYTES[ty] * 8}"
        self.module.declare(f"declare {ty} @{full}({', '.join([ty] * len(args))})")
        return self.emit(f"call {ty} @{full}({', '.join(f'{ty} {a.name}' for a in args)})", ty)

    def _libm(self, name, ty, args):
        symbol = name if ty == "double" else name + "f"
        self.module.declare(f"declare {ty} @{symbol}({', '.join([ty] * len(args))}) {_PURE}")
        text = f"call {ty} @{symbol}({', '.join(f'{ty} {a.name}' for a in args)})"
        # Where x is finite and y not 0 LLVM 22 takes fmod(x, y) for a number, also if y is nan.
        return self.emit(f"{text} nobuiltin" if name == "fmod" else text, ty)

    def _scipy(self, name, ty, args):
        wide = [self.convert(a, "double") for a in args]
        symbol = f"pt_{name}"
        text = ", ".join(f"double {a.name}" for a in wide)
        if library.knows(symbol):
            self.module.declare(library.declaration(symbol))
            text += ", i32 0"
        else:
            symbol += "_f64"
            self.module.runtime.add(symbol)
        return self.convert(self.emit(f"call double @{symbol}({text})", "double"), ty)

    def __getattr__(self, name):
        row = INTRINSICS.get(name)
        if row is None:
            raise AttributeError(name)
        library_name, _, symbol = row.llvm.partition(".")

        def call(*args):
            ty = next((a.ty for a in args if isinstance(a, V)), self.default)
            if ty not in FLOATS:
                return self._of_integers(name, ty, args)
            values = [self.value(a, ty) for a in args]
            if library_name == "llvm":
                return self._intrinsic(row.llvm, ty, values)
            if library_name == "libm":
                return self._libm(symbol, ty, values)
            if library_name == "pt":
                return self._runtime(symbol, ty, values)
            return self._scipy(symbol, ty, values)

        return call

    def _runtime(self, symbol, ty, args):
        runtime = f"pt_{symbol}_f{BYTES[ty] * 8}"
        if not mathlib.defines(runtime):
            wide = self._runtime(symbol, "double", [self.convert(a, "double") for a in args])
            return self.convert(wide, ty)
        self.module.runtime.add(runtime)
        return self.emit(f"call {ty} @{runtime}({', '.join(f'{ty} {a.name}' for a in args)})", ty)

    def _of_integers(self, name, ty, args):
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


# Ops whose formula is meant for floats: the method that says what they are for integers.
_INTEGER_FORMS = {"floor_divide": "floor_divide", "pow": "power_of_integers"}
