"""ARM and DisARM: pairs of opposite draws of binary variables.

With u uniform, b = [u < p] and b' = [u > 1 - p] are both Bernoulli(p), and as different as they
can be. `ARM` (augment-REINFORCE-merge; Yin and Zhou 2019) weights the difference of their costs
with u - 1/2; `DisARM` (Dong, Mnih, Tucker 2020; U2G of Yin et al. 2020) with the mean of that given
b and b', so it has never more variance.

Both serve any number of variables with one pair per sample: each has a u of its own. A cost per row
keeps the rows apart.
"""

from __future__ import annotations

import abc
from typing import ClassVar

from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.distribution import Distribution
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal, joined
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import sigmoid
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = ["ARM", "DisARM", "binary_logits"]


def binary_logits(q: Distribution) -> Tensor:
    """Return the log odds of the second of two outcomes, shape B."""
    if isinstance(q, Bernoulli):
        return q.logits
    assert isinstance(q, Categorical)  # what `refusal` lets through
    logs = q.logits
    return logs[..., 1] - logs[..., 0]


class _Antithetic(Estimator):
    mixes: ClassVar[bool] = True

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why q is not binary."""
        expected = "a distribution with two outcomes, Bernoulli or Categorical"
        if isinstance(q, Categorical):
            n = q.num_categories
            return None if n == 2 else Refusal(expected, f"a Categorical with {n}")
        if isinstance(q, Bernoulli):
            return None
        return Refusal(expected, f"a {type(q).__name__}")

    @abc.abstractmethod
    def weight(self, u: Tensor, b: Tensor, opposite: Tensor, logits: Tensor) -> Tensor:
        """Return what the difference of costs f(b) - f(b') is multiplied with, shape (n, *B)."""

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost of the pairs."""
        drawn = problem.sample()
        logits = binary_logits(problem.q)
        b = cast(drawn, logits.array.dtype)
        p, v = sigmoid(logits).detach(), problem.uniform(drawn)
        # The u that b came from, given b.
        u = where(b > 0.5, p * v, p + (1.0 - p) * v)
        opposite = where(u > 1.0 - p, 1.0, 0.0)
        n = drawn.array.shape[0]
        cost = problem.cost(cat([drawn, cast(opposite, drawn.array.dtype)], 0))
        one, other = cost[:n], cost[n:]
        difference = (one - other).detach()
        weight = self.weight(u, b, opposite, logits.detach())
        value = (one + other) * 0.5
        odds = as_tensor(logits).expand(tuple(b.shape))
        surrogate = value + joined(odds * (difference * weight), cost)
        return Estimated(mean(value, 0), mean(surrogate, 0))


@record
class ARM(_Antithetic):
    """Augment-REINFORCE-merge (Yin and Zhou 2019).

    Applies to Bernoulli and to Categorical with two categories, with probabilities inside (0, 1).
    Costs two evaluations per sample. `DisARM` has less variance at the same cost.
    """

    name: ClassVar[str] = "arm"

    def weight(self, u: Tensor, b: Tensor, opposite: Tensor, logits: Tensor) -> Tensor:
        """Return 1/2 - u."""
        return 0.5 - u


@record
class DisARM(_Antithetic):
    """ARM with its continuous noise integrated out (Dong et al. 2020; U2G, Yin et al. 2020).

    Applies to Bernoulli and to Categorical with two categories, with probabilities inside (0, 1).
    Costs two evaluations per sample.
    """

    name: ClassVar[str] = "disarm"

    def weight(self, u: Tensor, b: Tensor, opposite: Tensor, logits: Tensor) -> Tensor:
        """Return (-1)^b' [b != b'] sigmoid(|logits|) / 2."""
        return (b - opposite) * (sigmoid(absolute(logits)) * 0.5)


explain_calls(globals())
