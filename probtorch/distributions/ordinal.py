"""Ordered categories, a latent number between cutpoints; and Dirichlet-multinomial counts.

The log mass of a category is that of an interval; it is formed on the side where both ends are in
the tail, so that far categories keep their digits.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self
from typing import cast as typed

from probtorch.core.casting import cast
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.categorical import Categorical, Multinomial, are_several, in_own_dtype
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given, Parameter, as_parameter, param, setting
from probtorch.distributions.source import Source
from probtorch.distributions.truncated import log_mass
from probtorch.distributions.validation import check_parameter, validation_in_force
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import exp, softplus
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import lgamma, lgamma_difference, log1mexp, log_ndtr
from probtorch.tensor import Tensor

__all__ = [
    "DirichletMultinomial",
    "OrderedLogistic",
    "OrderedMultinomial",
    "OrderedProbit",
    "StoppingRatioLogistic",
]


# What a parameter is checked for, where there is no distribution of the name.
UNNAMED = Distribution()


def _cut(predictor: Given, cutpoints: Given) -> tuple[Tensor, Tensor]:
    """Return cutpoints relative to the predictor, as lower and as upper ends; see `_ends`."""
    eta = as_parameter(predictor, "predictor")[0]
    cuts = as_parameter(cutpoints, "cutpoints")[0]
    return eta, cuts


def OrderedLogistic(
    predictor: Given, cutpoints: Given, *, validate_args: bool | None = None
) -> Categorical:
    """Return the category in which a logistic number around `predictor` falls.

    Parameters
    ----------
    predictor : Tensor, shape (...)
    cutpoints : Tensor, shape (..., categories - 1), increasing
    validate_args : bool, optional
    """
    eta, cuts = _cut(predictor, cutpoints)
    z = cuts - unsqueeze(eta, -1)
    first, last = -softplus(-z[..., :1]), -softplus(z[..., -1:])
    low, high = z[..., :-1], z[..., 1:]
    # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b))
    inner = log1mexp(high - low) - softplus(-high) - softplus(low)
    return _ordered(cuts, [first, inner, last], "OrderedLogistic", validate_args)


def OrderedProbit(
    predictor: Given,
    cutpoints: Given,
    scale: Given = 1.0,
    *,
    validate_args: bool | None = None,
) -> Categorical:
    """Return the category in which a normal number around `predictor` falls.

    Parameters
    ----------
    predictor : Tensor, shape (...)
    cutpoints : Tensor, shape (..., categories - 1), increasing
    scale : Tensor or number, positive
        Standard deviation of the number.
    validate_args : bool, optional
    """
    eta, cuts = _cut(predictor, cutpoints)
    sd = as_parameter(scale, "scale")[0]
    z = (cuts - unsqueeze(eta, -1)) / unsqueeze(sd, -1)
    low, high = z[..., :-1], z[..., 1:]
    # Right of the mean the mirror image, so that both ends are in the lower tail.
    right = low > 0.0
    inner = log_mass(where(right, -high, low), where(right, -low, high))
    parts = [log_ndtr(z[..., :1]), inner, log_ndtr(-z[..., -1:])]
    return _ordered(cuts, parts, "OrderedProbit", validate_args)


def _ordered(
    cuts: Tensor, parts: list[Tensor], owner: str, validate_args: bool | None
) -> Categorical:
    if validation_in_force() if validate_args is None else validate_args:
        check_parameter(owner, "cutpoints", cuts, constraints.ordered_vector, UNNAMED)
    return Categorical(logits=cat(parts, -1), validate_args=validate_args)


def OrderedMultinomial(
    predictor: Given, cutpoints: Given, total_count: int, *, validate_args: bool | None = None
) -> Multinomial:
    """Return counts of the categories in which logistic numbers around `predictor` fall.

    Parameters
    ----------
    predictor : Tensor, shape (...)
    cutpoints : Tensor, shape (..., categories - 1), increasing
    total_count : int
        How many numbers; PyMC's n.
    validate_args : bool, optional
    """
    each = OrderedLogistic(predictor, cutpoints, validate_args=validate_args)
    return Multinomial(total_count=total_count, logits=each.logits, validate_args=validate_args)


def StoppingRatioLogistic(
    cutpoints: Given, predictor: Given, *, validate_args: bool | None = None
) -> Categorical:
    """Return the first category at which a process stops, each with log odds of its own.

    Parameters
    ----------
    cutpoints : Tensor, shape (..., categories - 1)
        Log odds of stopping there, having come as far, for a predictor of 0.
    predictor : Tensor, shape (...)
        What is taken from them: large for late stops.
    validate_args : bool, optional
    """
    eta, cuts = _cut(predictor, cutpoints)
    z = cuts - unsqueeze(eta, -1)
    passed = -cumsum(softplus(z), -1)
    before = cat([passed[..., :1] * 0.0, passed[..., :-1]], -1)
    logits = cat([before - softplus(-z), passed[..., -1:]], -1)
    return Categorical(logits=logits, validate_args=validate_args)


class DirichletMultinomial(Distribution):
    """Counts of categories in draws whose probabilities are themselves a Dirichlet draw.

    Probability ``p(x) = factorial(total_count) * gamma(a) / gamma(total_count + a) * prod(gamma(x +
    concentration) / (gamma(concentration) * factorial(x)))`` with ``a = sum(concentration)``.

    Parameters
    ----------
    concentration : Tensor, shape (..., categories), positive
        Of the Dirichlet.
    total_count : int, or Tensor, shape (...), whole numbers >= 0
        Number of draws: one for the whole batch, or one for each of its elements.
    """

    concentration: Parameter = param(constraints.independent(constraints.positive, 1))
    total_count: int | Tensor = setting(default=1)
    _also: ClassVar = {"total_count_max": None, "is_sparse": None}

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make one of `DirichletMultinomialOfEach` where counts come as a tensor."""
        given = args[1] if len(args) > 1 else kwargs.get("total_count")
        each = cls is DirichletMultinomial and are_several(given)
        return object.__new__(typed(type[Self], DirichletMultinomialOfEach) if each else cls)

    @constraints.dependent_property(event_dim=1, is_discrete=True)
    def support(self) -> Constraint:
        """Vectors of counts that add up to `total_count`."""
        return constraints.multinomial(self.total_count)

    def _infer_event_shape(self) -> Shape:
        if not isinstance(self.total_count, int) or self.total_count < 0:
            raise ArgumentError(
                "DirichletMultinomial",
                expected="total_count, a whole number from 0 on",
                got=repr(self.total_count),
                fix="write DirichletMultinomial(concentration, total_count=10)",
            )
        return self.concentration.array.shape[-1:]

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        # Category by category: a beta-binomial share of the draws that are left.
        c = self.concentration
        left: float | Tensor = self._left()
        counts = []
        for k in range(shape[-1] - 1):
            a, b = c[..., k], total(c[..., k + 1 :], -1)
            odds = rng.log_gamma(a, shape[:-1]) - rng.log_gamma(b, shape[:-1])
            share = exp(-softplus(-odds))
            draw = rng.binomial(
                left if isinstance(left, Tensor) else a * 0.0 + left, share, shape[:-1]
            )
            counts.append(draw)
            left = left - draw
        rest = left if isinstance(left, Tensor) else c[..., 0] * 0.0 + left
        counts.append(expand(cast(rest, rng.dtype), shape[:-1]))
        return stack(counts, -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        c, n = self.concentration, self._left()
        whole = total(c, -1)
        some = x > 0.0
        k = where(some, x, 1.0)
        each = where(some, lgamma_difference(c, k), 0.0) - lgamma(x + 1.0)
        if isinstance(n, Tensor):
            some = n > 0.0
            begun = where(some, lgamma_difference(whole, where(some, n, 1.0)), 0.0)
            return total(each, -1) + lgamma(n + 1.0) - begun
        ends = lgamma_difference(whole, n) if n else 0.0
        return total(each, -1) + math.lgamma(n + 1.0) - ends

    def _left(self) -> float | Tensor:
        """Return the number of draws, for what has no dim of categories."""
        return self._trials()

    def _trials(self) -> float | Tensor:
        """Return the number of draws, as it broadcasts with concentrations."""
        return float(self.total_count)

    def _mean(self) -> Tensor:
        return self.concentration / total(self.concentration, -1, True) * self._trials()

    def _variance(self) -> Tensor:
        n, whole = self._trials(), total(self.concentration, -1, True)
        p = self.concentration / whole
        return p * (1.0 - p) * n * ((whole + n) / (whole + 1.0))


class DirichletMultinomialOfEach(DirichletMultinomial):
    """A `DirichletMultinomial` with a number of draws for each batch element."""

    concentration: Parameter = param(constraints.independent(constraints.positive, 1))
    total_count: Parameter = param(constraints.nonnegative_integer, default=1.0)

    def _infer_event_shape(self) -> Shape:
        return self.concentration.array.shape[-1:]

    def _left(self) -> Tensor:
        return in_own_dtype(self, self.total_count)

    def _trials(self) -> Tensor:
        return unsqueeze(self._left(), -1)


# What users call it, in messages and when it is shown; pickles go by the qualified name.
DirichletMultinomialOfEach.__name__ = DirichletMultinomial.__name__


explain_calls(globals())
