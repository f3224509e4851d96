"""`Writer`: functions of the runtime, written in Python as one would write them in C.

A function of a loop nest is straight-line text inside loops (`nest.py`). Sorting, factorising and
drawing by rejection have loops and branches of their own: a `Writer` is the text algebra with
variables, memory and control flow, as context managers. What is under ``with w.loop(0, n) as i:``
is the loop's body. Variables are stack cells, which LLVM turns into registers.
"""

from contextlib import contextmanager

from probtorch.compiler import library
from probtorch.compiler.render.algebra import Algebra, V, in_memory, literal

__all__ = ["Text", "Variable", "Writer"]


class Text:
    """A module being written: declarations, constants, functions; which runtime functions it calls.

    It stands where a compiled program's own module stands for `Algebra`.
    """

    def __init__(self):
        self.declarations = {}
        self.runtime = set()
        self.helpers = set()
        self.functions = []

    def declare(self, line):
        """Add a line at the head of the module, once."""
        self.declarations[line] = None

    def function(self, name, result, parameters, **options):
        """Return the writer of a function; see `Writer`."""
        return Writer(self, name, result, parameters, **options)

    def table(self, numbers, ty="double"):
        """Return the name of a constant array of numbers."""
        items = ", ".join(f"{ty} {literal(x, ty)}" for x in numbers)
        name = f"@table{len(self.declarations)}"
        self.declare(f"{name} = private constant [{len(numbers)} x {ty}] [{items}]")
        return name


class Variable:
    """A stack cell of a function; `value` reads it, and writes it by assignment."""

    __slots__ = ("name", "ty", "writer")

    def __init__(self, writer, name, ty):
        self.writer, self.name, self.ty = writer, name, ty

    @property
    def value(self):
        return self.writer.load_at(self.name, self.ty)

    @value.setter
    def value(self, x):
        self.writer.store_at(self.writer.value(x, self.ty), self.name)


