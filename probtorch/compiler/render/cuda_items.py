"""The lines of one index of a loop nest, as CUDA C: reads, formulas, stores, inner loops.

A sibling of `nest.py`. `ItemWriter` knows where elements lie and writes each item of a phase;
`cuda_nest.py` puts loops and functions around them.
"""

import functools
import math
import struct

from probtorch.compiler.loops import Mem, Reg
from probtorch.compiler.render import runtime
from probtorch.compiler.render.algebra import FLOATS, V, in_memory, ir_type, limits, literal
from probtorch.compiler.render.cuda_algebra import C_TYPES, CudaAlgebra, spell
from probtorch.compiler.render.cuda_math import knows
from probtorch.compiler.render.nest import kept_strides
from probtorch.compiler.render.scans import SCANS
from probtorch.compiler.render.small import SMALL_MATRICES
from probtorch.errors import CompileError

__all__ = ["ItemWriter", "kind_of", "summed_type"]

# Offsets up to which loop counters are of type int, which GPUs divide faster.
_INT_LIMIT = 2**30


class ItemWriter(CudaAlgebra):
    """Writes the items of one phase of a group."""

    def __init__(self, module, group, phase):
        super().__init__(module)
        self.group, self.phase = group, phase
        self.written = {id(b): b for b in _written(group)}
        self._begin()

    def _begin(self):
        """Begin a function."""
        self.lines, self.head, self.pointers, self.outside = [], [], {}, {}
        self.registers, self.loaded, self.index = {}, {}, []

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
        buffers += self.written.values()
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

    def start_of(self, kind, ty):
        """Return what a reduction starts from, as a literal of the IR."""
        if kind in ("sum", "prod"):
            return literal(int(kind == "prod"), in_memory(ty))
        largest = kind in ("amax", "argmax")
        if ty in FLOATS:
            return literal(-math.inf if largest else math.inf, ty)
        return literal(limits(ty)[0 if largest else 1], in_memory(ty))

    def _combine(self, kind, a, b):
        if kind in ("sum", "prod"):
            return self.binary("add" if kind == "sum" else "mul", a, b)
        return self.maximum(a, b) if kind == "amax" else self.minimum(a, b)

    def _plus(self, a, b):
        return self.binary("add", a, b)

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
        return functools.partial(found, self) if found is not None else _refuse(kind)

    def _item_compute(self, item):
        operands = [self.read(x) for x in item.operands]
        self.registers[id(item.root)] = self.evaluate(item.node, operands)

    def _item_native(self, item):
        symbol = item.attrs["symbol"]
        if not knows(symbol):
            _refuse(symbol)
        result, types = runtime.types_of(symbol)
        operands = [
            self.convert(self.read(x, ty), ty) for x, ty in zip(item.operands, types, strict=True)
        ]
        self.module.runtime.add(symbol)
        out = self.emit(f"{symbol}({', '.join(v.name for v in operands)})", result)
        if item.attrs["refuses"]:
            self.fail_if(self.isnan(out))
        self.registers[id(item.root)] = self.convert(out, ir_type(item.root.dtype))

    def _item_demand(self, item):
        x, ok = (self.read(operand) for operand in item.operands)
        self.fail_if(self.logical_not(ok))
        self.registers[id(item.root)] = x

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
        kind, ty = item.attrs["reduce"], summed_type(item)
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


def _refuse(what):
    raise CompileError(
        what,
        expected="an item that has a form on the GPU",
        got="one that is compiled for the CPU only",
        fix="the function runs eagerly instead",
    )


def kind_of(item):
    """The reduction that an item is: scaled rows and dot products are sums."""
    return item.attrs["reduce"] if item.kind == "reduce" else "sum"


def summed_type(item):
    """The type of the numbers that a reduction combines."""
    if kind_of(item) in ("argmax", "argmin"):
        return ir_type(item.node.inputs[0].dtype)
    return ir_type(item.root.dtype)


def _written(group):
    """Yield the buffers that the items of a group write to."""
    for item in group.items:
        if "buffer" in item.attrs:
            yield item.attrs["buffer"]
        if item.root is not None and item.root.buffer is not None:
            yield item.root.buffer


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
