"""One of several categories: as an index, as an indicator vector, or counted over several trials.

Probabilities need not add up to 1 and logits not be normalised: both are weights, and the log
density subtracts the logarithm of their sum. The attributes `probs` and `logits` are normalised, as
in PyTorch; inside, the weights as given serve where the sum cancels or is taken anyway. A category
of weight 0 has log density -inf and is never drawn.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Self
from typing import cast as typed

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import count_times
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.counts import binomial_masses
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param, setting
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.distributions.validation import require, without_tape
from probtorch.distributions.windows import weighted
from probtorch.errors import DomainError
from probtorch.ops.arithmetic import clamp, floor, where
from probtorch.ops.classes import class_log_probs
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import log_softmax, softmax
from probtorch.ops.exponentials import exp, log
from probtorch.ops.extremes import amax, argmax
from probtorch.ops.indexing import vindex
from probtorch.ops.movement import expand, permute, reshape, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.scattering import one_hot, scatter_add
from probtorch.ops.sorting import argsort
from probtorch.ops.special import entr, factorial_rest, gamma_kernel, lgamma, poisson_kernel
from probtorch.tensor import Tensor

__all__ = ["Categorical", "Multinomial", "OneHotCategorical"]

WEIGHTS = constraints.independent(constraints.nonnegative, 1)
# Up to here products of counts and logarithms lose no more than 3e-6 of a log mass in float32.
_FEW = 16
# From so many categories on fewer trials are drawn one by one.
_MANY = 64
# Until a quota lies between two neighbouring floats.
_HALVINGS = 64


class _Weights(Parameter):
    """Weights or their logarithms, which read as normalised whatever was given."""

    __slots__ = ()

    def __get__(self, instance: Any, owner: object = None) -> Any:
        return self if instance is None else getattr(instance, "_" + self.name)()

    def __set__(self, instance: object, value: Any) -> None:
        instance.__dict__[self.name] = value


def normalised(constraint: Constraint) -> Any:
    return _Weights(constraint, None)


class ByWeights(Distribution):
    """What distributions share that are given by a weight or a logit per category."""

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self._given("probs"):
            self._check_weights()

    def _check_weights(self) -> None:
        """Refuse weights that are all 0."""
        some = without_tape(lambda p: total(p, -1) != 0.0, self.__dict__["probs"])

        def error() -> DomainError:
            index = tuple(int(i) for i in np.argwhere(~to_host(some.array))[0])
            return DomainError(
                f"{type(self).__name__}: parameter probs",
                expected="at least one positive weight",
                got=f"only zeros at batch index {index}",
                fix="pass logits=, or check what made the weights",
            )

        require(some, error)

    @property
    def num_categories(self) -> int:
        """Number of categories."""
        return self._as_given().array.shape[-1]

    def _as_given(self) -> Tensor:
        """Return the weights, or the logits, that the distribution was made with."""
        return self.__dict__["probs" if self._given("probs") else "logits"]

    def _weights(self) -> Tensor:
        """Normalised probabilities."""
        given = self._as_given()
        return given / total(given, -1, True) if self._given("probs") else softmax(given, -1)

    def _log_weights(self) -> Tensor:
        """Normalised log-probabilities, -inf with gradient 0 where a weight is 0."""
        given = self._as_given()
        if self._given("logits"):
            return log_softmax(given, -1)
        return _log_weight(given) - log(total(given, -1, True))

    def _probs(self) -> Tensor:
        return self._weights()

    def _logits(self) -> Tensor:
        return self._log_weights()


class _Categories(ByWeights):
    """The same, with these two as all parameters."""

    probs: Parameter = normalised(WEIGHTS)
    logits: Parameter = normalised(constraints.real_vector)
    given = one_of("probs", "logits")


class Categorical(_Categories):
    """One of several categories, as an integer from 0.

    Probability ``p(x) = probs[x] / sum(probs)``.

    Parameters
    ----------
    probs : Tensor, shape (..., categories), >= 0, optional
        Weights; divided by their sum.
    logits : Tensor, shape (..., categories), optional
        Their logarithms, up to an additive constant; exactly one of the two is given.
    """

    has_enumerate_support = True
    _takes_integers = True

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Whole numbers below the number of categories."""
        return constraints.integer_interval(0, self.num_categories - 1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return rng.categorical(self._weights(), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        # The given weights are indexed first, so that only one logarithm per value is taken.
        x, given = x.long(), self._as_given()
        if self._given("logits"):
            # Less the largest first: large logits are rounded more than their differences.
            if recorder() is None:
                one_each = x.array.ndim > 0 and x.array.shape == given.array.shape[:-1]
                if one_each and given.array.dtype.char in "fd":
                    return class_log_probs(given, x)[0]
                return _pick(log_softmax(given, -1), x)
            given = given - amax(given, -1, True).detach()
            return _pick(given, x) - log(total(exp(given), -1))
        return _log_weight(_pick(given, x)) - log(total(given, -1))

    def log_prob_of_all(self, dim: int) -> Tensor:
        """Return the log mass of every category, along a batch dim that has size 1.

        Parameters
        ----------
        dim : int, negative
            May lie to the left of all dims of the batch.

        Returns
        -------
        Tensor, the batch shape with the categories at `dim`
            What `log_prob` gives for the support laid out along `dim`, by fewer ops.
        """
        logs = self._log_weights()
        *sizes, size = logs.array.shape
        batch = (1,) * (-dim - len(sizes)) + tuple(sizes)
        at = len(batch) + dim
        left, right = batch[:at], batch[at + 1 :]
        rows = math.prod(right)
        if rows != 1:
            logs = permute(reshape(logs, (math.prod(left), rows, size)), (0, 2, 1))
        return self._to_batch(reshape(logs, (*left, size, *right)))

    def _entropy(self) -> Tensor:
        return _entropy(self)

    def _enumerate_support(self) -> Tensor:
        return wrap(np.arange(self.num_categories))

    def _central(self, order: int) -> Tensor:
        """Central moment of the category's number."""
        weights = self._weights()
        gap = weights.new_tensor(np.arange(float(self.num_categories))) - unsqueeze(
            self._mean(), -1
        )
        return total(weights * gap**order, -1)

    def _mean(self) -> Tensor:
        weights = self._weights()
        return total(weights * weights.new_tensor(np.arange(float(self.num_categories))), -1)

    def _variance(self) -> Tensor:
        return self._central(2)

    def _skewness(self) -> Tensor:
        return self._central(3) / self._central(2) ** 1.5

    def _kurtosis(self) -> Tensor:
        spread = self._central(2)
        return self._central(4) / (spread * spread) - 3.0

    def _mode(self) -> Tensor:
        return argmax(self._as_given(), -1)

    def _cdf(self, x: Tensor) -> Tensor:
        table = cumsum(self._weights(), -1)
        last = self.num_categories - 1
        k = clamp(floor(cast(x, table.array.dtype)), 0.0, float(last))
        p = where(x < float(last), _pick(table, cast(k, np.dtype(np.int64))), 1.0)
        return where(x < 0, 0.0, p)


def _log_weight(weight: Tensor) -> Tensor:
    """Logarithm of a weight; -inf with gradient 0 where it is 0.

    Sums over all categories meet impossible ones, where 0 times the slope of the log is nan.
    """
    none = eq(weight, 0.0)
    return where(none, -np.inf, log(where(none, 1.0, weight)))


def _pick(table: Tensor, index: Tensor) -> Tensor:
    """table[..., index], the batch dims of both broadcast.

    The table is not expanded: its gradient is as small as it is, whatever the number of values.
    """
    return table[index] if table.array.ndim == 1 else vindex(table, (..., index))


def _entropy(dist: Categorical | OneHotCategorical) -> Tensor:
    if dist._given("probs"):
        # Of the weights as given: the slope at a weight of 0 is infinite, the others' stay finite.
        weights = dist._as_given()
        size = total(weights, -1)
        return total(entr(weights), -1) / size + log(size)
    logs = dist._log_weights()
    return -total(count_times(exp(logs), logs), -1)


class OneHotCategorical(_Categories):
    """One of several categories, as an indicator vector.

    Probability ``p(x) = prod((probs / sum(probs)) ** x)``.

    Parameters
    ----------
    probs, logits : Tensor, shape (..., categories), optional
        As for `Categorical`; exactly one is given.
    """

    support = constraints.one_hot
    has_enumerate_support = True

    def _infer_event_shape(self) -> Shape:
        return (self.num_categories,)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        index = rng.categorical(self._weights(), shape[:-1])
        return cast(one_hot(index, self.num_categories), rng.dtype)

    def _log_prob(self, x: Tensor) -> Tensor:
        return total(count_times(x, self._log_weights()), -1)

    def _entropy(self) -> Tensor:
        return _entropy(self)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self.num_categories
        values = wrap(np.eye(n, dtype=(self._dtype or np.dtype(np.float64))))
        values = reshape(values, (n, *(1,) * len(self._batch_shape), n))
        return values.expand((n, *self._batch_shape, n)) if expand else values

    def _mean(self) -> Tensor:
        return self._weights()

    def _mode(self) -> Tensor:
        return one_hot(argmax(self._log_weights(), -1), self.num_categories)

    def _variance(self) -> Tensor:
        p = self._weights()
        return p * (1.0 - p)


class Multinomial(_Categories):
    """Counts of the categories in `total_count` independent draws of one.

    Probability ``p(x) = factorial(total_count) * prod((probs / sum(probs)) ** x / factorial(x))``.

    Parameters
    ----------
    total_count : int, or Tensor, shape (...), whole numbers >= 0
        Number of draws: one for the whole batch, or one for each of its elements.
    probs, logits : Tensor, shape (..., categories), optional
        As for `Categorical`; exactly one is given.
    """

    total_count: int | Tensor = setting(default=1)
    probs: Parameter = normalised(WEIGHTS)
    logits: Parameter = normalised(constraints.real_vector)
    _also: ClassVar = {"total_count_max": None}

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make one of `MultinomialOfEach` where counts come as a tensor."""
        given = args[0] if args else kwargs.get("total_count")
        each = cls is Multinomial and are_several(given)
        return object.__new__(typed(type[Self], MultinomialOfEach) if each else cls)

    @constraints.dependent_property(event_dim=1, is_discrete=True)
    def support(self) -> Constraint:
        """Vectors of counts that add up to `total_count`."""
        return constraints.multinomial(self.total_count)

    def _infer_event_shape(self) -> Shape:
        return (self.num_categories,)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        n, categories = self.total_count, shape[-1]
        if _MANY <= categories and isinstance(n, int) and n <= categories:
            # Trial by trial: a category each.
            picks = rng.categorical(self._weights(), (n, *shape[:-1]))
            picks = permute(picks, (*range(1, picks.array.ndim), 0))
            none = self._weights().new_zeros(shape)
            return scatter_add(none, -1, picks, none.new_ones(picks.array.shape))
        # Category by category: a binomial share of the trials that are left.
        p = expand(self._weights(), shape)
        rest: float | Tensor = 1.0
        left: float | Tensor = self._left()
        counts = []
        for k in range(shape[-1] - 1):
            share = p[..., k]
            # The weights that are left can underflow before the trials do; then none remain.
            whole = where(rest > share, rest, where(share > 0.0, share, 1.0))
            draw = rng.binomial(_full(left, share), share / whole, shape[:-1])
            counts.append(draw)
            left, rest = left - draw, rest - share
        counts.append(expand(_full(left, p[..., 0]), shape[:-1]))
        return stack(counts, -1)

    def _left(self) -> float | Tensor:
        """Return the number of draws, for what has no dim of categories."""
        return self._trials()

    def _trials(self) -> float | Tensor:
        """Return the number of draws, as it broadcasts with weights."""
        return float(self.total_count)

    def _log_prob(self, x: Tensor) -> Tensor:
        n = float(self.total_count)
        logs = self._log_weights()
        if n <= _FEW:
            return total(count_times(x, logs) - lgamma(x + 1.0), -1) + math.lgamma(n + 1.0)
        # As for a binomial; where a weight underflows, nothing cancels.
        p, rest = self._weights(), factorial_rest(x)
        lost = p < float(dtypes.finfo(p.array.dtype).tiny)
        far = count_times(x, logs + math.log(n)) + (rest - lgamma(x + 1.0))
        near = gamma_kernel(x + 1.0, n, where(lost, 1.0, p))
        constant = factorial_rest(wrap(np.array(n)))
        return total(where(lost, far, near) - rest, -1) + constant

    def _entropy(self) -> Tensor:
        return in_double(partial(_entropy_of_counts, float(self.total_count)), self._weights())

    def _mean(self) -> Tensor:
        return self._weights() * self._trials()

    def _mode(self) -> Tensor:
        # Counts are summed, and large ones are no single floats.
        p = cast(self._as_given().detach(), dtypes.float64)
        p = p / total(p, -1, True) if self._given("probs") else softmax(p, -1)
        return cast(_seats(p, self._trials()), self._as_given().array.dtype)

    def _variance(self) -> Tensor:
        p = self._weights()
        return p * (1.0 - p) * self._trials()


class MultinomialOfEach(Multinomial):
    """A `Multinomial` with a number of draws for each batch element."""

    total_count: Parameter = param(constraints.nonnegative_integer, default=1.0)
    probs: Parameter = normalised(WEIGHTS)
    logits: Parameter = normalised(constraints.real_vector)

    def _left(self) -> Tensor:
        return in_own_dtype(self, self.total_count)

    def _trials(self) -> Tensor:
        return unsqueeze(self._left(), -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        # As for large counts above; where there are no draws, nothing can be said.
        n, p, rest = self._trials(), self._weights(), factorial_rest(x)
        some = n > 0.0
        n = where(some, n, 1.0)
        lost = p < float(dtypes.finfo(p.array.dtype).tiny)
        far = count_times(x, self._log_weights() + log(n)) + (rest - lgamma(x + 1.0))
        near = gamma_kernel(x + 1.0, n, where(lost, 1.0, p))
        each = where(some, where(lost, far, near) - rest, 0.0)
        return total(each, -1) + where(some, factorial_rest(n), 0.0)[..., 0]

    def _entropy(self) -> Tensor:
        n, p = self._trials(), self._weights()
        return in_double(_entropy_of_counts, n + p * 0.0, p)


# What users call it, in messages and when it is shown; pickles go by the qualified name.
MultinomialOfEach.__name__ = Multinomial.__name__


def in_own_dtype(dist: Distribution, count: Tensor) -> Tensor:
    """Return counts in the dtype of a distribution, whose other parameters may be wider."""
    dtype = dist._dtype
    return count if dtype is None or count.array.dtype == dtype else cast(count, dtype)


def are_several(count: object) -> bool:
    """Whether a number of draws is given for each batch element."""
    return isinstance(count, TensorBase | np.ndarray | list | tuple)


def _seats(p: Tensor, n: float | Tensor) -> Tensor:
    """Return whole numbers with the sum n and the largest multinomial mass.

    From x to x + 1 the mass grows with p / (x + 1), so they are the seats of d'Hondt: floor(p / q)
    for a quota q, whose reciprocal is found by bisection. Of those that the last step would add at
    once, as many as are left get one, the likeliest first.
    """
    low = (total(p, -1, True) + n) * 0.0
    high = low + (n + p.array.shape[-1] + 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) * 0.5
        few = total(floor(p * middle), -1, True) <= n
        low, high = where(few, middle, low), where(few, high, middle)
    x = floor(p * low)
    gain = where(floor(p * high) > x, p / (x + 1.0), -1.0)
    rank = argsort(argsort(-gain, -1, stable=True), -1)
    return where(cast(rank, p.array.dtype) < n - total(x, -1, True), x + 1.0, x)


def _entropy_of_counts(n: float | Tensor, p: Tensor) -> Tensor:
    # -log(n!) - n sum(p log p) + sum E log(x!), each count alone being binomial, is the sum of
    # E[log(x!) - x log(n p) + n p] less that of n: neither has the size of n.
    size, some = n if isinstance(n, Tensor) else p.new_full((), n), p > 0.0
    p = where(some, p, 0.5)
    k, logs, weights = binomial_masses(size, p)
    rest = factorial_rest(k) - poisson_kernel(k, unsqueeze(p * size, -1))
    terms = where(some, weighted(exp(logs) * rest, weights), 0.0)
    size = size[..., 0] if size.array.ndim else size
    # With no draws the rest of the factorial is that of none, and all terms are 0.
    return total(terms, -1) - where(size > 0.0, factorial_rest(where(size > 0.0, size, 1.0)), 0.0)


def _full(number: Tensor | float, like: Tensor) -> Tensor:
    return number if isinstance(number, Tensor) else like.new_full((), number)