class Writer(Algebra):
    """Writes one function; `finish` adds it to the module.

    Parameters
    ----------
    text : Text
    name : str
        Without the ``@``.
    result : str
        IR type, or "void".
    parameters : sequence of str
        IR types.
    linkage : str
        "" for functions that others call, "internal " for helpers.
    attributes : str
        Of the function, in IR.
    flags : str
        Fast-math flags of arithmetic; "contract" as in loop nests, "" where each operation must be
        rounded by itself.
    """

    def __init__(
        self, text, name, result, parameters, *, linkage="", attributes="nounwind", flags="contract"
    ):
        super().__init__(text)
        self.name, self.result, self.types, self.linkage = name, result, parameters, linkage
        self.attributes, self.flags = attributes, flags
        self.cells = []
        self.labels = 0
        self.arguments = [V(f"%a{i}", ty, self) for i, ty in enumerate(parameters)]

    def binary(self, op, a, b, flags=None):
        return super().binary(op, a, b, self.flags if flags is None else flags)

    # ----------------------------------------------------------------------------------- variables

    def variable(self, ty, start=None):
        """Return a new variable, set to `start` here."""
        name = self.fresh("c")
        self.cells.append(f"  {name} = alloca {in_memory(ty)}")
        out = Variable(self, name, ty)
        if start is not None:
            out.value = start
        return out

    def on_stack(self, count, ty):
        """Return a pointer to `count` elements on the stack, not set to anything."""
        name = self.fresh("c")
        self.cells.append(f"  {name} = alloca [{count} x {in_memory(ty)}], align 64")
        return V(name, "ptr", self)

    @property
    def integer(self):
        """The IR type of LAPACK's integers."""
        return library.integer_type()

    def integer_variable(self):
        """Return a variable for an integer that LAPACK writes."""
        return self.variable(self.integer)

    def whole(self, n):
        """Return a number as an i64 value."""
        return self.value(n, "i64")

    def as_float(self, n, ty="double"):
        """Return an i64 as a float."""
        return self.convert(n, ty)

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

    def entry(self, table, index, ty="double"):
        """Return element `index` of a constant table."""
        return self.load(V(table, "ptr", self), index, ty)

    def copy(self, target, source, count, ty):
        """Copy `count` elements between arrays that do not overlap."""
        with self.loop(0, count) as i:
            self.store(target, i, self.load(source, i, ty), ty)

    # ------------------------------------------------------------------------------------- control

    def _label(self, prefix):
        self.labels += 1
        return f"{prefix}{self.labels}"

    def _place(self, label):
        self.lines.append(f"{label}:")

    def _jump(self, label):
        self.lines.append(f"  br label %{label}")

    def _fork(self, c, yes, no):
        c = self.truth(c)
        self.lines.append(f"  br i1 {c.name}, label %{yes}, label %{no}")

    @contextmanager
    def loop(self, start, stop):
        """Run the body for i = start, ..., stop - 1; gives i."""
        start, stop = self.whole(start), self.whole(stop)
        cell = self.variable("i64", start)
        head, body, out = self._label("head"), self._label("body"), self._label("out")
        self._jump(head)
        self._place(head)
        i = cell.value
        self._fork(i < stop, body, out)
        self._place(body)
        yield i
        following = self.emit(f"add nuw nsw i64 {i.name}, 1", "i64")
        cell.value = following
        self._jump(head)
        self._place(out)

    @contextmanager
    def repeat_while(self, condition):
        """Run the body while ``condition()``, evaluated before each round, holds."""
        head, body, out = self._label("head"), self._label("body"), self._label("out")
        self._jump(head)
        self._place(head)
        self._fork(condition(), body, out)
        self._place(body)
        yield
        self._jump(head)
        self._place(out)

    @contextmanager
    def when(self, c):
        """Run the body if `c` holds."""
        body, out = self._label("yes"), self._label("out")
        self._fork(c, body, out)
        self._place(body)
        yield
        self._jump(out)
        self._place(out)

    def branch(self, c):
        """Return two context managers: what happens if `c` holds, and, entered next, if not."""
        yes, no, out = self._label("yes"), self._label("no"), self._label("out")
        self._fork(c, yes, no)

        @contextmanager
        def first():
            self._place(yes)
            yield
            self._jump(out)

        @contextmanager
        def second():
            self._place(no)
            yield
            self._jump(out)
            self._place(out)

        return first(), second()

    def call(self, name, result, *args):
        """Call another function of this module."""
        text = f"call {result} @{name}({', '.join(f'{a.ty} {a.name}' for a in args)})"
        if result == "void":
            self.lines.append(f"  {text}")
            return None
        return self.emit(text, result)

    def fortran(self, symbol, *args):
        """Call a BLAS or LAPACK routine; integers and letters are passed by pointer too."""
        self.module.declare(library.declaration(symbol))
        pointers = []
        for a in args:
            if isinstance(a, Variable):
                pointers.append(a.name)
            elif isinstance(a, str):
                pointers.append(self.variable("i8", ord(a)).name)
            elif isinstance(a, V) and a.ty == "ptr":
                pointers.append(a.name)
            else:
                n = self.convert(self.value(a, self.integer), self.integer)
                pointers.append(self.variable(self.integer, n).name)
        text = ", ".join(f"ptr {p}" for p in pointers)
        self.lines.append(f"  call void @{symbol}({text})")

    def finish(self, result=None):
        """Return `result`, close the function, and add it to the module."""
        typed = ", ".join(f"{a.ty} {a.name}" for a in self.arguments)
        head = f"define {self.linkage}{self.result} @{self.name}({typed}) {self.attributes}"
        ending = "  ret void" if result is None else f"  ret {result.ty} {result.name}"
        self.module.functions.append(
            "\n".join(
                [
                    f"{head} {{",
                    "entry:",
                    *self.cells,
                    *self.lines,
                    ending,
                    "}",
                ]
            )
        )
