"""Phases of loop nests as device functions.

A sibling of `nest.py`: what each item does is in `items.py`. Every function takes the arrays
outside of the program's memory. It loops over its work by the numbers of block and thread, so that
it gives the same result however many blocks run it: as a kernel of its own over a large nest, or
beside others in one block.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from probtorch.compiler.lang.builder import CodeModule
from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.cuda import CUDA, THREADS
from probtorch.compiler.lang.nodes import Operand, Value
from probtorch.compiler.lang.routines.blocks import better, combined, of_block
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import Group, Mem, MemoryBuffer, Reg, Statement
from probtorch.compiler.render.cuda_math import knows
from probtorch.compiler.render.cuda_phases import Phase
from probtorch.compiler.render.cuda_schedule import Schedule
from probtorch.compiler.render.items import Items, kept_strides, kind_of, summed_type
from probtorch.errors import CompileError

__all__ = ["KernelModule", "Piece", "write_phase"]

# Blocks of a kernel at most; their threads loop.
_MAX_BLOCKS = 4096
# Slices up to which one thread adds up the parts of a sum.
_SHORT_SECOND = 16
# Offsets up to which loop counters have 32 bits, which GPUs divide faster.
_SHORT = 2**30


@dataclass(frozen=True)
class Piece:
    """One device function: its name, the outside buffers it takes, blocks of its own kernel, the
    number of steps it makes in all.
    """

    name: str
    outside: tuple[MemoryBuffer, ...]
    blocks: int
    work: int


class KernelModule(CodeModule, Protocol):
    """The text of a program for GPUs, and where its memory lies.

    Attributes
    ----------
    kernels : list of str
        Those that are finished.
    out : Schedule
        What will run them.
    """

    kernels: list[str]
    out: Schedule

    def function_name(self) -> str:
        """Return a new name."""

    def offset(self, b: MemoryBuffer) -> int | None:
        """Return where a buffer lies in the memory; None if it is outside."""

    def pieces(self, group: Group) -> Sequence[Piece]:
        """Return the device functions of a group."""

    def small(self, s: Statement) -> bool:
        """Whether one block should run a statement."""


def write_phase(module: KernelModule, group: Group, phase: Phase) -> list[Piece]:
    """Write the functions of a phase of a group; returns them in order."""
    w = _PhaseWriter(module, group, phase)
    pieces = [w.piece(*getattr(w, f"write_{phase.kind}")())]
    for item in phase.items:
        if phase.kind != "fill" and id(item) in phase.partial:
            w = _PhaseWriter(module, group, phase)
            pieces.append(w.piece(*w.add_slices(item)))
    return pieces


class _PhaseWriter(Items):
    """Writes one function of a phase; `write_KIND` returns its steps and threads."""

    module: KernelModule

    def __init__(self, module: KernelModule, group: Group, phase: Phase) -> None:
        super().__init__(module, CUDA, group, module.function_name(), grid=True)
        self.phase = phase
        self.bases: dict[int, Value] = {}
        self.outside: list[MemoryBuffer] = []
        operands = [] if phase.kind == "fill" else [x for i in phase.items for x in i.operands]
        buffers = [x.buffer for x in operands if isinstance(x, Mem)] + [*self.written.values()]
        if phase.kind == "fill":
            buffers.append(phase.items[0][0])
        several = max(phase.slices, phase.table.get("owners", 1))
        extents = math.prod(group.domain), phase.rows * several, phase.length
        # The type of loop counters.
        self.ty = "i32" if max(*extents, *(b.numel for b in buffers)) < _SHORT else "i64"

    def piece(self, work: int, threads: int) -> Piece:
        """Close the function."""
        self.finish()
        blocks = max(1, min(_MAX_BLOCKS, -(-threads // THREADS)))
        return Piece(self.name, tuple(self.outside), blocks, work)

    # --------------------------------------------------------------------------------------- memory

    def base(self, b: MemoryBuffer) -> tuple[Value, int]:
        """Return where a buffer begins, and how many bytes behind it does."""
        if id(b) not in self.bases:
            at = self.module.offset(b)
            if at is None:
                self.outside.append(b)
                self.bases[id(b)] = self.parameter("ptr")
            else:
                with self.at_head():
                    self.bases[id(b)] = self.emit(f"M + {at}", "ptr")
        return self.bases[id(b)], 0

    def type_of(self, b: MemoryBuffer) -> str:
        """Return the type of the elements of a buffer."""
        return ir_type(b.dtype)

    def _array(self, b: MemoryBuffer) -> Array:
        return self.array(self.base(b)[0], ir_type(b.dtype))

    def read(self, x, ty=None):
        """Return an operand's value; those of other phases come from memory."""
        if isinstance(x, Reg) and id(x.root) not in self.registers:
            self.registers[id(x.root)] = self.load_at(
                self.address(x.root.buffer, 0, kept_strides(x.root.shape)), ir_type(x.root.dtype)
            )
        return super().read(x, ty)

    # ---------------------------------------------------------------------------------------- loops

    def _all(self, count: int, *, teams: bool = False) -> AbstractContextManager[Value]:
        """Share indices below `count` among all threads, or among the blocks as `teams`."""
        block, blocks = (self.convert(x, self.ty) for x in self.team)
        if teams:
            return self.loop(block, count, blocks)
        return self.loop(block * THREADS + self._thread(), count, blocks * THREADS)

    def _along(self, start: Value, stop: Operand, *, teams: bool) -> AbstractContextManager[Value]:
        """Run from `start` to `stop`, or share that among the threads of a team."""
        return self.loop(start + self._thread() if teams else start, stop, THREADS if teams else 1)

    def _thread(self) -> Value:
        return self.convert(self.thread, self.ty)

    def _indices(self, number: Value, sizes: Sequence[int]) -> list[Value | None]:
        """Return the indices of a row-major number; None along dims of size 1."""
        found: list[Value | None] = []
        step, total = 1, math.prod(sizes)
        for n in reversed(sizes):
            i = number if step == 1 else number // step
            found.append(None if n == 1 else i if step * n == total else i % n)
            step *= n
        return found[::-1]

    def _at(self, dims: Iterable[int], indices: Iterable[Value | None]) -> None:
        """Set the index, whose dims are listed in another order."""
        at = dict(zip(dims, indices, strict=True))
        self.index = [at[d] for d in range(len(at))]

    def inner(self, size):
        """Begin an inner loop; gives its index."""
        return self.loop(0, size)

    # ---------------------------------------------------------------------------------------- items

    def _form_of(self, kind):
        return getattr(type(self), f"_item_{kind}", None) or _refuse(kind)

    def _call(self, symbol, ty, operands):
        if not knows(symbol):
            _refuse(symbol)
        return self.runtime(symbol, ty, *operands)

    def _item_reduce(self, item):
        kind, ty = item.attrs["reduce"], summed_type(item)
        v = self.convert(self.read(item.operands[0], ty), ty)
        if self._trivial(item):
            target = self.address(item.root.buffer, 0, item.attrs["strides"])
            self.store_at(self.whole(0) if kind in ("argmax", "argmin") else v, target)
            return
        total, best = self.totals[id(item)].cell, self.totals[id(item)].best
        if best is None:
            total.value = combined(self, kind, total.value, v)
            return
        place = self.whole(self.term)
        with self.when(better(self, kind, v, place, total.value, best.value)):
            total.value, best.value = v, place

    def _trivial(self, item):
        return item.attrs["depth"] == len(self.group.domain)

    # --------------------------------------------------------------------------------------- phases

    def write_fill(self):
        ((buffer, value),) = self.phase.items
        with self._all(buffer.numel) as i:
            self._array(buffer)[i] = value
        return buffer.numel, buffer.numel

    def write_map(self):
        phase, domain = self.phase, self.group.domain
        # Steps per index: the longest inner loop.
        cost = max([i.attrs.get("size", 1) for i in phase.items], default=1)
        reduces = [i for i in phase.items if i.kind == "reduce" and not self._trivial(i)]
        if not reduces:
            with self._all(math.prod(domain)) as i:
                self.index = self._indices(i, domain)
                for item in phase.items:
                    self._write_item(item)
            return math.prod(domain) * cost, math.prod(domain)

        def body(row, term):
            self.index = row + self._indices(term, domain[phase.depth :])
            self.term = term
            for item in phase.items:
                self._write_item(item)

        return math.prod(domain) * cost, self._teams(reduces, domain[: phase.depth], body)

    def _teams(self, items, row_dims, body):
        """Write sums over rows by teams of `lanes` threads; returns how many threads there are.

        Each of `items` gets variables for its sum; ``body(row indices, term)`` adds to them.
        """
        phase, teams = self.phase, self.phase.lanes > 1
        count = phase.rows * phase.slices
        with self._all(count, teams=teams) as t:
            row, part = (t // phase.slices, t % phase.slices) if phase.slices > 1 else (t, None)
            indices = self._indices(row, row_dims)
            for item in items:
                self.total_of(item, summed_type(item))
            with self._along(*self._slice(part), teams=teams) as term:
                self.registers, self.loaded = {}, {}
                body(indices, term)
            for item in items:
                total, best = self.totals[id(item)].cell, self.totals[id(item)].best
                out, found, at = item.root.buffer, (best or total).value, row
                if teams:
                    place = [best.value] if best else []
                    found = of_block(self, kind_of(item), total.value, *place)
                if part is not None and id(item) in phase.partial:
                    out, at = phase.partial[id(item)], part * phase.rows + row
                self._put_once(out, at, found, teams=teams)
        return count * phase.lanes

    def _put_once(self, out, at, found, *, teams):
        """Store what all threads of a team know, or what this thread does."""
        array = self._array(out)
        if not teams:
            array[at] = found
            return
        with self.when(self.thread == 0):
            array[at] = found

    def _slice(self, part):
        """Return where a slice of a sum begins and ends."""
        length = self.phase.length
        if part is None:
            return self.value(0, self.ty), length
        size = -(-length // self.phase.slices)
        first = part * size
        return first, self.minimum(first + size, length)

    def write_columns(self):
        (item,) = self.phase.items
        phase, domain = self.phase, self.group.domain
        dims = range(len(domain))
        kept = [] if item.kind == "axpy" else [d for d in dims if item.attrs["strides"][d]]
        summed = [d for d in dims if d not in kept]
        threads, result = phase.rows * phase.slices, ir_type(item.root.dtype)
        with self._all(threads) as t:
            m, part = t % phase.rows, t // phase.rows
            of_kept = self._indices(m, [domain[d] for d in kept])
            total = self.total_of(item, result).cell
            with self._along(*self._slice(part), teams=False) as term:
                of_summed = self._indices(term, [domain[d] for d in summed])
                self._at([*kept, *summed], [*of_kept, *of_summed])
                if item.kind == "axpy":
                    matrix, vector = item.operands
                    v = self._load(matrix, (m, item.attrs["step"])) * self.read(vector, result)
                else:
                    v = self.convert(self.read(item.operands[0], result), result)
                total.value = combined(self, kind_of(item), total.value, v)
            out = phase.partial.get(id(item), item.root.buffer)
            self._array(out)[t if phase.slices > 1 else m] = total.value
        return phase.rows * phase.length, threads

    def write_dot(self):
        (item,) = self.phase.items
        a, b = item.operands
        steps = item.attrs["steps"]

        def body(row, k):
            self.index = row
            product = self._load(a, (k, steps[0])) * self._load(b, (k, steps[1]))
            total = self.totals[id(item)].cell
            total.value = self._plus(total.value, product)

        return self.phase.rows * self.phase.length, self._teams([item], self.group.domain, body)

    def add_slices(self, item):
        """Add up the slices of each sum."""
        phase, kind, ty = self.phase, kind_of(item), ir_type(item.root.dtype)
        teams = phase.rows < THREADS and phase.slices > _SHORT_SECOND
        with self._all(phase.rows, teams=teams) as m:
            total = self.total_of(item, ty).cell
            with self._along(self.value(0, self.ty), phase.slices, teams=teams) as s:
                v = self._array(phase.partial[id(item)])[s * phase.rows + m]
                total.value = combined(self, kind, total.value, v)
            found = of_block(self, kind, total.value) if teams else total.value
            self._put_once(item.root.buffer, m, found, teams=teams)
        return phase.rows * phase.slices, phase.rows * (THREADS if teams else 1)

    # ----------------------------------------------------------------------------- scattered stores

    def write_scatter(self):
        (item,) = self.phase.items
        free = [d for d, s in enumerate(item.attrs["strides"]) if s]
        indexed = [d for d in range(len(self.group.domain)) if d not in free]
        known = item.attrs["sources"] is not None
        return (self._known_scatter if known else self._owned_scatter)(item, free, indexed)

    def _owned_scatter(self, item, free, indexed):
        phase, domain, a = self.phase, self.group.domain, item.attrs
        owners, step = phase.table["owners"], phase.table["step"]
        value, *index = item.operands
        with self._all(phase.rows * owners) as t:
            of_free = self._indices(t // owners, [domain[d] for d in free])
            with self.loop(self.value(0, self.ty), phase.length) as term:
                of_indexed = self._indices(term, [domain[d] for d in indexed])
                self._at([*free, *indexed], [*of_free, *of_indexed])
                at = self._element_offset(index, a["wraps"])
                with self.when(at // step % owners == self.whole(t % owners)):
                    target = self.address(a["buffer"], 0, a["strides"], (at, 1))
                    self._put(self.read(value, ir_type(a["buffer"].dtype)), target, a["mode"])
        return phase.rows * owners * phase.length, phase.rows * owners

    def _known_scatter(self, item, free, indexed):
        phase, domain, a = self.phase, self.group.domain, item.attrs
        result, teams = ir_type(a["buffer"].dtype), phase.lanes > 1
        order, places, starts, ends = (
            self._array(phase.table[k]) for k in ("order", "places", "starts", "ends")
        )
        count = phase.table["places"].numel
        with self._all(phase.rows, teams=teams) as t:
            u, f = t % count, t // count
            of_free = self._indices(f, [domain[d] for d in free])
            self._at([*free, *indexed], [*of_free, *[None] * len(indexed)])
            target = self.address(a["buffer"], 0, a["strides"], (places[u], 1))
            adding = a["mode"] == "add"
            start = self.load_at(target, result) if adding and not teams else 0
            total = self.variable(result, start)
            first = starts[u] + self.thread if teams else starts[u]
            with self.loop(first, ends[u], THREADS if teams else 1) as q:
                term = self.convert(order[q], self.ty)
                of_indexed = self._indices(term, [domain[d] for d in indexed])
                self._at([*free, *indexed], [*of_free, *of_indexed])
                v = self.read(item.operands[0], result)
                total.value = self.binary("add", total.value, v) if adding else v
            if not teams:
                self.store_at(total.value, target)
            else:
                found = of_block(self, "sum", total.value)
                with self.when(self.thread == 0):
                    self.store_at(self._plus(self.load_at(target, result), found), target)
        return phase.length * max(1, phase.rows // count), phase.rows * phase.lanes


def _refuse(what):
    raise CompileError(
        what,
        expected="an item that has a form on the GPU",
        got="one that is compiled for the CPU only",
        fix="the function runs eagerly instead",
    )
