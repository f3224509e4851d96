"""Ratios of densities that are learnt: Donsker and Varadhan's bound, and classifiers (LFIRE)."""

from __future__ import annotations

import math
from collections.abc import Callable

from probtorch.autograd.modes import no_grad
from probtorch.contrib.oed.terms import (
    Count,
    Labels,
    Model,
    Optim,
    as_asked,
    averaged,
    lexpand,
    listed,
    network,
    optimised,
    repeated,
    run,
    single,
    values,
    without_scores,
)
from probtorch.core.signatures import explain_calls
from probtorch.effects.handlers import block, condition
from probtorch.nn.functional import softplus
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, logaddexp
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = ["donsker_varadhan_eig", "lfire_eig"]

# What is kept of the running mean of exp(T) at each step.
KEPT = 0.9


def donsker_varadhan_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    num_samples: int,
    num_steps: int,
    T: Callable[..., Tensor],  # as the paper and Pyro have it
    optim: Optim | None,
    return_history: bool = False,
    final_design: Tensor | None = None,
    final_num_samples: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate the gain by Donsker and Varadhan's bound, for a learnt function T.

    ``E T(y, theta) - log E' exp(T(y, theta))``, where targets and outcomes under E' are drawn apart
    from each other: from below for every T, and exact for ``log p(y | theta, d) / p(y | d)``.

    Parameters
    ----------
    model, design, observation_labels, target_labels, num_samples, num_steps, optim
        See `posterior_eig`; no density of the model is asked for.
    T : callable or Module
        ``T(design, trace, observation_labels, target_labels)`` returns numbers
        ``(num_samples, *designs)`` made of ``trace.nodes[label]["value"]``.
    return_history, final_design, final_num_samples
        See `posterior_eig`.

    Returns
    -------
    Tensor, shape designs
        In nats; or the history ``(num_steps, *designs)`` and that.

    Raises
    ------
    ArgumentError
        If a label is no site.
    InferenceError
        If an estimate is not finite.

    Notes
    -----
    The log of a mean of samples is too low on average, so an estimate is above the bound by the
    order of 1 / num_samples. Gradients divide by a running mean, which lessens their bias
    [belghazi2018]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch import nn
    >>> from probtorch.contrib.oed import donsker_varadhan_eig
    >>> from probtorch.optim import Adam
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0], 1.0))
    >>> net = nn.Linear(3, 1)
    >>> def T(design, trace, observation_labels, target_labels):
    ...     w, y = trace.nodes["w"]["value"], trace.nodes["y"]["value"]
    ...     parts = probtorch.stack([w * y, w * w, y * y], -1)
    ...     return probtorch.module("T", net)(parts).squeeze(-1)
    >>> gains = donsker_varadhan_eig(
    ...     model, probtorch.tensor([[2.0]]), "y", "w", 100, 200, T, Adam({"lr": 0.02}))
    >>> gains.shape
    Size([1])
    """
    observed, targets = listed(observation_labels), listed(target_labels)
    running: list[Tensor] = []

    def loss(design: Tensor, num_samples: Count, *, evaluation: bool) -> tuple[Tensor, Tensor]:
        n, ndim = single(num_samples), len(design.shape)
        wide, ratio = lexpand(design, n), network("T", T)
        joint = run(model, wide)
        without_scores(joint, ndim, "donsker_varadhan_eig")
        y = values(joint, observed, "observation_labels")
        apart = run(condition(model, data=y), wide)
        values(joint, targets, "target_labels")
        together = ratio(wide, joint, observed, targets)
        separate = ratio(wide, apart, observed, targets)
        norm = logsumexp(separate, 0) - math.log(n)
        found = averaged(together, "donsker_varadhan_eig") - norm
        now = norm.detach()
        old = running.pop() if running else now
        kept = logaddexp(old + math.log(KEPT), now + math.log1p(-KEPT))
        running.append(kept)
        # The gradient of log E' exp(T), with the running mean in the denominator.
        slope = mean(exp(separate - kept), 0)
        aggregate = -(mean(together, 0) - slope).sum()
        return aggregate, found

    estimates = optimised(
        loss, design, num_samples, num_steps, optim, return_history, final_design,
        final_num_samples,
    )  # fmt: skip
    return as_asked(*estimates)


def lfire_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    num_y_samples: int,
    num_theta_samples: int,
    num_steps: int,
    classifier: Callable[..., Tensor],
    optim: Optim | None,
    return_history: bool = False,
    final_design: Tensor | None = None,
    final_num_samples: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate the gain by classifiers that tell outcomes given the targets from all outcomes.

    For each of some draws of the targets the log odds of the best classifier are
    ``log p(y | theta, d) - log p(y | d)``, whose mean over outcomes and targets is the gain.

    Parameters
    ----------
    model, design, observation_labels, target_labels, num_steps, optim
        See `posterior_eig`; no density of the model is asked for, and no parameter learnt.
    num_y_samples, num_theta_samples : int
        Outcomes of each kind per step, and draws of targets, the same in all steps.
    classifier : callable or Module
        ``classifier(design, trace, observation_labels, target_labels)`` returns log odds
        ``(num_y_samples, num_theta_samples, *designs)``; it needs parameters for each target.
    return_history, final_design, final_num_samples
        See `posterior_eig`.

    Returns
    -------
    Tensor, shape designs
        In nats, without a gradient with respect to the design; or the history
        ``(num_steps, *designs)`` and that.

    Raises
    ------
    ArgumentError
        If a label is no site.
    InferenceError
        If an estimate is not finite.

    Notes
    -----
    [kleinegesse2019]_. The mean over few targets varies as they do.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import lfire_eig
    >>> from probtorch.optim import Adam
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0], 1.0))
    >>> def classifier(design, trace, observation_labels, target_labels):
    ...     y = trace.nodes["y"]["value"]
    ...     a, b, c = probtorch.param("odds", probtorch.zeros(3, *y.shape[1:]))
    ...     return a + b * y + c * y * y
    >>> designs = probtorch.tensor([[0.1], [2.0]])
    >>> gains = lfire_eig(model, designs, "y", "w", 50, 20, 200, classifier, Adam({"lr": 0.05}))
    >>> gains.argmax().item()
    1
    """
    observed, targets = listed(observation_labels), listed(target_labels)
    with no_grad():
        theta = values(run(model, lexpand(design, num_theta_samples)), targets, "target_labels")

    def loss(design: Tensor, num_samples: Count, *, evaluation: bool) -> tuple[Tensor, Tensor]:
        n = single(num_samples)
        wide = lexpand(design, n, num_theta_samples)
        given = condition(model, data=repeated(theta, n))
        odds = network("classifier", classifier)
        with no_grad(), block():
            of_targets, of_all = run(given, wide), run(model, wide)
        values(of_all, observed, "observation_labels")
        inside = odds(wide, of_targets, observed, targets)
        outside = odds(wide, of_all, observed, targets)
        loss = averaged(softplus(-inside) + softplus(outside), "lfire_eig")
        return loss.sum(), averaged(inside, "lfire_eig") if evaluation else loss

    history, found = optimised(
        loss, design, num_y_samples, num_steps, optim, return_history, final_design,
        final_num_samples,
    )  # fmt: skip
    found = mean(found, 0)
    return as_asked(None if history is None else mean(history, 1), found)


explain_calls(globals())
