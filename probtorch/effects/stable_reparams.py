"""Stable distributions as functions of noise, or as normal distributions of random scale.

Samples of a stable distribution are easy and its density is an integral, so inference prefers the
noise behind a draw. The names are Pyro's; reparams.py has the handler and says what a `Reparam` is.

A draw is that of a uniform angle and an exponential number (Chambers, Mallows, Stuck 1976). A
symmetric stable number is a normal one whose variance is a positive stable number of half the
stability, and any other is the sum of a symmetric and a totally skewed one (Samorodnitsky, Taqqu
1994, properties 1.2.1 and 1.3.1).
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.told import is_constant
from probtorch.core.typed import Shape
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.normal import Normal
from probtorch.distributions.positive import Exponential
from probtorch.distributions.precision import in_double
from probtorch.distributions.stable import Stable, standard_draw
from probtorch.distributions.uniform import Uniform
from probtorch.effects.further_reparams import needed
from probtorch.effects.primitives import sample
from probtorch.effects.site import Site
from probtorch.errors import ModelError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, sign, where
from probtorch.ops.exponentials import exp, expm1, log
from probtorch.ops.trigonometry import cos, tan
from probtorch.tensor import Tensor

__all__ = ["LatentStableReparam", "StableReparam", "SymmetricStableReparam"]

HALF_PI = 0.5 * math.pi
# The limit at a stability of 1 is used nearer than this, where it is exact to rounding.
NEAR = 1e-9


def _positive(x: Tensor) -> Tensor:
    """Return `x`, or the least positive number of its dtype where it has underflown."""
    return maximum(x, float(np.finfo(x.array.dtype).tiny))


def _noise(site: Site, part: str, rows: Shape, event_dim: int) -> tuple[Tensor, Tensor]:
    """State the angle and the exponential number behind a draw."""
    angle = Uniform(-HALF_PI, HALF_PI).expand(rows).to_event(event_dim)
    waiting = Exponential(1.0).expand(rows).to_event(event_dim)
    u = sample(f"{site.name}{part}_uniform", angle, infer=site.infer)
    return u, sample(f"{site.name}{part}_exponential", waiting, infer=site.infer)


def _standard(stability: Tensor, skew: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
    """Return the standard draw of S0 that noise stands for."""
    u, waiting = noise
    return in_double(standard_draw, stability, skew, u / math.pi + 0.5, waiting)


def _log_mixed(stability: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
    """Return the log of the variance that makes a normal number a symmetric stable one."""
    half = stability * 0.5
    # In the coordinates S, where its support begins at 0.
    positive = _standard(half, half * 0.0 + 1.0, noise) + tan(HALF_PI * half)
    return log(_positive(positive)) + (2.0 / stability) * log(cos(HALF_PI * half))


class LatentStableReparam:
    """A stable number as a function of the noise ``{name}_uniform`` and ``{name}_exponential``."""

    def apply(self, site: Site) -> Tensor:
        """State the noise and return the value."""
        base, rows, event_dim = needed(site, Stable)
        standard = _standard(base.stability, base.skew, _noise(site, "", rows, event_dim))
        return base._shift() + base.scale * standard


class SymmetricStableReparam:
    """A symmetric stable number as normal, with a random scale; data may be given.

    The scale is that of the noise ``{name}_uniform`` and ``{name}_exponential``.

    Notes
    -----
    For a stability below 2, and a skew of 0.
    """

    takes_data = True

    def apply(self, site: Site) -> Distribution:
        """State the noise and return the normal distribution."""
        base, rows, event_dim = needed(site, Stable)
        if not is_constant(base.skew) or base.skew.array.any():
            raise ModelError(
                f"site {site.name!r} cannot be reparameterised so",
                expected="a Stable without skew",
                got="a skew that is not 0, or learned",
                fix="use StableReparam",
                at=site.location,
            )
        noise = _noise(site, "", rows, event_dim)
        scale = base.scale * exp(0.5 * _log_mixed(base.stability, noise))
        normal = Normal(base.loc, _positive(scale) * math.sqrt(2.0))
        return normal.expand(rows).to_event(event_dim)


class StableReparam:
    """A stable number as normal, with random location and scale; data may be given.

    The location is that of the noise ``{name}_t_uniform`` and ``{name}_t_exponential``, the scale
    that of ``{name}_z_uniform`` and ``{name}_z_exponential``.

    Notes
    -----
    For a stability below 2.
    """

    takes_data = True

    def apply(self, site: Site) -> Distribution:
        """State the noise and return the normal distribution."""
        base, rows, event_dim = needed(site, Stable)
        z = _noise(site, "_z", rows, event_dim)
        t = _noise(site, "_t", rows, event_dim)
        alpha, size = base.stability, absolute(base.skew)
        skewed = _standard(alpha, size * 0.0 + 1.0, t)
        # scale ** alpha and skew * scale ** alpha add up over independent parts.
        spread = exp(log(_positive(1.0 - size)) / alpha)
        share = where(size == 0.0, 0.0, exp(log(where(size == 0.0, 1.0, size)) / alpha))
        middle = sign(base.skew) * (share * skewed + _shift(alpha, size))
        scale = base.scale * spread * exp(0.5 * _log_mixed(alpha, z))
        normal = Normal(base._shift() + base.scale * middle, _positive(scale) * math.sqrt(2.0))
        return normal.expand(rows).to_event(event_dim)


def _shift(alpha: Tensor, size: Tensor) -> Tensor:
    """What the location of S0 changes by when the skewed part is taken out.

    ``tan(pi alpha / 2) (size ** (1 / alpha) - size)``, whose factors are infinite and 0 at 1.
    """
    gap = alpha - 1.0
    gap = where(absolute(gap) < NEAR, NEAR, gap)
    logs = log(where(size == 0.0, 1.0, size))
    return -size * expm1(-gap / (1.0 + gap) * logs) / tan(HALF_PI * gap)


explain_calls(globals())
