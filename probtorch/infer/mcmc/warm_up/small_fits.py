"""Low-rank mass matrices of few dimensions: one native call for what a window says.

What `LowRank.fitted` (forms.py) says of a window, by `compiler/lang/routines/spectra.py`: with ten
dimensions NumPy's calls cost a hundred times what they compute.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from probtorch.compiler import engine
from probtorch.compiler.lang.routines.spectra import DECIDES, STAYS, WAYS, WEIGHS, work_of
from probtorch.compiler.nests.loops import address
from probtorch.core.dispatch import wrap
from probtorch.infer.mcmc.metrics import LowRankMetric

__all__ = ["Asked", "SmallFits", "geometric_mean"]

_POINTER, _WHOLE, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_FIT = ctypes.CFUNCTYPE(
    _WHOLE,
    *(_POINTER, _WHOLE, _WHOLE, _POINTER),
    *(_POINTER, _POINTER, _POINTER, _WHOLE, _WHOLE, _WHOLE, _WHOLE),
    *(_REAL, _REAL, _REAL, _REAL, _WHOLE),
    *(_POINTER, _POINTER, _POINTER, _POINTER),
)
_MEAN = ctypes.CFUNCTYPE(_WHOLE, _POINTER, _WHOLE, _REAL, _POINTER, _POINTER)
_own = threading.local()


@functools.cache
def _routine() -> Callable[..., int]:
    found: Callable[..., int] = _FIT(engine.runtime_address("pt_fit_low_rank"))
    return found


@functools.cache
def _mean_routine() -> Callable[..., int]:
    found: Callable[..., int] = _MEAN(engine.runtime_address("pt_geometric_mean"))
    return found


def _work(size: int) -> np.ndarray:
    """Working space of this thread."""
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
    if not _mean_routine()(address(room), dim, ridge, address(variances), address(rows)):
        raise np.linalg.LinAlgError("no geometric mean")
    return variances, rows


class Asked(NamedTuple):
    """What is asked of a window.

    Attributes
    ----------
    decides : bool
        Whether directions are looked for.
    both_ways : bool
        Whether halves of the window judge each other, not the later the earlier alone.
    weighs : bool
        Whether the present matrix may be better than what so few draws say.
    """

    decides: bool
    both_ways: bool
    weighs: bool

    @property
    def bits(self) -> int:
        return DECIDES * self.decides + WAYS * self.both_ways + WEIGHS * self.weighs


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
        pairs: np.ndarray,
        squares: np.ndarray,
        metric: LowRankMetric,
        fresh: int,
        ridges: Sequence[float],
        asked: Asked,
    ) -> LowRankMetric:
        """Return the metric that a window asks for, or the present one where it says too little.

        Parameters
        ----------
        pairs : ndarray, shape (2, n, dim)
            Draws and gradients.
        squares : ndarray, shape (2, dim)
            Sums of squared deviations.
        metric : LowRankMetric
        fresh : int
            How many of the last rows came with `metric`; 0 where none can judge it.
        ridges : sequence of float
            One or two.
        asked : Asked
        """
        _, n, dim = pairs.shape
        pairs, squares = (np.ascontiguousarray(x, np.float64) for x in (pairs, squares))
        present = [
            np.ascontiguousarray(x.array) for x in (metric.scale, metric.directions, metric.stretch)
        ]
        scale, directions, stretch = (np.zeros(x.shape) for x in present)
        work = _work(work_of(n, dim))
        found = _routine()(
            *(address(pairs), n, dim, address(squares)),
            *map(address, present),
            *(int(metric.count.array), fresh, self.fewest, asked.bits),
            *(self.least_gain, self.cut, ridges[0], ridges[1] if len(ridges) > 1 else 0.0),
            *(self.rank, address(scale), address(directions), address(stretch), address(work)),
        )
        if found == STAYS:
            return metric
        return LowRankMetric(wrap(scale), wrap(directions), wrap(stretch), wrap(np.array(found)))
