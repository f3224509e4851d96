"""Bounds that several samples make together, and `VIMCO`, their estimator.

The objective is L = E[log mean of exp(w(z_k))] over K independent draws of q, as in importance
weighted inference (Burda et al. 2016), where w = log p - log q. Its score-function gradient has the
whole bound as a factor for every draw; VIMCO (Mnih and Rezende 2016) takes what the draw itself
adds: the bound minus the one in which its weight is replaced by the geometric mean of the others.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record
from probtorch.distributions.distribution import Distribution
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal, joined
from probtorch.ops.arithmetic import where
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["VIMCO", "log_mean_exp", "vimco_signals"]


def log_mean_exp(log_w: Tensor) -> Tensor:
    """Return log of the mean of exp(log_w) over the first dim."""
    return logsumexp(log_w, 0) - math.log(log_w.array.shape[0])


def vimco_signals(log_w: Tensor) -> Tensor:
    """Return what each sample adds to the bound: the factor of its score.

    Parameters
    ----------
    log_w : Tensor, shape (K, ...), K >= 2
        Log weights.

    Returns
    -------
    Tensor, shape (K, ...)
        The bound minus the one with the sample's weight replaced by the geometric mean of the
        others; without gradient.
    """
    log_w = log_w.detach()
    k = log_w.array.shape[0]
    others = (total(log_w, 0, True) - log_w) / (k - 1)
    diagonal = np.eye(k, dtype=bool).reshape(k, k, *(1,) * (log_w.array.ndim - 1))
    # Row i along the second dim has the weights with the i-th replaced.
    replaced = where(wrap(diagonal), unsqueeze(others, 0), unsqueeze(log_w, 1))
    return log_mean_exp(log_w) - log_mean_exp(replaced)


@record
class VIMCO(Estimator):
    """Variational inference for Monte Carlo objectives (Mnih and Rezende 2016).

    For `log_mean_exp_bound` and ``ImportanceWeightedELBO(gradient="vimco")``: it estimates the
    gradient of the bound of all samples together, not of E_q[cost]. Applies to every distribution
    with a density; at least 2 samples.
    """

    name: ClassVar[str] = "vimco"

    @property
    def min_samples(self) -> int:
        """The others have a mean."""
        return 2

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why there is no score."""
        return None if hasattr(q, "log_prob") else Refusal("a distribution with a density", repr(q))

    def estimate(self, problem: Problem) -> Estimated:
        """Return the bound; the cost is the log weight."""
        z = problem.sample()
        log_w = problem.cost(z)
        score = joined(problem.log_prob(z), log_w)
        value = log_mean_exp(log_w)
        return Estimated(value, value + total(score * vimco_signals(log_w), 0))


explain_calls(globals())
