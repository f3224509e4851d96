"""Estimators for finite supports: exact enumeration, sum-and-sample, unordered sets.

All stand on a table of outcomes (`Outcomes`): the values with their probabilities, per cost. Where
several elements make one cost together, an outcome is a value for each of them, so the table has
the product of their sizes and is refused above `max_outcomes`.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.tree import record, static
from probtorch.core.typed import Shape
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal
from probtorch.ops.exponentials import exp
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, reshape
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import mean, prod
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["Enumerate", "Outcomes", "SumAndSample", "UnorderedSet", "probabilities"]

MAX_OUTCOMES = 4096


def probabilities(q: Distribution, values: Tensor) -> Tensor:
    """Return the probabilities of all values, shape (K, *B), differentiable also where they are 0.

    Parameters
    ----------
    q : Distribution
    values : Tensor, shape (K, *B, *E)
        Its support.
    """
    if isinstance(q, Bernoulli):
        found = stack([1.0 - q.probs, q.probs])
    elif isinstance(q, (Categorical, OneHotCategorical)):
        found = movedim(q._weights(), -1, 0)
    else:
        return exp(q.log_prob_inside(values))
    k, batch = found.array.shape[0], tuple(q.batch_shape)
    return expand(reshape(found, _padded(found.array.shape, 1 + len(batch))), (k, *batch))


def _padded(shape: Shape, rank: int) -> Shape:
    return (shape[0], *(1,) * (rank - len(shape)), *shape[1:])


class Outcomes:
    """All joint outcomes of the elements that make one cost.

    Parameters
    ----------
    problem : Problem
    owner : str
        For messages.
    max_outcomes : int

    Attributes
    ----------
    count : int
    index : ndarray of int, shape (count, *B)
        For each outcome the number of the value of each element.
    probs : Tensor, shape (count, *C)
    """

    def __init__(self, problem: Problem, owner: str, max_outcomes: int) -> None:
        read(f"estimators.{owner}: a choice of outcomes by their probability")
        q, batch = problem.q, tuple(problem.q.batch_shape)
        self.values = q.enumerate_support()
        k = self.values.array.shape[0]
        shape = (1,) * len(batch)
        if math.prod(batch) != 1:
            # Only the function itself can say which elements its costs have in common.
            shape = tuple(problem.cost(self.values[:1]).array.shape[1:])
        elements = problem.joint_elements(shape)
        if elements > 1 and k**elements > max_outcomes:
            raise ArgumentError(
                f"{owner}: one cost of {elements} elements with {k} values each",
                expected=f"at most {max_outcomes} joint outcomes",
                got=f"{k}**{elements}",
                fix="return one cost per row where rows are independent, use an estimator that "
                "samples (DisARM, ScoreFunction), or raise max_outcomes",
            )
        self.count = k**elements
        codes = np.array(list(itertools.product(range(k), repeat=elements)), np.int64)
        codes = codes.reshape(self.count, elements)
        common = tuple(b if c != b else 1 for b, c in zip(batch, shape))
        self.index = np.broadcast_to(
            codes.reshape(self.count, *common), (self.count, *batch)
        ).copy()
        self.cost_shape = shape
        single = gather(probabilities(q, self.values), 0, wrap(self.index))
        dims = [i + 1 for i, size in enumerate(common) if size != 1]
        for dim in dims:
            single = prod(single, dim, keepdim=True)
        self.probs = single

    def at(self, rows: np.ndarray) -> Tensor:
        """Return the values of outcomes `rows`, shape (m, *C), as a tensor of shape (m, *B, *E)."""
        m, batch = rows.shape[0], self.index.shape[1:]
        picked = np.take_along_axis(self.index, np.broadcast_to(rows, (m, *batch)), 0)
        values = to_host(self.values.array)
        picked = picked.reshape(*picked.shape, *(1,) * (values.ndim - picked.ndim))
        return wrap(np.take_along_axis(values, np.broadcast_to(picked, (m, *values.shape[1:])), 0))

    def all(self) -> Tensor:
        """Return the values of all outcomes, shape (count, *B, *E)."""
        rows = np.arange(self.count).reshape(-1, *(1,) * len(self.cost_shape))
        return self.at(np.broadcast_to(rows, (self.count, *self.cost_shape)))


class _Finite(Estimator):
    max_outcomes: int

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why the support cannot be listed."""
        if q.has_enumerate_support:
            return None
        got = f"a {type(q).__name__}, whose support is not finite"
        return Refusal("a distribution with a finite support (has_enumerate_support)", got)

    def table(self, problem: Problem) -> Outcomes:
        """Return the outcomes."""
        return Outcomes(problem, type(self).__name__, self.max_outcomes)


