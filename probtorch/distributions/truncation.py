"""Univariate distributions between bounds: truncated ones, which are renormalised.

`TruncatedDistribution` renormalises what lies between the bounds; censoring.py has those that keep
what lies beyond. Masses are differences of logarithms of the cdf or of the survival, whichever is
the smaller, so that they keep their digits in both tails where the base does.
"""

from __future__ import annotations

import math

from probtorch.core.signatures import also_called, explain_calls
from probtorch.core.told import is_constant
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.heavy_tailed import Cauchy
from probtorch.distributions.quantiles import quantile
from probtorch.distributions.source import Source
from probtorch.distributions.wrapping import (
    Wrapped,
    check_whole,
    given_or_none,
    log_between,
    univariate,
)
from probtorch.ops.arithmetic import clamp, maximum, minimum, where
from probtorch.ops.control import cond, while_loop
from probtorch.ops.exponentials import exp
from probtorch.ops.reduction import any as some
from probtorch.tensor import Tensor

__all__ = [
    "LeftTruncatedDistribution",
    "LeftTruncatedGamma",
    "RightTruncatedDistribution",
    "RightTruncatedGamma",
    "Truncated",
    "TruncatedCauchy",
    "TruncatedDistribution",
    "TruncatedGamma",
    "TwoSidedTruncatedDistribution",
    "TwoSidedTruncatedGamma",
]

# So many counts from a bound on are tried one by one; a search on a cdf takes about as long.
FEW = 128


