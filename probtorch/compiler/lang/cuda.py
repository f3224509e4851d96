"""The printer to CUDA C, and modules of it.

A value is a numbered constant; a number is a hexadecimal literal. Signed arithmetic goes through
unsigned types, because C leaves overflow undefined; what must be rounded by itself goes through
functions that are never contracted. What C and CUDA have no function for is in `routines/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.builder import Builder, Printer
from probtorch.compiler.lang.function import KernelFunction, RoutineModule
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.types import BYTE, FLOATS, rounded
from probtorch.errors import CompileError

__all__ = ["CUDA", "C_TYPES", "GRID", "ROOM", "THREADS", "CudaModule", "CudaPrinter", "spell"]

C_TYPES = {
    "double": "double",
    "float": "float",
    "i64": "i64",
    "i32": "int",
    "i16": "short",
    "i8": "signed char",
    BYTE: "unsigned char",
    "i1": "bool",
    "ptr": "char *",
    "void": "void",
}
# Threads of a block, a power of 2.
THREADS = 256
# Memory of a block, in a kernel.
ROOM = f"__shared__ double room[{2 * THREADS}]; char *const shared = (char *)room;"
# What functions take that the threads of several blocks run together: the program's memory, which
# begins with its status; memory of the block, of two doubles for each thread; the number of this
# block among those that run it, and how many these are.
GRID = ["char *M", "char *shared", "const unsigned block", "const unsigned blocks"]
_UNSIGNED = {"i64": "u64", "i32": "unsigned int"}
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "sdiv": "/",
    "srem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "ashr": ">>",
    "lshr": ">>",
}
_ATOMIC = {"load": "Add", "store": "Exch", "xchg": "Exch", "add": "Add", "or": "Or"}
_ROUNDED = {"add": "__dadd_rn", "sub": "__dsub_rn", "mul": "__dmul_rn", "div": "__ddiv_rn"}
_BITS = {
    "i64": "__double_as_longlong",
    "double": "__longlong_as_double",
    "i32": "__float_as_int",
    "float": "__int_as_float",
}
_TESTS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "uno": "!="}
# CUDA's own functions whose float versions are not good to a few units in the last place.
_IN_DOUBLE = (
    *("erfinv", "erfcx", "normcdf", "normcdfinv", "cyl_bessel_i0", "cyl_bessel_i1"),
    *("::j0", "::j1", "::y0", "::y1"),  # from the global namespace: variables may have such names
)
# Ours that have a form for each type.
_OF_EACH_TYPE = ("pt_maximum", "pt_minimum")
# SciPy's functions that have no form on a GPU yet.
_MISSING = (*("pt_iv", "pt_ive", "pt_jv", "pt_kv", "pt_kve", "pt_k0", "pt_k1", "pt_k0e", "pt_k1e"),)


def spell(value: float, ty: str) -> str:
    """Return the spelling of a Python number as a C constant of a type."""
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


def _at(place: Value | nodes.Variable, ty: str) -> str:
    variable = isinstance(place, nodes.Variable)
    return place.name if variable else f"*({C_TYPES[ty]} *){place.name}"


def _names(args: Iterable[Value]) -> str:
    return ", ".join(a.name for a in args)


class CudaPrinter(Printer):
    """Spells nodes as statements of CUDA C."""

    thread = "(i64)threadIdx.x"
    block = "(i64)block"
    blocks = "(i64)blocks"
    threads = THREADS
    grid = ("M", "shared", "block", "blocks")

    def definition(self, name: str, text: str, ty: str) -> str:
        return f"{C_TYPES[ty]} const {name} = {text};"

    def constant(self, x: float, ty: str) -> str:
        text = spell(x, ty)
        narrow = ty not in FLOATS and ty not in ("i64", "i1")
        return f"({C_TYPES[ty]}){text}" if narrow else text

    def offset(self, b: Builder, node: nodes.Offset) -> Value:
        place = f"({C_TYPES[node.ty]} *){node.pointer} + {node.index}"
        return Value(f"((char *)({place}))", "ptr", b)

    def load(self, b: Builder, node: nodes.Load) -> Value:
        return b.emit(_at(node.place, node.ty), node.ty)

    def store(self, b: Builder, node: nodes.Store) -> None:
        b.lines.append(f"{_at(node.place, node.x.ty)} = {node.x.name};")

    def barrier(self, b: Builder, node: nodes.Barrier) -> None:
        b.lines.append("pt_meet(M);" if node.everyone else "__syncthreads();")

    def fail(self, b: Builder, node: nodes.Fail) -> None:
        b.lines.append(f"if ({node.c}) pt_fail((i64 *)M, {node.code});")

    def atomic(self, b: Builder, node: nodes.Atomic) -> Value:
        place, x = f"(u64 *){node.pointer}", f"(u64){node.x}"
        if node.op == "cmpxchg":
            return b.emit(f"atomicCAS({place}, (u64){node.old}, {x}) == (u64){node.old}", "i1")
        return b.emit(f"(i64)atomic{_ATOMIC[node.op]}({place}, {x})", "i64")

    # ----------------------------------------------------------------------------------- arithmetic

    def binary(self, b: Builder, node: nodes.Binary) -> Value:
        x, y, op, ty = node.a.name, node.b.name, node.op, node.a.ty
        if op == "umulh":
            return b.emit(f"(i64)__umul64hi((u64){x}, (u64){y})", ty)
        sign, c = _OPERATORS[op], C_TYPES[ty]
        if ty == "double" and not node.flags:
            return b.emit(f"{_ROUNDED[op]}({x}, {y})", ty)
        if ty in FLOATS:
            return b.emit(f"{x} {sign} {y}", ty)
        if op in ("shl", "lshr"):
            return b.emit(f"({c})(({_UNSIGNED.get(ty, 'unsigned int')}){x} {sign} {y})", ty)
        if op in ("add", "sub", "mul") and ty in _UNSIGNED and not node.flags:
            wide = _UNSIGNED[ty]
            return b.emit(f"({c})(({wide}){x} {sign} ({wide}){y})", ty)
        return b.emit(f"({c})({x} {sign} {y})", ty)

    def negate(self, b: Builder, node: nodes.Negate) -> Value:
        x, ty = node.a.name, node.a.ty
        if ty in FLOATS:
            return b.emit(f"-{x}", ty)
        return self.binary(b, nodes.Binary("sub", b.value(0, ty), node.a))

    def compare(self, b: Builder, node: nodes.Compare) -> Value:
        x, y, ty = node.a.name, node.b.name, node.a.ty
        if node.test in ("ult", "ule"):
            wide = _UNSIGNED.get(ty, f"unsigned {C_TYPES[ty].split()[-1]}")
            return b.emit(f"({wide}){x} {_TESTS[node.test[1:]]} ({wide}){y}", "i1")
        return b.emit(f"{x} {_TESTS[node.test]} {y}", "i1")

    def select(self, b: Builder, node: nodes.Select) -> Value:
        return b.emit(f"{node.c.name} ? {node.a.name} : {node.b.name}", node.a.ty)

    def cast(self, b: Builder, node: nodes.Cast) -> Value:
        x, ty = node.x, node.ty
        if node.bits:
            return b.emit(f"{_BITS[ty]}({x.name})", ty)
        if x.ty in FLOATS and ty not in FLOATS:
            return b.emit(f"pt_to_integer<{C_TYPES[ty]}>((double){x.name})", ty)
        return b.emit(f"({C_TYPES[ty]}){x.name}", ty)

    def shuffle(self, b: Builder, node: nodes.Shuffle) -> Value:
        raise CompileError(
            "a vector in a register",
            expected="numbers: the threads of a GPU are its lanes",
            got=node.a.ty,
            fix="write the routine for a thread",
        )

    # ------------------------------------------------------------------------------------ functions

    def intrinsic(self, b: Builder, node: nodes.Intrinsic) -> Value:
        name, ty = node.row.cuda, node.args[0].ty
        if name in _OF_EACH_TYPE:
            return b.emit(f"{name}({_names(node.args)})", ty)
        if name in _MISSING:
            raise CompileError(
                node.row.name,
                expected="a function that CUDA C or probtorch has",
                got="one that exists on the CPU only",
                fix="the function runs eagerly instead",
            )
        ours = name.startswith("pt_")
        if not ours and name not in _IN_DOUBLE:
            return self._of_c(b, name, ty, node.args)
        wide = [b.convert(a, "double") for a in node.args]
        if ours:
            return b.convert(b.runtime(name, "double", *wide), ty)
        return b.convert(self._of_c(b, name, "double", wide), ty)

    def _of_c(self, b: Builder, name: str, ty: str, args: list[Value]) -> Value:
        return b.emit(f"{name if ty == 'double' else name + 'f'}({_names(args)})", ty)

    def call(self, b: Builder, node: nodes.Call) -> Value | None:
        text = f"{node.symbol}({_names(node.args)})"
        if node.result == "void":
            b.lines.append(f"{text};")
            return None
        return b.emit(text, node.result)

    # ------------------------------------------------------------------------- variables, branches

    def variable(self, f: KernelFunction, node: nodes.Variable) -> None:
        # Declared at the head: its value may be read behind the block that it is set in.
        if node.count is None:
            f.cells.append(f"{C_TYPES[node.ty]} {node.name};")
        else:
            f.cells.append(f"{C_TYPES[node.ty]} {node.name}_[{node.count}];")
            f.cells.append(f"char *const {node.name} = (char *){node.name}_;")

    def for_(self, f: KernelFunction, node: nodes.For) -> Value:
        i = f.fresh("j")  # "i64" is a type
        if node.unroll:
            f.lines.append("#pragma unroll")
        ty = node.start.ty
        head = f"{C_TYPES[ty]} {i} = {node.start}; {i} < {node.stop}; {i} += {node.step}"
        f.lines.append(f"for ({head}) {{")
        return Value(i, ty, f)

    def loop(self, f: KernelFunction, node: nodes.Loop) -> None:
        f.lines.append("for (;;) {")

    def break_(self, f: KernelFunction, node: nodes.Break) -> None:
        f.lines.append(f"if (!{node.c.name}) break;")

    def if_(self, f: KernelFunction, node: nodes.If) -> None:
        f.lines.append(f"if ({node.c.name}) {{")

    def leave(self, f: KernelFunction, node: nodes.Leave) -> None:
        f.lines.append(f"if ({node.c}) return {node.x or ''};")

    def end(self, f: KernelFunction, node: nodes.End) -> None:
        f.lines.append("} else {" if node.other else "}")

    def argument(self, i: int) -> str:
        return f"q{i}"

    def function(self, f: KernelFunction, result: Value | None) -> str:
        own = [f"{C_TYPES[a.ty]} {a.name}" for a in f.arguments]
        params = ", ".join([*GRID, *own] if f.grid else own)
        ending = [] if result is None else [f"return {result.name};"]
        body = "\n".join([*f.cells, *f.lines, *ending])
        return f"static __device__ {C_TYPES[f.result]} {f.name}({params}) {{\n{body}\n}}"

    def kernel(self, f: KernelFunction, *, shares: bool) -> str:
        """Return the text of a kernel whose lines are written; `shares` if it needs memory of the
        block.
        """
        params = ", ".join(["char *M", *(f"{C_TYPES[a.ty]} {a.name}" for a in f.arguments)])
        body = "\n".join([*([ROOM] if shares else []), *f.cells, *f.lines])
        bounds = f"__launch_bounds__({THREADS})"
        return f'extern "C" __global__ void {bounds} {f.name}({params}) {{\n{body}\n}}'


CUDA = CudaPrinter()


class CudaModule(RoutineModule):
    """A module of device functions."""

    printer = CUDA

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def text(self) -> str:
        """Return the module's text."""
        tables = [f"static __device__ const {x % name}" for x, name in self.tables.items()]
        return "\n".join([*tables, *self.functions, ""])

    def table(self, numbers: Iterable[float], ty: str) -> str:
        """Return the name of a constant array of numbers."""
        items = [spell(x, ty) for x in numbers]
        text = f"{C_TYPES[ty]} %s[{len(items)}] = {{{', '.join(items)}}};"
        return self.tables.setdefault(text, f"{self.prefix}_{len(self.tables)}")
