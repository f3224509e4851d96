"""Extremes and what exceeds a threshold: generalised extreme value and Pareto distributions.

All are ``loc + scale * expm1(concentration * t) / concentration`` of a simple variable t (Gumbel,
exponential), which is t itself at a concentration of 0. Near 0 series stand for the quotients.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import finfo, float64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.facts import FACTS
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.location_scale import EULER_GAMMA, ZETA_3
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.registry import biject_to, transform_to
from probtorch.distributions.transforms.scalar import ExpTransform
from probtorch.distributions.transforms.transform import ComposeTransform, Transform
from probtorch.distributions.transforms.vector import OrderedTransform, PositiveOrderedTransform
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, minimum, where
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.exponentials import pow as power
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import digamma, lgamma, log1mexp
from probtorch.tensor import Tensor

__all__ = [
    "ExtendedGeneralizedPareto",
    "GeneralizedExtremeValue",
    "GeneralizedPareto",
    "OrderedReach",
    "Reach",
]

# Below it series of five terms are exact to rounding.
NEAR = 1e-3
# Above it 1 is nothing beside a number.
FAR = 1e17


def stretched(c: Tensor, t: Tensor) -> Tensor:
    """expm1(c t) / c, and t for c = 0."""
    y = c * t
    near = absolute(y) < NEAR
    y_near, apart = where(near, y, 0.0), where(near, 1.0, c)
    series = 1.0 + y_near * (1 / 2 + y_near * (1 / 6 + y_near * (1 / 24 + y_near * (1 / 120))))
    return where(near, t * series, expm1(where(near, 0.0, y)) / apart)


def shrunk(c: Tensor, z: Tensor) -> Tensor:
    """log1p(c z) / c, the inverse of `stretched`, and z for c = 0; infinite at the far end."""
    y = c * z
    near, far = absolute(y) < NEAR, y > FAR
    y_near, apart = where(near, y, 0.0), where(near, 1.0, c)
    tail = 1 / 3 - y_near * (1 / 4 - y_near * (1 / 5 - y_near * (1 / 6)))
    series = 1.0 - y_near * (1 / 2 - y_near * tail)
    usual = log1p(maximum(where(near | far, 0.0, y), -1.0))
    # The product of large factors may be infinite.
    large = log(absolute(where(far, c, 1.0))) + log(absolute(where(far, z, 1.0)))
    return where(near, z * series, where(far, large, usual) / apart)


class Reach(Constraint):
    """Where 1 + concentration * (x - loc) / scale is positive; with a floor, from `loc` on."""

    def __init__(self, loc: Tensor, scale: Tensor, concentration: Tensor, floor: bool) -> None:
        self.loc, self.scale, self.concentration = loc, scale, concentration
        self.floor = floor
        if floor:
            self.lower_bound = loc

    def check(self, value: Tensor) -> Tensor:
        parts = (cast(x, float64) for x in (value, self.loc, self.scale, self.concentration))
        x, loc, scale, c = parts
        y = c * ((x - loc) / scale)
        # The end of a bounded tail belongs to it where there is mass next to it.
        return (y >= -1.0) & (value >= self.loc) if self.floor else y > -1.0

    def interior(self, value: Tensor) -> float | Tensor:
        # Above the floor, where a density may have a pole.
        return self.loc + self.scale * stretched(self.concentration, self.concentration * 0.0 + 1.0)

    def ends(self) -> tuple[Tensor | None, Tensor | None]:
        """The floor, and where the tail of a row is bounded its end, else an infinity."""
        c = self.concentration
        end = self.loc - self.scale / where(c == 0.0, 1.0, c)
        low = self.loc if self.floor else where(c > 0.0, end, -math.inf)
        return low, where(c < 0.0, end, math.inf)


class StretchTransform(Transform):
    """The map t -> loc + scale * expm1(concentration * t) / concentration."""

    domain: Constraint = constraints.real

    def __init__(self, reach: Reach) -> None:
        self.reach = self.codomain = reach

    @property
    def sign(self) -> float | Tensor:
        """The map increases."""
        return 1.0

    def _call(self, x: Tensor) -> Tensor:
        r = self.reach
        return r.loc + r.scale * stretched(r.concentration, x)

    def _inverse(self, y: Tensor) -> Tensor:
        r = self.reach
        return shrunk(r.concentration, (y - r.loc) / r.scale)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Log of the slope."""
        return log(self.reach.scale) + self.reach.concentration * x


@biject_to.register(Reach)
@transform_to.register(Reach)
def _stretch(constraint: Reach) -> Transform:
    whole = StretchTransform(constraint)
    return ComposeTransform([ExpTransform(), whole]) if constraint.floor else whole


