"""Draws of counts above 0, without a search and without rejection.

Counts that are events of a process in time have a first event. Given that there is one, its time is
a truncated exponential draw; what comes after it has the law of the process in the time that is
left. For the Poisson process that is 1 and a Poisson count. The negative binomial process
(Kozubowski and Podgorski 2009, "Distributional properties of the negative binomial Levy process")
jumps by logarithmic counts, at the rate ``-log(1 - probs)`` for each unit of `total_count`.
"""

from __future__ import annotations

import math

from probtorch.core.typed import Shape
from probtorch.distributions.counts import NegativeBinomial, Poisson
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import floor, maximum, minimum, where
from probtorch.ops.exponentials import exp, expm1, log, log1p, softplus
from probtorch.tensor import Tensor

__all__ = ["sample_positive"]

# Below this rate a first jump is the only one, and 1, but for rounding; logarithms of 0 are spared.
TINY = 1e-290
LN2 = math.log(2.0)


def sample_positive(base: Distribution, rng: Source, shape: Shape) -> Tensor | None:
    """Return draws of a count given that it is not 0; None if the family has no short way.

    Parameters
    ----------
    base : Distribution
    rng : Source
    shape : tuple of int
        Of the draws.
    """
    if type(base) is Poisson:
        left = _after_first(base.rate, rng, shape)
        return 1.0 + rng.poisson(left, shape)
    if type(base) is NegativeBinomial:
        speed = maximum(softplus(base.logits), TINY)
        left = _after_first(base.total_count * speed, rng, shape) / speed
        first = _logarithmic(speed, rng, shape)
        odds = exp(base.logits)
        some = left > 0.0
        rate = rng.gamma(where(some, left, 1.0), shape) * odds
        return first + rng.poisson(rng.finite(where(some, rate, 0.0)), shape)
    return None


def _after_first(expected: Tensor, rng: Source, shape: Shape) -> Tensor:
    """Events that are expected after the first one, of so many in all, given that there is one."""
    u = rng.uniform(shape)
    return maximum(expected + log1p(u * expm1(-expected)), 0.0)


def _logarithmic(speed: Tensor, rng: Source, shape: Shape) -> Tensor:
    """Draws from the logarithmic distribution of ``probs = 1 - exp(-speed)`` (Kemp 1981)."""
    s = speed * rng.uniform(shape)
    # log(1 - exp(-s)), which is not 0 where q is 1 but for rounding: there counts are largest.
    log_q = where(s > LN2, log1p(-exp(-maximum(s, LN2))), log(maximum(-expm1(-s), TINY)))
    return floor(1.0 + log(rng.uniform(shape)) / minimum(log_q, -TINY))
