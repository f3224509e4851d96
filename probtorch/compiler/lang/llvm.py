"""The printer to LLVM's IR, of one number or of a vector of them, and modules of IR.

Strict IEEE arithmetic, with the flags that a node carries. Numbers appear as bit patterns.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import ClassVar, cast

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.builder import Builder, Printer
from probtorch.compiler.lang.function import KernelFunction, RoutineModule
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines import elementary
from probtorch.compiler.lang.types import BYTE, BYTES, FLOATS, element_of, rounded, vector
from probtorch.compiler.native import library

__all__ = [
    "LLVM", "LlvmModule", "LlvmPrinter", "calls_function", "in_memory", "literal", "typed",
]  # fmt: skip

_IN_MEMORY = {"i1": "i8", BYTE: "i8"}
_PURE = "nounwind willreturn memory(none)"
_FLOAT_TESTS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INT_TESTS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
# Small functions that a module has for itself, to be inlined.
_INLINED = ("pt_power", "pt_fill")
# A call of a function of the runtime or the C library; LLVM's own become instructions.
_CALL = re.compile(r" call [^@]*@(?!llvm\.)")


def calls_function(line: str) -> bool:
    """Whether a line of IR calls a function that is no instruction of the processor's."""
    return _CALL.search(line) is not None


def in_memory(ty: str) -> str:
    """Return the IR type that values of a type have in memory."""
    return _IN_MEMORY.get(ty, ty)


def literal(value: float, ty: str) -> str:
    """Return the spelling of a Python number as a constant of a type."""
    if ty == "i1":
        return "true" if value else "false"
    if ty == "ptr":
        return "null"
    if ty in FLOATS:
        value = rounded(value, ty)
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(value))


def typed(ty: str, width: int) -> str:
    """Return the type of a vector of so many numbers; of one, the number's own."""
    return ty if width == 1 else vector(ty, width)


