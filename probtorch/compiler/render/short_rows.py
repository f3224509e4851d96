"""Products of short rows in a nest in blocks, written in vectors.

LLVM makes vectors of a loop over the terms of a row where there are many. Where there are few it
writes that loop out, and gathers one term of several rows: such a vector comes from as many cache
lines as it has lanes, and the processor, which foresees no gathers, waits for memory.

Here vectors are of terms that lie side by side, and as many rows as a vector has lanes are worked
on together. Rows of fewer terms without gaps are read as one long row: shuffles take a term of each
row out of it, and repeat scales for the terms of their rows. Other rows have vectors of their own,
the last one under a mask; the vectors of their products are added up crosswise, to one vector that
has the sum of each row. Where a matrix lies by columns, a vector is of one term of several rows.
A term of another row, which may be nan, takes part in no arithmetic.

Read `write_dots`, then `ScaledSum`.
"""

from probtorch.compiler.lang.nodes import Store, Value
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import Item, Mem, Reg
from probtorch.compiler.render.vectors import Vectors, lanes_of

__all__ = ["ScaledSum", "is_short", "rows_together", "write_dots"]

# Terms up to which rows are read as one. Shuffles that take terms out grow with the square: at 8
# of 8 lanes they take as long again as vectors of a row each. At 5 to 7 terms these, all of them
# under masks, wait for memory four times as long (Zen 5).
_PACKED = 7
# Terms that a short row has at most, or as many as four vectors have: sums of so many stay in
# registers.
_SHORT = 16
# Terms that rows of a matrix by columns have at most: as many places in memory are read in turn.
_COLUMNS = 32
# Sums that are added to in turn, to hide the latency of additions.
_CHAINS = 4


def rows_together(item: Item) -> int:
    """Return how many rows are worked on together: the lanes of a vector."""
    return lanes_of(ir_type(item.root.dtype))


def is_short(item: Item) -> bool:
    """Return whether a product is one that the functions here can write."""
    return _layout(item) is not None


def _layout(item):
    """Return how rows of a product lie: "packed", "columns" or "rows"; None where none is short."""
    size, lanes = item.attrs["size"], rows_together(item)
    if item.kind == "axpy":
        (matrix, scale), steps = item.operands, [item.attrs["step"]]
        regular = _is_regular(scale)
    else:
        steps = item.attrs["steps"]
        varying = [(x, step) for x, step in zip(item.operands, steps, strict=True) if _varies(x)]
        regular = len(varying) == 1
        matrix = varying[0][0] if regular else None
    if regular and matrix.strides == (1,) and size <= _COLUMNS:
        return "columns"
    if any(step != 1 for step in steps):
        return None
    if regular and matrix.strides == (size,) and size <= min(_PACKED, lanes - 1):
        return "packed"
    return "rows" if size <= max(_SHORT, 4 * lanes) else None


def _varies(x: Mem) -> bool:
    """Whether an operand has other elements at each row."""
    return any(x.strides)


def _is_regular(scale):
    """Whether the scales of rows that follow each other do so too, or all are the same."""
    return not isinstance(scale, Mem) or scale.strides in ((0,), (1,))


class _Product(Vectors):
    """A product of rows of a nest, of which some are worked on together."""

    def __init__(self, nest, item):
        super().__init__(nest, ir_type(item.root.dtype))
        self.item, self.size, self.layout = item, item.attrs["size"], _layout(item)

    def place(self, x, row, term=0):
        """Return where an element of a row lies, so many behind its first."""
        self.nest.index = [row]
        place = self.nest.address(x.buffer, x.offset + term, x.strides)
        self.nest.index = []
        return place

    def parts(self, matrix, step, row):
        """Return the terms of the rows from `row` on as vectors: of packed rows in their order in
        memory, of columns one of each.
        """
        if self.layout == "packed":
            places = [self.place(matrix, row, i * self.lanes) for i in range(self.size)]
        else:
            places = [self.place(matrix, row, i * step) for i in range(self.size)]
        return [self.nest.load_at(place, self.wide) for place in places]


# ------------------------------------------------------------------------------------ dot products


def write_dots(nest, item: Item, start: Value, lane: Value) -> None:
    """Write the dot products of the rows from `lane` on, of the block that begins at `start`."""
    product = _Dots(nest, item)
    row = nest.binary("add", start, lane, "nsw")
    sums = product.sums(row)
    if id(item.root) in nest.crossing:
        nest.store_at(sums, nest.at_lane(item.root, lane))
    if item.root.buffer is not None:
        nest.index = [row]
        nest.store_at(sums, nest.address(item.root.buffer, 0, (1,)))
        nest.index = []


