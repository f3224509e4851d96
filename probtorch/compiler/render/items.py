"""The items of a loop nest at one index: what is the same on processors and GPUs.

`Items` is a function of the kernel language that also knows a nest: where operands are read, and
what each kind of item (formula, gather, store, inner product ...) does with them. Where elements
lie and what calls are refused is for `nest.py` and `cuda_nest.py` to say, its abstract methods;
they write the loops, reductions and functions around the items.
"""

import abc
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Unpack

from probtorch.compiler.lang.builder import CodeModule, Printer
from probtorch.compiler.lang.cells import Cell
from probtorch.compiler.lang.function import FunctionOptions, KernelFunction
from probtorch.compiler.lang.nodes import Compare, Value
from probtorch.compiler.lang.routines.blocks import combined
from probtorch.compiler.lang.types import BYTES, FLOATS, ir_type, limits
from probtorch.compiler.nests.loops import Group, Item, Mem, MemoryBuffer, Reg
from probtorch.compiler.render import runtime
from probtorch.compiler.render.scans import SCANS
from probtorch.compiler.render.small import SMALL_MATRICES
from probtorch.errors import CompileError

__all__ = ["ITEMS", "Items", "Total", "kept_strides", "kind_of", "summed_type"]

# Kinds of items that are functions of the nest and the item; the others are methods of `Items`.
ITEMS: dict[str, Callable[..., None]] = {**SMALL_MATRICES}


@dataclass
class Total:
    """The variables of a reduction: what it combines to, the place of the extreme it looks for, and
    the sum of a stretch of a long loop (`nest.py`).
    """

    cell: Cell
    best: Cell | None = None
    part: Cell | None = None


