"""Random matchings: each source has one destination, each destination one source, or two.

The normaliser is a permanent (or its like with pairs), summed over subsets of the destinations:
sources are taken one after another, and a state says how often each destination was taken. It is
exact, costs O(n 2^n) instead of n!, is differentiable, and gives exact draws from its own tables.
For larger n belief propagation gives Bethe's approximation (Vontobel 2013).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.late import optimize
from probtorch.core.told import read
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, logaddexp
from probtorch.ops.extremes import amax, argmax
from probtorch.ops.gathering import gather, index_select
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.pieces import flip, stack
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.ops.scattering import one_hot
from probtorch.tensor import Tensor

__all__ = ["OneOneMatching", "OneTwoMatching"]

# States of the widest step: a double each, times the destinations while it is summed.
MOST_STATES = 1 << 20


@dataclass(frozen=True)
class _Steps:
    """For each source but in the order of sources: where states come from.

    `before[k][s, d]` is the place, among the states after k sources, of state s after k + 1 with
    one less of destination d; `allowed[k]` says where that exists.
    """

    before: list[np.ndarray]
    allowed: list[np.ndarray]


@functools.lru_cache(maxsize=16)
def _steps(destins: int, capacity: int) -> _Steps:
    codes = np.arange((capacity + 1) ** destins)
    digits = codes[:, None] // (capacity + 1) ** np.arange(destins) % (capacity + 1)
    taken = digits.sum(-1)
    places = np.zeros(len(codes), int)
    layers = [np.flatnonzero(taken == k) for k in range(capacity * destins + 1)]
    for layer in layers:
        places[layer] = np.arange(len(layer))
    before, allowed = [], []
    for layer in layers[1:]:
        some = digits[layer] > 0
        less = layer[:, None] - (capacity + 1) ** np.arange(destins)
        before.append(np.where(some, places[np.where(some, less, 0)], 0))
        allowed.append(some)
    return _Steps(before, allowed)


class MatchingConstraint(Constraint):
    """Vectors of destinations, each of which stands `capacity` times."""

    event_dim = 1
    is_discrete = True

    def __init__(self, destins: int, capacity: int) -> None:
        self.destins, self.capacity = destins, capacity

    def check(self, value: Tensor) -> Tensor:
        places = value.new_tensor(np.arange(self.destins))
        counts = total(eq(unsqueeze(value, -1), places), -2)
        return every(eq(counts, self.capacity), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        row = np.repeat(np.arange(self.destins), self.capacity)
        return wrap(row.astype(value.array.dtype))


class _Matching(Distribution):
    """What both kinds share; a destination has `capacity` sources."""

    logits: Parameter = param(constraints.independent(constraints.real, 2))
    bp_iters: int | None = setting(default=None)
    has_enumerate_support = True
    _takes_integers = True
    capacity = 1

    def _bp_iters(self) -> None:
        return None

    @property
    def num_sources(self) -> int:
        """Number of sources."""
        return self.logits.array.shape[-2]

    @property
    def num_destins(self) -> int:
        """Number of destinations."""
        return self.logits.array.shape[-1]

    @constraints.dependent_property(event_dim=1, is_discrete=True)
    def support(self) -> Constraint:
        """Vectors of destinations in which each stands as often as it has sources."""
        return MatchingConstraint(self.num_destins, self.capacity)

    def _infer_event_shape(self) -> Shape:
        shape, name = self.logits.array.shape, type(self).__name__
        if shape[-2] != self.capacity * shape[-1] or not shape[-1]:
            raise ShapeError(
                name,
                expected=f"logits of shape (..., {'2 * ' if self.capacity == 2 else ''}n, n)",
                got=f"shape {shape}",
                fix="give one row for each source and one column for each destination",
            )
        if self.bp_iters is not None and not (isinstance(self.bp_iters, int) and self.bp_iters > 0):
            raise ArgumentError(
                name,
                expected="bp_iters, a whole number from 1 on, or None for exact sums",
                got=repr(self.bp_iters),
                fix="10 is usually enough",
            )
        return (shape[-2],)

    # ------------------------------------------------------------------------------ exact

    def _states(self) -> _Steps:
        n = self.num_destins
        if (self.capacity + 1) ** n > MOST_STATES:
            raise ArgumentError(
                type(self).__name__,
                expected=f"at most {int(math.log(MOST_STATES, self.capacity + 1))} destinations "
                "for exact sums and draws",
                got=f"{n}",
                fix="pass bp_iters=10: log_prob is then an approximation, and draws are refused",
            )
        return _steps(n, self.capacity)

    def _tables(self) -> list[Tensor]:
        """Log sums over the ways to each state, for each number of sources."""
        steps, logits = self._states(), self.logits
        batch = logits.array.shape[:-2]
        tables = [logits.new_zeros((*batch, 1))]
        for k, (before, allowed) in enumerate(zip(steps.before, steps.allowed, strict=True)):
            ways = index_select(tables[-1], -1, wrap(before.ravel()))
            ways = reshape(ways, (*batch, *before.shape))
            closed = logits.new_tensor(np.where(allowed, 0.0, -math.inf))
            tables.append(logsumexp(ways + unsqueeze(logits[..., k, :], -2) + closed, -1))
        return tables

    @property
    def log_partition_function(self) -> Tensor:
        """Log of the sum of exp(sum of logits) over all matchings, shape ``batch_shape``."""
        if self.bp_iters is None or self.num_destins == 1:
            return self._tables()[-1][..., 0]
        return self._bethe(self.bp_iters)

    def _log_prob(self, x: Tensor) -> Tensor:
        chosen = one_hot(cast(x, int64), self.num_destins)
        return total(self.logits * chosen, (-2, -1)) - self.log_partition_function

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        steps, tables, logits = self._states(), self._tables(), self.logits
        whole = (*shape[:-1], self.num_destins)
        state = cast(rng.uniform(shape[:-1]) * 0.0, int64)
        drawn = []
        for k in reversed(range(self.num_sources)):
            widest, flat = (*shape[:-1], tables[k].array.shape[-1]), reshape(state, (-1,))
            before = reshape(index_select(wrap(steps.before[k]), 0, flat), whole)
            closed = logits.new_tensor(np.where(steps.allowed[k], 0.0, -math.inf))
            ways = gather(expand(tables[k], widest), -1, before) + logits[..., k, :]
            ways = ways + reshape(index_select(closed, 0, flat), whole)
            # The largest of the sums with Gumbel noise is a draw with these log weights.
            best = argmax(ways - log(rng.exponential(whole)), -1)
            drawn.append(best)
            state = gather(before, -1, unsqueeze(best, -1))[..., 0]
        return flip(stack(drawn, -1), (-1,))

    def _enumerate_support(self) -> Tensor:
        n = self.num_sources
        if n > 8:
            raise ArgumentError(
                f"{type(self).__name__}.enumerate_support",
                expected="at most 8 sources",
                got=f"{n}",
                fix="log_partition_function sums over all matchings without listing them",
            )
        row = [d for d in range(self.num_destins) for _ in range(self.capacity)]
        return wrap(np.array(sorted(set(itertools.permutations(row)))))

    def _mode(self) -> Tensor:
        read("the mode of a matching", self.logits)
        costs = to_host(self.logits.array)
        flat = np.repeat(costs, self.capacity, -1).reshape(-1, self.num_sources, self.num_sources)
        best = [optimize.linear_sum_assignment(c, maximize=True)[1] // self.capacity for c in flat]
        return wrap(np.array(best).reshape(costs.shape[:-1]))

    # ------------------------------------------------------------------------------ approximate

    def _bethe(self, count: int) -> Tensor:
        """Bethe's approximation of the log normaliser, by messages between rows and columns.

        `out` and `back` are the log odds that a row, and a column, give to each edge, from what the
        other edges say. The logits are shared out to rows alone.
        """
        back = out = self.logits * 0.0
        for _ in range(count):
            out = self.logits - _log_others(self.logits + back, -1, 1)
            fewer = _log_others(out, -2, self.capacity - 1)
            back = fewer - _log_others(out, -2, self.capacity)
        rows = logsumexp(self.logits + back, -1)
        columns = _log_symmetric(out.mT, self.capacity)
        edges = logaddexp(back + out, 0.0)
        return total(rows, -1) + total(columns, -1) - total(edges, (-2, -1))


def _log_symmetric(x: Tensor, order: int) -> Tensor:
    """Log of the sum over choices of `order` entries of the product of their exponentials."""
    top = amax(x.detach(), -1, True)
    u = exp(x - top)
    first = total(u, -1, True)
    chosen = first if order == 1 else 0.5 * total(u * (first - u), -1, True)
    return (log(chosen) + order * top)[..., 0]


def _log_others(x: Tensor, dim: int, order: int) -> Tensor:
    """For each entry, the log of the sum over choices of `order` of the others."""
    last = movedim(x, dim, -1)
    if not order:
        return x * 0.0
    apart = np.where(np.eye(last.array.shape[-1], dtype=bool), -math.inf, 0.0)
    others = unsqueeze(last, -2) + x.new_tensor(apart)
    return movedim(_log_symmetric(others, order), -1, dim)


class OneOneMatching(_Matching):
    """Random permutation: each source has a destination of its own.

    A matching v has a probability proportional to the exponential of the sum of
    ``logits[i, v[i]]``.

    Probability ``p(x) = exp(sum(logits[i, x[i]] for i in range(n))) / sum(exp(sum(logits[i, v[i]]
    for i in range(n))) for v in permutations(n))`` with ``n = len(x)``.

    There the sum is over all matchings.

    Parameters
    ----------
    logits : Tensor, shape (..., n, n)
        Rows are sources, columns destinations.
    bp_iters : int, optional
        Steps of belief propagation, for Bethe's approximation of the normaliser, which is never too
        large. By default it is exact, at a cost of O(n 2^n), up to 20 destinations.

    Notes
    -----
    Values are whole numbers, the destination of each source. The signature is Pyro's; draws are
    exact, and batches are new. The mode is that of an assignment problem, solved by SciPy.

    References
    ----------
    Vontobel (2013), "The Bethe permanent of a nonnegative matrix".
    """


class OneTwoMatching(_Matching):
    """Random assignment of sources to destinations that takes each destination twice.

    A matching v has a probability proportional to the exponential of the sum of
    ``logits[i, v[i]]``.

    Probability ``p(x) = exp(sum(logits[i, x[i]] for i in range(2 * n))) / sum(exp(sum(logits[i,
    v[i]] for i in range(2 * n))) for v in pairings(n))`` with ``n = len(x) / 2``.

    There the sum is over all matchings.

    Parameters
    ----------
    logits : Tensor, shape (..., 2 n, n)
        Rows are sources, columns destinations.
    bp_iters : int, optional
        Steps of belief propagation, for Bethe's approximation of the normaliser. By default it is
        exact, at a cost of O(n 3^n), up to 12 destinations.

    Notes
    -----
    Values are whole numbers, the destination of each source. The signature is Pyro's; draws are
    exact, and batches are new. The mode is that of an assignment problem, solved by SciPy.
    """

    capacity = 2
