"""LLVM IR text for a lowered program.

One internal function per loop nest, and a driver ``i64 run(ptr io)`` that calls them in order and does what is not a loop nest:
native loops, branches, guards and library calls. `io` is a table of pointers: inputs, outputs, constants, references, then the
packed scalar constants, the scalars and the arena. Buffers come in as ``noalias`` parameters, so loops vectorise without run-time
checks. `run` returns 0, or 1 + the index of the guard that failed, or -1 for an index out of bounds.

Strict IEEE arithmetic plus ``contract``; only sums, products and dot products may be reassociated. Identifiers are our own
numbered ones: no name or number of the user's reaches the text, except numbers as bit patterns.
"""

import math
import struct

from probtorch.compiler import library
from probtorch.compiler.loops import Branch, Call, Group, Guard, Loop, Mem, Reg
from probtorch.compiler.render import mathlib
from probtorch.compiler.render.calls import HELPERS, helper_text
from probtorch.errors import CompileError
from probtorch.ops.scalar import INTRINSICS

__all__ = ["Plan", "render"]

_TYPES = {
    "float64": "double", "float32": "float", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "bool": "i1",
}  # fmt: skip
_BYTES = {"double": 8, "float": 4, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}
_FLOATS = ("double", "float")
# Beyond this many loop nests nothing is inlined into the driver: LLVM's time would stop being linear.
_INLINE_GROUPS = 24
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


def literal(value, ty):
    """Return the spelling of a Python number as a constant of IR type `ty`."""
    if ty == "i1":
        return "true" if value else "false"
    if ty in _FLOATS:
        value = float(value)
        if ty == "float":
            value = (
                math.copysign(math.inf, value)
                if abs(value) > 3.4028235677973366e38
                else struct.unpack("f", struct.pack("f", value))[0]
            )
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(value))


