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
    position = np.asarray(position, np.float64)
    slope = np.random.default_rng(0).normal(size=position.size)
    distance = DISTANCE * step_size
    for i in range(ROUNDS + 1):
        # The length of M u in the metric M^-1, in which the rounds are those of a symmetric matrix.
        move = inverse_mass * slope if inverse_mass.ndim == 1 else inverse_mass @ slope
        length = math.sqrt(max(float(slope @ move), 0.0))
        if i == ROUNDS or not 0.0 < length < math.inf:
            break
        move *= distance / length
        ahead, behind = (target.value_and_grad(position + s * move)[1] for s in (1.0, -1.0))
        slope = (behind - ahead) / (2.0 * distance)
    return 0.25 * step_size**2 * length


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
    matrices = [kernel.metric.inverse_mass() for kernel in kernels]
    for of_kind, level in ((diverging, 0.9), (~diverging, 0.5)):
        places = np.argwhere(of_kind)
        if not len(places):
            return {}
        some = places[np.unique(np.linspace(0, len(places) - 1, DRAWS).astype(int))]
        shares = [
            stability_share(
                target,
                matrices[chain],
                float(kernels[chain].step_size.array),
                positions[chain, draw],
            )
            for chain, draw in some
        ]
        finite = [x for x in shares if np.isfinite(x)]
        if not finite:
            return {}
        found.append(float(np.quantile(finite, level)))
    return {"curvature_at_divergences": found[0], "curvature_elsewhere": found[1]}
