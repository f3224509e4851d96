"""What grows, beside the best peer in the same run; then what many models and workers cost, ours.

The first table has a line for each size of each case of scale_cases.py and scale_arrays.py: times
and memory of ours, and of the peer whose calls are fastest. A point is a process of its own
(scale_child.py); systems take turns, and the best turn of each counts. The second table has a row
for each way to fit many models or to share out chains: a function in `ROWS` returns what was done,
how many, and in how many seconds, of the processor where it says so.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks import growth, varying_effects
from benchmarks.machine import version
from benchmarks.peers import OURS
from benchmarks.report import duration, table
from benchmarks.scale_arrays import CASES
from probtorch.infer import MCMC, NUTS, fit_many

# Rows of a data set, in so many groups.
N, GROUPS = 20, 4
GROUP = np.repeat(np.arange(GROUPS), N // GROUPS)
TRANSITIONS = {"num_samples": 200, "warmup_steps": 200}


def regression(x, y, group):
    """A hierarchical regression of few rows."""
    tau = probtorch.sample("tau", dist.HalfNormal(1.0))
    a = probtorch.sample("a", dist.Normal(0.0, 2.0))
    b = probtorch.sample("b", dist.Normal(0.0, 1.0))
    sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
    with probtorch.plate("group", GROUPS):
        z = probtorch.sample("z", dist.Normal(0.0, 1.0))
    with probtorch.plate("row", len(y)):
        mean = a + tau * z[group] + b * x
        probtorch.sample("y", dist.Normal(mean, sigma), obs=y)


def data_sets(count: int) -> list[tuple[np.ndarray, ...]]:
    """Return simulated data sets."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        x = rng.normal(size=N)
        levels = rng.normal(1.0, 0.5, GROUPS)
        found.append((x, levels[GROUP] + 0.5 * x + rng.normal(0.0, 0.7, N), GROUP))
    return found


def many_regressions(count: int = 10_000) -> tuple[str, int, float]:
    """`fit_many` on one core."""
    data = data_sets(count)
    start = time.perf_counter()
    fits = fit_many(regression, data, seed=0, progress_bar=False, **TRANSITIONS)
    assert len(fits) == count
    return f"fit_many, {count} hierarchical regressions of {N} rows", count, _since(start)


def loop_of_runs(count: int = 100) -> tuple[str, int, float]:
    """What `fit_many` replaces."""
    data = data_sets(count)
    start = time.perf_counter()
    for i, one in enumerate(data):
        mcmc = MCMC(NUTS(regression), seed=i, progress_bar=False, **TRANSITIONS)
        mcmc.diagnose = False
        mcmc.run(*map(probtorch.tensor, one))
    return f"a loop of MCMC runs, {count} of them", count, _since(start)


def chains_in_threads() -> tuple[str, int, float]:
    """The chains that the next row has in processes."""
    return "4 chains of 20,000 draws, threads", 4, _chains()


def chains_in_processes() -> tuple[str, int, float]:
    """With what it costs to begin processes and compile in them."""
    start = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        _chains(executor=pool)
        return "4 chains of 20,000 draws, pool of 2 processes", 4, _since(start)


def _chains(**settings: object) -> float:
    (one,) = data_sets(1)
    mcmc = MCMC(NUTS(regression), 20_000, num_chains=4, seed=0, progress_bar=False, **settings)
    mcmc.diagnose = False
    start = time.perf_counter()
    mcmc.run(*map(probtorch.tensor, one))
    return _since(start)


def _since(start: float) -> float:
    return time.perf_counter() - start


ROWS: list[Callable[[], tuple[str, int, float]]] = [
    many_regressions,
    loop_of_runs,
    chains_in_threads,
    chains_in_processes,
    *growth.ROWS,
    *varying_effects.ROWS,
]

# Seconds a point may take.
LIMIT = 300
# How often the systems take turns at a point whose first call is no longer than so many seconds.
TURNS, SHORT = 2, 5.0
# What every system may use without being asked for.
BESIDE = ("numpy", "scipy")


def measured(name: str, size: int, system: str) -> dict[str, float]:
    """Return what a point of a case was measured as, in a process of its own."""
    child = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale_child", name, str(size)]
    said = subprocess.run(
        [*child, system], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    found: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return found


def against(names, measure=measured, cases=None):
    """Measure all cases, or those named, with the systems in `names`; as `run` does."""
    found, failures = [], []
    for name in CASES if cases is None else cases:
        case = CASES[name]
        there = [s for s in case.makers if s in names or (s in BESIDE and version(s))]
        for size in case.sizes:
            points, done = {}, set()
            for system in [s for s in there if size <= case.few.get(s, size)] * TURNS:
                if system in done:
                    continue
                try:
                    point = measure(name, size, system)
                except (subprocess.SubprocessError, ValueError, IndexError) as error:
                    failures.append(f"{name} {size} {system}: {error}")
                    done.add(system)
                    continue
                # Other processes only ever add time.
                before = points.get(system, point)
                points[system] = {k: min(v, before[k]) for k, v in point.items()}
                if point["first"] > SHORT:
                    done.add(system)
            if OURS in points:
                found.append([case.what.format(f"{size:,}"), *_line(points)])
    columns = ["what", "first call", "call", "MB", "best peer", "first call", "call", "MB", "ratio"]
    return table(columns, found), failures


def _line(points: dict[str, dict[str, float]]) -> list[str]:
    """Ours, and the peer whose calls are the fastest."""
    ours, peers = points[OURS], {n: p for n, p in points.items() if n != OURS}

    def cells(point: dict[str, float]) -> list[str]:
        return [duration(point["first"]), duration(point["seconds"]), f"{point['mb']:.0f}"]

    if not peers:
        return [*cells(ours), *[""] * 5]
    best = min(peers, key=lambda name: peers[name]["seconds"])
    ratio = f"{ours['seconds'] / peers[best]['seconds']:.2f}"
    return [*cells(ours), best, *cells(peers[best]), ratio]


def run(names, rows=None):
    """Measure each row once; returns (text, what went wrong)."""
    first, failures = ("", []) if rows is not None or OURS not in names else against(names)
    found = []
    for row in (ROWS if rows is None else rows) if OURS in names else ():
        try:
            what, count, seconds = row()
        except Exception as error:
            failures.append(f"{row.__name__}: {type(error).__name__}: {error}")
            continue
        found.append([what, duration(seconds), f"{count / seconds:.3g}"])
    second = table(["what", "time", "a second"], found)
    return "\n\n".join(text for text in (first, second) if text), failures
