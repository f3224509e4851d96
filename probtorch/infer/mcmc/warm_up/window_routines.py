"""Draws and gradients of a stretch enter the windows of their chains: many chains in one call.
Another one forgets what was drawn on the way, and tells what both windows say together.

What `Windows` (infer/mcmc/warm_up/windows.py) keeps of a chain, and where, is said there; this is
its only writer. Sums are made in the order of the draws, without contraction, so that they are
those of any other processor, and those of `Moments`, which NumPy makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.machine.routines import Routines

if TYPE_CHECKING:
    from probtorch.compiler.lang.function import Array, KernelFunction
    from probtorch.compiler.lang.nodes import Value

__all__ = ["BEGIN", "FRESH", "KNOWN", "LATE", "OLDER", "SEEN", "WINDOWS", "WORDS"]

# Whole numbers of a chain: whether it is known where it stood, draws of the older window and of the
# background, where the first of them lies, how many of the last ones the present matrix was not
# made from, and how many there ever were.
WORDS = 6
KNOWN, OLDER, LATE, BEGIN, FRESH, SEEN = range(WORDS)


def _differs(w: KernelFunction, a: Array, b: Array, n: Value) -> Value:
    found = w.variable("i64", 0)
    with w.loop(0, n) as i, w.when(w.logical_not(a[i] == b[i])):
        found.value = 1
    return found.value


def _finite(w: KernelFunction, a: Array, n: Value) -> Value:
    nothing = w.variable("double", 0.0)
    with w.loop(0, n) as i:
        # 0 of a finite number, else nan.
        nothing.value = nothing.value + (a[i] - a[i])
    return w.where(nothing.value == 0.0, w.whole(1), w.whole(0))


def _take_up(
    w: KernelFunction,
    draws: Array,
    n: Value,
    dim: Value,
    words: Array,
    last: Array,
    moments: Array,
    plane: Value,
    to: Array,
    apart: Value,
) -> None:
    """One chain: `moments` has planes `plane` apart, `to` draws and then gradients, `apart`."""
    grads, kept = draws.at(n * dim), w.variable("i64", 0)
    with w.loop(0, n) as r:
        row, slope = draws.at(r * dim), grads.at(r * dim)
        new = w.variable("i64", 0)
        first, later = w.branch(r == 0)
        with first:
            moved = w.call("differs", "i64", row, last, dim)
            new.value = w.where(words[KNOWN] != 0, moved, w.whole(0))
        with later:
            before = draws.at((r - 1) * dim)
            new.value = w.call("differs", "i64", row, before, dim)
        with w.when(new.value != 0), w.when(w.call("finite", "i64", slope, dim) != 0):
            for side, source in enumerate((row, slope)):
                to.at((kept.value + apart * side) * dim).copy(source, dim)
            kept.value = kept.value + 1
    last.copy(draws.at((n - 1) * dim), dim)
    words[KNOWN] = 1
    w.leave_if(kept.value == 0)
    m, older = kept.value, words[LATE]
    count, there = w.as_float(m), w.as_float(older)
    share = count / (there + count)
    for side in range(2):
        rows = to.at(apart * dim * side)
        mean, squares = moments.at(plane * (4 + side)), moments.at(plane * (6 + side))
        with w.loop(0, dim) as i:
            total = w.variable("double", rows[i])
            with w.loop(1, m) as r:
                total.value = total.value + rows[r * dim + i]
            middle = total.value / count
            total.value = (rows[i] - middle) * (rows[i] - middle)
            with w.loop(1, m) as r:
                off = rows[r * dim + i] - middle
                total.value = total.value + off * off
            _together(w, mean, squares, i, older, there * share, share, middle, total.value)
    words[LATE] = older + m
    words[FRESH] = words[FRESH] + m
    words[SEEN] = words[SEEN] + m


def _together(
    w: KernelFunction,
    mean: Array,
    squares: Array,
    i: Value,
    older: Value,
    weight: Value,
    share: Value,
    middle: Value,
    more: Value,
) -> None:
    """Add a mean and squares to those of entry `i` (Chan et al. 1983)."""
    empty, there = w.branch(older == 0)
    with empty:
        mean[i], squares[i] = middle, more
    with there:
        off = middle - mean[i]
        squares[i] = squares[i] + more + weight * (off * off)
        mean[i] = mean[i] + share * off


def _take_up_rows(
    w: KernelFunction,
    chosen: Array,
    count: Value,
    pairs: Array,
    n: Value,
    dim: Value,
    chains: Value,
    words: Array,
    last: Array,
    moments: Array,
    rows: Array,
    room: Value,
) -> None:
    """See `WINDOWS`."""
    with w.loop(0, count) as k:
        c = chosen[k]
        own = words.at(c * WORDS)
        # Without room each chain's rows are made where those of the last one were.
        behind = (c * 2 * room) + own[BEGIN] + own[OLDER] + own[LATE]
        place = w.where(room > 0, behind, w.whole(0))
        w.call(
            *("take_up", "void", pairs.at(c * 2 * n * dim), n, dim, own, last.at(c * dim)),
            *(moments.at(c * dim), chains * dim, rows.at(place * dim), w.where(room > 0, room, n)),
        )


def _weigh(
    w: KernelFunction,
    words: Array,
    moments: Array,
    plane: Value,
    dim: Value,
    fewest: Value,
    enough: Value,
    arrived: Value,
    ramp: Value,
    mean: Array,
    squares: Array,
) -> Value:
    """One chain: its older window goes if it was drawn elsewhere; returns draws of what is left."""

    def of(window: int, kind: int, side: int) -> Array:
        return moments.at(plane * (window * 4 + kind * 2 + side))

    with w.when(w.logical_and(words[OLDER] >= fewest, words[LATE] >= enough)):
        older, late = w.as_float(words[OLDER]), w.as_float(words[LATE])
        most = w.variable("double", 0.0)
        with w.loop(0, dim) as i:
            off = of(0, 0, 0)[i] - of(1, 0, 0)[i]
            # In standard deviations of the draws, and how many times as steep it was.
            shift = (off * off) / (of(1, 1, 0)[i] / late)
            steepness = (of(0, 1, 1)[i] / older) / (of(1, 1, 1)[i] / late)
            for share in (shift, steepness):
                with w.when(share > most.value):
                    most.value = share
        with w.when(w.sqrt(most.value) > arrived):
            words[BEGIN] = words[BEGIN] + words[OLDER]
            words[OLDER] = words[LATE]
            words[LATE] = 0
            for kind in range(2):
                for side in range(2):
                    with w.loop(0, dim) as i:
                        of(0, kind, side)[i] = of(1, kind, side)[i]
                        of(1, kind, side)[i] = 0.0
    older, count = w.as_float(words[OLDER]), w.as_float(words[OLDER] + words[LATE])
    share = w.as_float(words[LATE]) / w.maximum(count, w.value(1.0, "double"))
    weight = older * share
    for side in range(2):
        with w.loop(0, dim) as i:
            apart = of(1, 0, side)[i] - of(0, 0, side)[i]
            more = of(0, 1, side)[i] + of(1, 1, side)[i]
            squares[i + dim * side] = more + weight * (apart * apart)
            mean[i + dim * side] = of(0, 0, side)[i] + share * apart
    with w.loop(0, dim) as i:
        x, g, slope = squares[i], squares[dim + i], mean[dim + i]
        steep = slope * slope
        with w.when(w.logical_and(g < ramp * steep * count, x > 0.0)):
            squares[dim + i] = x * (steep * steep)
    return words[OLDER] + words[LATE]


def _weigh_rows(
    w: KernelFunction,
    chosen: Array,
    count: Value,
    dim: Value,
    chains: Value,
    words: Array,
    moments: Array,
    fewest: Value,
    enough: Value,
    arrived: Value,
    ramp: Value,
    counts: Array,
    mean: Array,
    squares: Array,
) -> None:
    """See `WINDOWS`."""
    with w.loop(0, count) as k:
        c, at = chosen[k], k * 2 * dim
        counts[k] = w.call(
            *("weigh", "i64", words.at(c * WORDS), moments.at(c * dim), chains * dim, dim),
            *(fewest, enough, arrived, ramp, mean.at(at), squares.at(at)),
        )


_ROUTINES = {
    "differs": KernelRoutine(_differs, "double* double* i64", "i64"),
    "finite": KernelRoutine(_finite, "double* i64", "i64", flags=""),
    "take_up": KernelRoutine(
        _take_up, "double* i64 i64 i64* double* double* i64 double* i64", "void", flags=""
    ),
    # Numbers of chains, and how many; draws and gradients (chains, 2, n, dim), n, dim, chains;
    # their whole numbers (chains, WORDS), last positions (chains, dim), moments (2 windows, means
    # and squares, 2, chains, dim) and rows (chains, 2, room, dim), or, with a room of 0, as many as
    # are taken up at once.
    "pt_take_up": KernelRoutine(
        _take_up_rows, "i64* i64 double* i64 i64 i64 i64* double* double* double* i64", "void"
    ),
    "weigh": KernelRoutine(
        _weigh, "i64* double* i64 i64 i64 i64 double double double* double*", "i64", flags=""
    ),
    # Numbers of chains, and how many; dim, chains, their whole numbers and moments, as above; draws
    # with which two windows are compared, of the older one and of the background; how far apart
    # they may be; the share of the mean gradient, squared, below which gradients do not vary. What
    # is found: draws of each chosen chain; of them means and sums of squares (chosen, 2, dim).
    "pt_weigh": KernelRoutine(
        _weigh_rows,
        "i64* i64 i64 i64 i64* double* i64 i64 double double i64* double* double*",
        "void",
    ),
}
WINDOWS = Routines(__file__, _ROUTINES)
