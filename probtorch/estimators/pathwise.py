"""`Pathwise`: gradients through the draws themselves.

A draw is a differentiable function of the parameters and of noise; where no such function is at
hand (gamma, beta, Dirichlet, Student's t, von Mises) its derivative is that at a fixed quantile,
the implicit gradient (Figurnov, Mohamed, Mnih 2018), and belongs to the distribution.
"""

from __future__ import annotations

from typing import ClassVar

from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record
from probtorch.distributions.distribution import Distribution
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal
from probtorch.ops.reduction import mean

__all__ = ["Pathwise"]


@record
class Pathwise(Estimator):
    """Pathwise gradients, also called reparameterisation (Kingma and Welling 2014).

    Applies where `has_rsample`, to costs that are differentiable in the draw. Higher derivatives
    are right as far as the distribution's draws have them; implicit gradients that do not raise.
    """

    name: ClassVar[str] = "pathwise"
    all_orders: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why there is no path."""
        if q.has_rsample:
            return None
        kind = "discrete" if q.is_discrete else "without a differentiable sampler"
        return Refusal(
            "a distribution with pathwise gradients (has_rsample)", f"one that is {kind}"
        )

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost of differentiable draws."""
        value = mean(problem.cost(problem.draws.rsample(problem.q, problem.num_samples)), 0)
        return Estimated(value, value)


explain_calls(globals())
