"""Lengths and ratios of normal numbers around a mean other than 0: Rice, chi-squared, Student's t.

The chi-squared one is a gamma whose shape is moved by a Poisson count, so that its density and cdf
are sums over counts; Rice's is that of a root of one with 2 degrees. The noncentral t density is
an integral over the logarithm of a chi. windows.py has the sums.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.precision import doubled, in_double
from probtorch.distributions.source import Source
from probtorch.distributions.windows import counts_around, skewed_nodes, weighted
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, expm1, log
from probtorch.ops.movement import unsqueeze
from probtorch.ops.special import (
    betainc,
    factorial_rest,
    gammainc,
    gammaincc,
    i0e,
    i1e,
    lgamma_difference,
    log1p_less,
    log_i0e,
    ndtr,
    poisson_kernel,
    stirling_rest,
)
from probtorch.tensor import Tensor

__all__ = ["NoncentralChi2", "NoncentralT", "Rice", "mixed_gamma_cdf"]

# Where a mean of 0 has no logarithm.
TINY = 1e-300


def _log_poisson(j: Tensor, mean: Tensor) -> Tensor:
    return poisson_kernel(j, mean) - factorial_rest(j)


def _peak(a: Tensor, m: Tensor, y: Tensor) -> Tensor:
    """Where Poisson weights of mean m times gamma densities at y are largest: j (j + a) = m y."""
    square = m * y
    return 2.0 * square / (a + sqrt(a * a + 4.0 * square))


def mixed_gamma_cdf(a: Tensor, m: Tensor, y: Tensor, *, upper: bool = False) -> Tensor:
    """Probability that a gamma number of shape ``a + Poisson(m)`` is at most (`upper`: above) y.

    Twice that number is noncentral chi-squared with 2 a degrees of freedom and noncentrality 2 m.
    """

    def share(a: Tensor, m: Tensor, y: Tensor) -> Tensor:
        bounded = minimum(maximum(y, 0.0), 1e290)
        peak = _peak(a, m, bounded)
        j, weights = counts_around(maximum(peak, m) if upper else minimum(peak, m))
        tail = gammaincc if upper else gammainc
        shares = tail(unsqueeze(a, -1) + j, unsqueeze(bounded, -1))
        terms = exp(_log_poisson(j, unsqueeze(maximum(m, TINY), -1))) * shares
        return minimum(weighted(terms, weights), 1.0)

    return in_double(share, a, m, y + (a + m) * 0.0)


class NoncentralChi2(Distribution):
    """Sum of squares of `df` normal numbers with variance 1 whose squared means sum to `nc`.

    Density ``f(x) = exp(-(x + nc) / 2) / 2 * (x / nc) ** (df / 4 - 1 / 2) * Iv(df / 2 - 1, sqrt(nc
    * x))``.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom.
    nc : Tensor or number, nonnegative
        Noncentrality.
    """

    df: Parameter = param(constraints.positive)
    nc: Parameter = param(constraints.nonnegative)
    support = constraints.positive

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        count = rng.poisson(self.nc * 0.5, shape)
        return rng.positive(2.0 * exp(rng.log_gamma(self.df * 0.5 + count, shape)))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return implicit(self, self._sample(rng, shape).detach())

    def _log_prob(self, x: Tensor) -> Tensor:
        return in_double(_log_chi2, self.df * 0.5, self.nc * 0.5, x * 0.5) - math.log(2.0)

    def _cdf(self, x: Tensor) -> Tensor:
        return mixed_gamma_cdf(self.df * 0.5, self.nc * 0.5, x * 0.5)

    def _survival(self, x: Tensor) -> Tensor:
        return mixed_gamma_cdf(self.df * 0.5, self.nc * 0.5, x * 0.5, upper=True)

    def _mean(self) -> Tensor:
        return self.df + self.nc

    def _variance(self) -> Tensor:
        return 2.0 * self.df + 4.0 * self.nc

    def _skewness(self) -> Tensor:
        spread = self.df + 2.0 * self.nc
        return math.sqrt(8.0) * (self.df + 3.0 * self.nc) / (spread * sqrt(spread))

    def _kurtosis(self) -> Tensor:
        spread = self.df + 2.0 * self.nc
        return 12.0 * (self.df + 4.0 * self.nc) / (spread * spread)


def implicit(d: Distribution, x: Tensor) -> Tensor:
    """A draw with the derivative of its quantile function: -dF / density."""
    f = d.cdf(x)
    density = exp(d.log_prob_inside(x).detach())
    return x - (f - f.detach()) / maximum(density, TINY)


def _log_chi2(a: Tensor, m: Tensor, y: Tensor) -> Tensor:
    """Log density at y of a gamma number of shape a + Poisson(m)."""
    m, y = maximum(m, TINY), y + (a + m) * 0.0
    j, weights = counts_around(_peak(a, m, y))
    gamma = Gamma(unsqueeze(a, -1) + j, 1.0, validate_args=False)
    terms = _log_poisson(j, unsqueeze(m, -1)) + gamma._log_prob(unsqueeze(y, -1))
    some = weights > 0.0
    return logsumexp(where(some, terms + log(where(some, weights, 1.0)), -math.inf), -1)


class Rice(Distribution):
    """Distance from the origin of a normal point in the plane: the size of a noisy signal.

    Density ``f(x) = x / scale ** 2 * exp(-(x ** 2 + nu ** 2) / (2 * scale ** 2)) * Iv(0, x * nu /
    scale ** 2)``.

    Parameters
    ----------
    nu : Tensor or number, nonnegative
        Distance of the mean from the origin; 0 for a Rayleigh distribution.
    scale : Tensor or number, positive
        Standard deviation of each coordinate.
    """

    nu: Parameter = param(constraints.nonnegative)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.positive

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        a, b = self.nu + self.scale * rng.normal(shape), self.scale * rng.normal(shape)
        return rng.positive(sqrt(a * a + b * b))

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # In single precision x over a large scale would lose its digits below 1e-38.
        z, y = (x - self.nu) / self.scale, x / self.scale
        return log(y) - log(self.scale) - 0.5 * z * z + log_i0e(y * (self.nu / self.scale))

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, y = self.nu / self.scale, maximum(x, 0.0) / self.scale
        return m * 0.0 + 1.0, m * m * 0.5, y * y * 0.5

    def _cdf(self, x: Tensor) -> Tensor:
        return mixed_gamma_cdf(*self._halves(x))

    def _survival(self, x: Tensor) -> Tensor:
        return mixed_gamma_cdf(*self._halves(x), upper=True)

    def _mean(self) -> Tensor:
        half = self._squared() * 0.5
        size = (1.0 + 2.0 * half) * i0e(half) + 2.0 * half * i1e(half)
        return self.scale * size * math.sqrt(math.pi / 2.0)

    def _squared(self) -> Tensor:
        m = self.nu / self.scale
        return m * m * 0.5

    def _variance(self) -> Tensor:
        m = self._mean()
        return 2.0 * self.scale * self.scale + (self.nu - m) * (self.nu + m)


class NoncentralT(Distribution):
    """Ratio of a normal number around `nc` and the root of a chi-squared mean, scaled and moved.

    Density ``f(x) = 2 * (df / 2) ** (df / 2) / (scale * sqrt(2 * pi) * gamma(df / 2)) *
    integral(s ** df * exp(-(s * z - nc) ** 2 / 2 - df * s ** 2 / 2) for s in between(0,
    inf))`` with ``z = (x - loc) / scale``.

    The distribution of a t statistic where the effect is not 0: what power calculations ask for.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom.
    nc : Tensor or number
        Noncentrality; positive for a longer tail above.
    loc : Tensor or number
    scale : Tensor or number, positive
    """

    df: Parameter = param(constraints.positive)
    nc: Parameter = param(constraints.real)
    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        half = self.df * 0.5
        ratio = exp((log(half) - rng.log_gamma(half, shape)) * 0.5)
        t = rng.finite((rng.normal(shape) + self.nc) * ratio)
        return rng.finite(self.loc + self.scale * t)

    def _log_prob(self, x: Tensor) -> Tensor:
        return in_double(_log_t, self.df, self.nc, self.loc, self.scale, x)

    def _cdf(self, x: Tensor) -> Tensor:
        return in_double(_t_cdf, self.df, self.nc, (x - self.loc) / self.scale)

    def _survival(self, x: Tensor) -> Tensor:
        return in_double(_t_cdf, self.df, -self.nc, (self.loc - x) / self.scale)

    def _ratio(self, least: float) -> tuple[Tensor, Tensor]:
        """Return df, 3 where it is not above `least`, and E[1 / S] for the root S of the mean."""
        df = where(self.df > least, self.df, 5.0)
        # sqrt(df / 2) gamma((df - 1) / 2) / gamma(df / 2)
        return df, sqrt(df * 0.5) * exp(-lgamma_difference((df - 1.0) * 0.5, 0.5))

    def _mean(self) -> Tensor:
        size = self._ratio(1.0)[1]
        return where(self.df > 1.0, self.loc + self.scale * self.nc * size, math.nan)

    def _variance(self) -> Tensor:
        df, size = self._ratio(2.0)
        m = self.nc * size
        spread = (1.0 + self.nc * self.nc) * df / (df - 2.0) - m * m
        none = where(self.df > 1.0, math.inf, math.nan)
        return where(self.df > 2.0, self.scale * self.scale * spread, none)


def _log_t(df: Tensor, nc: Tensor, loc: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Log density of a normal number around nc over a root s of a chi-squared mean.

    Given s it is s times a normal density at s t - nc: an integral over u = log(s). What is large
    in it is written as distances of both from where they are likeliest, s t - nc and s^2 - 1, as
    those at the peak (`_peak_of_t`) and what is beside: nothing of the size of nc or df cancels.
    """
    t = (x - loc) / scale
    log_s, part, apart, excess, width = _peak_of_t(df.detach(), nc.detach(), t.detach())
    u, weights = skewed_nodes(log_s * 0.0, width)
    log_s, one = unsqueeze(log_s, -1) + u, unsqueeze(excess, -1)
    square = one + (one + 1.0) * expm1(2.0 * u)
    # At fixed s its slopes are s and -1: terms that are 0 have them.
    moved = exp(log_s) * unsqueeze(t - t.detach(), -1) - unsqueeze(nc - nc.detach(), -1)
    gap = unsqueeze(apart, -1) + unsqueeze(part, -1) * expm1(u) + moved
    a = unsqueeze(df * 0.5, -1)
    near = absolute(square) < 0.5
    chi = where(near, log1p_less(where(near, square, 0.0)), 2.0 * log_s - square)
    # d(s^2) = 2 s^2 du
    terms = log_s + a * chi - 0.5 * gap * gap
    rest = math.log(2.0) - HALF_LOG_2PI - log(scale) - stirling_rest(df * 0.5)
    return logsumexp(terms + log(weights), -1) + rest


