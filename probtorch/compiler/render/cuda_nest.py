"""Phases of loop nests as CUDA C device functions.

Every function takes the program's memory, the block's shared memory and the arrays outside of it,
and loops over its work by the numbers of block and thread, so that it gives the same result however
many blocks run it: as a kernel of its own over a large nest, or beside others in one block.
"""

import functools
import math
import struct
from dataclasses import dataclass

from probtorch.compiler.loops import Mem, Reg
from probtorch.compiler.render.algebra import FLOATS, V, in_memory, ir_type, literal
from probtorch.compiler.render.cuda_algebra import C_TYPES, CudaAlgebra, spell
from probtorch.compiler.render.cuda_phases import THREADS
from probtorch.compiler.render.nest import Nest, kept_strides
from probtorch.compiler.render.scans import SCANS
from probtorch.compiler.render.small import SMALL_MATRICES
from probtorch.errors import CompileError

__all__ = ["Piece", "PhaseWriter"]

# Blocks of a kernel at most; their threads loop.
_MAX_BLOCKS = 4096
_INT_LIMIT = 2**30


@dataclass(frozen=True)
class Piece:
    """One device function: its name, the outside buffers it takes, blocks of its own kernel, the
    number of steps it makes in all.
    """

    name: str
    outside: tuple
    blocks: int
    work: int


