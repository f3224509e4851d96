"""One statistic of every entry of draws: `per_entry`, in blocks, on several threads.

It knows what draws may look like and where there is no answer; what is computed of the columns of
one entry is said in `convergence.py` and `intervals.py`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
from numpy.typing import ArrayLike

from probtorch.compiler.native.threads import get_num_threads
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError

__all__ = ["MIN_DRAWS", "checked_draws", "checked_prob", "per_entry"]

# Below this many draws per chain the halves are too short for any autocorrelation; ArviZ draws the
# same line.
MIN_DRAWS = 4

# Entries are worked on in blocks of about 4 MB by several threads. NumPy works without Python's
# lock; in blocks of 1 MB, which stay in the cache, calls were so short that two threads mostly
# waited for each other. A model with a million latent entries needs little memory.
BLOCK_ELEMENTS = 2**19
# With fewer entries than that each thread still gets some, unless they are no work at all.
LEAST_ELEMENTS = 2**17

# The C library gives memory back to the system at each release, until it has seen a larger piece
# go; getting it again took a fifth of the time of a summary.
LARGER_PIECE = 2**22 - 2**16

# Draws that are copied at once where entries become columns: their lines of the cache, which also
# hold the next entries, stay there until these come.
COPIED_DRAWS = 100


def per_entry(
    statistic: Callable[[np.ndarray], np.ndarray],
    x: ArrayLike,
    *,
    result_shape: tuple[int, ...] = (),
    min_draws: int = MIN_DRAWS,
) -> np.ndarray:
    """Apply a function of columns (entry, chain, draw) to draws, in blocks of bounded size.

    Parameters
    ----------
    statistic : callable
        From finite float64 columns to an array (entry, *result_shape).
    x : array_like, shape (chain, draw, *event)
        Real draws.
    result_shape : tuple of int
        Shape of the result for one entry.
    min_draws : int
        With fewer draws per chain the result is NaN.

    Returns
    -------
    ndarray, shape (*event, *result_shape)
        NaN for entries with a draw that is not finite.

    Raises
    ------
    ShapeError, DTypeError
        As `rhat`.
    """
    x = checked_draws("draws", x)
    chains, draws, *event = x.shape
    entries = math.prod(event)
    result = np.full((entries, *result_shape), np.nan)
    if draws >= min_draws:
        flat = x.reshape(chains, draws, entries)
        size, share = chains * draws, -(-entries // get_num_threads())
        step = max(1, min(BLOCK_ELEMENTS // size, max(share, LEAST_ELEMENTS // size)))

        def work(start: int) -> None:
            columns = _columns(flat[..., start : start + step])
            with np.errstate(over="ignore", invalid="ignore"):
                # Finite where the draws are, unless it overflows.
                finite = np.isfinite(columns.reshape(len(columns), -1).sum(axis=1))
            if not finite.all():
                finite[~finite] = np.isfinite(columns[~finite]).all(axis=(1, 2))
            if finite.any():
                rows = start + np.flatnonzero(finite)
                result[rows] = statistic(columns if finite.all() else columns[finite])

        if entries > step:
            np.empty(LARGER_PIECE)
        _share_out(work, range(0, entries, step))
    return result.reshape((*event, *result_shape))[()]


def _columns(block: np.ndarray) -> np.ndarray:
    """Draws (chain, draw, entry) as float64 columns (entry, chain, draw)."""
    chains, draws, entries = block.shape
    columns = np.empty((entries, chains, draws))
    step = COPIED_DRAWS if entries > 1 else draws
    for chain in range(chains):
        for first in range(0, draws, step):
            some = slice(first, first + step)
            columns[:, chain, some] = block[chain, some].T
    return columns


def _share_out(work: Callable[[int], object], blocks: range) -> None:
    """Call ``work`` for all blocks, on as many threads as the library may use."""
    threads = min(get_num_threads(), len(blocks))
    if threads < 2:
        for block in blocks:
            work(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        # Each has what is set here, such as np.errstate.
        for done in [pool.submit(copy_context().run, work, block) for block in blocks]:
            done.result()


def checked_draws(subject: str, x: ArrayLike) -> np.ndarray:
    """Return `x` as an array with at least one chain, or say what is wrong with it."""
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise DTypeError(
            subject, expected="real numbers or booleans", got=f"dtype {x.dtype}",
            fix="take x.real and x.imag of complex draws one after the other",
        )  # fmt: skip
    if x.ndim < 2 or x.shape[0] == 0:
        raise ShapeError(
            subject, expected="shape (chain, draw, *event) with at least one chain",
            got=f"shape {x.shape}", fix="for the draws of a single chain pass x[None]",
        )  # fmt: skip
    return x


def checked_prob(subject: str, prob: float) -> float:
    """Return a probability inside (0, 1), or say what it should have been."""
    try:
        prob = float(prob)
    except (TypeError, ValueError):
        raise ArgumentError(
            subject, expected="a probability inside (0, 1)", got=reprlib.repr(prob),
            fix="write 90 % as 0.9; names of parameters are given as names=[...]",
        ) from None  # fmt: skip
    if not 0.0 < prob < 1.0:
        raise DomainError(
            subject, expected="a probability inside (0, 1)", got=repr(prob),
            fix="write 90 % as 0.9",
        )  # fmt: skip
    return prob
