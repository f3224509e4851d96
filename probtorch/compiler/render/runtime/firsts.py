"""The first few elements of a row in order, the largest or the smallest, and where they are.

They are kept in order while the row is gone through once, so that equal elements stay in theirs.
nan comes after everything else, and before it where the largest are asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.render.runtime.passes import Row

__all__ = ["BODIES"]


def _firsts(
    r: Row, x: Value, values: Value, places: Value, count: Value, before: Callable[..., Value]
) -> None:
    """Write the first `count` elements, of which the row has as many."""
    w = r.w
    at = w.variable("i64", w.value(0, "i64"))
    with w.loop(0, r.n) as j:
        v = w.load(x, j, r.ty)
        last = count - 1
        filling = j < count
        place = w.where(filling, j, last)
        # While places are filled there is nothing yet at the last.
        enters = w.logical_or(filling, before(v, w.load(values, w.where(filling, 0, last), r.ty)))
        with w.when(enters):
            at.value = place
            with w.repeat_while(lambda: _is_behind(r, values, at.value, v, before)):
                there = at.value - 1
                w.store(values, at.value, w.load(values, there, r.ty), r.ty)
                w.store(places, at.value, w.load(places, there, "i64"), "i64")
                at.value = there
            w.store(values, at.value, v, r.ty)
            w.store(places, at.value, j, "i64")


def _is_behind(r, values, at, v, before):
    """Whether `v` comes before the element that is before place `at`."""
    w = r.w
    there = w.load(values, w.where(at > 0, at - 1, 0), r.ty)
    return w.logical_and(at > 0, before(v, there))


def _largest(r: Row, x: Value, _: Value, values: Value, places: Value, count: Value) -> None:
    w = r.w

    def before(a: Value, b: Value) -> Value:
        return w.logical_or(a > b, w.logical_and(w.isnan(a), w.logical_not(w.isnan(b))))

    _firsts(r, x, values, places, count, before)


def _smallest(r: Row, x: Value, _: Value, values: Value, places: Value, count: Value) -> None:
    w = r.w

    def before(a: Value, b: Value) -> Value:
        return w.logical_or(a < b, w.logical_and(w.isnan(b), w.logical_not(w.isnan(a))))

    _firsts(r, x, values, places, count, before)


BODIES: dict[str, Callable[..., None]] = {"largest": _largest, "smallest": _smallest}
