"""`fit`: one call that looks at a model, plans, says what it is going to do, and does it.

planning.py decides, carried_out.py runs the engine that a method stands for; whichever it was, it
ends as draws (fitted.py) with a verdict (judged.py).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import replace

from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, ProbtorchError
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.plans.carried_out import Instead, Methods
from probtorch.infer.plans.facts import Facts, gradient_seconds, look_at
from probtorch.infer.plans.fitted import Fitted
from probtorch.infer.plans.given_engine import made_for
from probtorch.infer.plans.judged import JUDGES
from probtorch.infer.plans.modes import separate_modes
from probtorch.infer.plans.planning import FEW, planned
from probtorch.infer.plans.time_given import TimeGiven
from probtorch.infer.potential import Target
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.results import SampledDraws
from probtorch.infer.slots import SitesChangedError
from probtorch.infer.starts.initialization import Strategy

__all__ = ["fit"]


def fit(
    model: Callable[..., object],
    *args: object,
    method: str | None = None,
    guide: Callable[..., object] | None = None,
    engine: Callable[[Callable[..., object]], object] | None = None,
    num_samples: int = 1000,
    num_chains: int = 4,
    warmup_steps: int = 1000,
    seconds: float | None = None,
    seed: int | Generator | None = None,
    verbose: bool = True,
    init_strategy: Strategy | None = None,
    **kwargs: object,
) -> Fitted:
    """Fit a model by what fits it: look, plan, say so in three lines, run, and judge.

    Finite discrete sites are summed out; where there is nothing else, the posterior is a table, and
    draws are exact. Continuous sites are sampled by NUTS; by replicas of it that exchange places,
    where few dimensions have separate modes; if either would take longer than there is time, by
    Pathfinder, or by DADVI where dimensions are many. Discrete sites without a bound, or whose sum
    is intractable, are for Gibbs. Subsamples of observed rows are for HMC on subsamples where
    numbers are few; other subsamples and learnt parameters for SVI; programs whose sites differ
    from run to run for particles.

    Parameters
    ----------
    model : callable
    *args, **kwargs
        What it is called with.
    method : str, optional
        Decide yourself: "exact", "nuts", "replica_exchange", "gibbs", "hmcecs", "dadvi",
        "pathfinder", "svi" or "particles".
    guide : callable, optional
        For SVI; by default a normal, with all covariances for up to 60 numbers that no
        plate on subsamples draws anew.
    engine : callable, optional
        Any other engine, made for the model: a kernel, which is run with the settings below, or
        what has a method ``run`` and settings of its own, as in
        ``engine=lambda m: SMC(NUTS(m), 1000)``. Those that ask for a number of steps get 2000.
    num_samples, num_chains, warmup_steps : int
        Of chains. Particle Gibbs, each step of which runs the model many times in Python,
        makes `num_samples` draws in all, which its chains share. Other methods make one chain of
        ``num_samples * num_chains``; SVI fewer where a draw has more than 1000 numbers, or where
        they would take most of the time.
    seconds : float, optional
        Time that there is, looking at the model and compiling included: chains and SVI end then,
        with what they have. Chains of NUTS that have no draw by then, still in their warm-up, or
        whose program would take half of what is left to compile, make way for Pathfinder; particle
        Gibbs leaves a quarter of its sweeps out in place of a warm-up.
    seed : int or Generator, optional
        Source of all randomness; the default generator if None.
    verbose : bool
        Print the plan, the progress and the verdict.
    init_strategy : callable, optional
        Where chains start, as for `NUTS`: what tells components of a mixture apart that may change
        places. Other modes are not looked for then.

    Returns
    -------
    Fitted
        Draws like those of any engine, with ``plan``, ``verdict`` and ``explain()``; where sites
        change from run to run, with ``values`` of each run.

    Raises
    ------
    ArgumentError
        If the method is unknown, or cannot be used on such a model.
    InferenceError
        If the model has nothing to infer, or no point where chains can start.

    Warns
    -----
    InferenceWarning
        What the engine finds wrong, as ever.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import fit
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> result = fit(coin, y, num_samples=600, warmup_steps=200, seed=0, verbose=False)
    >>> result.plan.method, result.trusted
    ('nuts', True)
    >>> bool(abs(result["p"].mean() - 4 / 6) < 0.05)
    True
    """
    check_model(model, "fit")
    check_model_call(model, args, kwargs, "fit", "model, ")
    if seconds is not None and not 0.0 < seconds < math.inf:
        raise ArgumentError(
            "fit(seconds=...)", expected="a positive number", got=repr(seconds),
            fix="leave it out for as long as it takes",
        )  # fmt: skip
    for name, value, least in (
        ("num_samples", num_samples, 4),
        ("num_chains", num_chains, 1),
        ("warmup_steps", warmup_steps, 0),
    ):
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
            raise ArgumentError(
                f"fit({name}=...)", expected=f"an integer of at least {least}", got=repr(value),
                fix="leave it out",
            )  # fmt: skip
    if engine is not None and (method is not None or guide is not None):
        raise ArgumentError(
            "fit(engine=...)", expected="no method and no guide beside it",
            got=f"method={method!r}" if method is not None else "a guide",
            fix="leave one of them out; a guide goes with engine=lambda m: SVI(m, guide, Adam)",
        )  # fmt: skip
    given = None if engine is None else made_for(engine, model)
    time = TimeGiven(seconds)
    facts = look_at(model, args, kwargs)
    target, gradient, intractable = None, math.nan, ""
    dense = facts.numbers and not facts.unbounded and not facts.subsampled and not facts.changing
    if dense and given is None and method not in ("gibbs", "particles"):
        try:
            target = Target.from_model(model, *args, **kwargs)
            gradient = gradient_seconds(target)
        except SitesChangedError as error:
            facts, target = _changing_too(facts, error, method, guide), None
        except ProbtorchError as error:
            # The model runs at single values, so it is the run with all values at once that fails,
            # or their sum; whatever else it is, Gibbs will say it again.
            if not facts.finite or method is not None or guide is not None:
                raise
            intractable = str(error).splitlines()[0]
    free = method is None and guide is None and init_strategy is None
    if free and target is not None and facts.numbers <= FEW:
        facts = replace(facts, found=separate_modes(target, Generator(0), gradient))
    plan = planned(
        facts,
        gradient,
        method=method,
        budget=seconds,
        spent=time.spent,
        num_samples=num_samples,
        num_chains=num_chains,
        warmup_steps=warmup_steps,
        threads=os.cpu_count() or 1,
        guide=guide,
        intractable=intractable,
        engine="" if given is None else type(given).__name__,
    )
    if verbose:
        print(plan, flush=True)
    generator = generator_of(seed)
    methods = Methods(
        model, args, kwargs, target, facts, num_samples, num_chains, warmup_steps,
        time, generator.spawn(1)[0], verbose, guide, plan, init_strategy,
        given,
    )  # fmt: skip
    try:
        found = methods.run(plan.method)
    except Instead as error:
        plan = error.plan
        if verbose:
            print(plan, flush=True)
        found = replace(methods, plan=plan).run(plan.method)
    draws = found.draws
    said, trusted = JUDGES[plan.method](draws, facts)
    fields = {f.name: getattr(draws, f.name) for f in dataclasses.fields(SampledDraws)}
    fields["attrs"] = {**draws.attrs, "plan": str(plan), "verdict": said}
    if verbose:
        print(f"verdict: {said}", flush=True)
    if draws.target is None and draws.call is None:
        latent = (*facts.continuous, *facts.finite, *facts.unbounded)
        there = tuple(name for name in latent if name in draws)
        unseen = tuple(name for name in latent if name not in draws)
        fields["call"] = CalledModel(model, args, kwargs, there, facts.observed, unseen)
    return Fitted(
        **fields, plan=plan, engine=found.engine, verdict=said, trusted=trusted,
        values=found.values,
    )  # fmt: skip


def _changing_too(
    facts: Facts, error: SitesChangedError, method: str | None, guide: object
) -> Facts:
    """The facts of a model of which a later run had other sites than the first ones.

    Raises
    ------
    SitesChangedError
        Where the caller has decided on something else than particles.
    """
    if method is not None or guide is not None:
        raise error
    return replace(facts, changing=(*facts.changing, error.site))


explain_calls(globals())
