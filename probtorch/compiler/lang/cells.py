"""Variables and arrays of a kernel function, read and written as Python does its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.nodes import Operand, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probtorch.compiler.lang.function import KernelFunction

__all__ = ["Array", "Cell", "passed"]


class Cell:
    """A variable of a function; `value` reads it, and writes it by assignment."""

    __slots__ = ("node", "writer")

    def __init__(self, writer: KernelFunction, node: nodes.Variable) -> None:
        self.writer, self.node = writer, node

    @property
    def name(self) -> str:
        return self.node.name

    def __str__(self) -> str:
        return self.node.name

    @property
    def value(self) -> Value:
        return self.writer.put(nodes.Load(self.node, self.node.ty))

    @value.setter
    def value(self, x: Operand) -> None:
        self.writer.put(nodes.Store(self.writer.value(x, self.node.ty), self.node))

    def add(self, x: Operand) -> None:
        """Add a term of a sum whose order does not matter: LLVM makes vectors of it."""
        self.value = self.writer.binary("add", self.value, x, "reassoc contract")


class Array:
    """Elements of a type in memory: ``a[i]`` reads, and writes by assignment."""

    __slots__ = ("pointer", "ty", "writer")

    def __init__(self, writer: KernelFunction, pointer: Value, ty: str) -> None:
        self.writer, self.pointer, self.ty = writer, pointer, ty

    def __getitem__(self, i: Operand) -> Value:
        return self.writer.load(self.pointer, i, self.ty)

    def __setitem__(self, i: Operand, x: Operand) -> None:
        self.writer.store(self.pointer, i, x, self.ty)

    __iter__ = None

    def at(self, i: Operand, ty: str = "") -> Array:
        """Return what begins at element `i`; of another type if one is given."""
        return Array(self.writer, self.writer.offset(self.pointer, i, self.ty), ty or self.ty)

    def copy(self, source: Array, count: Operand) -> None:
        """Take over the first elements of another array, which does not overlap."""
        with self.writer.loop(0, count) as i:
            self[i] = source[i]

    def dot(self, other: Array, count: Operand) -> Value:
        """Return the sum of the products of the first elements, in any order."""
        total = self.writer.variable(self.ty, 0.0)
        with self.writer.loop(0, count) as i:
            total.add(self[i] * other[i])
        return total.value


def passed(arguments: Sequence[Value | Array]) -> list[Value]:
    """Return what a call passes: of arrays where they begin."""
    return [x.pointer if isinstance(x, Array) else x for x in arguments]
