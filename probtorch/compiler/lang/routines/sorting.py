"""Sorting and searching along rows that lie one after the other.

The order is that of ops/sorting.py: stable, nan behind every number. Descending order is that of
the reversed row, reversed: equal elements keep their places, and nan comes first. That leaves one
answer, so the threads of a GPU may share the work out as they like: a block has whole rows, and
the bits are the same however many blocks there are. A processor's one thread does it all.

- **argsort**: runs of `_RUN` are sorted by counting what comes before each element, without a
  branch; runs are then merged pass by pass. A processor merges two runs from end to end, with keys
  beside their places in working space. On a GPU each thread writes `_RUN` places of a merge, and
  finds by bisection where these begin in either run (the merge path of Green, McColl and Bader
  2012). There it needs no working space: places fit into 32 bits, results have 64, and the halves
  of the results are what a pass reads and writes. As many short rows as keep a block busy are
  sorted in the same passes.
- **order_statistic**: a processor sorts short rows; on a GPU a thread counts what comes before an
  element. In long rows the key of the element is found bit by bit, by counting the keys below; then
  its place among equal ones, so that even the sign of a zero is the right one.
- **searchsorted**: a bisection for each value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from probtorch.compiler.lang.cells import Array, Cell
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.blocks import of_block
from probtorch.compiler.lang.types import BYTES, FLOATS, integer_of

__all__ = ["RUN", "SHORT_ROW", "SORTING"]

# Elements that a thread orders at a time, a power of 2.
RUN = 8
# Elements of a row up to which an order statistic is not found bit by bit, which takes 70 to 80
# passes over the row: of 257 numbers 6 us where sorting took 11, of 100 the same. Not measured on a
# GPU.
SHORT_ROW = 128


def _key(w: KernelFunction, x: Value) -> Value:
    """An integer that is ordered as `x` is, and equal where it is."""
    if x.ty not in FLOATS:
        return x
    bits = w.to_bits(x + 0.0)  # of both zeros the same
    top = 8 * BYTES[x.ty] - 1
    return w.where(w.isnan(x), 2**top - 1, bits ^ ((bits >> top) & (2**top - 1)))


# ------------------------------------------------------------------------------------------ sorting


class _Row:
    """Keys and places of a row while it is sorted: two lists, of which `half` tells them apart.

    Number 0 of a list comes first; in descending order that is behind all others in memory, and
    `origin` and `way` say where in the row what was number `i` lies.
    """

    def __init__(
        self, w: KernelFunction, x: Array, n: Value, descending: Value, out: Array, work: Array
    ) -> None:
        self.w, self.x, self.n, self.out = w, x, n, out
        self.alone = w.threads == 1
        self.origin, self.way = w.where(descending, n - 1, 0), w.where(descending, w.whole(-1), 1)
        if self.alone:
            kind = integer_of(x.ty) if x.ty in FLOATS else x.ty
            self.places, self.keys = work, work.at(n + n, kind)
        else:
            self.places = Array(w, out.pointer, "i32")

    def first(self, i: Value) -> tuple[Value, Value]:
        """Key and place of number `i` before sorting."""
        at = self.origin + i * self.way
        return _key(self.w, self.x[at]), at

    def _at(self, half: Value, i: Value) -> Value:
        return half * self.n + i if self.alone else (self.origin + i * self.way) * 2 + half

    def read(self, half: Value, i: Value) -> tuple[Value, Value]:
        """Key and place of number `i` of a list."""
        at = self._at(half, i)
        place = self.w.whole(self.places[at])
        return self.keys[at] if self.alone else _key(self.w, self.x[place]), place

    def write(self, half: Value, i: Value, key: Value, place: Value) -> None:
        """Put a key and its place at number `i` of a list."""
        at = self._at(half, i)
        self.places[at] = self.w.convert(place, self.places.ty)
        if self.alone:
            self.keys[at] = key

    def finish(self, half: Value, i: Value) -> None:
        """Make number `i` of a list a result."""
        self.out[self.origin + i * self.way] = self.read(half, i)[1]


def _sort_run(w: KernelFunction, row: _Row, start: Value) -> None:
    """Sort up to `RUN` elements from `start` on into the first list, by counting."""
    found = [row.first(start)]
    ranks = [w.variable("i64", start) for _ in range(RUN)]
    for j in range(1, RUN):
        found.append(row.first(w.minimum(start + j, row.n - 1)))
        with w.when(start + j < row.n):
            for i in range(j):
                # The earlier one comes first unless the later one comes strictly before it.
                later = found[j][0] < found[i][0]
                ranks[i].value = ranks[i].value + w.convert(later, "i64")
                ranks[j].value = ranks[j].value + w.convert(w.logical_not(later), "i64")
    for i, rank in enumerate(ranks):
        with w.when(start + i < row.n):
            row.write(w.whole(0), rank.value, *found[i])


def _merge(
    w: KernelFunction, row: _Row, half: Value, low: Value, width: Value, start: Value, count: Value
) -> None:
    """Write `count` elements from `start` on of the two runs that begin at `low`, merged."""
    middle = w.minimum(low + width, row.n)
    high, into = w.minimum(middle + width, row.n), 1 - half
    end, ahead = w.minimum(start + count, high), start - low
    least = w.variable("i64", w.maximum(ahead - (high - middle), 0))
    most = w.variable("i64", w.minimum(ahead, middle - low))
    with w.repeat_while(lambda: least.value < most.value):
        between = (least.value + most.value) >> 1
        first, _ = row.read(half, low + between)
        second, _ = row.read(half, middle + ahead - 1 - between)
        earlier, later = w.branch(second < first)
        with earlier:
            most.value = between
        with later:
            least.value = between + 1
    i, j = w.variable("i64", low + least.value), w.variable("i64", middle + ahead - least.value)
    o = w.variable("i64", start)

    def move(cell: Cell, key: Value, place: Value) -> None:
        row.write(into, o.value, key, place)
        cell.value = cell.value + 1
        o.value = o.value + 1

    def more(*pairs: tuple[Cell, Value]) -> Value:
        # Two runs that are merged from end to end end by themselves.
        ends = () if row.alone else ((o, end),)
        return functools.reduce(w.logical_and, [c.value < stop for c, stop in (*pairs, *ends)])

    with w.repeat_while(lambda: more((i, middle), (j, high))):
        left, right = row.read(half, i.value), row.read(half, j.value)
        yes, no = w.branch(right[0] < left[0])
        with yes:
            move(j, *right)
        with no:
            move(i, *left)
    for cell, stop in ((i, middle), (j, high)):
        with w.repeat_while(functools.partial(more, (cell, stop))):
            move(cell, *row.read(half, cell.value))


def _sort(w: KernelFunction, row: Callable[[Value], _Row], count: Value, n: Value) -> Value:
    """Sort rows 0 <= r < count; returns which list of each is sorted then."""
    with w.share(count, n, step=RUN) as (r, start):
        _sort_run(w, row(r), start)
    w.barrier()
    half, width = w.variable("i64", 0), w.variable("i64", RUN)
    with w.repeat_while(lambda: width.value < n):
        both = width.value + width.value
        size = both if w.threads == 1 else w.whole(RUN)
        with w.share(count, n, step=size) as (r, start):
            _merge(w, row(r), half.value, start & -both, width.value, start, size)
        w.barrier()
        half.value, width.value = 1 - half.value, both
    return half.value


def _argsort(
    w: KernelFunction, x: Array, rows: Value, n: Value, descending: Value, out: Array, work: Array
) -> None:
    """Indices that sort each row."""
    alone, backwards = w.threads == 1, w.truth(descending)
    together = w.whole(1) if alone else w.maximum(w.whole(RUN * w.threads) // n, 1)
    with w.blocks(rows, together) as begin:
        count = w.minimum(rows - begin, together)

        def row(r: Value) -> _Row:
            at = (begin + r) * n
            return _Row(w, x.at(at), n, backwards, out.at(at), work)

        half = _sort(w, row, count, n)
        with w.share(count, n) as (r, i):
            row(r).finish(half, i)


# --------------------------------------------------------------------------------- order statistics


def _order_statistic(
    w: KernelFunction, x: Array, rows: Value, n: Value, k: Value, out: Array, work: Array
) -> None:
    """The k-th smallest element of each row."""
    short, long = w.branch(n <= SHORT_ROW)
    with short:
        if w.threads == 1:
            with w.loop(0, rows) as r:
                row = _Row(w, x.at(r * n), n, w.truth(False), work, work)
                half = _sort(w, lambda _: row, w.whole(1), n)
                out[r] = row.x[row.read(half, k)[1]]
        else:
            _count(w, x, rows, n, k, out)
    with long, w.blocks(rows) as r:
        here = x.at(r * n)
        place = _select(w, here, n, k)
        with w.when(w.thread == 0):
            out[r] = here[place]


def _count(w: KernelFunction, x: Array, rows: Value, n: Value, k: Value, out: Array) -> None:
    """Find the elements with `k` elements before them, a thread for each element."""
    with w.share(rows, n, everyone=True) as (r, i):
        row, rank = x.at(r * n), w.variable("i64", 0)
        key = _key(w, row[i])
        with w.loop(0, n) as j:
            other = _key(w, row[j])
            ahead = w.where(j < i, other <= key, other < key)
            rank.value = rank.value + w.convert(ahead, "i64")
        with w.when(rank.value == k):
            out[r] = row[i]


def _select(w: KernelFunction, row: Array, n: Value, k: Value) -> Value:
    """The place of the element with `k` elements before it."""
    before = w.variable("i64")
    bits = 8 * BYTES[row.ty] + (row.ty not in ("double", "float", "i64", "i32"))

    def count(test: Callable[[Value, Value], Value]) -> Value:
        before.value = 0
        with w.share(n) as i:
            key = w.convert(_key(w, row[i]), "i64")
            before.value = before.value + w.convert(test(key, i), "i64")
        return of_block(w, "sum", before.value)

    # The largest key with at most k smaller ones.
    key, bit = w.variable("i64", -(2 ** (bits - 1))), w.variable("i64", bits - 1)
    with w.repeat_while(lambda: bit.value >= 0):
        higher = key.value + (w.whole(1) << bit.value)
        key.value = w.where(count(lambda other, i: other < higher) <= k, higher, key.value)
        bit.value = bit.value - 1
    # The last place with at most k elements before it: of smaller keys, or equal and in front.
    found, place, step = key.value, w.variable("i64", 0), w.variable("i64", 1)
    with w.repeat_while(lambda: step.value + step.value < n):
        step.value = step.value + step.value
    with w.repeat_while(lambda: step.value > 0):
        end = place.value + step.value

        def ahead(other: Value, i: Value) -> Value:
            return w.logical_or(other < found, w.logical_and(other == found, i < end))

        place.value = w.where(count(ahead) <= k, end, place.value)
        step.value = step.value >> 1
    return place.value


# ---------------------------------------------------------------------------------------- searching


def _searchsorted(
    w: KernelFunction,
    x: Array,
    values: Array,
    rows: Value,
    n: Value,
    count: Value,
    right: Value,
    out: Array,
) -> None:
    """Where each of `count` values belongs in its sorted row: in front of equal elements, or behind
    them.
    """
    right = w.truth(right)
    with w.share(rows, count, everyone=True) as (r, i):
        row, at = x.at(r * n), r * count + i
        v = values[at]
        unknown = w.isnan(v)
        low, high = w.variable("i64", 0), w.variable("i64", n)
        with w.repeat_while(lambda: low.value < high.value):
            middle = w.lshr(low.value + high.value, 1)
            # False where the element is nan, which is right unless the value is nan as well.
            element = row[middle]
            below = w.where(right, element <= v, element < v)
            number = w.logical_or(right, w.logical_not(w.isnan(element)))
            behind, ahead = w.branch(w.logical_or(below, w.logical_and(unknown, number)))
            with behind:
                low.value = middle + 1
            with ahead:
                high.value = middle
        out[at] = low.value


SORTING = {}
for _ty in BYTES:
    for _name, _types, _body in (
        ("argsort", f"{_ty}* i64 i64 i64 i64* i64*", _argsort),
        ("order_statistic", f"{_ty}* i64 i64 i64 {_ty}* i64*", _order_statistic),
        ("searchsorted", f"{_ty}* {_ty}* i64 i64 i64 i64 i64*", _searchsorted),
    ):
        SORTING[f"pt_{_name}_{_ty}"] = KernelRoutine(_body, _types, "void", grid=True)