class OrderedReach(constraints.OrderedVector):
    """Strictly increasing vectors of numbers within a reach, whose parameters have a last dim."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach

    def check(self, value: Tensor) -> Tensor:
        return super().check(value) & every(self.reach.check(value), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        r, size = self.reach, value.array.shape[-1]
        steps = value.new_tensor(np.arange(1.0, size + 1.0))
        return r.loc + r.scale * stretched(r.concentration, steps)


class OrderedStretchTransform(StretchTransform):
    """`StretchTransform` of vectors that increase."""

    domain = constraints.ordered_vector

    def __init__(self, ordered: OrderedReach) -> None:
        super().__init__(ordered.reach)
        self.codomain = ordered

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum of the logs of the slopes."""
        return total(super().log_abs_det_jacobian(x, y), -1)


@biject_to.register(OrderedReach)
@transform_to.register(OrderedReach)
def _ordered_stretch(constraint: OrderedReach) -> Transform:
    floor = constraint.reach.floor
    first = PositiveOrderedTransform() if floor else OrderedTransform()
    return ComposeTransform([first, OrderedStretchTransform(constraint)])


class Stretched(Distribution):
    """What the two have in common: their supports and their moments in terms of gammas."""

    loc: Parameter
    scale: Parameter
    concentration: Parameter
    _floor = False

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """Values that the tail reaches: bounded on one side unless the concentration is 0."""
        return Reach(self.loc, self.scale, self.concentration, self._floor)

    def _place(self, t: Tensor) -> Tensor:
        return self.loc + self.scale * stretched(self.concentration, t)

    def _drawn(self, rng: Source, t: Tensor) -> Tensor:
        """Return the place of t, off the end to which it may have rounded."""
        x = rng.finite(self._place(t))
        wide = (cast(v.detach(), float64) for v in (x, self.loc, self.scale, self.concentration))
        at, loc, scale, c = wide
        past = c * ((at - loc) / scale) <= -1.0
        step = 2.0 * float(finfo(rng.dtype).eps) * (absolute(at) + absolute(at - loc))
        back = cast(where(c < 0.0, -step, step), rng.dtype)
        return where(past, x + back, x)

    def _simple(self, x: Tensor) -> Tensor:
        """Return t, infinite beyond the ends of the support."""
        return shrunk(self.concentration, (x - self.loc) / self.scale)


