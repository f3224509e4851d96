"""Bounds by learnt distributions: of the posterior, of outcomes, of outcomes given targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.contrib.oed.terms import (
    Count,
    Labels,
    Model,
    Optim,
    as_asked,
    averaged,
    dtype_of,
    lexpand,
    listed,
    log_density,
    no_others,
    optimised,
    outcomes,
    run,
    scored,
    single,
    summed,
    summed_right,
    values,
)
from probtorch.core.casting import cast
from probtorch.core.signatures import explain_calls
from probtorch.effects.handlers import condition
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.ops.movement import expand
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = ["marginal_eig", "marginal_likelihood_eig", "posterior_eig", "prior_entropy"]


def posterior_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    num_samples: int,
    num_steps: int,
    guide: Callable[..., object],
    optim: Optim | None,
    return_history: bool = False,
    final_design: Tensor | None = None,
    final_num_samples: int | None = None,
    eig: bool = True,
    prior_entropy_kwargs: Mapping[str, int | bool] | None = None,
    analytic_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate the expected information gain from below, by a learnt posterior.

    The entropy of the prior less ``-E log q(theta | y, d)``, the mean entropy of the posterior: a
    lower bound of the gain for every guide, which is exact for the posterior.

    Parameters
    ----------
    model : callable
        Takes a design; its statements are inside plates of the shape ``designs``, such as
        ``plate_stack("designs", design.shape[:-1])``.
    design : Tensor, shape (*designs, features)
    observation_labels, target_labels : str or sequence of str
        Sites that the experiment will observe, and those to learn about.
    num_samples : int
        Draws of outcomes and targets per step.
    num_steps : int
        Steps of the optimizer; with 0 the guide is taken as it is.
    guide : callable
        ``guide(y, design, observation_labels, target_labels)`` draws the targets for outcomes
        ``y``, a dict by label, each ``(num_samples, *designs)``.
    optim : PyroOptim or Optimizer, optional
        Moves all parameters that guide and model state: a design that is a parameter of the model
        is optimised with them. None is for 0 steps.
    return_history : bool
        Also return the estimates at all steps.
    final_design : Tensor, optional
        What the gain is estimated for at the end; `design` by default.
    final_num_samples : int, optional
        Draws of the last estimate; `num_samples` by default.
    eig : bool
        False returns the mean entropy of the posterior, and leaves the prior out.
    prior_entropy_kwargs : dict, optional
        ``num_prior_samples``, 1000 by default, and ``mean_field``: whether closed forms of the
        entropies of sites are used where there are some, true by default.
    analytic_entropy : bool
        Use closed forms of the guide's entropies in the last estimate, which is then no bound.

    Returns
    -------
    Tensor, shape designs
        In nats; or the history ``(num_steps, *designs)`` and that.

    Raises
    ------
    ArgumentError
        If a label is no site.
    InferenceError
        If an estimate is not finite, or targets depend on other sites of the model, so that their
        entropy is unknown: then `eig` has to be False.

    Notes
    -----
    [foster2019]_, eq. 8. Where there is noise in the outcomes without a path, gradients of designs
    are those of the score function.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import posterior_eig
    >>> from probtorch.optim import Adam
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0], 1.0))
    >>> def guide(y, design, observation_labels, target_labels):
    ...     slope = probtorch.param("slope", probtorch.zeros(2))
    ...     log_scale = probtorch.param("log_scale", probtorch.zeros(2))
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         probtorch.sample("w", dist.Normal(slope * y["y"], log_scale.exp()))
    >>> designs = probtorch.tensor([[0.5], [2.0]])
    >>> gains = posterior_eig(
    ...     model, designs, "y", "w", 50, 300, guide, Adam({"lr": 0.05}), final_num_samples=2000)
    >>> (gains - 0.5 * (1.0 + designs[:, 0] ** 2).log()).abs().max().item() < 0.2
    True
    """
    observed, targets = listed(observation_labels), listed(target_labels)

    def loss(design: Tensor, num_samples: Count, *, evaluation: bool) -> tuple[Tensor, Tensor]:
        ndim = len(design.shape)
        wide = lexpand(design, single(num_samples))
        outer = run(model, wide)
        y = values(outer, observed, "observation_labels")
        theta = values(outer, targets, "target_labels")
        learnt = run(condition(guide, data=theta), y, wide, observed, targets)
        if evaluation and analytic_entropy:
            terms = summed([summed_right(learnt[n].fn.entropy(), ndim) for n in targets])
        else:
            terms = -log_density(learnt, targets, ndim, "target_labels")
        entropy = averaged(scored(terms, outer, ndim), "posterior_eig")
        return entropy.sum(), entropy

    history, found = optimised(
        loss, design, num_samples, num_steps, optim, return_history, final_design,
        final_num_samples,
    )  # fmt: skip
    if eig:
        last = design if final_design is None else final_design
        found = prior_entropy(model, last, observed, targets, prior_entropy_kwargs) - found
        if history is not None:
            with no_grad():
                before = prior_entropy(model, design, observed, targets, prior_entropy_kwargs)
            history = before - history
    return as_asked(history, found)


