"""The von Mises distribution: a normal on the circle.

Draws carry implicit gradients (Figurnov, Mohamed, Mnih 2018): the derivative of an angle with
respect to the concentration, at a fixed quantile, is an integral that `_angle_slope` takes by a
Gauss-Legendre rule.
"""

import math

import numpy as np

from probtorch.autograd.function import Function, once_differentiable
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import as_tensor, wrap
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
    Draws lie in [-pi, pi); the density has period 2 pi and integrates to 1 over one period. Their
    gradient is that of a function of the angle with period 2 pi; it can be taken once.
    """

    loc: Parameter = param(constraints.real)
    concentration: Parameter = param(constraints.positive)
    support = constraints.circular

    def _rsample(self, rng, shape):
        centred = as_tensor(_centred_draws(rng, self.concentration, shape))
        x = _Angle.apply(self.concentration, centred) + self.loc
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


class _Angle(Function):
    """Draws around 0, as a function of the concentration at a fixed quantile."""

    @staticmethod
    def forward(ctx, concentration, centred):
        ctx.save_for_backward(concentration, centred)
        return wrap(centred._data.copy())

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        concentration, centred = ctx.saved_tensors
        return g * wrap(_angle_slope(to_host(concentration._data), to_host(centred._data))), None

    @staticmethod
    def jvp(ctx, tangent, _):
        concentration, centred = ctx.saved_tensors
        return tangent * wrap(_angle_slope(to_host(concentration._data), to_host(centred._data)))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def _angle_slope(concentration, x):
    """Derivative of an angle x in the concentration k, at a fixed quantile.

    That is the integral from 0 to x of (A - cos t) exp(k (cos t - cos x)) dt, where A is the mean
    cosine. From 0 to pi it is 0: so unless |x| is small on the scale 1 / sqrt(k) of the density, it
    is minus the integral from |x| on, as far as the exponential is above e^-40.
    """
    k = np.asarray(concentration, np.float64)[..., None]
    end = np.abs(np.asarray(x, np.float64))[..., None]
    k, end = np.broadcast_arrays(k, end)
    inner = end * np.sqrt(k) < 1.5
    # cos(start) = cos(end) - 40 / k, in half angles so that nothing cancels.
    far = np.sqrt(np.minimum(np.sin(end / 2.0) ** 2 + 20.0 / k, 1.0))
    start = np.where(inner, 0.0, 2.0 * np.arcsin(far))
    middle, half = (start + end) / 2.0, np.abs(start - end) / 2.0
    t = middle + half * _NODES
    rise = np.sin(end / 2.0) ** 2 - np.sin(t / 2.0) ** 2
    shortfall = to_host((1.0 - i1e(wrap(k)) / i0e(wrap(k)))._data)
    integrand = (2.0 * np.sin(t / 2.0) ** 2 - shortfall) * np.exp(2.0 * k * rise)
    integral = half[..., 0] * (integrand * _WEIGHTS).sum(-1)
    slope = np.where(inner[..., 0], integral, -integral) * np.sign(x)
    return slope.astype(np.asarray(x).dtype)
