"""Low-rank mass matrices of few dimensions: one native call for what the windows of chains say.

What `LowRank.fitted` (forms.py) says of a window, by spectrum_routines.py: with ten
dimensions NumPy's calls cost a hundred times what they compute.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from probtorch.compiler.nests.loops import address
from probtorch.infer.mcmc.warm_up.spectrum_routines import SPECTRA, work_of

__all__ = ["SmallFits", "geometric_mean", "working_space"]

# More doubles than these, 8 MB, are not kept for the next time.
MOST_KEPT = 2**20

_own = threading.local()


def working_space(size: int) -> np.ndarray:
    """Return so many doubles of this thread's own, not set to anything."""
    if size > MOST_KEPT:
        return np.empty(size)
    room: np.ndarray | None = getattr(_own, "room", None)
    if room is None or room.size < size:
        room = _own.room = np.empty(2 * size)
    return room


def geometric_mean(of_both: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return variances (dim,) and directions, rows (dim, dim), of the A with ``A G A = X``.

    As `estimates.geometric_mean`, in a third of the time where there are up to 64 dimensions.

    Parameters
    ----------
    of_both : ndarray, shape (2, dim, dim)
        X and G, of scaled draws and gradients.
    ridge : float
        Added to the diagonals of both.

    Raises
    ------
    numpy.linalg.LinAlgError
        If there is none: numbers that overflow.
    """
    room = np.array(of_both, np.float64, order="C")
    dim = room.shape[-1]
    variances, rows = np.empty(dim), np.empty((dim, dim))
    mean = SPECTRA.function("pt_geometric_mean")
    if not mean(address(room), dim, ridge, address(variances), address(rows)):
        raise np.linalg.LinAlgError("no geometric mean")
    return variances, rows


class SmallFits:
    """Fits of one form.

    Parameters
    ----------
    rank : int
        Most directions.
    cut : float
        Directions with variances within this factor are left out.
    least_gain : float
        Below which directions are not worth having.
    fewest : int
        Rows that can judge a matrix.
    """

    def __init__(self, rank: int, cut: float, least_gain: float, fewest: int) -> None:
        self.rank, self.cut, self.least_gain, self.fewest = rank, cut, least_gain, fewest

    def fitted(
        self,
        rows: np.ndarray,
        asked: np.ndarray,
        squares: np.ndarray,
        ridges: np.ndarray,
        now: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return what windows of several chains ask for, as leaves of `LowRankMetric`s, stacked.

        Parameters
        ----------
        rows : ndarray, shape (chains, 2, room, dim)
            Draws and gradients.
        asked : ndarray of int64, shape (windows, 5)
            See `ASKED`.
        squares : ndarray, shape (windows, 2, dim)
            Sums of squared deviations.
        ridges : ndarray, shape (windows, 2)
            One to try, and another one or 0.
        now : sequence of ndarray, each (chains, *shape)
            The present metrics of all chains.

        Returns
        -------
        numbers : ndarray of int64, shape (windows,)
            Directions of each; STAYS where the present metric is to stay.
        leaves : list of ndarray, each (windows, *shape)
            Of no meaning where that one stays.
        """
        count, room, dim = len(asked), *rows.shape[2:]
        rows, squares, ridges = (np.ascontiguousarray(x) for x in (rows, squares, ridges))
        asked, present = np.ascontiguousarray(asked), [np.ascontiguousarray(x) for x in now]
        leaves = [np.zeros((count, *x.shape[1:]), x.dtype) for x in present]
        places = present[2][0].size
        work = working_space(work_of(int(asked[:, 2].max(initial=0)), dim))
        SPECTRA.function("pt_fit_low_rank")(
            *(count, address(asked), address(rows), room, dim, address(squares), address(ridges)),
            *map(address, present),
            *(places, self.fewest, self.least_gain, self.cut, self.rank),
            *map(address, leaves),
            address(work),
        )
        return leaves[3], leaves