class LlvmPrinter(Printer):
    """Spells nodes as IR.

    Parameters
    ----------
    width : int
        Numbers in each value.
    fuses : bool
        Whether the processor has a fused multiply-add.
    scales : bool
        Whether it is one of x86-64 with AVX-512.
    """

    sigil: ClassVar[str] = "%"

    def __init__(self, width: int = 1, fuses: bool = False, scales: bool = False) -> None:
        self.width, self.fuses, self.scales = width, fuses, scales
        self.types = _Widened({ty: typed(ty, width) for ty in (*BYTES, "ptr")})

    def definition(self, name: str, text: str, ty: str) -> str:
        return f"  {name} = {text}"

    def constant(self, x: float, ty: str) -> str:
        text = literal(x, ty)
        return text if self.width == 1 else f"<{', '.join([f'{ty} {text}'] * self.width)}>"

    def _listed(self, args: Iterable[Value]) -> str:
        return ", ".join([f"{self.types[a.ty]} {a.name}" for a in args])

    # --------------------------------------------------------------------------------------- memory

    def read(self, b: Builder, place: str, ty: str) -> Value:
        v = b.emit(f"load {in_memory(ty)}, ptr {place}{_aligned(ty)}", in_memory(ty))
        if ty == "i1":
            return b.emit(f"icmp ne i8 {v.name}, 0", "i1")
        return b.emit(f"zext i8 {v.name} to {ty}", ty) if ty == BYTE else v

    def write(self, b: Builder, v: Value, place: str) -> None:
        if v.ty != in_memory(v.ty):
            v = b.emit(f"{'zext' if v.ty == 'i1' else 'trunc'} {v.ty} {v.name} to i8", "i8")
        b.lines.append(f"  store {v.ty} {v.name}, ptr {place}{_aligned(v.ty)}")

    def offset(self, b: Builder, node: nodes.Offset) -> Value:
        place = f"ptr {node.pointer.name}, i64 {node.index.name}"
        return b.emit(f"getelementptr {in_memory(node.ty)}, {place}", "ptr")

    def load(self, b: Builder, node: nodes.Load) -> Value:
        if node.mask is None:
            return self.read(b, node.place.name, node.ty)
        ty, mask = node.ty, node.mask
        name, align = _of_lanes("masked.load", ty), BYTES[element_of(ty)]
        _text(b).declare(f"declare {ty} @{name}(ptr, i32, {mask.ty}, {ty})")
        operands = f"ptr {node.place}, i32 {align}, {mask.ty} {mask}, {ty} {node.fill}"
        return b.emit(f"call {ty} @{name}({operands})", ty)

    def store(self, b: Builder, node: nodes.Store) -> None:
        if node.mask is None:
            self.write(b, node.x, node.place.name)
            return
        x, mask = node.x, node.mask
        name, align = _of_lanes("masked.store", x.ty), BYTES[element_of(x.ty)]
        _text(b).declare(f"declare void @{name}({x.ty}, ptr, i32, {mask.ty})")
        operands = f"{x.ty} {x}, ptr {node.place}, i32 {align}, {mask.ty} {mask}"
        b.lines.append(f"  call void @{name}({operands})")

    def barrier(self, b: Builder, node: nodes.Barrier) -> None:
        """One thread waits for nobody."""

    def fail(self, f: KernelFunction, node: nodes.Fail) -> None:
        f.failed.value = f.failed.value | f.convert(node.c, f.failed.node.ty)

    def atomic(self, b: Builder, node: nodes.Atomic) -> Value | None:
        place, x = f"ptr {node.pointer}", f"i64 {node.x}"
        if node.op == "load":
            return b.emit(f"load atomic i64, {place} seq_cst, align 8", "i64")
        if node.op == "store":
            b.lines.append(f"  store atomic {x}, {place} seq_cst, align 8")
            return None
        if node.op == "cmpxchg":
            pair = b.emit(f"cmpxchg {place}, i64 {node.old}, {x} seq_cst seq_cst", "")
            return b.emit(f"extractvalue {{ i64, i1 }} {pair}, 1", "i1")
        return b.emit(f"atomicrmw {node.op} {place}, {x} seq_cst", "i64")

    # ----------------------------------------------------------------------------------- arithmetic

    def binary(self, b: Builder, node: nodes.Binary) -> Value:
        x, y, ty = node.a, node.b, node.a.ty
        if element_of(ty) in FLOATS:
            flags = f"{node.flags} " if node.flags else ""
            text = f"f{node.op} {flags}{self.types.get(ty, ty)} {x.name}, {y.name}"
            return b.emit(text, ty)
        if node.op == "umulh":
            words = [b.emit(f"zext i64 {v.name} to i128", "i128").name for v in (x, y)]
            product = b.emit(f"mul i128 {words[0]}, {words[1]}", "i128")
            high = b.emit(f"lshr i128 {product.name}, 64", "i128")
            return b.emit(f"trunc i128 {high.name} to i64", "i64")
        flags = f"{node.flags} " if node.flags else ""
        text = f"{node.op} {flags}{self.types[ty]} {x.name}, {y.name}"
        return b.emit(text, ty) if node.op in ("and", "or", "xor") else _in_range(b, text, ty)

    def negate(self, b: Builder, node: nodes.Negate) -> Value:
        x, ty = node.a, node.a.ty
        if ty in FLOATS:
            return b.emit(f"fneg {self.types[ty]} {x.name}", ty)
        return _in_range(b, f"sub {self.types[ty]} {b.value(0, ty).name}, {x.name}", ty)

    def compare(self, b: Builder, node: nodes.Compare) -> Value:
        x, y, test, ty = node.a, node.b, node.test, node.a.ty
        if element_of(ty) in FLOATS:
            name = f"fcmp {_FLOAT_TESTS.get(test, test)}"
        elif ty == "i1" and test in _INT_TESTS:
            name = f"icmp u{test}"
        else:
            name = f"icmp {_INT_TESTS.get(test, test)}"
        kind = f"<{_lanes(ty)} x i1>" if ty[0] == "<" else "i1"
        return b.emit(f"{name} {self.types[ty]} {x.name}, {y.name}", kind)

    def select(self, b: Builder, node: nodes.Select) -> Value:
        return b.emit(f"select {self._listed([node.c, node.a, node.b])}", node.a.ty)

    def cast(self, b: Builder, node: nodes.Cast) -> Value:
        x, a, ty = node.x, node.x.ty, node.ty
        if node.bits:
            kind = {a: "ptrtoint", ty: "inttoptr"}.get("ptr", "bitcast")
            return b.emit(f"{kind} {self._listed([x])} to {self.types[ty]}", ty)
        if a[0] == "<" and ty[0] != "<":
            return b.emit(f"extractelement {a} {x.name}, i32 0", ty)
        if ty[0] == "<" and a[0] == "<":
            wider = element_of(ty) == "double"
            return b.emit(f"{'fpext' if wider else 'fptrunc'} {a} {x.name} to {ty}", ty)
        if ty[0] == "<":
            return _spread(b, x, ty)
        if a in FLOATS and ty not in FLOATS:
            name = f"llvm.fptosi.sat.{ty}.f{BYTES[a] * 8}"
            return b.emit(f"call {ty} @{name}({a} {x.name})", ty)
        if a in FLOATS:
            kind = "fpext" if ty == "double" else "fptrunc"
            return b.emit(f"{kind} {self.types[a]} {x.name} to {self.types[ty]}", ty)
        elif ty in FLOATS:
            kind = "uitofp" if node.unsigned else "sitofp"
        elif int(a[1:]) < int(ty[1:]):
            kind = "zext" if node.unsigned else "sext"
        else:
            kind = "trunc"
        text = f"{kind} {a} {x.name} to {ty}"
        return b.emit(text, ty) if a in FLOATS or ty in FLOATS else _in_range(b, text, ty)

    def shuffle(self, b: Builder, node: nodes.Shuffle) -> Value:
        ty = vector(element_of(node.a.ty), len(node.places))
        mask = ", ".join(f"i32 {i}" for i in node.places)
        both = f"{node.a.ty} {node.a}, {node.b.ty} {node.b}"
        return b.emit(f"shufflevector {both}, <{len(node.places)} x i32> <{mask}>", ty)

    # ------------------------------------------------------------------------------------ functions

    def intrinsic(self, b: Builder, node: nodes.Intrinsic) -> Value:
        library_name, _, symbol = node.row.llvm.partition(".")
        spell = {
            "llvm": self._llvm,
            "libm": self._libm,
            "pt": self._ours,
            "scipy": self._scipy,
            "x86": self._x86,
        }
        return spell[library_name](b, symbol, node.args[0].ty, node.args)

    def _llvm(self, b: Builder, name: str, ty: str, args: list[Value]) -> Value:
        lanes = f"v{self.width}" if self.width > 1 else ""
        full, wide = f"llvm.{name}.{lanes}f{BYTES[ty] * 8}", self.types[ty]
        return b.emit(f"call {wide} @{full}({self._listed(args)})", ty)

    def _x86(self, b: Builder, name: str, ty: str, args: list[Value]) -> Value:
        """An instruction of AVX-512, none of whose lanes is masked: of a vector of 512 or 256 bits,
        or of one number.
        """
        letter, bits = {"double": "d", "float": "s"}[ty], self.width * BYTES[ty] * 8
        lanes = max(self.width, 128 // (BYTES[ty] * 8))
        wide = typed(ty, lanes)
        if self.width == 1:
            bits, kind = 128, f"s{letter}"
            texts = [f"insertelement {wide} zeroinitializer, {ty} {a.name}, i64 0" for a in args]
            args = [b.emit(text, ty) for text in texts]
        else:
            kind = f"p{letter}.{bits}"
        mask = f"i{max(lanes, 8)} -1"
        rounding = ", i32 4" if bits in (128, 512) else ""  # as the processor is set
        operands = ", ".join(f"{wide} {a.name}" for a in args)
        text = f"call {wide} @llvm.x86.avx512.mask.{name}.{kind}"
        found = b.emit(f"{text}({operands}, {wide} zeroinitializer, {mask}{rounding})", ty)
        if self.width == 1:
            found = b.emit(f"extractelement {wide} {found.name}, i64 0", ty)
        return found

    def _libm(self, b: Builder, name: str, ty: str, args: list[Value]) -> Value:
        symbol = name if ty == "double" else name + "f"
        _text(b).declare(f"declare {ty} @{symbol}({', '.join([ty] * len(args))}) {_PURE}")
        text = f"call {ty} @{symbol}({self._listed(args)})"
        # Where x is finite and y not 0 LLVM 22 takes fmod(x, y) for a number, also if y is nan.
        return b.emit(f"{text} nobuiltin" if name == "fmod" else text, ty)

    def _scipy(self, b: Builder, name: str, ty: str, args: list[Value]) -> Value:
        wide, symbol = [b.convert(a, "double") for a in args], f"pt_{name}"
        _text(b).declare(library.declaration(symbol))
        return b.convert(
            b.emit(f"call double @{symbol}({self._listed(wide)}, i32 0)", "double"), ty
        )

    def _ours(self, b: Builder, name: str, ty: str, args: list[Value]) -> Value:
        if ty == "float" and name not in elementary.FUNCTIONS:
            wide = self._ours(b, name, "double", [b.convert(a, "double") for a in args])
            return b.convert(wide, ty)
        return b.runtime(f"pt_{name}_f{BYTES[ty] * 8}", ty, *args)

    def requires(self, b: Builder, symbol: str) -> None:
        module = _text(b)
        (module.helpers if symbol.startswith(_INLINED) else module.runtime).add(symbol)

    def call(self, b: Builder, node: nodes.Call) -> Value | None:
        name = f"@{node.symbol}" if isinstance(node.symbol, str) else node.symbol.name
        text = f"call {node.result} {name}({self._listed(node.args)})"
        if node.result == "void":
            b.lines.append(f"  {text}")
            return None
        return b.emit(text, node.result)

    # ------------------------------------------------------------------------- variables, branches

    def variable(self, f: KernelFunction, node: nodes.Variable) -> None:
        kind, align = in_memory(node.ty), ""
        if node.count is not None:
            # A few words for themselves would cost the function a register, which keeps where they
            # are.
            align = ", align 64" if node.count * BYTES.get(node.ty, 0) >= 64 else ""
            kind = f"[{node.count} x {kind}]"
        f.cells.append(f"  {node.name} = alloca {kind}{align}")

    def for_(self, f: KernelFunction, node: nodes.For) -> Value:
        head, body, turn, out = (f.label(x) for x in ("head", "body", "turn", "out"))
        before, i = f.block, Value(f.fresh("i"), "i64", f)
        _go_on(f, head)
        node.notes = [i, head, turn, out, len(f.lines)]
        starts = f"[ {node.start}, %{before} ], [ {i}.n, %{turn} ]"
        f.lines.append(f"  {i} = phi i64 {starts}")
        if not node.certain:
            _fork(f, i < node.stop, body, out)
        return i

    def _end_for(self, f: KernelFunction, node: nodes.For) -> None:
        i, head, turn, out, begin = node.notes
        _go_on(f, turn)
        f.lines.append(f"  {i}.n = add nuw nsw i64 {i}, {node.step}")
        if node.certain:
            hint = self._hint(f, f.lines[begin:], node.rolled)
            f.lines += [
                f"  {i}.c = icmp ult i64 {i}.n, {node.stop}",
                f"  br i1 {i}.c, label %{head}, label %{out}{hint}",
            ]
            _begin(f, out)
        else:
            _go_on(f, head, out)

    def _hint(self, f: KernelFunction, lines: list[str], rolled: bool) -> str:
        """Return what ends the branch of a nest's loop: where it calls functions, a wish not to do
        several of its turns at once, which gives twice the code in twice the time, and no speed;
        and that it is to stay a loop, if it is.
        """
        wishes = []
        if any(map(calls_function, lines)):
            wishes.append('!{!"llvm.loop.interleave.count", i32 1}')
        if rolled:
            wishes.append('!{!"llvm.loop.unroll.disable"}')
        if not wishes:
            return ""
        module = _text(f)
        module.loops += 1
        number = module.loops
        module.declare(f"!{number} = distinct !{{{', '.join([f'!{number}', *wishes])}}}")
        return f", !llvm.loop !{number}"

    def loop(self, f: KernelFunction, node: nodes.Loop) -> None:
        node.notes = [f.label("head"), f.label("body"), f.label("out")]
        _go_on(f, node.notes[0])

    def break_(self, f: KernelFunction, node: nodes.Break) -> None:
        _fork(f, node.c, *node.loop.notes[1:])

    def if_(self, f: KernelFunction, node: nodes.If) -> None:
        yes, no = f.label("yes"), f.label("no") if node.both else None
        node.notes = [no, f.label("out")]
        _fork(f, node.c, yes, no or node.notes[1])

    def leave(self, f: KernelFunction, node: nodes.Leave) -> None:
        out, on = f.label("leave"), f.label("on")
        _fork(f, node.c, out, on)
        f.lines.append(f"  ret {self._listed([node.x]) if node.x else 'void'}")
        _begin(f, on)

    def end(self, f: KernelFunction, node: nodes.End) -> None:
        of = node.of
        if isinstance(of, nodes.For):
            self._end_for(f, of)
        elif isinstance(of, nodes.Loop):
            _go_on(f, of.notes[0], of.notes[-1])
        else:
            no, out = of.notes
            _go_on(f, out, no if node.other else out)

    def argument(self, i: int) -> str:
        return f"%a{i}"

    def function(self, f: KernelFunction, result: Value | None) -> str:
        kind = typed(f.result, self.width)
        ending = "  ret void" if result is None else f"  ret {kind} {result.name}"
        parameters = ", ".join(
            f"{ty if i in f.uniform else self.types[ty]} {f.marks.get(i, '')}%a{i}"
            for i, ty in enumerate(f.parameters)
        )
        word = f"define {f.linkage} ".replace("  ", " ")
        head = f"{word}{kind} @{f.name}({parameters}) {f.attributes} {{"
        return "\n".join([head, "entry:", *f.cells, *f.lines, ending, "}"])

    def seldom(
        self, f: KernelFunction, c: Value, function: str, args: list[Value], usual: Value
    ) -> Value:
        """Return `usual`, but where `c` holds what a function of the C library or SciPy's, as
        "libm.sin" or "scipy.psi", gives for those numbers; they are asked one by one.
        """
        place, _, name = function.partition(".")
        ask = LLVM._libm if place == "libm" else LLVM._scipy
        before, slow, out = f.block, f.label("slow"), f.label("out")
        anywhere = c
        if self.width > 1:
            every = f"@llvm.vector.reduce.or.v{self.width}i1"
            anywhere = f.emit(f"call i1 {every}({self._listed([c])})", "i1")
        f.lines.append(f"  br i1 {anywhere}, label %{slow}, label %{out}")
        _begin(f, slow)
        if self.width == 1:
            other = ask(f, name, "double", args)
        else:
            other = usual
            for i in range(self.width):
                lane = [
                    f.emit(f"extractelement {self._listed([a])}, i32 {i}", "double") for a in args
                ]
                one = ask(f, name, "double", lane)
                put = f"insertelement {self._listed([other])}, double {one}, i32 {i}"
                other = f.emit(put, "double")
        other = f.emit(f"select {self._listed([c, other, usual])}", "double")
        _go_on(f, out)
        ways = f"[ {usual}, %{before} ], [ {other}, %{slow} ]"
        return f.emit(f"phi {self.types['double']} {ways}", "double")

    def splat(self, f: KernelFunction, x: Value) -> Value:
        """Copy an argument that is one number to all lanes."""
        if self.width == 1:
            return x
        return Value(_spread(f, x, typed(x.ty, self.width)).name, x.ty, f)


def _spread(b: Builder, x: Value, ty: str) -> Value:
    """Copy a number to all lanes of a vector."""
    one = b.emit(f"insertelement {ty} poison, {x.ty} {x}, i32 0", ty)
    zeros = f"{ty.partition(' ')[0]} x i32> zeroinitializer"
    return b.emit(f"shufflevector {ty} {one}, {ty} poison, {zeros}", ty)


def _of_lanes(name: str, ty: str) -> str:
    """The name of LLVM's function for vectors of a type of floats."""
    return f"llvm.{name}.v{_lanes(ty)}f{BYTES[element_of(ty)] * 8}.p0"


def _lanes(ty: str) -> str:
    """How many numbers a type of vectors has."""
    return ty[1:].partition(" ")[0]


def _text(b: Builder) -> LlvmModule:
    """The module of IR that a builder writes for."""
    return cast("LlvmModule", b.module)  # this printer writes for no other


def _aligned(ty: str) -> str:
    """Return the alignment of a vector in memory: it may lie wherever a number may."""
    return f", align {BYTES[element_of(ty)]}" if ty[0] == "<" else ""


def _in_range(b: Builder, text: str, ty: str) -> Value:
    """Emit an integer instruction whose result may leave the range of an unsigned byte."""
    v = b.emit(text, ty)
    return b.emit(f"and {ty} {v.name}, 255", ty) if ty == BYTE else v


def _begin(f: KernelFunction, label: str) -> None:
    """Begin a block."""
    f.lines.append(f"{label}:")
    f.block = label


def _go_on(f: KernelFunction, to: str, label: str | None = None) -> None:
    """End a block by a jump, and begin that one, or another."""
    f.lines.append(f"  br label %{to}")
    _begin(f, label or to)


def _fork(f: KernelFunction, c: Value, yes: str, no: str) -> None:
    f.lines.append(f"  br i1 {c}, label %{yes}, label %{no}")
    _begin(f, yes)


class _Widened(dict[str, str]):
    """The type of a printer's values, by that of their numbers; of vectors their own."""

    def __missing__(self, ty: str) -> str:
        return ty


LLVM = LlvmPrinter()


class LlvmModule(RoutineModule):
    """A module of IR, with declarations at its head."""

    printer = LLVM

    def __init__(self) -> None:
        super().__init__()
        self.declarations: dict[str, None] = {}
        self.helpers: set[str] = set()
        self.loops = 0

    def declare(self, line: str) -> None:
        """Add a line at the head of the module, once."""
        self.declarations[line] = None

    def text(self, head: str = "") -> str:
        """Return the module's text, with further declarations."""
        return "\n".join([*self.declarations, head, *self.functions, ""])

    def table(self, numbers: Iterable[float], ty: str) -> str:
        """Return the name of a constant array of numbers."""
        items = [f"{ty} {literal(x, ty)}" for x in numbers]
        text = f"private constant [{len(items)} x {ty}] [{', '.join(items)}]"
        if text not in self.tables:
            self.tables[text] = f"@table{len(self.tables)}"
            self.declare(f"{self.tables[text]} = {text}")
        return self.tables[text]
