"""`CudaWriter`: the runtime's scalar functions as CUDA C.

render/runtime/incomplete.py writes derivatives of incomplete gamma and beta functions with a
`Writer` of IR. `CudaText` hands out writers of C instead, with the same names; so the formulas
stand once. Only functions of numbers can be written so: there are no pointers here.
"""

from contextlib import contextmanager

from probtorch.compiler.render import runtime
from probtorch.compiler.render.algebra import V
from probtorch.compiler.render.cuda_algebra import C_TYPES, CudaAlgebra, spell

__all__ = ["module_text", "writable"]

# Modules of render/runtime that are written with the names below alone.
_MODULES = ("incomplete gamma", "incomplete beta", "angles")


def writable(symbol):
    """Return whether a function of render/runtime can be written as CUDA C."""
    return runtime.knows(symbol) and runtime.module_of(symbol).startswith(_MODULES)


def module_text(symbol):
    """Return the module that defines a function, and the names of what it needs first."""
    name = runtime.module_of(symbol)
    text = _Text(f"t{'_'.join(name.split())}")
    runtime.write_module(name, text)
    return name, "\n".join([*text.tables, *text.functions, ""]), text.runtime


class _Text:
    """A module being written; see `Text` in writer.py."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.tables, self.functions, self.runtime = [], [], set()

    def function(self, name, result, parameters, **options):
        """Return the writer of a function."""
        return CudaWriter(self, name, result, parameters)

    def table(self, numbers, ty="double"):
        """Return the name of a constant array of numbers."""
        name = f"{self.prefix}_{len(self.tables)}"
        items = ", ".join(spell(x, ty) for x in numbers)
        self.tables.append(
            f"static __device__ const {C_TYPES[ty]} {name}[{len(numbers)}] = {{{items}}};"
        )
        return name


class _Variable:
    """A variable of a function; `value` reads it, and writes it by assignment."""

    def __init__(self, writer, name, ty):
        self.writer, self.name, self.ty = writer, name, ty

    @property
    def value(self):
        return self.writer.emit(self.name, self.ty)

    @value.setter
    def value(self, x):
        self.writer.lines.append(f"{self.name} = {self.writer.value(x, self.ty).name};")


class CudaWriter(CudaAlgebra):
    """Writes one function; `finish` adds it to the module."""

    def __init__(self, text, name, result, parameters):
        super().__init__(text)
        self.name, self.result = name, result
        self.cells = []
        self.arguments = [V(f"q{i}", ty, self) for i, ty in enumerate(parameters)]

    def variable(self, ty, start=None):
        """Return a new variable, set to `start` here."""
        name = self.fresh("a")
        # Declared at the head: its value may be read behind the block that it is set in.
        self.cells.append(f"{C_TYPES[ty]} {name};")
        out = _Variable(self, name, ty)
        if start is not None:
            out.value = start
        return out

    def whole(self, n):
        """Return a number as an i64 value."""
        return self.value(n, "i64")

    def as_float(self, n, ty="double"):
        """Return an i64 as a float."""
        return self.convert(n, ty)

    def entry(self, table, index, ty="double"):
        """Return element `index` of a constant table."""
        return self.emit(f"{table}[{self.whole(index).name}]", ty)

    def call(self, name, result, *args):
        """Call another function of this module."""
        return self.emit(f"{name}({', '.join(a.name for a in args)})", result)

    @contextmanager
    def loop(self, start, stop):
        """Run the body for i = start, ..., stop - 1; gives i."""
        i = self.fresh("i")
        first, last = self.whole(start).name, self.whole(stop).name
        self.lines.append(f"for (i64 {i} = {first}; {i} < {last}; ++{i}) {{")
        yield V(i, "i64", self)
        self.lines.append("}")

    @contextmanager
    def repeat_while(self, condition):
        """Run the body while ``condition()``, evaluated before each round, holds."""
        self.lines.append("for (;;) {")
        holds = self.truth(condition())
        self.lines.append(f"if (!{holds.name}) break;")
        yield
        self.lines.append("}")

    @contextmanager
    def when(self, c):
        """Run the body if `c` holds."""
        self.lines.append(f"if ({self.truth(c).name}) {{")
        yield
        self.lines.append("}")

    def finish(self, result):
        """Return `result`, close the function, and add it to the module."""
        params = ", ".join(f"{C_TYPES[a.ty]} {a.name}" for a in self.arguments)
        body = "\n".join([*self.cells, *self.lines, f"return {result.name};"])
        self.module.functions.append(
            f"static __device__ {C_TYPES[self.result]} {self.name}({params}) {{\n{body}\n}}"
        )
