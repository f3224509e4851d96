"""Orders and shares of a stick: permutations by worth, weights broken off one after the other."""

from __future__ import annotations

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, one_of, param, setting
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp, expm1, log
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.scans import logcumsumexp
from probtorch.ops.sorting import argsort, sort
from probtorch.tensor import Tensor

__all__ = ["PlackettLuce", "StickBreakingWeights"]


class Permutation(Constraint):
    """Vectors that hold each of the numbers 0, ..., n - 1 once."""

    event_dim = 1
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        places = value.new_tensor(np.arange(value.array.shape[-1]))
        return every(eq(sort(value, -1)[0], places), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        return value.new_tensor(np.arange(value.array.shape[-1]))


class PlackettLuce(Distribution):
    """Orders of n things, the best first, each place won with a probability in proportion to worth.

    Probability ``p(x) = prod(scores[x[i]] / sum(scores[x[j]] for j in range(i, n)) for i in
    range(n))`` with ``n = len(x)``.

    Parameters
    ----------
    scores : Tensor, shape (..., n), positive, optional
        What the things are worth.
    logits : Tensor, shape (..., n), optional
        Logarithms of that; exactly one of the two is given.
    """

    scores: Parameter = param(constraints.independent(constraints.positive, 1), default=None)
    logits: Parameter = param(constraints.real_vector, default=None)
    given = one_of("scores", "logits")
    support = Permutation()
    _takes_integers = True

    def _scores(self) -> Tensor:
        return exp(self.logits)

    def _logits(self) -> Tensor:
        return log(self.scores)

    def _infer_event_shape(self) -> Shape:
        return (self.logits if self._given("logits") else self.scores).array.shape[-1:]

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        # The order of exponential times with these rates (Yellott 1977).
        return argsort(log(rng.exponential(shape)) - self.logits, -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        index = cast(x, int64)
        shape = broadcast_shapes(index.array.shape, self.logits.array.shape, op="PlackettLuce")
        worth = gather(expand(self.logits, shape), -1, expand(index, shape))
        left = flip(logcumsumexp(flip(worth, (-1,)), -1), (-1,))
        return total(worth - left, -1)

    def _mode(self) -> Tensor:
        return argsort(-self.logits, -1)


class StickBreakingWeights(Distribution):
    """Shares of a stick that is broken `K` times, each time at a beta share of what is left.

    Density ``f(x) = alpha ** K * x[K] ** (alpha - 1) / prod(1 - sum(x[j] for j in range(k))
    for k in range(K))``.

    The weights of a truncated Dirichlet process, in the order of breaking; the last is what
    remains.

    Parameters
    ----------
    alpha : Tensor or number, positive
        Shares are beta with exponents 1 and alpha: large for many small weights.
    K : int
        Number of breaks; there are K + 1 weights.
    """

    alpha: Parameter = param(constraints.positive)
    K: int = setting()
    support = constraints.simplex

    def _infer_event_shape(self) -> Shape:
        if isinstance(self.K, bool) or not isinstance(self.K, int) or self.K < 1:
            raise ArgumentError(
                "StickBreakingWeights",
                expected="K, a whole number of breaks from 1 on",
                got=repr(self.K),
                fix="write StickBreakingWeights(alpha, K=20)",
            )
        return (self.K + 1,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        # What is left is a power of a uniform number, whose logarithm is exponential.
        lost = rng.exponential((*shape[:-1], self.K)) / unsqueeze(self.alpha, -1)
        left = -cumsum(lost, -1)
        before = cat([left[..., :1] * 0.0, left[..., :-1]], -1)
        broken = exp(before) * -expm1(-lost)
        return rng.positive(cat([broken, exp(left[..., -1:])], -1))

    def _log_prob(self, x: Tensor) -> Tensor:
        # Sums from the end: what is left before each break.
        left = flip(cumsum(flip(x, (-1,)), -1), (-1,))[..., 1:-1]
        size = float(self.K) * log(self.alpha)
        return size + (self.alpha - 1.0) * log(x[..., -1]) - total(log(left), -1)

    def _powers(self, ratio: Tensor, first: Tensor) -> Tensor:
        """Return first * ratio ** k for the weights, and ratio ** K for the last."""
        k = ratio.new_tensor(np.arange(float(self.K)))
        logs = unsqueeze(log(ratio), -1)
        return cat([unsqueeze(first, -1) * exp(logs * k), exp(logs * float(self.K))], -1)

    def _mean(self) -> Tensor:
        a = self.alpha
        return self._powers(a / (1.0 + a), 1.0 / (1.0 + a))

    def _variance(self) -> Tensor:
        a, m = self.alpha, self._mean()
        return self._powers(a / (2.0 + a), 2.0 / ((1.0 + a) * (2.0 + a))) - m * m

    def _entropy(self) -> Tensor:
        # Of the shares, -log(alpha) + (alpha - 1) / alpha each, and of the map to weights.
        a, n = self.alpha, float(self.K)
        return n * ((a - 1.0) / a - log(a)) - (0.5 * n * (n - 1.0)) / a
