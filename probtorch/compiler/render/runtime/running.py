"""Sums in the order of the elements: running ones and recurrences along a row, and rows added where
indices say.
"""

from __future__ import annotations

from collections.abc import Callable

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.render.runtime.passes import Row

__all__ = ["BODIES"]


def _running(
    r: Row, x: Value, out: Value, start: float, join: Callable[..., Value], back: bool = False
) -> None:
    w = r.w
    total = w.variable("double", w.value(start, "double"))
    with w.loop(0, r.n) as k:
        i = r.n - 1 - k if back else k
        total.value = join(total.value, w.convert(w.load(x, i, r.ty), "double"))
        w.store(out, i, w.convert(total.value, r.ty), r.ty)


def _running_sum(r: Row, x: Value, out: Value) -> None:
    # The zero that changes nothing: 0.0 and -0.0 would give 0.0.
    _running(r, x, out, -0.0, lambda a, b: a + b)


def _running_product(r: Row, x: Value, out: Value) -> None:
    _running(r, x, out, 1.0, lambda a, b: a * b)


def _running_sum_back(r: Row, x: Value, out: Value) -> None:
    """Write sums of an element and all behind it."""
    _running(r, x, out, 0.0, lambda a, b: a + b, back=True)


def _recurrence(r: Row, a: Value, b: Value, out: Value) -> None:
    """Write y[j] = a[j] y[j - 1] + b[j]."""
    w = r.w
    last = w.variable("double", w.value(0.0, "double"))
    with w.loop(0, r.n) as i:
        factor, term = (w.convert(w.load(x, i, r.ty), "double") for x in (a, b))
        last.value = w.where(i == 0, term, factor * last.value + term)
        w.store(out, i, w.convert(last.value, r.ty), r.ty)


def _recurrence_back(r: Row, a: Value, b: Value, out: Value) -> None:
    """Write h[j] = b[j] + a[j + 1] h[j + 1], from the end."""
    w = r.w
    ahead = w.variable("double", w.value(0.0, "double"))
    with w.loop(0, r.n) as k:
        i = r.n - 1 - k
        term = w.convert(w.load(b, i, r.ty), "double") + ahead.value
        w.store(out, i, w.convert(term, r.ty), r.ty)
        ahead.value = w.convert(w.load(a, i, r.ty), "double") * term


def _added_rows(
    r: Row, index: Value, rows: Value, _: Value, out: Value, count: Value, size: Value
) -> None:
    """Write zeros with rows added at indices."""
    w = r.w
    with w.loop(0, size * r.n) as k:
        w.store(out, k, 0.0, r.ty)
    _add_rows(r, index, rows, out, count, size)


def _rows_added_to(
    r: Row, index: Value, rows: Value, x: Value, out: Value, count: Value, size: Value
) -> None:
    """Write `x` with rows added at indices."""
    w = r.w
    with w.loop(0, size * r.n) as k:
        w.store(out, k, w.load(x, k, r.ty), r.ty)
    _add_rows(r, index, rows, out, count, size)


def _add_rows(r: Row, index: Value, rows: Value, out: Value, count: Value, size: Value) -> None:
    """Add rows at indices, one after the other; negative ones count from the end."""
    w = r.w
    with w.loop(0, count) as k:
        i = w.load(index, k, "i64")
        i = w.where(i < 0, i + size, i)
        # What is beyond the ends has been refused before; it would be memory of somebody else's.
        with w.when(w.logical_and(i >= 0, i < size)):
            there, row = w.offset(out, i * r.n, r.ty), w.offset(rows, k * r.n, r.ty)
            r.mapped([there, row], lambda a, b: a + b, there)


BODIES: dict[str, Callable[..., None]] = {
    "running_sum": _running_sum,
    "running_sum_back": _running_sum_back,
    "running_product": _running_product,
    "recurrence": _recurrence,
    "recurrence_back": _recurrence_back,
    "added_rows": _added_rows,
    "rows_added_to": _rows_added_to,
}
