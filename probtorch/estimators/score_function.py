"""The score function and DiCE: estimators that need log q and nothing else of the distribution.

For draws z of q,

    grad E[f(z)] = E[grad f(z) + (f(z) - b) grad log q(z)]

for every baseline b that does not depend on z (Williams 1992). `ScoreFunction` puts that into a
surrogate. `DiCE` (Foerster et al. 2018) does it by a factor exp(log q - stop(log q)), which is 1
and has the right derivatives of every order; with the baseline term of Mao et al. (2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from probtorch.core.dispatch import grad_enabled
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record, static
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, ShapeError
from probtorch.estimators.protocol import Estimated, Estimator, Memory, Problem, Refusal, joined
from probtorch.ops.exponentials import exp
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "BASELINES",
    "DiCE",
    "ScoreFunction",
    "check_baseline",
    "leave_one_out",
    "moving_average",
]

# None, one of `BASELINES`, a tensor, or a function without arguments that returns one.
Baseline: TypeAlias = TensorLike | str | Callable[[], TensorLike] | None

BASELINES = ("leave_one_out", "moving_average")


class _Scored(Estimator):
    """What both share: the options and the baseline."""

    mixes: ClassVar[bool] = True
    baseline: Baseline
    decay: float

    @property
    def min_samples(self) -> int:
        """Leaving one out leaves at least one."""
        return 2 if self._is("leave_one_out") else 1

    def _is(self, name: str) -> bool:
        return isinstance(self.baseline, str) and self.baseline == name

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why there is no score: q has no density, or a baseline is unknown."""
        if isinstance(self.baseline, str) and self.baseline not in BASELINES:
            options = ", ".join(map(repr, BASELINES))
            return Refusal(
                f"baseline None, {options}, a tensor, or a function without arguments",
                repr(self.baseline),
            )
        if not hasattr(q, "log_prob"):
            return Refusal("a distribution with a log density", "one without")
        return None

    def reduced(self, cost: Tensor, memory: Memory | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the baseline of detached costs, shape (n, *C), and what trains it, or None."""
        base = self.baseline
        if base is None:
            return None, None
        if self._is("leave_one_out"):
            return leave_one_out(cost), None
        if self._is("moving_average"):
            return moving_average(cost, self.decay, memory), None
        base = as_tensor(base() if callable(base) else base, "baseline")
        check_baseline(base, cost.array.shape)
        if not base.requires_grad:
            return base, None
        error = cost - base
        return base.detach(), total(error * error) / cost.array.shape[0]


@record
class ScoreFunction(_Scored):
    """The score function, also called REINFORCE (Williams 1992; Glynn 1990).

    Applies to every distribution with a density, and to every cost. Its variance is that of the
    cost times the score: use a baseline.

    Parameters
    ----------
    baseline : None, "leave_one_out", "moving_average", Tensor or callable
        What is subtracted from the cost. "leave_one_out": the mean cost of the other samples (Kool
        et al. 2019), which needs at least 2; in inference these are the particles.
        "moving_average": of the costs of earlier calls, which needs a `memory`. A tensor, or a
        function without arguments that returns one, must not depend on the draw; its own
        parameters are trained by least squares (`control_loss`).
    decay : float
        Share of the moving average that is kept at each call.
    """

    name: ClassVar[str] = "score_function"
    baseline: Baseline = static(default=None)
    decay: float = static(default=0.9)

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost; its surrogate adds costs times log densities."""
        z = problem.sample()
        cost = problem.cost(z)
        score = joined(problem.log_prob(z), cost)
        gain = cost.detach()
        base, loss = self.reduced(gain, problem.memory)
        if base is not None:
            gain = gain - base
        return Estimated(mean(cost, 0), mean(cost + score * gain, 0), loss)


@record
class DiCE(_Scored):
    """The infinitely differentiable Monte Carlo estimator (Foerster et al. 2018).

    As `ScoreFunction`, to which its first derivative is equal; derivatives of every order are
    unbiased too.

    Parameters
    ----------
    baseline, decay
        See `ScoreFunction`. The baseline enters every order (Mao et al. 2019).
    """

    name: ClassVar[str] = "dice"
    all_orders: ClassVar[bool] = True
    baseline: Baseline = static(default=None)
    decay: float = static(default=0.9)

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost times the factor that is 1."""
        z = problem.sample()
        cost = problem.cost(z)
        score = joined(problem.log_prob(z), cost)
        one = exp(score - score.detach())
        value = cost * one
        base, loss = self.reduced(cost.detach(), problem.memory)
        if base is not None:
            value = value + (1.0 - one) * base
        value = mean(value, 0)
        return Estimated(value, value, loss)


def check_baseline(base: Tensor, shape: tuple[int, ...], at: str | None = None) -> None:
    """Raise ShapeError if a baseline does not broadcast to a shape: costs would count repeatedly.

    Parameters
    ----------
    base : Tensor
    shape : tuple of int
    at : str, optional
        The "file:line" to blame.
    """
    have = base.array.shape
    fits = len(have) <= len(shape) and all(
        size in (1, full) for size, full in zip(have[::-1], shape[::-1])
    )
    if not fits:
        raise ShapeError(
            "baseline",
            expected=f"a shape that broadcasts to {tuple(shape)}",
            got=str(tuple(have)),
            fix="return one number, or one per row of the cost",
            at=at,
        )


def leave_one_out(cost: Tensor) -> Tensor:
    """Return for every sample (along the first dim) the mean cost of the others."""
    n = cost.array.shape[0]
    return (total(cost, 0, True) - cost) / (n - 1)


def moving_average(cost: Tensor, decay: float, memory: Memory | None) -> Tensor:
    """Return the average of earlier costs, 0 at the first call; then take these in."""
    if memory is None:
        raise ArgumentError(
            "baseline 'moving_average'",
            expected="a memory that is kept from call to call",
            got="none",
            fix="make one dict and pass it to every call: memory={}, expectation(..., "
            "memory=memory)",
        )
    now = mean(cost, 0).detach()
    before = memory.get("average")
    if before is not None and before.array.shape != now.array.shape:
        # Another number of rows, as in the last minibatch: their common mean serves.
        before = now * 0.0 + mean(before)
    if grad_enabled():
        new = now * (1.0 - decay) if before is None else now * (1.0 - decay) + before * decay
        memory["average"] = new.detach()
    return cost * 0.0 if before is None else before


explain_calls(globals())
