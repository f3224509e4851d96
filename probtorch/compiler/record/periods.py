"""After how many operations a recording may repeat itself."""

import numpy as np

__all__ = ["likely_periods"]

# Periods that are tried, and those of loops around them.
CANDIDATES = 16
AROUND = 3


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


def _commonest(distances, count):
    if not len(distances):
        return []
    counts = np.bincount(distances)
    return [int(d) for d in np.argsort(-counts, kind="stable")[:count] if counts[d]]