class PhaseWriter(CudaAlgebra):
    """Writes one phase of a group; `pieces` are its device functions."""

    def __init__(self, module, group, phase):
        super().__init__(module)
        self.group, self.phase = group, phase
        self.pieces = []
        self.written = {id(b) for b in Nest._written(self)}

    def write(self):
        """Write the functions; returns the pieces in order."""
        self._begin()
        work, threads = getattr(self, f"_{self.phase.kind}")()
        self._end(work, threads)
        for item in self.phase.items:
            if self.phase.kind != "fill" and id(item) in self.phase.partial:
                self._second_pass(item)
        return self.pieces

    def _begin(self):
        self.lines, self.head, self.pointers, self.outside = [], [], {}, {}
        self.registers, self.loaded, self.index = {}, {}, []
        self.depth = 1

    def _end(self, work, threads):
        name = self.module.function_name()
        outside = tuple(self.outside.values())
        params = "".join(f", char *x{i}" for i in range(len(outside)))
        body = "\n".join([*self.head, *self.lines])
        self.module.functions.append(
            f"static __device__ void {name}(char *M, void *shared{params}) {{\n{body}\n}}"
        )
        blocks = max(1, min(_MAX_BLOCKS, -(-threads // THREADS)))
        self.pieces.append(Piece(name, outside, blocks, work))

    # --------------------------------------------------------------------------------------- memory

    def base(self, b):
        """Return the name of a pointer to a buffer's first element."""
        name = self.pointers.get(id(b))
        if name is None:
            name = self.pointers[id(b)] = f"p{len(self.pointers)}"
            at = self.module.offset(b)
            if at is None:
                self.outside[id(b)] = b
                start = f"x{len(self.outside) - 1}"
            else:
                start = f"(M + {at})"
            ty = C_TYPES[ir_type(b.dtype)]
            self.head.append(f"{ty} *{name} = ({ty} *){start};")
        return name

    def address(self, b, offset, strides, extra=None):
        """Return an element as an lvalue; `extra` is a further index with its stride."""
        terms = [(i, s) for i, s in zip(self.index, strides, strict=False) if s]
        if extra is not None and extra[1]:
            terms.append(extra)
        parts = [str(offset)] if offset or not terms else []
        parts += [i if s == 1 else f"{i} * {s}" for i, s in terms]
        return f"{self.base(b)}[{' + '.join(parts)}]"

    def read(self, x, ty=None):
        """Return an operand's value at the current index."""
        if isinstance(x, Reg):
            if id(x.root) not in self.registers:
                self.registers[id(x.root)] = self.load_at(
                    self.address(x.root.buffer, 0, kept_strides(x.root.shape)),
                    ir_type(x.root.dtype),
                )
            return self.registers[id(x.root)]
        if isinstance(x, Mem):
            key = (id(x.buffer), x.offset, x.strides)
            if key not in self.loaded or id(x.buffer) in self.written:
                self.loaded[key] = self.load_at(
                    self.address(x.buffer, x.offset, x.strides), ir_type(x.buffer.dtype)
                )
            return self.loaded[key]
        return self.value(x, ty) if ty else x

    def fail_if(self, bad):
        """Note that this run must not count; what follows still runs, harmlessly."""
        self.lines.append(f"if ({bad.name}) pt_fail((i64 *)M, -1);")

    # ---------------------------------------------------------------------------------------- loops

    def _integer(self, *extents):
        """The type of loop counters: int where all offsets fit."""
        buffers = [
            x.buffer
            for item in self.phase.items
            if self.phase.kind != "fill"
            for x in item.operands
            if isinstance(x, Mem)
        ]
        largest = max([*extents, *(b.numel for b in buffers)])
        return "int" if largest < _INT_LIMIT else "i64"

    def _over(self, name, size, start="0", step="1", *, stop=None, ty="int"):
        """Open a loop."""
        stop = size if stop is None else stop
        self.lines.append(f"for ({ty} {name} = {start}; {name} < {stop}; {name} += {step}) {{")

    def _close(self):
        self.lines.append("}")

    def _decompose(self, name, sizes, ty):
        """Return the indices of a row-major number."""
        found, step = [], 1
        for n in reversed(sizes):
            found.append("0" if n == 1 else _part(name, step, n, math.prod(sizes)))
            step *= n
        out = []
        for text in reversed(found):
            if text != "0" and text != name:
                i = self.fresh("i")
                self.lines.append(f"const {ty} {i} = {text};")
                text = i
            out.append(text)
        return out

    def _inner(self, size, body):
        """Write an inner loop of `size` around ``body(index)``."""
        name = self.fresh("k")
        held, self.loaded = self.loaded, {}
        self._over(name, size, ty=self._integer(size))
        body(name)
        self._close()
        self.loaded = held

    def variable_of(self, ty, start):
        """Declare a variable; `start` is a literal of the IR."""
        name = self.fresh("a")
        self.lines.append(f"{C_TYPES[ty]} {name} = {_from_ir(start, ty)};")
        return name

    start_of = Nest.start_of
    _reduced_type = Nest._reduced_type
    _combine = Nest._combine

    def _plus(self, a, b):
        return self.binary("add", a, b)

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
        self._over("t", teams, *((_THREAD, _THREADS) if single else ("blockIdx.x", "gridDim.x")))
        row = "t"
        if phase.slices > 1:
            self.lines += [
                f"const int row = t / {phase.slices}, slice = t % {phase.slices};",
            ]
            row = "row"
        indices = self._decompose(row, row_dims, ty) if row_dims else []
        sums = [self._sum_of(item) for item in items]
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
        for item, variables in zip(items, sums, strict=True):
            self._finish_sum(item, variables, row, single)
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

    def _sum_of(self, item):
        """Declare the variables of a reduction; returns their names."""
        kind, ty = _kind(item), self._reduced_type(item) if item.kind == "reduce" else None
        ty = ty or ir_type(item.root.dtype)
        total = self.variable_of(ty, self.start_of(kind, ty))
        item.attrs["total"] = total
        if kind in ("argmax", "argmin"):
            item.attrs["best"] = self.variable_of("i64", "-1")
            return total, item.attrs["best"]
        return total, None

    def _finish_sum(self, item, variables, row, single):
        total, best = variables
        kind, out = _kind(item), self.base(item.root.buffer)
        if best is not None:
            found = best
            if not single:
                largest = "true" if kind == "argmax" else "false"
                found = f"pt_block_best({largest}, {total}, {best}, shared)"
        else:
            found = total if single else f"pt_block<pt_{kind}>({total}, shared)"
        if not single:
            name = self.fresh("s")
            self.lines.append(f"const auto {name} = {found};")
            found = name
        at = row
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
        self._over("t", threads, _THREAD, _THREADS)
        self.lines.append(f"const int m = t % {phase.rows}, slice = t / {phase.rows};")
        of_kept = self._decompose("m", [domain[d] for d in kept], ty)
        total = self.variable_of(
            ir_type(item.root.dtype), self.start_of(_kind(item), ir_type(item.root.dtype))
        )
        first, stop = self._slice(ty)
        self._over("l", stop, first, ty=ty)
        of_summed = self._decompose("l", [domain[d] for d in summed], ty)
        at = dict(zip([*kept, *summed], [*of_kept, *of_summed], strict=True))
        self.index = [at[d] for d in dims]
        result = ir_type(item.root.dtype)
        if scaled:
            matrix, vector = item.operands
            x = self.load_at(
                self.address(
                    matrix.buffer, matrix.offset, matrix.strides, ("m", item.attrs["step"])
                ),
                result,
            )
            v = x * self.read(vector, result)
        else:
            v = self.convert(self.read(item.operands[0], result), result)
        new = self._combine(_kind(item), self.load_at(total, result), v)
        self.store_at(new, total)
        self._close()
        out = self.base(self.phase.partial.get(id(item), item.root.buffer))
        self.lines.append(f"{out}[{'t' if phase.slices > 1 else 'm'}] = {total};")
        self._close()
        return phase.rows * phase.length, threads

    def _dot(self):
        (item,) = self.phase.items
        a, b = item.operands
        steps, result = item.attrs["steps"], ir_type(item.root.dtype)
        ty = self._integer(self.phase.length, self.phase.rows)

        def body(row, k):
            self.index = row
            x = self.load_at(self.address(a.buffer, a.offset, a.strides, (k, steps[0])), result)
            y = self.load_at(self.address(b.buffer, b.offset, b.strides, (k, steps[1])), result)
            total = item.attrs["total"]
            self.store_at(self._plus(self.load_at(total, result), x * y), total)

        threads = self._teams([item], self.group.domain, ty, body)
        return self.phase.rows * self.phase.length, threads

    def _second_pass(self, item):
        """Add up the slices of each sum."""
        phase, kind = self.phase, _kind(item)
        self._begin()
        ty = ir_type(item.root.dtype)
        partial, out = self.base(phase.partial[id(item)]), self.base(item.root.buffer)
        alone = phase.rows >= THREADS or phase.slices <= _SHORT_SECOND
        bounds = (_THREAD, _THREADS) if alone else ("blockIdx.x", "gridDim.x")
        self._over("m", phase.rows, *bounds)
        total = self.variable_of(ty, self.start_of(kind, ty))
        start, step = ("0", "1") if alone else ("threadIdx.x", "blockDim.x")
        self._over("s", phase.slices, start, step)
        v = self.load_at(f"{partial}[s * {phase.rows} + m]", ty)
        self.store_at(self._combine(kind, self.load_at(total, ty), v), total)
        self._close()
        if alone:
            self.lines.append(f"{out}[m] = {total};")
        else:
            self.lines.append(f"const auto all = pt_block<pt_{kind}>({total}, shared);")
            self.lines.append(f"if (threadIdx.x == 0) {out}[m] = all;")
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
        v = self.read(value, result)
        if item.attrs["mode"] == "add":
            v = self.binary("add", self.load_at(target, v.ty), v)
        self.store_at(v, target)
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
        bounds = (_THREAD, _THREADS) if single else ("blockIdx.x", "gridDim.x")
        self._over("t", phase.rows, *bounds, ty=ty)
        self.lines.append(f"const {ty} u = t % {count}, f = t / {count};")
        of_free = self._decompose("f", [domain[d] for d in free], ty)
        self._at(free, of_free, indexed, ["0"] * len(indexed))
        target = self.address(item.attrs["buffer"], 0, item.attrs["strides"], (f"{places}[u]", 1))
        total = self.variable_of(result, literal(0, in_memory(result)))
        if adding and single:
            self.lines.append(f"{total} = {target};")
        start, step = ("", "1") if single else (" + threadIdx.x", "blockDim.x")
        self._over("q", f"{ends}[u]", f"{starts}[u]{start}", step, ty="i64")
        self.lines.append(f"const {ty} l = ({ty}){order}[q];")
        self._at(free, of_free, indexed, self._decompose("l", [domain[d] for d in indexed], ty))
        v = self.read(value, result)
        if adding:
            v = self.binary("add", self.load_at(total, result), v)
        self.store_at(v, total)
        self._close()
        if single:
            self.lines.append(f"{target} = {total};")
        else:
            self.lines.append(f"const auto all = pt_block<pt_sum>({total}, shared);")
            self.lines.append(f"if (threadIdx.x == 0) {target} = pt_sum()({target}, all);")
        self._close()
        return phase.length * max(1, phase.rows // count), phase.rows * phase.lanes

    def _element_offset(self, operands, wraps):
        """Write an element offset, with bounds checks where the indices are not known."""
        total = None
        for x, (size, stride, check, negative) in zip(operands, wraps, strict=True):
            i = self.convert(self.read(x), "i64")
            if negative:
                i = self.where(i < 0, i + size, i)
            if check:
                bad = self.emit(f"(u64){i.name} >= {size}ULL", "i1")
                self.fail_if(bad)
                i = self.where(bad, 0, i)
            term = i * stride
            total = term if total is None else total + term
        assert total is not None
        return total.name

    # ---------------------------------------------------------------------------------------- items

    def _write_item(self, item):
        try:
            if item.kind in SMALL_MATRICES:
                SMALL_MATRICES[item.kind](self, item)
            else:
                self._form_of(item.kind)(item)
        except CompileError as e:
            if item.node is None:
                raise
            raise CompileError(
                f"op {item.node.name}: {e.subject}",
                expected=e.expected,
                got=e.got,
                fix=e.fix,
                at=item.node.place,
            ) from None
        if item.root is not None and item.root.in_register and item.root.buffer is not None:
            target = self.address(item.root.buffer, 0, kept_strides(item.root.shape))
            self.store_at(self.registers[id(item.root)], target)

    def _form_of(self, kind):
        found = getattr(type(self), f"_item_{kind}", None)
        if found is None:
            raise CompileError(
                f"a {kind} item",
                expected="one that has a form on the GPU",
                got="one that is compiled for the CPU only",
                fix="the function runs eagerly instead",
            )
        return functools.partial(found, self)

    def _item_compute(self, item):
        operands = [self.read(x) for x in item.operands]
        self.registers[id(item.root)] = self.evaluate(item.node, operands)

    def _item_store(self, item):
        a = item.attrs
        v = self.read(item.operands[0], ir_type(a["buffer"].dtype))
        target = self.address(a["buffer"], a["offset"], a["strides"])
        if a["mode"] == "add":
            v = self.binary("add", self.load_at(target, v.ty), v)
        self.store_at(v, target)

    def _item_gather(self, item):
        source, *index = item.operands
        at = self._element_offset(index, item.attrs["wraps"])
        target = self.address(source.buffer, source.offset, source.strides, (at, 1))
        self.registers[id(item.root)] = self.load_at(target, ir_type(source.buffer.dtype))

    def _item_scatter(self, item):
        """One whose destinations are all different."""
        value, *index = item.operands
        a = item.attrs
        at = self._element_offset(index, a["wraps"])
        target = self.address(a["buffer"], 0, a["strides"], (at, 1))
        v = self.read(value, ir_type(a["buffer"].dtype))
        if a["mode"] == "add":
            v = self.binary("add", self.load_at(target, v.ty), v)
        self.store_at(v, target)

    def _item_dot(self, item):
        a, b = item.operands
        ty, steps = ir_type(item.root.dtype), item.attrs["steps"]
        total = self.variable_of(ty, literal(0, in_memory(ty)))

        def body(k):
            x = self.load_at(self.address(a.buffer, a.offset, a.strides, (k, steps[0])), ty)
            y = self.load_at(self.address(b.buffer, b.offset, b.strides, (k, steps[1])), ty)
            self.store_at(self._plus(self.load_at(total, ty), x * y), total)

        self._inner(item.attrs["size"], body)
        self.registers[id(item.root)] = self.load_at(total, ty)

    def _item_scan(self, item):
        a = item.attrs
        step = SCANS[item.node.name](self, item, ir_type(a["buffer"].dtype))

        def body(k):
            xs = [
                self.load_at(
                    self.address(x.buffer, x.offset, x.strides, (k, n)), ir_type(x.buffer.dtype)
                )
                for x, n in zip(item.operands, a["steps"], strict=True)
            ]
            target = self.address(a["buffer"], 0, a["strides"], (k, a["out_step"]))
            self.store_at(step(V(f"(i64){k}", "i64", self), *xs), target)

        self._inner(a["size"], body)

    def _item_reduce(self, item):
        kind, ty = item.attrs["reduce"], self._reduced_type(item)
        v = self.convert(self.read(item.operands[0], ty), ty)
        if self._trivial(item):
            target = self.address(item.root.buffer, 0, item.attrs["strides"])
            found = self.value(0, "i64") if kind in ("argmax", "argmin") else v
            self.store_at(found, target)
            return
        total = item.attrs["total"]
        if kind not in ("argmax", "argmin"):
            self.store_at(self._combine(kind, self.load_at(total, ty), v), total)
            return
        best = item.attrs["best"]
        largest = "true" if kind == "argmax" else "false"
        place = f"(i64){self.term}"
        better = self.emit(f"pt_better({largest}, {v.name}, {place}, {total}, {best})", "i1")
        self.lines.append(f"if ({better.name}) {{ {total} = {v.name}; {best} = {place}; }}")


_THREAD = "blockIdx.x * blockDim.x + threadIdx.x"
_THREADS = "gridDim.x * blockDim.x"
# Slices up to which one thread adds up the parts of a sum.
_SHORT_SECOND = 16


def _kind(item):
    """The reduction that an item is: scaled rows and dot products are sums."""
    return item.attrs["reduce"] if item.kind == "reduce" else "sum"


def _part(name, step, size, total):
    """Return the index along one dim of a row-major number below `total`."""
    if step == 1 and size == total:
        return name
    text = name if step == 1 else f"{name} / {step}"
    return text if step * size == total else f"{text} % {size}"


def _from_ir(text, ty):
    """Return a literal of the IR as one of C."""
    if ty not in FLOATS:
        return spell(int(text), ty)
    return spell(struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0], ty)
