"""Loop nests around matrix rows and indexed data, in blocks.

A nest over n rows that holds dot products over rows (``X @ b``), elementwise work on the results,
and rows scaled and added up (``X.T @ r``) runs block by block: first the dot products of a block of
rows, several rows at a time; then the elementwise work on the block, which vectorises; then the
scaled rows, several at a time. Each row of the matrix is read from memory once and from the cache
once, and values pass between the phases through small stack arrays.

Gathers and scattered stores (``alpha[group]`` and its gradient) are phases too: LLVM vectorises no
loop that scatters, so the arithmetic between them gets loops of its own.
"""

from probtorch.compiler.lang.llvm import in_memory, literal
from probtorch.compiler.lang.types import FLOATS, ir_type
from probtorch.compiler.nests.loops import Reg
from probtorch.compiler.render.nest import Nest

__all__ = ["BLOCK", "in_blocks", "write_nest"]

# Rows per block: 64 rows of 50 doubles are 25 kB, which stay in the first-level cache between the
# phases.
BLOCK = 64
# Rows taken together in a dot product or scaled sum: enough independent sums to hide the latency of
# additions.
TOGETHER = 4
_PRODUCTS = ("dot", "axpy")
_INDEXED = ("gather", "scatter")
_HEAVY = _PRODUCTS + _INDEXED
# Elementwise items from which on loops of their own pay beside a gather or scattered store.
_WORTH_SPLITTING = 4


def write_nest(module, group):
    """Write the function of a loop nest in the form that suits it; returns (name, parameters,
    whether it returns a status).
    """
    return (BlockedNest if in_blocks(group) else Nest)(module, group).define()


def in_blocks(group):
    """Return whether a nest is written in blocks of rows."""
    products = [i for i in group.items if i.kind in _PRODUCTS]
    rows = len(group.domain) == 1 and group.domain[0] >= 2 * BLOCK
    indexed = any(i.kind in _INDEXED for i in group.items)
    work = sum(i.kind == "compute" for i in group.items)
    split = products or (indexed and work >= _WORTH_SPLITTING)
    return bool(rows and split and all(ir_type(i.root.dtype) in FLOATS for i in products))


