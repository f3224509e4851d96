"""What many models and many workers cost: a row for each way, ours only, processor and wall time.

A row is a function in `ROWS`; it returns what was done, how many, and in how many seconds.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks import growth, varying_effects
from benchmarks.peers import OURS
from benchmarks.report import duration, table
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


def schools(y, sigma):
    """Eight schools, not centred."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("school", len(y)):
        eta = probtorch.sample("eta", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)


SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
)


def _many_chains(count: int) -> Callable[[], tuple[str, int, float]]:
    """A row of many short chains of one small model, in processor time."""

    def row() -> tuple[str, int, float]:
        data = [probtorch.tensor(x) for x in SCHOOLS]
        for chains in (4, count):  # what is compiled is there by then
            mcmc = MCMC(NUTS(schools), num_chains=chains, seed=1, progress_bar=False, **TRANSITIONS)
            mcmc.diagnose = False
            start = time.process_time()
            mcmc.run(*data)
            seconds = time.process_time() - start
        return f"eight schools, {count} chains of 200 + 200, processor", count, seconds

    return row


def _since(start: float) -> float:
    return time.perf_counter() - start


ROWS: list[Callable[[], tuple[str, int, float]]] = [
    many_regressions,
    loop_of_runs,
    chains_in_threads,
    chains_in_processes,
    *(_many_chains(count) for count in (4, 64, 1024, 4096)),
    *growth.ROWS,
    *varying_effects.ROWS,
]


def run(names, rows=None):
    """Measure each row once; returns (text, what went wrong)."""
    found, failures = [], []
    for row in (ROWS if rows is None else rows) if OURS in names else ():
        try:
            what, count, seconds = row()
        except Exception as error:
            failures.append(f"{row.__name__}: {type(error).__name__}: {error}")
            continue
        found.append([what, duration(seconds), f"{count / seconds:.3g}"])
    return table(["what", "time", "a second"], found), failures
