"""Censored distributions: values beyond a bound are at the bound, or are told to be bounds.

`Censored` moves what lies beyond the bounds onto them; the censored distributions of survival
analysis are told which values are bounds. truncation.py renormalises what lies between bounds.
"""

from __future__ import annotations

from probtorch.core.casting import cast
from probtorch.core.dtype import bool_
from probtorch.core.making import as_tensor
from probtorch.core.signatures import also_called, explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.atoms import Mixed, WithAtoms
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.source import Source
from probtorch.distributions.truncation import TruncatedDistribution, at_most
from probtorch.distributions.validation import check_parameter
from probtorch.distributions.wrapping import (
    Wrapped,
    check_whole,
    given_or_none,
    log_between,
    univariate,
)
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.pieces import stack
from probtorch.ops.special import log1mexp
from probtorch.tensor import Tensor

__all__ = [
    "Censored",
    "IntervalCensoredDistribution",
    "LeftCensoredDistribution",
    "RightCensoredDistribution",
]


class Censored(WithAtoms, Wrapped):
    """A univariate distribution whose values beyond the bounds are replaced by the bounds.

    Density ``f(x) = F(low) if x == low else 1 - F(high) if x == high else base(x)``.

    Parameters
    ----------
    base_dist : Distribution
        With a cdf; continuous or of whole numbers.
    low, high : Tensor or number, optional
        Bounds, whole ones for counts; at each the log density is the log of the probability of
        reaching it, which is 0 where the two are equal.
    """

    _parts = ("base_dist", "low", "high")

    @also_called(None, lower="low", upper="high")
    def __init__(
        self,
        base_dist: Distribution,
        low: Given | None = None,
        high: Given | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        base = univariate(base_dist, "Censored")
        self.low, self.high = given_or_none(low, "low"), given_or_none(high, "high")
        self._wrap(base, self.low, self.high, validate_args=validate_args)
        check_whole(self, base)
        if self._validate_args and base.is_discrete:
            for name, bound in (("low", self.low), ("high", self.high)):
                if bound is not None:
                    check_parameter("Censored", name, bound, constraints.integer, self)

    def _mixed(self) -> Mixed | None:
        if self.is_discrete:
            return None
        base, points, weight = self.base_dist, [], self._as_value(1.0)
        if self.low is not None:
            points.append((base.cdf(self.low), self.low))
        if self.high is not None:
            points.append((base.survival(self.high), self.high))
        for probability, _ in points:
            weight = weight - probability
        high = self.high
        if self.low is not None and high is not None:
            # Bounds that meet are one point, with nothing between; the rest has a bound of its own
            # there, for slopes that are numbers.
            one = self.low == high
            points = [
                (where(one, 1.0, points[0][0]), self.low),
                (where(one, 0.0, points[1][0]), high),
            ]
            weight, high = where(one, 0.0, weight), where(one, high + 1.0, high)
        return Mixed(tuple(points), weight, TruncatedDistribution(base, self.low, high))

    @constraints.dependent_property
    def support(self) -> Constraint:
        """Values between the bounds."""
        base, low, high = self.base_dist.support, self.low, self.high
        if base.is_discrete and (low is not None or high is not None):
            return TruncatedDistribution(self.base_dist, low, high).support
        if low is not None and high is not None:
            return constraints.interval(low, high)
        if low is not None:
            return constraints.greater_than_eq(low)
        return base if high is None else constraints.less_than_eq(high)

    def _clipped(self, x: Tensor) -> Tensor:
        x = x if self.low is None else maximum(x, self.low)
        return at_most(x, self.high)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._clipped(self.base_dist._rsample(rng, shape))

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._clipped(self.base_dist._sample(rng, shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        base = self.base_dist
        inner = base.support.interior(x)
        between = x
        for bound in (self.low, self.high):
            between = between if bound is None else where(x == bound, inner, between)
        out = base._to_batch(base._density(between, False))
        if self.low is not None:
            out = where(x <= self.low, base.log_cdf(self.low), out)
        if self.high is not None:
            # Of a count, the bound itself is part of what reaches it.
            last = self.high - 1.0 if base.is_discrete else self.high
            out = where(x >= self.high, base.log_survival(last), out)
            if self.low is not None:
                out = where(self.low == self.high, 0.0, out)
        return out

    def _cdf(self, x: Tensor) -> Tensor:
        p = self.base_dist.cdf(x)
        p = p if self.high is None else where(x >= self.high, 1.0, p)
        return p if self.low is None else where(x < self.low, 0.0, p)

    def _survival(self, x: Tensor) -> Tensor:
        p = self.base_dist.survival(x)
        p = p if self.high is None else where(x >= self.high, 0.0, p)
        return p if self.low is None else where(x < self.low, 1.0, p)

    def _icdf(self, p: Tensor) -> Tensor:
        return self._clipped(self.base_dist.icdf(p))


class LeftCensoredDistribution(Wrapped):
    """Values of which some are only known to lie at or below what was recorded.

    Density ``f(x) = F(x) if censored else base(x)``.

    Parameters
    ----------
    base_dist : Distribution
        With a cdf.
    censored : Tensor of bool
        Where the value is an upper bound: its log density is the log cdf.
    """

    _parts = ("base_dist", "censored")

    def __init__(
        self,
        base_dist: Distribution,
        censored: Given = False,
        *,
        validate_args: bool | None = None,
    ) -> None:
        base = univariate(base_dist, type(self).__name__)
        self.censored = _mask(censored)
        self._wrap(base, self.censored, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """That of the base."""
        return self.base_dist.support

    def _tail(self, x: Tensor) -> Tensor:
        return self.base_dist.log_cdf(x)

    def _log_prob(self, x: Tensor) -> Tensor:
        # What is not used at a value must not have a slope there.
        base, inner = self.base_dist, self.base_dist.support.interior(x)
        tail = self._tail(where(self.censored, x, inner))
        return where(self.censored, tail, base._density(where(self.censored, inner, x), True))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.base_dist._rsample(rng, shape)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self.base_dist._sample(rng, shape)

    def _cdf(self, x: Tensor) -> Tensor:
        return self.base_dist.cdf(x)

    # What was not recorded has the base's distribution.

    def _survival(self, x: Tensor) -> Tensor:
        return self.base_dist.survival(x)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.base_dist.icdf(p)

    def _mean(self) -> Tensor:
        return self.base_dist.mean

    def _variance(self) -> Tensor:
        return self.base_dist.variance

    def _mode(self) -> Tensor:
        return self.base_dist.mode

    def _skewness(self) -> Tensor:
        return self.base_dist.skewness

    def _kurtosis(self) -> Tensor:
        return self.base_dist.kurtosis

    def _entropy(self) -> Tensor:
        return self.base_dist.entropy()


class RightCensoredDistribution(LeftCensoredDistribution):
    """Values of which some are only known to lie above what was recorded, as in survival analysis.

    Density ``f(x) = 1 - F(x) if censored else base(x)``.

    Parameters
    ----------
    base_dist : Distribution
        With a cdf.
    censored : Tensor of bool
        Where the value is a lower bound: its log density is the log of the survival.
    """

    def __init__(
        self,
        base_dist: Distribution,
        censored: Given = False,
        *,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(base_dist, censored, validate_args=validate_args)

    def _tail(self, x: Tensor) -> Tensor:
        return self.base_dist.log_survival(x)


class IntervalCensoredDistribution(Wrapped):
    """Values that are only known to lie between two recorded ones, or beyond one of them.

    Density ``f(x) = F(x[1]) if left_censored else 1 - F(x[0]) if right_censored else F(x[1]) -
    F(x[0])``.

    Parameters
    ----------
    base_dist : Distribution
        With a cdf.
    left_censored, right_censored : Tensor of bool
        Where only the upper bound is known, and where only the lower one; where both are True the
        value is known to lie outside of the two.

    Notes
    -----
    A value has two numbers in its last dim, the lower and the upper bound. Draws of `sample` are
    both the same exact value.
    """

    _parts = ("base_dist", "left_censored", "right_censored")

    def __init__(
        self,
        base_dist: Distribution,
        left_censored: Given = False,
        right_censored: Given = False,
        *,
        validate_args: bool | None = None,
    ) -> None:
        base = univariate(base_dist, "IntervalCensoredDistribution")
        self.left_censored, self.right_censored = _mask(left_censored), _mask(right_censored)
        self._wrap(base, self.left_censored, self.right_censored, validate_args=validate_args)
        self._event_shape = (2,)

    @constraints.dependent_property(event_dim=1, is_discrete=False)
    def support(self) -> Constraint:
        """Pairs of numbers; infinite ones too."""
        return constraints.real_vector

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        x = self.base_dist._sample(rng, shape[:-1])
        return stack([x, x], -1)

    @property
    def has_rsample(self) -> bool:
        """Whether draws carry a gradient: no."""
        return False

    def _log_prob(self, value: Tensor) -> Tensor:
        base, inner = self.base_dist, self.base_dist.support.interior(value)
        low, high = value[..., 0], value[..., 1]
        below, above = self.left_censored, self.right_censored
        outside = below & above
        low_used, high_used = ~below | above, ~above | below
        low, high = where(low_used, low, inner), where(high_used, high, inner)
        between = log_between(base, low, where(low_used & high_used, high, low + 1.0))
        either = log1mexp(-where(outside, between, -1.0))
        one_sided = where(below, base.log_cdf(high), base.log_survival(low))
        return where(outside, either, where(below | above, one_sided, between))


def _mask(censored: Given) -> Tensor:
    return cast(as_tensor(censored, "censored"), bool_)


explain_calls(globals())