class _Dots(_Product):
    """Dot products, a vector of them."""

    def sums(self, row):
        if self.layout == "rows":
            return self._by_rows(row)
        operands = zip(self.item.operands, self.item.attrs["steps"], strict=True)
        (same, along), (matrix, step) = sorted(operands, key=lambda x: _varies(x[0]))
        nest, parts, total = self.nest, self.parts(matrix, step, row), self.zero()
        for k in range(self.size):
            number = nest.load_at(self.place(same, row, k * along), self.ty)
            terms = parts[k] if self.layout == "columns" else self._terms(parts, k)
            total = total + terms * nest.convert(number, self.wide)
        return total

    def _terms(self, parts, k):
        """Take term k of each row out of the vectors that hold all."""
        at = [divmod(r * self.size + k, self.lanes) for r in range(self.lanes)]
        found = parts[0]
        for i in range(1, self.size):
            before = [place if i == 1 else r for r, (_, place) in enumerate(at)]
            here = [self.lanes + place if q == i else -1 for q, place in at]
            places = [b if h < 0 else h for b, h in zip(before, here, strict=True)]
            found = self.shuffled(found, parts[i], places)
        return found

    def _by_rows(self, row):
        """Add up the products of each row."""
        nest, operands = self.nest, self.item.operands
        rows = [nest.binary("add", row, r, "nsw") for r in range(self.lanes)]
        sums = [self.zero()] * self.lanes  # of terms that are all -0.0 the sum is 0.0
        for first, count in self.pieces(self.size):
            same = [None if _varies(x) else self._piece(x, row, first, count) for x in operands]
            for r, here in enumerate(rows):
                x, y = (
                    self._piece(x, here, first, count) if known is None else known
                    for x, known in zip(operands, same, strict=True)
                )
                sums[r] = sums[r] + x * y
        return self._crosswise(sums)

    def _piece(self, x, row, first, count):
        return self.read(self.place(x, row, first), count)

    def _crosswise(self, rows):
        """Return a vector of the sums over the lanes of each of as many vectors.

        Two vectors x and y become one, with sums of x where a bit of the lane's number is 0, and of
        y where it is 1; bit by bit.
        """
        found, bit, n = dict(enumerate(rows)), 1, self.lanes
        while bit < n:
            low = [n + p - bit if p & bit else p for p in range(n)]
            high = [n + p if p & bit else p + bit for p in range(n)]
            found = {
                i: self.shuffled(x, found[i + bit], low) + self.shuffled(x, found[i + bit], high)
                for i, x in found.items()
                if not i & bit
            }
            bit *= 2
        return found[0]


# ------------------------------------------------------------------------------------- scaled rows


class ScaledSum(_Product):
    """The sum of rows, each times its scale, in vectors until the nest ends."""

    def __init__(self, nest, item: Item) -> None:
        super().__init__(nest, item)
        self.matrix, self.scale = item.operands
        by_rows = self.layout == "rows"
        count = len(self.pieces(self.size)) if by_rows else self.size
        chains = min(_CHAINS, 2 * _CHAINS // count) if by_rows else 1
        zero = self.zero()
        self.sums = [[nest.variable(self.wide, zero) for _ in range(count)] for _ in range(chains)]

    def add(self, start: Value, lane: Value) -> None:
        """Write the addition of the rows from `lane` on, of the block that begins at `start`."""
        nest = self.nest
        if self.layout == "rows":
            for r in range(self.lanes):
                sums = self.sums[r % len(self.sums)]
                self._add_row(start, nest.binary("add", lane, r, "nsw"), sums)
            return
        row, scales = nest.binary("add", start, lane, "nsw"), self._scales(start, lane)
        parts = self.parts(self.matrix, self.item.attrs["step"], row)
        for i, (part, total) in enumerate(zip(parts, self.sums[0], strict=True)):
            here = scales
            if self.layout == "packed":
                rows = [(i * self.lanes + p) // self.size for p in range(self.lanes)]
                here = self.shuffled(scales, scales, rows)
            total.value = total.value + part * here

    def _scales(self, start, lane):
        nest, scale = self.nest, self.scale
        if isinstance(scale, Reg):
            return nest.load_at(nest.at_lane(scale.root, lane), self.wide)
        if isinstance(scale, Mem) and _varies(scale):
            row = nest.binary("add", start, lane, "nsw")
            return nest.load_at(self.place(scale, row), self.wide)
        with nest.at_row(start, lane):
            return nest.convert(nest.read(scale, self.ty), self.wide)

    def _add_row(self, start, lane, sums):
        nest = self.nest
        with nest.at_row(start, lane):
            row, scale = nest.index[0], nest.read(self.scale, self.ty)
        scale = nest.convert(scale, self.wide)
        for (first, count), total in zip(self.pieces(self.size), sums, strict=True):
            x = self.read(self.place(self.matrix, row, first), count)
            total.value = total.value + x * scale

    def finish(self) -> None:
        """Write the addition of the sums to where they belong."""
        nest, buffer = self.nest, self.item.root.buffer
        if self.layout == "rows":
            for i, (first, count) in enumerate(self.pieces(self.size)):
                place = nest.address(buffer, first, ())
                total = self.read(place, count)
                for sums in self.sums:
                    total = total + sums[i].value
                nest.put(Store(total, place, self.mask(count)))
            return
        area = nest.on_stack(self.size * self.lanes, self.ty)
        for i, total in enumerate(self.sums[0]):
            nest.store_at(total.value, nest.offset(area, i * self.lanes, self.ty))
        # In memory a sum's lanes are apart as its terms are.
        of_term, of_lane = (1, self.size) if self.layout == "packed" else (self.lanes, 1)
        with nest.inner(self.size) as k:
            place = nest.address(buffer, 0, (), (k, 1))
            total = nest.load_at(place, self.ty)
            for r in range(self.lanes):
                total = total + nest.load(area, k * of_term + r * of_lane, self.ty)
            nest.store_at(total, place)
