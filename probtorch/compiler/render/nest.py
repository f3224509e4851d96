"""One loop nest as one function for processors.

What each item does is in `items.py`. Every buffer is a ``noalias`` parameter, scalars and packed
constants come as one area each. Only sums, products and dot products may be
reassociated.

The function of a nest that is cut into parts (`parts.py`) has the number of the part as its first
parameter: one loop has bounds that depend on it, and what parts must not share lies elsewhere for
each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from probtorch.compiler.lang.cells import Cell
from probtorch.compiler.lang.llvm import LLVM, calls_function, in_memory
from probtorch.compiler.lang.nodes import Operand, Value
from probtorch.compiler.lang.routines.blocks import combined
from probtorch.compiler.lang.types import FLOATS, ir_type
from probtorch.compiler.native import host
from probtorch.compiler.nests.loops import POINTWISE, Group, Mem, MemoryBuffer
from probtorch.compiler.render import runtime
from probtorch.compiler.render.items import Items, kept_strides, summed_type

if TYPE_CHECKING:
    from probtorch.compiler.render.llvm import NestModule

__all__ = ["Nest", "Place", "last_loop", "reads", "writes"]

# A buffer, an offset and strides along the dims of a nest.
Place = tuple[MemoryBuffer, int, tuple[int, ...]]

# Terms of a sum in single precision that are added up before they go to its total: what bounds the
# error, for any width of vectors and where a loop is none. NumPy's sums by pairs end at 128, too.
# For 100 000 terms 256 took 4 us, 128 took 6 (AVX-512).
_STRIP = 128
# Of so many terms what is done once per strip is nothing beside the call.
_SHORT = 4096
# Of a vector of AVX-512 in single precision.
_LANES = 16
# Turns from which on the widest vectors pay: what is behind the last whole one is carried out by
# single numbers, in code of its own.
_WIDE = 64
_APART = "nounwind noinline"


def _even_strip(count: int) -> int:
    """Return the length of strips that are all as long, 0 where there is none.

    Of loops whose number of turns is a constant LLVM writes no copies for fewer turns: it takes a
    third of the time, and the code has half the size. To add up a strip's vector takes some turns:
    of 100 000 terms strips of 80 took 8 us, so those of long sums are hardly shorter than others.
    """
    least = _STRIP // 2 if count <= _SHORT else _STRIP - _LANES
    # What is left of all strips beside vectors is no more than of one.
    left = {n: count // n * (n % _LANES) for n in range(least, _STRIP + 1) if count % n == 0}
    return max((n for n in left if left[n] <= _LANES), key=lambda n: (-left[n], n), default=0)


class Nest(Items):
    """Writes the function of one loop nest."""

    module: NestModule

    def __init__(self, module, group):
        module.groups += 1
        parts = [] if group.parts is None else ["i64"]
        inlined = module.inlines(group) and len(group.items) < 100
        super().__init__(
            module,
            LLVM,
            group,
            f"nest{module.groups}",
            parameters=parts,
            linkage="internal",
            attributes="nounwind" if inlined else _APART,
        )
        self.rank, self.last = len(group.domain), last_loop(group)
        self.bases = {}
        self.own = {}

    # --------------------------------------------------------------------------------------- memory

    def base(self, b):
        """Return where a buffer, or its area, begins, and how many bytes behind it does."""
        if b in self.own:
            return self.own[b], 0
        in_area = b.kind in ("scalar", "packed")
        key = b.kind if in_area else b
        if key not in self.bases:
            marks = "noalias readonly" if key == "packed" else "noalias"
            self.bases[key] = self.parameter("ptr", marks)
        return self.bases[key], b.slot * 8 if in_area else 0

    def type_of(self, b):
        """Return the type of the elements of a buffer; a part's own total may be wider."""
        parts = self.group.parts
        own = parts.own[b].buffer if parts is not None and b in self.own else b
        return ir_type(own.dtype)

    # ------------------------------------------------------------------------------------- the nest

    def define(self):
        """Write the function; returns its name, its pointers (buffers, or "scalar" and "packed" for
        areas) and whether it returns a status.
        """
        self._write_loops()
        checked = "failed" in vars(self)
        self.result = "i64" if checked else "void"
        if host.halved() and self._is_wide():
            self.attributes = _APART  # what takes it in has other vectors
        else:
            self.attributes += host.halved()
        self.finish(self.failed.value if checked else None)
        return self.name, list(self.bases), checked

    def _is_wide(self):
        """Whether the widest vectors are worth it: where much is computed, by functions, and the
        turns behind the last whole vector are few among all.
        """
        # Rows of a few numbers are written out: then it is rows that vectors go over.
        turns = math.prod(self.group.domain)
        return turns >= _WIDE and any(map(calls_function, self.lines))

    @functools.cached_property
    def failed(self) -> Cell:
        """Not a boolean: LLVM makes vectors of loops that collect the bits of a word."""
        with self.at_head():
            return self.variable("i64", 0)

    def _write_loops(self):
        first, bounds = [0] * self.rank, list(self.group.domain)
        parts = self.group.parts
        if parts is not None:
            first[parts.dim], bounds[parts.dim] = self._part_bounds(parts, bounds[parts.dim])
        self._write_from(0, first, bounds)

    def _write_from(self, depth, first, bounds):
        """Write the loops over the dims from `depth` on, with the reductions over them."""
        if depth == self.rank:
            for item in self.group.items:
                self._write_item(item)
            return
        reduced = [i for i in self.group.items if i.kind == "reduce" and i.attrs["depth"] == depth]
        for item in reduced:
            self._begin(item)
        start, stop, deeper = first[depth], bounds[depth], depth + 1
        passed: list[Value | None] = []
        innermost = depth == self.last
        if innermost:
            inner, deeper = self.group.domain[depth + 1 :], self.rank
            start, stop = (self._times(x, math.prod(inner)) for x in (start, stop))
            passed = [None] * len(inner)
        whole = nullcontext((start, stop, None))
        with self._stretch(start, stop) if innermost else whole as (begin, end, ahead):
            with self._over(begin, end) as i:
                at = i if ahead is None else self.binary("add", ahead, i, "nuw nsw")
                self.index += [*passed, at]
                self._write_from(deeper, first, bounds)
                del self.index[depth:]
        for item in reduced:
            self._finish_reduction(item)

    def _times(self, n, factor):
        return n * factor if isinstance(n, int) else self.binary("mul", n, factor, "nuw nsw")

    @contextmanager
    def _stretch(self, start, stop) -> Iterator[tuple[Operand, Operand, Value | None]]:
        """Begin a stretch of the innermost loop, whose sums in single precision are added up by
        themselves, and then to a total in double precision: so that long sums are as accurate as
        those of eager execution. Gives where it begins and ends, and what to count from, if not 0.
        """
        if not any(total.part for total in self.totals.values()):
            yield start, stop, None
        elif isinstance(stop, int) and stop <= _STRIP:
            with self._parts_of_sums():
                yield start, stop, None
        elif start == 0 and isinstance(stop, int) and (even := _even_strip(stop)):
            with self.loop(start, stop, even, certain=True) as first, self._parts_of_sums():
                yield 0, even, first
        else:
            with self.loop(start, stop, _STRIP, certain=True) as first, self._parts_of_sums():
                yield first, self.minimum(self.binary("add", first, _STRIP, "nuw nsw"), stop), None

    @contextmanager
    def _parts_of_sums(self) -> Iterator[None]:
        """Set the sums of a stretch to zero, and add them to their totals behind it."""
        long = [total for total in self.totals.values() if total.part]
        for total in long:
            total.part.value = 0
        yield
        for total in long:
            part = self.convert(total.part.value, "double")
            total.cell.value = self._plus(total.cell.value, part)

    def _part_bounds(self, parts, steps):
        """Return where this part of `steps` begins and ends; sets what it has for itself."""
        part = self.arguments[0]
        for own in parts.own.values():
            base, _ = self.base(own.buffer)
            shift = self.binary("mul", part, own.step * own.buffer.dtype.itemsize, "nuw nsw")
            self.own[own.target] = mine = self.offset(base, shift, "i8")
            if not own.is_total:
                # What changes nothing: of sums of floats that is -0.
                ty = ir_type(own.target.dtype)
                zero = -0.0 if own.kind == "sum" and ty in FLOATS else self.start_of(own.kind, ty)
                fill(self, mine, own.target, zero)
        first = self.binary("mul", part, parts.size, "nuw nsw")
        return first, self.minimum(self.binary("add", first, parts.size, "nuw nsw"), steps)

    @contextmanager
    def _over(self, start, stop) -> Iterator[Value]:
        """Begin one loop of the nest, which has a turn at least; gives its index."""
        if isinstance(stop, int) and stop == 1:
            yield self.whole(0)
            return
        with self.loop(start, stop, certain=True) as i:
            yield i

    def inner(self, size):
        """Begin an inner loop; gives its index."""
        return self._over(0, size)

    # ---------------------------------------------------------------------------------------- items

    def _element_offset(self, operands, wraps):
        """Write an element offset; before the loops if it is the same throughout, so that rows are
        read and written as vectors.
        """
        fixed = all(
            isinstance(x, Mem) and not any(x.strides) and id(x.buffer) not in self.written
            for x in operands
        )
        if not (fixed and self.rank):
            return super()._element_offset(operands, wraps)
        loaded, self.loaded = self.loaded, {}
        with self.at_head():
            offset = super()._element_offset(operands, wraps)
        self.loaded = loaded
        return offset

    def _call(self, symbol, ty, operands):
        self.module.declare(runtime.declaration(symbol))
        return self.call(symbol, ty, *operands)

    def _item_axpy(self, item):
        matrix, vector = item.operands
        ty = ir_type(item.root.dtype)
        v = self.read(vector, ty)
        with self.inner(item.attrs["size"]) as m:
            x = self._load(matrix, (m, item.attrs["step"]))
            place = self.address(item.root.buffer, 0, (), (m, 1))
            self.store_at(self._plus(self.load_at(place, ty), x * v), place)

    # ----------------------------------------------------------------------------------- reductions

    def _begin(self, item):
        ty = summed_type(item)
        # A sum that is made in several loops, or in a long one.
        summed = self.group.domain[item.attrs["depth"] :]
        long = bool(summed) and (math.prod(summed[:-1]) > 1 or summed[-1] > _STRIP)
        if long and item.attrs["reduce"] == "sum" and ty == "float":
            self.total_of(item, "double", self.variable(ty))
        else:
            self.total_of(item, ty)

    def _item_reduce(self, item):
        kind, depth = item.attrs["reduce"], item.attrs["depth"]
        ty = summed_type(item)
        v = self.convert(self.read(item.operands[0], ty), ty)
        if depth is None:
            place = self.address(item.root.buffer, 0, item.attrs["strides"])
            self.store_at(combined(self, kind, self.load_at(place, ty), v), place)
            return
        if depth == self.rank:
            self._begin(item)
        total = self.totals[id(item)]
        if total.best is None:
            cell = total.part or total.cell
            cell.value = combined(self, kind, cell.value, v)
        else:
            old = total.cell.value
            better = self.compare("gt" if kind == "argmax" else "lt", v, old)
            if ty in FLOATS:
                known = self.logical_not(self.isnan(old))
                better = self.logical_or(better, self.logical_and(self.isnan(v), known))
            better = self.logical_or(total.best.value < 0, better)
            total.cell.value = self.where(better, v, old)
            total.best.value = self.where(better, self._position(depth), total.best.value)
        if depth == self.rank:
            self._finish_reduction(item)

    def _position(self, depth):
        """Write the row-major index over the reduced dims."""
        total = self.whole(0)
        for i, size in zip(self.index[depth:], self.group.domain[depth:], strict=True):
            total = self.binary("add", self.binary("mul", total, size, "nsw"), i, "nsw")
        return total

    def _finish_reduction(self, item):
        total = self.totals[id(item)]
        if total.best is None:
            v = self.convert(total.cell.value, self.type_of(item.root.buffer))
        else:
            v = total.best.value
        self.store_at(v, self.address(item.root.buffer, 0, item.attrs["strides"]))