@record
class Enumerate(_Finite):
    """The sum over all outcomes: exact, without randomness, right for derivatives of every order.

    Applies to finite supports. One evaluation per outcome; elements that make one cost together
    multiply. In inference the sum is over the values of the one site, given the other draws.

    Parameters
    ----------
    max_outcomes : int
        The largest number of joint outcomes.
    """

    name: ClassVar[str] = "enumerate"
    all_orders: ClassVar[bool] = True
    max_outcomes: int = static(default=MAX_OUTCOMES)

    def estimate(self, problem: Problem) -> Estimated:
        """Return the expectation; `num_samples` does not matter."""
        outcomes = self.table(problem)
        value = total(outcomes.probs * problem.cost(outcomes.all()), 0)
        return Estimated(value, value)


@record
class SumAndSample(_Finite):
    """Sum over the likeliest outcomes, sample the rest (Liu et al. 2019).

    Rao-Blackwellised sampling: the part of the expectation on the `num_summed` likeliest outcomes
    is summed, that on the others estimated by the score function. Between the score function (none
    summed) and enumeration (all summed). Applies to finite supports. An outcome of probability
    exactly 0 that is not summed is never seen, nor is its gradient.

    Parameters
    ----------
    num_summed : int
        Outcomes per cost to sum over.
    max_outcomes : int
        The largest number of joint outcomes.
    """

    name: ClassVar[str] = "sum_and_sample"
    all_orders: ClassVar[bool] = True
    num_summed: int = static(default=1)
    max_outcomes: int = static(default=MAX_OUTCOMES)

    def estimate(self, problem: Problem) -> Estimated:
        """Return the sum and the mean over samples of the rest."""
        outcomes = self.table(problem)
        p = to_host(outcomes.probs.array)
        k = min(max(self.num_summed, 0), outcomes.count)
        order = np.argsort(-p, axis=0, kind="stable")
        rest = p.copy()
        np.put_along_axis(rest, order[:k], 0.0, 0)
        left = rest.sum(0)
        value: float | Tensor = 0.0
        if k:
            top = gather(outcomes.probs, 0, wrap(order[:k]))
            value = total(top * problem.cost(outcomes.at(order[:k])), 0)
        if (left > 0.0).any():
            # Where nothing is left, any outcome serves: it counts for nothing.
            weights = wrap(np.moveaxis(np.where(left > 0.0, rest, 1.0), 0, -1))
            rows = problem.draws.sample(Categorical(probs=weights), problem.num_samples)
            picked = gather(outcomes.probs, 0, rows)
            at = to_host(picked.array)
            one = picked / wrap(np.where(at > 0.0, at, 1.0))
            cost = problem.cost(outcomes.at(to_host(rows.array)))
            value = value + mean(one * cost, 0) * wrap(left)
        assert isinstance(value, TensorBase)  # the probabilities add up to 1
        return Estimated(value, value)


