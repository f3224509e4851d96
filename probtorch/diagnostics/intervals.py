"""Intervals of draws: the narrowest one, and the one between equal tails."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.columns import narrowest_interval, ordered_draws, quantile_of
from probtorch.diagnostics.entrywise import checked_prob, per_entry

__all__ = ["eti", "hdi"]


def hdi(x: ArrayLike, prob: float = 0.9) -> np.ndarray:
    """Narrowest interval that holds a share `prob` of the draws.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws; chains are merged.
    prob : float, in (0, 1)
        Share of the draws inside.

    Returns
    -------
    ndarray, shape (*event, 2)
        Lower and upper end. Among equally narrow intervals the lowest.

    Raises
    ------
    DomainError
        If `prob` is not inside (0, 1).
    ShapeError, DTypeError
        As `rhat`.

    Notes
    -----
    One interval even when the distribution has several modes.
    """
    prob = checked_prob("hdi", prob)
    return per_entry(
        lambda columns: narrowest_interval(ordered_draws(columns), prob),
        x,
        result_shape=(2,),
        min_draws=1,
    )


def eti(x: ArrayLike, prob: float = 0.9) -> np.ndarray:
    """Interval that leaves out the same share of draws at both ends.

    Parameters
    ----------
    x : array_like, shape (chain, draw, *event)
        Real draws; chains are merged.
    prob : float, in (0, 1)
        Share of the draws inside.

    Returns
    -------
    ndarray, shape (*event, 2)
        Lower and upper end, interpolated linearly between draws.

    Raises
    ------
    DomainError
        If `prob` is not inside (0, 1).
    ShapeError, DTypeError
        As `rhat`.
    """
    prob = checked_prob("eti", prob)

    def statistic(columns: np.ndarray) -> np.ndarray:
        ordered = ordered_draws(columns)
        ends = [quantile_of(ordered, p) for p in ((1.0 - prob) / 2.0, (1.0 + prob) / 2.0)]
        return np.stack(ends, axis=-1)

    return per_entry(statistic, x, result_shape=(2,), min_draws=1)


explain_calls(globals())
