"""The von Mises distribution: a normal on the circle."""

import math

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import as_tensor
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution, param
from probtorch.distributions.fields import Parameter
from probtorch.distributions.source import Source
from probtorch.ops.elementwise import log, sin
from probtorch.ops.special import i0e, i1e

__all__ = ["VonMises"]


class VonMises(Distribution):
    """Von Mises distribution of angles, with density prop. to exp(concentration * cos(x - loc)).

    Parameters
    ----------
    loc : Tensor or number
        Mean direction, in radians.
    concentration : Tensor or number, positive
        Near 0 uniform, large nearly normal with variance 1 / concentration.

    Notes
    -----
    Draws lie in [-pi, pi); the density has period 2 pi and integrates to 1 over one period.
    """

    loc: Parameter = param(constraints.real)
    concentration: Parameter = param(constraints.positive)
    support = constraints.circular

    def _sample(self, rng, shape):
        x = as_tensor(_centred_draws(rng, self.concentration, shape)) + self.loc
        return (x + math.pi) % (2.0 * math.pi) - math.pi

    def _log_prob(self, x):
        # cos d - 1 = -2 sin(d / 2)^2 has no cancellation, and i0e = exp(-concentration) i0 no
        # overflow.
        s = sin((x - self.loc) * 0.5)
        constant = log(i0e(self.concentration)) + math.log(2.0 * math.pi)
        return self.concentration * (s * s) * -2.0 - constant

    def _entropy(self):
        k = self.concentration
        return log(i0e(k)) + math.log(2.0 * math.pi) + k * (1.0 - i1e(k) / i0e(k))

    def _mean(self):
        return self.loc

    _mode = _mean

    def _variance(self):
        """Circular variance, 1 minus the length of the mean of (cos x, sin x)."""
        return 1.0 - i1e(self.concentration) / i0e(self.concentration)


def _centred_draws(rng, concentration, shape):
    """Draws around 0, by rejection from a wrapped Cauchy (Best and Fisher 1979).

    At least 2 of 3 proposals are taken, so a draw needs more than 100 rounds with probability below
    1e-47; it would then be the mode.
    """
    k = np.broadcast_to(to_host(concentration._data), shape).astype(np.float64).reshape(-1)
    # Below 1e-5 the numerator of rho cancels; there two terms of the series of s are exact.
    wide_k = np.maximum(k, 1e-5)
    r = 1.0 + np.sqrt(1.0 + 4.0 * wide_k * wide_k)
    rho = (r - np.sqrt(2.0 * r)) / (2.0 * wide_k)
    s = np.where(k < 1e-5, 1.0 / k + k, (1.0 + rho * rho) / (2.0 * rho))
    out, todo = np.zeros(k.shape), np.arange(k.size)
    wide = Source(rng.generator, np.dtype(np.float64))
    for _ in range(100):
        if not todo.size:
            break
        u = wide.uniform((3, todo.size))._data
        z = np.cos(math.pi * u[0])
        f = np.clip((1.0 + s[todo] * z) / (s[todo] + z), -1.0, 1.0)
        c = k[todo] * (s[todo] - f)
        taken = (c * (2.0 - c) > u[1]) | (np.log(c / u[1]) + 1.0 >= c)
        out[todo[taken]] = (np.arccos(f) * np.where(u[2] < 0.5, -1.0, 1.0))[taken]
        todo = todo[~taken]
    return out.reshape(shape).astype(rng.dtype)
