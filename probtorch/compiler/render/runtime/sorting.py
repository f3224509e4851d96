"""Sorting and searching in native code, one module of text per element type.

A row is sorted by merging, bottom up and stably, with its keys beside the indices they came from;
runs of `_RUN` are sorted by insertion first. nan comes after everything else. Descending order is
that of the reversed row, reversed: equal elements keep their places, and nan comes first, as in
ops/sorting.py.
"""

import functools

from probtorch.compiler.lang.types import FLOATS
from probtorch.compiler.render.writer import Writer

__all__ = ["signatures", "write"]

# Below this, insertion beats merging (8 to 32 were alike).
_RUN = 12

_POINTERS = {
    "argsort": ("void", ["ptr", "i64", "i64", "i64", "ptr", "ptr"]),
    "order_statistic": ("void", ["ptr", "i64", "i64", "i64", "ptr", "ptr"]),
    "searchsorted": ("void", ["ptr", "ptr", "i64", "i64", "i64", "i64", "ptr"]),
}


def signatures(ty):
    """Return the functions of the module for elements of IR type `ty`: result and parameters."""
    return {f"pt_{name}_{ty}": types for name, types in _POINTERS.items()}


def write(text, ty):
    """Write the module for elements of IR type `ty`."""
    _write_sort_row(text, ty)
    _write_argsort(text, ty)
    _write_order_statistic(text, ty)
    _write_searchsorted(text, ty)


def _before(w, a, b):
    """Whether `a` comes strictly before `b`."""
    less = a < b
    if a.ty in FLOATS:
        less = w.logical_or(less, w.logical_and(w.isnan(b), w.logical_not(w.isnan(a))))
    return less


def _is_below(low, high):
    return low.value < high.value


def _write_sort_row(text, ty):
    """Sort `n` keys and their indices; the other two arrays are working space."""
    types = ["ptr", "ptr", "ptr", "ptr", "i64"]
    w = Writer(text, "sort_row", "void", types, linkage="internal ", attributes="noinline nounwind")
    keys, places, spare_keys, spare_places, n = w.arguments
    low = w.variable("i64", 0)
    with w.repeat_while(lambda: low.value < n):
        high = w.minimum(low.value + _RUN, n)
        _insertion(w, keys, places, low.value, high, ty)
        low.value = high

    # Runs of `width` are merged from one pair of arrays into the other, which then change places.
    here = [w.variable("ptr", p) for p in (keys, places)]
    there = [w.variable("ptr", p) for p in (spare_keys, spare_places)]
    width = w.variable("i64", _RUN)
    with w.repeat_while(lambda: width.value < n):
        low.value = 0
        source = [c.value for c in here]
        target = [c.value for c in there]
        with w.repeat_while(lambda: low.value < n):
            start = low.value
            middle = w.minimum(start + width.value, n)
            high = w.minimum(middle + width.value, n)
            _merge(w, source, target, start, middle, high, ty)
            low.value = high
        for a, b, p, q in zip(here, there, source, target, strict=True):
            a.value, b.value = q, p
        width.value = width.value + width.value
    moved = w.emit(f"icmp ne ptr {here[0].value.name}, {keys.name}", "i1")
    with w.when(moved):
        w.copy(keys, here[0].value, n, ty)
        w.copy(places, here[1].value, n, "i64")
    w.finish()


def _insertion(w, keys, places, low, high, ty):
    with w.loop(low + 1, high) as i:
        key, place = w.load(keys, i, ty), w.load(places, i, "i64")
        at = w.variable("i64", i)

        def goes_on():
            # Read at `low` instead of before it: the test for the end decides there.
            previous = w.maximum(at.value - 1, low)
            larger = _before(w, key, w.load(keys, previous, ty))
            return w.logical_and(at.value > low, larger)

        with w.repeat_while(goes_on):
            previous = at.value - 1
            w.store(keys, at.value, w.load(keys, previous, ty), ty)
            w.store(places, at.value, w.load(places, previous, "i64"), "i64")
            at.value = previous
        w.store(keys, at.value, key, ty)
        w.store(places, at.value, place, "i64")


