"""How near the curvature of a density comes to what a step size can follow.

Along a direction of curvature k, the second derivative of minus the log density, leapfrog steps of
size h oscillate where ``h^2 k < 4`` and grow without bound beyond [neal2011, section 2.3]. The
largest curvature is found by power iteration on differences of gradients, in whitened coordinates,
which are those that the step size is meant in. So one can say of a divergence whether it met a
peak of the curvature, as in the neck of a funnel, or something else: a wall, a jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.nests.loops import address
from probtorch.infer.mcmc.warm_up.curvature_routines import CURVATURE

if TYPE_CHECKING:
    from probtorch.compiler.density_context import DensityContext
    from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
    from probtorch.infer.potential import Target


__all__ = ["curvature_at_divergences", "stability_share"]

# Ten rounds find the largest eigenvalue to 10 % where the next one is 80 % of it.
ROUNDS = 10
# Distance of the two gradients, in steps: small beside the narrowest scale that matters here, which
# is half a step.
DISTANCE = 1e-3
# Draws that are looked at, of either kind: 32 times 20 gradients, a small part of any run.
DRAWS = 16


def stability_share(
    target: Target, inverse_mass: np.ndarray, step_size: float, position: np.ndarray
) -> float:
    """Return the largest curvature at a position as a share of what leapfrog can follow.

    Parameters
    ----------
    target : Target
    inverse_mass : array, shape (dim,) or (dim, dim)
        The inverse mass matrix, or its diagonal.
    step_size : float
    position : array, shape (dim,)

    Returns
    -------
    float
        ``step_size^2 k / 4`` for the largest absolute curvature k; beyond 1 steps are unstable.
        Nan where a gradient is not finite.

    Examples
    --------
    >>> from probtorch.infer.potential import Target
    >>> target = Target.from_density(lambda q: -50.0 * q[0] * q[0] - 0.5 * q[1] * q[1], 2)
    >>> round(stability_share(target, np.ones(2), 0.1, [0.3, 0.2]), 6)
    0.25
    """
    point = np.asarray(position, np.float64)[None]
    context, steps = target.density.context(), np.array([step_size])
    found = _shares(context, np.array([inverse_mass]), np.zeros(1), steps, point)
    return float(found[0])


def _shares(
    context: DensityContext,
    matrices: np.ndarray,
    which: np.ndarray,
    step_sizes: np.ndarray,
    positions: np.ndarray,
) -> np.ndarray:
    """`stability_share` at each of the rows of an array, with the matrices of these numbers."""
    points, dim = positions.shape
    slopes = np.tile(np.random.default_rng(0).normal(size=dim), (points, 1))
    distances, lengths, work = DISTANCE * step_sizes, np.empty(points), np.empty(3 * dim)
    matrices, positions = (np.ascontiguousarray(x, np.float64) for x in (matrices, positions))
    which = np.ascontiguousarray(which, np.int64)
    CURVATURE.function("pt_lengths")(
        *(context.function, context.address, points, dim, address(positions), address(matrices)),
        *(int(matrices.ndim == 3), address(which), address(distances), ROUNDS),
        *map(address, (slopes, lengths, work)),
    )
    context.raise_error()
    return 0.25 * step_sizes**2 * lengths


def curvature_at_divergences(
    target: Target,
    kernels: Sequence[SteppingKernel],
    positions: np.ndarray,
    diverging: np.ndarray,
) -> dict[str, float]:
    """Return what the curvature is at divergent draws and elsewhere.

    Parameters
    ----------
    target : Target
    kernels : sequence of kernels
        One per chain.
    positions : ndarray, shape (chains, draws, dim)
    diverging : ndarray of bool, shape (chains, draws)

    Returns
    -------
    dict
        ``curvature_at_divergences``, of 16 divergent draws the ninth decile of `stability_share`,
        and ``curvature_elsewhere``, of as many others the median. Empty where there are no draws
        of one of the two kinds.
    """
    places = [np.argwhere(of_kind) for of_kind in (diverging, ~diverging)]
    if not all(map(len, places)):
        return {}
    some = [x[np.unique(np.linspace(0, len(x) - 1, DRAWS).astype(int))] for x in places]
    # Of a thousand chains the kernels of few are asked for: each is put together for it.
    numbers = np.unique(np.concatenate(some)[:, 0])
    there = [kernels[chain] for chain in numbers.tolist()]
    matrices = np.array([kernel.metric.inverse_mass() for kernel in there])
    steps = np.array([float(kernel.step_size.array) for kernel in there])
    context, found = target.density.context(), []
    for (chains, draws), level in zip([x.T for x in some], (0.9, 0.5)):
        which = np.searchsorted(numbers, chains)
        drawn = np.asarray(positions[chains, draws], np.float64)
        shares = _shares(context, matrices, which, steps[which], drawn)
        finite = shares[np.isfinite(shares)]
        if not finite.size:
            return {}
        found.append(float(np.quantile(finite, level)))
    return {"curvature_at_divergences": found[0], "curvature_elsewhere": found[1]}