def marginal_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    num_samples: int,
    num_steps: int,
    guide: Callable[..., object],
    optim: Optim | None,
    return_history: bool = False,
    final_design: Tensor | None = None,
    final_num_samples: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate the gain from above, by a learnt distribution of the outcomes.

    The mean of ``log p(y | theta, d) - log q(y | d)``: an upper bound of the gain for every guide,
    which is exact for the marginal distribution of the outcomes.

    Parameters
    ----------
    model, design, observation_labels, target_labels, num_samples, num_steps, optim
        See `posterior_eig`. Parameters of the model are not learnt, as the bound is from above.
    guide : callable
        ``guide(design, observation_labels, target_labels)`` draws the outcomes.
    return_history, final_design, final_num_samples
        See `posterior_eig`.

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
    [foster2019]_, eq. 10.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import marginal_eig
    >>> from probtorch.optim import Adam
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...         probtorch.sample("y", dist.Bernoulli(p * design[..., 0]))
    >>> def guide(design, observation_labels, target_labels):
    ...     logits = probtorch.param("logits", probtorch.zeros(2))
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         probtorch.sample("y", dist.Bernoulli(logits=logits))
    >>> designs = probtorch.tensor([[0.1], [0.9]])
    >>> gains = marginal_eig(
    ...     model, designs, "y", "p", 50, 100, guide, Adam({"lr": 0.1}), final_num_samples=2000)
    >>> gains.argmax().item()
    1
    """
    observed, targets = listed(observation_labels), listed(target_labels)

    def loss(design: Tensor, num_samples: Count, *, evaluation: bool) -> tuple[Tensor, Tensor]:
        ndim = len(design.shape)
        wide = lexpand(design, single(num_samples))
        outer = outcomes(model, wide, evaluation=evaluation)
        y = values(outer, observed, "observation_labels")
        others = "marginal_likelihood_eig or posterior_eig"
        no_others(outer, (*observed, *targets), "marginal_eig", others)
        learnt = run(condition(guide, data=y), wide, observed, targets)
        terms = -log_density(learnt, observed, ndim, "observation_labels")
        aggregate = terms.mean(0).sum()
        if evaluation:
            terms = terms + log_density(outer, observed, ndim, "observation_labels")
        return aggregate, averaged(scored(terms, outer, ndim), "marginal_eig")

    estimates = optimised(
        loss, design, num_samples, num_steps, optim, return_history, final_design,
        final_num_samples,
    )  # fmt: skip
    return as_asked(*estimates)


def marginal_likelihood_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    num_samples: int,
    num_steps: int,
    marginal_guide: Callable[..., object],
    cond_guide: Callable[..., object],
    optim: Optim | None,
    return_history: bool = False,
    final_design: Tensor | None = None,
    final_num_samples: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate the gain by learnt distributions of the outcomes, and of them given the targets.

    The mean of ``log q(y | theta, d) - log q(y | d)``: for models whose likelihood is unknown, as
    other sites stand between targets and outcomes. It is no bound, and exact for exact guides.

    Parameters
    ----------
    model, design, observation_labels, target_labels, num_samples, num_steps, optim
        See `posterior_eig`. Parameters of the model are not learnt.
    marginal_guide : callable
        ``marginal_guide(design, observation_labels, target_labels)`` draws the outcomes.
    cond_guide : callable
        ``cond_guide(theta, design, observation_labels, target_labels)`` draws them for targets
        ``theta``, a dict by label.
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
    [foster2019]_, sec. 3.4.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import marginal_likelihood_eig
    >>> from probtorch.optim import Adam
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         day = probtorch.sample("day", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0] + day, 1.0))
    >>> def normal(loc, name, design):
    ...     scale = probtorch.param(name, probtorch.ones(2), constraint=dist.constraints.positive)
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         probtorch.sample("y", dist.Normal(loc, scale))
    >>> def of_all(design, observation_labels, target_labels):
    ...     normal(0.0, "of all", design)
    >>> def given(theta, design, observation_labels, target_labels):
    ...     normal(theta["w"] * design[..., 0], "given", design)
    >>> designs = probtorch.tensor([[0.2], [2.0]])
    >>> gains = marginal_likelihood_eig(
    ...     model, designs, "y", "w", 50, 100, of_all, given, Adam({"lr": 0.05}))
    >>> gains.argmax().item()
    1
    """
    observed, targets = listed(observation_labels), listed(target_labels)

    def loss(design: Tensor, num_samples: Count, *, evaluation: bool) -> tuple[Tensor, Tensor]:
        ndim = len(design.shape)
        wide = lexpand(design, single(num_samples))
        outer = outcomes(model, wide, evaluation=evaluation)
        y = values(outer, observed, "observation_labels")
        theta = values(outer, targets, "target_labels")
        marginal = run(condition(marginal_guide, data=y), wide, observed, targets)
        given = run(condition(cond_guide, data=y), theta, wide, observed, targets)
        of_all = log_density(marginal, observed, ndim, "observation_labels")
        of_given = log_density(given, observed, ndim, "observation_labels")
        # Both are learnt by maximum likelihood.
        aggregate = -(of_all + of_given).mean(0).sum()
        terms = scored(of_given - of_all, outer, ndim)
        return aggregate, averaged(terms, "marginal_likelihood_eig")

    estimates = optimised(
        loss, design, num_samples, num_steps, optim, return_history, final_design,
        final_num_samples,
    )  # fmt: skip
    return as_asked(*estimates)


