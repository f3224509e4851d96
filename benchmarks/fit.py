"""`fit` on the examples of models/: what it plans, and how it compares with a run by hand.

By hand is what the example's script does. Means and standard deviations of both are compared in
units of their Monte Carlo error, the largest difference of any entry; time is the processor's,
compiling included, each in a process of its own. Where the script optimises a guide of its own,
both have equal seconds, and the bounds that they reach are compared. Where latent numbers may
change places, the log predictive density of new points is compared in place of means; where a
script reads digits, the share that is read right.
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

import probtorch
from benchmarks.report import table
from probtorch.diagnostics.convergence import ess_bulk
from probtorch.infer import MCMC, NUTS, SVI, Fitted, Trace_ELBO, TraceEnum_ELBO, fit
from probtorch.infer.plans.facts import look_at
from probtorch.infer.plans.planning import Plan, planned
from probtorch.infer.results import SampledDraws
from probtorch.optim import Adam

__all__ = [
    "CASES",
    "Case",
    "Learnt",
    "by_fit",
    "by_hand",
    "compare",
    "compare_advice",
    "compare_bounds",
    "compare_readers",
    "example",
    "plan_of",
    "predictive_score",
    "run",
    "time_ratio",
]

MODELS = Path(__file__).parents[1] / "models"
DRAWS = WARMUP = 1000
CHAINS = 4
# For each of two optimisations; steps between two looks at the clock, and the share of them, the
# last, whose mean is the bound.
SECONDS, STEPS, LAST = 15.0, 50, 0.1


@dataclass(frozen=True)
class Case:
    """An example as `fit` gets it.

    Parameters
    ----------
    make : callable
        From the example's module to the model, its arguments and keywords.
    method : str
        What `fit` should plan; "refused" where there is nothing to infer.
    by_hand : dict or None
        Settings of the script's NUTS beside the model, which may need the module and arguments;
        None if it runs for minutes, or learns networks: then the plan alone is looked at.
    hints : callable
        What the user has to tell `fit`, by keyword.
    guide : callable or None
        From the module to the model, its arguments and keywords, the script's guide, the objective
        and the rate, where a guide is optimised by hand.
    held_out : callable or None
        From the module and draws to log densities of new points, (chains, draws, points): what is
        compared in place of means, where latent numbers may change places.
    unit : callable
        From the arguments to how many numbers a bound is told per, and what they are.
    """

    make: Callable[[Any], tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]]
    method: str
    by_hand: Callable[[Any, tuple[Any, ...]], dict[str, Any]] | None = None
    hints: Callable[[Any, tuple[Any, ...]], dict[str, Any]] = field(default=lambda m, args: {})
    guide: Callable[[Any], tuple[Any, ...]] | None = None
    held_out: Callable[[Any, SampledDraws], np.ndarray] | None = None
    unit: Callable[[tuple[Any, ...]], tuple[int, str]] = field(default=lambda args: (1, ""))


def _plain(module: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    return {}


def _start(module: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    return {"init_strategy": module.start(*args)}


def _varying(m: Any):
    firms, firm, invest, value, capital = m.load()
    return (
        m.model,
        (firms, firm, value - value.mean(), capital - capital.mean()),
        {"invest": invest},
    )


def _logistic(m: Any):
    names, (x, malignant), _ = m.load(1)
    return m.model, (names, x), {"malignant": malignant}


def _lda(m: Any):
    words, _ = m.draw(200, np.random.default_rng(1))
    return m.model, (probtorch.tensor(words), probtorch.tensor(m.count(words)), 32), {}


def _lda_by_hand(m: Any):
    return *_lda(m), m.Guide(), TraceEnum_ELBO(), 0.01


def _vae(m: Any):
    return m.VAE().model, (probtorch.tensor(m.load(1)[0]),), {}


def _vae_by_hand(m: Any):
    vae = m.VAE()
    return vae.model, (probtorch.tensor(m.load(1)[0]),), {}, vae.guide, Trace_ELBO(), 0.001


def _ss_vae(m: Any):
    (x, y), others, _ = m.load(100, 1)
    x, y, others = map(probtorch.tensor, (x, y, others))
    return m.SemiSupervised(20.0).model, (others, x, y, 64), {}


def _new_points(m: Any, draws: SampledDraws) -> np.ndarray:
    _, (x, y) = m.load(1)
    f = np.asarray(draws.predict(x, seed=1)["f"])
    return norm.logpdf(y, f, np.asarray(draws["sigma"])[..., None])


def _flow(m: Any):
    x = m.draw(500, np.random.default_rng(1)).astype(np.float32)
    return m.Flow(x, 4).model, (x,), {}


CASES = {
    "eight_schools": Case(
        lambda m: (m.model, (m.ERROR,), {"y": m.EFFECT}),
        "nuts",
        lambda m, args: {"target_accept_prob": 0.9},
    ),
    "varying_intercepts": Case(_varying, "nuts", _plain),
    "logistic": Case(_logistic, "nuts", _plain),
    "mixture": Case(lambda m: (m.model, (m.load(1)[0], 2), {}), "nuts", _start, _start),
    "hmm": Case(lambda m: (m.model, (m.COUNTS, 3), {}), "nuts", _plain),
    "bayesian_neural_network": Case(
        lambda m: (m.model, m.load(1)[0], {}),
        "nuts",
        lambda m, args: {"target_accept_prob": 0.95},
        held_out=_new_points,
    ),
    "lda": Case(_lda, "svi", guide=_lda_by_hand, unit=lambda args: (args[0].numpy().size, "word")),
    "vae": Case(_vae, "svi", guide=_vae_by_hand, unit=lambda args: (len(args[0]), "image")),
    "ss_vae": Case(_ss_vae, "svi", unit=lambda args: (len(args[0]) + len(args[1]), "image")),
    "flow": Case(_flow, "refused"),
}
METHOD = (
    f"{CHAINS} chains x ({WARMUP} + {DRAWS}). Error: the largest difference of a posterior mean, "
    "or of the logarithm of a standard deviation, between `fit` and the run by hand, in standard "
    "errors of that difference. Time ratio: processor time of `fit` to the run by hand, each in "
    "a process of its own, data, compiling and diagnosing included. Bound: nats by which "
    f"that of `fit` is above the script's guide, both optimised for {SECONDS:g} s, a mean over "
    "the last tenth of the steps. Network: the error is that of the log predictive density of 400 "
    "new points. ss_vae: `fit` with the script's guide against the script's stages, in 1.5 times "
    "its seconds; the error is that of the share of new images that are read right. "
    "flow: log density of new points, by the call that the error names against the script's."
)


def example(name: str) -> Any:
    """Return the module of an example."""
    spec = importlib.util.spec_from_file_location(f"fit_{name}", MODELS / name / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan_of(name: str) -> Plan:
    """Return what `fit` plans for an example, a gradient taken to cost 10 us.

    Raises
    ------
    InferenceError
        If the example has nothing to infer.
    """
    probtorch.manual_seed(1)
    model, args, kwargs = CASES[name].make(example(name))
    return planned(
        look_at(model, args, kwargs), 1e-5, method=None, budget=None, num_samples=DRAWS,
        num_chains=CHAINS, warmup_steps=WARMUP, threads=1,
    )  # fmt: skip


def compare(name: str) -> tuple[Plan, float]:
    """Run an example both ways; returns the plan and the largest error."""
    right, found = by_hand(name), by_fit(name)
    assert found.plan is not None
    held_out = CASES[name].held_out
    if held_out is not None:
        module = example(name)
        (a, va), (b, vb) = (predictive_score(held_out(module, draws)) for draws in (right, found))
        return found.plan, abs(a - b) / np.sqrt(va + vb)
    return found.plan, max(_error(right[n], found[n]) for n in right if n in found)


def predictive_score(log_density: np.ndarray) -> tuple[float, float]:
    """Return the mean log predictive density of new points, and its Monte Carlo variance.

    The variance is the jackknife's over chains, which may each be in places of their own.

    Parameters
    ----------
    log_density : array, shape (chains, draws, points)
    """
    of_chain = logsumexp(log_density, axis=1) - np.log(log_density.shape[1])
    count = len(of_chain)

    def score(chains: np.ndarray) -> float:
        return float(np.mean(logsumexp(chains, axis=0) - np.log(len(chains))))

    without = np.array([score(np.delete(of_chain, i, axis=0)) for i in range(count)])
    return score(of_chain), (count - 1) * float(np.var(without))


def by_hand(name: str) -> SampledDraws:
    """Run an example as its script does."""
    case, module = CASES[name], example(name)
    assert case.by_hand is not None
    model, args, kwargs = case.make(module)
    with warnings.catch_warnings(action="ignore"):
        kernel = NUTS(model, **case.by_hand(module, args))
        mcmc = MCMC(kernel, DRAWS, WARMUP, num_chains=CHAINS, seed=1, progress_bar=False)
        return mcmc.run(*args, **kwargs)


def by_fit(name: str) -> Fitted:
    """Hand an example to `fit`."""
    case, module = CASES[name], example(name)
    model, args, kwargs = case.make(module)
    with warnings.catch_warnings(action="ignore"):
        return fit(
            model, *args, num_samples=DRAWS, warmup_steps=WARMUP, num_chains=CHAINS, seed=2,
            verbose=False, **case.hints(module, args), **kwargs,
        )  # fmt: skip


def time_ratio(name: str) -> float:
    """Return the processor time of `fit` by that of the run by hand, data and compiling included.

    Each has a process of its own, which finds nothing compiled.
    """
    seconds = []
    for way in ("by_fit", "by_hand"):
        script = (
            "import time; from benchmarks import fit; began = time.process_time(); "
            f"fit.{way}({name!r}); print(time.process_time() - began)"
        )
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(
                [sys.executable, "-c", script], cwd=MODELS.parent, check=True, text=True,
                stdout=subprocess.PIPE, env={**os.environ, "PROBTORCH_CACHE_DIR": cache},
            )  # fmt: skip
        seconds.append(float(done.stdout.split()[-1]))
    return seconds[0] / seconds[1]


def compare_bounds(name: str, seconds: float = SECONDS) -> tuple[Plan, float]:
    """Optimise both guides for so long; returns the plan, and how far `fit` gets above by hand."""
    case, module = CASES[name], example(name)
    assert case.guide is not None
    bounds = []
    with warnings.catch_warnings(action="ignore"):
        probtorch.manual_seed(1)
        model, args, kwargs, guide, objective, rate = case.guide(module)
        svi = SVI(model, guide, Adam({"lr": rate}), objective)
        parts, end = [], time.perf_counter() + seconds
        while not parts or time.perf_counter() < end:
            parts.append(svi.run(STEPS, *args, progress_bar=False, **kwargs).losses)
        bounds.append(_bound(np.concatenate(parts)))
        probtorch.manual_seed(1)
        model, args, kwargs = case.make(module)
        # A quarter of the time is for draws.
        found = fit(
            model, *args, method="svi", seconds=seconds / 0.75, num_samples=100, num_chains=1,
            seed=2, verbose=False, **kwargs,
        )  # fmt: skip
        bounds.append(_bound(np.asarray(found.engine.losses)))
    assert found.plan is not None
    return found.plan, (bounds[1] - bounds[0]) / case.unit(args)[0]


@dataclass(frozen=True)
class Learnt:
    """What `fit` learnt of half-labelled images, beside what the script did in stages.

    Attributes
    ----------
    plan : Plan
    gain, gain_error : float
        By how much the bound is higher, nats per image, and its Monte Carlo error.
    right, right_by_hand : float
        Shares of new images that are read right.
    error : float
        Their difference in standard errors, from the images that one of the two reads right.
    time : float
        Seconds of `fit` by those of the script.
    """

    plan: Plan
    gain: float
    gain_error: float
    right: float
    right_by_hand: float
    error: float
    time: float


def compare_readers(
    frozen: int = 800, steps: int = 800, looks: int = 20, times: float = 1.5
) -> Learnt:
    """Train the semi-supervised autoencoder both ways, from classifiers that know the labels.

    Parameters
    ----------
    frozen, steps : int
        Of the script's two stages, of which `fit` knows nothing: it gets the script's guide.
    looks : int
        Evaluations of a bound.
    times : float
        Seconds of `fit` by those of the script. It compiles one program where that compiles two,
        but a quarter of its time is for draws.
    """
    m = example("ss_vae")
    (x, y), others, (x_test, y_test) = m.load(100, 1)
    x, y, others, x_test = map(probtorch.tensor, (x, y, others, x_test))
    seconds, right, bounds = [], [], []
    plan = None
    for by_hand in (True, False):
        probtorch.manual_seed(1)
        net = m.SemiSupervised(20.0)
        m.supervise(net.classifier, x, y)
        began = time.perf_counter()
        if by_hand:
            m.learn(net, others, x, y, 64, frozen=frozen, steps=steps, lr=2e-3)
        else:
            with warnings.catch_warnings(action="ignore"):
                plan = fit(
                    net.model, others, x, y, 64, guide=net.guide, seconds=times * seconds[0],
                    num_samples=25, num_chains=4, seed=2, verbose=False,
                ).plan  # fmt: skip
        seconds.append(time.perf_counter() - began)
        with probtorch.no_grad():
            right.append(net.classifier(m.scaled(x_test)).argmax(-1).numpy() == y_test)
        svi = SVI(net.model, net.guide, Adam({"lr": 0.001}), TraceEnum_ELBO())
        bounds.append([-svi.evaluate_loss(others, x, y, len(others)) for _ in range(looks)])
    assert plan is not None
    images = len(x) + len(others)
    (hand, ours), differ = right, int(np.sum(right[0] != right[1]))
    noise = np.sqrt(np.var(bounds, axis=1, ddof=1).sum() / looks)
    return Learnt(
        plan, float(np.mean(bounds[1]) - np.mean(bounds[0])) / images, float(noise) / images,
        float(ours.mean()), float(hand.mean()),
        abs(int(ours.sum()) - int(hand.sum())) / math.sqrt(max(differ, 1)),
        seconds[1] / seconds[0],
    )  # fmt: skip


def compare_advice(points: int = 5000, epochs: int = 50, steps: int = 1000) -> tuple[float, float]:
    """Learn the flow, which `fit` refuses, by the call that its error names, and by the script.

    Returns
    -------
    gain : float
        By how much the log density of as many new points is higher, nats each.
    error : float
        Its standard error.
    """
    m = example("flow")
    rng = np.random.default_rng(1)
    x, new = (m.draw(points, rng).astype(np.float32) for _ in range(2))
    found = []
    for by_hand in (True, False):
        probtorch.manual_seed(1)
        flow = m.Flow(x, 4)
        if by_hand:
            m.learn(flow, x, epochs=epochs, batch=100, lr=5e-3, report=lambda line: None)
        else:
            svi = SVI(flow.model, lambda *args: None, Adam({"lr": 0.01}), Trace_ELBO())
            svi.run(steps, x, progress_bar=False)
        with probtorch.no_grad():
            found.append(flow.density().log_prob(probtorch.tensor(new)).numpy())
    gains = found[1] - found[0]
    return float(gains.mean()), float(gains.std() / math.sqrt(points))


def _bound(losses: np.ndarray) -> float:
    return -float(np.mean(losses[-max(int(LAST * len(losses)), 1) :]))


def _error(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of means and spreads of any entry, in standard errors."""
    parts = []
    for x in (np.asarray(a, float), np.asarray(b, float)):
        size, spread = np.maximum(ess_bulk(x), 1.0), x.std((0, 1))
        # Of a spread: half of the effective size of squares, which is no less than half of that.
        square = np.maximum(ess_bulk((x - x.mean((0, 1))) ** 2), 1.0)
        kurtosis = ((x - x.mean((0, 1))) ** 4).mean((0, 1)) / np.maximum(spread, 1e-300) ** 4
        parts.append((x.mean((0, 1)), spread, spread**2 / size, (kurtosis - 1.0) / (4.0 * square)))
    (m, s, vm, vs), (m2, s2, vm2, vs2) = parts
    moves = (s > 0.0) & (s2 > 0.0)
    with np.errstate(all="ignore"):
        of_mean = np.abs(m - m2) / np.sqrt(vm + vm2)
        of_spread = np.abs(np.log(s / s2)) / np.sqrt(vs + vs2)
    return float(np.max(np.where(moves, np.maximum(of_mean, of_spread), 0.0)))


