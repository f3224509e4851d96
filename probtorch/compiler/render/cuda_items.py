"""The lines of one index of a loop nest, as CUDA C: reads, formulas, stores, inner loops.

A sibling of `nest.py`: what each item does is in `items.py`, here is how CUDA C spells it.
`ItemWriter` knows where elements lie; `cuda_nest.py` puts loops and functions around items.
"""

import math
from contextlib import contextmanager

from probtorch.compiler.lang.cuda import C_TYPES, CUDA
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.blocks import better, combined
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import Mem, Reg
from probtorch.compiler.render.cuda_math import knows
from probtorch.compiler.render.items import Items, kept_strides, summed_type
from probtorch.errors import CompileError

__all__ = ["ItemWriter"]

# Offsets up to which loop counters are of type int, which GPUs divide faster.
_INT_LIMIT = 2**30


class ItemWriter(Items):
    """Writes the items of one phase of a group."""

    def __init__(self, module, group, phase):
        super().__init__(module, CUDA, group)
        self.phase = phase
        self._begin()

    def _begin(self):
        """Begin a function."""
        self.lines, self.cells, self.head, self.pointers, self.outside = [], [], [], {}, {}
        self.registers, self.loaded, self.index, self.totals = {}, {}, [], {}

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
        parts += [f"{i}" if s == 1 else f"{i} * {s}" for i, s in terms]
        return f"{self.base(b)}[{' + '.join(parts)}]"

    def load_at(self, place, ty):
        """Read an lvalue."""
        return CUDA.read(self, place, ty)

    def store_at(self, v, place):
        """Write to an lvalue."""
        CUDA.write(self, v, place)

    def read(self, x, ty=None):
        """Return an operand's value; those of other phases come from memory."""
        if isinstance(x, Reg) and id(x.root) not in self.registers:
            self.registers[id(x.root)] = self.load_at(
                self.address(x.root.buffer, 0, kept_strides(x.root.shape)), ir_type(x.root.dtype)
            )
        return super().read(x, ty)

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
                i = self.fresh("j")  # "i64" is a type
                self.lines.append(f"const {ty} {i} = {text};")
                text = i
            out.append(text)
        return out

    @contextmanager
    def inner(self, size):
        """Begin an inner loop; gives its index."""
        name = self.fresh("k")
        self._over(name, size, ty=self._integer(size))
        yield Value(name, "i64", self)
        self._close()

    # ---------------------------------------------------------------------------------------- items

    def _form_of(self, kind):
        return getattr(type(self), f"_item_{kind}", None) or _refuse(kind)

    def _call(self, symbol, ty, operands):
        if not knows(symbol):
            _refuse(symbol)
        self.module.runtime.add(symbol)
        return self.emit(f"{symbol}({', '.join(v.name for v in operands)})", ty)

    def _item_reduce(self, item):
        kind, ty = item.attrs["reduce"], summed_type(item)
        v = self.convert(self.read(item.operands[0], ty), ty)
        if self._trivial(item):
            target = self.address(item.root.buffer, 0, item.attrs["strides"])
            found = self.value(0, "i64") if kind in ("argmax", "argmin") else v
            self.store_at(found, target)
            return
        total, best = self.totals[id(item)].cell, self.totals[id(item)].best
        if best is None:
            total.value = combined(self, kind, total.value, v)
            return
        place = Value(f"(i64){self.term}", "i64", self)
        with self.when(better(self, kind, v, place, total.value, best.value)):
            total.value, best.value = v, place


def _refuse(what):
    raise CompileError(
        what,
        expected="an item that has a form on the GPU",
        got="one that is compiled for the CPU only",
        fix="the function runs eagerly instead",
    )


def _part(name, step, size, total):
    """Return the index along one dim of a row-major number below `total`."""
    if step == 1 and size == total:
        return name
    text = name if step == 1 else f"{name} / {step}"
    return text if step * size == total else f"{text} % {size}"
