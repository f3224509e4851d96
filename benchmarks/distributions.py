"""Distributions, 100,000 elements at a time: log densities with gradients, and draws.

A case has values that are given and a vector of parameters, one of them with an element for each
value, as a linear predictor has; the gradient is that of all parameters. NumPyro's is one program
of JAX. Values and gradients must agree (to 1e-8 of the largest element) before any is timed. Draws
are against NumPy's generator, which writes them from one core, too.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.peers import OURS, adapter
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["CASES", "Case", "run"]

PEERS = ("numpyro", "torch")
COUNT, DRAWS = 100_000, 1_000_000
COMPILED, EAGER = f"{OURS}, compiled", f"{OURS}, eager"
METHOD = (
    f"Sum of {COUNT:,} log densities and its gradient by all parameters, one of which has an "
    "element for each value; float64, one core; processor time of all threads, best of {rounds} "
    "rounds of about 0.1 s, systems taking turns. numpyro is one jitted program of JAX, torch is "
    "eager, as is our second column; all check arguments as they do by default (numpyro does not). "
    "Values are arguments of the programs, so nothing is worked out beforehand."
)
DRAWN = (
    f"{DRAWS:,} draws of one distribution in float64 by `sample`, eager, against NumPy's "
    "`Generator`; processor time, best of {rounds} rounds, taking turns."
)


@dataclass(frozen=True)
class Case:
    """A distribution that all libraries call by one name, with one name for each argument.

    Attributes
    ----------
    parameters : dict of str to ndarray
        With gradients.
    values : ndarray
    fixed : dict of str to ndarray
        Arguments without gradients.
    """

    parameters: Mapping[str, np.ndarray]
    values: np.ndarray
    fixed: Mapping[str, np.ndarray]


def _positive(rng, *shape):
    return np.exp(0.5 * rng.standard_normal(shape or (COUNT,)))


def _real(rng, *shape):
    return rng.standard_normal(shape or (COUNT,))


def _case(values, fixed=None, **parameters):
    parameters = {n: np.asarray(p, np.float64) for n, p in parameters.items()}
    return Case(parameters, np.asarray(values, np.float64), fixed or {})


def cases():
    """Return the `Case` of each distribution, by name."""
    rng = np.random.default_rng(0)
    real, positive = _real(rng), _positive(rng)
    share = 1.0 / (1.0 + np.exp(-_real(rng)))
    counts = rng.poisson(4.0, COUNT)
    quarters = COUNT // 4
    return {
        "Normal": _case(real, loc=_real(rng), scale=1.5),
        "LogNormal": _case(positive, loc=_real(rng), scale=1.5),
        "StudentT": _case(real, df=4.0, loc=_real(rng), scale=1.5),
        "Cauchy": _case(real, loc=_real(rng), scale=1.5),
        "Laplace": _case(real, loc=_real(rng), scale=1.5),
        "Gumbel": _case(real, loc=_real(rng), scale=1.5),
        "HalfNormal": _case(positive, scale=_positive(rng)),
        "HalfCauchy": _case(positive, scale=_positive(rng)),
        "Exponential": _case(positive, rate=_positive(rng)),
        "Gamma": _case(positive, concentration=2.5, rate=_positive(rng)),
        "InverseGamma": _case(positive, concentration=2.5, rate=_positive(rng)),
        "Weibull": _case(positive, scale=_positive(rng), concentration=1.5),
        "Pareto": _case(2.0 + positive, scale=1.5, alpha=_positive(rng)),
        "Beta": _case(share, concentration1=_positive(rng), concentration0=2.0),
        "VonMises": _case(3.0 * np.tanh(real), loc=_real(rng), concentration=2.0),
        "Dirichlet": _case(
            rng.dirichlet(np.ones(4), quarters), concentration=_positive(rng, quarters, 4)
        ),
        "Bernoulli": _case(counts % 2, logits=_real(rng)),
        "Binomial": _case(counts % 10, {"total_count": np.asarray(10.0)}, logits=_real(rng)),
        "Poisson": _case(counts, rate=_positive(rng)),
        "NegativeBinomial": _case(counts, total_count=5.0, logits=_real(rng)),
        "Categorical": _case(counts[:quarters] % 4, logits=_real(rng, quarters, 4)),
    }


CASES = cases()

# What is drawn: arguments of ours, and NumPy's call.
SAMPLERS: dict[str, tuple[dict[str, object], Callable[[np.random.Generator], np.ndarray]]] = {
    "Uniform": ({"low": 0.0, "high": 1.0}, lambda rng: rng.random(DRAWS)),
    "Normal": ({"loc": 0.0, "scale": 1.0}, lambda rng: rng.standard_normal(DRAWS)),
    "Gamma": ({"concentration": 2.5, "rate": 1.0}, lambda rng: rng.gamma(2.5, 1.0, DRAWS)),
    "Beta": (
        {"concentration1": 2.0, "concentration0": 3.0},
        lambda rng: rng.beta(2.0, 3.0, DRAWS),
    ),
    "StudentT": ({"df": 4.0}, lambda rng: rng.standard_t(4.0, DRAWS)),
    "Poisson": ({"rate": 4.0}, lambda rng: rng.poisson(4.0, DRAWS)),
    "Binomial": (
        {"total_count": 100.0, "probs": 0.3},
        lambda rng: rng.binomial(100, 0.3, DRAWS),
    ),
    "Categorical": (
        {"probs": [0.1, 0.2, 0.3, 0.4]},
        lambda rng: rng.choice(4, DRAWS, p=[0.1, 0.2, 0.3, 0.4]),
    ),
}


def _agree(found, reference):
    return all(
        np.allclose(x, y, rtol=1e-8, atol=1e-8 * np.abs(y).max())
        for x, y in zip(found, reference, strict=True)
    )


def _contestants(names, name, case, failures):
    """Return the calls whose results agree with the first one's, by column."""
    ways = {COMPILED: (OURS, {"compiled": True}), EAGER: (OURS, {"compiled": False})}
    calls, reference = {}, None
    for column in [COMPILED, EAGER, *names]:
        system, options = ways.get(column, (column, {}))
        try:
            call = adapter(system).log_density_of(name, case, **options)
            found = [np.asarray(x) for x in call()]
        except Exception as error:
            failures.append(f"{column}, {name}: {type(error).__name__}: {error}")
            continue
        reference = reference or found
        if _agree(found, reference):
            calls[column] = call
        else:
            failures.append(f"{column}, {name}: other numbers than the first system's")
    return calls


