"""REBAR and RELAX: the score function with a control variate that is differentiable.

A discrete draw b is the hard version of a continuous z; let z' be a second one, drawn given b. For
every function c of z,

    grad E[f(b)] = E[(f(b) - c(z')) grad log q(b) + grad c(z) - grad c(z')],

and the closer c(z') is to f(b), the smaller the variance. REBAR (Tucker et al. 2017) takes the cost
itself at the relaxed draw, RELAX (Grathwohl et al. 2018) any function, such as a network. Their own
parameters are trained to make the variance small (`control_loss`); their gradient in the estimate
proper is cut off, where it would be noise around 0.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.casting import cast
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record, static
from probtorch.core.typed import TensorLike
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ShapeError
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal, joined
from probtorch.estimators.relaxed import (
    conditional_noise,
    log_weights,
    relaxed,
    relaxed_refusal,
    unconditional,
    uniforms,
)
from probtorch.ops.exponential_sums import log_softmax
from probtorch.ops.exponentials import softplus
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total
from probtorch.ops.scattering import one_hot
from probtorch.tensor import Tensor

__all__ = ["REBAR", "RELAX"]


class _Controlled(Estimator):
    @abc.abstractmethod
    def control(self, problem: Problem) -> Callable[[Tensor], Tensor]:
        """Return the function c from continuous z, shape (n, ...), to costs, shape (n, *C)."""

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost of the discrete draws."""
        q, drawn = problem.q, problem.sample()
        cost = problem.cost(drawn)
        weights = log_weights(q)
        hard = _indicators(q, drawn, weights)
        v, v_given = uniforms(problem, hard), uniforms(problem, hard)
        z = unconditional(conditional_noise(q, weights.detach(), hard, v), weights)
        z_given = conditional_noise(q, weights, hard, v_given)
        control = self.control(problem)
        free, given = _along(control, z, q), _along(control, z_given, q)
        if free.array.shape != cost.array.shape:
            # Broadcast, one of the two would be counted several times.
            raise ShapeError(
                f"{type(self).__name__}: the control variate",
                expected=f"the shape of the cost, {tuple(cost.shape[1:])} over the batch dims",
                got=str(tuple(free.shape[1:])),
                fix="return one number per row where the cost has rows, and one where it is joint",
            )
        score = joined(problem.log_prob(drawn), cost)
        surrogate = cost + score * (cost - given).detach() + (free - given)
        loss = None
        if problem.learn:
            loss = self._loss(q, control, cost.detach(), weights.detach(), hard, z, v_given)
        return Estimated(mean(cost, 0), mean(surrogate, 0), loss)

    def _loss(
        self,
        q: Distribution,
        control: Callable[[Tensor], Tensor],
        cost: Tensor,
        weights: Tensor,
        hard: Tensor,
        z: Tensor,
        v_given: Tensor,
    ) -> Tensor:
        """Mean squared gradient of a sample, differentiable in what `control` is made of."""
        n = hard.array.shape[0]
        with enable_grad():
            own = weights.expand((n, *weights.array.shape)).clone().detach().requires_grad_()
            logs = own if isinstance(q, Bernoulli) else log_softmax(own, -1)
            free = control(unconditional(z.detach(), logs))
            given = control(conditional_noise(q, logs, hard, v_given))
            if isinstance(q, Bernoulli):
                score = -softplus(own * (1.0 - 2.0 * hard))
            else:
                score = total(hard * logs, -1)
            (by_score,) = grad(total(score), own, retain_graph=True)
            gain = cost - given
            gain = gain if isinstance(q, Bernoulli) else unsqueeze(gain, -1)
            (path,) = grad(total(free - given), own, create_graph=True, materialize_grads=True)
            found = by_score * gain + path
            return total(found * found) / n


@record
class REBAR(_Controlled):
    """The score function with the relaxed cost as its control variate (Tucker et al. 2017).

    Applies to Bernoulli and OneHotCategorical, and to costs that can be evaluated, and
    differentiated, between their values. Three evaluations per sample.

    Parameters
    ----------
    temperature : float or Tensor, > 0
        Of the relaxed draws.
    scale : float or Tensor
        What the control variate is multiplied with.
    """

    name: ClassVar[str] = "rebar"
    relaxes: ClassVar[bool] = True
    temperature: float | Tensor = 0.5
    scale: float | Tensor = 1.0

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why q has no relaxation."""
        return relaxed_refusal(q)

    def control(self, problem: Problem) -> Callable[[Tensor], Tensor]:
        """Return the scaled cost of the relaxed draw."""
        return lambda z: problem.cost(relaxed(problem.q, z, self.temperature)) * self.scale


@record
class RELAX(_Controlled):
    """The score function with a control variate of one's own (Grathwohl et al. 2018).

    Applies to Bernoulli, Categorical and OneHotCategorical; the cost is evaluated at draws only,
    once per sample, and may be a black box.

    Parameters
    ----------
    control_variate : callable
        From the continuous z to a cost of the same shape as the cost proper (in a guide, one per
        row of the site's plates, of that row's z alone): z is log odds plus logistic noise for
        Bernoulli; log p plus Gumbel noise, with the categories last, for the others.
    """

    name: ClassVar[str] = "relax"
    mixes: ClassVar[bool] = True
    control_variate: Callable[[Tensor], TensorLike] | None = static(default=None)

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why q is not the hard version of anything, or that the function is missing."""
        if not callable(self.control_variate):
            return Refusal("a function as control_variate", repr(self.control_variate))
        if isinstance(q, (Bernoulli, Categorical, OneHotCategorical)):
            return None
        expected = "a Bernoulli, Categorical or OneHotCategorical"
        return Refusal(expected, f"a {type(q).__name__}")

    def control(self, problem: Problem) -> Callable[[Tensor], Tensor]:
        """Return the control variate, its shape checked."""
        assert self.control_variate is not None  # `refusal` asks for it
        return problem.cost.like(self.control_variate)


def _indicators(q: Distribution, drawn: Tensor, weights: Tensor) -> Tensor:
    """Draws as 0 and 1 in the dtype of the weights, one per category if there are several."""
    dtype = weights.array.dtype
    return cast(one_hot(drawn, q.num_categories) if isinstance(q, Categorical) else drawn, dtype)


def _along(control: Callable[[Tensor], Tensor], z: Tensor, q: Distribution) -> Tensor:
    """control(z) with its gradient through z alone."""
    leaf = z.detach().requires_grad_()
    with enable_grad():
        c = control(leaf)
        if not c.requires_grad:
            return c
        (slope,) = grad(total(c), leaf, materialize_grads=True)
    moved = (z - z.detach()) * slope
    return c.detach() + joined(moved if isinstance(q, Bernoulli) else total(moved, -1), c)


explain_calls(globals())
