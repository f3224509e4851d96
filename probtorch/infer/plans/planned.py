"""`fit`: one call that looks at a model, plans, says what it is going to do, and does it.

planning.py decides; here each method is carried out by the engine that it stands for, and ends as
draws (fitted.py) with a verdict (judged.py), whichever it was.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.draws import Draws
from probtorch.effects.enumeration import config_enumerate
from probtorch.effects.handlers import block
from probtorch.errors import ArgumentError, InferenceError, ProbtorchError
from probtorch.infer.approximations.pathfinder import Pathfinder
from probtorch.infer.control import TimeIsUp
from probtorch.infer.guides.joint import AutoMultivariateNormal
from probtorch.infer.guides.mean_field import AutoNormal
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.gibbs.gibbs import Gibbs
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.kernels.replica_exchange import ReplicaExchange
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.objectives.elbo import Trace_ELBO
from probtorch.infer.objectives.enumerated import TraceEnum_ELBO
from probtorch.infer.plans.facts import Facts, gradient_seconds, look_at
from probtorch.infer.plans.fitted import CalledModel, Fitted
from probtorch.infer.plans.judged import JUDGES, is_trusted
from probtorch.infer.plans.modes import separate_modes
from probtorch.infer.plans.planning import (
    ASKED_FOR,
    FEW,
    THINNING,
    Plan,
    not_enumerated,
    out_of_time,
    planned,
    powers_for,
    sites_changed,
)
from probtorch.infer.plans.until import Until
from probtorch.infer.potential import Target
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.importance import Importance
from probtorch.infer.sequential.particle_gibbs import ParticleGibbs
from probtorch.infer.sequential.run_draws import RunDraws, Values
from probtorch.infer.sequential.weighted_draws import ImportanceWarning
from probtorch.infer.slots import SitesChangedError
from probtorch.infer.starts.initialization import Strategy
from probtorch.infer.vi.svi import SVI
from probtorch.optim.adam import Adam

__all__ = ["fit"]

_AnyKernel: TypeAlias = Kernel[Any]

# Steps of an optimisation at most; it ends when the loss has stopped falling.
MAX_STEPS = 30_000
LEARNING_RATE = 0.01
# Where nobody is there to raise it after divergences: smaller steps than NUTS takes by itself.
TARGET_ACCEPT = 0.9
# Draws of a guide go through guide and model one by one: at least so many, at most so many numbers
# together, and this share of a time budget; a draw takes about as long as so many first runs.
FEWEST_DRAWS, MOST_NUMBERS, DRAWING_SHARE, DRAW_RUNS = 100, 4_000_000, 0.25, 3.0
# The share of a time budget for a try of importance sampling.
IMPORTANCE_SHARE = 0.25
# What meets the density again and again, of which a later run may have other sites.
CHANGING = ("nuts", "replica_exchange", "gibbs", "pathfinder")
# A chain of particle Gibbs has at least so many draws, if there are so many in all.
FEWEST_SWEEPS = 100


def fit(
    model: Callable[..., object],
    *args: object,
    method: str | None = None,
    guide: Callable[..., object] | None = None,
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
    where few dimensions have separate modes; by Pathfinder, if either would take longer than there
    is time. Discrete sites without a bound, or whose sum is intractable, are for Gibbs;
    subsamples and learnt parameters for SVI; programs whose sites differ from run to run for
    particles.

    Parameters
    ----------
    model : callable
    *args, **kwargs
        What it is called with.
    method : str, optional
        Decide yourself: "exact", "nuts", "replica_exchange", "gibbs", "pathfinder", "svi" or
        "particles".
    guide : callable, optional
        For SVI; by default a normal, with all covariances for up to 60 numbers that no
        plate on subsamples draws anew.
    num_samples, num_chains, warmup_steps : int
        Of chains. Particle Gibbs, each step of which runs the model many times in Python,
        makes `num_samples` draws in all, which its chains share. Other methods make one chain of
        ``num_samples * num_chains``; SVI fewer where a draw has more than 1000 numbers, or where
        they would take most of the time.
    seconds : float, optional
        Time that there is: chains and SVI end then, with what they have. Chains of NUTS that have
        no draw by then, still in their warm-up, make way for Pathfinder; particle Gibbs leaves a
        quarter of its sweeps out in place of a warm-up.
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
    began = time.monotonic()
    facts = look_at(model, args, kwargs)
    target, gradient, intractable = None, math.nan, ""
    dense = facts.numbers and not facts.unbounded and not facts.subsampled and not facts.changing
    if dense and method not in ("gibbs", "particles"):
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
        modes, wall = separate_modes(target, Generator(0))
        facts = replace(facts, modes=modes, wall=wall)
    plan = planned(
        facts,
        gradient,
        method=method,
        budget=seconds,
        num_samples=num_samples,
        num_chains=num_chains,
        warmup_steps=warmup_steps,
        threads=os.cpu_count() or 1,
        guide=guide,
        intractable=intractable,
    )
    if verbose:
        print(plan, flush=True)
    if seed is None:
        seed = default_generator
    generator = seed if isinstance(seed, Generator) else Generator(seed)
    job = _Job(
        model, args, kwargs, target, facts, num_samples, num_chains, warmup_steps,
        seconds, began, generator.spawn(1)[0], verbose, guide, plan, init_strategy,
    )  # fmt: skip
    try:
        found = job.run(plan.method)
    except _Instead as error:
        plan = error.plan
        if verbose:
            print(plan, flush=True)
        found = job.run(plan.method)
    draws = found.draws
    said, trusted = JUDGES[plan.method](draws, facts)
    fields = {f.name: getattr(draws, f.name) for f in dataclasses.fields(SampledDraws)}
    fields["attrs"] = {**draws.attrs, "plan": str(plan), "verdict": said}
    if verbose:
        print(f"verdict: {said}", flush=True)
    call = None
    if plan.method in ("exact", "particles"):
        latent = (*facts.continuous, *facts.finite, *facts.unbounded)
        call = CalledModel(model, args, kwargs, latent, facts.observed)
    return Fitted(
        **fields, plan=plan, engine=found.engine, verdict=said, trusted=trusted,
        values=found.values, call=call,
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


class _Outcome(NamedTuple):
    """What a method gave: draws, what made them, and runs whose sites differ, one by one."""

    draws: SampledDraws
    engine: object = None
    values: Sequence[Sequence[Values]] = ()


class _Instead(Exception):
    """What was planned came to nothing; `plan` is the one to go on with."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(str(plan))
        self.plan = plan