@record
class UnorderedSet(_Finite):
    """A set of different outcomes, drawn without replacement (Kool, van Hoof, Welling 2020).

    The order of drawing is integrated out: each outcome s of the set S counts with its probability
    times R(S, s), how much likelier S is once s is given. The other outcomes of the set make a
    baseline (ibid., sec. 4). Applies to finite supports; `set_size` evaluations per sample, and
    work of order ``2 ** set_size`` for the probabilities of sets.

    Parameters
    ----------
    set_size : int, from 2 to 8
        Outcomes per set, at most as many as have positive probability.
    max_outcomes : int
        The largest number of joint outcomes.
    """

    name: ClassVar[str] = "unordered_set"
    set_size: int = static(default=2)
    max_outcomes: int = static(default=MAX_OUTCOMES)

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why the support cannot be listed, or that the set is too small or too large."""
        if not 2 <= self.set_size <= 8:
            return Refusal("a set_size from 2 to 8", repr(self.set_size))
        return _Finite.refusal(self, q)

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean over independent sets."""
        outcomes = self.table(problem)
        p = to_host(outcomes.probs.array)
        if ((p > 0.0).sum(0) < self.set_size).any():
            raise ArgumentError(
                "UnorderedSet(set_size=...)",
                expected=f"at most {np.min((p > 0.0).sum(0))}, the number of possible outcomes",
                got=str(self.set_size),
                fix="a smaller set, or Enumerate() for so few outcomes",
            )
        parts = [self._one(problem, outcomes, p) for _ in range(problem.num_samples)]
        value, surrogate = parts[0]
        for more in parts[1:]:
            value, surrogate = value + more[0], surrogate + more[1]
        n = len(parts)
        return Estimated(value / n, surrogate / n) if n > 1 else Estimated(value, surrogate)

    def _one(self, problem: Problem, outcomes: Outcomes, p: np.ndarray) -> tuple[Tensor, Tensor]:
        remaining, rows = p.copy(), []
        for _ in range(self.set_size):
            weights = wrap(np.moveaxis(remaining, 0, -1))
            row = problem.draws.sample(Categorical(probs=weights), 1)
            rows.append(row)
            np.put_along_axis(remaining, to_host(row.array), 0.0, 0)
        chosen = cat(rows, 0)
        index = to_host(chosen.array)
        cost = problem.cost(outcomes.at(index))
        first, second = _leave_out_ratios(np.take_along_axis(p, index, 0))
        mass = gather(outcomes.probs, 0, chosen)
        base = total(wrap(second) * (mass * cost).detach(), 1)
        value = total(mass.detach() * wrap(first) * cost, 0)
        gain = wrap(first) * (cost.detach() - base)
        return value, value + total(mass * gain, 0)


def _leave_out_ratios(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return R(S, s), shape (k, *C), and R without s of (S, t), shape (k, k, *C), t second.

    R(S, s) is P(S without s, drawn from the domain without s) / P(S); the second order is the same
    ratio where s is out of set and domain from the start, and 1 for t = s.
    """
    k = p.shape[0]
    everyone = tuple(range(k))
    whole = _set_probability(p, everyone, 0.0)
    without = {s: _set_probability(p, _less(everyone, s), p[s]) for s in everyone}
    first = np.stack([without[s] / whole for s in everyone])
    second = np.ones((k, *p.shape))
    for s, t in itertools.permutations(everyone, 2):
        pair = _set_probability(p, _less(_less(everyone, s), t), p[s] + p[t])
        second[s, t] = pair / without[s]
    return first.astype(p.dtype), second.astype(p.dtype)


def _less(items: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(i for i in items if i != one)


def _set_probability(
    p: np.ndarray, members: tuple[int, ...], excluded: float | np.ndarray
) -> np.ndarray:
    """Probability that the first draws without replacement are `members`, in any order.

    The domain lacks outcomes of total mass `excluded`. P(T) is the sum over the last one drawn, t,
    of P(T without t) p(t) / (1 - excluded - mass of T without t).
    """
    found: dict[frozenset[int], np.ndarray] = {frozenset(): np.ones(p.shape[1:])}
    for size in range(1, len(members) + 1):
        for some in itertools.combinations(members, size):
            parts = np.zeros(p.shape[1:])
            for t in some:
                before = frozenset(some) - {t}
                left = 1.0 - excluded - sum(p[i] for i in before)
                # Rounding must not take the rest below the outcome that is part of it.
                parts = parts + found[before] * p[t] / np.maximum(left, p[t])
            found[frozenset(some)] = parts
    return found[frozenset(members)]


explain_calls(globals())
