"""Low-rank mass matrices of many dimensions: one native call for what the windows of chains say.

What `LowRank.fitted` (forms.py) says of a window by its leading principal directions, by
wide_routines.py. Whether the SciPy that is installed has what that calls is asked once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from probtorch.compiler.nests.loops import address
from probtorch.errors import CompileError
from probtorch.infer.mcmc.warm_up.small_fits import working_space
from probtorch.infer.mcmc.warm_up.wide_routines import WIDE, work_of

__all__ = ["fit_wide", "is_native"]


@functools.cache
def is_native() -> bool:
    """Return whether there is native code: SciPy must export BLAS and LAPACK."""
    try:
        WIDE.function("pt_fit_wide")
    except CompileError:
        return False
    return True


def fit_wide(
    rows: np.ndarray,
    asked: np.ndarray,
    squares: np.ndarray,
    ridges: np.ndarray,
    settings: np.ndarray,
    now: Sequence[np.ndarray],
    *,
    rank: int,
    fewest: int,
    principal: int,
    passes: int,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return what windows of several chains ask for, as leaves of `LowRankMetric`s, stacked.

    Parameters
    ----------
    rows : ndarray, shape (chains, 2, room, dim)
        Draws and gradients.
    asked : ndarray of int64, shape (windows, 6)
        See `wide_routines.ASKED`.
    squares : ndarray, shape (windows, 2, dim)
        Sums of squared deviations.
    ridges : ndarray, shape (windows, 3)
        One to try, another one or 0, and what stands for that in the last fit.
    settings : ndarray, shape (windows, 4)
        The factor within which directions are left out, a finer one, the least gain, and what
        those within the wider one have to gain beyond.
    now : sequence of ndarray, each (chains, *shape)
        The present metrics of all chains.
    rank : int
        Most directions.
    fewest : int
        Rows that can judge a matrix.
    principal, passes : int
        Directions that are looked for, of draws and of gradients each, and how often a guess of
        them is multiplied.

    Returns
    -------
    numbers : ndarray of int64, shape (windows,)
        Directions of each; STAYS where the present metric is to stay, ENTIRE where it is to be made
        of all covariances.
    leaves : list of ndarray, each (windows, *shape)
        Of no meaning but where there is a number of directions.
    chosen : ndarray, shape (windows, 2)
        The ridge, and the factor within which directions are left out.
    """
    count, room, dim = len(asked), *rows.shape[2:]
    rows, asked, squares = (np.ascontiguousarray(x) for x in (rows, asked, squares))
    ridges, settings = np.ascontiguousarray(ridges), np.ascontiguousarray(settings)
    present = [np.ascontiguousarray(x) for x in now]
    leaves = [np.zeros((count, *x.shape[1:]), x.dtype) for x in present]
    places, chosen = present[2][0].size, np.zeros((count, 2))
    work = working_space(work_of(int(asked[:, 2].max(initial=0)), dim, principal, places))
    WIDE.function("pt_fit_wide")(
        *(count, address(asked), address(rows), room, dim, address(squares), address(ridges)),
        *(address(settings), *map(address, present), places, fewest, principal, passes, rank),
        *map(address, leaves),
        *(address(chosen), address(work)),
    )
    return leaves[3], leaves, chosen