def _densities(names, rounds, failures):
    rows, quotients = [], {n: [] for n in names}
    against = {"numpyro": COMPILED, "torch": EAGER}
    for name, case in CASES.items():
        contestants = _contestants(names, name, case, failures)
        timings = race(contestants, rounds=rounds, clock=time.process_time)
        columns = [COMPILED, EAGER, *names]
        row = [name, *(duration(timings[c].best) if c in timings else "failed" for c in columns)]
        for peer in names:
            both = against[peer] in timings and peer in timings
            quotient = timings[against[peer]].best / timings[peer].best if both else np.nan
            row.append(f"{quotient:.2f}" if both else "-")
            quotients[peer] += [quotient] * both
        rows.append(row)
    means = [f"{np.exp(np.mean(np.log(quotients[n]))):.2f}" if quotients[n] else "-" for n in names]
    rows.append(["geometric mean", "", "", *("" for _ in names), *means])
    header = ["distribution", COMPILED, EAGER, *names]
    header += [f"{against[n].split(', ')[1]} / {n}" for n in names]
    return table(header, rows)


def _draws(rounds):
    rows = []
    for name, (arguments, theirs) in SAMPLERS.items():
        rng = np.random.default_rng(0)
        calls = {
            OURS: adapter(OURS).sampler_of(name, arguments, DRAWS),
            "numpy": lambda theirs=theirs, rng=rng: theirs(rng),
        }
        timings = race(calls, rounds=rounds, clock=time.process_time)
        ours, numpy = timings[OURS].best, timings["numpy"].best
        rows.append([name, duration(ours), duration(numpy), f"{ours / numpy:.2f}"])
    return table(["draws", OURS, "numpy", f"{OURS} / numpy"], rows)


def run(names, rounds=9):
    """Time the cases with the systems in `names`; returns (text, what went wrong)."""
    failures = []
    densities = _densities([n for n in PEERS if n in names], rounds, failures)
    draws = _draws(rounds)
    method, drawn = METHOD.format(rounds=rounds), DRAWN.format(rounds=rounds)
    return f"{densities}\n\n{method}\n\n{draws}\n\n{drawn}", failures
