"""Phases of loop nests as CUDA C device functions.

Every function takes the program's memory, the block's shared memory, the number of this block among
those that run it, how many these are, and the arrays outside of the memory. It loops over its work
by the numbers of block and thread, so that it gives the same result however many blocks run it: as
a kernel of its own over a large nest, or beside others in one block.
"""

import math
from dataclasses import dataclass

from probtorch.compiler.lang.cuda import GRID, THREADS
from probtorch.compiler.lang.routines.blocks import combined, of_block
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.render.cuda_items import ItemWriter
from probtorch.compiler.render.items import kind_of, summed_type

__all__ = ["Piece", "PhaseWriter"]

# Blocks of a kernel at most; their threads loop.
_MAX_BLOCKS = 4096
_THREAD = "block * blockDim.x + threadIdx.x"
_THREADS = "blocks * blockDim.x"
# Slices up to which one thread adds up the parts of a sum.
_SHORT_SECOND = 16


@dataclass(frozen=True)
class Piece:
    """One device function: its name, the outside buffers it takes, blocks of its own kernel, the
    number of steps it makes in all.
    """

    name: str
    outside: tuple
    blocks: int
    work: int


class PhaseWriter(ItemWriter):
    """Writes one phase of a group; `pieces` are its device functions."""

    def __init__(self, module, group, phase):
        super().__init__(module, group, phase)
        self.pieces = []

    def write(self):
        """Write the functions; returns the pieces in order."""
        work, threads = getattr(self, f"_{self.phase.kind}")()
        self._end(work, threads)
        for item in self.phase.items:
            if self.phase.kind != "fill" and id(item) in self.phase.partial:
                self._second_pass(item)
        return self.pieces

    def _end(self, work, threads):
        name = self.module.function_name()
        outside = tuple(self.outside.values())
        params = ", ".join([*GRID, *(f"char *x{i}" for i in range(len(outside)))])
        body = "\n".join([*self.head, *self.cells, *self.lines])
        self.module.functions.append(f"static __device__ void {name}({params}) {{\n{body}\n}}")
        blocks = max(1, min(_MAX_BLOCKS, -(-threads // THREADS)))
        self.pieces.append(Piece(name, outside, blocks, work))

    # --------------------------------------------------------------------------------------- phases

    def _fill(self):
        ((buffer, value),) = self.phase.items
        ty = self._integer(buffer.numel)
        name = self.base(buffer)
        self._over("i", buffer.numel, _THREAD, _THREADS, ty=ty)
        self.lines.append(f"{name}[i] = {self.value(value, ir_type(buffer.dtype)).name};")
        self._close()
        return buffer.numel, buffer.numel

    def _map(self):
        phase, domain = self.phase, self.group.domain
        ty = self._integer(math.prod(domain))
        reduces = [i for i in phase.items if i.kind == "reduce" and not self._trivial(i)]
        if not reduces:
            self._over("i", math.prod(domain), _THREAD, _THREADS, ty=ty)
            self.index = self._decompose("i", domain, ty)
            for item in phase.items:
                self._write_item(item)
            self._close()
            return math.prod(domain) * self._cost(), math.prod(domain)
        rows, rest = domain[: phase.depth], domain[phase.depth :]

        def body(row, term):
            self.index = row + self._decompose(term, rest, ty)
            self.term = term
            for item in phase.items:
                self._write_item(item)

        threads = self._teams(reduces, rows, ty, body)
        return math.prod(domain) * self._cost(), threads

    def _trivial(self, item):
        return item.attrs["depth"] == len(self.group.domain)

    def _cost(self):
        """Steps per index: the longest inner loop."""
        return max([i.attrs.get("size", 1) for i in self.phase.items], default=1)

    def _teams(self, items, row_dims, ty, body):
        """Write sums over rows by teams of `lanes` threads; returns how many threads there are.

        Each of `items` gets variables for its sum; ``body(row indices, term)`` adds to them.
        """
        phase = self.phase
        single = phase.lanes == 1
        teams = phase.rows * phase.slices
        bounds = (_THREAD, _THREADS) if single else ("block", "blocks")
        self._over("t", teams, *bounds, ty=ty)
        row = "t"
        if phase.slices > 1:
            self.lines += [
                f"const int row = t / {phase.slices}, slice = t % {phase.slices};",
            ]
            row = "row"
        indices = self._decompose(row, row_dims, ty) if row_dims else []
        for item in items:
            self.total_of(item, summed_type(item))
        first, stop = "0", phase.length
        if phase.slices > 1:
            first, stop = self._slice(ty)
        if single:
            self._over("l", stop, first, ty=ty)
        else:
            self._over("l", stop, f"{first} + threadIdx.x", "blockDim.x", ty=ty)
        self.registers, self.loaded = {}, {}
        body(indices, "l")
        self._close()
        for item in items:
            self._finish_sum(item, row, single)
        self._close()
        return teams * phase.lanes

    def _slice(self, ty):
        """Declare where slice number `slice` of a sum begins and ends; returns the names."""
        length = self.phase.length
        size = -(-length // self.phase.slices)
        self.lines += [
            f"const {ty} first = ({ty})slice * {size}, end = first + {size};",
            f"const {ty} stop = end < {length} ? end : {length};",
        ]
        return "first", "stop"

    def _finish_sum(self, item, row, single):
        total, best = self.totals[id(item)].cell, self.totals[id(item)].best
        out, found, at = self.base(item.root.buffer), best or total, row
        if not single:
            place = [best.value] if best else []
            found = of_block(self, kind_of(item), total.value, *place)
        if id(item) in self.phase.partial:
            out = self.base(self.phase.partial[id(item)])
            at = f"slice * {self.phase.rows} + {row}"
        lead = "" if single else "if (threadIdx.x == 0) "
        self.lines.append(f"{lead}{out}[{at}] = {found};")

    def _columns(self):
        (item,) = self.phase.items
        phase, domain = self.phase, self.group.domain
        dims = range(len(domain))
        ty = self._integer(phase.rows * phase.length)
        scaled = item.kind == "axpy"
        kept = [] if scaled else [d for d in dims if item.attrs["strides"][d]]
        summed = [d for d in dims if d not in kept]
        threads = phase.rows * phase.slices
        self._over("t", threads, _THREAD, _THREADS, ty=ty)
        self.lines.append(f"const {ty} m = t % {phase.rows}, slice = t / {phase.rows};")
        of_kept = self._decompose("m", [domain[d] for d in kept], ty)
        result = ir_type(item.root.dtype)
        total = self.total_of(item, result).cell
        first, stop = self._slice(ty)
        self._over("l", stop, first, ty=ty)
        of_summed = self._decompose("l", [domain[d] for d in summed], ty)
        at = dict(zip([*kept, *summed], [*of_kept, *of_summed], strict=True))
        self.index = [at[d] for d in dims]
        if scaled:
            matrix, vector = item.operands
            x = self._load(matrix, ("m", item.attrs["step"]))
            v = x * self.read(vector, result)
        else:
            v = self.convert(self.read(item.operands[0], result), result)
        total.value = combined(self, kind_of(item), total.value, v)
        self._close()
        out = self.base(self.phase.partial.get(id(item), item.root.buffer))
        self.lines.append(f"{out}[{'t' if phase.slices > 1 else 'm'}] = {total};")
        self._close()
        return phase.rows * phase.length, threads

    def _dot(self):
        (item,) = self.phase.items
        a, b = item.operands
        steps = item.attrs["steps"]
        ty = self._integer(self.phase.length, self.phase.rows)

        def body(row, k):
            self.index = row
            product = self._load(a, (k, steps[0])) * self._load(b, (k, steps[1]))
            total = self.totals[id(item)].cell
            total.value = self._plus(total.value, product)

        threads = self._teams([item], self.group.domain, ty, body)
        return self.phase.rows * self.phase.length, threads

    def _second_pass(self, item):
        """Add up the slices of each sum."""
        phase, kind = self.phase, kind_of(item)
        self._begin()
        ty = ir_type(item.root.dtype)
        partial, out = self.base(phase.partial[id(item)]), self.base(item.root.buffer)
        alone = phase.rows >= THREADS or phase.slices <= _SHORT_SECOND
        bounds = (_THREAD, _THREADS) if alone else ("block", "blocks")
        self._over("m", phase.rows, *bounds)
        total = self.total_of(item, ty).cell
        start, step = ("0", "1") if alone else ("threadIdx.x", "blockDim.x")
        self._over("s", phase.slices, start, step)
        v = self.load_at(f"{partial}[s * {phase.rows} + m]", ty)
        total.value = combined(self, kind, total.value, v)
        self._close()
        if alone:
            self.lines.append(f"{out}[m] = {total};")
        else:
            found = of_block(self, kind, total.value)
            self.lines.append(f"if (threadIdx.x == 0) {out}[m] = {found};")
        self._close()
        self._end(phase.rows * phase.slices, phase.rows * (1 if alone else THREADS))

    # ----------------------------------------------------------------------------- scattered stores

    def _scatter(self):
        (item,) = self.phase.items
        domain, strides = self.group.domain, item.attrs["strides"]
        free = [d for d, s in enumerate(strides) if s]
        indexed = [d for d in range(len(domain)) if d not in free]
        ty = self._integer(math.prod(domain))
        known = item.attrs["sources"] is not None
        return (self._known_scatter if known else self._owned_scatter)(item, free, indexed, ty)

    def _at(self, free, of_free, indexed, of_indexed):
        at = dict(zip([*free, *indexed], [*of_free, *of_indexed], strict=True))
        self.index = [at[d] for d in range(len(at))]

    def _owned_scatter(self, item, free, indexed, ty):
        phase, domain = self.phase, self.group.domain
        owners, step = phase.table["owners"], phase.table["step"]
        value, *index = item.operands
        result = ir_type(item.attrs["buffer"].dtype)
        self._over("t", phase.rows * owners, _THREAD, _THREADS, ty=ty)
        self.lines.append(f"const {ty} f = t / {owners}, owner = t % {owners};")
        of_free = self._decompose("f", [domain[d] for d in free], ty)
        self._over("l", phase.length, ty=ty)
        self._at(free, of_free, indexed, self._decompose("l", [domain[d] for d in indexed], ty))
        at = self._element_offset(index, item.attrs["wraps"])
        if owners > 1:
            self.lines.append(f"if ({at} / {step} % {owners} != owner) continue;")
        target = self.address(item.attrs["buffer"], 0, item.attrs["strides"], (at, 1))
        self._put(self.read(value, result), target, item.attrs["mode"])
        self._close()
        self._close()
        return phase.rows * owners * phase.length, phase.rows * owners

    def _known_scatter(self, item, free, indexed, ty):
        phase, domain = self.phase, self.group.domain
        value = item.operands[0]
        result = ir_type(item.attrs["buffer"].dtype)
        order, places, starts, ends = (
            self.base(phase.table[k]) for k in ("order", "places", "starts", "ends")
        )
        count = phase.table["places"].numel
        adding, single = item.attrs["mode"] == "add", phase.lanes == 1
        bounds = (_THREAD, _THREADS) if single else ("block", "blocks")
        self._over("t", phase.rows, *bounds, ty=ty)
        self.lines.append(f"const {ty} u = t % {count}, f = t / {count};")
        of_free = self._decompose("f", [domain[d] for d in free], ty)
        self._at(free, of_free, indexed, ["0"] * len(indexed))
        target = self.address(item.attrs["buffer"], 0, item.attrs["strides"], (f"{places}[u]", 1))
        total = self.variable(result, 0)
        if adding and single:
            self.lines.append(f"{total} = {target};")
        start, step = ("", "1") if single else (" + threadIdx.x", "blockDim.x")
        self._over("q", f"{ends}[u]", f"{starts}[u]{start}", step, ty="i64")
        self.lines.append(f"const {ty} l = ({ty}){order}[q];")
        self._at(free, of_free, indexed, self._decompose("l", [domain[d] for d in indexed], ty))
        v = self.read(value, result)
        if adding:
            v = self.binary("add", total.value, v)
        total.value = v
        self._close()
        if single:
            self.lines.append(f"{target} = {total};")
        else:
            found = of_block(self, "sum", total.value)
            with self.when(self.thread == 0):
                self.store_at(self._plus(self.load_at(target, result), found), target)
        self._close()
        return phase.length * max(1, phase.rows // count), phase.rows * phase.lanes
