"""Loops over time: a plain Python loop, a hand-written `scan`, and JAX's.

A Python loop is found in the recording and becomes a native loop. What that costs at the first
call, and whether the loop it finds is as good as one written by hand, is measured here, for the
two densities of `benchmarks.problems` that go step by step. First calls are made by
`benchmarks.loops_child`, in fresh processes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.density import agree, evaluate, probes
from benchmarks.nuts import ROOT
from benchmarks.peers import OURS, adapter
from benchmarks.problems import DENSITIES
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["JAX", "SPELLINGS", "first_call", "run", "value_and_grad"]

JAX = "jax, lax.scan"
# Of each series, how it is written in ours.
SPELLINGS = {
    "autoregression": ("for, a slice of lags", "for, a loop over lags", "scan"),
    "hidden_markov": ("for", "scan"),
}
PROCESSES = 3

METHOD = (
    "Log density and gradient, float64, one core. First call: the best of {processes} fresh "
    "processes, imports done, nothing in the compiler's cache; then with the code of the run "
    "before (`cached`; JAX keeps none unless asked). Recording: the eager run over all steps (for "
    "JAX, tracing and lowering). Rolling: finding the loop in the recording, and recording it "
    "again with its gradient. Compiling: from the graph to native code, the vector runtime "
    "included. What is left of a first call is letting go of the recording, binding memory and "
    "the run; Python's garbage collector counts where it strikes. Call: best of "
    "{rounds} rounds of about 0.1 s, in turns."
)


def autoregression(spelling):
    """Return the density of AR(5), 5000 steps, at (alpha, five of beta, log sigma)."""
    import probtorch
    from probtorch import distributions as dist

    series = probtorch.tensor(DENSITIES["autoregression"].data["y"])
    normal, half_normal = dist.Normal(0.0, 1.0), dist.HalfNormal(1.0)

    def density(q):
        alpha, beta, sigma = q[0], q[1:6], q[6].exp()
        prior = normal.log_prob(q[:6]).sum() + half_normal.log_prob(sigma) + q[6]

        def step(state, y):
            last, total = state
            total = total + dist.Normal(alpha + (beta * last).sum(), sigma).log_prob(y)
            return (probtorch.cat([last[1:], y[None]]), total), None

        if spelling == "scan":
            (_, total), _ = probtorch.scan(step, (series[:5], prior), series[5:])
            return total
        total = prior
        for t in range(5, len(series)):
            if spelling == "for, a slice of lags":
                loc = alpha + (beta * series[t - 5 : t]).sum()
            else:
                loc = alpha
                for lag in range(5):
                    loc = loc + beta[lag] * series[t - 5 + lag]
            total = total + dist.Normal(loc, sigma).log_prob(series[t])
        return total

    return density


def hidden_markov(spelling):
    """Return the density of 1000 steps with 5 states, at (25 logits, 5 locations)."""
    import probtorch
    from probtorch import distributions as dist

    series = probtorch.tensor(DENSITIES["hidden_markov"].data["y"])

    def density(q):
        logits, loc = q[:25].reshape(5, 5), q[25:]
        prior = dist.Normal(0.0, 1.0).log_prob(logits).sum()
        prior = prior + dist.Normal(0.0, 5.0).log_prob(loc).sum()
        move, seen = logits.log_softmax(-1), dist.Normal(loc, 1.0)

        def step(alpha, y):
            return (alpha[:, None] + move).logsumexp(0) + seen.log_prob(y), None

        alpha = seen.log_prob(series[0]) - np.log(5.0)
        if spelling == "scan":
            alpha, _ = probtorch.scan(step, alpha, series[1:])
        else:
            for t in range(1, len(series)):
                alpha, _ = step(alpha, series[t])
        return prior + alpha.logsumexp(0)

    return density


def value_and_grad(name, spelling):
    """Return a function from a float64 vector to (log density, gradient), not yet compiled."""
    problem = DENSITIES[name]
    if spelling == JAX:
        return adapter("jax").density(problem)
    from probtorch.infer import Target

    density = {"autoregression": autoregression, "hidden_markov": hidden_markov}[name](spelling)
    return Target.from_density(density, problem.dim).value_and_grad


def first_call(name, spelling, folder):
    """Return the times of a first call in a new process, by name, in seconds."""
    environment = {**os.environ, "PROBTORCH_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "benchmarks.loops_child", name, spelling]
    child = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if child.returncode:
        raise RuntimeError(f"the process ended with {child.returncode}: {child.stderr[-300:]}")
    return json.loads(child.stdout.splitlines()[-1])


def first_calls(name, spelling):
    """Return the best times of a first call with an empty cache, and with a full one."""
    empty, full = [], []
    with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as top:
        folder = Path(top) / "cache"
        for _ in range(PROCESSES):
            shutil.rmtree(folder, ignore_errors=True)
            empty.append(first_call(name, spelling, folder))
            full.append(first_call(name, spelling, folder))
    return tuple(min(times, key=lambda t: t["total"]) for times in (empty, full))


def run(names, rounds=9):
    """Measure ours and, if it is among `names`, JAX; returns (text, what went wrong)."""
    rows, failures = [], []
    for name, ours in SPELLINGS.items():
        points, reference, calls, first = probes(DENSITIES[name]), None, {}, {}
        spellings = [*(ours if OURS in names else ()), *([JAX] if "jax" in names else [])]
        for spelling in spellings:
            try:
                first[spelling] = first_calls(name, spelling)
                fn = value_and_grad(name, spelling)
                difference, grad = evaluate(fn, points)
            except Exception as error:
                failures.append(f"{name}, {spelling}: {type(error).__name__}: {error}")
                continue
            if reference is None:
                reference = difference, grad
            if agree((difference, grad), reference):
                calls[spelling] = lambda f=fn, q=points[0]: f(q)
            else:
                failures.append(f"{name}, {spelling}: another density than the first spelling's")
        timings = {spelling: t.best for spelling, t in race(calls, rounds=rounds).items()}
        for spelling, seconds in timings.items():
            empty, full = first[spelling]
            parts = [empty[k] for k in ("total", "recording", "rolling", "compiling")]
            row = [f"{name}: {spelling}", *map(duration, parts), duration(full["total"])]
            row.append(duration(seconds))
            for other in ("scan", JAX):
                compared = other in timings and spelling not in (other, JAX)
                row.append(f"{seconds / timings[other]:.2f}" if compared else "-")
            rows.append(row)
    header = ["loop", "first call", "recording", "rolling", "compiling", "first call, cached"]
    header += ["call", "call / scan", "call / jax"]
    method = METHOD.format(processes=PROCESSES, rounds=rounds)
    return f"{table(header, rows)}\n\n{method}", failures
