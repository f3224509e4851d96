"""Loop nests around matrix rows and indexed data, in blocks.

A nest over n rows that holds dot products over rows (``X @ b``), elementwise work on the results,
and rows scaled and added up (``X.T @ r``) runs block by block: first the dot products of a block of
rows, several rows at a time; then the elementwise work on the block, which vectorises; then the
scaled rows, several at a time. Each row of the matrix is read from memory once and from the cache
once, and values pass between the phases through small stack arrays.

Gathers and scattered stores (``alpha[group]`` and its gradient) are phases too: LLVM vectorises no
loop that scatters, so the arithmetic between them gets loops of its own. A row at an index that is
the same throughout (``table[i]``) is none of these: it is read and written as any array.
"""

from contextlib import contextmanager, nullcontext

from probtorch.compiler.lang.types import FLOATS, ir_type
from probtorch.compiler.nests.loops import Mem, Reg
from probtorch.compiler.render.costs import cost_of_item
from probtorch.compiler.render.nest import Nest
from probtorch.compiler.render.short_rows import ScaledSum, is_short, rows_together, write_dots
from probtorch.compiler.render.turned_rows import TurnedNest, is_turned

__all__ = ["BLOCK", "in_blocks", "write_nest"]

# Rows per block: 64 rows of 50 doubles are 25 kB, which stay in the first-level cache between the
# phases.
BLOCK = 64
# Rows taken together in a dot product or scaled sum: enough independent sums to hide the latency of
# additions.
TOGETHER = 4
_PRODUCTS = ("dot", "axpy")
_INDEXED = ("gather", "scatter")
# Elementwise items from which on loops of their own pay beside a gather or scattered store, and
# nanoseconds that they cost where they vectorise: one logarithm is worth it.
_WORTH_SPLITTING, _WORTH_COST = 4, 1.5


def write_nest(module, group):
    """Write the function of a loop nest in the form that suits it; returns (name, parameters,
    whether it returns a status).
    """
    form = BlockedNest if in_blocks(group) else TurnedNest if is_turned(group) else Nest
    return form(module, group).define()


def in_blocks(group):
    """Return whether a nest is written in blocks of rows."""
    products = [i for i in group.items if i.kind in _PRODUCTS]
    rows = len(group.domain) == 1 and group.domain[0] >= 2 * BLOCK
    indexed = any(_is_indexed(i) for i in group.items)
    split = products or (indexed and _is_work([i for i in group.items if i.kind == "compute"]))
    return bool(rows and split and all(ir_type(i.root.dtype) in FLOATS for i in products))


def _is_work(items):
    """Whether elementwise items are worth loops of their own."""
    return len(items) >= _WORTH_SPLITTING or sum(map(cost_of_item, items)) >= _WORTH_COST


def _is_indexed(item):
    """Whether an item is a gather or scattered store whose index varies along the nest."""
    return item.kind in _INDEXED and any(
        not isinstance(x, Mem) or any(x.strides) for x in item.operands[1:]
    )


def _is_heavy(item):
    """Whether an item is a phase of its own."""
    return item.kind in _PRODUCTS or _is_indexed(item)