def run(names: Sequence[str], models: Sequence[str] | None = None) -> tuple[str, list[str]]:
    """Return the table as text, and what could not be measured."""
    rows, problems = [], []
    for name in models or CASES:
        try:
            if CASES[name].by_hand is not None:
                plan, error = compare(name)
                rows.append([name, _shown(plan), f"{time_ratio(name):.2f}", f"{error:.1f}", ""])
            elif (case := CASES[name]).guide is not None:
                plan, gain = compare_bounds(name)
                what = case.unit(case.make(example(name))[1])[1]
                rows.append([name, _shown(plan), "", "", f"{gain:+.2f} per {what}"])
            elif name == "ss_vae":
                found = compare_readers()
                bound = (
                    f"{found.gain:+.2f} (error {found.gain_error:.2f}) per image; reads "
                    f"{found.right:.1%} right, by hand {found.right_by_hand:.1%}"
                )
                rows.append(
                    [name, _shown(found.plan), f"{found.time:.2f}", f"{found.error:.1f}", bound]
                )
            elif CASES[name].method == "refused":
                gain, error = compare_advice()
                told = f"{gain:+.3f} (error {error:.3f}) per point"
                rows.append([name, "refused: nothing to infer", "", "", told])
            else:
                rows.append([name, _shown(plan_of(name)), "", "", ""])
        except Exception as error:
            problems.append(f"fit, {name}: {type(error).__name__}: {error}")
    columns = ["model", "plan", "time ratio", "error", "bound"]
    return f"{table(columns, rows)}\n\n{METHOD}", problems


def _shown(plan: Plan) -> str:
    return ", ".join(d.choice for d in plan.decisions)