class TruncatedDistribution(Wrapped):
    """A univariate distribution restricted to [low, high] and renormalised.

    Density ``f(x) = base(x) / (F(high) - F(low))``.

    F is the cdf of `base_dist`; of counts, that below `low`.

    Parameters
    ----------
    base_dist : Distribution
        With a cdf; continuous or of whole numbers.
    low, high : Tensor or number, optional
        Bounds, both included; None for no bound of its own. Of counts they are kept as the whole
        numbers between them.

    Notes
    -----
    Quantiles and draws are searched for on the cdf between the bounds, so they do not lose the tail
    that the bounds cut out, however far out it is; counts are drawn by adding up masses from the
    bounds on where most of them lie there. For a normal base `TruncatedNormal` has a closed form.
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
        base = univariate(base_dist, "TruncatedDistribution")
        self.low = _unless_nothing(given_or_none(low, "low"), -math.inf, base)
        self.high = _unless_nothing(given_or_none(high, "high"), math.inf, base)
        if base.is_discrete:
            # No count lies between a bound and the next whole number inside.
            self.low = None if self.low is None else self.low.ceil()
            self.high = None if self.high is None else self.high.floor()
        self._wrap(base, self.low, self.high, validate_args=validate_args)
        check_whole(self, base)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The part of the base's support between the bounds."""
        base, low, high = self.base_dist.support, self.low, self.high
        if low is None and high is None:
            return base
        least, most = getattr(base, "lower_bound", None), getattr(base, "upper_bound", None)
        low = least if low is None else low if least is None else maximum(low, least)
        high = most if high is None else high if most is None else minimum(high, most)
        if base.is_discrete:
            if high is not None:
                return constraints.integer_interval(-math.inf if low is None else low, high)
            assert low is not None  # one of the two bounds is there
            return constraints.integer_greater_than(low)
        if high is None:
            assert low is not None  # one of the two bounds is there
            return constraints.greater_than_eq(low)
        return constraints.less_than_eq(high) if low is None else constraints.interval(low, high)

    @property
    def has_rsample(self) -> bool:
        """Whether values are continuous: then draws are differentiable in parameters and bounds."""
        return not self.is_discrete

    def _below(self) -> Tensor | None:
        """Return the point whose cdf is lost at the lower end."""
        if self.low is None or not self.is_discrete:
            return self.low
        return self.low - 1.0

    def _log_size(self) -> Tensor | float:
        low = self._below()
        if low is None and self.high is None:
            return 0.0
        return log_between(self.base_dist, low, self.high)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.base_dist._to_batch(self.base_dist._density(x, True)) - self._log_size()

    def _inside(self, x: Tensor) -> Tensor:
        return clamp(x, self._below(), self.high) if self.low is not None else at_most(x, self.high)

    def _cdf(self, x: Tensor) -> Tensor:
        low, x = self._below(), self._inside(x)
        if low is None:
            return exp(self.base_dist.log_cdf(x) - self._log_size())
        started = x > low
        at = where(started, x, low + 1.0)
        return where(started, exp(log_between(self.base_dist, low, at) - self._log_size()), 0.0)

    def _survival(self, x: Tensor) -> Tensor:
        x = self._inside(x)
        if self.high is None:
            return exp(self.base_dist.log_survival(x) - self._log_size())
        going = x < self.high
        at = where(going, x, self.high - 1.0)
        return where(going, exp(log_between(self.base_dist, at, self.high) - self._log_size()), 0.0)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        """Counts from the bounds on, as far as few do; others by a search on the cdf."""
        if not self.is_discrete:
            return self._rsample(rng, shape)
        p = rng.uniform(shape)
        x, left = p * math.nan, p >= 0.0
        for bound, share, sign in ((self.low, p, 1.0), (self.high, 1.0 - p, -1.0)):
            if bound is not None:
                steps, found = self._steps(share, bound, sign)
                x = where(left & found, bound + sign * steps, x)
                left = left & ~found
        if is_constant(left):
            return where(left, quantile(self, p), x) if left.array.any() else x
        return cond(
            some(left), lambda p, x: where(left, quantile(self, p), x), lambda p, x: x, p, x
        )

    def _steps(self, share: Tensor, bound: Tensor, sign: float) -> tuple[Tensor, Tensor]:
        """Return how many counts from a bound inwards have less mass than `share`; and if few do.

        The masses are added up one by one, which far in a tail is the whole distribution.
        """
        zero = share * 0.0
        size, one = self._log_size(), zero.new_tensor(1.0)

        def going(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            _, seen, count = state
            return some(seen < share) & (count < FEW)

        def add(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            steps, seen, count = state
            k = bound + sign * count
            seen = seen + exp(self.base_dist._density(k, False) - size)
            return where(seen < share, steps + 1.0, steps), seen, count + 1.0

        steps, seen, _ = while_loop(going, add, (zero, zero, one * 0.0))
        return steps, seen >= share

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._inside(quantile(self, rng.uniform(shape)))


def _unless_nothing(bound: Tensor | None, infinity: float, base: Distribution) -> Tensor | None:
    """A bound, None where it bounds nothing and adds no batch dim."""
    if bound is None or bound.array.shape not in ((), tuple(base.batch_shape)):
        return bound
    if not is_constant(bound):
        return bound
    nothing = (bound.array == infinity).all()
    end = base.support.ends()[0 if infinity < 0.0 else 1]
    if isinstance(end, (int, float)) and not (base.is_discrete or base._mass_on_ends):
        # A bound on the end of what is there anyway, where slopes of a cdf may be no numbers.
        past = bound.array <= end if infinity < 0.0 else bound.array >= end
        nothing = nothing or past.all()
    return None if nothing else bound


def at_most(x: Tensor, high: Tensor | None) -> Tensor:
    return x if high is None else minimum(x, high)


@also_called("Truncated", low="lower", high="upper")
def Truncated(
    dist: Distribution,
    lower: Given | None = None,
    upper: Given | None = None,
    *,
    validate_args: bool | None = None,
) -> TruncatedDistribution:
    """Return ``TruncatedDistribution(dist, lower, upper)``: PyMC's name for it.

    Parameters
    ----------
    dist : Distribution
    lower, upper : Tensor or number, optional
    validate_args : bool, optional
    """
    return TruncatedDistribution(dist, lower, upper, validate_args=validate_args)


def LeftTruncatedDistribution(
    base_dist: Distribution, low: Given = 0.0, *, validate_args: bool | None = None
) -> TruncatedDistribution:
    """Return a distribution restricted to values from `low` on: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    low : Tensor or number
    validate_args : bool, optional
    """
    return TruncatedDistribution(base_dist, low, validate_args=validate_args)


def RightTruncatedDistribution(
    base_dist: Distribution, high: Given = 0.0, *, validate_args: bool | None = None
) -> TruncatedDistribution:
    """Return a distribution restricted to values up to `high`: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    high : Tensor or number
    validate_args : bool, optional
    """
    return TruncatedDistribution(base_dist, None, high, validate_args=validate_args)


def TwoSidedTruncatedDistribution(
    base_dist: Distribution,
    low: Given = 0.0,
    high: Given = 1.0,
    *,
    validate_args: bool | None = None,
) -> TruncatedDistribution:
    """Return a distribution restricted to [low, high]: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    low, high : Tensor or number
    validate_args : bool, optional
    """
    return TruncatedDistribution(base_dist, low, high, validate_args=validate_args)


def TruncatedCauchy(
    loc: Given = 0.0,
    scale: Given = 1.0,
    *,
    low: Given | None = None,
    high: Given | None = None,
    validate_args: bool | None = None,
) -> TruncatedDistribution:
    """Return a Cauchy distribution restricted to [low, high].

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    low, high : Tensor or number, optional
    validate_args : bool, optional
    """
    base = Cauchy(loc, scale, validate_args=validate_args)
    return TruncatedDistribution(base, low, high, validate_args=validate_args)


def TruncatedGamma(
    concentration: Given = 1.0,
    rate: Given = 1.0,
    *,
    low: Given | None = None,
    high: Given | None = None,
    validate_args: bool | None = None,
) -> TruncatedDistribution:
    """Return a gamma distribution restricted to [low, high].

    Parameters
    ----------
    concentration : Tensor or number, positive
    rate : Tensor or number, positive
    low, high : Tensor or number, optional
    validate_args : bool, optional
    """
    base = Gamma(concentration, rate, validate_args=validate_args)
    return TruncatedDistribution(base, low, high, validate_args=validate_args)


# NumPyro has classes of their own for gamma distributions.
LeftTruncatedGamma = LeftTruncatedDistribution
RightTruncatedGamma = RightTruncatedDistribution
TwoSidedTruncatedGamma = TwoSidedTruncatedDistribution

explain_calls(globals())
