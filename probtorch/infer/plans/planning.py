"""What to run on a model: a `Plan` that follows from its facts.

`planned` turns facts (facts.py), a measured density and what the caller asked for into a `Plan`,
whose every decision keeps its reason; planned.py carries it out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernels.replica_exchange import DEFAULT_POWERS
from probtorch.infer.plans.facts import Facts, listed

__all__ = [
    *("ASKED_FOR", "FEW", "METHODS", "THINNING", "Decision", "Plan", "not_enumerated"),
    *("linear_response", "no_draws_by_rows", "no_top", "out_of_time", "planned"),
    *("powers_for", "proxy_degree", "sites_changed"),
]

METHODS = (
    "exact", "nuts", "replica_exchange", "gibbs", "hmcecs", "dadvi", "pathfinder", "svi",
    "particles",
)  # fmt: skip

# Leapfrog steps per draw grow with d^(1/4) at a fixed acceptance rate; 8 in one dimension are those
# of trees of depth 3. A guess, as good as nothing for a posterior with long correlations.
LEAPFROGS = 8.0
# Without a time budget NUTS is run where it is expected to take less than this, in seconds.
PATIENCE = 900.0
# The full covariance of a guide has as many numbers as the square of the dimension.
FULL_RANK = 60
# Polynomials that stand for rows take memory for so many numbers at most: of degree 2 for each row
# as many as the square of the dimension, else of degree 1.
PROXY_NUMBERS = 2**26
# Gradients that DADVI takes to the top of its bound, in which each is that of 30 draws; with linear
# response so many more for each dimension. Beyond this dimension it has independent numbers only.
DADVI_GRADIENTS, DADVI_RESPONSE, RESPONSE = 6000.0, 60.0, 1000
# Modes are looked for in so many dimensions at most: replicas that go from one to the other have to
# be more and more, and in the networks that have thousands every draw is in a mode of its own.
FEW = 30
# Transitions for a draw that is kept: from mode to mode goes a way through all replicas.
THINNING = 5
# To the lowest power of a replica walls are so deep, in nats, where it can be; and where it cannot.
LOW_WALL, LOWEST = 2.0, 1e-3
ASKED_FOR = "it was asked for"


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
    method : str
        One of `METHODS`, or "given" for an engine of the user's.
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
    engine: str = "",
    spent: float = 0.0,
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
    engine : str
        The name of the caller's engine; empty if none is given.
    spent : float
        Seconds of the budget that are gone.

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
    if engine:
        first = Decision("method", engine, "it was given", "leave engine out")
        return Plan("given", facts, math.nan, (first,))
    steps = LEAPFROGS * max(facts.numbers, 1) ** 0.25
    rounds = math.ceil(num_chains / max(threads, 1))
    limit = PATIENCE if budget is None else max(budget - spent, 0.0)
    expected = gradient * steps * (num_samples + warmup_steps) * rounds
    if method == "replica_exchange" or facts.modes > 1:
        expected = gradient * steps * (THINNING * num_samples + warmup_steps) * rounds
        expected *= len(powers_for(facts.wall))
    told = "without a time budget" if budget is None else "of the time budget"
    if budget is not None and spent:
        told = f"left of the time budget of {_duration(budget)}"
    time = _Time(expected, limit, told)
    chosen, because = _method(facts, gradient, time, method, guide, intractable)
    _check(facts, chosen, method, guide)
    instead = ", ".join(f"method={m!r}" for m in METHODS if m != chosen)
    if facts.changing:
        instead = _OWN_MOVES
    decisions = [Decision("method", _TITLES[chosen], because, instead)]
    if facts.finite and chosen not in ("exact", "gibbs", "particles"):
        decisions.append(
            Decision(
                "discrete sites", f"{listed(facts.finite)} summed out",
                "they are finite: their sum is exact, and no sampler has to jump between them",
                "draws.infer_discrete() draws them afterwards",
            )
        )  # fmt: skip
    seconds = math.nan
    if chosen == "replica_exchange":
        seconds = expected
        decisions.append(
            Decision(
                "run",
                f"{num_chains} chains of {len(powers_for(facts.wall))} replicas x "
                f"({warmup_steps} warm-up + "
                f"{num_samples}, every {THINNING}th kept)",
                "replicas at lower powers of the density cross between modes, and swap places with "
                "those below; the warm-up spaces the powers",
                "MCMC(ReplicaExchange(NUTS(model), inverse_temperatures=...)); init_strategy= says "
                "where chains are to start, and stay, if one mode is meant",
            )
        )  # fmt: skip
    elif chosen == "nuts":
        seconds = expected
        decisions.append(
            Decision(
                "run", f"{num_chains} chains x ({warmup_steps} warm-up + {num_samples})",
                "chains start below the tops of L-BFGS paths, where draws are; metric and step "
                "size are learnt in the warm-up",
                "num_chains=, num_samples=, warmup_steps=, seconds=",
            )
        )  # fmt: skip
    elif chosen == "hmcecs":
        degree = proxy_degree(facts) or 1
        decisions.append(
            Decision(
                "run",
                f"{num_chains} chains x ({warmup_steps} warm-up + {num_samples}), rows by "
                f"polynomials of degree {degree}",
                f"each step looks at the rows of one subsample of {listed(facts.subsampled)}, and "
                "all rows are looked at once, for the polynomials that stand for them",
                "engine=lambda m: HMCECS(NUTS(m), num_blocks=10); or method='svi', for a normal",
            )
        )
    elif chosen == "dadvi":
        seconds = _dadvi_seconds(facts, gradient, response=linear_response(facts, gradient, limit))
        decisions.append(
            Decision(
                "covariance",
                "by linear response"
                if linear_response(facts, gradient, limit)
                else "of independent numbers",
                "means and standard deviations of so many numbers come out better than by "
                "Pathfinder, whose normals are fitted along one path",
                "engine=lambda m: DADVI(m, num_draws=60), method='pathfinder'",
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


def out_of_time(plan: Plan, budget: float, compiling: str = "") -> Plan:
    """Return what is run where NUTS had no draw when the time was up, or could have none."""
    because = f"NUTS was still in its warm-up after the {_duration(budget)} of the time budget"
    if compiling:
        because = f"too little of the {_duration(budget)} is left to compile NUTS: {compiling}"
    first = Decision("method", _TITLES["pathfinder"], because, "method='nuts' and more seconds=")
    rest = tuple(d for d in plan.decisions if d.what == "discrete sites")
    return Plan("pathfinder", plan.facts, math.nan, (first, *rest))


def no_draws_by_rows(plan: Plan, why: str) -> Plan:
    """Return what is run where chains on subsamples come to nothing."""
    first = Decision("method", _TITLES["svi"], why, "method='hmcecs'")
    return Plan("svi", plan.facts, math.nan, (first, _guide(plan.facts, None)))


def no_top(plan: Plan, why: str) -> Plan:
    """Return what is run where DADVI found no top of its bound, or not in time."""
    first = Decision("method", _TITLES["pathfinder"], why, "method='dadvi' and more seconds=")
    rest = tuple(d for d in plan.decisions if d.what == "discrete sites")
    return Plan("pathfinder", plan.facts, math.nan, (first, *rest))


def proxy_degree(facts: Facts) -> int:
    """Return of which degree polynomials for all rows may be; 0 if there is no room for them."""
    for degree in (2, 1):
        if facts.rows * facts.numbers**degree <= PROXY_NUMBERS:
            return degree
    return 0


def linear_response(facts: Facts, gradient: float, limit: float) -> bool:
    """Return whether the covariances of DADVI are to be had in time."""
    if facts.numbers > RESPONSE:
        return False
    return not _dadvi_seconds(facts, gradient, response=True) > limit


def _dadvi_seconds(facts: Facts, gradient: float, *, response: bool) -> float:
    return gradient * (DADVI_GRADIENTS + response * DADVI_RESPONSE * facts.numbers)


def powers_for(wall: float) -> tuple[float, ...]:
    """Return the powers of replicas that cross a wall of so many nats, spaced as the usual ones."""
    lowest = min(max(LOW_WALL / max(wall, LOW_WALL), LOWEST), DEFAULT_POWERS[-1])
    steps = (len(DEFAULT_POWERS) - 1) * math.log(lowest) / math.log(DEFAULT_POWERS[-1])
    return tuple(np.geomspace(1.0, lowest, 1 + math.ceil(steps - 1e-9)).tolist())


def sites_changed(plan: Plan, what: str) -> Plan:
    """Return what is run where a later run of the model had other sites than the first ones."""
    because = f"{what}: there is no one density"
    instead = _OWN_MOVES
    first = Decision("method", _TITLES["particles"], because, instead)
    return Plan("particles", plan.facts, math.nan, (first,))


def not_enumerated(plan: Plan, why: str) -> Plan:
    """Return what is run where all values of the discrete sites cannot be had at once."""
    because = f"{listed(plan.facts.finite)} cannot be enumerated: {why}"
    first = Decision("method", _TITLES["particles"], because, "method='gibbs'")
    return Plan("particles", plan.facts, math.nan, (first,))


_OWN_MOVES = (
    "Importance, ParticleGibbs, CSIS or InvolutiveMCMC with moves of your own: "
    "engine=lambda m: ParticleGibbs(m, num_particles=100)"
)
_TITLES = {
    "exact": "exact draws by enumeration",
    "nuts": "NUTS",
    "replica_exchange": "replica exchange of NUTS",
    "gibbs": "Gibbs",
    "hmcecs": "HMC on subsamples (HMCECS)",
    "dadvi": "DADVI",
    "pathfinder": "Pathfinder, resampled by importance weights",
    "svi": "SVI",
    "particles": "importance sampling, and particle Gibbs where its weights are poor",
}


class _Time(NamedTuple):
    """Seconds that chains are expected to take, that they may take, and what the latter are."""

    expected: float
    limit: float
    told: str


def _method(
    facts: Facts,
    gradient: float,
    time: _Time,
    method: str | None,
    guide: object,
    intractable: str,
) -> tuple[str, str]:
    """The method, and why."""
    if method is not None:
        return method, ASKED_FOR
    if guide is not None:
        return "svi", "a guide was given"
    if facts.changing:
        why = f"not every run has {listed(facts.changing)}: there is no one density"
        if facts.params:
            why += f"; {listed(facts.params)}, which could be learnt, stay what they are"
        return "particles", why
    if _rows_can_be_sampled(facts):
        return "hmcecs", (
            f"{listed(facts.subsampled)} works on subsamples of {facts.rows} rows, and "
            f"{facts.numbers} numbers are few enough for a polynomial that stands for each: draws "
            "of the posterior at the price of a subsample each"
        )
    if facts.subsampled:
        return "svi", f"{listed(facts.subsampled)} work on subsamples: no density of all data"
    if facts.params:
        return "svi", f"{listed(facts.params)} are parameters to be learnt, not inferred"
    if facts.unbounded:
        return "gibbs", f"{listed(facts.unbounded)} have no last value: they cannot be summed out"
    if intractable:
        return "gibbs", f"{listed(facts.finite)} cannot be summed out: {intractable}"
    if not facts.numbers:
        return "exact", "all latent sites are finite: the posterior is a table"
    if time.expected > time.limit:
        many = facts.numbers > FULL_RANK
        suits = many and not _dadvi_seconds(facts, gradient, response=False) > time.limit
        what = "replica exchange" if facts.modes > 1 else "NUTS"
        because = (
            f"{what} would take about {_duration(time.expected)}, more than the "
            f"{_duration(time.limit)} {time.told}"
        )
        return "dadvi" if suits else "pathfinder", because
    if facts.modes > 1:
        return "replica_exchange", (
            f"climbs end in {facts.modes} modes that a chain does not cross: it would tell of one, "
            "and not of their shares"
        )
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
    elif chosen == "hmcecs" and not _rows_can_be_sampled(facts):
        wrong = (
            "one plate that works on subsamples of observed rows, up to "
            f"{FULL_RANK} continuous numbers, and no parameters"
        )
    elif chosen in ("nuts", "replica_exchange", "dadvi", "pathfinder") and (
        facts.subsampled or not facts.numbers
    ):
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


def _rows_can_be_sampled(facts: Facts) -> bool:
    """Whether chains on subsamples can answer, and polynomials that stand for rows have room."""
    simple = len(facts.subsampled) == 1 and not (facts.local or facts.finite or facts.unbounded)
    few = 0 < facts.numbers <= FULL_RANK and proxy_degree(facts) > 0
    return simple and few and not facts.params and not facts.changing


def _guide(facts: Facts, guide: object) -> Decision:
    instead = "guide=AutoNormal(model), or any other"
    if facts.local:
        instead = "guide=AutoSemiDAIS(model, use_global_dais_params=True), closer in the long run"
    if guide is not None:
        name = getattr(guide, "__name__", type(guide).__name__)
        return Decision("guide", name, "it was given", instead)
    if facts.local or facts.numbers > FULL_RANK:
        because = (
            "rows of subsamples are approximated one by one"
            if facts.local
            else f"{facts.numbers} numbers: a covariance of all pairs would be {facts.numbers**2}"
        )
        return Decision("guide", "AutoNormal", because, instead)
    because = f"{facts.numbers} numbers: few enough for the covariance of all pairs"
    return Decision("guide", "AutoMultivariateNormal", because, instead)


def _microseconds(seconds: float) -> str:
    return "unknown time" if math.isnan(seconds) else f"{1e6 * seconds:.3g} us"


def _duration(seconds: float) -> str:
    unit, size = (
        ("s", 1.0) if seconds < 120.0 else ("min", 60.0) if seconds < 7200.0 else ("h", 3600.0)
    )
    return f"{seconds / size:.3g} {unit}"


explain_calls(globals())
