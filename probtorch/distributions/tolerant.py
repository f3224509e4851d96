"""Distributions that take values others refuse: missing ones, counts out of range, none at all."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.counts import BetaBinomial, Binomial, NegativeBinomial
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.facts import cdf_by_sum
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.multivariate_normal import MultivariateNormal, squared_length
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import half_log_det
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import maximum, minimum, where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.comparisons import isnan
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, expm1
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "ExtendedBetaBinomial",
    "ExtendedBinomial",
    "LogNormalNegativeBinomial",
    "NanMaskedMultivariateNormal",
    "NanMaskedNormal",
    "Unit",
]


class Anything(constraints.Real):
    """Every number, nan too."""

    def check(self, value: Tensor) -> Tensor:
        return (value == value) | isnan(value)


class NanMaskedNormal(Normal):
    """Normal distribution of which nan is a value that was not seen: its log density is 0.

    Density ``f(x) = exp(-((x - loc) / scale) ** 2 / 2) / (scale * sqrt(2 * pi))``.

    Parameters
    ----------
    loc : Tensor or number
        Mean.
    scale : Tensor or number, positive
        Standard deviation.
    """

    loc: Parameter = param(constraints.real, default=0.0)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = Anything()

    def _log_prob(self, x: Tensor) -> Tensor:
        lost = isnan(x)
        return where(lost, 0.0, super()._log_prob(where(lost, 0.0, x)))


class NanMaskedMultivariateNormal(MultivariateNormal):
    """Normal vectors of which elements may be nan: the density is that of the others.

    Density ``f(x) = N(x, loc, covariance_matrix)``.

    There are only the elements of `loc` and of the covariance whose numbers are no nan.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Mean.
    covariance_matrix, precision_matrix, scale_tril : Tensor, shape (..., n, n), optional
        As for `MultivariateNormal`; exactly one is given.
    """

    loc: Parameter = param(constraints.real_vector)
    covariance_matrix: Parameter = param(constraints.positive_definite, default=None)
    precision_matrix: Parameter = param(constraints.positive_definite, default=None)
    scale_tril: Parameter = param(constraints.lower_cholesky, default=None)
    support = constraints.independent(Anything(), 1)

    def _log_prob(self, x: Tensor) -> Tensor:
        lost = isnan(x)
        # An element that is lost becomes a standard normal of its own, at 0.
        seen = 1.0 - cast(lost, x.array.dtype)
        eye = x.new_tensor(np.eye(self._event_shape[0]))
        both = unsqueeze(seen, -1) * unsqueeze(seen, -2)
        tril = cholesky(self.covariance_matrix * both + eye * unsqueeze(1.0 - seen, -1))
        apart = where(lost, 0.0, where(lost, 0.0, x) - self.loc)
        size = half_log_det(tril) + total(seen, -1) * HALF_LOG_2PI
        return squared_length(tril, apart) * -0.5 - size


class ExtendedBinomial(Binomial):
    """Binomial distribution that takes any whole number; outside its range the mass is 0.

    Probability ``p(x) = binom(total_count, x) * probs ** x * (1 - probs) ** (total_count -
    x)``.

    Parameters
    ----------
    total_count : Tensor or number, whole
        Below 0 every mass is 0.
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Exactly one of the two is given.
    """

    total_count: Parameter = param(constraints.integer, default=1.0)
    probs: Parameter = param(constraints.unit_interval, default=None)
    logits: Parameter = param(constraints.real, default=None)
    support = constraints.integer

    def _log_prob(self, x: Tensor) -> Tensor:
        n = maximum(self.total_count, 0.0)
        inside = (x >= 0.0) & (x <= self.total_count)
        name = "logits" if self._given("logits") else "probs"
        whole = Binomial(total_count=n, **{name: self._as_given()}, validate_args=False)
        return where(inside, whole._log_prob(where(inside, x, minimum(n, 0.0))), -math.inf)


class ExtendedBetaBinomial(BetaBinomial):
    """Beta-binomial distribution that takes any whole number; outside its range the mass is 0.

    Probability ``p(x) = binom(total_count, x) * B(x + concentration1, total_count - x +
    concentration0) / B(concentration1, concentration0)``.

    Parameters
    ----------
    concentration1, concentration0 : Tensor or number, positive
    total_count : Tensor or number, whole
        Below 0 every mass is 0.
    """

    concentration1: Parameter = param(constraints.positive)
    concentration0: Parameter = param(constraints.positive)
    total_count: Parameter = param(constraints.integer, default=1.0)
    support = constraints.integer

    def _log_prob(self, x: Tensor) -> Tensor:
        n = maximum(self.total_count, 0.0)
        inside = (x >= 0.0) & (x <= self.total_count)
        whole = BetaBinomial(self.concentration1, self.concentration0, n, validate_args=False)
        return where(inside, whole._log_prob(where(inside, x, minimum(n, 0.0))), -math.inf)


class LogNormalNegativeBinomial(Distribution):
    """Negative binomial counts whose log odds have normal noise.

    Probability ``p(x) = gamma(n + x) / (gamma(n) * factorial(x)) * integral((1 + exp(-logits -
    s * e)) ** (-x) * (1 + exp(logits + s * e)) ** (-n) * exp(-e ** 2 / 2) / sqrt(2 * pi) for e
    in between(-inf, inf))`` with ``n = total_count`` and ``s = multiplicative_noise_scale``.

    Parameters
    ----------
    total_count : Tensor or number, positive
    logits : Tensor or number
    multiplicative_noise_scale : Tensor or number, positive
        Standard deviation of the noise.
    num_quad_points : int
        The mass is a sum over as many points of Gauss and Hermite's rule; draws have exact noise.
    """

    total_count: Parameter = param(constraints.positive)
    logits: Parameter = param(constraints.real)
    multiplicative_noise_scale: Parameter = param(constraints.positive)
    num_quad_points: int = setting(default=8)
    support = constraints.nonnegative_integer

    def _infer_event_shape(self) -> Shape:
        if not isinstance(self.num_quad_points, int) or self.num_quad_points < 1:
            raise ArgumentError(
                "LogNormalNegativeBinomial",
                expected="num_quad_points, a whole number from 1 on",
                got=repr(self.num_quad_points),
                fix="leave it out, for 8",
            )
        return ()

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        noisy = self.logits + self.multiplicative_noise_scale * rng.normal(shape)
        return rng.poisson(rng.finite(rng.gamma(self.total_count, shape) * exp(noisy)), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        nodes, weights = np.polynomial.hermite_e.hermegauss(self.num_quad_points)
        noise = unsqueeze(self.multiplicative_noise_scale, -1)
        logits = unsqueeze(self.logits, -1) + noise * noise.new_tensor(nodes)
        each = NegativeBinomial(
            total_count=unsqueeze(self.total_count, -1), logits=logits, validate_args=False
        )
        logs = noise.new_tensor(np.log(weights / weights.sum()))
        return logsumexp(logs + each._log_prob(unsqueeze(x, -1)), -1)

    def _cdf(self, x: Tensor) -> Tensor:
        return cdf_by_sum(self, x)

    def _survival(self, x: Tensor) -> Tensor:
        return cdf_by_sum(self, x, above=True)

    def _mean(self) -> Tensor:
        square = self.multiplicative_noise_scale * self.multiplicative_noise_scale
        return self.total_count * exp(self.logits + 0.5 * square)

    def _variance(self) -> Tensor:
        square = self.multiplicative_noise_scale * self.multiplicative_noise_scale
        m = self._mean()
        return m + m * m * (expm1(square) + exp(square) / self.total_count)


class Unit(Distribution):
    """The only distribution on the empty vector: a log factor as a site.

    Density ``f(x) = exp(log_factor)``.

    Parameters
    ----------
    log_factor : Tensor or number
        The log density.
    """

    log_factor: Parameter = param(constraints.real)
    support = constraints.real_vector
    _also: ClassVar = {"has_rsample": None}

    def _infer_event_shape(self) -> Shape:
        return (0,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return expand(unsqueeze(self.log_factor * 0.0, -1)[..., :0], shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.log_factor + total(x, -1)
