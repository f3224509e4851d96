"""Normal numbers with tails made heavier: each is stretched the more, the farther out it is.

The stretch is undone by Lambert's W function [goerg2015]_, the solution of ``w exp(w) = q``.
"""

from __future__ import annotations

import math

from probtorch.core.dtype import finfo
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp, log, log1p, softplus
from probtorch.ops.exponentials import pow as power
from probtorch.ops.special import log_ndtr, ndtr, ndtri
from probtorch.tensor import Tensor

__all__ = ["LambertWNormal"]

# Newton's method from log1p(q) has converged to rounding by then, from 1e-300 to 1e600.
STEPS = 7


def lambert_w(log_q: Tensor) -> Tensor:
    """Return w >= 0 with ``w exp(w) = exp(log_q)``, with its first two derivatives.

    Newton's method on ``w + log(w) - log_q``. Steps from the root on are where derivatives come
    from: each one doubles their order.
    """
    at = log_q.detach()
    w = softplus(at)
    for k in range(STEPS):
        ahead = at if k < STEPS - 2 else log_q
        w = w * ((1.0 + (ahead - log(w))) / (1.0 + w))
    return w


class LambertWNormal(Distribution):
    """Distribution of ``loc + scale * u * exp(tailweight * u ** 2 / 2)`` for u standard normal.

    Density ``f(x) = exp(-w / (2 * tailweight)) * sqrt(w / tailweight) / (abs(x - loc) * (1 + w)
    * sqrt(2 * pi))`` with ``w = W(tailweight * ((x - loc) / scale) ** 2)``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    tailweight : Tensor or number, nonnegative
        0 for a normal distribution; moments of orders from ``1 / tailweight`` on are infinite.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    tailweight: Parameter = param(constraints.nonnegative)
    support = constraints.real

    def _place(self, u: Tensor) -> Tensor:
        return self.loc + self.scale * (u * exp(0.5 * self.tailweight * u * u))

    def _back(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normal number u, and tailweight u^2."""
        z = (x - self.loc) / self.scale
        # In logs, since squares of what lies far out are infinite.
        known = (z != 0.0) & (absolute(z) < math.inf) & (self.tailweight > 0.0)
        size = absolute(where(known, z, 1.0))
        log_q = log(where(known, self.tailweight, 1.0)) + 2.0 * log(size)
        # From there on w would be 0 in its dtype.
        least = math.log(float(finfo(z.array.dtype).tiny)) + 2.0
        stretched = known & (log_q > least)
        w = where(stretched, lambert_w(where(stretched, log_q, 0.0)), 0.0)
        # W(q) / q = exp(-W(q))
        return z * exp(-0.5 * w), w

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.finite(self._place(rng.normal(shape)))

    def _log_prob(self, x: Tensor) -> Tensor:
        u, w = self._back(x)
        return -0.5 * (u * u + w) - log1p(w) - log(self.scale) - HALF_LOG_2PI

    def _cdf(self, x: Tensor) -> Tensor:
        return ndtr(self._back(x)[0])

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_ndtr(self._back(x)[0])

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_ndtr(-self._back(x)[0])

    def _icdf(self, p: Tensor) -> Tensor:
        return self._place(ndtri(p))

    def _mean(self) -> Tensor:
        return where(self.tailweight < 1.0, self.loc, math.nan)

    def _mode(self) -> Tensor:
        return self.loc

    def _left(self, times: float) -> tuple[Tensor, Tensor]:
        """Return whether ``1 - times * tailweight`` is positive, and it, or 1."""
        rest = 1.0 - times * self.tailweight
        return rest > 0.0, where(rest > 0.0, rest, 1.0)

    def _variance(self) -> Tensor:
        finite, rest = self._left(2.0)
        none = where(self.tailweight < 1.0, math.inf, math.nan)
        return where(finite, self.scale * self.scale / (rest * sqrt(rest)), none)

    def _skewness(self) -> Tensor:
        return where(self._left(3.0)[0], self.loc * 0.0, math.nan)

    def _kurtosis(self) -> Tensor:
        finite, rest = self._left(4.0)
        half = self._left(2.0)[1]
        value = 3.0 * power(half, 3.0) / power(rest, 2.5) - 3.0
        return where(finite, value, where(self._left(2.0)[0], math.inf, math.nan))
