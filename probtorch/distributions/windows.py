"""Sums over counts and integrals over a line, as a fixed number of terms around their peak.

Where a density has no closed form it is often a sum of Poisson weights or an integral over a scale.
Terms are taken where the largest ones are, in a window that is computed without a tape; derivatives
go through the terms. A sum over counts is that of every number, or, where the terms change slowly,
of every other, every third and so on: for smooth terms the trapezium rule is exact to rounding.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.ops.arithmetic import maximum, sqrt, where
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import asinh, sinh
from probtorch.tensor import Tensor

__all__ = ["counts_around", "counts_within", "log_kve", "nodes_like", "skewed_nodes", "weighted"]

# A Poisson weight 9.5 deviations from the mean is below 1e-16 of the largest.
TERMS, REACH = 128, 9.5
PLACES = np.arange(TERMS) - TERMS // 2


def nodes_like(x: Tensor, nodes: np.ndarray) -> Tensor:
    """Return fixed numbers in the dtype and on the device of a tensor."""
    return x.new_tensor(nodes)


def counts_around(peak: Tensor) -> tuple[Tensor, Tensor]:
    """Return counts along a new last dim, and the weight of each: the step, 0 below 0.

    Parameters
    ----------
    peak : Tensor
        Where the terms are largest; they fall at least as fast as Poisson weights of that mean.
    """
    peak = peak.detach()
    step = maximum((2.0 * REACH / TERMS) * sqrt(peak + 1.0), 1.0)
    # Without gaps the window starts at 0, or as far below the peak as it reaches.
    start = maximum(peak.floor() - TERMS / 2, 0.0)
    every = unsqueeze(start, -1) + nodes_like(peak, np.arange(float(TERMS)))
    some = unsqueeze(peak, -1) + unsqueeze(step, -1) * nodes_like(peak, PLACES * 1.0)
    j = where(unsqueeze(step, -1) > 1.0, some, every)
    inside = j >= 0.0
    return where(inside, j, 0.0), where(inside, unsqueeze(step, -1), 0.0)


# On each side of the mean.
SIDE = 96
WINDOW = np.arange(2.0 * SIDE + 1.0)


def counts_within(mean: Tensor, deviation: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Return counts along a new last dim, and the weight of each: the step, 0 above `most`.

    For masses with light tails; their sum over all counts is that over these.
    """
    mean, deviation = mean.detach(), deviation.detach()
    step = maximum((deviation * (REACH / SIDE)).ceil(), 1.0)
    start = maximum(mean.floor() - SIDE * step, 0.0)
    k = unsqueeze(start, -1) + unsqueeze(step, -1) * nodes_like(mean, WINDOW)
    inside = k <= unsqueeze(most, -1)
    return where(inside, k, 0.0), where(inside, unsqueeze(step, -1), 0.0)


# For slopes of the left tail from 1 / spread on: 40 of them are reached.
# In w the map w + 1 - exp(-w) makes an exponential tail on the left a doubly exponential one.
W = np.linspace(-4.2, 8.8, 128)
SKEWED, SLOPES = W + 1.0 - np.exp(-W), (1.0 + np.exp(-W)) * (W[1] - W[0])


def skewed_nodes(center: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return points along a new last dim and weights, for an integral over the line.

    For integrands with a peak of width `spread` at `center`, an exponential tail on the left and a
    lighter one on the right, such as densities of logarithms of gamma variates.
    """
    center, spread = unsqueeze(center.detach(), -1), unsqueeze(spread.detach(), -1)
    return center + spread * nodes_like(center, SKEWED), spread * nodes_like(center, SLOPES)


# exp(-45) is below rounding.
DROP = 45.0
ARC = np.linspace(0.0, 1.0, 129)


def log_kve(v: float | Tensor, x: Tensor) -> Tensor:
    """Log of exp(x) times the modified Bessel function of the second kind, for x > 0, v >= 0.

    The integral over t > 0 of exp(x - x cosh(t)) cosh(v t) (DLMF 10.32.9), to rounding for x from
    1e-20 on and orders up to about 100.
    """
    z = x.detach()
    high = 2.0 * asinh(sqrt(DROP / (2.0 * z)))
    for _ in range(2):
        high = 2.0 * asinh(sqrt((DROP + v * high) / (2.0 * z)))
    # Of a high order terms far below the peak, at asinh(v / x), are small as well.
    width = 1.0 / sqrt(sqrt(z * z + v * v))
    low = maximum(asinh(v / z) - DROP / maximum(z * 0.0 + v, 1e-3) - REACH * width, 0.0)
    step = (high - low).detach()
    t = unsqueeze(low.detach(), -1) + unsqueeze(step, -1) * nodes_like(x, ARC)
    half = sinh(t * 0.5)
    both = (unsqueeze(v, -1) if isinstance(v, Tensor) else v) * t
    terms = both + log1p(exp(-2.0 * both)) - 2.0 * unsqueeze(x, -1) * (half * half)
    terms = where(t == 0.0, terms - math.log(2.0), terms)
    return logsumexp(terms, -1) + log(step) - math.log(256.0)


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Sum of values times weights over the last dim."""
    return total(values * weights, -1)
