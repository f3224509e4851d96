"""Loop nests: the form between graph and text. Which ops share a loop, what is in registers.

A `Block` is a list of statements run in order. Most are `Group`s: one loop nest over a domain (a
shape without its sizes of 1) whose items run for each index. An op joins the first group of its
domain that comes late enough: in the group of its operands when it reads them at the same index (a
register), after it when it reads them otherwise (memory). Reductions, dot products over rows and
scattered stores are items too, so a likelihood, its sum, its gradient and the products ``X @ b``
and ``X.T @ r`` around it end up in one pass over the data.

Movement ops make no code: they change the `Layout` by which later items read the same root. Loops,
branches, library calls and guards are statements of their own. Lifetimes are counted in statements
of the outermost block; `plan_memory` then packs all temporaries into one arena.
"""

from __future__ import annotations

import bisect
import ctypes
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from probtorch.compiler.render.parts import Parts

__all__ = [
    "MAX_IN_NEST",
    "POINTWISE",
    "Block",
    "Branch",
    "Call",
    "Group",
    "Guard",
    "Item",
    "Loop",
    "Mem",
    "MemoryBuffer",
    "Reg",
    "Root",
    "Statement",
    "address",
    "in_words",
    "squeeze",
    "squeezed",
]


# Items per scalar group: one LLVM function each, so that its time stays linear in the program's
# length.
MAX_ITEMS = 600
# Items per group over a domain: a nest that walks hundreds of arrays side by side is slower than
# several nests, what they hand on to each other included.
MAX_IN_NEST = 128
# Items that read each operand at the index of the nest and nowhere else.
POINTWISE = ("compute", "native", "demand", "reduce", "store")


class MemoryBuffer:
    """Memory of one root. `kind`: input, output, const, ref, arena, scalar, packed; `slot`: its
    number or byte offset.
    """

    __slots__ = ("dtype", "first", "kind", "last", "numel", "slot")

    def __init__(self, kind, dtype, numel, slot=None):
        self.kind, self.dtype, self.numel, self.slot = kind, dtype, numel, slot
        self.first = self.last = None

    @property
    def nbytes(self):
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


class Root:
    """A value that is computed somewhere: its group (statement index in its block) and its memory,
    if it has any.
    """

    __slots__ = ("block", "buffer", "dtype", "group", "in_register", "last_read", "shape", "value")

    def __init__(self, shape, dtype, block, group, *, in_register=False, buffer=None, value=None):
        self.shape, self.dtype, self.block, self.group = tuple(shape), dtype, block, group
        self.in_register = in_register
        self.buffer = buffer
        self.last_read = group
        self.value = value

    def read_by(self, block, group):
        """Note that a statement of a block reads it."""
        if self.block is block:
            self.last_read = max(self.last_read, group)


class Reg:
    """An operand that the same group holds in a register."""

    __slots__ = ("root",)

    def __init__(self, root):
        self.root = root


class Mem:
    """An operand in memory: a buffer read at ``offset + sum(index * stride)`` over the group's
    domain.
    """

    __slots__ = ("buffer", "offset", "strides")

    def __init__(self, buffer, offset, strides):
        self.buffer, self.offset, self.strides = buffer, offset, strides


class Item:
    """One line of a loop body.

    `kind`: "compute" (formula), "cast", "gather", "dot", "reduce", "store", "axpy"; `root` is what
    it defines (None for stores), `operands` are Reg, Mem or Python numbers, `attrs` the rest.
    """

    __slots__ = ("attrs", "kind", "node", "operands", "root")

    def __init__(self, kind, root, operands, node=None, **attrs):
        self.kind, self.root, self.operands, self.node, self.attrs = (
            kind,
            root,
            operands,
            node,
            attrs,
        )

    def written(self):
        """Yield the buffers that it writes to."""
        if "buffer" in self.attrs:
            yield self.attrs["buffer"]
        if self.root is not None and self.root.buffer is not None:
            yield self.root.buffer


class Statement:
    """A line of a block: it touches `buffers`, and may run other `blocks`."""

    buffers: Iterable[MemoryBuffer]
    blocks: tuple[Block, ...] = ()

    def all_buffers(self):
        """Yield every buffer that it touches, those of nested blocks included."""
        yield from self.buffers
        for block in self.blocks:
            for inner in block.walk():
                yield from inner.buffers


