"""What to run on a model: facts of one run of it, and a `Plan` that follows from them.

`look_at` runs the model once and notes what decides: latent numbers, finite and unbounded discrete
sites, subsamples, parameters. `planned` turns facts, a measured density and what the caller asked
for into a `Plan`, whose every decision keeps its reason; planned.py carries it out.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.enumeration import can_enumerate
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import trace
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.potential import Target
from probtorch.infer.starts.initialization import uniform_point
from probtorch.infer.starts.path_starts import Evaluations

__all__ = [
    *("ASKED_FOR", "METHODS", "Decision", "Facts", "Plan", "gradient_seconds", "look_at"),
    *("not_enumerated", "out_of_time", "planned", "sites_changed"),
]

METHODS = ("exact", "nuts", "gibbs", "pathfinder", "svi", "particles")

# Leapfrog steps per draw grow with d^(1/4) at a fixed acceptance rate; 8 in one dimension are those
# of trees of depth 3. A guess, as good as nothing for a posterior with long correlations.
LEAPFROGS = 8.0
# Without a time budget NUTS is run where it is expected to take less than this, in seconds.
PATIENCE = 900.0
# The full covariance of a guide has as many numbers as the square of the dimension.
FULL_RANK = 60
ASKED_FOR = "it was asked for"
# Runs until one stays where the model is defined.
FIRST_RUNS = 5
# Runs of a model that are compared, and the seconds from which on a run is too long for so many.
MORE_RUNS, LONG = 20, 0.2
# Gradients that are timed.
TIMED = 5


@dataclass(frozen=True)
class Facts:
    """What one run of a model shows.

    Attributes
    ----------
    name : str
    numbers : int
        Unconstrained numbers of the continuous latent sites.
    continuous : tuple of str
        The latent sites they belong to.
    finite : dict of str to int
        Discrete latent sites that can be enumerated, and how many values each has.
    unbounded : tuple of str
        Discrete latent sites that cannot.
    observed : tuple of str
        Of the first run in which something is.
    data : int
        Numbers that are observed there.
    subsampled : tuple of str
        Plates that work on some of their rows.
    params : tuple of str
        Parameters that are learnt, not inferred.
    seconds : float
        That the run took, eagerly; nan if it was not timed.
    changing : tuple of str
        Sites that some runs have and others have not.
    """

    name: str
    numbers: int
    continuous: tuple[str, ...]
    finite: Mapping[str, int]
    unbounded: tuple[str, ...]
    observed: tuple[str, ...]
    data: int
    subsampled: tuple[str, ...]
    params: tuple[str, ...]
    seconds: float = math.nan
    changing: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.numbers} continuous numbers" if self.numbers != 1 else "1 number"]
        if self.finite:
            parts.append(f"discrete {_listed(self.finite)} (finite)")
        if self.unbounded:
            parts.append(f"discrete {_listed(self.unbounded)} (without a bound)")
        if self.params:
            parts.append(f"parameters {_listed(self.params)}")
        parts.append(f"{self.data} observed" if self.observed else "nothing observed")
        if self.subsampled:
            parts.append(f"subsamples of {_listed(self.subsampled)}")
        if self.changing:
            parts.append(f"{_listed(self.changing)} not in every run")
        return ", ".join(parts)


@dataclass(frozen=True)
class Decision:
    """One thing that was decided.

    Attributes
    ----------
    what, choice, because : str
    instead : str
        How to have it otherwise.
    """

    what: str
    choice: str
    because: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what}: {self.choice}\n  because  {self.because}\n  instead  {self.instead}"


@dataclass(frozen=True, repr=False)
class Plan:
    """What is going to be run on a model, and why; prints in three lines.

    Attributes
    ----------
    method : {"exact", "nuts", "gibbs", "pathfinder", "svi", "particles"}
    facts : Facts
    seconds : float
        What it is expected to take, a guess; nan if unknown.
    decisions : tuple of Decision
        The choice of the method first.
    """

    method: str
    facts: Facts
    seconds: float
    decisions: tuple[Decision, ...]

    @property
    def guide(self) -> str:
        """The name of the guide that SVI gets; empty for other methods."""
        return next((d.choice for d in self.decisions if d.what == "guide"), "")

    def __repr__(self) -> str:
        return f"Plan({self.facts.name}: {self.method})"

    def __str__(self) -> str:
        chosen = ", ".join(d.choice for d in self.decisions)
        about = "" if math.isnan(self.seconds) else f" (about {_duration(self.seconds)})"
        return (
            f"{self.facts.name}: {self.facts}\n"
            f"plan: {chosen}{about}\n"
            f"why:  {self.decisions[0].because}"
        )

    def explain(self) -> str:
        """Return each decision with its reason, and how to have it otherwise."""
        return "\n".join([f"{self.facts.name}: {self.facts}", *map(str, self.decisions)])


def look_at(
    model: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Facts:
    """Run a model a few times, its latent sites drawn, and note what decides how to fit it.

    Raises
    ------
    InferenceError
        If it has no latent sites.
    """
    began = time.perf_counter()
    found = _drawn(model, args, kwargs)
    seconds, numbers, data = time.perf_counter() - began, 0, 0
    finite, continuous, unbounded = {}, [], []
    for name in found.stochastic_nodes:
        site = found[name]
        if can_enumerate(site):
            finite[name] = int(site.fn.enumerate_support(expand=False).shape[0])
        elif site.fn.is_discrete:
            unbounded.append(name)
        else:
            continuous.append(name)
            shape = tuple(biject_to(site.fn.support).inverse_shape(tuple(site.value.shape)))
            numbers += math.prod(shape)
    plates = {f.name for s in found.nodes.values() for f in s.plates if f.subsampled}
    params = tuple(n for n, s in found.nodes.items() if s.kind == "param")
    name = getattr(model, "__name__", type(model).__name__)
    if not (continuous or finite or unbounded):
        raise InferenceError(
            f"fit: {name} has nothing to infer",
            expected="at least one sample statement without obs",
            got=f"observed sites {_listed(found.observation_nodes) or '(none)'}"
            + (f" and parameters {_listed(params)}" if params else ""),
            fix="leave the value of what is to be inferred out: sample('x', distribution)"
            if not params
            else "parameters alone are learnt by maximum likelihood: "
            "SVI(model, lambda *args: None, Adam({'lr': 0.01}), Trace_ELBO()).run(1000, ...)",
        )
    runs = [found]
    for number in range(1, MORE_RUNS if seconds < LONG else 2):
        with contextlib.suppress(*OUTSIDE):  # runs that the model does not bear tell nothing
            runs.append(_drawn(model, args, kwargs, number * FIRST_RUNS))
    seeing = next((run for run in runs if run.observation_nodes), found)
    for name_of_data in seeing.observation_nodes:
        value = seeing[name_of_data].value
        data += value.array.size if isinstance(value, TensorBase) else int(np.size(value))
    return Facts(
        name, numbers, tuple(continuous), finite, tuple(unbounded),
        tuple(seeing.observation_nodes), data, tuple(sorted(plates)), params, seconds,
        _changing(runs),
    )  # fmt: skip


def _changing(runs: list[Trace]) -> tuple[str, ...]:
    """Sites that some runs have and others have not."""
    kinds = [set(run.stochastic_nodes) for run in runs]
    everywhere = set.intersection(*kinds)
    return tuple(sorted(set.union(*kinds) - everywhere))


def _drawn(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    first: int = 0,
) -> Trace:
    """The trace of a run; a few are tried, as draws of a wide prior may be where a model raises."""
    failure: Exception | None = None
    for stream in range(first, first + FIRST_RUNS):
        try:
            with no_grad(), trace() as found, seed_handler(None, Generator(0, stream)):
                model(*args, **kwargs)
            return found
        except OUTSIDE as error:
            failure = failure or error
    assert failure is not None  # there was at least one run
    raise failure


def gradient_seconds(target: Target) -> float:
    """Return the time that a density and its gradient take, compiled; nan where it has none."""
    evaluate = Evaluations(target)
    points = np.stack([uniform_point(Generator(0, i), (target.dim,)) for i in range(TIMED)])
    found, _ = evaluate(points[:1])
    times = []
    for i in range(TIMED):
        began = time.perf_counter()
        found, _ = evaluate(points[i : i + 1])
        if np.isfinite(found).all():
            times.append(time.perf_counter() - began)
    return min(times, default=math.nan)


def planned(
    facts: Facts,
    gradient: float,
    *,
    method: str | None,
    budget: float | None,
    num_samples: int,
    num_chains: int,
    warmup_steps: int,
    threads: int,
    guide: object = None,
    intractable: str = "",
) -> Plan:
    """Return the plan that follows from the facts.

    Parameters
    ----------
    facts : Facts
    gradient : float
        Seconds that a density with its gradient takes; nan if there is none.
    method : str or None
        What the caller asks for.
    budget : float or None
        Seconds that there are.
    num_samples, num_chains, warmup_steps, threads : int
    guide
        The caller's, or None.
    intractable : str
        Why finite discrete sites cannot be summed out; empty if they can.

    Raises
    ------
    ArgumentError
        If the method is unknown, or cannot be used on such a model.
    """
    if method is not None and method not in METHODS:
        raise ArgumentError(
            "fit(method=...)", expected=f"one of {', '.join(METHODS)}", got=repr(method),
            fix="leave it out: what fits the model is chosen, and explained",
        )  # fmt: skip
    steps = LEAPFROGS * max(facts.numbers, 1) ** 0.25
    rounds = math.ceil(num_chains / max(threads, 1))
    expected = gradient * steps * (num_samples + warmup_steps) * rounds
    chosen, because = _method(facts, gradient, expected, method, budget, guide, intractable)
    _check(facts, chosen, method, guide)
    instead = ", ".join(f"method={m!r}" for m in METHODS if m != chosen)
    if facts.changing:
        instead = "Importance(model), ParticleGibbs(model) or CSIS, with settings of your own"
    decisions = [Decision("method", _TITLES[chosen], because, instead)]
    if facts.finite and chosen not in ("exact", "gibbs", "particles"):
        decisions.append(
            Decision(
                "discrete sites", f"{_listed(facts.finite)} summed out",
                "they are finite: their sum is exact, and no sampler has to jump between them",
                "draws.infer_discrete() draws them afterwards",
            )
        )  # fmt: skip
    seconds = math.nan
    if chosen == "nuts":
        seconds = expected
        decisions.append(
            Decision(
                "run", f"{num_chains} chains x ({warmup_steps} warm-up + {num_samples})",
                "chains start below the tops of L-BFGS paths, where draws are; metric and step "
                "size are learnt in the warm-up",
                "num_chains=, num_samples=, warmup_steps=, seconds=",
            )
        )  # fmt: skip
    elif chosen == "gibbs":
        seconds = math.nan
        decisions.append(
            Decision(
                "run",
                f"{num_chains} chains x ({warmup_steps} warm-up + {num_samples})",
                "discrete sites are drawn element by element given all else, continuous ones are "
                "moved by NUTS",
                "MCMC(Gibbs(model, blocks)) with kernels of your choice",
            )
        )
    elif chosen == "svi":
        decisions.append(_guide(facts, guide))
    elif chosen == "pathfinder":
        seconds = gradient * 4000
    return Plan(chosen, facts, seconds, tuple(decisions))


def out_of_time(plan: Plan, budget: float) -> Plan:
    """Return what is run where NUTS had no draw when the time was up."""
    because = f"NUTS was still in its warm-up after the {_duration(budget)} of the time budget"
    first = Decision("method", _TITLES["pathfinder"], because, "method='nuts' and more seconds=")
    rest = tuple(d for d in plan.decisions if d.what == "discrete sites")
    return Plan("pathfinder", plan.facts, math.nan, (first, *rest))


def sites_changed(plan: Plan, what: str) -> Plan:
    """Return what is run where a later run of the model had other sites than the first ones."""
    because = f"{what}: there is no one density"
    instead = "Importance(model), ParticleGibbs(model) or CSIS, with settings of your own"
    first = Decision("method", _TITLES["particles"], because, instead)
    return Plan("particles", plan.facts, math.nan, (first,))


def not_enumerated(plan: Plan, why: str) -> Plan:
    """Return what is run where all values of the discrete sites cannot be had at once."""
    because = f"{_listed(plan.facts.finite)} cannot be enumerated: {why}"
    first = Decision("method", _TITLES["particles"], because, "method='gibbs'")
    return Plan("particles", plan.facts, math.nan, (first,))


_TITLES = {
    "exact": "exact draws by enumeration",
    "nuts": "NUTS",
    "gibbs": "Gibbs",
    "pathfinder": "Pathfinder, resampled by importance weights",
    "svi": "SVI",
    "particles": "importance sampling, and particle Gibbs where its weights are poor",
}


def _method(
    facts: Facts,
    gradient: float,
    expected: float,
    method: str | None,
    budget: float | None,
    guide: object,
    intractable: str,
) -> tuple[str, str]:
    """The method, and why."""
    if method is not None:
        return method, ASKED_FOR
    if guide is not None:
        return "svi", "a guide was given"
    if facts.changing:
        why = f"not every run has {_listed(facts.changing)}: there is no one density"
        if facts.params:
            why += f"; {_listed(facts.params)}, which could be learnt, stay what they are"
        return "particles", why
    if facts.subsampled:
        return "svi", f"{_listed(facts.subsampled)} work on subsamples: no density of all data"
    if facts.params:
        return "svi", f"{_listed(facts.params)} are parameters to be learnt, not inferred"
    if facts.unbounded:
        return "gibbs", f"{_listed(facts.unbounded)} have no last value: they cannot be summed out"
    if intractable:
        return "gibbs", f"{_listed(facts.finite)} cannot be summed out: {intractable}"
    if not facts.numbers:
        return "exact", "all latent sites are finite: the posterior is a table"
    limit = PATIENCE if budget is None else budget
    if expected > limit:
        given = "without a time budget" if budget is None else "of the time budget"
        because = (
            f"NUTS would take about {_duration(expected)}, more than the {_duration(limit)} {given}"
        )
        return "pathfinder", because
    return "nuts", (
        f"{facts.numbers} continuous dimensions, {_microseconds(gradient)} a gradient: exact but "
        "for Monte Carlo error, which the diagnostics measure"
    )


def _check(facts: Facts, chosen: str, method: str | None, guide: object) -> None:
    """Refuse a method that cannot answer."""
    wrong = None
    if chosen == "particles" and facts.subsampled:
        wrong = "plates that work on all rows"
    elif facts.changing and chosen not in ("particles", "svi"):
        wrong = "the same sites in every run, but for method='particles'"
    elif chosen == "exact" and (facts.numbers or facts.unbounded):
        wrong = "finite discrete latent sites only"
    elif chosen in ("nuts", "pathfinder") and (facts.subsampled or not facts.numbers):
        wrong = "continuous latent sites, and plates that work on all rows"
    elif chosen == "svi" and not facts.numbers:
        wrong = "continuous latent sites"
    elif chosen != "svi" and guide is not None:
        wrong = "no guide: only method='svi' uses one"
    elif chosen == "gibbs" and (facts.subsampled or not (facts.finite or facts.unbounded)):
        wrong = "discrete latent sites, and plates that work on all rows"
    elif facts.unbounded and chosen not in ("gibbs", "particles") and guide is None:
        wrong = "no discrete sites without a bound: they are for method='gibbs'"
    if wrong:
        raise ArgumentError(
            f"fit(method={method!r})", expected=wrong, got=f"{facts.name}: {facts}",
            fix="leave method out, or change the model",
        )  # fmt: skip


def _guide(facts: Facts, guide: object) -> Decision:
    instead = "guide=AutoNormal(model), or any other"
    if guide is not None:
        name = getattr(guide, "__name__", type(guide).__name__)
        return Decision("guide", name, "it was given", instead)
    if facts.subsampled or facts.numbers > FULL_RANK:
        because = (
            "rows of subsamples are approximated one by one"
            if facts.subsampled
            else f"{facts.numbers} numbers: a covariance of all pairs would be {facts.numbers**2}"
        )
        return Decision("guide", "AutoNormal", because, instead)
    because = f"{facts.numbers} numbers: few enough for the covariance of all pairs"
    return Decision("guide", "AutoMultivariateNormal", because, instead)


def _listed(names: object) -> str:
    found = list(names)  # type: ignore[call-overload]  # any iterable of names
    shown = ", ".join(map(repr, found[:3]))
    return shown + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _microseconds(seconds: float) -> str:
    return "unknown time" if math.isnan(seconds) else f"{1e6 * seconds:.3g} us"


def _duration(seconds: float) -> str:
    unit, size = (
        ("s", 1.0) if seconds < 120.0 else ("min", 60.0) if seconds < 7200.0 else ("h", 3600.0)
    )
    return f"{seconds / size:.3g} {unit}"


explain_calls(globals())
