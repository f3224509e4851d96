"""Heavy-tailed distributions: Cauchy, half-Cauchy, Student's t."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol
from typing import cast as typed

from probtorch.core.dtype import finfo
from probtorch.core.told import is_constant
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.beta import shares_of_quotient
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.far_tails import log_of_tail
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import minimum, sqrt, where
from probtorch.ops.comparisons import isinf
from probtorch.ops.exponentials import log
from probtorch.ops.special import digamma, lgamma_difference, log1p_square
from probtorch.ops.trigonometry import atan2, tan
from probtorch.tensor import Tensor

__all__ = ["Cauchy", "HalfCauchy", "StudentT"]

LOG_PI = math.log(math.pi)


class Cauchy(Distribution):
    """Cauchy distribution: ratio of two independent normals, without a mean.

    Density ``f(x) = 1 / (pi * scale * (1 + z ** 2))`` with ``z = (x - loc) / scale``.

    Parameters
    ----------
    loc : Tensor or number
        Median.
    scale : Tensor or number, positive
        Half the width of the central half of the mass.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.finite(self.loc + self.scale * tan((rng.uniform(shape) - 0.5) * math.pi))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        square = log1p_square_quotient(x - self.loc, self.scale)
        return -(square + (log(self.scale) + LOG_PI))

    def _cdf(self, x: Tensor) -> Tensor:
        # The angle of (-z, 1) keeps its precision in both tails; 1/2 + atan(z) / pi loses the left
        # one.
        return atan2(self.scale, self.loc - x) * (1.0 / math.pi)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.loc - self.scale / tan(p * math.pi)

    def _entropy(self) -> Tensor:
        return log(self.scale) + math.log(4.0 * math.pi)

    def _mean(self) -> Tensor:
        return self.loc * math.nan

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        return self.scale * math.inf

    def _survival(self, x: Tensor) -> Tensor:
        return atan2(self.scale, x - self.loc) * (1.0 / math.pi)

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_power_tail(self, self._survival, x, x - self.loc, None)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_power_tail(self, self._cdf, x, self.loc - x, None, above=False)


class HalfCauchy(Distribution):
    """Distribution of abs(x) for x Cauchy with median 0.

    Density ``f(x) = 2 / (pi * scale * (1 + (x / scale) ** 2))``.

    Parameters
    ----------
    scale : Tensor or number, positive
        Median.
    """

    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.nonnegative
    _total = True

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.finite(self.scale * absolute(tan((rng.uniform(shape) - 0.5) * math.pi)))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        square = log1p_square_quotient(x, self.scale)
        return -(square + (log(self.scale) + (LOG_PI - math.log(2.0))))

    def _cdf(self, x: Tensor) -> Tensor:
        return where(x > 0.0, atan2(x, self.scale) * (2.0 / math.pi), 0.0)

    def _icdf(self, p: Tensor) -> Tensor:
        return self.scale * tan(p * (0.5 * math.pi))

    def _entropy(self) -> Tensor:
        return log(self.scale) + math.log(2.0 * math.pi)

    def _mean(self) -> Tensor:
        return self.scale * math.inf

    _variance = _mean

    def _mode(self) -> Tensor:
        return self.scale * 0.0

    def _survival(self, x: Tensor) -> Tensor:
        return where(x > 0.0, atan2(self.scale, x) * (2.0 / math.pi), 1.0)

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_power_tail(self, self._survival, x, x, None, sides=1)


