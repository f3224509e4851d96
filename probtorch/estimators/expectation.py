"""`expectation`: E_q[f(z)] with a gradient, by any estimator; and what their gradients vary.

The value is differentiable with respect to everything that q and f depend on. Higher derivatives
are there where the estimator has them; elsewhere asking for them raises (`_FirstOrder`), since the
tape would give numbers that are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, NotDifferentiableError
from probtorch.estimators.costs import Costs
from probtorch.estimators.multi_sample import VIMCO
from probtorch.estimators.pathwise import Pathwise
from probtorch.estimators.protocol import (
    Estimated,
    Estimator,
    Memory,
    Problem,
    SiteDraws,
    unwrapped,
)
from probtorch.estimators.registry import applicable, as_estimator, check
from probtorch.estimators.score_function import ScoreFunction
from probtorch.estimators.variance import VarianceRow, VarianceTable
from probtorch.tensor import Tensor

__all__ = ["control_loss", "expectation", "gradient_variance", "log_mean_exp_bound"]


def expectation(
    q: Distribution,
    f: Callable[[Tensor], TensorLike],
    *,
    estimator: Estimator | str | None = None,
    num_samples: int = 1,
    rng: Generator | None = None,
    vectorized: bool = False,
    memory: Memory | None = None,
    draws: SiteDraws | None = None,
) -> Tensor:
    """Return an estimate of E_q[f(z)] whose gradient estimates the gradient of E_q[f(z)].

    Parameters
    ----------
    q : Distribution
    f : callable
        From a value of q, shape ``batch_shape + event_shape``, to a cost that broadcasts to the
        batch shape. Where the cost has a batch dim of q, its entries are taken to depend on their
        own rows alone; over the others it is one cost of all elements together.
    estimator : Estimator or str, optional
        For example ``DisARM()`` or ``"disarm"``. By default `Pathwise` where q has it, else the
        score function, with the leave-one-out baseline if there are several samples.
    num_samples : int
        Samples (pairs, sets) to average over.
    rng : Generator, optional
        The default generator if None.
    vectorized : bool
        Call `f` once, with all values along a new first dim, and expect as many costs.
    memory : dict, optional
        Where a moving average is kept from call to call.
    draws : Draws, optional
        In place of `rng`: where all randomness comes from.

    Returns
    -------
    Tensor, shape of what `f` returns

    Raises
    ------
    ArgumentError
        If the estimator does not apply to q, with the reason and what would apply, or needs more
        samples.
    ShapeError
        If the cost does not broadcast to the batch shape.
    NotDifferentiableError
        At a second derivative, if the estimator has first derivatives only.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.distributions import Bernoulli
    >>> from probtorch.estimators import Enumerate, expectation
    >>> logit = probtorch.tensor(0.0, requires_grad=True)
    >>> value = expectation(
    ...     Bernoulli(logits=logit), lambda z: (z - 0.25) ** 2, estimator=Enumerate()
    ... )
    >>> value.backward()
    >>> round(value.item(), 4), round(logit.grad.item(), 4)
    (0.3125, 0.125)
    """
    chosen = _chosen(q, estimator, num_samples)
    if isinstance(chosen, VIMCO):
        raise ArgumentError(
            "expectation(estimator=VIMCO())",
            expected="an estimator of one expectation",
            got="one of the bound that all samples make together",
            fix="call log_mean_exp_bound(q, log_weight, num_samples=...)",
        )
    found, costs = _estimate(chosen, q, f, num_samples, rng, vectorized, memory, draws)
    return _with_gradient(chosen, found, costs)


def log_mean_exp_bound(
    q: Distribution,
    log_weight: Callable[[Tensor], TensorLike],
    *,
    num_samples: int,
    rng: Generator | None = None,
    vectorized: bool = False,
    draws: SiteDraws | None = None,
) -> Tensor:
    """Return an estimate of E[log mean of exp(log_weight(z_k))] with its gradient, by VIMCO.

    Parameters
    ----------
    q : Distribution
    log_weight : callable
        From a value of q to its log weight, for example ``log p(x, z) - q.log_prob(z)``; shapes as
        for the cost of `expectation`.
    num_samples : int, at least 2
        Draws in the bound.
    rng, vectorized, draws
        See `expectation`.

    Returns
    -------
    Tensor, shape of what `log_weight` returns

    Raises
    ------
    ArgumentError
        For fewer than 2 samples.
    """
    chosen = _chosen(q, VIMCO(), num_samples)
    found, costs = _estimate(chosen, q, log_weight, num_samples, rng, vectorized, None, draws)
    return _with_gradient(chosen, found, costs)


def control_loss(
    q: Distribution,
    f: Callable[[Tensor], TensorLike],
    *,
    estimator: Estimator,
    num_samples: int = 1,
    rng: Generator | None = None,
    vectorized: bool = False,
    draws: SiteDraws | None = None,
) -> Tensor:
    """Return what an estimator's own parameters are trained by: minimise it along with the rest.

    For REBAR and RELAX, the mean squared gradient of a sample with respect to the log odds, which
    is the variance up to a constant; for a baseline with parameters, the squared error. It has a
    gradient in those parameters alone.

    Parameters
    ----------
    q, f, estimator, num_samples, rng, vectorized, draws
        See `expectation`.

    Returns
    -------
    Tensor, shape ()

    Raises
    ------
    ArgumentError
        If the estimator has no such parameters.
    """
    chosen = _chosen(q, estimator, num_samples)
    found, _ = _estimate(chosen, q, f, num_samples, rng, vectorized, None, draws, learn=True)
    if found.loss is None:
        raise ArgumentError(
            "control_loss",
            expected="REBAR, RELAX, or a baseline with parameters",
            got=repr(chosen),
            fix="nothing is to be trained here: leave it out",
        )
    return found.loss


def gradient_variance(
    q: Callable[[], Distribution],
    f: Callable[[Tensor], TensorLike],
    parameters: Mapping[str, Tensor],
    *,
    estimators: Sequence[Estimator | str] | None = None,
    samples_per_estimate: int = 2,
    num_samples: int = 100,
    rng: Generator | None = None,
    vectorized: bool = False,
) -> VarianceTable:
    """Return the variance of the gradient, and its price, for several estimators side by side.

    Parameters
    ----------
    q : callable
        Without arguments; returns the distribution, computed from the parameters.
    f : callable
        See `expectation`.
    parameters : dict of Tensor
        Leaves to differentiate with respect to, by name; their ``.grad`` is left alone.
    estimators : sequence of Estimator or str, optional
        All that apply, if None.
    samples_per_estimate : int
        Samples that one estimate averages over.
    num_samples : int
        Estimates per estimator.
    rng, vectorized
        See `expectation`.

    Returns
    -------
    VarianceTable
        A row per estimator, least total variance first.
    """
    given = applicable(q()) if estimators is None else estimators
    leaves = list(parameters.values())
    rows = []
    for entry in given:
        chosen, memory = as_estimator(entry), {}
        found, evaluations, start = [], 0, time.perf_counter()
        for _ in range(num_samples):
            with enable_grad():
                now = q()
                _check_samples(chosen, samples_per_estimate)
                check(chosen, now)
                estimated, costs = _estimate(
                    chosen, now, f, samples_per_estimate, rng, vectorized, memory, None
                )
                surrogate = estimated.surrogate.sum()
                gradients = (
                    grad(surrogate, leaves, materialize_grads=True)
                    if surrogate.requires_grad
                    else [leaf * 0.0 for leaf in leaves]
                )
            evaluations += costs.evaluations
            found.append([to_host(g.array).astype(np.float64) for g in gradients])
        rows.append(
            VarianceRow.of(
                entry if isinstance(entry, str) else repr(chosen),
                chosen.unbiased,
                {name: np.stack([g[i] for g in found]) for i, name in enumerate(parameters)},
                (time.perf_counter() - start) / num_samples,
                evaluations / num_samples,
            )
        )
    return VarianceTable(tuple(sorted(rows, key=lambda row: row.total)), num_samples)


# ------------------------------------------------------------------------------------------ helpers


def _chosen(q: Distribution, estimator: Estimator | str | None, num_samples: int) -> Estimator:
    """The estimator as a record, once it is known to apply."""
    fix = "for example num_samples=10"
    count_of("expectation", "num_samples", num_samples, expected="a number", fix=fix)
    if estimator is None and isinstance(q, Distribution):
        if unwrapped(q)[0].has_rsample:
            return Pathwise()
        return ScoreFunction("leave_one_out" if num_samples > 1 else None)
    chosen = ScoreFunction() if estimator is None else as_estimator(estimator)
    check(chosen, q)
    _check_samples(chosen, num_samples)
    return chosen


def _check_samples(chosen: Estimator, num_samples: int) -> None:
    if num_samples < chosen.min_samples:
        raise ArgumentError(
            f"{type(chosen).__name__}: num_samples",
            expected=f"at least {chosen.min_samples}",
            got=str(num_samples),
            fix=f"pass num_samples={chosen.min_samples} or more",
        )


def _estimate(
    chosen: Estimator,
    q: Distribution,
    f: Callable[[Tensor], TensorLike],
    num_samples: int,
    rng: Generator | None,
    vectorized: bool,
    memory: Memory | None,
    draws: SiteDraws | None,
    learn: bool = False,
) -> tuple[Estimated, Costs]:
    costs = Costs(f, q, vectorized)
    base, _ = unwrapped(q)
    draws = SiteDraws(rng) if draws is None else draws
    problem = Problem(base, costs, draws, int(num_samples), memory, learn)
    return chosen.estimate(problem), costs


def _with_gradient(chosen: Estimator, found: Estimated, costs: Costs) -> Tensor:
    """The value of an estimate with the gradient of its surrogate."""
    value = costs.restored(found.value)
    if found.surrogate is found.value:
        return value
    surrogate = costs.restored(found.surrogate)
    if chosen.all_orders:
        return value.detach() + (surrogate - surrogate.detach())
    return _FirstOrder.apply(value.detach(), surrogate, type(chosen).__name__)


class _FirstOrder(Function):
    """A value with the gradient of something else, which can be taken once."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, surrogate: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(surrogate)
        ctx.name = name
        return wrap(value.array)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[None, Tensor, None]:
        (surrogate,) = ctx.saved_tensors
        return None, _Once.apply(g, surrogate, ctx.name), None

    @staticmethod
    def jvp(ctx: FunctionCtx, value: Tensor, surrogate: Tensor, name: str | None = None) -> Tensor:  # type: ignore[override]
        return surrogate


class _Once(Function):
    """A cotangent that must not be differentiated: the result would not be a second derivative."""

    @staticmethod
    def forward(ctx: FunctionCtx, g: Tensor, surrogate: Tensor, name: str) -> Tensor:
        ctx.name = name
        return wrap(g.array)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> NoReturn:
        raise _no_second(ctx.name)

    @staticmethod
    def jvp(ctx: FunctionCtx, g: Tensor, surrogate: Tensor, name: str | None = None) -> NoReturn:  # type: ignore[override]
        raise _no_second(ctx.name)


def _no_second(name: str) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"{name}: a second derivative",
        expected="first derivatives of the estimate",
        got="a derivative of its gradient, which does not estimate a second derivative",
        fix="use DiCE, Enumerate, SumAndSample or Pathwise, which are right for every order",
    )


explain_calls(globals())