def _peak_of_t(df: Tensor, nc: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """Return log(s), s t, s t - nc, s^2 - 1 and a width, where the integrand in log(s) is largest.

    There (df + t^2) s^2 - t nc s = df + 1. With r = s t - nc that is r^2 (1 + df / t^2) + r nc (1 +
    2 df / t^2) = 1 - df (nc^2 / t^2 - 1), the root of which is a sum of terms of one sign.
    """
    far = absolute(t) > 1e150
    near = where(far, 1.0, t)
    root = sqrt(df + near * near)
    # The share of s t in w = s sqrt(df + t^2).
    c = where(far, where(t > 0.0, 1.0, -1.0), near / root)
    log_root = where(far, log(where(far, absolute(t), 1.0)), log(root))
    m = nc * c
    wide = sqrt(m * m + 4.0 * (df + 1.0))
    up = m > 0.0
    # The positive root, without a difference.
    w = where(up, (m + wide) * 0.5, 2.0 * (df + 1.0) / where(up, 1.0, wide - m))
    # Of one sign s t and nc are nearly the same; for tiny t they are not.
    close = up & (df < 1e100 * near * near)
    size, mean = where(close, absolute(near), 1.0), absolute(nc)
    ratio = where(far, 0.0, df / (size * size))
    beyond = where(far, -df, ratio * ((mean - size) * (mean + size)))
    rise = sqrt(mean * mean + 4.0 * (df + 1.0) * (1.0 + ratio))
    r = 2.0 * (1.0 - beyond) / (mean * (1.0 + 2.0 * ratio) + rise)
    apart = where(close, where(nc < 0.0, -r, r), c * w - nc)
    # Next to a large nc the digits of a small s t are lost.
    part = where(close, nc + apart, c * w)
    excess = (1.0 - part * apart) / df
    width = minimum(sqrt(2.0 / (w * w + (df + 1.0))), 1.0)
    return log(w) - log_root, part, apart, excess, width


def _t_tail(df: Tensor, nc: Tensor, t: Tensor, upper: bool) -> Tensor:
    """P(T > t), or P(0 < T <= t), for t >= 0 [lenth1989]: a sum of incomplete betas."""
    half, m = df * 0.5, nc * nc * 0.5
    j, weights = counts_around(m + t * 0.0)
    even = exp(_log_poisson(j, unsqueeze(maximum(m, TINY), -1)))
    odd = even * exp(-lgamma_difference(j + 1.0, 0.5)) * unsqueeze(nc, -1) * math.sqrt(0.5)
    b, ratio = unsqueeze(half, -1), unsqueeze(t * t / df, -1)
    # The smaller of both shares of the squares, which keeps its digits.
    less = ratio < 1.0
    share = where(less, ratio, 1.0 / where(less, 1.0, ratio))
    share = share / (1.0 + share)

    def tail(a: Tensor) -> Tensor:
        first, second = where(less, a, b), where(less, b, a)
        small = betainc(first, second, share)
        return where(less, 1.0 - small, small) if upper else where(less, small, 1.0 - small)

    terms = even * tail(j + 0.5) + odd * tail(j + 1.0)
    return 0.5 * weighted(terms, weights)


def _t_cdf(df: Tensor, nc: Tensor, t: Tensor) -> Tensor:
    # Off 0, where the share of t^2 has no slope; neither has it where a side is not used.
    above = t > 0.0
    size = minimum(where(above, t, -t) + 1e-150, 1e150)
    df = df + size * 0.0
    below = _t_tail(df, -nc, where(above, 1.0, size), True)
    p = where(above, ndtr(-nc) + _t_tail(df, nc, where(above, size, 1.0), False), below)
    return clamp(p, 0.0, 1.0)
