"""One loop nest as one LLVM function.

What each item does is in `items.py`. Loops are written with phi nodes, accumulators as stack cells
that LLVM turns into registers. Every buffer is a ``noalias`` parameter, scalars and packed
constants come as one area each ("S", "P"). Only sums, products and dot products may be
reassociated.

The function of a nest that is cut into parts (`parts.py`) has the number of the part as its last
parameter: one loop has bounds that depend on it, and what parts must not share lies elsewhere for
each.
"""

import math
import re
from typing import NamedTuple

from probtorch.compiler.lang.llvm import LLVM, in_memory, literal
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.types import BYTES, FLOATS, ir_type
from probtorch.compiler.nests.loops import Mem
from probtorch.compiler.render import runtime
from probtorch.compiler.render.items import Items, combined, summed_type

__all__ = ["Nest"]

# A call of a function of the runtime or the C library; LLVM's own become instructions.
_CALL = re.compile(r" call [^@]*@(?!llvm\.)")

# Terms of a sum in single precision that are added up before they go to its total: what bounds the
# error, for any width of vectors and where a loop is none. NumPy's sums by pairs end at 128, too.
# For 100 000 terms 256 took 4 us, 128 took 6 (AVX-512).
_STRIP = 128


class _Strip(NamedTuple):
    """A stretch of the innermost loop: the sums that it adds up by itself; number, counter and
    bound of the loop over stretches, None where there is but one; where it starts and ends.
    """

    items: list
    loop: int | None
    counter: str | None
    size: object
    start: str
    end: object


