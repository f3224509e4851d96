"""Batch normalisation: each channel of (m, c, n) standardised over m and n, scaled and shifted.

Where n is 1 the elements of a row are channels, and sums go over rows into arrays of doubles; else
each channel has rows of its own. Read rows.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.render.runtime.passes import WIDE, Row

__all__ = ["BODIES"]


@contextmanager
def _rows(r: Row, places: list[Value], m: Value) -> Iterator[list[Value]]:
    """Yield, row by row, where rows of arrays begin."""
    with r.w.loop(0, m) as k:
        yield [r.w.offset(place, k * r.n, r.ty) for place in places]


def _zeroed(r: Row, totals: list[Value]) -> None:
    for total in totals:
        with r.w.loop(0, r.n) as k:
            r.w.store(total, k, 0.0, "double")


def _batch_norm(
    r: Row, x: Value, weight: Value, bias: Value, eps: Value, *made_and_sizes: Value
) -> None:
    """Write the result, and mean, variance and inverse deviation of each channel."""
    *made, m, c = made_and_sizes
    w, eps = r.w, r.w.convert(eps, "double")
    few, many = w.branch(r.n == 1)
    with few:
        out, mean, variance, inverse = made
        _columns(Row(w, r.ty, c), x, weight, bias, eps, out, mean, variance, inverse, m)
    with many, w.loop(0, c) as k:
        _channel(r, k, c, m, x, weight, bias, eps, *made)


def _columns(r, x, weight, bias, eps, out, mean, variance, inverse, m) -> None:
    w, count = r.w, r.w.as_float(m)
    _zeroed(r, [mean, variance])
    with _rows(r, [x], m) as (row,):
        r.added([row], [], lambda v: [v], [mean])
    with w.loop(0, r.n) as k:
        w.store(mean, k, w.load(mean, k, "double") / count, "double")

    def square(v, centre):
        d = v - centre
        return [d * d]

    with _rows(r, [x], m) as (row,):
        r.added([row], [mean], square, [variance])
    with w.loop(0, r.n) as k:
        spread = w.load(variance, k, "double") / count
        w.store(variance, k, spread, "double")
        w.store(inverse, k, 1.0 / w.sqrt(spread + eps), "double")
    with _rows(r, [x, out], m) as (row, result):
        r.mapped_wide(
            [row, weight, bias],
            [mean, inverse],
            lambda v, a, b, centre, scale: (v - centre) * scale * a + b,
            result,
        )


def _channel(r, k, c, m, x, weight, bias, eps, out, mean, variance, inverse) -> None:
    w, count = r.w, r.w.as_float(m) * r.count
    total = w.variable("double", w.value(0.0, "double"))
    with w.loop(0, m) as i:
        row = w.offset(x, (i * c + k) * r.n, r.ty)
        total.value = total.value + r.sums([row], lambda v: ([v], []))[0]
    centre = total.value / count
    moved = r.all(centre, WIDE)

    def square(v):
        d = r.wide(v) - moved
        return [d * d], []

    total.value = w.value(0.0, "double")
    with w.loop(0, m) as i:
        row = w.offset(x, (i * c + k) * r.n, r.ty)
        total.value = total.value + r.sums([row], square)[0]
    spread = total.value / count
    scale = 1.0 / w.sqrt(spread + eps)
    for place, value in ((mean, centre), (variance, spread), (inverse, scale)):
        w.store(place, k, value, "double")
    factor, a, b = (
        r.all(scale, WIDE),
        *(r.all(w.convert(w.load(t, k, r.ty), "double"), WIDE) for t in (weight, bias)),
    )
    with w.loop(0, m) as i:
        at = (i * c + k) * r.n
        row, result = (w.offset(place, at, r.ty) for place in (x, out))
        r.mapped([row], lambda v: (r.wide(v) - moved) * factor * a + b, result)


def _batch_norm_slope(
    r: Row, g: Value, x: Value, weight: Value, mean: Value, inverse: Value, *made_and_sizes: Value
) -> None:
    """Write derivatives in x, weight and bias."""
    out, of_weight, of_bias, m, c = made_and_sizes
    w = r.w
    few, many = w.branch(r.n == 1)
    with few:
        _columns_slope(Row(w, r.ty, c), g, x, weight, mean, inverse, out, of_weight, of_bias, m)
    with many, w.loop(0, c) as k:
        _channel_slope(r, k, c, m, g, x, weight, mean, inverse, out, of_weight, of_bias)


def _columns_slope(r, g, x, weight, mean, inverse, out, of_weight, of_bias, m) -> None:
    share = r.all(1.0 / r.w.as_float(m), WIDE)
    _zeroed(r, [of_weight, of_bias])
    with _rows(r, [g, x], m) as rows:
        r.added(
            rows,
            [mean, inverse],
            lambda a, v, centre, scale: [a * ((v - centre) * scale), a],
            [of_weight, of_bias],
        )
    with _rows(r, [g, x, out], m) as (*rows, result):
        r.mapped_wide(
            [*rows, weight],
            [mean, inverse, of_weight, of_bias],
            lambda a, v, factor, centre, scale, along, total: (
                (a - (v - centre) * scale * (along * share) - total * share) * scale * factor
            ),
            result,
        )


def _channel_slope(r, k, c, m, g, x, weight, mean, inverse, out, of_weight, of_bias) -> None:
    w, count = r.w, r.w.as_float(m) * r.count
    centre, scale = (r.all(w.load(place, k, "double"), WIDE) for place in (mean, inverse))

    def terms(a, v):
        return [r.wide(a) * ((r.wide(v) - centre) * scale), r.wide(a)], []

    sums = [w.variable("double", w.value(0.0, "double")) for _ in range(2)]
    with w.loop(0, m) as i:
        at = (i * c + k) * r.n
        found = r.sums([w.offset(place, at, r.ty) for place in (g, x)], terms, count=2)
        for total, part in zip(sums, found, strict=True):
            total.value = total.value + part
    for place, total in zip((of_weight, of_bias), sums, strict=True):
        w.store(place, k, total.value, "double")
    along, total = (r.all(s.value / count, WIDE) for s in sums)
    factor = r.all(w.convert(w.load(weight, k, r.ty), "double"), WIDE)
    with w.loop(0, m) as i:
        at = (i * c + k) * r.n
        rows = [w.offset(place, at, r.ty) for place in (g, x)]
        r.mapped(
            rows,
            lambda a, v: (
                (r.wide(a) - (r.wide(v) - centre) * scale * along - total) * scale * factor
            ),
            w.offset(out, at, r.ty),
        )


BODIES: dict[str, Callable[..., None]] = {
    "batch_norm": _batch_norm,
    "batch_norm_slope": _batch_norm_slope,
}