class Items(KernelFunction, abc.ABC):
    """Writes the items of a group at the current index.

    Attributes
    ----------
    index : list
        Of the dims of the group's domain; None where it is 0 anyway.
    registers : dict of int to Value
        Values of roots at this index, by the root's id.
    loaded : dict of tuple to Value
        Elements read at this index, by where they lie.
    written : dict of int to Buffer
        What the group writes to, by id: read anew each time.
    totals : dict of int to Total
        Of reductions, by the item's id.
    """

    def __init__(
        self,
        module: CodeModule,
        printer: Printer,
        group: Group,
        name: str = "",
        parameters: Sequence[str] = (),
        **options: Unpack[FunctionOptions],
    ) -> None:
        super().__init__(module, printer, name, "void", parameters, **options)
        self.group = group
        self.index, self.registers, self.loaded, self.totals = [], {}, {}, {}
        self.written = {id(b): b for item in group.items for b in item.written()}

    # ------------------------------------------------------------------ what is for each target

    @abc.abstractmethod
    def base(self, b: MemoryBuffer) -> tuple[Value, int]:
        """Return where a buffer, or its area, begins, and how many bytes behind it does."""

    @abc.abstractmethod
    def type_of(self, b: MemoryBuffer) -> str:
        """Return the type of the elements of a buffer."""

    @abc.abstractmethod
    def inner(self, size: int) -> AbstractContextManager[Value]:
        """Begin an inner loop of `size` turns, one or more; gives its index."""

    @abc.abstractmethod
    def _call(self, symbol, ty, operands):
        """Return the result of a function of the runtime."""

    def address(
        self,
        b: MemoryBuffer,
        offset: int,
        strides: Sequence[int],
        extra: tuple[Value, int] | None = None,
    ) -> Value:
        """Return where an element lies; `extra` is a further index with its stride."""
        pointer, shift = self.base(b)
        ty = self.type_of(b)
        total = None
        for i, s in [*zip(self.index, strides, strict=False), *([extra] if extra else [])]:
            if s and i is not None:
                term = self.whole(i if s == 1 else self.binary("mul", i, s, "nsw"))
                total = term if total is None else self.binary("add", total, term, "nsw")
        if shift or offset:
            pointer = self.offset(pointer, shift + offset * BYTES[ty], "i8")
        return pointer if total is None else self.offset(pointer, total, ty)

    def _form_of(self, kind):
        """Return the method that writes items of a kind."""
        return getattr(type(self), f"_item_{kind}")

    # ---------------------------------------------------------------------------------------- items

    def read(self, x, ty=None):
        """Return an operand's value at the current index."""
        if isinstance(x, Reg):
            return self.registers[id(x.root)]
        if isinstance(x, Mem):
            key = (id(x.buffer), x.offset, x.strides)
            if key not in self.loaded or id(x.buffer) in self.written:
                self.loaded[key] = self._load(x)
            return self.loaded[key]
        return self.value(x, ty) if ty else x

    def _load(self, x, extra=None):
        """Return the element of an operand in memory; `extra` as for `address`."""
        return self.load_at(
            self.address(x.buffer, x.offset, x.strides, extra), ir_type(x.buffer.dtype)
        )

    def _write_item(self, item):
        try:
            write = ITEMS.get(item.kind) or self._form_of(item.kind)
            write(self, item)
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

    def _item_compute(self, item):
        operands = [self.read(x) for x in item.operands]
        self.registers[id(item.root)] = self.evaluate(item.node, operands)

    def _item_native(self, item):
        """A scalar function of render/runtime."""
        symbol = item.attrs["symbol"]
        result, types = runtime.types_of(symbol)
        operands = [
            self.convert(self.read(x, ty), ty) for x, ty in zip(item.operands, types, strict=True)
        ]
        out = self._call(symbol, result, operands)
        if item.attrs["refuses"]:
            self.fail_if(self.isnan(out))
        self.registers[id(item.root)] = self.convert(out, ir_type(item.root.dtype))

    def _item_demand(self, item):
        """The first operand; the run ends where the second is false."""
        x, ok = (self.read(operand) for operand in item.operands)
        self.fail_if(self.logical_not(ok))
        self.registers[id(item.root)] = x

    def _item_store(self, item):
        a = item.attrs
        v = self.read(item.operands[0], ir_type(a["buffer"].dtype))
        self._put(v, self.address(a["buffer"], a["offset"], a["strides"]), a["mode"])

    def _item_gather(self, item):
        source, *index = item.operands
        at = self._element_offset(index, item.attrs["wraps"])
        self.registers[id(item.root)] = self._load(source, (at, 1))

    def _item_scatter(self, item):
        """On a GPU only one whose destinations are all different."""
        value, *index = item.operands
        a = item.attrs
        at = self._element_offset(index, a["wraps"])
        target = self.address(a["buffer"], 0, a["strides"], (at, 1))
        self._put(self.read(value, ir_type(a["buffer"].dtype)), target, a["mode"])

    def _put(self, v, target, mode):
        if mode == "add":
            v = self.binary("add", self.load_at(target, v.ty), v)
        self.store_at(v, target)

    def _element_offset(self, operands, wraps):
        """Return an element offset, with bounds checks where the indices are not known."""
        total = None
        for x, (size, stride, check, negative) in zip(operands, wraps, strict=True):
            i = self.convert(self.read(x), "i64")
            if negative:
                i = self.where(i < 0, i + size, i)
            if check:
                inside = self.put(Compare("ult", i, self.whole(size)))
                self.fail_if(self.logical_not(inside))
                i = self.where(inside, i, 0)
            term = i * stride
            total = term if total is None else total + term
        return total

    def _item_dot(self, item):
        a, b = item.operands
        steps, total = item.attrs["steps"], self.variable(ir_type(item.root.dtype), 0)
        with self.inner(item.attrs["size"]) as k:
            product = self._load(a, (k, steps[0])) * self._load(b, (k, steps[1]))
            total.value = self._plus(total.value, product)
        self.registers[id(item.root)] = total.value

    def _item_scan(self, item):
        a = item.attrs
        step = SCANS[item.node.name](self, item, ir_type(a["buffer"].dtype))
        with self.inner(a["size"]) as k:
            xs = [self._load(x, (k, n)) for x, n in zip(item.operands, a["steps"], strict=True)]
            target = self.address(a["buffer"], 0, a["strides"], (k, a["out_step"]))
            self.store_at(step(k, *xs), target)

    # ----------------------------------------------------------------------------------- reductions

    def start_of(self, kind: str, ty: str) -> float:
        """Return what a reduction starts from."""
        if kind in ("sum", "prod"):
            return int(kind == "prod")
        largest = kind in ("amax", "argmax")
        if ty in FLOATS:
            return -math.inf if largest else math.inf
        return limits(ty)[0 if largest else 1]

    def total_of(self, item: Item, ty: str, part: Cell | None = None) -> Total:
        """Set the variables of a reduction to what it starts from."""
        kind = kind_of(item)
        total = self.totals[id(item)] = Total(self.variable(ty, self.start_of(kind, ty)), part=part)
        if kind in ("argmax", "argmin"):
            total.best = self.variable("i64", -1)
        return total

    def _plus(self, a, b):
        return combined(self, "sum", a, b)


def kind_of(item):
    """The reduction that an item is: scaled rows and dot products are sums."""
    return item.attrs["reduce"] if item.kind == "reduce" else "sum"


def summed_type(item):
    """The type of the numbers that a reduction combines."""
    if kind_of(item) in ("argmax", "argmin"):
        return ir_type(item.node.inputs[0].dtype)
    return ir_type(item.root.dtype)


def kept_strides(shape):
    """Row-major strides of `shape` over its domain."""
    strides, step = [], 1
    for n in reversed(shape):
        if n != 1:
            strides.append(step)
            step *= n
    return tuple(reversed(strides))
