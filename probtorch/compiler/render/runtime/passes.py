"""Passes over the elements of a row, for the native code of eager operations (rows.py).

A row is worked on `LANES` elements at a time, whatever vectors the processor has, and its rest
under a mask; sums are taken lane by lane, folded in one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.nodes import (
    Cast,
    Compare,
    Load,
    Operand,
    Select,
    Shuffle,
    Store,
    Value,
)
from probtorch.compiler.lang.types import BYTES, element_of, vector
from probtorch.compiler.native import host

__all__ = ["LANES", "STRETCH", "WIDE", "Made", "Row"]

LANES = 16
WIDE = vector("double", LANES)
STRETCH = 16 * LANES
_INTEGERS = vector("i32", LANES)

# What a body makes of the elements at hand: terms of sums, and what is to be written where.
Made = tuple[Sequence[Value], Sequence[tuple[Value, Value]]]


class Row:
    """Passes over the elements of one row.

    Parameters
    ----------
    w : KernelFunction
        Of plain numbers; vectors are values of it whose type says so.
    ty : str
        Of the elements.
    n : Value
        Their number.
    """

    def __init__(self, w: KernelFunction, ty: str, n: Value) -> None:
        self.w, self.ty, self.n = w, ty, n
        self.vector = vector(ty, LANES)
        self.full = n & -LANES
        self.rest = n & (LANES - 1)
        numbers = w.load_at(w.table(range(LANES), "i32").pointer, _INTEGERS)
        count = w.convert(w.convert(self.rest, "i32"), _INTEGERS)
        self.mask = w.put(Compare("ult", numbers, count))
        self.count = w.as_float(n)

    # ------------------------------------------------------------------------------------- elements

    def all(self, x: Operand, ty: str = "") -> Value:
        """Return a vector with a number in all lanes, rounded to the type of its elements."""
        ty = ty or self.vector
        x = self.w.value(x, element_of(ty))
        return self.w.convert(self.w.convert(x, element_of(ty)), ty)

    def wide(self, v: Value) -> Value:
        """Return elements in double precision."""
        return v if v.ty == WIDE else self.w.put(Cast(v, WIDE))

    def narrow(self, v: Value) -> Value:
        """Return elements in the precision of the row."""
        return v if v.ty == self.vector else self.w.put(Cast(v, self.vector))

    def exp(self, v: Value) -> Value:
        return self.by_parts("exp", v)

    def sqrt(self, v: Value) -> Value:
        return self.w.call(f"llvm.sqrt.v{LANES}f{8 * BYTES[self.ty]}", self.vector, v)

    def share(self, v: Value, z: Value) -> Value:
        """Return exp(v - z) and its limits."""
        return self.by_parts("share", v, z)

    def by_parts(self, name: str, *vectors: Value) -> Value:
        """Call a function of vectors of 512 bits for the parts of longer ones."""
        w, lanes = self.w, 64 // BYTES[self.ty]
        if lanes == LANES:
            return w.call(name, self.vector, *vectors)
        low, high = (
            w.call(name, vector(self.ty, lanes), *(w.put(Shuffle(v, v, part)) for v in vectors))
            for part in (list(range(lanes)), list(range(lanes, LANES)))
        )
        return w.put(Shuffle(low, high, list(range(LANES))))

    def log(self, x: Value) -> Value:
        return self.w.call("log", "double", x)

    def divided_by(self, x: Value) -> Callable[[Value], Value]:
        """Return what divides vectors by a number, in double precision or in that of the row."""
        w = self.w
        if x.ty != self.ty:
            x = w.convert(x, self.ty)
        divisor, inverse = x, 1.0 / x
        if host.target().has_fma:  # of 0 and inf the product alone is right
            usual = w.logical_and(x > 0.0, x < math.inf)
            divisor = w.where(usual, x, 0.0)
        operands = self.all(inverse), self.all(divisor)
        return lambda v: w.call("quotient", self.vector, v, *operands)

    def _read(self, place: Value, i: Value, fill: Value | None) -> Value:
        at = self.w.offset(place, i, self.ty)
        if fill is None:
            return self.w.load_at(at, self.vector)
        return self.w.put(Load(at, self.vector, self.mask, fill))

    def _write(self, v: Value, place: Value, i: Value, masked: bool) -> None:
        at, v = self.w.offset(place, i, self.ty), self.narrow(v)
        self.w.put(Store(v, at, self.mask if masked else None))

    # --------------------------------------------------------------------------------------- passes

    def _pieces(self, stop: Value, start: Value | int, step, inputs: Sequence[Value]) -> None:
        with self.w.loop(start, stop, LANES) as i:
            step(i, [self._read(a, i, None) for a in inputs], False)

    def _rest(self, step, inputs: Sequence[Value], fill: float) -> None:
        with self.w.when(self.rest != 0):
            filled = self.all(fill)
            step(self.full, [self._read(a, self.full, filled) for a in inputs], True)

    def _each(self, step, inputs: Sequence[Value], fill: float = 0.0) -> None:
        self._pieces(self.full, 0, step, inputs)
        self._rest(step, inputs, fill)

    def mapped(self, inputs: Sequence[Value], body: Callable[..., Value], into: Value) -> None:
        """Write what ``body(*elements)`` gives."""
        self.mapped_and_added(inputs, lambda *values: (body(*values), ()), into, ())

    def written(
        self,
        inputs: Sequence[Value],
        body: Callable[..., Sequence[Value]],
        into: Sequence[Value],
    ) -> None:
        """Write all that ``body(*elements)`` gives."""

        def step(i: Value, values: list[Value], masked: bool) -> None:
            for v, place in zip(body(*values), into, strict=True):
                self._write(v, place, i, masked)

        self._each(step, inputs)

    def _wide_of(self, place: Value, i: Value, masked: bool) -> Value:
        """Elements of an array of doubles."""
        at = self.w.offset(place, i, "double")
        if not masked:
            return self.w.load_at(at, WIDE)
        return self.w.put(Load(at, WIDE, self.mask, self.all(0.0, WIDE)))

    def _add_to(self, sums: Value, i: Value, terms: Value, masked: bool) -> None:
        """Add to elements of an array of doubles."""
        after = self._wide_of(sums, i, masked) + terms
        self.w.put(Store(after, self.w.offset(sums, i, "double"), self.mask if masked else None))

    def mapped_and_added(
        self,
        inputs: Sequence[Value],
        body: Callable[..., tuple[Value, Sequence[Value]]],
        into: Value,
        sums: Sequence[Value],
    ) -> None:
        """Write the first of what ``body(*elements)`` gives, and add the others to rows of doubles
        at `sums`.
        """

        def step(i: Value, values: list[Value], masked: bool) -> None:
            v, terms = body(*values)
            self._write(v, into, i, masked)
            for term, total in zip(terms, sums, strict=True):
                self._add_to(total, i, self.wide(term), masked)

        self._each(step, inputs)

    def added(
        self,
        inputs: Sequence[Value],
        doubles: Sequence[Value],
        body: Callable[..., Sequence[Value]],
        sums: Sequence[Value],
    ) -> None:
        """Add what ``body(*elements)`` gives, of inputs and of arrays of doubles, all in double
        precision, to rows of doubles at `sums`.
        """

        def step(i: Value, values: list[Value], masked: bool) -> None:
            given = [*map(self.wide, values), *(self._wide_of(d, i, masked) for d in doubles)]
            for term, total in zip(body(*given), sums, strict=True):
                self._add_to(total, i, term, masked)

        self._each(step, inputs)

    def mapped_wide(
        self,
        inputs: Sequence[Value],
        doubles: Sequence[Value],
        body: Callable[..., Value],
        into: Value,
    ) -> None:
        """Write what ``body(*elements)`` gives, of inputs and of arrays of doubles, all in double
        precision.
        """

        def step(i: Value, values: list[Value], masked: bool) -> None:
            given = [*map(self.wide, values), *(self._wide_of(d, i, masked) for d in doubles)]
            self._write(body(*given), into, i, masked)

        self._each(step, inputs)

    def largest(self, x: Value) -> Value:
        """Return the largest element, -inf of none; nan is passed over."""
        w = self.w
        top = w.variable(self.vector, self.all(-math.inf))

        def step(i: Value, values: list[Value], masked: bool) -> None:
            top.value = _larger(w, values[0], top.value)

        self._each(step, [x], -math.inf)
        return _over_lanes(w, top.value, _larger)

    def sums(
        self, inputs: Sequence[Value], body: Callable[..., Made], count: int = 1, fill: float = 0.0
    ) -> list[Value]:
        """Return sums of the terms that ``body(*elements)`` gives, in double precision, and write
        what else it gives: pairs of values and places.
        """
        w = self.w
        sums = [_Sum(w) for _ in range(count)]

        def step(i: Value, values: list[Value], masked: bool) -> None:
            terms, results = body(*values)
            for total, term in zip(sums, terms, strict=True):
                total.add(self.wide(term), self.mask if masked else None)
            for v, place in results:
                self._write(v, place, i, masked)

        with w.loop(0, self.full, STRETCH) as begin:
            self._pieces(w.minimum(begin + STRETCH, self.full), begin, step, inputs)
            for total in sums:
                total.fold()
        self._rest(step, inputs, fill)
        for total in sums:
            total.fold()
        return [total.result() for total in sums]


class _Sum:
    """A sum, lane by lane: of this stretch, of those before, and what rounding these lost."""

    def __init__(self, w: KernelFunction) -> None:
        self.w = w
        zero = w.convert(w.value(0.0, "double"), WIDE)
        self.stretch, self.total, self.lost = (w.variable(WIDE, zero) for _ in range(3))
        self.zero = zero

    def add(self, term: Value, mask: Value | None) -> None:
        if mask is not None:
            term = self.w.put(Select(mask, term, self.zero))
        self.stretch.value = self.stretch.value + term

    def fold(self) -> None:
        """Add the stretch to the total, and begin another."""
        a, b = self.total.value, self.stretch.value
        s = a + b
        rounded = s - a
        self.lost.value = self.lost.value + ((a - (s - rounded)) + (b - rounded))
        self.total.value, self.stretch.value = s, self.zero

    def result(self) -> Value:
        """Return the sum over the lanes: of halves, and halves of these."""
        w = self.w
        total, lost = (
            _over_lanes(w, cell.value, lambda w, x, y: x + y) for cell in (self.total, self.lost)
        )
        both = total + lost
        # What infinities lose is nan.
        return w.where(w.isnan(both), total, both)


def _over_lanes(w: KernelFunction, v: Value, combined: Callable[..., Value]) -> Value:
    """Combine the lanes of a vector: halves of it, halves of these, and so on."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        low, high = (w.put(Shuffle(v, v, list(range(k, k + lanes)))) for k in (0, lanes))
        v = combined(w, low, high)
    return w.put(Cast(v, element_of(v.ty)))


def _larger(w: KernelFunction, x: Value, y: Value) -> Value:
    """The larger of each lane, y where either is nan."""
    return w.put(Select(w.put(Compare("gt", x, y)), x, y))
