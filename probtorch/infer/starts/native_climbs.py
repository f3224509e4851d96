"""Paths of L-BFGS in native code, one after the other: where chains start.

They are what `best_of_paths` of `LbfgsPaths` (lbfgs_paths.py) would find, scored by the log density
with the log volume, less what is still to be climbed; see climb_routines.py. Paths
that are watched on their way, or have another score, are `LbfgsPaths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.nests.loops import address
from probtorch.infer.starts import lbfgs_paths
from probtorch.infer.starts.climb_routines import CLIMBS, FOUND, NUMBERS, found_size, work_size
from probtorch.infer.starts.lbfgs_paths import HISTORY, BestPoints, InverseHessian

if TYPE_CHECKING:
    from probtorch.compiler.density_context import DensityContext

__all__ = ["climb"]


def climb(
    context: DensityContext,
    starts: np.ndarray,
    values: np.ndarray,
    gradients: np.ndarray,
    *,
    max_gradients: int,
    tolerance: float,
    patience: float,
    reluctance: float,
) -> tuple[BestPoints, int, int]:
    """Climb from each row of `starts`; returns the best points, the number of evaluations, and that
    of paths on which the model raised.

    Parameters
    ----------
    context : DensityContext
        An exception of the model's is a point without a density.
    starts : ndarray, shape (paths, dim)
    values, gradients : ndarray, shapes (paths,) and (paths, dim)
        There, finite.
    max_gradients, tolerance, patience, reluctance
        As for `best_of_paths`.
    """
    count, dim = starts.shape
    settings = {"tolerance": tolerance, "patience": patience, "reluctance": reluctance}
    numbers = np.array(
        [settings[n] if n in settings else getattr(lbfgs_paths, n.upper()) for n in NUMBERS], float
    )
    found = np.zeros((count, found_size(dim, HISTORY)))
    work, evaluations, raised = np.empty(work_size(dim, HISTORY)), 0, 0
    starts, gradients = (np.ascontiguousarray(x, float) for x in (starts, gradients))
    routine, density = CLIMBS.function("pt_climb"), (context.function, context.address)
    rest = dim, HISTORY, max_gradients, address(numbers)
    begin, slope, out, memory = map(address, (starts, gradients, found, work))
    step, length = starts.strides[0], found.strides[0]
    for i, value in enumerate(values.tolist()):
        at = i * step
        evaluations += routine(
            *density, begin + at, slope + at, value, *rest, out + i * length, memory
        )
        try:
            context.raise_error()
        except Exception:  # a point without a density
            raised += 1
    position, gradient, diagonal = (found[:, k * dim : (k + 1) * dim].copy() for k in range(3))
    stop = (3 + 2 * HISTORY) * dim
    pairs = found[:, 3 * dim : stop].reshape(count, 2, HISTORY, dim)
    of = dict(zip(FOUND, found[:, stop:].T.copy(), strict=True))
    # Pair number t is in place (t - 1) modulo their number.
    newest = of.pop("pairs").astype(int)[:, None]
    order = newest - (newest - 1 - np.arange(HISTORY)) % HISTORY
    hessian = InverseHessian(diagonal, pairs, np.maximum(order, 0))
    return (
        BestPoints(position=position, gradient=gradient, hessian=hessian, **of),
        evaluations,
        raised,
    )