def prior_entropy(
    model: Model,
    design: Tensor,
    observed: tuple[str, ...],
    targets: tuple[str, ...],
    options: Mapping[str, int | bool] | None,
) -> Tensor:
    """Return the entropy of the targets before the experiment, shape designs.

    Parameters
    ----------
    options : dict, optional
        ``num_prior_samples`` and ``mean_field``; see `posterior_eig`.

    Raises
    ------
    InferenceError
        If the targets depend on other sites.
    """
    options = {"num_prior_samples": 1000, "mean_field": True, **(options or {})}
    wide, ndim = lexpand(design, int(options["num_prior_samples"])), len(design.shape)
    seen = run(model, wide)
    _check_independent(model, wide, seen, observed, targets)
    terms = []
    for name in targets:
        entropy = seen[name].fn.entropy if options["mean_field"] else None
        try:
            if entropy is not None:
                terms.append(_over_plates(entropy(), seen, name, ndim))
                continue
        except NotImplementedError:
            pass
        terms.append(-log_density(seen, (name,), ndim, "target_labels"))
    return cast(mean(scored(summed(terms), seen, ndim), 0), dtype_of(design))


def _over_plates(entropy: Tensor, seen: Trace, name: str, ndim: int) -> Tensor:
    """The entropy of all that a site draws, for each sample and design."""
    return summed_right(expand(entropy, tuple(seen[name].fn.batch_shape)), ndim)


def _check_independent(
    model: Model,
    wide: Tensor,
    seen: Trace,
    observed: tuple[str, ...],
    targets: tuple[str, ...],
) -> None:
    """Refuse targets with other sites among their parents: their density is that given these."""
    if all(name in (*observed, *targets) for name in seen.stochastic_nodes):
        return
    with no_grad():
        theta = values(seen, targets, "target_labels")
        again, ndim = run(condition(model, data=theta), wide), len(wide.shape) - 1
        one, other = (log_density(x, targets, ndim, "target_labels") for x in (seen, again))
        same = np.allclose(to_host(one.array), to_host(other.array), rtol=1e-5, atol=1e-5)
    if not same:
        raise InferenceError(
            "the entropy of the prior",
            expected="targets that depend on no site but each other",
            got="targets whose density changes with other sites",
            fix="name these sites in target_labels, too, or pass eig=False: the design of the "
            "least posterior entropy is the same where the prior does not depend on the design",
        )


explain_calls(globals())
