"""`Writer`: functions for processors that call BLAS and LAPACK, which take everything by pointer.
Variables are stack cells, which LLVM turns into registers.
"""

from probtorch.compiler.lang.cells import Array, Cell
from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.llvm import LLVM, LlvmModule
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.native import library

__all__ = ["LibraryModule", "Writer"]


class Writer(KernelFunction):
    """Writes one function of a module of IR; see `KernelFunction`."""

    module: LlvmModule

    def __init__(self, text, name, result, parameters, **options):
        super().__init__(text, LLVM, name, result, parameters, **options)

    @property
    def integer(self):
        """The IR type of LAPACK's integers."""
        return library.integer_type()

    def integer_variable(self):
        """Return a variable for an integer that LAPACK writes."""
        return self.variable(self.integer)

    def symbol(self, name):
        """Return the address of a function or global variable."""
        return Value(f"@{name}", "ptr", self)

    def fortran(self, symbol, *args):
        """Call a BLAS or LAPACK routine; integers and letters are passed by pointer too."""
        self.module.declare(library.declaration(symbol))
        pointers = []
        for a in args:
            if isinstance(a, Array):
                pointers.append(a.pointer)
                continue
            if isinstance(a, str):
                a = self.variable("i8", ord(a))
            elif not isinstance(a, Cell) and not (isinstance(a, Value) and a.ty == "ptr"):
                n = self.convert(self.value(a, self.integer), self.integer)
                a = self.variable(self.integer, n)
            pointers.append(Value(a.name, "ptr", self))
        self.call(symbol, "void", *pointers)


class LibraryModule(LlvmModule):
    """A module whose functions may call libraries."""

    def function(self, name, result, parameters, **options):
        return Writer(self, name, result, parameters, **options)