class V:
    """A value of the text algebra: a register name or literal and its type; operators emit instructions."""

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

    # ------------------------------------------------------------------------------------------ plumbing

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
        if ty in _FLOATS:
            return self.emit(f"f{op} {flags} {ty} {a.name}, {b.name}", ty)
        if ty == "i1":
            return self.emit(
                {"add": f"or i1 {a.name}, {b.name}", "mul": f"and i1 {a.name}, {b.name}"}[op], ty
            )
        if op == "div":
            return self.divide_integers("sdiv", a, b)
        return self.emit(f"{op} {ty} {a.name}, {b.name}", ty)

    def divide_integers(self, op, a, b):
        """Emit a quotient ("sdiv") or remainder ("srem") of integers that is 0, as NumPy's, where the divisor is 0."""
        zero = self.compare("eq", b, 0)
        # -1 would overflow for the smallest integer, with a trap; its quotient is a negation.
        minus = self.compare("eq", b, -1)
        safe = self.where(self.logical_or(zero, minus), 1, b)
        got = self.emit(f"{op} {a.ty} {a.name}, {safe.name}", a.ty)
        return self.where(zero, 0, self.where(minus, -a if op == "sdiv" else 0, got))

    def negate(self, a):
        """Emit a negation."""
        return self.emit(
            f"fneg {a.ty} {a.name}" if a.ty in _FLOATS else f"sub {a.ty} 0, {a.name}", a.ty
        )

    def compare(self, test, a, b):
        """Emit a comparison."""
        a, b, ty = self._pair(a, b)
        if ty in _FLOATS:
            return self.emit(f"fcmp {_FLOAT_TESTS[test]} {ty} {a.name}, {b.name}", "i1")
        if ty == "i1":
            test_name = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}.get(
                test, _INT_TESTS[test]
            )
            return self.emit(f"icmp {test_name} i1 {a.name}, {b.name}", "i1")
        return self.emit(f"icmp {_INT_TESTS[test]} {ty} {a.name}, {b.name}", "i1")

    def bits(self, op, a, b):
        """Emit a bitwise instruction."""
        a, b, ty = self._pair(a, b)
        return self.emit(f"{op} {ty} {a.name}, {b.name}", ty)

    def truth(self, a):
        """Return `a` as an i1."""
        if not isinstance(a, V):
            return V(literal(bool(a), "i1"), "i1", self)
        if a.ty == "i1":
            return a
        return self.compare("ne", a, 0)

    # ------------------------------------------------------------------------------------------ the names formulas use

    def where(self, c, x, y):
        """Emit a select."""
        c = self.truth(c)
        x, y, ty = self._pair(x, y)
        return self.emit(f"select i1 {c.name}, {ty} {x.name}, {ty} {y.name}", ty)

    def _extreme(self, name, test, x, y):
        x, y, ty = self._pair(x, y)
        if ty in _FLOATS:
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
        return (
            self.emit(f"fcmp uno {x.ty} {x.name}, {x.name}", "i1")
            if x.ty in _FLOATS
            else self.truth(False)
        )

    def isinf(self, x):
        """Emit a test for infinities."""
        return self.compare("eq", self.abs(x), math.inf) if x.ty in _FLOATS else self.truth(False)

    def logical_and(self, x, y):
        """Emit a logical and."""
        return self.bits("and", self.truth(x), self.truth(y))

    def logical_or(self, x, y):
        """Emit a logical or."""
        return self.bits("or", self.truth(x), self.truth(y))

    def logical_not(self, x):
        """Emit a logical not."""
        return self.bits("xor", self.truth(x), True)

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
        if a in _FLOATS and ty in _FLOATS:
            return self.emit(f"{'fpext' if ty == 'double' else 'fptrunc'} {a} {x.name} to {ty}", ty)
        if a in _FLOATS:
            name = f"llvm.fptosi.sat.{ty}.f{_BYTES[a] * 8}"
            self.module.declare(f"declare {ty} @{name}({a})")
            return self.emit(f"call {ty} @{name}({a} {x.name})", ty)
        if ty in _FLOATS:
            return self.emit(f"{'uitofp' if a == 'i1' else 'sitofp'} {a} {x.name} to {ty}", ty)
        if a == "i1" or _BYTES[a] < _BYTES[ty]:
            return self.emit(f"{'zext' if a == 'i1' else 'sext'} {a} {x.name} to {ty}", ty)
        return self.emit(f"trunc {a} {x.name} to {ty}", ty)

    def pow(self, x, y):
        """Emit a power; the exponents 2, 1 and -1 are products."""
        if not isinstance(y, V) and y in (1, 2, -1):
            return {1: lambda: x, 2: lambda: x * x, -1: lambda: 1.0 / x}[y]()
        x, y, ty = self._pair(x, y)
        if ty not in _FLOATS:
            raise CompileError(
                "pow of integers", expected="floats", got=ty, fix="cast to float first"
            )
        return self._libm("pow", ty, [x, y])

    def philox(self, seed, stream, counter):
        """Emit the call for 64 random bits."""
        self.module.runtime.add("pt_philox")
        args = ", ".join(f"i64 {self.value(v, 'i64').name}" for v in (seed, stream, counter))
        return self.emit(f"call i64 @pt_philox({args})", "i64")

    def bits_to_uniform(self, bits):
        """Emit ((bits >> 11) | 1) * 2^-53, a double in (0, 1), as core/rng.py does."""
        high = self.emit(f"lshr i64 {bits.name}, 11", "i64")
        odd = self.emit(f"or i64 {high.name}, 1", "i64")
        return self.emit(f"uitofp i64 {odd.name} to double", "double") * 2.0**-53

    def _intrinsic(self, name, ty, args):
        full = f"{name}.f{_BYTES[ty] * 8}"
        self.module.declare(f"declare {ty} @{full}({', '.join([ty] * len(args))})")
        return self.emit(f"call {ty} @{full}({', '.join(f'{ty} {a.name}' for a in args)})", ty)

    def _libm(self, name, ty, args):
        symbol = name if ty == "double" else name + "f"
        self.module.declare(f"declare {ty} @{symbol}({', '.join([ty] * len(args))}) {_PURE}")
        return self.emit(f"call {ty} @{symbol}({', '.join(f'{ty} {a.name}' for a in args)})", ty)

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
            if ty not in _FLOATS:
                if ty != "i1" and name in ("floor", "ceil", "trunc", "rint"):
                    return args[0]
                if ty != "i1" and name == "abs":
                    return self.where(args[0] < 0, -args[0], args[0])
                if ty != "i1" and name == "fmod":
                    return self.divide_integers("srem", *self._pair(*args)[:2])
                if ty != "i1" and name == "copysign":
                    x, y, _ = self._pair(*args)
                    size = self.where(x < 0, -x, x)
                    return self.where(y < 0, -size, size)
                raise CompileError(
                    f"{name} of {ty}", expected="floats", got=ty, fix="cast to float first"
                )
            args = [self.value(a, ty) for a in args]
            if library_name == "llvm":
                return self._intrinsic(row.llvm, ty, args)
            if library_name == "libm":
                return self._libm(symbol, ty, args)
            if library_name == "pt":
                runtime = f"pt_{symbol}_f{_BYTES[ty] * 8}"
                self.module.runtime.add(runtime)
                return self.emit(
                    f"call {ty} @{runtime}({', '.join(f'{ty} {a.name}' for a in args)})", ty
                )
            return self._scipy(symbol, ty, args)

        return call


