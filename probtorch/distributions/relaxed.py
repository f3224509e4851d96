"""Continuous relaxations of categorical draws, straight-through gradients, the logistic-normal.

A relaxed draw is the softmax of logits with Gumbel noise over a temperature (Maddison et al. 2017);
a straight-through draw is discrete and passes the gradient of a continuous one.
"""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING

from probtorch.core.casting import cast
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.categorical import WEIGHTS, ByWeights, OneHotCategorical, normalised
from probtorch.distributions.fields import Given, Parameter, one_of, param
from probtorch.distributions.normal import Normal
from probtorch.distributions.origins import origin_of, remember
from probtorch.distributions.shares import RelaxedBernoulli
from probtorch.distributions.source import Source
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.vector import StickBreakingTransform
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import logical_and
from probtorch.ops.exponential_sums import logsumexp, softmax
from probtorch.ops.exponentials import log
from probtorch.ops.extremes import argmax
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.scattering import one_hot
from probtorch.ops.special import lgamma
from probtorch.tensor import Tensor

__all__ = [
    "LogisticNormal",
    "OneHotCategoricalStraightThrough",
    "RelaxedBernoulliStraightThrough",
    "RelaxedOneHotCategorical",
    "RelaxedOneHotCategoricalStraightThrough",
]


class RelaxedOneHotCategorical(ByWeights):
    """Continuous relaxation of a one-hot draw: a point of the simplex near its corners.

    Density ``f(x) = gamma(n) * temperature ** (n - 1) * prod(probs * x ** (-temperature - 1)) /
    sum(probs * x ** (-temperature)) ** n`` with ``n = len(x)``.

    Parameters
    ----------
    temperature : Tensor or number, positive
        Near 0 the draws are nearly one-hot.
    probs, logits : Tensor, shape (..., categories), optional
        As for `Categorical`; exactly one is given.
    """

    temperature: Parameter = param(constraints.positive)
    probs: Parameter = normalised(WEIGHTS)
    logits: Parameter = normalised(constraints.real_vector)
    given = one_of("probs", "logits")
    support = constraints.simplex

    def _infer_event_shape(self) -> Shape:
        return (self.num_categories,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        gumbels = -log(rng.exponential(shape))
        scores = (self._log_weights() + gumbels) / unsqueeze(self.temperature, -1)
        return rng.positive(softmax(scores, -1))

    def _log_prob(self, x: Tensor) -> Tensor:
        n, t = self.num_categories, self.temperature
        logs = log(x)
        scores = self._log_weights() - unsqueeze(t, -1) * logs
        size = lgamma(x.new_tensor(float(n))) + (n - 1.0) * log(t)
        return size + total(scores - logs, -1) - n * logsumexp(scores, -1)


if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution as _Relaxed
else:
    # Beside a distribution, whose fields are its own.
    _Relaxed = object


class _StraightThrough(_Relaxed):
    """Draws that are rounded and know what they were, where their density is.

    So the very tensor that was drawn has a density, also under another distribution of this kind,
    as the one of a model that is replayed by a guide; an equal tensor has lost it.
    """

    @abc.abstractmethod
    def _rounded(self, soft: Tensor) -> Tensor:
        """Return draws of the relaxed distribution, rounded."""

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        soft = cast(super()._rsample(rng, shape), rng.dtype)
        hard = cast(self._rounded(soft.detach()), soft.array.dtype)
        return remember(soft + (hard - soft).detach(), soft, _WAY, rng)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        # Off the tape, where 0 and 1 are exact: nothing is added and taken away again.
        soft = cast(super()._rsample(rng, shape), rng.dtype)
        return remember(self._rounded(soft), soft, _WAY, rng)

    def _check_value(self, value: Tensor) -> bool:
        return origin_of(value, _WAY) is not None or super()._check_value(value)

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        soft = origin_of(value, _WAY)
        return super()._density(value if soft is None else soft, inside or soft is not None)


# How straight-through draws were made, for those who ask what they were.
_WAY = ("straight-through",)


class RelaxedOneHotCategoricalStraightThrough(_StraightThrough, RelaxedOneHotCategorical):
    """One-hot draws that pass the gradient of the relaxed draws behind them.

    Density ``f(x) = gamma(n) * temperature ** (n - 1) * prod(probs * x ** (-temperature - 1)) /
    sum(probs * x ** (-temperature)) ** n`` with ``n = len(x)``.

    There x is the relaxed vector.

    Parameters
    ----------
    temperature : Tensor or number, positive
    probs, logits : Tensor, shape (..., categories), optional
        As for `Categorical`; exactly one is given.

    Notes
    -----
    The density is that of the relaxation, at the relaxed value, which the very tensor that was
    drawn knows; of another one-hot vector it is 0 or infinite.
    """

    def _rounded(self, soft: Tensor) -> Tensor:
        return one_hot(argmax(soft, -1), self.num_categories)


class RelaxedBernoulliStraightThrough(_StraightThrough, RelaxedBernoulli):
    """Draws of 0 and 1 that pass the gradient of the relaxed draws behind them.

    Density ``f(x) = temperature * w * (x * (1 - x)) ** (-temperature - 1) / (w * x **
    (-temperature) + (1 - x) ** (-temperature)) ** 2`` with ``w = probs / (1 - probs)``.

    There x is the relaxed number.

    Parameters
    ----------
    temperature : Tensor or number, positive
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Log odds; exactly one of the two is given.

    Notes
    -----
    The density is that of the relaxation, at the relaxed value, which the very tensor that was
    drawn knows; of another 0 or 1 it is infinite, or 0 at temperatures above 1.
    """

    support = constraints.unit_interval

    def _rounded(self, soft: Tensor) -> Tensor:
        return where(soft > 0.5, 1.0, 0.0)

    def _log_prob(self, x: Tensor) -> Tensor:
        inner = logical_and(x > 0.0, x < 1.0)
        log_prob = super()._log_prob(where(inner, x, 0.5))
        t = self.temperature
        # At 0 the density is as x ** (t - 1) / w for odds w, and at 1 its mirror image.
        flat = where(x > 0.5, self.logits, -self.logits)
        end = where(t < 1.0, math.inf, where(t > 1.0, -math.inf, flat))
        return where(inner, log_prob, end)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One-hot draws that pass their gradient to the probabilities, as if those had been drawn.

    Probability ``p(x) = prod((probs / sum(probs)) ** x)``.

    Parameters
    ----------
    probs, logits : Tensor, shape (..., categories), optional
        As for `Categorical`; exactly one is given.
    """

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        p = self._weights()
        return self._sample(rng, shape) + (p - p.detach())


def LogisticNormal(
    loc: Given, scale: Given, *, validate_args: bool | None = None
) -> TransformedDistribution:
    """Return the distribution on the simplex of stick-breaking shares of independent normals.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Means of the log odds of each share; there are n + 1 parts.
    scale : Tensor, shape (..., n), positive
        Their standard deviations.
    validate_args : bool, optional
    """
    base = Normal(loc, scale, validate_args=validate_args)
    if not base._batch_shape:
        base = base.expand((1,))
    return TransformedDistribution(base.to_event(1), StickBreakingTransform())


explain_calls(globals())