class BlockedNest(Nest):
    """A nest over rows in blocks; see the module docstring."""

    def _write_loops(self):
        (n,) = self.group.domain
        phases = self._phases()
        self.cells = {}
        full, rest = divmod(n, BLOCK)
        parts = self.group.parts
        first, end = ("0", full) if parts is None else self._part_bounds(full)
        reduces = [i for i in self.group.items if i.kind == "reduce" and i.attrs["depth"] == 0]
        for item in reduces:
            self._begin(item)
        self.long = [item for item in reduces if item.attrs["part"]]
        k, i, opened = self._open(end, first)
        self.index.pop()
        start = "0" if opened is None else self.emit(f"mul nsw i64 {i}, {BLOCK}", "i64").name
        self._write_block(phases, start, BLOCK)
        self.index.append(i)
        self._close(k, i, opened, end)
        if rest and parts is None:
            self._write_block(phases, str(full * BLOCK), rest)
        elif rest:
            self._in_last_part(lambda: self._write_block(phases, str(full * BLOCK), rest))
        for item in reduces:
            self._finish_reduction(item)

    def _in_last_part(self, write):
        """Write what only the last part does: the rows that fill no block."""
        last = self.emit(f"icmp eq i64 %part, {self.group.parts.count - 1}", "i1").name
        self.lines += [f"  br i1 {last}, label %rest, label %end", "rest:"]
        self.label = "rest"
        write()
        self.lines += ["  br label %end", "end:"]
        self.label = "end"

    def _phases(self):
        """Split the items into phases: products and indexed access, and elementwise work, in turn,
        each after what it reads from registers.
        """
        phase_of, phases = {}, {}
        for item in self.group.items:
            reads = [phase_of[id(x.root)] for x in item.operands if isinstance(x, Reg)]
            heavy = item.kind in _HEAVY
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
                apart = item.kind in _HEAVY
                crossing |= {
                    id(x.root)
                    for x in item.operands
                    if isinstance(x, Reg) and (apart or phase_of[id(x.root)] != p)
                }
        self.crossing = crossing
        return [phases[p] for p in sorted(phases)]

    def _cell(self, root):
        """Return the stack array that carries a root's values of one block between phases."""
        name = self.cells.get(id(root))
        if name is None:
            name = self.cells[id(root)] = self.fresh("t")
            ty = ir_type(root.dtype)
            self.allocas.append(f"  {name} = alloca [{BLOCK} x {in_memory(ty)}], align 64")
        return name

    def _lane_address(self, root, lane):
        ty = ir_type(root.dtype)
        return self.emit(
            f"getelementptr {in_memory(ty)}, ptr {self._cell(root)}, i64 {lane}", "ptr"
        ).name

    def read(self, x, ty=None):
        """Return an operand's value at the current row; values of earlier phases come from their
        stack arrays.
        """
        if isinstance(x, Reg) and id(x.root) not in self.registers:
            self.registers[id(x.root)] = self.load_at(
                self._lane_address(x.root, self.lane), ir_type(x.root.dtype)
            )
        return super().read(x, ty)

    def _write_block(self, phases, start, count):
        self._begin_parts(self.long)
        for items in phases:
            if items[0].kind not in _HEAVY:
                self._write_lanes(items, start, count)
                continue
            for item in items:
                if item.kind in _PRODUCTS:
                    self._write_product(item, start, count)
                else:
                    self._write_lanes([item], start, count)
        self._add_parts(self.long)

    def _over_lanes(self, count, body):
        """Write a loop over the rows of a block around ``body(lane)``, with a fresh set of
        registers.
        """
        self.registers, self.loaded = {}, {}
        k, i, opened = self._open(count)
        self.index.pop()
        self.lane = "0" if opened is None else i
        body(self.lane)
        self.index.append(i)
        self._close(k, i, opened, count)
        self.registers, self.loaded = {}, {}

    def _row(self, start, lane):
        return self.emit(f"add nsw i64 {start}, {lane}", "i64").name

    def _write_lanes(self, items, start, count):
        def body(lane):
            self.index.append(self._row(start, lane))
            for item in items:
                self._write_item(item)
                if item.root is not None and id(item.root) in self.crossing:
                    self.store_at(
                        self.registers[id(item.root)], self._lane_address(item.root, lane)
                    )
            self.index.pop()

        self._over_lanes(count, body)

    def _write_product(self, item, start, count):
        """Write one product for a block: several rows at a time, then the remaining rows."""
        bulk, rest = divmod(count, TOGETHER)
        write = self._dot_rows if item.kind == "dot" else self._axpy_rows
        if bulk:
            self._over_lanes(bulk, lambda i: write(item, start, self._scaled(i), TOGETHER))
        for r in range(rest):
            self.registers, self.loaded = {}, {}
            write(item, start, str(bulk * TOGETHER + r), 1)

    def _scaled(self, i):
        return self.emit(f"mul nsw i64 {i}, {TOGETHER}", "i64").name

    def _lanes(self, start, lane, rows):
        """Return (lane, row index) registers for `rows` rows from `lane` on."""
        lanes = [
            lane if r == 0 else self.emit(f"add nsw i64 {lane}, {r}", "i64").name
            for r in range(rows)
        ]
        return [(at, self._row(start, at)) for at in lanes]

    def _element(self, mem, row, k, step, ty):
        self.index.append(row)
        value = self.load_at(self.address(mem.buffer, mem.offset, mem.strides, (k, step)), ty)
        self.index.pop()
        return value

    def _dot_rows(self, item, start, lane, rows):
        a, b = item.operands
        ty = ir_type(item.root.dtype)
        lanes = self._lanes(start, lane, rows)
        totals = [self.variable_of(ty, literal(0, ty)) for _ in lanes]
        steps = item.attrs["steps"]

        def body(k):
            for (_, row), total in zip(lanes, totals, strict=True):
                x, y = (
                    self._element(a, row, k, steps[0], ty),
                    self._element(b, row, k, steps[1], ty),
                )
                new = self._plus(self.load_at(total, ty), x * y)
                self.store_at(new, total)

        self._inner(item.attrs["size"], body)
        for (at, row), total in zip(lanes, totals, strict=True):
            value = self.load_at(total, ty)
            if id(item.root) in self.crossing:
                self.store_at(value, self._lane_address(item.root, at))
            if item.root.buffer is not None:
                self.index.append(row)
                self.store_at(value, self.address(item.root.buffer, 0, (1,)))
                self.index.pop()

    def _axpy_rows(self, item, start, lane, rows):
        matrix, vector = item.operands
        ty = ir_type(item.root.dtype)
        lanes = self._lanes(start, lane, rows)
        scales = []
        for at, row in lanes:
            self.registers, self.loaded, self.lane = {}, {}, at
            self.index.append(row)
            scales.append(self.read(vector, ty))
            self.index.pop()

        def body(m):
            pointer = self.address(item.root.buffer, 0, (), (m, 1))
            total = self.load_at(pointer, ty)
            for (_, row), scale in zip(lanes, scales, strict=True):
                total = self._plus(
                    total, self._element(matrix, row, m, item.attrs["step"], ty) * scale
                )
            self.store_at(total, pointer)

        self._inner(item.attrs["size"], body)