class Plan:
    """Where everything lies: the pointer table of `run` and the sizes of the arena and scalar areas (bytes)."""

    def __init__(self, lowering):
        self.inputs = len(lowering.graph.inputs)
        self.outputs = len(lowering.outputs)
        self.consts = lowering.consts
        self.refs = lowering.refs
        self.packed_values = lowering.packed_values
        kinds = ("input", "output", "const", "ref")
        starts = [0, self.inputs, self.inputs + self.outputs]
        starts += [starts[-1] + len(self.consts)]
        self.start = dict(zip(kinds, starts, strict=True))
        self.tail = starts[-1] + len(self.refs)
        self.table = self.tail + 3
        self.scalars = 0
        self.arena = 0
        self._pack(lowering)

    def _pack(self, lowering):
        _lifetimes(lowering)
        for b in lowering.buffers:
            if b.kind == "scalar":
                b.slot = self.scalars
                self.scalars += 1
        free = []  # (offset, size) of memory whose buffer is dead, with the statement of its death
        active = []
        for b in sorted(
            (b for b in lowering.buffers if b.kind == "arena" and b.first is not None),
            key=lambda b: b.first,
        ):
            for other in [a for a in active if a.last < b.first]:
                active.remove(other)
                free.append((other.slot, _rounded(other.nbytes)))
            size = _rounded(b.nbytes)
            fit = min((f for f in free if f[1] >= size), key=lambda f: f[1], default=None)
            if fit is None:
                b.slot, self.arena = self.arena, self.arena + size
            else:
                free.remove(fit)
                b.slot = fit[0]
                if fit[1] > size:
                    free.append((fit[0] + size, fit[1] - size))
            active.append(b)


