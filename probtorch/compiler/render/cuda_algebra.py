"""The text algebra for GPUs: op formulas become lines of CUDA C.

A sibling of `algebra.py`: the same names, the same meaning of integers, nan and signed zeros, with
C statements instead of IR lines. A value is a numbered variable; a number is a hexadecimal
literal. Signed arithmetic goes through unsigned types, because C leaves overflow undefined. What C
and CUDA have no function for is in `cuda_math.py`.
"""

import math

from probtorch.compiler.render.algebra import (
    _BYTE,
    BYTES,
    FLOATS,
    SHORT,
    Algebra,
    V,
    limits,
    rounded,
)
from probtorch.errors import CompileError
from probtorch.ops.scalar import INTRINSICS

__all__ = ["C_TYPES", "CudaAlgebra", "spell"]

C_TYPES = {
    "double": "double",
    "float": "float",
    "i64": "i64",
    "i32": "int",
    "i16": "short",
    "i8": "signed char",
    _BYTE: "unsigned char",
    "i1": "bool",
}
_UNSIGNED = {"i64": "u64", "i32": "unsigned int"}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_TESTS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
# CUDA's own functions whose float versions are not good to a few units in the last place.
_IN_DOUBLE = ("erfinv", "erfcx", "normcdf", "normcdfinv", "cyl_bessel_i0", "cyl_bessel_i1")
# SciPy's functions that have no form on a GPU yet.
_MISSING = ("pt_iv", "pt_ive")


def spell(value, ty):
    """Return the spelling of a Python number as a C constant of IR type `ty`."""
    if ty == "i1":
        return "true" if value else "false"
    if ty not in FLOATS:
        value = (int(value) + 2**63) % 2**64 - 2**63
        return "I64_MIN" if value == -(2**63) else f"({value}LL)" if value < 0 else f"{value}LL"
    value = rounded(value, ty)
    if math.isnan(value):
        return "pt_nan<float>()" if ty == "float" else "pt_nan<double>()"
    if math.isinf(value):
        text = "pt_inf<float>()" if ty == "float" else "pt_inf<double>()"
    else:
        text = abs(value).hex() + ("f" if ty == "float" else "")
    return f"(-{text})" if math.copysign(1.0, value) < 0 else text