class GeneralizedPareto(Stretched):
    """What exceeds a high threshold: exponential for a concentration of 0, else a power law.

    Density ``f(x) = (1 + concentration * z) ** (-1 / concentration - 1) / scale`` with ``z = (x -
    loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
        Lower bound.
    scale : Tensor or number, positive
    concentration : Tensor or number
        Positive for heavy tails; negative for values up to ``loc - scale / concentration``.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    concentration: Parameter = param(constraints.real)
    _floor = True
    _flat_ends = False, True

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._drawn(rng, rng.exponential(shape))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        return -(1.0 + self.concentration) * self._simple(x) - log(self.scale)

    def _log_survival(self, x: Tensor) -> Tensor:
        return -self._simple(maximum(x, self.loc))

    def _cdf(self, x: Tensor) -> Tensor:
        return -expm1(self._log_survival(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._place(-log1p(-p))

    def _entropy(self) -> Tensor:
        return log(self.scale) + self.concentration + 1.0

    def _mean(self) -> Tensor:
        c = minimum(self.concentration, 0.9)
        return where(self.concentration < 1.0, self.loc + self.scale / (1.0 - c), math.inf)

    def _mean_of(self, bound: float) -> Tensor:
        return where(self.concentration < bound, self.concentration, 0.0)

    def _variance(self) -> Tensor:
        c = self._mean_of(0.5)
        square = self.scale / (1.0 - c)
        spread = square * square / (1.0 - 2.0 * c)
        return where(self.concentration < 0.5, spread, math.inf)

    def _mode(self) -> Tensor:
        # Below -1 the density grows towards the upper end.
        low = self.concentration < -1.0
        c = where(low, self.concentration, -1.0)
        return where(low, self.loc - self.scale / c, self.loc)

    def _skewness(self) -> Tensor:
        c = self._mean_of(1 / 3)
        value = 2.0 * (1.0 + c) * power(1.0 - 2.0 * c, 0.5) / (1.0 - 3.0 * c)
        return where(self.concentration < 1 / 3, value, math.inf)

    def _kurtosis(self) -> Tensor:
        c = self._mean_of(0.25)
        top = 3.0 * (1.0 - 2.0 * c) * (2.0 * c * c + c + 3.0)
        value = top / ((1.0 - 3.0 * c) * (1.0 - 4.0 * c)) - 3.0
        return where(self.concentration < 0.25, value, math.inf)


class ExtendedGeneralizedPareto(Stretched):
    """Amounts such as of rain: a Pareto tail, and a power law near the lower bound.

    The cdf is that of `GeneralizedPareto` to the power `kappa`: the largest of `kappa` draws of it,
    where that is a whole number. Density ``f(x) = kappa * (1 - t ** (-1 / concentration)) ** (kappa
    - 1) * t ** (-1 / concentration - 1) / scale`` with ``t = 1 + concentration * (x - loc) /
    scale``.

    Parameters
    ----------
    loc : Tensor or number
        Lower bound.
    scale : Tensor or number, positive
    concentration : Tensor or number
        Of the tail, as for `GeneralizedPareto`.
    kappa : Tensor or number, positive
        Power of the cdf: near `loc` the density goes as ``(x - loc) ** (kappa - 1)``.

    References
    ----------
    [naveau2016]_, the first of whose families it is.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    concentration: Parameter = param(constraints.real)
    kappa: Parameter = param(constraints.positive, default=1.0)
    _floor = True
    _flat_ends = True, True

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = self._drawn(rng, -log1mexp(rng.exponential(shape) / self.kappa))
        # What has rounded to the bound would be at the pole of a kappa below 1.
        info = finfo(rng.dtype)
        return where(x > self.loc, x, self.loc + absolute(self.loc) * info.eps + info.tiny)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        t, extra = self._simple(x), self.kappa - 1.0
        # At the lower bound the logarithm is -inf, which no power of 0 sees.
        power_of = where(extra == 0.0, 0.0, extra * log1mexp(t))
        return log(self.kappa) + power_of - (1.0 + self.concentration) * t - log(self.scale)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return self.kappa * log1mexp(maximum(self._simple(maximum(x, self.loc)), 0.0))

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    def _survival(self, x: Tensor) -> Tensor:
        return -expm1(self._log_cdf(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._place(-log1mexp(-log(p) / self.kappa))

    def _mode(self) -> Tensor:
        # Below -1 the density grows towards the upper end.
        c, k = self.concentration, self.kappa
        low, hill = c < -1.0, (c >= -1.0) & (k > 1.0)
        top = log(where(hill, k + c, 1.0) / where(hill, 1.0 + c, 1.0))
        inside = where(hill, self.loc + self.scale * stretched(c, top), self.loc)
        return where(low, self.loc - self.scale / where(low, c, -1.0), inside)

    def _entropy(self) -> Tensor:
        # log H is an exponential number over -kappa, and t the largest of kappa exponential ones.
        k = self.kappa
        height = digamma(k + 1.0) + EULER_GAMMA
        return log(self.scale) - log(k) + (k - 1.0) / k + (1.0 + self.concentration) * height

    def _raw(self, orders: int) -> tuple[Tensor, list[Tensor]]:
        """Return where moments have closed forms, and means of ``exp(i c t)`` for i from 1."""
        # In double: they are differences of numbers that grow with kappa.
        c, one = cast(self.concentration, float64), cast(self.kappa, float64) + 1.0
        # Near 0 they are quotients of differences.
        known = (absolute(c) > 0.02 * orders) & (c * orders < 1.0)
        safe = where(known, c, 0.1)
        shifts = [i * safe for i in range(1, orders + 1)]
        return known, [exp(lgamma(one) + lgamma(1.0 - s) - lgamma(one - s)) for s in shifts]

    def _moment_of(self, name: str, orders: int, closed: Tensor, known: Tensor) -> Tensor:
        finite = self.concentration * orders < 1.0
        # Of the others the integral is not used, and may have no slope.
        c = where(known | ~finite, 0.0, self.concentration)
        near = type(self)(self.loc, self.scale, c, self.kappa, validate_args=False)
        found = where(finite, where(known, closed, FACTS[name](near)), math.inf)
        return cast(found, self.concentration.array.dtype)

    def _mean(self) -> Tensor:
        known, (a,) = self._raw(1)
        c = where(known, self.concentration, 0.1)
        return self._moment_of("_mean", 1, self.loc + self.scale * ((a - 1.0) / c), known)

    def _variance(self) -> Tensor:
        known, (a, b) = self._raw(2)
        size = self.scale / where(known, self.concentration, 0.1)
        return self._moment_of("_variance", 2, size * size * (b - a * a), known)

    def _skewness(self) -> Tensor:
        known, (a, b, c) = self._raw(3)
        value = (c - 3.0 * a * b + 2.0 * a**3) / (b - a * a) ** 1.5
        value = where(self.concentration < 0.0, -value, value)
        return self._moment_of("_skewness", 3, value, known)

    def _kurtosis(self) -> Tensor:
        known, (a, b, c, d) = self._raw(4)
        value = (d - 4.0 * a * c + 6.0 * a * a * b - 3.0 * a**4) / (b - a * a) ** 2 - 3.0
        return self._moment_of("_kurtosis", 4, value, known)


class GeneralizedExtremeValue(Stretched):
    """Largest of many draws: Gumbel for a concentration of 0, Frechet above, Weibull below.

    Density ``f(x) = t ** (concentration + 1) * exp(-t) / scale`` with ``t = (1 + concentration * (x
    - loc) / scale) ** (-1 / concentration)``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    concentration : Tensor or number
        Positive for heavy tails; SciPy's has the other sign.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    concentration: Parameter = param(constraints.real)
    _flat_ends = True, True

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._drawn(rng, -log(rng.exponential(shape)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        t = self._simple(x)
        return -(1.0 + self.concentration) * t - exp(-t) - log(self.scale)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return -exp(-self._simple(x))

    def _cdf(self, x: Tensor) -> Tensor:
        return exp(self._log_cdf(x))

    def _survival(self, x: Tensor) -> Tensor:
        return -expm1(self._log_cdf(x))

    def _icdf(self, p: Tensor) -> Tensor:
        return self._place(-log(-log(p)))

    def _entropy(self) -> Tensor:
        return log(self.scale) + (1.0 + EULER_GAMMA) + EULER_GAMMA * self.concentration

    def _gammas(self, orders: int) -> tuple[Tensor, list[Tensor]]:
        """Return where moments have closed forms, and gamma(1 - k concentration) for k from 1."""
        c = self.concentration
        known = (absolute(c) > 0.05) & (c * orders < 1.0)
        safe = where(known, c, 0.1)
        return known, [exp(lgamma(1.0 - k * safe)) for k in range(1, orders + 1)]

    def _skewness(self) -> Tensor:
        # Near 0 the closed form is a quotient of differences.
        known, (a, b, c) = self._gammas(3)
        value = (c - 3.0 * a * b + 2.0 * a**3) / (b - a * a) ** 1.5
        value = where(self.concentration < 0.0, -value, value)
        value = where(known, value, FACTS["_skewness"](self))
        return where(self.concentration * 3.0 < 1.0, value, math.nan)

    def _kurtosis(self) -> Tensor:
        known, (a, b, c, d) = self._gammas(4)
        value = (d - 4.0 * a * c + 6.0 * a * a * b - 3.0 * a**4) / (b - a * a) ** 2 - 3.0
        value = where(known, value, FACTS["_kurtosis"](self))
        none = where(self.concentration * 2.0 < 1.0, math.inf, math.nan)
        return where(self.concentration * 4.0 < 1.0, value, none)

    def _mean(self) -> Tensor:
        c = self.concentration
        finite = c < 1.0
        inside = where(finite, c, 0.5)
        near = absolute(inside) < 1e-5
        # (gamma(1 - c) - 1) / c, and its expansion
        apart = where(near, 0.5, inside)
        first = EULER_GAMMA + inside * (0.5 * EULER_GAMMA**2 + math.pi**2 / 12.0)
        shift = where(near, first, expm1(lgamma(1.0 - apart)) / apart)
        return where(finite, self.loc + self.scale * shift, math.inf)

    def _variance(self) -> Tensor:
        c = self.concentration
        finite = c < 0.5
        inside = where(finite, c, 0.25)
        near = absolute(inside) < 1e-5
        apart = where(near, 0.25, inside)
        one = lgamma(1.0 - apart)
        spread = exp(2.0 * one) * expm1(lgamma(1.0 - 2.0 * apart) - 2.0 * one) / (apart * apart)
        limit = math.pi**2 / 6.0 + inside * (math.pi**2 / 3.0 * EULER_GAMMA + 2.0 * ZETA_3)
        size = where(near, limit, spread)
        return where(finite, self.scale * self.scale * size, math.inf)

    def _mode(self) -> Tensor:
        # At t = -log(1 + c); without a highest point at the upper end below -1.
        hill = self.concentration > -1.0
        c = where(hill, self.concentration, 0.0)
        top = self.loc + self.scale * stretched(c, -log1p(c))
        return where(hill, top, self.loc - self.scale / where(hill, -1.0, self.concentration))
