"""Formulas of single elements as inner loops of NumPy's ufuncs, and what these have in common.

An op's formula, over the scalar algebra, becomes code for vectors with its functions written out in
it. Operands that lie with gaps are brought together, a stretch at a time. Read rows.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.llvm import LlvmPrinter
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.doubles import DOUBLES
from probtorch.compiler.lang.routines.elementary import FUNCTIONS
from probtorch.compiler.lang.routines.formats import F32, F64, Format
from probtorch.compiler.lang.types import BYTES
from probtorch.compiler.native import host
from probtorch.compiler.native.ufuncs import ELEMENTS
from probtorch.compiler.render.runtime.passes import STRETCH, Row
from probtorch.compiler.render.writer import LibraryModule, Writer
from probtorch.core.op import REGISTRY
from probtorch.ops.activations import FORMULAS

__all__ = [
    *("FLOATS", "INLINED", "exact", "helper", "mode_kept", "ufunc_loop", "write_elements"),
]

FLOATS = {"d": "double", "f": "float"}
INLINED = "nounwind willreturn memory(none) alwaysinline"
# Functions of doubles alone (lang/routines/doubles.py) that call no other function.
_IN_DOUBLES = frozenset({"erf"})


def write_elements(text: LibraryModule, module: str, p: str) -> None:
    """Formulas of numbers, wherever these lie."""
    for name, (arrays, more) in ELEMENTS[module].items():
        _write_formula(text, name, p, arrays, more)


def _write_formula(text: LibraryModule, name: str, p: str, arrays: int, more: int) -> None:
    ty = FLOATS[p]
    f = F64 if ty == "double" else F32
    called, count = f"formula_{name}", arrays + more
    kinds = [ty] * count
    printer = exact(f)
    if name in _IN_DOUBLES and ty == "float":  # vectors of 1024 bits, which have no instruction
        printer = LlvmPrinter(printer.width, printer.fuses)
    w = _Inlined(text, printer, called, ty, kinds, linkage="internal", attributes=INLINED, flags="")
    w.default, w.format = ty, f
    formula = FORMULAS[name] if name in FORMULAS else REGISTRY[name].formula
    assert formula is not None
    made = formula(w, *w.arguments)
    assert isinstance(made, Value)
    w.finish(made)
    inner = helper(text, f"elements_{name}", count + 1, flags="contract")
    *places, out, n = inner.arguments
    row = Row(inner, ty, n)
    numbers = [row.all(inner.load(place, 0, ty)) for place in places[arrays:]]
    row.mapped(places[:arrays], lambda *v: row.by_parts(called, *v, *numbers), out)
    inner.finish()
    loop, at, step, sizes = ufunc_loop(text, f"pt_rows_{name}_{p}", count + 1)
    n = loop.load(sizes, 0, "i64")
    with mode_kept(loop):
        _call_near(loop, f"elements_{name}", ty, at, step, n, arrays)
    loop.finish()


def helper(
    text: LibraryModule, name: str, places: int, numbers: int = 1, flags: str = ""
) -> Writer:
    """Begin what the loop of a ufunc calls, of places and sizes."""
    types = ["ptr"] * places + ["i64"] * numbers
    options = {"linkage": "internal", "attributes": "nounwind noinline", "flags": flags}
    return text.function(name, "void", types, **options)


def ufunc_loop(
    text: LibraryModule, name: str, count: int
) -> tuple[Writer, list[Value], list[Value], Value]:
    """Begin the inner loop of a ufunc: also places and steps of its operands, and all sizes."""
    w = text.function(name, "void", ["ptr"] * 4, attributes="nounwind")
    places, sizes, steps, _ = w.arguments
    at = [w.load(places, k, "ptr") for k in range(count)]
    return w, at, [w.load(steps, k, "i64") for k in range(count)], sizes


def _call_near(
    loop: Writer, inner: str, ty: str, at: list[Value], step: list[Value], n: Value, arrays: int
) -> None:
    """Call `inner` for all elements at once where these lie without gaps; else they are brought
    together, and put where they belong, so many at a time; one by one where numbers differ.
    """
    size, out = BYTES[ty], len(at) - 1
    same = loop.value(True, "i1")
    for by in step[arrays:out]:
        same = loop.logical_and(same, by == 0)
    close = same
    for by in (*step[:arrays], step[out]):
        close = loop.logical_and(close, by == size)
    together, apart = loop.branch(close)
    with together:
        loop.call(inner, "void", *at, n)
    with apart:
        near = [loop.on_stack(STRETCH, ty) for _ in range(arrays)]
        stretch = loop.where(same, loop.value(STRETCH, "i64"), loop.value(1, "i64"))
        with loop.loop(0, n, stretch) as begin:
            count = loop.minimum(n - begin, stretch)
            for place, by, here in zip(at, step, near, strict=False):
                with loop.loop(0, count) as k:
                    there = loop.offset(place, (begin + k) * by, "i8")
                    loop.store(here, k, loop.load(there, 0, ty), ty)
            numbers = [
                loop.offset(place, begin * by, "i8")
                for place, by in zip(at[arrays:out], step[arrays:out], strict=True)
            ]
            loop.call(inner, "void", *near, *numbers, near[0], count)
            with loop.loop(0, count) as k:
                there = loop.offset(at[out], (begin + k) * step[out], "i8")
                loop.store(there, 0, loop.load(near[0], k, ty), ty)


class _Inlined(KernelFunction):
    """A formula whose functions are written out in it."""

    format: Format

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name in _IN_DOUBLES:
            return lambda x: self.convert(DOUBLES[name](self, self.convert(x, "double")), x.ty)
        formula = FUNCTIONS.get(name)
        if formula is None:
            return super().__getattr__(name)
        return lambda x: formula(self, self.format, x)


@contextmanager
def mode_kept(w: Writer) -> Iterator[None]:
    """Leave the processor's flags and mode as they were, whatever is computed."""
    if not host.target().triple.startswith("x86_64"):
        yield
        return
    mode = w.on_stack(1, "i32")
    for word in ("stmxcsr", "ldmxcsr"):
        w.module.declare(f"declare void @llvm.x86.sse.{word}(ptr) nounwind")
    w.call("llvm.x86.sse.stmxcsr", "void", mode)
    yield
    w.call("llvm.x86.sse.ldmxcsr", "void", mode)


def exact(f: Format) -> LlvmPrinter:
    """The printer for vectors of 512 bits, which have instructions of their own in AVX-512."""
    here = host.target()
    scales = here.vector_bits == 512 and here.runs_here
    return LlvmPrinter(512 // f.bits, here.has_fma, scales)
