"""Whether a posterior has modes that a chain does not cross: a look along climbs of its density.

Paths climb by L-BFGS from dispersed points, as chains are started (starts/path_starts.py). Two tops
are of different modes if they are far from each other by the curvatures there, and the density on
the way from one to the other falls deep below both: along the straight line, and along the way that
bends downhill from it least, which a curved ridge has and two modes have not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from probtorch.errors import InferenceError
from probtorch.infer.potential import Target
from probtorch.infer.starts.lbfgs_paths import BestPoints
from probtorch.infer.starts.path_starts import Evaluations, climbed, climbed_from, kept_paths
from probtorch.tensor import tensor

__all__ = ["Modes", "separate_modes"]

# Paths, and evaluations of each at most: together some hundredths of what four chains take. A mode
# that catches one path in twenty is missed by all of 64 once in 27 times.
PATHS, MAX_GRADIENTS = 64, 150
# So many first, and no more of them where a gradient takes more seconds than that, or the model
# raises on the way: that is Python's to compute.
FIRST_PATHS, CHEAP = 16, 3e-4
# A path whose log density would still rise by more, in nats, by its estimate, has no top yet.
STILL_RISING = 0.5
# It is climbed from there again, so often at most: a narrow mode has curvatures that a path on its
# way down from a wide one has not learnt.
MORE_CLIMBS = 2
# How deep the way between two modes falls below the lower of them, in nats: a random walk passes
# two often, one of five some few times in 1000 draws.
DEPTH = 5.0
# Points of a way between two tops, and rounds in which they move uphill across it.
POINTS, ROUNDS = 15, 40
# Changes of mode in all chains, below which shares are known to a third of themselves or worse.
FEW_CHANGES = 20
# Of standard deviations, for differences of gradients; and by how much the normals of modes are
# wider than curvatures say, as tails are to be within reach.
DIFFERENCE, WIDER = 1e-3, 1.2


@dataclass(frozen=True)
class Modes:
    """Separate modes of a posterior.

    Attributes
    ----------
    tops : ndarray, shape (modes, dim)
    covariances : ndarray, shape (modes, dim, dim)
        By the curvatures there.
    wall : float
        How deep the way falls, in nats, from the most secluded of them to its nearest; 0 for one.
    """

    tops: np.ndarray
    covariances: np.ndarray
    wall: float

    def __len__(self) -> int:
        return len(self.tops)

    @property
    def reference(self) -> MixtureSameFamily:
        """Normals at the modes, a little wider than the curvatures say, in equal parts."""
        count = len(self.tops)
        parts = MultivariateNormal(tensor(self.tops), tensor(WIDER * self.covariances))
        return MixtureSameFamily(Categorical(probs=tensor(np.full(count, 1.0 / count))), parts)

    def nearest(self, points: np.ndarray) -> np.ndarray:
        """Return the number of the mode that each of points (..., dim) is of, by these normals."""
        away = points[..., None, :] - self.tops
        whitened = np.einsum("mij,...mj->...mi", np.linalg.inv(self.covariances), away)
        log_det = np.linalg.slogdet(self.covariances)[1]
        return np.argmin((away * whitened).sum(-1) + log_det, axis=-1)

    def doubt(self, positions: np.ndarray) -> str:
        """Say what is wrong with how often draws (chain, draw, dim) are in which mode, if anything.

        Chains that hardly ever go from one to another do not tell their shares, though they agree.
        """
        if len(self) < 2:
            return ""
        own = self.nearest(positions)
        changes = int((own[:, 1:] != own[:, :-1]).sum())
        without = len(self) - np.unique(own).size
        if without:
            return f"no draw is in {without} of {len(self)} modes"
        if changes < FEW_CHANGES:
            return f"all chains together went {changes} times from mode to mode"
        return ""


def separate_modes(target: Target, generator: Generator, gradient: float = 0.0) -> Modes | None:
    """Look for modes that climbs from dispersed points end in.

    Parameters
    ----------
    target : Target
    generator : Generator
    gradient : float
        Seconds that one takes.

    Returns
    -------
    Modes or None
        Those that are separate; None if there is no top.
    """
    try:
        first, rest = generator.spawn(2)
        best, evaluate = climbed(target, FIRST_PATHS, first, max_gradients=MAX_GRADIENTS)
        if gradient <= CHEAP and not evaluate.raised:
            more, _ = climbed(target, PATHS - FIRST_PATHS, rest, max_gradients=MAX_GRADIENTS)
            best = best.with_others(more)
    except InferenceError:  # no start; who samples will say so
        return None
    for _ in range(0 if evaluate.raised else MORE_CLIMBS):
        rising = np.flatnonzero(_kept(best) & (_rise(best) >= STILL_RISING))
        if not rising.size:
            break
        again = best.rows(rising)
        again = climbed_from(again.position, again.value, again.gradient, evaluate, MAX_GRADIENTS)
        others = np.setdiff1d(np.arange(len(best.value)), rising)
        best = best.rows(others).with_others(again)
    tops = best.rows(np.flatnonzero(_kept(best) & (_rise(best) < STILL_RISING)))
    modes: list[int] = []
    wall = 0.0
    for i in np.argsort(-tops.value, kind="stable"):
        nearest = math.inf
        # Most are of a mode that is known; whose top is nearest, that one, as a rule.
        away = np.square(tops.position[modes] - tops.position[i]).sum(-1)
        for j in np.array(modes, int)[np.argsort(away, kind="stable")]:
            nearest = min(nearest, _wall(tops, i, j, evaluate))
            if nearest < DEPTH:
                break
        else:
            wall = max(wall, nearest) if modes else wall
            modes.append(int(i))
    if not modes:
        return None
    covariances = [_covariance(tops, i, evaluate) for i in modes]
    return Modes(tops.position[modes], np.stack(covariances), wall)


def _covariance(tops: BestPoints, i: int, evaluate: Evaluations) -> np.ndarray:
    """The inverse of minus the Hessian at a top, from differences of gradients; the estimate of its
    path where that is no covariance.
    """
    dim = tops.position.shape[1]
    rows = tops.hessian.rows(np.full(dim, i))
    guess = rows.apply(np.eye(dim))
    scale = np.sqrt(np.diagonal(guess))
    steps = DIFFERENCE * scale * np.eye(dim)
    _, gradients = evaluate(np.concatenate([tops.position[i] + steps, tops.position[i] - steps]))
    # In units of the scale of each coordinate.
    hessian = (gradients[:dim] - gradients[dim:]) / (2.0 * DIFFERENCE) * scale
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    if not (np.isfinite(values).all() and values[0] > 0.0):
        return 0.5 * (guess + guess.T)
    return scale[:, None] * ((vectors / values) @ vectors.T) * scale


def _rise(best: BestPoints) -> np.ndarray:
    """By how much log densities would still rise, by their estimates."""
    return 0.5 * (best.gradient * best.hessian.apply(best.gradient)).sum(-1)


def _kept(best: BestPoints) -> np.ndarray:
    """Whether points may have a share of the posterior."""
    return kept_paths(best.value + 0.5 * best.log_det, best.log_det, best.position.shape[1])


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
