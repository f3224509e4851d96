"""`Writer`: routines on arrays in memory, for processors.

The kernel language's functions (`lang/function.py`) with pointers, and with the calls of BLAS and
LAPACK, which take everything by pointer. Variables are stack cells, which LLVM turns into
registers.
"""

from probtorch.compiler.lang.function import Cell, KernelFunction
from probtorch.compiler.lang.llvm import LLVM, in_memory
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.native import library

__all__ = ["Writer"]


class Writer(KernelFunction):
    """Writes one function of a module of IR; see `KernelFunction`."""

    def __init__(self, text, name, result, parameters, **options):
        super().__init__(text, LLVM, name, result, parameters, **options)

    def on_stack(self, count, ty):
        """Return a pointer to `count` elements on the stack, not set to anything."""
        name = self.fresh("c")
        self.cells.append(f"  {name} = alloca [{count} x {in_memory(ty)}], align 64")
        return Value(name, "ptr", self)

    @property
    def integer(self):
        """The IR type of LAPACK's integers."""
        return library.integer_type()

    def integer_variable(self):
        """Return a variable for an integer that LAPACK writes."""
        return self.variable(self.integer)

    # -------------------------------------------------------------------------------------- memory

    def offset(self, pointer, index, ty):
        """Return the pointer to element `index` of an array of `ty`."""
        index = self.whole(index)
        return self.emit(
            f"getelementptr {in_memory(ty)}, ptr {pointer.name}, i64 {index.name}", "ptr"
        )

    def load(self, pointer, index, ty):
        """Return element `index` of an array."""
        return self.load_at(self.offset(pointer, index, ty).name, ty)

    def store(self, pointer, index, x, ty):
        """Write element `index` of an array."""
        self.store_at(self.value(x, ty), self.offset(pointer, index, ty).name)

    def copy(self, target, source, count, ty):
        """Copy `count` elements between arrays that do not overlap."""
        with self.loop(0, count) as i:
            self.store(target, i, self.load(source, i, ty), ty)

    # --------------------------------------------------------------------------------------- LAPACK

    def fortran(self, symbol, *args):
        """Call a BLAS or LAPACK routine; integers and letters are passed by pointer too."""
        self.module.declare(library.declaration(symbol))
        pointers = []
        for a in args:
            if isinstance(a, Cell):
                pointers.append(a.name)
            elif isinstance(a, str):
                pointers.append(self.variable("i8", ord(a)).name)
            elif isinstance(a, Value) and a.ty == "ptr":
                pointers.append(a.name)
            else:
                n = self.convert(self.value(a, self.integer), self.integer)
                pointers.append(self.variable(self.integer, n).name)
        text = ", ".join(f"ptr {p}" for p in pointers)
        self.lines.append(f"  call void @{symbol}({text})")
