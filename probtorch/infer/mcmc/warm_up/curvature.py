"""How near the curvature of a density comes to what a step size can follow.

Along a direction of curvature k, the second derivative of minus the log density, leapfrog steps of
size h oscillate where ``h^2 k < 4`` and grow without bound beyond [neal2011, section 2.3]. The
largest curvature is found by power iteration on differences of gradients, in whitened coordinates,
which are those that the step size is meant in. So one can say of a divergence whether it met a
peak of the curvature, as in the neck of a funnel, or something else: a wall, a jump.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
    return float(_shares(target, [inverse_mass], np.array([step_size]), point)[0])


def _shares(
    target: Target,
    inverse_masses: Sequence[np.ndarray],
    step_sizes: np.ndarray,
    positions: np.ndarray,
) -> np.ndarray:
    """`stability_share` at each of the rows of an array, all rounds side by side."""
    evaluate = target.density.context().native
    slopes = np.tile(np.random.default_rng(0).normal(size=positions.shape[1]), (len(positions), 1))
    distances = DISTANCE * step_sizes
    lengths = np.zeros(len(positions))
    going = np.arange(len(positions))
    for i in range(ROUNDS + 1):
        # The length of M u in the metric M^-1, in which the rounds are those of a symmetric matrix.
        moves = np.array([_product(inverse_masses[row], slopes[row]) for row in going.tolist()])
        squares = np.vecdot(slopes[going], moves)
        lengths[going] = np.sqrt(np.where(squares > 0.0, squares, 0.0))
        lengths[going[np.isnan(squares)]] = np.nan
        good = (lengths[going] > 0.0) & (lengths[going] < math.inf)
        going, moves = going[good], moves[good]
        if i == ROUNDS or not going.size:
            break
        moves *= (distances[going] / lengths[going])[:, None]
        for row, move in zip(going.tolist(), moves):
            ahead, behind = (evaluate(positions[row] + s * move)[1] for s in (1.0, -1.0))
            slopes[row] = behind
            slopes[row] -= ahead
        slopes[going] /= (2.0 * distances[going])[:, None]
    return 0.25 * step_sizes**2 * lengths


def _product(inverse_mass: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return inverse_mass * slope if inverse_mass.ndim == 1 else inverse_mass @ slope


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
    found = []
    for of_kind, level in ((diverging, 0.9), (~diverging, 0.5)):
        places = np.argwhere(of_kind)
        if not len(places):
            return {}
        some = places[np.unique(np.linspace(0, len(places) - 1, DRAWS).astype(int))]
        chains, draws = some.T
        # Of a thousand chains the kernels of few are asked for: each is put together for it.
        there = {chain: kernels[chain] for chain in dict.fromkeys(chains.tolist())}
        matrices = {chain: kernel.metric.inverse_mass() for chain, kernel in there.items()}
        shares = _shares(
            target,
            [matrices[chain] for chain in chains.tolist()],
            np.array([float(there[chain].step_size.array) for chain in chains.tolist()]),
            np.asarray(positions[chains, draws], np.float64),
        )
        finite = shares[np.isfinite(shares)]
        if not finite.size:
            return {}
        found.append(float(np.quantile(finite, level)))
    return {"curvature_at_divergences": found[0], "curvature_elsewhere": found[1]}