def last_loop(group: Group) -> int:
    """Return from which dim on one loop goes through all: what the nest reads and writes there lies
    side by side, dim after dim, and nothing is reduced over some of these dims alone.
    """
    sizes, last = group.domain, len(group.domain) - 1
    if last < 1 or any(item.kind not in POINTWISE for item in group.items):
        return last
    reduced = [i.attrs for i in group.items if i.kind == "reduce"]
    if any(a["reduce"] in ("argmax", "argmin") for a in reduced):
        return last
    strides = [s for _, _, s in (*reads(group), *writes(group))]
    strides += [a["strides"] for a in reduced if a["depth"] in (None, len(sizes))]
    if any(len(s) != len(sizes) for s in strides):
        return last
    depths = {a["depth"] for a in reduced}
    cut = 0 if group.parts is None else group.parts.dim
    while (
        last > cut
        and last not in depths
        and all(s[last - 1] == s[last] * sizes[last] for s in strides)
    ):
        last -= 1
    return last


def reads(group: Group) -> Iterator[Place]:
    """Yield the places in memory that a nest reads at each index."""
    for item in group.items:
        for x in item.operands:
            if isinstance(x, Mem):
                yield x.buffer, x.offset, x.strides
        if item.kind == "store" and item.attrs["mode"] == "add":
            yield item.attrs["buffer"], item.attrs["offset"], item.attrs["strides"]


def writes(group: Group) -> Iterator[Place]:
    """Yield the places in memory that a nest writes to at each index; not those of reductions."""
    for item in group.items:
        if item.kind == "store":
            yield item.attrs["buffer"], item.attrs["offset"], item.attrs["strides"]
        elif item.root is not None and item.root.in_register and item.root.buffer is not None:
            yield item.root.buffer, 0, kept_strides(item.root.shape)


def fill(s, pointer, b, value):
    """Write the call that sets all elements of a buffer to a number."""
    ty = in_memory(ir_type(b.dtype))
    s.runtime(f"pt_fill_{ty}", "void", pointer, s.whole(b.numel), s.value(value, ty))
