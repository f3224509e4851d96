"""Gumbel-softmax and straight-through: low variance, and a bias that the record declares.

Also the noise of relaxations: a discrete draw b is the hard version of a continuous z (logistic
noise for Bernoulli, Gumbel noise for one-hot categories), and z can be drawn given b. The control
variates of control_variates.py stand on the same functions.
"""

from __future__ import annotations

import abc
from typing import ClassVar

from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record, static
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.distributions.distribution import Distribution
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal
from probtorch.ops.arithmetic import where
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import log, log1p, sigmoid, softplus
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "GumbelSoftmax",
    "StraightThrough",
    "conditional_noise",
    "log_weights",
    "relaxed",
    "relaxed_refusal",
    "unconditional",
    "uniforms",
]


def log_weights(q: Distribution) -> Tensor:
    """Return the parameters that the noise is added to: log odds, or log-probabilities."""
    if isinstance(q, Bernoulli):
        return q.logits
    assert isinstance(q, (Categorical, OneHotCategorical))  # what `refusal` lets through
    return q._log_weights()


def conditional_noise(q: Distribution, weights: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Return continuous z whose hard version is b, given uniforms v: differentiable in `weights`.

    For Bernoulli z = logits + logit(u) with z > 0 where b = 1; for one-hot categories z = log p +
    Gumbel noise with the largest where b is (Maddison et al. 2014; Tucker et al. 2017, appendix).
    """
    if isinstance(q, Bernoulli):
        e = log(v) - log1p(-v)
        return where(b > 0.5, softplus(e + softplus(weights)), -softplus(e + softplus(-weights)))
    waiting = -log(v)
    top = total(waiting * b, -1, True)
    # exp(-weights) waits longer the less likely; the winner's time is given and not differentiable.
    return where(b > 0.5, -log(top), -log(waiting * (-weights).exp() + top))


def unconditional(z: Tensor, weights: Tensor) -> Tensor:
    """Return the same z as a function of `weights` at fixed noise, not at fixed b."""
    return z.detach() + (weights - weights.detach())


def relaxed(q: Distribution, z: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the relaxed draw: a number in (0, 1), or a point of the simplex."""
    if isinstance(q, Bernoulli):
        return sigmoid(z / temperature)
    return softmax(z / temperature, -1)


def relaxed_refusal(q: Distribution) -> Refusal | None:
    """Return why the draws of q have no values in between."""
    if isinstance(q, (Bernoulli, OneHotCategorical)):
        return None
    got = f"a {type(q).__name__}"
    if type(q).__name__ == "Categorical":
        got += ", whose values are numbers of categories: there is nothing between them"
    return Refusal("a Bernoulli or a OneHotCategorical, whose values can be relaxed", got)


def uniforms(problem: Problem, b: Tensor) -> Tensor:
    """Return the uniforms that `conditional_noise` takes, one per log odds or per category."""
    q = problem.q
    if isinstance(q, Bernoulli):
        return problem.uniform(b)
    assert isinstance(q, (Categorical, OneHotCategorical))  # what `refusal` lets through
    return problem.uniform(b, q.num_categories)


class _Relaxed(Estimator):
    unbiased: ClassVar[bool] = False
    all_orders: ClassVar[bool] = True
    relaxes: ClassVar[bool] = True

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why q has no relaxation."""
        return relaxed_refusal(q)

    @abc.abstractmethod
    def draw(self, problem: Problem) -> Tensor:
        """Return a draw that is differentiable in the parameters."""

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost of such draws."""
        value = mean(problem.cost(self.draw(problem)), 0)
        return Estimated(value, value)


@record
class GumbelSoftmax(_Relaxed):
    """Relaxed draws in place of discrete ones (Jang et al. 2017; Maddison et al. 2017).

    Biased, in value and gradient: the cost is averaged over relaxed draws. The bias falls and the
    variance rises as the temperature goes to 0. Applies to Bernoulli and OneHotCategorical, and to
    costs that make sense between their values.

    Parameters
    ----------
    temperature : float or Tensor, > 0
    """

    name: ClassVar[str] = "gumbel_softmax"
    temperature: float | Tensor = 0.5

    def draw(self, problem: Problem) -> Tensor:
        """Return relaxed draws."""
        b, weights = problem.sample(), log_weights(problem.q)
        z = conditional_noise(problem.q, weights.detach(), b, uniforms(problem, b))
        return relaxed(problem.q, unconditional(z, weights), self.temperature)


@record
class StraightThrough(_Relaxed):
    """Discrete draws with the gradient of something continuous (Bengio et al. 2013).

    Biased: the value is right, the gradient is not. Applies to Bernoulli and OneHotCategorical, and
    to costs that are differentiable in the draw.

    Parameters
    ----------
    temperature : float or Tensor, > 0, optional
        Gradient of the relaxed draw at this temperature (straight-through Gumbel-softmax, Jang et
        al. 2017); that of the probabilities if None.
    """

    name: ClassVar[str] = "straight_through"
    temperature: float | Tensor | None = static(default=None)

    def draw(self, problem: Problem) -> Tensor:
        """Return draws whose derivatives are those of probabilities or of relaxed draws."""
        q, b = problem.q, problem.sample()
        if self.temperature is None:
            assert isinstance(q, (Bernoulli, OneHotCategorical))  # what `refusal` lets through
            soft = q.probs
        else:
            weights = log_weights(q)
            z = conditional_noise(q, weights.detach(), b, uniforms(problem, b))
            soft = relaxed(q, unconditional(z, weights), self.temperature)
        return b + (soft - soft.detach())


explain_calls(globals())
