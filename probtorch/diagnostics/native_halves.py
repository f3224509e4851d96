"""What summaries ask of halved chains, in native code: see halves_routines.py.

Loading it takes longer than a small summary, so `worth_it` says from when on NumPy is left.
"""

from __future__ import annotations

import numpy as np

from probtorch.config import settings
from probtorch.diagnostics.halves_routines import HALVES, LAGS, fold_work

__all__ = ["LAGS", "fold", "remember", "worth_it"]

# Elements of a block from which on native code is worth loading: some milliseconds, once.
LEAST = 2**17


def worth_it(block: np.ndarray) -> bool:
    """Tell whether native code should serve a block of draws."""
    return settings.jit and block.size >= LEAST


def remember(halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre halves (entry, half, draw), contiguous float64, in place.

    Returns their means (entry, half), and autocovariances at the first `LAGS` lags, the mean over
    the halves, (entry, lag); only those below the number of draws mean anything.
    """
    entries, count, draws = halves.shape
    means, sums = np.empty((entries, count)), np.empty((entries, LAGS))
    HALVES.function("pt_remember")(
        halves.ctypes.data, entries, count, draws, means.ctypes.data, sums.ctypes.data
    )
    sums /= count * draws
    return means, sums


def fold(
    rows: np.ndarray, positions: np.ndarray, quantiles: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the normal scores of the distances of draws from their median.

    Parameters
    ----------
    rows : ndarray, shape (entry, draw)
        The draws, an even number, half after half; their squares do not overflow.
    positions : ndarray of int64, shape (entry, draw)
        Where in `rows`, counted through all of them, the draws are in ascending order.
    quantiles : ndarray, shape (2 draw - 1,)
        Normal scores of the ranks 1, 1.5, 2, ...
    count : int
        Halves.

    Returns
    -------
    means : ndarray, shape (entry, half)
    variances : ndarray, shape (entry,)
        With divisor n, the mean over the halves.
    """
    entries, size = rows.shape
    means, variances, work = (
        np.empty((entries, count)),
        np.empty(entries),
        np.empty(fold_work(size)),
    )
    places = (a.ctypes.data for a in (rows, positions, quantiles))
    into = (a.ctypes.data for a in (work, means, variances))
    HALVES.function("pt_fold")(*places, entries, size, count, *into)
    return means, variances
