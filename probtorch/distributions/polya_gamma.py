"""The Polya-gamma distribution of logistic regression, cut off at 2.5 (Polson, Scott, Windle 2013).

Density and cdf are alternating series of two kinds, one for small values and one for large: where
they meet, at 0.16, the fifth term is below rounding (Devroye 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.quantiles import quantile
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import clamp, sqrt, where
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import erfc
from probtorch.tensor import Tensor

__all__ = ["TruncatedPolyaGamma"]

END = 2.5
# Below it the series in 1 / x, above it that in x.
MEETING = 0.16
ORDERS = np.arange(6.0)
SIGNS = (-1.0) ** ORDERS
RATE = 0.5 * math.pi**2
# Beyond the end only the first term of the series in x is above 1e-48 of it.
LOST = 4.0 / math.pi * math.exp(-RATE * END)
LOG_KEPT = math.log1p(-LOST)
# Cumulants of the whole: -log(cosh(sqrt(t / 2))) is the log of the mean of exp(-t x).
CUMULANTS = (1 / 4, 1 / 24, 1 / 60, 17 / 1680)
# The maximum of the density, and the integral of -f log f; test_empirical.py has both by mpmath.
MODE = 0.08332106637373697
ENTROPY = -0.5110901572425026


def _raw_moments() -> list[float]:
    """Return the means of x, ..., x^4 without what is beyond the end."""
    a, b, c, d = CUMULANTS
    whole = [a, b + a * a, c + 3 * b * a + a**3, d + 4 * c * a + 3 * b * b + 6 * b * a * a + a**4]
    cut = [2.0 * math.pi * _tail(r) for r in (1, 2, 3, 4)]
    return [(m - t) / (1.0 - LOST) for m, t in zip(whole, cut, strict=True)]


def _tail(r: int) -> float:
    """The integral of x^r exp(-RATE x) beyond the end."""
    parts = (math.perm(r, k) * END ** (r - k) / RATE ** (k + 1) for k in range(r + 1))
    return math.exp(-RATE * END) * sum(parts)


class TruncatedPolyaGamma(Distribution):
    """Polya-gamma distribution PG(1, 0) on (0, 2.5), which has all but 6e-6 of its mass.

    Given x, the logistic likelihood is normal: sigmoid(t) is exp(t / 2) / 2 times the mean of
    exp(-x t^2 / 2).

    Parameters
    ----------
    prototype : Tensor
        Of any shape: its dtype and device are those of draws.

    Notes
    -----
    Normalised on its interval, and exact there, as are draws. The signature is Pyro's.

    References
    ----------
    Polson, Scott, Windle (2013), "Bayesian inference for logistic models using Polya-Gamma latent
    variables".
    """

    prototype: Parameter = param(constraints.real)
    support = constraints.interval(0.0, END)

    def _infer_event_shape(self) -> Shape:
        # Its dtype counts, not its shape or its values.
        self.__dict__["prototype"] = self.prototype.new_zeros(())
        self._batch_shape = ()
        return ()

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return clamp(quantile(self, rng.uniform(shape)), 1e-30, END)

    def _log_prob(self, x: Tensor) -> Tensor:
        small = x < MEETING
        low, high = where(small, clamp(x, 1e-300, MEETING), MEETING), where(small, MEETING, x)
        near = 0.125 / low
        below = log1p(self._rest(near, ORDERS)) - near - 1.5 * log(low) - HALF_LOG_2PI
        above = log1p(self._rest(RATE * high, ORDERS)) - RATE * high + math.log(2.0 * math.pi)
        return where(small, below, above) - LOG_KEPT

    @staticmethod
    def _rest(rate: Tensor, n: np.ndarray) -> Tensor:
        """Sum of (-1)^n (2 n + 1) exp(-((2 n + 1)^2 - 1) rate) from 1 on."""
        odd = 2.0 * n[1:] + 1.0
        terms = exp(unsqueeze(-rate, -1) * rate.new_tensor(odd * odd - 1.0))
        return total(terms * rate.new_tensor(SIGNS[1:] * odd), -1)

    def _whole_cdf(self, x: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return ``of(cdf, survival)`` of the whole, of which the exact one is used."""
        x = clamp(x, 1e-300, END)
        small = x < MEETING
        low, high = where(small, x, MEETING), where(small, MEETING, x)
        odd = low.new_tensor(2.0 * ORDERS + 1.0)
        signs = low.new_tensor(SIGNS)
        below = 2.0 * total(signs * erfc(odd / (2.0 * sqrt(2.0 * unsqueeze(low, -1)))), -1)
        terms = exp(unsqueeze(-RATE * high, -1) * (odd * odd)) / odd
        above = (4.0 / math.pi) * total(signs * terms, -1)
        return of(where(small, below, 1.0 - above), where(small, 1.0 - below, above))

    def _cdf(self, x: Tensor) -> Tensor:
        inside = self._whole_cdf(x, lambda cdf, _: cdf * (1.0 / (1.0 - LOST)))
        return where(x > 0.0, clamp(inside, 0.0, 1.0), 0.0)

    def _survival(self, x: Tensor) -> Tensor:
        inside = self._whole_cdf(x, lambda _, rest: (rest - LOST) * (1.0 / (1.0 - LOST)))
        return where(x > 0.0, clamp(inside, 0.0, 1.0), 1.0)

    def _stated(self, value: float) -> Tensor:
        return self.prototype * 0.0 + value

    def _mean(self) -> Tensor:
        return self._stated(_raw_moments()[0])

    def _variance(self) -> Tensor:
        a, b, _, _ = _raw_moments()
        return self._stated(b - a * a)

    def _skewness(self) -> Tensor:
        a, b, c, _ = _raw_moments()
        return self._stated((c - 3 * a * b + 2 * a**3) / (b - a * a) ** 1.5)

    def _kurtosis(self) -> Tensor:
        a, b, c, d = _raw_moments()
        return self._stated((d - 4 * a * c + 6 * a * a * b - 3 * a**4) / (b - a * a) ** 2 - 3.0)

    def _mode(self) -> Tensor:
        return self._stated(MODE)

    def _entropy(self) -> Tensor:
        return self._stated(ENTROPY)