class BlockedNest(Nest):
    """A nest over rows in blocks; see the module docstring."""

    def _write_loops(self):
        (n,) = self.group.domain
        phases = self._phases()
        self.areas = {}
        full, rest = divmod(n, BLOCK)
        parts = self.group.parts
        first, end = (0, full) if parts is None else self._part_bounds(parts, full)
        reduced = [i for i in self.group.items if i.kind == "reduce" and i.attrs["depth"] == 0]
        for item in reduced:
            self._begin(item)
        scaled = [i for i in self.group.items if i.kind == "axpy" and is_short(i)]
        self.scaled_sums = {id(item): ScaledSum(self, item) for item in scaled}
        with self._over(first, end) as i:
            self._write_block(phases, self.binary("mul", i, BLOCK, "nsw"), BLOCK)
        if rest:
            # The rows that fill no block are for the last part.
            with self.when(self.arguments[0] == parts.count - 1) if parts else nullcontext():
                self._write_block(phases, self.whole(full * BLOCK), rest)
        for item in reduced:
            self._finish_reduction(item)
        for total in self.scaled_sums.values():
            total.finish()

    def _phases(self):
        """Split the items into phases: products and indexed access, and elementwise work, in turn,
        each after what it reads from registers.
        """
        phase_of, phases = {}, {}
        for item in self.group.items:
            reads = [phase_of[id(x.root)] for x in item.operands if isinstance(x, Reg)]
            heavy = _is_heavy(item)
            p = max(reads, default=0)
            if p % 2 != (0 if heavy else 1):
                p += 1
            if item.root is not None:
                phase_of[id(item.root)] = p
            phases.setdefault(p, []).append(item)
        crossing = set()
        for p, items in phases.items():
            for item in items:
                # These follow each other block by block, each with its own loop.
                apart = _is_heavy(item)
                crossing |= {
                    id(x.root)
                    for x in item.operands
                    if isinstance(x, Reg) and (apart or phase_of[id(x.root)] != p)
                }
        self.crossing = crossing
        return [phases[p] for p in sorted(phases)]

    def at_lane(self, root, lane):
        """Return the place of a root's value in the stack array that carries those of one block
        between phases.
        """
        ty = ir_type(root.dtype)
        if id(root) not in self.areas:
            self.areas[id(root)] = self.on_stack(BLOCK, ty)
        return self.offset(self.areas[id(root)], lane, ty)

    def read(self, x, ty=None):
        """Return an operand's value at the current row; values of earlier phases come from their
        stack arrays.
        """
        if isinstance(x, Reg) and id(x.root) not in self.registers:
            place = self.at_lane(x.root, self.lane)
            self.registers[id(x.root)] = self.load_at(place, ir_type(x.root.dtype))
        return super().read(x, ty)

    def _write_block(self, phases, start, count):
        with self._parts_of_sums():
            for items in phases:
                if not _is_heavy(items[0]):
                    self._write_lanes(items, start, count)
                    continue
                for item in items:
                    if item.kind in _PRODUCTS:
                        self._write_product(item, start, count)
                    else:
                        self._write_lanes([item], start, count)

    @contextmanager
    def at_row(self, start, lane):
        """Write what one row of a block needs, with a fresh set of registers."""
        self.registers, self.loaded, self.lane = {}, {}, lane
        self.index = [self.binary("add", start, lane, "nsw")]
        yield
        self.registers, self.loaded, self.index = {}, {}, []

    def _write_lanes(self, items, start, count):
        with self._over(0, count) as lane, self.at_row(start, lane):
            for item in items:
                self._write_item(item)
                if item.root is not None and id(item.root) in self.crossing:
                    value = self.registers[id(item.root)]
                    self.store_at(value, self.at_lane(item.root, lane))

    def _write_product(self, item, start, count):
        """Write one product for a block: several rows at a time, then the remaining rows."""
        done = 0
        if is_short(item):
            together = rows_together(item)
            done = count // together * together
            if done:
                with self.loop(0, done, together, certain=True) as lane:
                    if item.kind == "dot":
                        write_dots(self, item, start, lane)
                    else:
                        self.scaled_sums[id(item)].add(start, lane)
        bulk = (count - done) // TOGETHER
        write = self._dot_rows if item.kind == "dot" else self._axpy_rows
        if bulk:
            with self._over(0, bulk) as i:
                first = self.binary("add", self.binary("mul", i, TOGETHER, "nsw"), done, "nsw")
                more = [self.binary("add", first, r, "nsw") for r in range(1, TOGETHER)]
                write(item, start, [first, *more])
        for r in range(done + bulk * TOGETHER, count):
            write(item, start, [self.whole(r)])

    def _element(self, mem, row, k, step):
        self.index = [row]
        value = self._load(mem, (k, step))
        self.index = []
        return value

    def _dot_rows(self, item, start, lanes):
        a, b = item.operands
        rows = [self.binary("add", start, lane, "nsw") for lane in lanes]
        totals = [self.variable(ir_type(item.root.dtype), 0) for _ in rows]
        to_a, to_b = item.attrs["steps"]
        with self.inner(item.attrs["size"]) as k:
            for row, total in zip(rows, totals, strict=True):
                product = self._element(a, row, k, to_a) * self._element(b, row, k, to_b)
                total.value = self._plus(total.value, product)
        for lane, row, total in zip(lanes, rows, totals, strict=True):
            value = total.value
            if id(item.root) in self.crossing:
                self.store_at(value, self.at_lane(item.root, lane))
            if item.root.buffer is not None:
                self.index = [row]
                self.store_at(value, self.address(item.root.buffer, 0, (1,)))
                self.index = []

    def _axpy_rows(self, item, start, lanes):
        matrix, vector = item.operands
        ty = ir_type(item.root.dtype)
        scales = []
        for lane in lanes:
            with self.at_row(start, lane):
                scales.append((self.index[0], self.read(vector, ty)))
        with self.inner(item.attrs["size"]) as m:
            place = self.address(item.root.buffer, 0, (), (m, 1))
            total = self.load_at(place, ty)
            for row, scale in scales:
                x = self._element(matrix, row, m, item.attrs["step"])
                total = self._plus(total, x * scale)
            self.store_at(total, place)
