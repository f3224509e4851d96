"""Shares of which some are exactly 0 or 1."""

from __future__ import annotations

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.atoms import Mixed, WithAtoms
from probtorch.distributions.beta import Beta
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import log, log1p
from probtorch.tensor import Tensor

__all__ = ["ZeroOneInflatedBeta"]


class ZeroOneInflatedBeta(WithAtoms):
    """Beta numbers, or with some probability exactly 0 or 1.

    Density ``f(x) = gate * (1 - one_given_end) if x == 0 else gate * one_given_end if x == 1 else
    (1 - gate) * x ** (concentration1 - 1) * (1 - x) ** (concentration0 - 1) / B(concentration1,
    concentration0)``.

    Parameters
    ----------
    concentration1, concentration0 : Tensor or number, positive
        Of the beta.
    gate : Tensor or number in [0, 1]
        Probability of an end; brms' zoi.
    one_given_end : Tensor or number in [0, 1]
        Probability that the end is 1; brms' coi.

    Notes
    -----
    A distribution of outcomes, not of parameters: its log density is with respect to lengths inside
    and to counts at both ends.
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    gate: Parameter = param(constraints.unit_interval)
    one_given_end: Parameter = param(constraints.unit_interval, default=0.5)
    support = constraints.unit_interval

    def _inside(self) -> Beta:
        return Beta(self.concentration1, self.concentration0, validate_args=False)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        x = self._inside()._sample(rng, shape)
        end = where(rng.uniform(shape) < self.one_given_end, 1.0, 0.0)
        return where(rng.uniform(shape) < self.gate, end, x)

    def _log_prob(self, x: Tensor) -> Tensor:
        low, high = eq(x, 0.0), eq(x, 1.0)
        end = low | high
        c = self.one_given_end
        at_end = log(self.gate) + where(high, log(c), log1p(-c))
        inside = log1p(-self.gate) + self._inside()._log_prob(where(end, 0.5, x))
        return where(end, at_end, inside)

    def _cdf(self, x: Tensor) -> Tensor:
        at_zero = self.gate * (1.0 - self.one_given_end)
        below = at_zero + (1.0 - self.gate) * self._inside().cdf(x)
        return where(x < 0.0, 0.0, where(x >= 1.0, 1.0, below))

    def _icdf(self, p: Tensor) -> Tensor:
        at_zero = self.gate * (1.0 - self.one_given_end)
        rest = 1.0 - self.gate
        share = (p - at_zero) / where(rest > 0.0, rest, 1.0)
        inside = (share > 0.0) & (share < 1.0)
        x = self._inside().icdf(where(inside, share, 0.5))
        return where(inside, x, where(p <= at_zero, 0.0, 1.0))

    def _mixed(self) -> Mixed:
        one = self.gate * self.one_given_end
        points = ((self.gate - one, 0.0), (one, 1.0))
        return Mixed(points, 1.0 - self.gate, self._inside())
