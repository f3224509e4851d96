"""Means and largest elements over intervals that cover a dim, each as even as can be: what adaptive
pooling takes.

Neighbouring intervals may overlap, so the transpose adds up over intervals, too: over those that an
element belongs to.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.accumulate import floats, over_short_rows, wider
from probtorch.ops.arithmetic import maximum
from probtorch.ops.comparisons import eq
from probtorch.ops.extremes import amax
from probtorch.ops.families import linear, structured
from probtorch.ops.movement import slice_
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import mean, sum
from probtorch.ops.take_put import take, untake

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["interval_maxima", "interval_means", "intervals", "part_of"]

Bounds = tuple[tuple[int, int], ...]


@functools.lru_cache(64)
def intervals(size: int, count: int) -> Bounds:
    """Return (start, stop) of the `count` intervals that cover a dim."""
    return tuple((i * size // count, -(-(i + 1) * size // count)) for i in range(count))


@functools.lru_cache(64)
def _belonging(size: int, count: int) -> Bounds:
    """Return for each element the first interval that it belongs to, and one after the last."""
    inside = [
        [i for i, (a, b) in enumerate(intervals(size, count)) if a <= j < b] for j in range(size)
    ]
    return tuple((found[0], found[-1] + 1) for found in inside)


def part_of(x: TensorBase, dim: int, start: int, stop: int) -> TensorBase:
    """Return the elements from `start` to before `stop` of a dim."""
    spec = [(0, 1, m) for m in x.array.shape]
    spec[dim] = (start, 1, stop - start)
    return slice_(x, tuple(spec))


def _lengths(size: int, count: int, ndim: int, dim: int, dtype: np.dtype) -> np.ndarray:
    lengths = np.array([b - a for a, b in intervals(size, count)], dtype)
    return lengths.reshape([-1 if i == dim else 1 for i in range(ndim)])


def _sums(x: np.ndarray, dim: int, bounds: Bounds) -> np.ndarray:
    """Return the sums of parts of a dim, in double precision where elements are in single."""
    before, x = (slice(None),) * dim, wider(x)
    if type(x) is not np.ndarray:
        xp = namespace(x)
        return xp.stack([x[(*before, slice(a, b))].sum(dim) for a, b in bounds], dim)
    # A sum from each place to the next; every other is one of those asked for. No place may be
    # behind the last element.
    room = np.zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype)
    places = [place for pair in bounds for place in pair]
    joined = np.concatenate((x, room), dim)
    return np.add.reduceat(joined, places, dim)[(*before, slice(None, None, 2))]


def _run_means(x: np.ndarray, dim: int, count: int) -> np.ndarray:
    x, size = floats(x), x.shape[dim]
    sums = _sums(x, dim, intervals(size, count))
    return (sums / _lengths(size, count, x.ndim, dim, sums.dtype)).astype(x.dtype, copy=False)


def _run_spread(g: np.ndarray, dim: int, size: int) -> np.ndarray:
    g, count = floats(g), g.shape[dim]
    shares = g / _lengths(size, count, g.ndim, dim, g.dtype)
    return _sums(shares, dim, _belonging(size, count)).astype(g.dtype, copy=False)


def _decomposed_means(x: TensorBase, dim: int, count: int) -> TensorBase:
    bounds = intervals(x.array.shape[dim], count)
    return stack([mean(part_of(x, dim, *bound), dim) for bound in bounds], dim)


def _decomposed_spread(g: TensorBase, dim: int, size: int) -> TensorBase:
    count = g.array.shape[dim]
    parts = [
        part_of(g, dim, i, i + 1) / float(b - a) for i, (a, b) in enumerate(intervals(size, count))
    ]
    return stack([sum(stack(parts[a:b], 0), (0, dim + 1)) for a, b in _belonging(size, count)], dim)


def _reference(x: np.ndarray, dim: int, count: int) -> np.ndarray:
    parts = [np.take(x, range(a, b), dim).mean(dim) for a, b in intervals(x.shape[dim], count)]
    return np.stack(parts, dim)


def _spread_reference(g: np.ndarray, dim: int, size: int) -> np.ndarray:
    out = np.zeros((*g.shape[:dim], size, *g.shape[dim + 1 :]), g.dtype)
    for i, (a, b) in enumerate(intervals(size, g.shape[dim])):
        np.moveaxis(out, dim, 0)[a:b] += np.take(g, i, dim) / (b - a)
    return out


_MEANS = linear(
    "interval_means",
    "reduction",
    run=_run_means,
    transpose=lambda g, x, dim, count: apply(
        _SPREAD, (g,), {"dim": dim, "size": x.array.shape[dim]}
    ),
    core="dim",
    samples=lambda rng: [
        ((rng.standard_normal((2, 7)),), {"dim": 1, "count": 3}),
        ((rng.standard_normal((5, 2)),), {"dim": 0, "count": 5}),
        ((rng.standard_normal((3, 2)),), {"dim": 0, "count": 5}),
    ],
    reference=_reference,
    complex=False,
    doc="Means over intervals that cover a dim.",
)
_MEANS.extra["decompose"] = _decomposed_means
_SPREAD = linear(
    "interval_spread",
    "reduction",
    run=_run_spread,
    transpose=lambda g, x, dim, size: apply(
        _MEANS, (g,), {"dim": dim, "count": x.array.shape[dim]}
    ),
    core="dim",
    samples=lambda rng: [
        ((rng.standard_normal((2, 3)),), {"dim": 1, "size": 7}),
        ((rng.standard_normal((5, 2)),), {"dim": 0, "size": 3}),
    ],
    reference=_spread_reference,
    complex=False,
    doc="Numbers spread evenly over intervals that cover a dim: the transpose of `interval_means`.",
)
_SPREAD.extra["decompose"] = _decomposed_spread


# Of more numbers NumPy's reductions between places take longer than one for each interval.
_MANY = 4096


def _run_maxima(x: np.ndarray, dim: int, count: int) -> np.ndarray:
    if type(x) is not np.ndarray:
        xp, before = namespace(x), (slice(None),) * dim
        parts = [x[(*before, slice(a, b))].max(dim) for a, b in intervals(x.shape[dim], count)]
        return xp.stack(parts, dim)
    size = x.shape[dim]
    if size % count == 0:
        parted = x.reshape(*x.shape[:dim], count, size // count, *x.shape[dim + 1 :])
        return np.maximum.reduce(parted, dim + 1)
    if x.size > _MANY:
        out = np.empty((*x.shape[:dim], count, *x.shape[dim + 1 :]), x.dtype)
        before, largest = (slice(None),) * dim, np.moveaxis(out, dim, 0)
        for i, (a, b) in enumerate(intervals(size, count)):
            part = x[(*before, slice(a, b))]
            short = over_short_rows(part, (dim,), False, np.maximum)
            largest[i] = np.maximum.reduce(part, dim) if short is None else short
        return out
    # From each place to the next; every other one is asked for.
    places = [place for pair in intervals(size, count) for place in pair]
    if count > size:  # several end behind the last element, where there has to be one
        x = np.concatenate((x, x.take([-1], dim)), dim)
    else:
        places.pop()
    return np.maximum.reduceat(x, places, dim)[(*(slice(None),) * dim, slice(None, None, 2))]


@functools.lru_cache(64)
def _members(size: int, count: int) -> tuple[np.ndarray, ...]:
    """Return the elements of all intervals one after the other, the interval that each stands in,
    and where each interval begins; then an order of these members that has them element by element,
    and where each element begins in that.
    """
    bounds = intervals(size, count)
    cells = np.concatenate([np.arange(a, b) for a, b in bounds])
    owner = np.repeat(np.arange(count), [b - a for a, b in bounds])
    order = np.argsort(cells, kind="stable")
    found = cells, owner, np.searchsorted(owner, np.arange(count)), order
    return (*found, np.searchsorted(cells[order], np.arange(size)))


def _slopes_of_maxima(g: np.ndarray, x: np.ndarray, out: np.ndarray, dim: int) -> np.ndarray:
    """Return `g` at the largest elements of intervals, shared by equal ones, on arrays."""
    cells, owner, begins, order, elements = _members(x.shape[dim], out.shape[dim])
    hit = (x.take(cells, dim) == out.take(owner, dim)).astype(x.dtype)
    share = g * (1.0 / np.maximum(np.add.reduceat(hit, begins, dim), 1.0))
    hit *= share.take(owner, dim)
    if len(cells) == x.shape[dim]:  # every element belongs to one interval
        return hit
    return np.add.reduceat(hit.take(order, dim), elements, dim)


def _shares(
    x: TensorBase, out: TensorBase, dim: int
) -> tuple[TensorBase, list[TensorBase], list[TensorBase]]:
    """Return for each member of an interval its share in the largest element, and the members'
    elements and intervals.
    """
    cells, owner = (wrap(a) for a in _members(x.array.shape[dim], out.array.shape[dim])[:2])
    hit = cast(eq(take(x, (dim,), [cells]), take(out, (dim,), [owner])), x.array.dtype)
    count = maximum(untake(hit, (dim,), [owner], out.array.shape), 1.0)
    return hit / take(count, (dim,), [owner]), [cells], [owner]


def _maxima_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), dim = inputs, attrs["dim"]
    if unseen(g, x, out):
        return (wrap(_slopes_of_maxima(g.array, x.array, out.array, dim)),)
    share, cells, owner = _shares(x, out, dim)
    return (untake(take(g, (dim,), owner) * share, (dim,), cells, x.array.shape),)


def _maxima_jvp(
    tangents: Sequence[TensorBase], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    dim = attrs["dim"]
    share, cells, owner = _shares(inputs[0], out, dim)
    return untake(take(tangents[0], (dim,), cells) * share, (dim,), owner, out.array.shape)


def _decomposed_maxima(x: TensorBase, dim: int, count: int) -> TensorBase:
    bounds = intervals(x.array.shape[dim], count)
    return stack([amax(part_of(x, dim, *bound), dim) for bound in bounds], dim)


_MAXIMA = structured(
    "interval_maxima",
    "reduction",
    run=_run_maxima,
    vjp=_maxima_vjp,
    jvp=_maxima_jvp,
    saves="x out",
    core="dim",
    samples=lambda rng: [
        ((rng.standard_normal((2, 7)),), {"dim": 1, "count": 3}),
        ((rng.standard_normal((6, 2)),), {"dim": 0, "count": 3}),
        ((rng.standard_normal((3, 2)),), {"dim": 0, "count": 5}),
    ],
    reference=lambda x, dim, count: np.stack(
        [np.take(x, range(a, b), dim).max(dim) for a, b in intervals(x.shape[dim], count)], dim
    ),
    doc="Largest elements of intervals that cover a dim; ties share the gradient.",
    extra={"picks": True, "decompose": _decomposed_maxima},
)


def interval_maxima(x: TensorBase, dim: int, count: int) -> TensorBase:
    """Return the largest elements of `x` in `count` intervals that cover a dim with elements."""
    return apply(_MAXIMA, (x,), {"dim": dim, "count": count})


def interval_means(x: TensorBase, dim: int, count: int) -> TensorBase:
    """Return the means of `x` over `count` intervals that cover a dim, which has elements."""
    return apply(_MEANS, (x,), {"dim": dim, "count": count})