def _merge(w, source, target, low, middle, high, ty):
    i, j, k = w.variable("i64", low), w.variable("i64", middle), w.variable("i64", low)

    def move(cell):
        w.store(target[0], k.value, w.load(source[0], cell.value, ty), ty)
        w.store(target[1], k.value, w.load(source[1], cell.value, "i64"), "i64")
        cell.value = cell.value + 1
        k.value = k.value + 1

    with w.repeat_while(lambda: w.logical_and(i.value < middle, j.value < high)):
        left, right = w.load(source[0], i.value, ty), w.load(source[0], j.value, ty)
        second, first = w.branch(_before(w, right, left))
        with second:
            move(j)
        with first:
            move(i)
    for cell, end in ((i, middle), (j, high)):
        with w.repeat_while(lambda cell=cell, end=end: cell.value < end):
            move(cell)


def _areas(w, work, n, ty):
    """Divide working space: two arrays of indices, then two of keys."""
    places = work, w.offset(work, n, "i64")
    keys = w.offset(work, n + n, "i64")
    return (keys, w.offset(keys, n, ty)), places


def _write_argsort(text, ty):
    """Sort each row of (x, rows, n, descending, indices, work)."""
    types = _POINTERS["argsort"][1]
    w = Writer(text, f"pt_argsort_{ty}", "void", types)
    x, rows, n, descending, out, work = w.arguments
    keys, places = _areas(w, work, n, ty)
    backwards = w.truth(descending)
    with w.loop(0, rows) as r:
        row, into = w.offset(x, r * n, ty), w.offset(out, r * n, "i64")
        with w.loop(0, n) as i:
            at = w.where(backwards, n - 1 - i, i)
            w.store(keys[0], i, w.load(row, at, ty), ty)
            w.store(places[0], i, i, "i64")
        w.call("sort_row", "void", keys[0], places[0], keys[1], places[1], n)
        with w.loop(0, n) as i:
            place = w.load(places[0], w.where(backwards, n - 1 - i, i), "i64")
            w.store(into, i, w.where(backwards, n - 1 - place, place), "i64")
    w.finish()


def _write_order_statistic(text, ty):
    """Write the k-th smallest element of each row of (x, rows, n, k, out, work)."""
    types = _POINTERS["order_statistic"][1]
    w = Writer(text, f"pt_order_statistic_{ty}", "void", types)
    x, rows, n, k, out, work = w.arguments
    keys, places = _areas(w, work, n, ty)
    with w.loop(0, rows) as r:
        row = w.offset(x, r * n, ty)
        w.copy(keys[0], row, n, ty)
        w.call("sort_row", "void", keys[0], places[0], keys[1], places[1], n)
        w.store(out, r, w.load(keys[0], k, ty), ty)
    w.finish()


def _write_searchsorted(text, ty):
    """Search (rows, values, number of rows, their length, values per row, right, out), in the order
    that sorting makes: nan is the largest number.
    """
    types = _POINTERS["searchsorted"][1]
    w = Writer(text, f"pt_searchsorted_{ty}", "void", types)
    x, values, rows, n, count, right, out = w.arguments
    right = w.truth(right)
    with w.loop(0, rows) as r:
        row = w.offset(x, r * n, ty)
        with w.loop(0, count) as i:
            at = r * count + i
            v = w.load(values, at, ty)
            low, high = w.variable("i64", 0), w.variable("i64", n)
            with w.repeat_while(functools.partial(_is_below, low, high)):
                middle = w.lshr(low.value + high.value, 1)
                element = w.load(row, middle, ty)
                above, reached = _before(w, v, element), w.logical_not(_before(w, element, v))
                beyond, within = w.branch(w.where(right, above, reached))
                with beyond:
                    high.value = middle
                with within:
                    low.value = middle + 1
            w.store(out, at, low.value, "i64")
    w.finish()