@dataclass(frozen=True)
class _Job:
    """What all methods need; one method each."""

    model: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, Any]
    target: Target | None
    facts: Facts
    num_samples: int
    num_chains: int
    warmup_steps: int
    budget: float | None
    began: float
    generator: Generator
    shown: bool
    guide: Callable[..., object] | None
    plan: Plan
    init_strategy: Strategy | None

    @property
    def _left(self) -> float | None:
        """Seconds that are left; at least one, so that there is a result."""
        if self.budget is None:
            return None
        return max(self.began + self.budget - time.monotonic(), 1.0)

    @property
    def _start(self) -> dict[str, Any]:
        return {} if self.init_strategy is None else {"init_strategy": self.init_strategy}

    def run(self, method: str) -> _Outcome:
        """Carry a method out.

        Raises
        ------
        _Instead
            If it came to nothing, and it was not the caller who had chosen it.
        TimeIsUp
            If the time of the caller's budget came to nothing.
        """
        carry_out: Callable[[], _Outcome] = getattr(self, method)
        try:
            return carry_out()
        except TimeIsUp as error:
            if self.budget is None:
                raise
            # The engine speaks of its own setting, which the caller did not write.
            raise TimeIsUp(
                "fit(seconds=...)",
                expected=error.expected,
                got=f"seconds={self.budget:g}",
                fix=f"{error.fix}; or leave seconds out",
            ) from error
        except SitesChangedError as error:
            if method not in CHANGING or self.plan.decisions[0].because == ASKED_FOR:
                raise
            raise _Instead(sites_changed(self.plan, str(error.subject))) from error

    def nuts(self) -> _Outcome:
        assert self.target is not None  # planned for continuous sites
        return self._in_time(NUTS(self.target, target_accept_prob=TARGET_ACCEPT, **self._start))

    def replica_exchange(self) -> _Outcome:
        assert self.target is not None  # planned for continuous sites
        nuts = NUTS(self.target, target_accept_prob=TARGET_ACCEPT, **self._start)
        powers = powers_for(self.plan.facts.wall)
        kernel = ReplicaExchange(nuts, inverse_temperatures=powers, adapt_temperatures=True)
        return self._in_time(kernel, THINNING)

    def _in_time(self, kernel: _AnyKernel, thinning: int = 1) -> _Outcome:
        """Chains; Pathfinder in their place, if the time is up before one has a draw."""
        try:
            return self._chains(kernel, thinning)
        except TimeIsUp as error:
            if self.plan.decisions[0].because == ASKED_FOR or self.budget is None:
                raise
            raise _Instead(out_of_time(self.plan, self.budget)) from error

    def gibbs(self) -> _Outcome:
        return self._chains(Gibbs(self.model, **self._start), 1, *self.args, **self.kwargs)

    def _chains(self, kernel: _AnyKernel, thinning: int, *args: object, **kwargs: Any) -> _Outcome:
        mcmc = MCMC(
            kernel,
            num_samples=self.num_samples * thinning,
            thinning=thinning,
            warmup_steps=self.warmup_steps,
            num_chains=self.num_chains,
            seed=self.generator,
            progress_bar=self.shown,
        )
        return _Outcome(mcmc.run(*args, max_seconds=self._left, **kwargs), mcmc)

    def pathfinder(self) -> _Outcome:
        assert self.target is not None  # planned for continuous sites
        found = Pathfinder(self.target, seed=self.generator).run(max_seconds=self._left)
        return _Outcome(found.draws(self.num_samples * self.num_chains), found)

    def particles(self) -> _Outcome:
        count = self.num_samples * self.num_chains
        one, other = self.generator.spawn(2)
        seconds = None if self.budget is None else IMPORTANCE_SHARE * self.budget
        importance = Importance(self.model, num_samples=count, seed=one)
        with warnings.catch_warnings():
            # Poor weights are what the other engine is for.
            warnings.simplefilter("ignore", ImportanceWarning)
            try:
                found = importance.run(*self.args, max_seconds=seconds, **self.kwargs)
            except InferenceError:  # no draw of the prior agrees with the data
                found = None
        if found is not None and is_trusted(found):
            drawn: Draws = found.draws(count, seed=other)
            engine: object = found
        else:
            drawn = engine = self._particle_gibbs(other)
        fields = {f.name: getattr(drawn, f.name) for f in dataclasses.fields(Draws)}
        fields["attrs"] = {"model_name": self.facts.name, **drawn.attrs}
        values = drawn.values if isinstance(drawn, RunDraws) else ()
        return _Outcome(SampledDraws(**fields), engine, values)

    def _particle_gibbs(self, generator: Generator) -> RunDraws:
        """Chains that share the draws, since each sweep takes many runs of the model in Python.

        The warm-up is left out afterwards: where the time is up before it is over, a quarter of
        what there is.
        """
        chains = min(self.num_chains, max(self.num_samples // FEWEST_SWEEPS, 1))
        each = -(-self.num_samples // chains)
        warmup = min(self.warmup_steps, each // 4)
        gibbs = ParticleGibbs(
            self.model,
            num_samples=each + warmup,
            warmup_steps=0,
            num_chains=chains,
            seed=generator,
            progress_bar=self.shown,
        )
        found = gibbs.run(*self.args, max_seconds=self._left, **self.kwargs)
        return found.without_first(min(warmup, found.num_draws // 4))

    def exact(self) -> _Outcome:
        state = self.generator.get_state()
        predictive = Predictive(
            self.model,
            num_samples=self.num_samples * self.num_chains,
            infer_discrete=True,
            seed=self.generator,
        )
        try:
            found = predictive(*self.args, **self.kwargs)
        except ProbtorchError as error:
            if self.plan.decisions[0].because == ASKED_FOR:
                raise
            # It runs at single values: Python looks at them, or tells them apart.
            self.generator.set_state(state)
            raise _Instead(not_enumerated(self.plan, str(error).splitlines()[0])) from error
        attrs = {"inference_library": "probtorch", "inference_method": "enumeration"}
        values = {name: np.asarray(x)[None] for name, x in found.items()}
        attrs["model_name"] = self.facts.name
        return _Outcome(SampledDraws(posterior=values, attrs=attrs))

    def svi(self) -> _Outcome:
        hidden = list(self.facts.finite)
        latent = block(self.model, hide=hidden) if hidden else self.model
        model = config_enumerate(self.model) if hidden else self.model
        if self.guide is not None:
            guide = self.guide
        else:
            guide = _GUIDES[self.plan.guide](latent)
        objective = TraceEnum_ELBO() if hidden else Trace_ELBO()
        svi = SVI(model, guide, Adam({"lr": LEARNING_RATE}), objective, seed=self.generator)
        count, seconds = self._guide_draws()
        end = None if self.budget is None else self.began + self.budget - seconds
        result = svi.run(
            MAX_STEPS,
            *self.args,
            progress_bar=self.shown,
            until=Until(end),
            **self.kwargs,
        )
        return _Outcome(result.draws(count), result)

    def _guide_draws(self) -> tuple[int, float]:
        """How many draws a guide gives, and how many seconds they are expected to take."""
        most = max(FEWEST_DRAWS, MOST_NUMBERS // max(self.facts.numbers, 1))
        count = min(self.num_samples * self.num_chains, most)
        each = max(DRAW_RUNS * self.facts.seconds, 1e-9)
        if self.budget is not None:
            in_time = int(DRAWING_SHARE * self.budget / each)
            count = min(count, max(FEWEST_DRAWS, in_time))
        return count, count * each


_GUIDES: dict[str, Callable[..., Callable[..., object]]] = {
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoNormal": AutoNormal,
}


explain_calls(globals())