class Nest(Items):
    """Writes the function of one loop nest."""

    printer = LLVM

    def __init__(self, module, group):
        super().__init__(module, group)
        self.rank = len(group.domain)
        self.params = {}
        self.own = {}
        self.allocas = []
        self.label = "entry"
        self.labels = 0
        self.checked = False

    # --------------------------------------------------------------------------------------- memory

    def base(self, b):
        """Return ``(pointer name, element offset)`` of a buffer inside this function."""
        if b in self.own:
            return self.own[b], 0
        if b.kind in ("scalar", "packed"):
            key = "S" if b.kind == "scalar" else "P"
            self.params.setdefault(key, f"%{key}")
            return f"%{key}", b.slot * 8
        name = self.params.setdefault(b, f"%p{len(self.params)}")
        return name, 0

    def type_of(self, b):
        """Return the type of the elements of a buffer; a part's own total may be wider."""
        parts = self.group.parts
        own = None if parts is None or b not in self.own else parts.own[b].buffer
        return ir_type((own or b).dtype)

    def address(self, b, offset, strides, extra=None):
        """Emit the address of an element; `extra` is a further index register with its stride."""
        pointer, shift = self.base(b)
        ty = self.type_of(b)
        size = BYTES[ty]
        terms = [(i, s) for i, s in zip(self.index, strides, strict=False) if s]
        if extra is not None:
            terms.append(extra)
        total = None
        for i, s in terms:
            term = i if s == 1 else self.emit(f"mul nsw i64 {i}, {s}", "i64").name
            total = term if total is None else self.emit(f"add nsw i64 {total}, {term}", "i64").name
        if shift or offset:
            pointer = self.emit(
                f"getelementptr i8, ptr {pointer}, i64 {shift + offset * size}", "ptr"
            ).name
        if total is not None:
            pointer = self.emit(
                f"getelementptr {in_memory(ty)}, ptr {pointer}, i64 {total}", "ptr"
            ).name
        return pointer

    # ------------------------------------------------------------------------------------- the nest

    def define(self):
        """Write the function; returns its name, its parameters (buffers, "S", "P") and whether it
        returns a status.
        """
        self._write_loops()
        return self._finish_function()

    def _write_loops(self):
        reduces = [
            i for i in self.group.items if i.kind == "reduce" and i.attrs["depth"] is not None
        ]
        closers = []
        first, bounds = "0", list(self.group.domain)
        parts = self.group.parts
        if parts is not None:
            first, bounds[parts.dim] = self._part_bounds(bounds[parts.dim])
        strip = None
        for depth, size in enumerate(bounds):
            self._open_reductions(reduces, depth)
            start = first if parts is not None and depth == parts.dim else "0"
            if depth == self.rank - 1:
                strip = self._open_strip(reduces, size, start)
                if strip is not None:
                    start, bounds[depth] = strip.start, strip.end
            closers.append(self._open(bounds[depth], start))
        for item in self.group.items:
            self._write_item(item)
        for depth in reversed(range(self.rank)):
            k, i, opened = closers[depth]
            self._close(k, i, opened, bounds[depth])
            if depth == self.rank - 1 and strip is not None:
                self._close_strip(strip)
            self._close_reductions(reduces, depth)

    def _open_strip(self, reduces, size, start):
        """Begin a stretch of the innermost loop, whose sums in single precision are added up by
        themselves, and then to a total in double precision: so that long sums are as accurate as
        those of eager execution. Returns the `_Strip`, None where no sum is long.
        """
        long = [i for i in reduces if i.attrs.get("part")]
        if not long:
            return None
        loop, index, end = None, None, size
        if not isinstance(size, int) or size > _STRIP:
            loop, index, _ = self._open(size, start)
            self.index.pop()
            last = self.emit(f"add nuw nsw i64 {index}, {_STRIP}", "i64")
            start, end = index, self.minimum(last, Value(str(size), "i64", self)).name
        self._begin_parts(long)
        return _Strip(long, loop, index, size, start, end)

    def _begin_parts(self, long):
        """Set the sums of a stretch to zero."""
        zero = self.start_of("sum", "float")
        self.lines += [f"  store float {zero}, ptr {item.attrs['part']}" for item in long]

    def _add_parts(self, long):
        """Add the sums of a stretch to their totals."""
        for item in long:
            part = self.convert(self.load_at(item.attrs["part"], "float"), "double")
            total = item.attrs["total"]
            self.store_at(self._plus(self.load_at(total, "double"), part), total)

    def _close_strip(self, strip):
        self._add_parts(strip.items)
        if strip.loop is not None:
            self.index.append(strip.counter)
            self._close(strip.loop, strip.counter, strip.size, strip.size, _STRIP)

    def _part_bounds(self, steps):
        """Emit where this part of `steps` begins and ends, and what it has for itself."""
        parts = self.group.parts
        for own in parts.own.values():
            base = self.params.setdefault(own.buffer, f"%p{len(self.params)}")
            nbytes = own.step * own.buffer.dtype.itemsize
            shift = self.emit(f"mul nuw nsw i64 %part, {nbytes}", "i64").name
            mine = self.emit(f"getelementptr i8, ptr {base}, i64 {shift}", "ptr").name
            self.own[own.target] = mine
            if not own.is_total:
                self._clear(own, mine)
        first = self.emit(f"mul nuw nsw i64 %part, {parts.size}", "i64")
        last = self.emit(f"add nuw nsw i64 {first.name}, {parts.size}", "i64")
        return first.name, self.minimum(last, self.value(steps, "i64")).name

    def _clear(self, own, pointer):
        """Set a part's own sums to what changes nothing: of floats that is -0."""
        ty = ir_type(own.target.dtype)
        zero = -0.0 if ty in FLOATS else 0
        start = literal(zero, in_memory(ty)) if own.kind == "sum" else self.start_of(own.kind, ty)
        ty, count = in_memory(ty), own.target.numel
        self.module.helpers.add(f"fill_{ty}")
        self.lines.append(f"  call void @pt_fill_{ty}(ptr {pointer}, i64 {count}, {ty} {start})")

    def _finish_function(self):
        self.module.groups += 1
        name = f"nest{self.module.groups}"
        params = list(self.params)
        result = "i64" if self.checked else "void"
        signature = ", ".join(
            f"ptr noalias {'readonly ' if p == 'P' else ''}{self.params[p]}" for p in params
        )
        if self.group.parts is not None:
            signature += ", i64 %part"
        inline = "" if self.module.inline and len(self.group.items) < 100 else " noinline"
        ending = "  ret void"
        if self.checked:
            self.allocas = ["  %bad = alloca i64", "  store i64 0, ptr %bad", *self.allocas]
            ending = "  %status = load i64, ptr %bad\n  ret i64 %status"
        self.module.functions.append(
            "\n".join(
                [
                    f"define internal {result} @{name}({signature}) nounwind{inline} {{",
                    "entry:",
                    *self.allocas,
                    *self.lines,
                    ending,
                    "}",
                ]
            )
        )
        return name, params, self.checked

    def _open(self, size, start="0"):
        self.labels += 1
        k = self.labels
        i = f"%i{k}"
        if size == 1:
            self.index.append("0")
            return k, i, None
        self.lines += [
            f"  br label %h{k}",
            f"h{k}:",
            f"  {i} = phi i64 [ {start}, %{self.label} ], [ {i}.n, %l{k} ]",
        ]
        self.label = f"h{k}"
        self.index.append(i)
        return k, i, size

    def _close(self, k, i, opened, size, step=1):
        self.index.pop()
        if opened is None:
            return
        self.lines += [
            f"  br label %l{k}",
            f"l{k}:",
            f"  {i}.n = add nuw nsw i64 {i}, {step}",
            f"  {i}.c = icmp ult i64 {i}.n, {size}",
            f"  br i1 {i}.c, label %h{k}, label %x{k}{self._hint(k)}",
            f"x{k}:",
        ]
        self.label = f"x{k}"

    def _hint(self, k):
        """Return what ends the branch of loop `k`: where it calls functions, a wish not to do
        several of its turns at once, which gives twice the code in twice the time, and no speed.
        """
        begin = len(self.lines) - self.lines[::-1].index(f"h{k}:")
        if not any(_CALL.search(line) for line in self.lines[begin:]):
            return ""
        self.module.loops += 1
        number = self.module.loops
        self.module.declare('!0 = !{!"llvm.loop.interleave.count", i32 1}')
        self.module.declare(f"!{number} = distinct !{{!{number}, !0}}")
        return f", !llvm.loop !{number}"

    def _inner(self, size, body):
        """Write an inner loop of `size` around ``body(index register)``."""
        if size == 1:
            body("0")
            return
        k, i, opened = self._open(size)
        self.index.pop()
        held, self.loaded = self.loaded, {}
        body(i)
        self.loaded = held
        self.index.append(i)
        self._close(k, i, opened, size)

    def _counted(self, index):
        return Value(index, "i64", self)

    def variable_of(self, ty, start):
        name = self.fresh("a")
        self.allocas.append(f"  {name} = alloca {in_memory(ty)}")
        if start is not None:
            self.lines.append(f"  store {in_memory(ty)} {start}, ptr {name}")
        return name

    # ---------------------------------------------------------------------------------------- items

    def _element_offset(self, operands, wraps):
        """Emit an element offset; before the loops if it is the same throughout, so that rows are
        read and written as vectors.
        """
        fixed = all(
            isinstance(x, Mem) and not any(x.strides) and id(x.buffer) not in self.written
            for x in operands
        )
        if not (fixed and self.rank):
            return super()._element_offset(operands, wraps)
        lines, loaded = self.lines, self.loaded
        self.lines, self.loaded = self.allocas, {}
        offset = super()._element_offset(operands, wraps)
        self.lines, self.loaded = lines, loaded
        return offset

    def fail_if(self, bad):
        """Note that this run must not count; what follows still runs, harmlessly."""
        self.checked = True
        before = self.emit("load i64, ptr %bad", "i64")
        # Not a choice between the two: LLVM makes vectors of loops that collect bits.
        wide = self.emit(f"zext i1 {bad.name} to i64", "i64")
        both = self.emit(f"or i64 {before.name}, {wide.name}", "i64")
        self.lines.append(f"  store i64 {both.name}, ptr %bad")

    def _is_beyond(self, i, size):
        return self.emit(f"icmp uge i64 {i.name}, {size}", "i1")

    def _call(self, symbol, ty, operands):
        self.module.declare(runtime.declaration(symbol))
        text = ", ".join(f"{v.ty} {v.name}" for v in operands)
        return self.emit(f"call {ty} @{symbol}({text})", ty)

    def _item_axpy(self, item):
        matrix, vector = item.operands
        ty = ir_type(item.root.dtype)
        v = self.read(vector, ty)
        out = item.root.buffer

        def body(m):
            x = self._load(matrix, (m, item.attrs["step"]))
            pointer = self.address(out, 0, (), (m, 1))
            self.store_at(self._plus(self.load_at(pointer, ty), x * v), pointer)

        self._inner(item.attrs["size"], body)

    # ----------------------------------------------------------------------------------- reductions

    def _open_reductions(self, reduces, depth):
        for item in reduces:
            if item.attrs["depth"] == depth:
                self._begin(item)

    def _begin(self, item):
        kind = item.attrs["reduce"]
        ty = summed_type(item)
        item.attrs["part"] = None
        if kind == "sum" and ty == "float" and self._is_long(item):
            item.attrs["part"], ty = self.variable_of(ty, None), "double"
        item.attrs["total"] = self.variable_of(ty, self.start_of(kind, ty))
        if kind in ("argmax", "argmin"):
            item.attrs["best"] = self.variable_of("i64", "-1")

    def _is_long(self, item):
        """Whether a sum is made in several loops, or in a long one."""
        summed = self.group.domain[item.attrs["depth"] :]
        return bool(summed) and (math.prod(summed[:-1]) > 1 or summed[-1] > _STRIP)

    def _item_reduce(self, item):
        kind, depth = item.attrs["reduce"], item.attrs["depth"]
        ty = summed_type(item)
        v = self.convert(self.read(item.operands[0], ty), ty)
        if depth is None:
            pointer = self.address(item.root.buffer, 0, item.attrs["strides"])
            self.store_at(combined(self, kind, self.load_at(pointer, ty), v), pointer)
            return
        if depth == self.rank:
            self._begin(item)
        total = item.attrs["part"] or item.attrs["total"]
        if kind in ("argmax", "argmin"):
            best = item.attrs["best"]
            old = self.load_at(total, ty)
            first = self.emit(f"icmp slt i64 {self.load_at(best, 'i64').name}, 0", "i1")
            better = self.compare("gt" if kind == "argmax" else "lt", v, old)
            if ty in FLOATS:
                better = self.logical_or(
                    better, self.logical_and(self.isnan(v), self.logical_not(self.isnan(old)))
                )
            better = self.logical_or(first, better)
            self.store_at(self.where(better, v, old), total)
            position = self.where(
                better, Value(self._position(depth), "i64", self), self.load_at(best, "i64")
            )
            self.lines.append(f"  store i64 {position.name}, ptr {best}")
        else:
            new = combined(self, kind, self.load_at(total, ty), v)
            self.store_at(new, total)
        if depth == self.rank:
            self._finish_reduction(item)

    def _position(self, depth):
        """Emit the row-major index over the reduced dims."""
        total = "0"
        for i, size in zip(self.index[depth:], self.group.domain[depth:], strict=True):
            scaled = self.emit(f"mul nsw i64 {total}, {size}", "i64").name
            total = self.emit(f"add nsw i64 {scaled}, {i}", "i64").name
        return total

    def _close_reductions(self, reduces, depth):
        for item in reduces:
            if item.attrs["depth"] == depth:
                self._finish_reduction(item)

    def _finish_reduction(self, item):
        name = item.attrs.get("best")
        ty = "i64" if name else "double" if item.attrs["part"] else summed_type(item)
        v = self.load_at(name or item.attrs["total"], ty)
        if not name:
            v = self.convert(v, self.type_of(item.root.buffer))
        self.store_at(v, self.address(item.root.buffer, 0, item.attrs["strides"]))