def _rounded(nbytes):
    return max(64, -(-nbytes // 64) * 64)


def _lifetimes(lowering):
    for i, statement in enumerate(lowering.block.statements):
        for b in _buffers(statement):
            b.first = i if b.first is None else min(b.first, i)
            b.last = i if b.last is None else max(b.last, i)


def _buffers(statement):
    """Yield every buffer a statement touches, those of nested blocks included."""
    if isinstance(statement, Group):
        for b, _ in statement.fills:
            yield b
        for item in statement.items:
            for x in item.operands:
                if isinstance(x, Mem):
                    yield x.buffer
            if "buffer" in item.attrs:
                yield item.attrs["buffer"]
            if item.root is not None and item.root.buffer is not None:
                yield item.root.buffer
    elif isinstance(statement, Call):
        yield from statement.buffers
    elif isinstance(statement, Guard):
        yield statement.buffer
    else:
        yield statement.flag
        for block in (
            (statement.test, statement.body)
            if isinstance(statement, Loop)
            else (statement.yes, statement.no)
        ):
            for inner in block.statements:
                yield from _buffers(inner)


class Module:
    """The text being written: functions, declarations, and which runtime functions they call."""

    def __init__(self, lowering):
        self.lowering = lowering
        self.plan = Plan(lowering)
        self.functions = []
        self.declarations = {}
        self.runtime = set()
        self.helpers = set()
        self.groups = 0
        self.inline = _count_groups(lowering.block) <= _INLINE_GROUPS

    def declare(self, line):
        """Add a declaration once."""
        self.declarations[line] = None

    def text(self):
        """Return the module's IR."""
        driver = Driver(self)
        driver.run(self.lowering.block)
        body = driver.finish()
        helpers = [helper_text(name, self) for name in sorted(self.helpers)]
        head = mathlib.declarations(sorted(self.runtime)) if self.runtime else ""
        return "\n".join([*self.declarations, head, *helpers, *self.functions, body, ""])


def _count_groups(block):
    n = 0
    for s in block.statements:
        if isinstance(s, Group):
            n += 1
        elif isinstance(s, Loop):
            n += _count_groups(s.test) + _count_groups(s.body)
        elif isinstance(s, Branch):
            n += _count_groups(s.yes) + _count_groups(s.no)
    return n


class Driver:
    """Writes `run`."""

    def __init__(self, module):
        self.module = module
        self.plan = module.plan
        self.s = Algebra(module)
        self.entry = []
        self.labels = 0
        self.pointers = {}
        base = self.plan.tail
        for i, name in enumerate(("packed", "scalars", "arena")):
            self._load_pointer(f"%{name}", base + i)

    def _load_pointer(self, name, k):
        self.entry.append(f"  {name}.p = getelementptr ptr, ptr %io, i64 {k}")
        self.entry.append(f"  {name} = load ptr, ptr {name}.p")

    def label(self, prefix):
        """Return a new label."""
        self.labels += 1
        return f"{prefix}{self.labels}"

    def pointer(self, b):
        """Return the name of a pointer to a buffer's first element."""
        key = id(b)
        if key not in self.pointers:
            name = f"%b{len(self.pointers)}"
            if b.kind == "packed":
                self.entry.append(f"  {name} = getelementptr i8, ptr %packed, i64 {b.slot * 8}")
            elif b.kind == "scalar":
                self.entry.append(f"  {name} = getelementptr i8, ptr %scalars, i64 {b.slot * 8}")
            elif b.kind == "arena":
                self.entry.append(f"  {name} = getelementptr i8, ptr %arena, i64 {b.slot or 0}")
            else:
                self._load_pointer(name, self.plan.start[b.kind] + b.slot)
            self.pointers[key] = name
        return self.pointers[key]

    def load(self, b):
        """Return the scalar in a buffer."""
        ty = ir_type(b.dtype)
        if ty == "i1":
            return self.s.emit(
                f"icmp ne i8 {self.s.emit(f'load i8, ptr {self.pointer(b)}', 'i8').name}, 0", "i1"
            )
        return self.s.emit(f"load {ty}, ptr {self.pointer(b)}", ty)

    def run(self, block):
        """Write the statements of a block."""
        for statement in block.statements:
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    def _group(self, group):
        lines = self.s.lines
        for b, value in group.fills:
            self._fill(b, value)
        if not group.items or 0 in group.domain:
            return
        emitter = Nest(self.module, group)
        name, params, checked = emitter.define()
        args = ", ".join(f"ptr {self._argument(p)}" for p in params)
        if checked:
            status = self.s.emit(f"call i64 @{name}({args})", "i64")
            self._leave_unless(self.s.compare("eq", status, 0), "-1")
        else:
            lines.append(f"  call void @{name}({args})")

    def _argument(self, p):
        return {"S": "%scalars", "P": "%packed"}[p] if isinstance(p, str) else self.pointer(p)

    def _fill(self, b, value):
        ty = ir_type(b.dtype)
        if value == 0:
            self.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            self.s.lines.append(
                f"  call void @llvm.memset.p0.i64(ptr {self.pointer(b)}, i8 0, i64 {b.nbytes}, i1 false)"
            )
            return
        stored = "i8" if ty == "i1" else ty
        self.module.helpers.add(f"fill_{stored}")
        self.s.lines.append(
            f"  call void @pt_fill_{stored}(ptr {self.pointer(b)}, i64 {b.numel}, {stored} {literal(value, stored)})"
        )

    def _leave_unless(self, ok, status):
        out, on = self.label("leave"), self.label("on")
        self.s.lines += [
            f"  br i1 {ok.name}, label %{on}, label %{out}",
            f"{out}:",
            f"  ret i64 {status}",
            f"{on}:",
        ]

    def _guard(self, guard):
        v = self.load(guard.buffer)
        expected = guard.value
        if v.ty == "i1":
            ok = v if expected else self.s.logical_not(v)
        elif isinstance(expected, bool):
            # bool() of a number: whether it is nonzero (nan counts as true).
            zero = self.s.compare("eq", v, 0)
            ok = self.s.logical_not(zero) if expected else zero
        elif isinstance(expected, float) and math.isnan(expected):
            ok = self.s.isnan(v)
        elif v.ty in _FLOATS and isinstance(expected, int):
            # int() of a float: the truncated value.
            ok = self.s.compare("eq", self.s._intrinsic("llvm.trunc", v.ty, [v]), expected)
        else:
            ok = self.s.compare("eq", v, expected)
        self._leave_unless(ok, str(guard.index + 1))

    def _loop(self, loop):
        head, body, out = self.label("test"), self.label("body"), self.label("done")
        self.s.lines += [f"  br label %{head}", f"{head}:"]
        self.run(loop.test)
        flag = self.load(loop.flag)
        self.s.lines += [f"  br i1 {flag.name}, label %{body}, label %{out}", f"{body}:"]
        self.run(loop.body)
        self.s.lines += [f"  br label %{head}", f"{out}:"]

    def _branch(self, branch):
        yes, no, out = self.label("yes"), self.label("no"), self.label("join")
        flag = self.s.truth(self.load(branch.flag))
        self.s.lines += [f"  br i1 {flag.name}, label %{yes}, label %{no}", f"{yes}:"]
        self.run(branch.yes)
        self.s.lines += [f"  br label %{out}", f"{no}:"]
        self.run(branch.no)
        self.s.lines += [f"  br label %{out}", f"{out}:"]

    def _call(self, call):
        self.s.lines += HELPERS[call.name](self, call)

    def finish(self):
        """Return the text of `run`."""
        return "\n".join(
            ["define i64 @run(ptr %io) {", "entry:", *self.entry, *self.s.lines, "  ret i64 0", "}"]
        )


class Nest(Algebra):
    """Writes the function of one loop nest."""

    def __init__(self, module, group):
        super().__init__(module)
        self.group = group
        self.rank = len(group.domain)
        self.params = {}
        self.registers = {}
        self.loaded = {}
        self.written = {id(b) for b in self._written()}
        self.allocas = []
        self.label = "entry"
        self.labels = 0
        self.index = []
        self.checked = False

    def _written(self):
        for item in self.group.items:
            if "buffer" in item.attrs:
                yield item.attrs["buffer"]
            if item.root is not None and item.root.buffer is not None:
                yield item.root.buffer

    # ------------------------------------------------------------------------------------------ memory

    def base(self, b):
        """Return ``(pointer name, element offset)`` of a buffer inside this function."""
        if b.kind in ("scalar", "packed"):
            key = "S" if b.kind == "scalar" else "P"
            self.params.setdefault(key, f"%{key}")
            return f"%{key}", b.slot * 8
        name = self.params.setdefault(b, f"%p{len(self.params)}")
        return name, 0

    def address(self, b, offset, strides, extra=None):
        """Emit the address of an element; `extra` is a further index register with its stride."""
        pointer, shift = self.base(b)
        ty = ir_type(b.dtype)
        size = _BYTES[ty]
        terms = [(i, s) for i, s in zip(self.index, strides, strict=False) if s]
        if extra is not None:
            terms.append(extra)
        total = None
        for i, s in terms:
            term = i if s == 1 else self.emit(f"mul nsw i64 {i}, {s}", "i64").name
            total = term if total is None else self.emit(f"add nsw i64 {total}, {term}", "i64").name
        if shift or offset:
            pointer = self.emit(
                f"getelementptr i8, ptr {pointer}, i64 {shift + offset * size}", "ptr"
            ).name
        if total is not None:
            pointer = self.emit(
                f"getelementptr {'i8' if ty == 'i1' else ty}, ptr {pointer}, i64 {total}", "ptr"
            ).name
        return pointer

    def load_at(self, pointer, ty):
        """Emit a load."""
        if ty == "i1":
            return self.emit(
                f"icmp ne i8 {self.emit(f'load i8, ptr {pointer}', 'i8').name}, 0", "i1"
            )
        return self.emit(f"load {ty}, ptr {pointer}", ty)

    def store_at(self, v, pointer):
        """Emit a store."""
        if v.ty == "i1":
            v = self.emit(f"zext i1 {v.name} to i8", "i8")
        self.lines.append(f"  store {v.ty} {v.name}, ptr {pointer}")

    def read(self, x, ty=None):
        """Return an operand's value at the current index."""
        if isinstance(x, Reg):
            return self.registers[id(x.root)]
        if isinstance(x, Mem):
            key = (id(x.buffer), x.offset, x.strides)
            if key not in self.loaded or id(x.buffer) in self.written:
                self.loaded[key] = self.load_at(
                    self.address(x.buffer, x.offset, x.strides), ir_type(x.buffer.dtype)
                )
            return self.loaded[key]
        return self.value(x, ty) if ty else x

    # ------------------------------------------------------------------------------------------ the nest

    def define(self):
        """Write the function; returns its name, its parameters (buffers, "S", "P") and whether it returns a status."""
        reduces = [
            i for i in self.group.items if i.kind == "reduce" and i.attrs["depth"] is not None
        ]
        closers = []
        for depth, size in enumerate(self.group.domain):
            self._open_reductions(reduces, depth)
            closers.append(self._open(size))
        for item in self.group.items:
            getattr(self, f"_{item.kind}")(item)
            if item.root is not None and item.root.in_register and item.root.buffer is not None:
                strides = _kept(item.root.shape)
                self.store_at(
                    self.registers[id(item.root)], self.address(item.root.buffer, 0, strides)
                )
        for depth in reversed(range(self.rank)):
            self._close(*closers[depth], self.group.domain[depth])
            self._close_reductions(reduces, depth)
        self.module.groups += 1
        name = f"nest{self.module.groups}"
        params = list(self.params)
        result = "i64" if self.checked else "void"
        signature = ", ".join(
            f"ptr noalias {'readonly ' if p == 'P' else ''}{self.params[p]}" for p in params
        )
        inline = "" if self.module.inline and len(self.group.items) < 100 else " noinline"
        ending = "  ret void"
        if self.checked:
            self.allocas = ["  %bad = alloca i64", "  store i64 0, ptr %bad", *self.allocas]
            ending = "  %status = load i64, ptr %bad\n  ret i64 %status"
        self.module.functions.append(
            "\n".join(
                [
                    f"define internal {result} @{name}({signature}) nounwind{inline} {{",
                    "entry:",
                    *self.allocas,
                    *self.lines,
                    ending,
                    "}",
                ]
            )
        )
        return name, params, self.checked

    def _open(self, size):
        self.labels += 1
        k = self.labels
        i = f"%i{k}"
        if size == 1:
            self.index.append("0")
            return k, i, None
        self.lines += [
            f"  br label %h{k}",
            f"h{k}:",
            f"  {i} = phi i64 [ 0, %{self.label} ], [ {i}.n, %l{k} ]",
        ]
        self.label = f"h{k}"
        self.index.append(i)
        return k, i, size

    def _close(self, k, i, opened, size):
        self.index.pop()
        if opened is None:
            return
        self.lines += [
            f"  br label %l{k}", f"l{k}:", f"  {i}.n = add nuw nsw i64 {i}, 1", f"  {i}.c = icmp ult i64 {i}.n, {size}",
            f"  br i1 {i}.c, label %h{k}, label %x{k}", f"x{k}:",
        ]  # fmt: skip
        self.label = f"x{k}"

    def _inner(self, size, body):
        """Write an inner loop of `size` around ``body(index register)``."""
        if size == 1:
            body("0")
            return
        k, i, opened = self._open(size)
        self.index.pop()
        held, self.loaded = self.loaded, {}
        body(i)
        self.loaded = held
        self.index.append(i)
        self._close(k, i, opened, size)

    def _variable(self, ty, start):
        name = self.fresh("a")
        self.allocas.append(f"  {name} = alloca {ty}")
        if start is not None:
            self.lines.append(f"  store {ty} {start}, ptr {name}")
        return name

    # ------------------------------------------------------------------------------------------ items

    def _compute(self, item):
        node = item.node
        if node.name == "cast":
            (x,) = item.operands
            v = self.convert(self.read(x), ir_type(node.outs[0].dtype))
        else:
            operands = [self.read(x) for x in item.operands]
            ty = ir_type(node.outs[0].dtype)
            self.default = next((o.ty for o in operands if isinstance(o, V) and o.ty != "i1"), ty)
            operands = self._numbers(node, operands)
            v = node.op.formula(self, *operands)
            v = self.value(v, ty)
            if v.ty != ty:
                v = self.convert(v, ty)
        self.registers[id(item.root)] = v

    def _numbers(self, node, operands):
        """Make the first operand a value when all operands are numbers, so that operators have something to act on."""
        if any(isinstance(o, V) for o in operands):
            return operands
        return [self.value(o, self.default) for o in operands]

    def _store(self, item):
        a = item.attrs
        v = self.read(item.operands[0], ir_type(a["buffer"].dtype))
        pointer = self.address(a["buffer"], a["offset"], a["strides"])
        if a["mode"] == "add":
            v = self.binary("add", self.load_at(pointer, v.ty), v)
        self.store_at(v, pointer)

    def _indexed(self, operands, wraps):
        """Emit the element offset that index operands make, with bounds checks where the indices are not known."""
        total = None
        for x, (size, stride, check, negative) in zip(operands, wraps, strict=True):
            i = self.convert(self.read(x), "i64")
            if negative:
                i = self.where(i < 0, i + size, i)
            if check:
                self.checked = True
                bad = self.emit(f"icmp uge i64 {i.name}, {size}", "i1")
                before = self.emit("load i64, ptr %bad", "i64")
                self.lines.append(f"  store i64 {self.where(bad, 1, before).name}, ptr %bad")
                i = self.where(bad, 0, i)
            term = i * stride
            total = term if total is None else total + term
        return total.name

    def _gather(self, item):
        source, *index = item.operands
        at = self._indexed(index, item.attrs["wraps"])
        pointer = self.address(source.buffer, source.offset, source.strides, (at, 1))
        self.registers[id(item.root)] = self.load_at(pointer, ir_type(source.buffer.dtype))

    def _scatter(self, item):
        value, *index = item.operands
        a = item.attrs
        at = self._indexed(index, a["wraps"])
        pointer = self.address(a["buffer"], 0, a["strides"], (at, 1))
        v = self.read(value, ir_type(a["buffer"].dtype))
        if a["mode"] == "add":
            v = self.binary("add", self.load_at(pointer, v.ty), v)
        self.store_at(v, pointer)

    def _dot(self, item):
        a, b = item.operands
        ty = ir_type(item.root.dtype)
        total = self._variable(ty, literal(0, ty))

        def body(k):
            x = self.load_at(
                self.address(a.buffer, a.offset, a.strides, (k, item.attrs["steps"][0])), ty
            )
            y = self.load_at(
                self.address(b.buffer, b.offset, b.strides, (k, item.attrs["steps"][1])), ty
            )
            product = self.binary("mul", x, y)
            self.lines.append(
                f"  store {ty} {self._plus(self.load_at(total, ty), product).name}, ptr {total}"
            )

        self._inner(item.attrs["size"], body)
        self.registers[id(item.root)] = self.load_at(total, ty)

    def _plus(self, a, b):
        return self.binary("add", a, b, "reassoc contract")

    def _axpy(self, item):
        matrix, vector = item.operands
        ty = ir_type(item.root.dtype)
        v = self.read(vector, ty)
        out = item.root.buffer

        def body(m):
            x = self.load_at(
                self.address(matrix.buffer, matrix.offset, matrix.strides, (m, item.attrs["step"])),
                ty,
            )
            pointer = self.address(out, 0, (), (m, 1))
            self.store_at(self._plus(self.load_at(pointer, ty), x * v), pointer)

        self._inner(item.attrs["size"], body)

    def _scan(self, item):
        (x,) = item.operands
        a = item.attrs
        ty = ir_type(a["buffer"].dtype)
        total = self._variable(ty, literal(0, ty))

        def body(k):
            v = self.load_at(self.address(x.buffer, x.offset, x.strides, (k, a["step"])), ty)
            new = self.binary("add", self.load_at(total, ty), v, "")
            self.lines.append(f"  store {ty} {new.name}, ptr {total}")
            self.store_at(new, self.address(a["buffer"], 0, a["strides"], (k, a["out_step"])))

        self._inner(a["size"], body)

    # ------------------------------------------------------------------------------------------ reductions

    def _start(self, kind, ty):
        if kind in ("sum", "prod"):
            return literal(0 if kind == "sum" else 1, ty)
        low = -math.inf if kind in ("amax", "argmax") else math.inf
        if ty in _FLOATS:
            return literal(low, ty)
        if ty == "i1":
            return literal(low > 0, ty)
        edge = 2 ** (_BYTES[ty] * 8 - 1)
        return str(-edge if low < 0 else edge - 1)

    def _open_reductions(self, reduces, depth):
        for item in reduces:
            if item.attrs["depth"] == depth:
                self._begin(item)

    def _begin(self, item):
        kind = item.attrs["reduce"]
        ty = self._reduced_type(item)
        start = self._start(kind, ty)
        item.attrs["total"] = self._variable(ty, start)
        if kind in ("argmax", "argmin"):
            item.attrs["best"] = self._variable("i64", "-1")

    def _reduced_type(self, item):
        if item.attrs["reduce"] in ("argmax", "argmin"):
            return ir_type(item.node.inputs[0].dtype)
        return ir_type(item.root.dtype)

    def _reduce(self, item):
        kind, depth = item.attrs["reduce"], item.attrs["depth"]
        ty = self._reduced_type(item)
        v = self.read(item.operands[0], ty)
        if depth is None:
            pointer = self.address(item.root.buffer, 0, item.attrs["strides"])
            self.store_at(self._combine(kind, self.load_at(pointer, ty), v), pointer)
            return
        if depth == self.rank:
            self._begin(item)
        total = item.attrs["total"]
        if kind in ("argmax", "argmin"):
            best = item.attrs["best"]
            old = self.load_at(total, ty)
            first = self.emit(f"icmp slt i64 {self.load_at(best, 'i64').name}, 0", "i1")
            better = self.compare("gt" if kind == "argmax" else "lt", v, old)
            if ty in _FLOATS:
                better = self.logical_or(
                    better, self.logical_and(self.isnan(v), self.logical_not(self.isnan(old)))
                )
            better = self.logical_or(first, better)
            self.lines.append(f"  store {ty} {self.where(better, v, old).name}, ptr {total}")
            position = self.where(
                better, V(self._position(depth), "i64", self), self.load_at(best, "i64")
            )
            self.lines.append(f"  store i64 {position.name}, ptr {best}")
        else:
            new = self._combine(kind, self.emit(f"load {ty}, ptr {total}", ty), v)
            self.lines.append(f"  store {ty} {new.name}, ptr {total}")
        if depth == self.rank:
            self._finish_reduction(item)

    def _position(self, depth):
        """Emit the row-major index over the reduced dims."""
        total = "0"
        for i, size in zip(self.index[depth:], self.group.domain[depth:], strict=True):
            scaled = self.emit(f"mul nsw i64 {total}, {size}", "i64").name
            total = self.emit(f"add nsw i64 {scaled}, {i}", "i64").name
        return total

    def _combine(self, kind, a, b):
        if kind == "sum":
            return self._plus(a, b)
        if kind == "prod":
            return self.binary("mul", a, b, "reassoc contract")
        return self.maximum(a, b) if kind == "amax" else self.minimum(a, b)

    def _close_reductions(self, reduces, depth):
        for item in reduces:
            if item.attrs["depth"] == depth:
                self._finish_reduction(item)

    def _finish_reduction(self, item):
        name = item.attrs.get("best")
        ty = "i64" if name else self._reduced_type(item)
        v = self.emit(f"load {ty}, ptr {name or item.attrs['total']}", ty)
        self.store_at(v, self.address(item.root.buffer, 0, item.attrs["strides"]))


def _kept(shape):
    """Row-major strides of `shape` over its domain."""
    strides, step = [], 1
    for n in reversed(shape):
        if n != 1:
            strides.append(step)
            step *= n
    return tuple(reversed(strides))


def render(lowering):
    """Return ``(IR text, Plan)`` of a lowered program."""
    module = Module(lowering)
    return module.text(), module.plan
