"""Folded at 0, and rounded: distributions made of another one."""

from __future__ import annotations

import math

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.source import Source
from probtorch.distributions.wrapping import Wrapped, given_or_none, log_between, univariate
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, logaddexp
from probtorch.tensor import Tensor

__all__ = ["FoldedDistribution", "QuantizedDistribution"]


class FoldedDistribution(Wrapped):
    """Distribution of abs(x) for x from a continuous one.

    Density ``f(x) = base(x) + base(-x)``.

    Parameters
    ----------
    base_dist : Distribution
        Of single numbers.
    """

    def __init__(self, base_dist: Distribution, *, validate_args: bool | None = None) -> None:
        self._wrap(base_dist, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The numbers from 0 on."""
        return (
            constraints.independent(constraints.nonnegative, len(self._event_shape))
            if (self._event_shape)
            else constraints.nonnegative
        )

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return absolute(self.base_dist._rsample(rng, shape))

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return absolute(self.base_dist._sample(rng, shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        base = self.base_dist
        return logaddexp(base._density(x, False), base._density(-x, False))

    def _cdf(self, x: Tensor) -> Tensor:
        at = maximum(x, 0.0)
        return where(x >= 0.0, exp(log_between(self.base_dist, -at - 0.0, at)), 0.0)

    def _survival(self, x: Tensor) -> Tensor:
        at = maximum(x, 0.0)
        return self.base_dist.survival(at) + self.base_dist.cdf(-at)


class QuantizedDistribution(Wrapped):
    """Distribution of ceil(x), cut off at whole bounds: what a scale or a sensor shows.

    Probability ``p(x) = F(x) if x == low else 1 - F(x - 1) if x == high else F(x) - F(x - 1)``.

    Parameters
    ----------
    base_dist : Distribution
        Continuous, with a cdf.
    low, high : Tensor or number, whole, optional
        What lies below `low`, or above `high`, is shown as that.
    """

    _parts = ("base_dist", "low", "high")

    def __init__(
        self,
        base_dist: Distribution,
        low: Given | None = None,
        high: Given | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        base = univariate(base_dist, "QuantizedDistribution")
        self.low, self.high = given_or_none(low, "low"), given_or_none(high, "high")
        self._wrap(base, self.low, self.high, validate_args=validate_args)

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Whole numbers between the bounds."""
        if self.high is not None:
            return constraints.integer_interval(
                -math.inf if self.low is None else self.low, self.high
            )
        if self.low is not None:
            return constraints.integer_greater_than(self.low)
        return constraints.integer

    @property
    def has_rsample(self) -> bool:
        """Whether draws carry a gradient: no, they are whole."""
        return False

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        x = self.base_dist._sample(rng, shape).ceil()
        x = x if self.low is None else maximum(x, self.low)
        return x if self.high is None else where(x > self.high, self.high, x)

    def _log_prob(self, x: Tensor) -> Tensor:
        base = self.base_dist
        out = log_between(base, x - 1.0, x)
        if self.low is not None:
            out = where(eq(x, self.low), base.log_cdf(x), out)
        if self.high is not None:
            out = where(eq(x, self.high), base.log_survival(x - 1.0), out)
        if self.low is not None and self.high is not None:
            out = where(eq(self.low, self.high), 0.0, out)
        return out

    def _cdf(self, x: Tensor) -> Tensor:
        k = x.floor()
        p = self.base_dist.cdf(k)
        p = p if self.high is None else where(k >= self.high, 1.0, p)
        return p if self.low is None else where(k < self.low, 0.0, p)


explain_calls(globals())
