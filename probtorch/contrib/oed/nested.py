"""Nested Monte Carlo: the marginal likelihood of each outcome is a mean over draws of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

from probtorch.contrib.oed.terms import (
    Count,
    Labels,
    Model,
    Optim,
    as_asked,
    averaged,
    lexpand,
    listed,
    log_density,
    no_others,
    optimised,
    outcomes,
    pair_of,
    repeated,
    run,
    scored,
    values,
    without_scores,
)
from probtorch.core.signatures import explain_calls
from probtorch.effects.handlers import block, condition
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError
from probtorch.ops.exponential_sums import logsumexp
from probtorch.tensor import Tensor

__all__ = ["nmc_eig", "vnmc_eig"]


def nmc_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels | None = None,
    N: int = 100,  # as the paper and Pyro have it
    M: int = 10,
    M_prime: int | None = None,
    independent_priors: bool = False,
) -> Tensor:
    """Estimate the expected information gain by nested Monte Carlo.

    The mean over N draws of ``log p(y | theta, d) - log (1 / M) sum_m p(y | theta_m, d)``.

    Parameters
    ----------
    model : callable
        Takes a design; its statements are inside plates of the shape ``designs``, such as
        ``plate_stack("designs", design.shape[:-1])``.
    design : Tensor, shape (*designs, features)
    observation_labels : str or sequence of str
        Sites that the experiment will observe.
    target_labels : str or sequence of str, optional
        Sites to learn about; all that are not observed by default.
    N, M : int
        Draws of the outer mean, and of each inner one.
    M_prime : int, optional
        Draws for ``p(y | theta, d)`` of sites that are neither; needed where there are such sites.
    independent_priors : bool
        Whether targets do not depend on these: then their draws need no weights.

    Returns
    -------
    Tensor, shape designs
        In nats. Differentiable with respect to the design: along pathwise draws, and by the score
        function of outer draws without a path.

    Raises
    ------
    ArgumentError
        If a label is no site, or sites are neither observed nor targets and `M_prime` is None.
    InferenceError
        If all inner draws leave an outcome without density; if inner draws that depend on the
        design have no path to it and its gradient is wanted.

    Notes
    -----
    The bias is positive, of order 1 / M; an N about the square of M is best [rainforth2018]_. Inner
    draws are new for each outer one. Draws of sites that are neither are weighted by the density
    of the targets given them.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import nmc_eig
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0], 1.0))
    >>> gains = nmc_eig(model, probtorch.tensor([[0.0], [1.0], [3.0]]), "y", "w", N=2000, M=50)
    >>> gains.argmax().item()
    2
    """
    observed, targets = listed(observation_labels), listed(target_labels)
    ndim = len(design.shape)
    outer = run(model, lexpand(design, N))
    seen = values(outer, observed, "observation_labels")
    values(outer, targets, "target_labels")
    if M_prime is None:
        if targets:
            others = "nmc_eig(..., M_prime=...), posterior_eig or marginal_likelihood_eig"
            no_others(outer, (*observed, *targets), "nmc_eig", others)
        given = log_density(outer, observed, ndim, "observation_labels")
    else:
        given = _given_targets(
            model, design, observed, targets, outer, M_prime, independent=independent_priors
        )
    inner = run(condition(model, data=repeated(seen, M)), lexpand(design, M, N))
    without_scores(inner, ndim + 1, "nmc_eig")
    each = log_density(inner, observed, ndim + 1, "observation_labels")
    terms = given - (logsumexp(each, 0) - math.log(M))
    return averaged(scored(terms, outer, ndim), "nmc_eig")


def vnmc_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    num_samples: tuple[int, int],
    num_steps: int,
    guide: Callable[..., object],
    optim: Optim | None,
    return_history: bool = False,
    final_design: Tensor | None = None,
    final_num_samples: tuple[int, int] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate the gain by nested Monte Carlo whose inner draws are those of a learnt guide.

    The mean over N draws of ``log p(y | theta, d) - log (1 / M) sum_m p(y, theta_m | d) /
    q(theta_m | y, d)``: an upper bound of the gain for every guide, which is exact for the
    posterior, and in the limit of M.

    Parameters
    ----------
    model, design, observation_labels, target_labels, num_steps, optim, return_history, final_design
        See `posterior_eig`.
    num_samples, final_num_samples : (int, int)
        N and M.
    guide : callable
        ``guide(y, design, observation_labels, target_labels)`` draws the targets for outcomes
        ``y``, a dict by label, ``(M, N, *designs)``.

    Returns
    -------
    Tensor, shape designs
        In nats; or the history ``(num_steps, *designs)`` and that.

    Raises
    ------
    ArgumentError
        If a label is no site, or there are sites that are neither observed nor targets.
    InferenceError
        If an estimate is not finite.

    Notes
    -----
    Contrastive terms are those of [foster2019]_, eq. 12. Parameters of the model are not learnt.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import vnmc_eig
    >>> from probtorch.optim import Adam
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0], 1.0))
    >>> def guide(y, design, observation_labels, target_labels):
    ...     slope = probtorch.param("slope", probtorch.zeros(2))
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         probtorch.sample("w", dist.Normal(slope * y["y"], 0.7))
    >>> designs = probtorch.tensor([[0.5], [2.0]])
    >>> gains = vnmc_eig(model, designs, "y", "w", (20, 5), 100, guide, Adam({"lr": 0.05}))
    >>> gains.shape
    Size([2])
    """
    observed, targets = listed(observation_labels), listed(target_labels)

    def loss(design: Tensor, num_samples: Count, *, evaluation: bool) -> tuple[Tensor, Tensor]:
        n, m = pair_of(num_samples)
        ndim = len(design.shape)
        # While the bound is made tight, the model is what it is.
        outer = outcomes(model, lexpand(design, n), evaluation=evaluation)
        seen = repeated(values(outer, observed, "observation_labels"), m)
        no_others(outer, (*observed, *targets), "vnmc_eig", "posterior_eig")
        wide = lexpand(design, m, n)
        proposed = run(guide, seen, wide, observed, targets)
        known = {**seen, **values(proposed, targets, "target_labels")}
        with block():
            joint = run(condition(model, data=known), wide)
        log_joint = log_density(joint, (*observed, *targets), ndim + 1, "observation_labels")
        ratio = log_joint - log_density(proposed, targets, ndim + 1, "target_labels")
        terms = scored(math.log(m) - logsumexp(ratio, 0), proposed, ndim + 1)
        bound = averaged(terms, "vnmc_eig")
        if evaluation:
            given = log_density(outer, observed, ndim, "observation_labels")
            bound = averaged(scored(terms + given, outer, ndim), "vnmc_eig")
        return bound.sum(), bound

    estimates = optimised(
        loss, design, num_samples, num_steps, optim, return_history, final_design,
        final_num_samples,
    )  # fmt: skip
    return as_asked(*estimates)


def _given_targets(
    model: Model,
    design: Tensor,
    observed: tuple[str, ...],
    targets: tuple[str, ...],
    outer: Trace,
    count: int,
    *,
    independent: bool,
) -> Tensor:
    """Log density of the outcomes given the targets: other sites are drawn, and weighted."""
    if not targets:
        raise ArgumentError(
            "nmc_eig(M_prime=...)",
            expected="target_labels, given which other sites are drawn",
            got="none",
            fix="name the targets, or leave M_prime out",
        )
    n = outer[observed[0]].value.array.shape[0]
    ndim = len(design.shape) + 1
    known = values(outer, targets, "target_labels")
    known |= values(outer, observed, "observation_labels")
    again = run(condition(model, data=repeated(known, count)), lexpand(design, count, n))
    without_scores(again, ndim, "nmc_eig")
    likelihood = log_density(again, observed, ndim, "observation_labels")
    if independent:
        return logsumexp(likelihood, 0) - math.log(count)
    weight = log_density(again, targets, ndim, "target_labels")
    return logsumexp(likelihood + weight, 0) - logsumexp(weight, 0)


explain_calls(globals())
