"""The methods of `fit`, each carried out by the engine that it stands for: `Methods`.

planning.py has decided which; a method that comes to nothing raises `Instead`, with the plan to go
on with. An engine of the user's own is run by given_engine.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from probtorch.compiler.native.host import TooLongToCompile, compiling_takes_at_most
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.effects.enumerable import config_enumerate
from probtorch.effects.handlers import block
from probtorch.errors import InferenceError, ProbtorchError, user_frame
from probtorch.infer.approximations.dadvi import DADVI
from probtorch.infer.approximations.pathfinder import Pathfinder
from probtorch.infer.control import TimeIsUp
from probtorch.infer.guides.joint import AutoMultivariateNormal
from probtorch.infer.guides.mean_field import AutoNormal
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.gibbs.gibbs import Gibbs
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.kernels.replica_exchange import ReplicaExchange
from probtorch.infer.mcmc.subsampling.hmcecs import HMCECS
from probtorch.infer.objectives.elbo import Trace_ELBO
from probtorch.infer.objectives.enumerated import TraceEnum_ELBO
from probtorch.infer.plans.facts import Facts
from probtorch.infer.plans.given_engine import as_sampled, run_given
from probtorch.infer.plans.judged import SHARES, is_trusted
from probtorch.infer.plans.planning import (
    ASKED_FOR,
    THINNING,
    Plan,
    no_draws_by_rows,
    no_top,
    not_enumerated,
    out_of_time,
    powers_for,
    proxy_degree,
    sites_changed,
)
from probtorch.infer.plans.time_given import TimeGiven
from probtorch.infer.plans.until import Until
from probtorch.infer.potential import Target
from probtorch.infer.prediction.each_run import Values
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.importance import Importance
from probtorch.infer.sequential.particle_gibbs import ParticleGibbs
from probtorch.infer.sequential.run_draws import RunDraws
from probtorch.infer.sequential.weighted_draws import ImportanceWarning
from probtorch.infer.slots import SitesChangedError
from probtorch.infer.starts.initialization import Strategy
from probtorch.infer.vi.svi import SVI
from probtorch.optim.adam import Adam

__all__ = ["Instead", "Methods", "Outcome"]

AnyKernel: TypeAlias = Kernel[Any]
Options: TypeAlias = dict[str, Any]

# Steps of an optimisation at most; it ends when the loss has stopped falling.
MAX_STEPS = 30_000
LEARNING_RATE = 0.01
# Where a guide is given and the model learns parameters, both are networks as a rule: of two
# autoencoders the bound was best for rates of 0.002 to 0.005, and 7 to 18 nats lower for 0.01.
NETWORK_RATE = 0.003
# Where nobody is there to raise it after divergences: smaller steps than NUTS takes by itself.
TARGET_ACCEPT = 0.9
# Draws of a guide go through guide and model one by one: at least so many, at most so many numbers
# together, and this share of a time budget; a draw takes about as long as so many first runs.
FEWEST_DRAWS, MOST_NUMBERS, DRAWING_SHARE, DRAW_RUNS = 100, 4_000_000, 0.25, 3.0
# The share of a time budget for a try of importance sampling.
IMPORTANCE_SHARE = 0.25
# The share of what is left that the program of a sampler may take to compile: what its warm-up
# compiles on top takes as long again, where the cache has nothing.
COMPILING_SHARE = 0.5
# What meets the density again and again, of which a later run may have other sites.
CHANGING = ("nuts", "replica_exchange", "gibbs", "pathfinder")
# A chain of particle Gibbs has at least so many draws, if there are so many in all.
FEWEST_SWEEPS = 100


class Outcome(NamedTuple):
    """What a method gave: draws, what made them, and runs whose sites differ, one by one."""

    draws: SampledDraws
    engine: object = None
    values: Sequence[Sequence[Values]] = ()


class Instead(Exception):
    """What was planned came to nothing; `plan` is the one to go on with."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(str(plan))
        self.plan = plan


