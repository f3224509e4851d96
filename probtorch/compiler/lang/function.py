"""`KernelFunction`: a routine, written in Python as one would write it in C.

A formula is straight-line code. A routine has variables, loops and branches of its own, as context
managers: what is under ``with w.loop(0, n) as i:`` is the loop's body. `choose`, `either` and
`until` are the same for code that serves arrays as well (`ops/rejection.py`, `ops/incomplete.py`):
there they pick the elements that go on.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.builder import Builder, CodeModule, Printer
from probtorch.compiler.lang.cells import Array, Cell, passed
from probtorch.compiler.lang.nodes import Operand, Value

__all__ = ["FunctionOptions", "KernelFunction", "KernelRoutine", "RoutineModule"]


class FunctionOptions(TypedDict, total=False):
    """What a `KernelFunction` may be told besides its name and types."""

    linkage: str
    attributes: str
    flags: str
    uniform: Sequence[int]
    grid: bool


class RoutineModule(ABC):
    """A module that is being written: functions, tables of constants, and what else it calls."""

    printer: Printer

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.runtime: set[str] = set()
        self.tables: dict[str, str] = {}

    def function(
        self,
        name: str,
        result: str,
        parameters: Iterable[str],
        **options: Unpack[FunctionOptions],
    ) -> KernelFunction:
        """Return the writer of a function; see `KernelFunction`."""
        return KernelFunction(self, self.printer, name, result, parameters, **options)

    @abstractmethod
    def table(self, numbers: Iterable[float], ty: str) -> str:
        """Return the name of a constant array of numbers."""


class KernelFunction(Builder):
    """Writes one function; `finish` adds it to the module.

    Parameters
    ----------
    module : CodeModule
    printer : Printer
    name : str
    result : str
        Type, or "void".
    parameters : sequence of str
        Types.
    linkage : str
        "" for functions that others call, "internal" for helpers.
    attributes : str
        Of the function, in IR.
    flags : str
        As for `Builder`.
    uniform : sequence of int
        Parameters that are one number where others are vectors.
    grid : bool
        Whether the threads of several blocks run it together; a processor's one thread runs it all.
    """

    def __init__(
        self,
        module: CodeModule,
        printer: Printer,
        name: str,
        result: str,
        parameters: Iterable[str],
        *,
        linkage: str = "",
        attributes: str = "nounwind",
        flags: str = "contract",
        uniform: Sequence[int] = (),
        grid: bool = False,
    ) -> None:
        super().__init__(module, printer, flags=flags)
        self.name, self.result, self.parameters = name, result, list(parameters)
        self.linkage, self.attributes, self.uniform = linkage, attributes, uniform
        self.grid = grid
        self.cells: list[str] = []
        self.labels = 0
        self.block = "entry"
        self.marks: dict[int, str] = {}
        self.arguments = [
            Value(printer.argument(i), ty, self) for i, ty in enumerate(self.parameters)
        ]

    def parameter(self, ty: str, marks: str = "") -> Value:
        """Return a further parameter; `marks` are its attributes, in IR."""
        i = len(self.parameters)
        self.parameters.append(ty)
        self.marks[i] = f"{marks} "
        self.arguments.append(Value(self.printer.argument(i), ty, self))
        return self.arguments[-1]

    @contextmanager
    def at_head(self) -> Iterator[None]:
        """Write at the head of the function, what must be there or is the same in each turn."""
        lines, self.lines = self.lines, self.cells
        yield
        self.lines = lines

    def label(self, prefix: str) -> str:
        """Return a new label."""
        self.labels += 1
        return f"{prefix}{self.labels}"

    # ----------------------------------------------------------------------------------- variables

    def variable(self, ty: str, start: Operand | None = None) -> Cell:
        """Return a new variable, set to `start` here."""
        node = nodes.Variable(self.fresh("c"), ty)
        self.put(node)
        out = Cell(self, node)
        if start is not None:
            out.value = start
        return out

    def whole(self, n: Operand) -> Value:
        """Return an integer as an i64 value."""
        return self.convert(self.value(n, "i64"), "i64")

    def as_float(self, n: Value, ty: str = "double") -> Value:
        """Return an i64 as a float."""
        return self.convert(n, ty)

    def call(self, name: str | Value, result: str, *args: Value | Array) -> Value:
        """Call another function of this module, or the one at an address."""
        return self.put(nodes.Call(name, result, passed(args)))

    # -------------------------------------------------------------------------------------- memory

    def array(self, pointer: Value, ty: str) -> Array:
        """Return what a pointer points to."""
        return Array(self, pointer, ty)

    def table(self, numbers: Iterable[float], ty: str = "double") -> Array:
        """Return a constant array."""
        # Only routines have tables.
        module = cast("RoutineModule", self.module)
        return Array(self, Value(module.table(numbers, ty), "ptr", self), ty)

    def on_stack(self, count: int, ty: str) -> Value:
        """Return the place of `count` elements of this function's own, not set to anything."""
        node = nodes.Variable(self.fresh("c"), ty, count)
        self.put(node)
        return Value(node.name, "ptr", self)

    def offset(self, pointer: Value, index: Operand, ty: str) -> Value:
        """Return the place of element `index` of an array of `ty`."""
        return self.put(nodes.Offset(pointer, self.whole(index), ty))

    def load(self, pointer: Value, index: Operand, ty: str) -> Value:
        """Return element `index` of an array."""
        return self.load_at(self.offset(pointer, index, ty), ty)

    def store(self, pointer: Value, index: Operand, x: Operand, ty: str) -> None:
        """Write element `index` of an array."""
        self.store_at(self.value(x, ty), self.offset(pointer, index, ty))

    def atomic(self, op: str, pointer: Value, x: Operand = 0, old: Operand | None = None) -> Value:
        """Read or change an i64 that threads share; see `nodes.Atomic`."""
        before = None if old is None else self.whole(old)
        return self.put(nodes.Atomic(op, pointer, self.whole(x), before))

    # ------------------------------------------------------------------------------------- control

    @contextmanager
    def loop(
        self,
        start: Operand,
        stop: Operand,
        step: Value | int = 1,
        *,
        certain: bool = False,
        unroll: bool = False,
        rolled: bool = False,
    ) -> Iterator[Value]:
        """Run the body for i = start, start + step, ... below stop; gives i.

        `certain` where that is known to be one turn or more; `unroll` where all should be written
        out, `rolled` where they are to stay a loop, which is `certain`.
        """
        first = start if isinstance(start, Value) else self.whole(start)
        last = self.convert(self.value(stop, first.ty), first.ty)
        node = nodes.For(first, last, step, certain, unroll, rolled)
        yield self.put(node)
        self.put(nodes.End(node))

    @contextmanager
    def repeat_while(self, condition: Callable[[], Operand]) -> Iterator[None]:
        """Run the body while ``condition()``, evaluated before each round, holds."""
        node = nodes.Loop()
        self.put(node)
        self.put(nodes.Break(node, self.truth(condition())))
        yield
        self.put(nodes.End(node))

    @contextmanager
    def when(self, c: Operand) -> Iterator[None]:
        """Run the body if `c` holds."""
        node = nodes.If(self.truth(c), False)
        self.put(node)
        yield
        self.put(nodes.End(node))

    def branch(
        self, c: Operand
    ) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return two context managers: what happens if `c` holds, and, entered next, if not."""
        node = nodes.If(self.truth(c), True)

        @contextmanager
        def first() -> Iterator[None]:
            self.put(node)
            yield
            self.put(nodes.End(node, other=True))

        @contextmanager
        def second() -> Iterator[None]:
            yield
            self.put(nodes.End(node))

        return first(), second()

    def leave_if(self, c: Operand, x: Operand | None = None) -> None:
        """Return `x` from the function if `c` holds."""
        result = None if x is None else self.value(x, self.result)
        self.put(nodes.Leave(self.truth(c), result))

    # -------------------------------------------------------------- threads, of which a CPU has one

    @property
    def thread(self) -> Value:
        """The number of this thread in its block."""
        return Value(self.printer.thread, "i64", self)

    @property
    def threads(self) -> int:
        """How many threads a block has."""
        return self.printer.threads

    def barrier(self, *, everyone: bool = False) -> None:
        """Wait for the other threads of the block, or for those of all blocks."""
        self.put(nodes.Barrier(everyone))

    def fail_if(self, bad: Value) -> None:
        """Note that this run does not count where `bad` holds."""
        self.put(nodes.Fail(bad))

    def blocks(self, count: Operand, step: Value | int = 1) -> AbstractContextManager[Value]:
        """Share 0, step, ... below `count` among the blocks."""
        block, blocks = self.team
        return self.loop(block * step, count, blocks * step)

    @property
    def team(self) -> tuple[Value, Value]:
        """The number of this block among those that run the function, and how many these are."""
        return Value(self.printer.block, "i64", self), Value(self.printer.blocks, "i64", self)

    def on_grid(self, symbol: str, result: str, *args: Value | Array) -> Value:
        """Call a function of several blocks from another."""
        own = [Value(name, "ptr", self) for name in self.printer.grid]
        return self.runtime(symbol, result, *own, *args)

    @contextmanager
    def share(
        self, *sizes: Operand, step: Value | int = 1, everyone: bool = False
    ) -> Iterator[Any]:
        """Share indices i = 0, ..., size - 1 among the threads of the block, or of all blocks; of
        two sizes in all combinations, the second one's in steps of `step`.
        """
        if self.threads == 1:
            *outer, size = sizes
            with ExitStack() as loops:
                indices = [loops.enter_context(self.loop(0, n)) for n in outer]
                last = loops.enter_context(self.loop(0, size, step))
                yield (*indices, last) if outer else last
            return
        block, blocks = self.team if everyone else (self.whole(0), self.whole(1))
        first, apart = block * self.threads + self.thread, blocks * self.threads
        *rows, size = map(self.whole, sizes)
        step = self.whole(step)
        count = (size + step - 1) // step
        with self.loop(first, functools.reduce(operator.mul, rows, count), apart) as t:
            last = t % count * step if rows else t * step
            yield (t // count, last) if rows else last

    # ------------------------------------------------------------- control that arrays have as well

    def choose(
        self,
        condition: Operand,
        yes: Callable[..., Operand],
        no: Callable[..., Operand],
        operands: Sequence[Operand],
    ) -> Value:
        """Branch: the result of ``yes(s, *operands)`` or of ``no(s, *operands)``."""
        out = self.variable("double")
        first, second = self.branch(condition)
        with first:
            out.value = yes(self, *operands)
        with second:
            out.value = no(self, *operands)
        return out.value

    def either(
        self, condition: Operand, test: Callable[..., Operand], operands: Sequence[Operand]
    ) -> Value:
        """Whether `condition` holds, or else ``test(s, *operands)``."""
        out = self.variable("i1", condition)
        with self.when(self.logical_not(condition)):
            out.value = test(self, *operands)
        return out.value

    def until(
        self,
        step: Callable[..., tuple[Operand, Iterable[Operand]]],
        state: Sequence[Value],
        operands: Sequence[Operand] = (),
    ) -> tuple[Value, ...]:
        """Repeat ``done, state = step(s, *state, *operands)`` until it is done."""
        cells = [self.variable(x.ty, x) for x in state]
        done = self.variable("i1", 0)
        with self.repeat_while(lambda: self.logical_not(done.value)):
            finished, following = step(self, *(c.value for c in cells), *operands)
            done.value = finished
            for cell, x in zip(cells, following, strict=True):
                cell.value = x
        return tuple(c.value for c in cells)

    def hypot(self, a: Value, b: Value) -> Value:
        """Return sqrt(a^2 + b^2) of numbers >= 0, without overflow."""
        top = self.maximum(a, b)
        ratio = self.minimum(a, b) / top
        return self.where(top == 0.0, 0.0, top * self.sqrt(1.0 + ratio * ratio))

    def fold(
        self,
        start: int,
        stop: int,
        step: Callable[..., Iterable[Operand]],
        state: Sequence[Operand],
    ) -> tuple[Value, ...]:
        """Return the state after ``state = step(s, k, *state)`` for k = start, ..., stop - 1."""
        cells = [self.variable("double", x) for x in state]
        with self.loop(start, stop) as i:
            following = step(self, self.as_float(i), *(c.value for c in cells))
            for cell, x in zip(cells, following, strict=True):
                cell.value = x
        return tuple(c.value for c in cells)

    def series(
        self,
        count: int,
        ratio: Callable[..., Operand],
        parts: Callable[..., Iterable[Operand]],
        starts: Sequence[float],
        operands: Sequence[Operand],
    ) -> list[Value]:
        """Add ``parts(term, k, *operands)`` to `starts` for k = 1, ..., count, where each term is
        ``ratio(k, *operands)`` times the one before, which was 1.
        """
        sums, term = [self.variable("double", x) for x in starts], self.variable("double", 1.0)
        with self.loop(1, count + 1) as i:
            k = self.as_float(i)
            term.value = term.value * ratio(k, *operands)
            for total, part in zip(sums, parts(term.value, k, *operands), strict=True):
                total.value = total.value + part
        return [total.value for total in sums]

    def quadrature(
        self,
        rule: Sequence[Sequence[float]],
        integrand: Callable[..., Operand],
        low: Operand,
        width: Value,
        operands: Sequence[Operand],
    ) -> Value:
        """Integrate ``integrand(s, at, *operands)`` from `low` to `low` + `width`."""
        places, weights = (self.table(x) for x in rule)
        total = self.variable("double", 0.0)
        with self.loop(0, len(rule[0])) as i:
            at = low + width * places[i]
            term = integrand(self, at, *operands) * weights[i]
            total.add(term)
        return width * total.value

    def panels(
        self,
        length: Value,
        cuts: Iterable[Operand],
        integral: Callable[..., Operand],
        operands: Sequence[Operand],
    ) -> Value:
        """Add up ``integral(s, low, width, *operands)`` over the parts of [0, length]."""
        total, low = self.variable("double", 0.0), self.variable("double", 0.0)
        places = [self.value(c, "double") for c in cuts]
        with self.repeat_while(lambda: low.value < length):
            here, end = low.value, length
            for c in places:
                end = self.where(self.logical_and(c > here, c < end), c, end)
            total.value = total.value + integral(self, here, end - here, *operands)
            low.value = end
        return total.value

    @functools.cached_property
    def failed(self) -> Cell:
        """Whether anything has failed; on a processor the function returns it."""
        with self.at_head():
            return self.variable("i1", False)

    def finish(self, result: Value | None = None) -> None:
        """Return `result`, close the function, and add it to the module."""
        self.module.functions.append(self.printer.function(self, result))


@dataclass(frozen=True)
class KernelRoutine:
    """A function of the language: what it takes and gives, and what writes its body.

    Attributes
    ----------
    body : callable
        Takes the writer and the arguments; returns the result, or None.
    parameters : str
        Types, with spaces between; "double*" is where doubles are, which the body gets as `Array`.
    result : str
        Type, or "void".
    flags : str
        As for `Builder`.
    grid : bool
        As for `KernelFunction`.
    """

    body: Callable[..., Value | None]
    parameters: str = "double"
    result: str = "double"
    flags: str = "contract"
    grid: bool = False

    @property
    def types(self) -> list[str]:
        """Types of the parameters, of which pointers are one."""
        return ["ptr" if ty.endswith("*") else ty for ty in self.parameters.split()]

    def write(self, module: RoutineModule, name: str, linkage: str = "") -> None:
        """Write the function into a module."""
        w = module.function(
            name, self.result, self.types, linkage=linkage, flags=self.flags, grid=self.grid
        )
        given = zip(self.parameters.split(), w.arguments, strict=True)
        w.finish(self.body(w, *(w.array(x, ty[:-1]) if ty[-1] == "*" else x for ty, x in given)))
