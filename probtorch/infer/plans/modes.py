"""Whether a posterior has modes that a chain does not cross: a look along climbs of its density.

Paths climb by L-BFGS from dispersed points, as chains are started (starts/path_starts.py). Two tops
are of different modes if they are far from each other by the curvatures there, and the density on
the way from one to the other falls deep below both: along the straight line, and along the way that
bends downhill from it least, which a curved ridge has and two modes have not.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.errors import InferenceError
from probtorch.infer.potential import Target
from probtorch.infer.starts.lbfgs_paths import BestPoints
from probtorch.infer.starts.path_starts import Evaluations, climbed, kept_paths

__all__ = ["separate_modes"]

# Paths, and evaluations of each at most. A mode that catches one path in six is missed by all of 16
# once in 18 times.
PATHS, MAX_GRADIENTS = 16, 150
# A path whose log density would still rise by more, in nats, by its estimate, has no top yet.
STILL_RISING = 0.5
# How deep the way between two modes falls below the lower of them, in nats: a random walk passes
# two often, one of five some few times in 1000 draws.
DEPTH = 5.0
# Points of a way between two tops, and rounds in which they move uphill across it.
POINTS, ROUNDS = 15, 40


def separate_modes(target: Target, generator: Generator) -> tuple[int, float]:
    """Look for modes that climbs from dispersed points end in.

    Parameters
    ----------
    target : Target
    generator : Generator

    Returns
    -------
    count : int
        Of those that are separate; 0 if there is no top.
    wall : float
        How deep the way falls, in nats, from the most secluded of them to its nearest; 0 for one.
    """
    try:
        best, evaluate = climbed(target, PATHS, generator, max_gradients=MAX_GRADIENTS)
    except InferenceError:  # no start; who samples will say so
        return 0, 0.0
    rise = 0.5 * (best.gradient * best.hessian.apply(best.gradient)).sum(-1)
    kept = kept_paths(best.value + 0.5 * best.log_det, best.log_det, target.dim)
    tops = best.rows(np.flatnonzero(kept & (rise < STILL_RISING)))
    modes: list[int] = []
    wall = 0.0
    for i in np.argsort(-tops.value, kind="stable"):
        nearest = math.inf
        for j in modes:
            nearest = min(nearest, _wall(tops, i, j, evaluate))
            if nearest < DEPTH:
                break
        else:
            wall = max(wall, nearest) if modes else wall
            modes.append(int(i))
    return len(modes), wall


def _wall(tops: BestPoints, i: int, j: int, evaluate: Evaluations) -> float:
    """How deep the density falls on the best way between two tops that is found; below `DEPTH`
    nobody looks for a better one.
    """
    lower = min(tops.value[i], tops.value[j])
    floor = lower - DEPTH
    share = np.linspace(0.0, 1.0, POINTS + 2)[1:-1, None]
    between = tops.position[j] - tops.position[i]
    points = tops.position[i] + share * between
    values, gradients = evaluate(points)
    # Uphill in the metric of either top, but not along the way: a string that is let go to a ridge.
    size = 1.0
    for _ in range(ROUNDS):
        if values.min() > floor:
            break
        along = np.gradient(
            np.concatenate([tops.position[[i]], points, tops.position[[j]]]), axis=0
        )
        along = along[1:-1]
        step = _uphill(tops, i, j, gradients)
        length = (along * step).sum(-1) / np.maximum((along * along).sum(-1), 1e-300)
        moved = points + size * (step - length[:, None] * along)
        new_values, new_gradients = evaluate(moved)
        better = new_values > values
        if not better.any():
            size *= 0.5
            continue
        points = np.where(better[:, None], moved, points)
        gradients = np.where(better[:, None], new_gradients, gradients)
        values = np.where(better, new_values, values)
    return float(lower - values.min())


def _uphill(tops: BestPoints, i: int, j: int, gradients: np.ndarray) -> np.ndarray:
    """Newton steps by the smaller curvatures of two tops, no longer than a standard deviation."""
    found = []
    for top in (i, j):
        hessian = tops.hessian.rows(np.full(len(gradients), top))
        step = hessian.apply(gradients)
        length = np.sqrt(np.maximum((gradients * step).sum(-1), 1e-300))
        found.append(step / np.maximum(length, 1.0)[:, None])
    return 0.5 * (found[0] + found[1])


explain_calls(globals())
