"""Nests over rows of few numbers, which are turned: worked on column by column.

A nest over many rows of 8 to 16 numbers (``x.logsumexp(-1)``, ``(x - c).square().sum(-1)``) has an
inner loop too short for vectors. LLVM writes it out and makes vectors of the loop over rows, which
gathers: one number from each of as many cache lines as a vector has lanes. Of rows of up to seven
it reads what lies side by side and takes that apart.

Here a block of rows is read as it lies, a vector or two of each row, and turned by shuffles into an
area on the stack, where the numbers of one column lie side by side. The nest runs on the area,
columns outside and rows inside, so that all is in vectors, exponentials and logarithms too; what
reductions have so far is in arrays, a number for each row. What the nest writes by rows is turned
back. An area stands for a place in memory (a buffer, an offset, strides), for reads and writes
alike, and there is no other way to what is written.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from probtorch.compiler.lang.cells import Cell
from probtorch.compiler.lang.nodes import Operand, Store, Value, Variable
from probtorch.compiler.lang.types import BYTES, FLOATS, ir_type
from probtorch.compiler.native import host
from probtorch.compiler.nests.loops import POINTWISE, Group
from probtorch.compiler.render.items import Total, kind_of, summed_type
from probtorch.compiler.render.nest import Nest, Place, last_loop, reads, writes
from probtorch.compiler.render.vectors import Vectors

if TYPE_CHECKING:
    from probtorch.compiler.render.llvm import NestModule

__all__ = ["TurnedNest", "is_turned"]

# Rows of a block: 64 rows of 16 doubles are 8 kB.
_ROWS = 64
# Numbers of a row; and bytes of all areas together, which stay in the first-level cache.
_FEWEST, _MOST = 8, 16
_BYTES = 32_768
# Vectors narrower than this have no gathers, nor masks.
_BITS = 256


def is_turned(group):
    """Return whether a nest is written so."""
    if len(group.domain) < 2 or host.target().vector_bits < _BITS:
        return False
    depth = len(group.domain) - 1
    if group.domain[-2] < 2 * _ROWS or not _FEWEST <= group.domain[-1] <= _MOST:
        return False
    if last_loop(group) < depth or (group.parts is not None and group.parts.dim == depth):
        return False
    fits = all(
        i.kind in POINTWISE and (i.kind != "reduce" or i.attrs["depth"] == depth)
        for i in group.items
    )
    return fits and bool(_areas(group))


def _areas(group):
    """Return the places in memory that get areas, as (whether they are read, whether written); none
    if there is another way to what is written, or more than there is room for.
    """
    size, found = group.domain[-1], {}
    others = {id(i.root.buffer) for i in group.items if i.kind == "reduce"}
    for at, places in enumerate((reads(group), writes(group))):
        for place in places:
            buffer, _, strides = place
            by_rows = len(strides) == len(group.domain) and strides[-1] == 1 and strides[-2] >= size
            if by_rows and ir_type(buffer.dtype) in FLOATS:
                found.setdefault(place, [False, False])[at] = True
            else:
                others.add(id(buffer))
    written = {id(b) for i in group.items for b in i.written()}
    ways = [id(buffer) for buffer, _, _ in found]
    if any(b in written and (b in others or ways.count(b) > 1) for b in ways):
        return {}
    needed = sum(size * _ROWS * BYTES[ir_type(buffer.dtype)] for buffer, _, _ in found)
    return found if needed <= _BYTES else {}


class _OfRows(Cell):
    """A variable that each row of a block has for itself, in an array on the stack."""

    def __init__(self, nest: TurnedNest, ty: str) -> None:
        super().__init__(nest, Variable(nest.fresh("c"), ty, _ROWS))
        nest.put(self.node)
        self.nest, self.column = nest, Value(self.node.name, "ptr", nest)

    @property
    def value(self) -> Value:
        return self.nest.load(self.column, self.nest.lane, self.node.ty)

    @value.setter
    def value(self, x: Operand) -> None:
        self.nest.store(self.column, self.nest.lane, x, self.node.ty)


class TurnedNest(Nest):
    """A nest over rows of few numbers; see the module docstring.

    Attributes
    ----------
    lane, lanes : Value
        The row of the block that is written, and how many rows the block has.
    areas : dict of Place to Value
        While the nest runs on them, areas by their places in memory.
    """

    lane: Value
    lanes: Value

    def __init__(self, module: NestModule, group: Group) -> None:
        super().__init__(module, group)
        self.areas: dict[Place, Value] = {}

    def _write_from(self, depth, first, bounds):
        if depth != self.rank - 2:
            super()._write_from(depth, first, bounds)
            return
        with self.loop(first[depth], bounds[depth], _ROWS, certain=True) as start:
            left = self.binary("sub", self.whole(bounds[depth]), start, "nsw")
            self.lanes = self.minimum(left, self.whole(_ROWS))
            self._write_block(start)

    def _write_block(self, start):
        """Write what becomes of a block of rows."""
        size = self.group.domain[-1]
        reduced = [i for i in self.group.items if i.kind == "reduce"]
        areas, room = _areas(self.group), {}
        for place in areas:
            room[place] = self.on_stack(size * _ROWS, self.type_of(place[0]))
        for place, (is_read, _) in areas.items():
            if is_read:
                self._turn("in", place, room[place], start)
        with self._each_row(start):
            for item in reduced:
                self._begin_row(item)
        # Written out it would be as many vector loops.
        with self.loop(0, size, certain=True, rolled=True) as k, self._each_row(start, k):
            self.areas = room
            for item in self.group.items:
                self._write_item(item)
            self.areas = {}
        with self._each_row(start):
            for item in reduced:
                self._finish_reduction(item)
        for place, (_, is_written) in areas.items():
            if is_written:
                self._turn("out", place, room[place], start)

    @contextmanager
    def _each_row(self, start, *column):
        """Write what each row of a block needs, with a fresh set of registers."""
        outer = self.index
        with self._over(0, self.lanes) as self.lane:
            self.registers, self.loaded = {}, {}
            self.index = [*outer, self.binary("add", start, self.lane, "nsw"), *column]
            yield
        self.registers, self.loaded, self.index = {}, {}, outer

    def _begin_row(self, item):
        ty, kind = summed_type(item), kind_of(item)
        if id(item) not in self.totals:
            best = _OfRows(self, "i64") if kind in ("argmax", "argmin") else None
            self.totals[id(item)] = Total(_OfRows(self, ty), best)
        total = self.totals[id(item)]
        total.cell.value = self.start_of(kind, ty)
        if total.best is not None:
            total.best.value = -1

    def address(self, b, offset, strides, extra=None):
        """Return where an element lies: in an area what has one."""
        area = self.areas.get((b, offset, strides))
        if area is None:
            return super().address(b, offset, strides, extra)
        at = self.binary("add", self.binary("mul", self.index[-1], _ROWS, "nsw"), self.lane, "nsw")
        return self.offset(area, at, self.type_of(b))

    def _turn(self, way, place, area, start):
        """Call what turns a block of rows."""
        buffer, offset, strides = place
        outer = self.index
        self.index = [*outer, start]
        rows = super().address(buffer, offset, strides)
        self.index = outer
        name = _turning(self.module, way, self.type_of(buffer), self.group.domain[-1])
        self.call(name, "void", rows, self.whole(strides[-2]), area, self.lanes)


def _turning(module, way, ty, size):
    """Return the name of the function that turns up to a block of rows, as many at a time as a
    vector has lanes, "in" to an area or "out" of it; written into the module once.

    Its parameters: where rows begin, how far apart they are, where the area is, how many rows.
    """
    name = f"turn_{way}_{ty}_{size}"
    if name in module.turning:
        return name
    module.turning.add(name)
    parameters, attributes = ["ptr", "i64", "ptr", "i64"], "nounwind noinline"
    w = module.function(name, "void", parameters, linkage="internal", attributes=attributes)
    rows, apart, area, count = w.arguments
    vectors = Vectors(w, ty)
    full = w.binary("and", count, -vectors.lanes)
    with w.loop(0, full, vectors.lanes) as at:
        begins = [w.offset(rows, (at + r) * apart, ty) for r in range(vectors.lanes)]
        for first, terms in vectors.pieces(size):
            places = [w.offset(begin, first, ty) for begin in begins]
            columns = [w.offset(area, at + k * _ROWS, ty) for k in range(first, first + terms)]
            if way == "in":
                found = vectors.turned([vectors.read(place, terms) for place in places])
                for column, place in zip(found, columns, strict=False):
                    w.store_at(column, place)
                continue
            found = [w.load_at(place, vectors.wide) for place in columns]
            found += [vectors.zero()] * (vectors.lanes - terms)
            for row, place in zip(vectors.turned(found), places, strict=True):
                w.put(Store(row, place, vectors.mask(terms)))
    with w.loop(full, count) as lane, w.loop(0, size, certain=True, rolled=True) as k:
        row, column = w.offset(rows, lane * apart + k, ty), w.offset(area, k * _ROWS + lane, ty)
        source, target = (row, column) if way == "in" else (column, row)
        w.store_at(w.load_at(source, ty), target)
    w.finish()
    return name
