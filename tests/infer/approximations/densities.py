"""Densities whose moments and normalising constants are known."""

import numpy as np

from probtorch.infer import Target
from probtorch.ops.exponentials import logaddexp
from probtorch.tensor import tensor

PRECISION = np.array([[4.0, 1.0, 0.0], [1.0, 9.0, 2.0], [0.0, 2.0, 1.0]])
COVARIANCE = np.linalg.inv(PRECISION)
LOC = np.array([1.0, -2.0, 3.0])
LOG_CONSTANT = 1.5 * np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(PRECISION)[1]
PART = 0.75


def gaussian():
    """A normal density in 3 dims without its constant."""

    def fn(q):
        r = q - tensor(LOC)
        return -0.5 * (r * (tensor(PRECISION) @ r)).sum()

    return Target.from_density(fn, 3)


def two_modes(part=PART):
    """Two normals of unit variance at -8 and 8; the one on the left has a share of `part`."""

    def pair(q):
        left, right = -0.5 * ((q + 8.0) ** 2).sum(), -0.5 * ((q - 8.0) ** 2).sum()
        return logaddexp(left + np.log(part), right + np.log(1.0 - part))

    return Target.from_density(pair, 1)
