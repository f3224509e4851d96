"""What summaries ask of halved chains: what they remember, and how far they are from the median.

One call serves the entries of a block, one after the other, each of which stays in the first-level
cache; NumPy goes through the block once for each operation.

- **remember** centres the halves of each entry and multiplies them by themselves, some draws later.
- **fold** ranks the distances of an entry's draws from their median, and gives mean and variance of
  their normal scores in each half. The draws' own order is known: below the median, read backwards,
  distances ascend, and so they do above. The two are merged from both ends at once, without a
  branch.

`diagnostics/autocorrelation.py` and `diagnostics/columns.py` say what the numbers are for.
"""

from __future__ import annotations

from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.machine.routines import Routines

__all__ = ["HALVES", "LAGS", "fold_work"]

# Lags that `pt_remember` makes: as many as most sums of independent draws want. Each is one more
# multiplication of what is in registers.
LAGS = 8


def fold_work(size: int) -> int:
    """Return how many doubles `pt_fold` works with, for entries of `size` draws."""
    return 4 * size


def _remember(
    w: KernelFunction,
    x: Array,
    entries: Value,
    count: Value,
    n: Value,
    means: Array,
    sums: Array,
) -> None:
    """Centre halves (entry, count, n) in place; means (entry, count), sums of products (entry,
    `LAGS`).
    """
    most = w.maximum(n - (LAGS - 1), 0)
    with w.loop(0, entries) as e:
        totals = [w.variable("double", 0.0) for _ in range(LAGS)]
        with w.loop(0, count) as h:
            half, total = x.at((e * count + h) * n), w.variable("double", 0.0)
            with w.loop(0, n) as i:
                total.add(half[i])
            mean = total.value / w.as_float(n)
            means[e * count + h] = mean
            with w.loop(0, n) as i:
                half[i] = half[i] - mean
            # Those that have all lags ahead of them, then the last few.
            with w.loop(0, most) as i:
                here = half[i]
                for lag, found in enumerate(totals):
                    found.add(here * half[i + lag])
            for lag, found in enumerate(totals):
                with w.loop(most, n - lag) as i:
                    found.add(half[i] * half[i + lag])
        for lag, found in enumerate(totals):
            sums[e * LAGS + lag] = found.value


def _fold(
    w: KernelFunction,
    rows: Array,
    positions: Array,
    quantiles: Array,
    entries: Value,
    size: Value,
    count: Value,
    keys: Array,
    means: Array,
    variances: Array,
) -> None:
    """Moments (entry, count) and (entry,) of the scores of distances from the median.

    `positions` are those of the sorted draws, counted through all rows; `quantiles` are the scores
    of the ranks 1, 1.5, 2, ...; `keys` is working space.
    """
    middle, n = size >> 1, w.quotient(size, count)
    scores = keys.at(size * 2)
    places, place = keys.at(size, "i64"), scores.at(size, "i64")
    with w.loop(0, entries) as e:
        order, mean, first = positions.at(e * size), means.at(e * count), e * size
        median = rows[order[middle - 1]] * 0.5 + rows[order[middle]] * 0.5
        with w.loop(0, middle) as i:
            for side, at in ((0, order[middle - 1 - i]), (1, order[middle + i])):
                keys[side * middle + i] = w.abs(rows[at] - median)
                places[side * middle + i] = at - first
        _merge(w, keys, places, scores, place, middle)
        _score(w, scores, quantiles, size)
        placed = keys
        with w.loop(0, size) as i:
            placed[place[i]] = scores[i]
        total = w.variable("double", 0.0)
        with w.loop(0, count) as h:
            half, found = placed.at(h * n), w.variable("double", 0.0)
            with w.loop(0, n) as i:
                found.add(half[i])
            middle_of_half = found.value / w.as_float(n)
            mean[h] = middle_of_half
            with w.loop(0, n) as i:
                rest = half[i] - middle_of_half
                total.add(rest * rest)
        variances[e] = total.value / w.as_float(size)


def _merge(
    w: KernelFunction, keys: Array, places: Array, merged: Array, place: Array, n: Value
) -> None:
    """Merge two ascending lists of `n` keys, one behind the other, with their places; of equal ones
    the first's go first.
    """
    first = w.variable("i64", 0)
    last = w.variable("i64", n - 1)
    with w.loop(0, n) as k:
        # The next from the front. No list comes to its end within n steps.
        i, j = first.value, n + k - first.value
        one, other = keys[i], keys[j]
        earlier = one <= other
        merged[k] = w.where(earlier, one, other)
        place[k] = places[w.where(earlier, i, j)]
        first.value = i + w.convert(earlier, "i64")
        # And from the back.
        i, j = last.value, n * 3 - 2 - k - last.value
        one, other = keys[i], keys[j]
        later = other >= one
        into = n * 2 - 1 - k
        merged[into] = w.where(later, other, one)
        place[into] = places[w.where(later, j, i)]
        last.value = i - w.convert(w.logical_not(later), "i64")


def _score(w: KernelFunction, keys: Array, quantiles: Array, size: Value) -> None:
    """Put the scores of ascending keys in their place; those of equal ones are the same."""
    ties = w.variable("i64", 0)
    with w.loop(1, size) as i:
        ties.value = ties.value + w.convert(keys[i] == keys[i - 1], "i64")
    some, none = w.branch(ties.value > 0)
    with some:
        start = w.variable("i64", 0)
        with w.repeat_while(lambda: start.value < size):
            end, key = w.variable("i64", start.value + 1), keys[start.value]
            with w.repeat_while(
                lambda: w.logical_and(end.value < size, keys[w.minimum(end.value, size - 1)] == key)
            ):
                end.value = end.value + 1
            shared = quantiles[start.value + end.value - 1]
            with w.loop(start.value, end.value) as i:
                keys[i] = shared
            start.value = end.value
    with none, w.loop(0, size) as i:
        keys[i] = quantiles[i * 2]


_ROUTINES = {
    "pt_remember": KernelRoutine(_remember, "double* i64 i64 i64 double* double*", "void"),
    "pt_fold": KernelRoutine(
        _fold, "double* i64* double* i64 i64 i64 double* double* double*", "void", flags=""
    ),
}
HALVES = Routines(__file__, _ROUTINES)