class Group(Statement):
    """A loop nest over `domain` with `items` in order; `fills` lists (buffer, number) to set before
    it runs, `scratch` buffers that only the renderer uses; `parts` is how threads share it, if they
    do (`render/parts.py`).
    """

    domain: tuple[int, ...]
    items: list[Item]
    scratch: list[MemoryBuffer]
    parts: Parts | None

    def __init__(self, domain):
        self.domain = domain
        self.items = []
        self.fills = []
        self.scratch = []
        self.parts = None

    @property
    def buffers(self):  # type: ignore[override]  # never set: items come and go
        yield from (b for b, _ in self.fills)
        yield from self.scratch
        for item in self.items:
            for x in item.operands:
                if isinstance(x, Mem):
                    yield x.buffer
            yield from item.written()


class Call(Statement):
    """A library routine on buffers; `name` selects the renderer's template. The first `keeps` of
    them it only reads.
    """

    buffers: list[MemoryBuffer]

    def __init__(self, name, buffers, node=None, *, keeps=0, **attrs):
        self.name, self.buffers, self.node, self.attrs = name, buffers, node, attrs
        self.keeps = keeps


class Guard(Statement):
    """Leave with a status unless the scalar in `buffer` equals `value`."""

    def __init__(self, buffer, value, index):
        self.buffer, self.value, self.index = buffer, value, index
        self.buffers = [buffer]


class Loop(Statement):
    """While the scalar `flag`, computed by `test`, is true: run `body`."""

    def __init__(self, test, flag, body):
        self.test, self.flag, self.body = test, flag, body
        self.blocks, self.buffers = (test, body), [flag]


class Branch(Statement):
    """Run `yes` or `no` by the scalar `flag`."""

    def __init__(self, flag, yes, no):
        self.flag, self.yes, self.no = flag, yes, no
        self.blocks, self.buffers = (yes, no), [flag]


class Block:
    """A list of statements and, for each domain, the indices of its groups."""

    def __init__(self, parent=None):
        self.parent = parent
        self.statements = []
        self.by_domain = {}

    def append(self, statement):
        """Add a statement; returns its index."""
        self.statements.append(statement)
        return len(self.statements) - 1

    def add(self, group, kind, root, operands, node=None, **attrs):
        """Add an `Item` to the group of this index."""
        self.statements[group].items.append(Item(kind, root, operands, node, **attrs))

    def walk(self):
        """Yield the statements in order, each before those of its blocks."""
        for statement in self.statements:
            yield statement
            for block in statement.blocks:
                yield from block.walk()

    def group_at(self, domain, bound):
        """Return the index of a group over `domain` at or after `bound`, new if there is none."""
        known = self.by_domain.setdefault(domain, [])
        for i in known[bisect.bisect_left(known, bound) :]:
            if len(self.statements[i].items) < (MAX_IN_NEST if domain else MAX_ITEMS):
                return i
        known.append(self.append(Group(domain)))
        return known[-1]


_word_at = ctypes.c_size_t.from_address


def _asked(array):
    return array.__array_interface__["data"][0]


_POINTER = 2 * ctypes.sizeof(ctypes.c_void_p)


def _read(array):
    return _word_at(id(array) + _POINTER).value


def _trial():
    """Whether arrays keep their address where NumPy's C interface says: behind the reference count
    and the type of the object.
    """
    whole = np.zeros((3, 4))
    arrays = (whole, whole[1:, 2:], whole.T, np.zeros(()), np.zeros(0))
    return sys.implementation.name == "cpython" and all(_read(x) == _asked(x) for x in arrays)


# The address of an array's first element. To ask takes a microsecond, most of a short call.
address = _read if _trial() else _asked


def in_words(numbers):
    """Return 0-d arrays, of 8 bytes at most, as words of 8 bytes: their own bytes, then zeros."""
    return np.frombuffer(b"".join(x.tobytes().ljust(8, b"\0") for x in numbers), np.uint64).copy()


def squeeze(shape):
    """Return the domain of a shape: without its sizes of 1."""
    return tuple(n for n in shape if n != 1)


def squeezed(strides, shape):
    """Return the strides along the dims of a shape that are not of size 1."""
    return tuple(s for s, n in zip(strides, shape, strict=True) if n != 1)
