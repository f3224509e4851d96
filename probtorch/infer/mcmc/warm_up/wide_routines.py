"""The diagonal and the directions that make draws and gradients alike, of many dimensions.

What `forms.LowRank` (infer/mcmc/warm_up) says of a window by its leading principal directions
alone, for the windows of many chains in one call. The directions are found by
principal_routines.py, the matrix in their subspace by spectrum_routines.py, which has what is said
of few dimensions, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.machine.routines import Routines
from probtorch.infer.mcmc.warm_up import principal_routines, spectrum_routines
from probtorch.infer.mcmc.warm_up.principal_routines import BLOCK, PRINCIPAL, WorkRoom, sums
from probtorch.infer.mcmc.warm_up.spectrum_routines import (
    DECIDES,
    STAYS,
    WAYS,
    WEIGHS,
    variances_of,
    variances_under,
)

if TYPE_CHECKING:
    from probtorch.compiler.lang.nodes import Value
    from probtorch.compiler.render.writer import Writer

__all__ = ["ASKED", "ENTIRE", "OF_ALL", "WIDE", "work_of"]

# A further bit of the question: whether the fit itself is made of all covariances, elsewhere.
# Where the answer is ENTIRE, that is to be done; what was chosen for it is told.
OF_ALL = 8
ENTIRE = -2
# What is asked of a window: its chain, where its rows begin, how many they are, how many of the
# last ones the present matrix was not made from, bits of the question, and how many rows apart
# those are that a choice looks at.
ASKED = ("chain", "begin", "count", "fresh", "question", "step")


def work_of(n: int, dim: int, principal: int, places: int) -> int:
    """Return how many doubles a fit of `n` rows works with, `principal` directions of each kind."""
    both = 2 * principal
    most = max(both, places)
    rows = 2 * n * dim + most * (n + dim + 1) + (both + 13) * dim
    return rows + 11 * both * both + both * (BLOCK + 8) + 16


def _gains(
    w: Writer,
    sample: Array,
    of_sample: Value,
    judge: Array,
    of_judge: Value,
    squares: Array,
    of_squares: Array,
    dim: Value,
    ridges: Array,
    settings: Array,
    number: Value,
    passes: Value,
    rank: Value,
    gains: Array,
    work: Array,
) -> Value:
    """Add what directions from a sample gain on rows that judge, in nats times two: for each ridge
    those beyond the wider factor, then, for each, those beyond the finer one.

    `squares` are those of the sample, `of_squares` those of the judge. Returns 0 if there is no
    fit.
    """
    cut, finest, both = settings[0], settings[1], number * 2
    room = WorkRoom(work)
    variance, roots = room.take(dim), room.take(dim * 2)
    directions, found = room.take(both * dim), room.take(both * (both + 1) + 1)
    here, there, order = (room.take(n) for n in (both * both * 2, both * both * 2, both * 2))
    rest = room.place
    variances_of(w, squares, squares.at(dim), 1, variance, dim, lambda _: 1.0)
    w.call("roots", "void", variance, roots, dim)
    k = w.call(
        *("principal", "i64", sample, of_sample, dim, roots, number, passes, directions, rest)
    )
    w.leave_if(k == 0, w.whole(0))
    for rows, count, products in ((sample, of_sample, here), (judge, of_judge, there)):
        w.call("within", "void", rows, count, dim, roots, directions, k, products, rest)
    mine, theirs = sums(w, squares, variance, dim), sums(w, of_squares, variance, dim)
    each, fine = 1.0 / w.as_float(of_judge), w.variable("i64", 1)
    with w.loop(0, 2) as i, w.when(ridges[i] > 0.0):
        there_is = w.call(*("found", "i64", here, k, of_sample, dim, *mine, ridges[i], found, rest))
        fine.value = w.where(there_is == 0, w.whole(0), fine.value)
        common, variances, rows = found[0], found.at(1), found.at(k + 1)
        gain = w.variable("double", theirs[0] + theirs[1])
        gain.value = gain.value - theirs[0] / common - theirs[1] * common
        few = w.variable("double", gain.value)
        chosen = w.call("chosen", "i64", variances, k, finest, rank, order)
        with w.loop(0, chosen) as at:
            j = w.whole(order[at])
            v, vector = variances[j], rows.at(j * k)
            x = w.call("quadratic", "double", there, vector, k)
            g = w.call("quadratic", "double", there.at(k * k), vector, k)
            less = x / common * (1.0 - 1.0 / v) + g * common * (1.0 - v)
            gain.value = gain.value + less
            with w.when(w.maximum(v, 1.0 / v) > cut):
                few.value = few.value + less
        gains[i] = gains[i] + few.value * each
        gains[i + 2] = gains[i + 2] + gain.value * each
    return fine.value


def _worth(
    w: Writer,
    pairs: Array,
    apart: Value,
    count: Value,
    dim: Value,
    variance: Array,
    scale: Array,
    directions: Array,
    stretch: Array,
    number: Value,
    work: Array,
) -> Value:
    """What the directions of a metric gain over a diagonal, on rows that it was not made from."""
    room = WorkRoom(work)
    rows, squares, roots = (room.take(n) for n in (count * dim * 2, dim * 2, dim * 2))
    squared, scaled = room.take(dim), room.take(number * dim)
    along, one = room.place, w.whole(1)
    w.call("centred", "void", pairs, apart, dim, one, count, rows, squares)
    with w.loop(0, dim) as i:
        squared[i] = scale[i] * scale[i]
    w.call("roots", "void", squared, roots, dim)
    plain, present = sums(w, squares, variance, dim), sums(w, squares, squared, dim)
    gain = w.variable("double", plain[0] + plain[1] - present[0] - present[1])
    for side in range(2):
        of, by = rows.at(count * dim * side), roots.at(dim * (1 - side))
        w.call("along", "void", of, count, dim, directions, number, by, scaled, along)
        with w.loop(0, number) as k:
            root = 1.0 + stretch[k]
            v = root * root
            line = along.at(k * count)
            less = (1.0 - 1.0 / v) if side == 0 else (1.0 - v)
            gain.value = gain.value + line.dot(line, count) * less
    return gain.value / w.as_float(count)


def _fit(
    w: Writer,
    pairs: Array,
    apart: Value,
    n: Value,
    dim: Value,
    squares: Array,
    now_scale: Array,
    now_rows: Array,
    now_stretch: Array,
    held: Value,
    fresh: Value,
    fewest: Value,
    question: Value,
    step: Value,
    ridges: Array,
    settings: Array,
    number: Value,
    passes: Value,
    rank: Value,
    scale: Array,
    rows: Array,
    stretch: Array,
    told: Array,
    work: Array,
) -> Value:
    """One matrix; the arguments are those of `WIDE`, of one window."""
    decides, ways, weighs, of_all = (
        (question & bit) != 0 for bit in (DECIDES, WAYS, WEIGHS, OF_ALL)
    )
    cut, finest, least, worth_it = (settings[i] for i in range(4))
    stays, both, room = w.whole(STAYS), number * 2, WorkRoom(work)
    variance = room.take(dim)
    under = variances_under(w, now_scale, now_rows, now_stretch, held, dim)
    variances_of(w, squares, squares.at(dim), 1, variance, dim, under)
    # What the present directions gain over a diagonal, on rows that they were not made from.
    kept = w.variable("double", float("-inf"))
    with w.when(w.logical_and(held > 0, w.logical_or(w.logical_not(decides), weighs))):
        kept.value = float("inf")
        with w.when(fresh >= fewest):
            kept.value = w.call(
                *("worth", "double", pairs.at((n - fresh) * dim), apart, fresh, dim, variance),
                *(now_scale, now_rows, now_stretch, held, room.place),
            )
    with w.loop(0, dim) as i:
        scale[i] = w.sqrt(variance[i])
    w.leave_if(w.logical_not(decides), w.where(kept.value > 0.0, stays, w.whole(0)))
    of_x, of_g = sums(w, squares, variance, dim)
    plain = (of_x + of_g) / w.as_float(n) - w.as_float(dim) * 2.0
    w.leave_if(plain < least, w.whole(0))

    # Halves of the rows that are looked at say what directions from one gain on the other.
    some = w.quotient(n + step - 1, step)
    half = w.quotient(some, 2)
    of_squares, gains = room.take(dim * 4), room.take(4)
    here = WorkRoom(room.place)
    early, late = here.take(half * dim * 2), here.take((some - half) * dim * 2)
    parts = ((early, half, of_squares), (late, some - half, of_squares.at(dim * 2)))
    for place, count, to in parts:
        first = pairs if place is early else pairs.at(half * step * dim)
        w.call("centred", "void", first, apart, dim, step, count, place, to)
    with w.loop(0, 4) as i:
        gains[i] = w.where(ridges[i & 1] > 0.0, 0.0, w.value(float("-inf"), "double"))

    def judged(one: int) -> None:
        (sample, of_sample, mine), (judge, of_judge, theirs) = parts[one], parts[1 - one]
        fine = w.call(
            *("gains", "i64", sample, of_sample, judge, of_judge, mine, theirs, dim, ridges),
            *(settings, number, passes, rank, gains, here.place),
        )
        # No fit: numbers that overflow. A later window will do better.
        w.leave_if(fine == 0, stays)

    judged(0)
    with w.when(ways):
        judged(1)
        with w.loop(0, 4) as i:
            gains[i] = gains[i] * 0.5
    gain, at = w.variable("double", gains[0]), w.variable("i64", 0)
    with w.loop(1, 4) as i:
        # Each direction takes time: those within the wider factor have to be worth it, too.
        left = gains[i] - w.where(i > 1, worth_it, w.value(0.0, "double"))
        with w.when(left > gain.value):
            gain.value, at.value = left, i
    w.leave_if(w.logical_not(w.abs(gain.value) < float("inf")), stays)
    w.leave_if(w.logical_and(weighs, kept.value > w.maximum(gain.value, least)), stays)
    w.leave_if(gain.value < least, w.whole(0))

    told[0] = ridges[w.where(w.logical_and(ways, (at.value & 1) != 0), w.whole(2), at.value & 1)]
    told[1] = w.where(at.value > 1, finest, cut)
    w.leave_if(of_all, w.whole(ENTIRE))
    every = w.where(ways, w.whole(1), step)
    count = w.where(ways, n, some)
    here = WorkRoom(room.place)
    these = here.take(count * dim * 2)
    w.call("centred", "void", pairs, apart, dim, every, count, these, of_squares)
    roots, directions = here.take(dim * 2), here.take(both * dim)
    products, found = here.take(both * both * 2), here.take(both * (both + 1) + 1)
    order, rest = here.take(both * 2), here.place
    w.call("roots", "void", variance, roots, dim)
    k = w.call(*("principal", "i64", these, count, dim, roots, number, passes, directions, rest))
    w.leave_if(k == 0, stays)
    w.call("within", "void", these, count, dim, roots, directions, k, products, rest)
    total = sums(w, of_squares, variance, dim)
    fine = w.call("found", "i64", products, k, count, dim, *total, told[0], found, rest)
    w.leave_if(fine == 0, stays)
    root, variances = w.sqrt(found[0]), found.at(1)
    taken = w.variable("i64", w.call("chosen", "i64", variances, k, told[1], rank, order))
    with w.when(taken.value == rank):
        # More of them than there is room for: the weaker ones cost more time than they gain.
        taken.value = w.call("chosen", "i64", variances, k, cut, rank, order)
    with w.loop(0, dim) as i:
        scale[i] = roots[i] * root
    with w.loop(0, taken.value) as at_row:
        j = w.whole(order[at_row])
        vector, to = found.at(k + 1 + j * k), rows.at(at_row * dim)
        with w.loop(0, dim) as i:
            to[i] = 0.0
        with w.loop(0, k) as q:
            each, one = vector[q], directions.at(q * dim)
            with w.loop(0, dim) as i:
                to[i] = to[i] + each * one[i]
        stretch[at_row] = w.sqrt(variances[j]) - 1.0
    return taken.value


def _fits(
    w: Writer,
    windows: Value,
    asked: Array,
    pairs: Array,
    room: Value,
    dim: Value,
    squares: Array,
    ridges: Array,
    settings: Array,
    now_scale: Array,
    now_rows: Array,
    now_stretch: Array,
    now_count: Array,
    places: Value,
    fewest: Value,
    number: Value,
    passes: Value,
    rank: Value,
    scale: Array,
    rows: Array,
    stretch: Array,
    numbers: Array,
    told: Array,
    work: Array,
) -> None:
    """See `WIDE`."""
    with w.loop(0, windows) as k:
        chain, begin, n, fresh, question, step = (
            asked[k * len(ASKED) + i] for i in range(len(ASKED))
        )
        numbers[k] = w.call(
            *("fit", "i64", pairs.at((chain * 2 * room + begin) * dim), room, n, dim),
            *(squares.at(k * 2 * dim), now_scale.at(chain * dim)),
            *(now_rows.at(chain * places * dim), now_stretch.at(chain * places)),
            *(now_count[chain], fresh, fewest, question, step, ridges.at(k * 3)),
            *(settings.at(k * 4), number, passes, rank, scale.at(k * dim)),
            *(rows.at(k * places * dim), stretch.at(k * places), told.at(k * 2), work),
        )


_ONE, _TWO, _THREE = "double*", "double* double*", "double* double* double*"
_ROUTINES = PRINCIPAL | {
    "gains": KernelRoutine(
        _gains, f"{_ONE} i64 {_ONE} i64 {_TWO} i64 {_TWO} i64 i64 i64 {_TWO}", "i64"
    ),
    "worth": KernelRoutine(_worth, f"{_ONE} i64 i64 i64 {_TWO} {_TWO} i64 {_ONE}"),
    "fit": KernelRoutine(
        _fit,
        f"{_ONE} i64 i64 i64 {_TWO} {_TWO} i64 i64 i64 i64 i64 {_TWO} i64 i64 i64 {_TWO} {_THREE}",
        "i64",
    ),
    # How many windows, and what is asked of each (`ASKED`); draws and gradients (chains, 2, room,
    # dim), room, dim; of each window the sums of squares (2, dim), ridges (a ridge, another one or
    # 0, what the last fit has in place of that) and settings (the factor within which directions
    # are left out, a finer one, the least gain, and what those within the wider one have to gain);
    # the present scales, directions, stretches of all chains, how many of them are in use, and for
    # how many there is room. How many rows can judge a matrix, principal directions of each kind,
    # how often a guess of them is multiplied, most directions. What is found for each window:
    # scales, directions, stretches, how many, STAYS or ENTIRE, with the ridge and the factor that
    # were chosen; and working space.
    "pt_fit_wide": KernelRoutine(
        _fits,
        f"i64 i64* {_ONE} i64 i64 {_THREE} {_THREE} i64* i64 i64 i64 i64 i64 {_THREE} i64* {_TWO}",
        "void",
    ),
}
WIDE = Routines(__file__, _ROUTINES, principal_routines.__file__, spectrum_routines.__file__)