class StudentT(Distribution):
    """Student's t distribution, shifted and scaled.

    Density ``f(x) = gamma((df + 1) / 2) / (gamma(df / 2) * sqrt(pi * df) * scale) * (1 + z ** 2 /
    df) ** (-(df + 1) / 2)`` with ``z = (x - loc) / scale``.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom: small for heavy tails, normal in the limit.
    loc : Tensor or number
    scale : Tensor or number, positive
        Not the standard deviation, which is ``scale * sqrt(df / (df - 2))``.
    """

    df: Parameter = param(constraints.positive)
    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # The density divides by scale and sqrt(df), and must find a finite number too.
        x = rng.finite(rng.student_t(self.df, shape), minimum(sqrt(self.df), 1.0))
        return rng.finite(self.loc + self.scale * x)

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # With infinitely many degrees of freedom a normal, as with very many.
        way = x - self.loc
        df = minimum(self.df, 1e200 if way.array.dtype.itemsize == 8 else 1e30)
        constant = log_beta(df) + log(df) * 0.5 + log(self.scale)
        square = log1p_square_quotient(way, self.scale, sqrt(df))
        return square * ((df + 1.0) * -0.5) - constant

    @doubled
    def _cdf(self, x: Tensor) -> Tensor:
        way, df = x - self.loc, self.df
        # Where the quotient by the scale overflows, that of their logarithms does not.
        far = isinf(way / self.scale) & ~isinf(way)
        z = where(far, 0.0, way) / self.scale
        # In the middle from the share of z^2, which the rounding of its complement would hide; at
        # z = 0 that share has a slope only beside 0.
        size = absolute(where(far, way, z + float(finfo(z.array.dtype).tiny) ** 0.5))
        unit = where(far, self.scale, 1.0) * sqrt(df)
        tail = 0.5 * shares_of_quotient(df * 0.0 + 0.5, df * 0.5, size, unit, 2.0)[1]
        return where(way < 0.0, tail, 1.0 - tail)

    def _entropy(self) -> Tensor:
        half = self.df * 0.5
        spread = (half + 0.5) * (digamma(half + 0.5) - digamma(half))
        return spread + log_beta(self.df) + log(self.df) * 0.5 + log(self.scale)

    def _mean(self) -> Tensor:
        return where(self.df > 1.0, self.loc, math.nan)

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        finite = self.df > 2.0
        df = where(finite, self.df, 3.0)
        spread = self.scale * self.scale * (df / (df - 2.0))
        return where(finite, spread, where(self.df > 1.0, math.inf, math.nan))

    def _survival(self, x: Tensor) -> Tensor:
        return self._cdf(2.0 * self.loc - x)

    def _log_survival(self, x: Tensor) -> Tensor:
        return log_power_tail(self, self._survival, x, x - self.loc, self.df)

    def _log_cdf(self, x: Tensor) -> Tensor:
        return log_power_tail(self, self._cdf, x, self.loc - x, self.df, above=False)

    def _skewness(self) -> Tensor:
        return where(self.df > 3.0, 0.0, math.nan)

    def _kurtosis(self) -> Tensor:
        finite = self.df > 4.0
        value = 6.0 / (where(finite, self.df, 5.0) - 4.0)
        return where(finite, value, where(self.df > 2.0, math.inf, math.nan))


def log_beta(df: Tensor) -> Tensor:
    """Log of B(df / 2, 1 / 2): the difference of two lgammas that cancel for large df."""
    return 0.5 * LOG_PI - lgamma_difference(df * 0.5, 0.5)


def log1p_square_quotient(way: Tensor, scale: Tensor, root: Tensor | None = None) -> Tensor:
    """Return log(1 + (way / scale / root) ** 2), also where the quotient by the scale overflows."""
    inverse = None if root is None else 1.0 / root
    # Where nothing overflows: by a scale of 2 or more no quotient does.
    far = absolute(way) > minimum(scale, 2.0) * (0.5 * float(finfo(way.array.dtype).max))
    if is_constant(far) and not far.array.any():
        z = way / scale
        return log1p_square(z if inverse is None else z * inverse)
    # There the way itself is so long that a 1 is lost, but for scales below 1e-300; an infinite
    # quotient has no slopes. One logarithm for both cases.
    z = where(far, 0.0, way) / scale
    near = z if inverse is None else z * inverse
    unit = log(scale) if root is None else log(scale) + log(root)
    return log1p_square(where(far, way, near)) - where(far, 2.0 * unit, 0.0)


class Scaled(Protocol):
    """A distribution with a scale."""

    @property
    def scale(self) -> Tensor: ...


def log_power_tail(
    d: Scaled,
    level: Callable[[Tensor], Tensor],
    x: Tensor,
    way: Tensor,
    df: Tensor | None,
    above: bool = True,
    sides: int = 2,
) -> Tensor:
    """Return the log of a tail of t, also where `way` over the scale, and the density, overflow.

    Parameters
    ----------
    d : Distribution
        With a scale.
    level : callable
        The probability beyond a value.
    x : Tensor
    way : Tensor
        How far out `x` is.
    df : Tensor, optional
        Degrees of freedom; 1 if None.
    above : bool
    sides : int
        1 where all of the mass is on this side.
    """
    scale = d.scale
    lost = (way / scale == math.inf) & (way < math.inf)
    if is_constant(lost) and not lost.array.any():
        return log_of_tail(typed(Distribution, d), level(x), x, above)
    at = where(lost, (x * 0.0 + scale).detach(), x)
    near = log_of_tail(typed(Distribution, d), level(at), at, above)
    ratio = log(where(lost, way, 1.0)) - log(scale)
    if df is None:
        power = -ratio - LOG_PI
    else:
        power = (df * 0.5 - 1.0) * log(df) - df * ratio - log_beta(df)
    return where(lost, power + math.log(2.0 / sides), near)