class CudaAlgebra(Algebra):
    """The scalar algebra `s` of op formulas, writing C statements into `lines`."""

    # ------------------------------------------------------------------------------------- plumbing

    def fresh(self, prefix="v"):
        """Return a new identifier."""
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, text, ty):
        """Write a declaration of a variable and return it."""
        name = self.fresh()
        self.lines.append(f"const {C_TYPES[ty]} {name} = {text};")
        return V(name, ty, self)

    def value(self, x, ty):
        """Return `x` as a value: numbers become literals of type `ty`."""
        if isinstance(x, V):
            return x
        text = spell(x, ty)
        narrow = ty not in FLOATS and ty not in ("i64", "i1")
        return V(f"({C_TYPES[ty]}){text}" if narrow else text, ty, self)

    def load_at(self, pointer, ty):
        """Write a load; `pointer` is an lvalue."""
        return self.emit(pointer, ty)

    def store_at(self, v, pointer):
        """Write a store."""
        self.lines.append(f"{pointer} = {v.name};")

    def _wrapped(self, op, a, b, ty):
        """Return integer arithmetic that wraps around."""
        wide = _UNSIGNED.get(ty)
        if wide is None:
            return f"({C_TYPES[ty]})({a} {op} {b})"
        return f"({C_TYPES[ty]})(({wide}){a} {op} ({wide}){b})"

    def binary(self, op, a, b, flags="contract"):
        """Write an arithmetic operation."""
        a, b, ty = self._pair(a, b)
        if ty in FLOATS:
            return self.emit(f"{a.name} {_OPERATORS[op]} {b.name}", ty)
        if ty == "i1":
            return self.emit(f"{a.name} {({'add': '|', 'mul': '&'})[op]} {b.name}", ty)
        return self.emit(self._wrapped(_OPERATORS[op], a.name, b.name, ty), ty)

    def divide_integers(self, op, a, b):
        """Write a quotient ("sdiv") or remainder ("srem") of integers; a divisor of 0 fails."""
        self.fail_if(self.compare("eq", b, 0))
        minus = self.compare("eq", b, -1) if limits(b.ty)[0] < 0 else V("false", "i1", self)
        safe = self.where(self.logical_or(self.compare("eq", b, 0), minus), 1, b)
        sign = "/" if op == "sdiv" else "%"
        got = self.emit(f"({C_TYPES[a.ty]})({a.name} {sign} {safe.name})", a.ty)
        return self.where(minus, -a if op == "sdiv" else 0, got)

    def power_of_integers(self, a, b):
        """Write an integer power; a negative exponent fails."""
        if not isinstance(b, V) and 0 <= b <= 4:
            return Algebra.power_of_integers(self, a, b)
        a, b, ty = self._pair(a, b)
        self.fail_if(b < 0)
        self.module.runtime.add("pt_power")
        wide = self.emit(f"pt_power((i64){a.name}, (i64){b.name})", "i64")
        return self.convert(wide, ty)

    def negate(self, a):
        """Write a negation."""
        if a.ty in FLOATS:
            return self.emit(f"-{a.name}", a.ty)
        return self.emit(self._wrapped("-", "0", a.name, a.ty), a.ty)

    def compare(self, test, a, b):
        """Write a comparison; exact for numbers that the type of the other side cannot hold."""
        for x, y, sign in ((a, b, 1), (b, a, -1)):
            if isinstance(x, V) and not isinstance(y, V) and x.ty not in FLOATS and x.ty != "i1":
                low, high = limits(x.ty)
                if not low <= y <= high:
                    below = (y > high) == (sign > 0)  # whether the left side is the smaller one
                    holds = {"lt": below, "le": below, "gt": not below, "ge": not below}
                    return V(spell(holds.get(test, test == "ne"), "i1"), "i1", self)
        a, b, _ = self._pair(a, b)
        return self.emit(f"{a.name} {_TESTS[test]} {b.name}", "i1")

    def bits(self, op, a, b):
        """Write a bitwise operation; shifts by more than the width leave nothing, as NumPy's."""
        a, b, ty = self._pair(a, b)
        if op not in ("shl", "ashr"):
            return self.emit(f"({C_TYPES[ty]})({a.name} {_OPERATORS[op]} {b.name})", ty)
        last = BYTES[ty] * 8 - 1
        inside = self.emit(f"{b.name} >= 0 && {b.name} <= {last}", "i1")
        # A number without a sign has nothing left after one bit more; others have their sign.
        most = last + (ty == _BYTE)
        amount = self.where(inside, b, most if op == "ashr" else 0)
        if op == "ashr":
            return self.emit(f"({C_TYPES[ty]})({a.name} >> {amount.name})", ty)
        wide = _UNSIGNED.get(ty, "unsigned int")
        out = self.emit(f"({C_TYPES[ty]})(({wide}){a.name} << {amount.name})", ty)
        return self.where(inside, out, 0)

    # ----------------------------------------------------------------------- the names formulas use

    def where(self, c, x, y):
        """Write a choice."""
        c = self.truth(c)
        x, y, ty = self._pair(x, y)
        return self.emit(f"{c.name} ? {x.name} : {y.name}", ty)

    def _extreme(self, name, test, x, y):
        x, y, ty = self._pair(x, y)
        return self.emit(f"pt_{name}({x.name}, {y.name})", ty)

    def isnan(self, x):
        """Write a test for nan."""
        x = self.value(x, self.default)
        return self.emit(f"{x.name} != {x.name}", "i1") if x.ty in FLOATS else self.truth(False)

    def truth(self, a):
        """Return `a` as a bool."""
        if not isinstance(a, V):
            return V(spell(bool(a), "i1"), "i1", self)
        return a if a.ty == "i1" else self.compare("ne", a, 0)

    def convert(self, x, ty):
        """Write a conversion between types, as NumPy's astype; floats beyond integers saturate."""
        a = x.ty
        if a == ty:
            return x
        if ty == "i1":
            return self.truth(x)
        if a in FLOATS and ty in SHORT:
            return self.convert(self.convert(x, "i32"), ty)
        if a in FLOATS and ty not in FLOATS:
            return self.emit(f"pt_to_integer<{C_TYPES[ty]}>((double){x.name})", ty)
        return self.emit(f"({C_TYPES[ty]}){x.name}", ty)

    def philox(self, seed, stream, counter):
        """Write the call for 64 random bits."""
        self.module.runtime.add("pt_philox")
        words = [self.convert(self.value(v, "i64"), "i64") for v in (seed, stream, counter)]
        return self.emit(f"pt_philox({', '.join(v.name for v in words)})", "i64")

    def bits_to_uniform(self, bits):
        """Write ((bits >> 11) | 1) * 2^-53, a double in (0, 1), as core/rng.py does."""
        return self.emit(f"(double)(i64)(((u64){bits.name} >> 11) | 1ULL) * 0x1p-53", "double")

    def _intrinsic(self, name, ty, args):
        return self._libm({"llvm.fabs": "fabs"}.get(name, name.removeprefix("llvm.")), ty, args)

    def _libm(self, name, ty, args):
        symbol = name if ty == "double" else name + "f"
        return self.emit(f"{symbol}({', '.join(a.name for a in args)})", ty)

    def _own(self, name, ty, args):
        """Write the call of a function of `cuda_math.py`, which is for doubles."""
        self.module.runtime.add(name)
        wide = [self.convert(a, "double") for a in args]
        return self.convert(self.emit(f"{name}({', '.join(a.name for a in wide)})", "double"), ty)

    def __getattr__(self, name):
        row = INTRINSICS.get(name)
        if row is None:
            raise AttributeError(name)

        def call(*args):
            ty = next((a.ty for a in args if isinstance(a, V)), self.default)
            if ty not in FLOATS:
                return self._of_integers(name, ty, args)
            if row.cuda in _MISSING:
                raise CompileError(
                    name,
                    expected="a function that CUDA C or probtorch has",
                    got="one that exists on the CPU only",
                    fix="the function runs eagerly instead",
                )
            values = [self.value(a, ty) for a in args]
            if row.cuda.startswith("pt_"):
                return self._own(row.cuda, ty, values)
            if row.cuda in _IN_DOUBLE:
                wide = [self.convert(a, "double") for a in values]
                return self.convert(self._libm(row.cuda, "double", wide), ty)
            return self._libm(row.cuda, ty, values)

        return call
