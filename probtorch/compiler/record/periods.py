"""After how many operations a recording may repeat itself."""

import numpy as np

__all__ = ["likely_periods", "repeats"]

# Periods that are tried, and those of loops around them.
CANDIDATES = 16
AROUND = 3
# Of all turns that are looked for, those of more operations are so many longer than one.
SHORT_PERIOD, IN_A_ROW = 12, 64


def likely_periods(signatures, largest):
    """Return periods up to `largest` that an array of signatures may have, the shortest first."""
    # How far it is from each one to the next like it: periods are among these distances.
    order = np.argsort(signatures, kind="stable")
    alike = signatures[order[1:]] == signatures[order[:-1]]
    gaps = (order[1:] - order[:-1])[alike]
    gaps = gaps[gaps <= largest]
    if not len(gaps):
        return []
    found = _commonest(gaps, CANDIDATES)
    # Of a loop in a loop these are the inner one's: the outer one begins where that breaks off.
    period = found[0]
    breaks = np.flatnonzero(signatures[:-period] != signatures[period:])
    begins = breaks[np.diff(breaks, prepend=-period - 1) > period]
    between = np.diff(begins)
    return sorted({*found, *_commonest(between[between <= largest], AROUND)})


def repeats(names):
    """Return whether a list of names may have turns in it: at its end eight and one of less than
    `SHORT_PERIOD`, or anywhere any that are `IN_A_ROW` names longer than one turn.

    Where it has none there are none by any finer measure, and to look takes a tenth of the time
    that signatures take. Seldom, there only seem to be some.
    """
    codes = np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)
    ends = (codes[-9 * p :] for p in range(1, SHORT_PERIOD) if 9 * p <= len(codes))
    if any((end[p:] == end[:-p]).all() for p, end in enumerate(ends, 1)):
        return True
    # Hashes of ever more names in a row, as polynomials modulo 2**64.
    width, factor = 1, _FACTOR
    while width < IN_A_ROW and width < len(codes):
        codes = codes[:-width] * np.uint64(factor) + codes[width:]
        width, factor = 2 * width, factor * factor % 2**64
    codes.sort()
    return bool((codes[1:] == codes[:-1]).any())


# Of Knuth's MMIX.
_FACTOR = 6364136223846793005


def _commonest(distances, count):
    if not len(distances):
        return []
    counts = np.bincount(distances)
    return [int(d) for d in np.argsort(-counts, kind="stable")[:count] if counts[d]]
