"""Near the mode of a target: a point, the gradient there, and the covariance of its curvature.

Kernels on minibatches need all three before their first draw: nothing that they see on the way is
exact. The climb takes the exact density, of all rows, some tens of times, and the curvature twice
for each coordinate.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from probtorch.infer.potential import Target
from probtorch.infer.starts.lbfgs_paths import LbfgsPaths

__all__ = ["Mode", "mode_of"]

# The climb ends when no more than this is to be gained, in nats, or after so many steps.
AT_THE_TOP, MOST_STEPS = 1e-8, 500
# The gradient is differenced over this share of a coordinate's scale, as the slope at the start of
# the search has it: beyond rounding, within what a quadratic describes.
APART = 1e-2
# Curvatures below this share of the largest one are none.
FLATTEST = 1e-10


@dataclass(frozen=True)
class Mode:
    """Where a density is highest, about.

    Parameters
    ----------
    position, gradient : ndarray, shape (dim,)
    value : float
        The log density there.
    covariance : ndarray, shape (dim, dim)
        The inverse of minus the second derivatives; along directions in which the density bends
        upwards, of their magnitude.
    """

    position: np.ndarray
    gradient: np.ndarray
    value: float
    covariance: np.ndarray


_found: weakref.WeakKeyDictionary[Target, Mode] = weakref.WeakKeyDictionary()


def mode_of(target: Target, start: np.ndarray) -> Mode:
    """Return the `Mode` of a target, found by climbing from `start`, shape (dim,).

    It is kept for other chains; data that were exchanged since are noticed at the mode itself.
    """
    known = _found.get(target)
    if known is not None:
        value, gradient = target.value_and_grad(known.position)
        if value == known.value and np.array_equal(gradient, known.gradient):
            return known
    position, _, scale = _climbed(target, start)
    value, gradient = target.value_and_grad(position)
    covariance = _covariance(target, position, scale)
    _found[target] = mode = Mode(position, gradient.copy(), float(value), covariance)
    return mode


def _climbed(target: Target, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The highest point reached, the gradient there, and the scale of each coordinate, roughly."""

    def evaluate(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = [target.value_and_grad(q) for q in points]
        values = np.array([value for value, _ in found])
        return np.where(np.isfinite(values), values, -np.inf), np.stack([g for _, g in found])

    first = np.array(start)[None]
    paths = LbfgsPaths(evaluate, first, *evaluate(first))
    best = first[0], paths.gradient[0].copy(), np.ones(len(start))
    for _ in range(MOST_STEPS):
        paths.end(paths.gain < AT_THE_TOP)
        if not len(paths.paths):
            break
        paths.advance()
        scale = np.sqrt(paths.hessian.diagonal[0])
        best = paths.position[0].copy(), paths.gradient[0].copy(), scale
    return best


def _covariance(target: Target, position: np.ndarray, scale: np.ndarray) -> np.ndarray:
    rows = []
    for i, length in enumerate(APART * scale):
        ahead, behind = position.copy(), position.copy()
        ahead[i] += length
        behind[i] -= length
        difference = target.value_and_grad(behind)[1] - target.value_and_grad(ahead)[1]
        rows.append(difference / (ahead[i] - behind[i]))
    curvature = np.nan_to_num(np.array(rows))
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    values = np.abs(values)
    values = np.maximum(values, FLATTEST * max(values.max(), 1e-300))
    covariance = (vectors / values) @ vectors.T
    return 0.5 * (covariance + covariance.T)  # rounding may be more than the smallest of it