@dataclass(frozen=True)
class Methods:
    """What all methods need; one method each."""

    model: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Options
    target: Target | None
    facts: Facts
    num_samples: int
    num_chains: int
    warmup_steps: int
    time: TimeGiven
    generator: Generator
    shown: bool
    guide: Callable[..., object] | None
    plan: Plan
    init_strategy: Strategy | None
    engine: object = None

    @property
    def budget(self) -> float | None:
        """Seconds that the caller gives."""
        return self.time.seconds

    @property
    def _for_compiling(self) -> float:
        """Seconds that one program may take to compile, where something else can be run."""
        return COMPILING_SHARE * (math.inf if self.time.left is None else self.time.left)

    @property
    def _start(self) -> Options:
        return {} if self.init_strategy is None else {"init_strategy": self.init_strategy}

    def run(self, method: str) -> Outcome:
        """Carry a method out.

        Raises
        ------
        Instead
            If it came to nothing, and it was not the caller who had chosen it.
        TimeIsUp
            If the time of the caller's budget came to nothing.
        """
        carry_out: Callable[[], Outcome] = getattr(self, method)
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
            raise Instead(sites_changed(self.plan, str(error.subject))) from error

    def nuts(self) -> Outcome:
        assert self.target is not None  # planned for continuous sites
        return self._in_time(NUTS(self.target, target_accept_prob=TARGET_ACCEPT, **self._start))

    def replica_exchange(self) -> Outcome:
        assert self.target is not None  # planned for continuous sites
        nuts = NUTS(self.target, target_accept_prob=TARGET_ACCEPT, **self._start)
        powers = powers_for(self.plan.facts.wall)
        kernel = ReplicaExchange(nuts, inverse_temperatures=powers, adapt_temperatures=True)
        outcome = self._in_time(kernel, THINNING)
        found = self.plan.facts.found
        doubt = "" if found is None else found.doubt(outcome.draws.positions)
        if found is not None and doubt:
            warnings.warn_explicit(
                "replicas do not tell the shares of modes\n"
                f"  expected: draws in each of {len(found)} modes that climbs end in, and changes "
                "between them\n"
                f"  got:      {doubt}\n"
                f"  fix:      {SHARES}",
                InferenceWarning,
                *(user_frame() or ("<unknown>", 0)),
            )
        return outcome

    def _in_time(self, kernel: AnyKernel, thinning: int = 1) -> Outcome:
        """Chains; Pathfinder in their place, if the time is up before one has a draw."""
        if self.plan.decisions[0].because == ASKED_FOR or self.budget is None:
            return self._chains(kernel, thinning)
        try:
            with compiling_takes_at_most(self._for_compiling):
                return self._chains(kernel, thinning)
        except TimeIsUp as error:
            raise Instead(out_of_time(self.plan, self.budget)) from error
        except TooLongToCompile as error:
            raise Instead(out_of_time(self.plan, self.budget, str(error.got))) from error

    def gibbs(self) -> Outcome:
        return self._chains(Gibbs(self.model, **self._start), 1, *self.args, **self.kwargs)

    def _chains(self, kernel: AnyKernel, thinning: int, *args: object, **kwargs: Any) -> Outcome:
        mcmc = MCMC(
            kernel,
            num_samples=self.num_samples * thinning,
            thinning=thinning,
            warmup_steps=self.warmup_steps,
            num_chains=self.num_chains,
            seed=self.generator,
            progress_bar=self.shown,
        )
        return Outcome(mcmc.run(*args, max_seconds=self.time.left, **kwargs), mcmc)

    def hmcecs(self) -> Outcome:
        proxy = HMCECS.taylor_proxy(degree=proxy_degree(self.facts) or 1)
        nuts: AnyKernel = NUTS(self.model, **self._start)
        kernel = HMCECS(nuts, proxy=proxy)  # type: ignore[arg-type]  # its state is a point
        if self.plan.decisions[0].because == ASKED_FOR:
            return self._chains(kernel, 1, *self.args, **self.kwargs)
        try:
            with compiling_takes_at_most(self._for_compiling):
                return self._chains(kernel, 1, *self.args, **self.kwargs)
        except ProbtorchError as error:
            if isinstance(error, TooLongToCompile):
                why = f"too little time is left to compile chains on subsamples: {error.got}"
            elif isinstance(error, TimeIsUp):
                why = "chains on subsamples were still in their warm-up when the time was up"
            else:
                why = f"no density by rows: {str(error).splitlines()[0]}"
            raise Instead(no_draws_by_rows(self.plan, why)) from error

    def dadvi(self) -> Outcome:
        assert self.target is not None  # planned for continuous sites
        response = any(d.choice == "by linear response" for d in self.plan.decisions)
        engine = DADVI(self.target, linear_response=response, seed=self.generator)
        try:
            found = engine.run(max_seconds=self.time.left)
        except InferenceError as error:
            if self.plan.decisions[0].because == ASKED_FOR:
                raise
            raise Instead(no_top(self.plan, str(error).splitlines()[0])) from error
        return Outcome(found.draws(self.num_samples * self.num_chains), found)

    def given(self) -> Outcome:
        if isinstance(self.engine, Kernel):
            return self._chains(self.engine, 1, *self.args, **self.kwargs)
        draws, found, runs = run_given(
            self.engine, self.args, self.kwargs, count=self.num_samples * self.num_chains,
            max_steps=MAX_STEPS, seconds=self.time.left, seed=self.generator, shown=self.shown,
            name=self.facts.name,
        )  # fmt: skip
        return Outcome(draws, found, () if runs is None else runs.values)

    def pathfinder(self) -> Outcome:
        assert self.target is not None  # planned for continuous sites
        found = Pathfinder(self.target, seed=self.generator).run(max_seconds=self.time.left)
        return Outcome(found.draws(self.num_samples * self.num_chains), found)

    def particles(self) -> Outcome:
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
        values = drawn.values if isinstance(drawn, RunDraws) else ()
        return Outcome(as_sampled(drawn, self.facts.name), engine, values)

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
        found = gibbs.run(*self.args, max_seconds=self.time.left, **self.kwargs)
        return found.without_first(min(warmup, found.num_draws // 4))

    def exact(self) -> Outcome:
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
            raise Instead(not_enumerated(self.plan, str(error).splitlines()[0])) from error
        attrs = {"inference_library": "probtorch", "inference_method": "enumeration"}
        values = {name: np.asarray(x)[None] for name, x in found.items()}
        attrs["model_name"] = self.facts.name
        return Outcome(SampledDraws(posterior=values, attrs=attrs))

    def svi(self) -> Outcome:
        hidden = list(self.facts.finite)
        latent = block(self.model, hide=hidden) if hidden else self.model
        model = config_enumerate(self.model) if hidden else self.model
        if self.guide is not None:
            guide = self.guide
        else:
            guide = _GUIDES[self.plan.guide](latent)
        objective = TraceEnum_ELBO() if hidden else Trace_ELBO()
        networks = self.guide is not None and self.facts.params
        rate = NETWORK_RATE if networks else LEARNING_RATE
        svi = SVI(model, guide, Adam({"lr": rate}), objective, seed=self.generator)
        count, seconds = self._guide_draws()
        result = svi.run(
            MAX_STEPS,
            *self.args,
            progress_bar=self.shown,
            until=Until(self.time.until(seconds), self.time.clock),
            **self.kwargs,
        )
        return Outcome(result.draws(count), result)

    def _guide_draws(self) -> tuple[int, float]:
        """How many draws a guide gives, and how many seconds they are expected to take."""
        most = max(FEWEST_DRAWS, MOST_NUMBERS // max(self.facts.numbers, 1))
        count = min(self.num_samples * self.num_chains, most)
        each = max(DRAW_RUNS * self.facts.seconds, 1e-9)
        if self.budget is None:
            return count, count * each
        share = DRAWING_SHARE * self.budget
        count = min(count, max(FEWEST_DRAWS, int(share / each)))
        # The fewest draws may take longer, but not at the expense of what they are drawn from.
        return count, min(count * each, share)


_GUIDES: dict[str, Callable[..., Callable[..., object]]] = {
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoNormal": AutoNormal,
}


explain_calls(globals())
