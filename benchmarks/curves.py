"""How time and memory grow: rows, parameters, chains, data sets and the length of a series.

A point of a curve is a process of its own, so that memory is that of this size alone (``python -m
benchmarks.curves CURVE SIZE`` prints it): the highest resident size beyond what was there before,
data included. Times are of the processor, the best of some repeats where one is short; what is
compiled is compiled before. A curve is no worse than linear where time per unit does not grow.
"""

import json
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks.machine import peak_resident
from benchmarks.peers import OURS
from benchmarks.report import duration, table
from probtorch.infer import MCMC, NUTS, Target, fit_many
from probtorch.utils.data import ArrayDataset, DataLoader

__all__ = ["CURVES", "point", "run"]

# Rows from here on lie on the disk.
ON_DISK = 10**8
LIMIT = 540  # seconds a point may take


def _line(x, y):
    b = probtorch.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def _numbers(size):
    rng = np.random.default_rng(0)
    return rng.normal(size=(size, 2)), rng.normal(size=size)


def memory(size: int) -> Callable[[], object]:
    """NumPy's product of as many numbers with themselves: what it takes to read them."""
    numbers = np.concatenate([x.ravel() for x in _numbers(size)])
    return lambda: numbers @ numbers


def rows_by_columns(size: int) -> Callable[[], object]:
    """The gradient of `rows` of a matrix that lies by columns, as of a data frame."""
    x, y = _numbers(size)
    data = probtorch.from_numpy(np.asfortranarray(x)), probtorch.from_numpy(y)
    target = Target.from_model(_line, *data)
    return lambda: target.value_and_grad(np.zeros(2))


def rows_in_jax(size: int) -> Callable[[], object]:
    """The gradient of `rows`, by JAX."""
    import jax

    jax.config.update("jax_enable_x64", True)
    x, y = map(jax.numpy.asarray, _numbers(size))

    def density(b):
        return -0.5 * ((y - x @ b) ** 2).sum() - 0.5 * (b**2).sum()

    gradient, at = jax.jit(jax.value_and_grad(density)), np.zeros(2)
    return lambda: jax.block_until_ready(gradient(at))


def rows(size: int) -> Callable[[], object]:
    """A gradient of a regression on so many rows of 3 numbers."""
    rng = np.random.default_rng(0)
    if size < ON_DISK:
        x, y = _numbers(size)
        target = Target.from_model(_line, probtorch.from_numpy(x), probtorch.from_numpy(y))
    else:
        room = tempfile.TemporaryDirectory()
        folder = Path(room.name)
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float64, (size, 2))
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float64, (size,))
        for at in range(0, size, 10**6):
            x[at : at + 10**6] = rng.normal(size=(10**6, 2))
            y[at : at + 10**6] = rng.normal(size=10**6)
        loader = DataLoader(ArrayDataset(x, y), batch_size=1024)

        def stored():
            b = probtorch.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            with probtorch.plate("row", loader) as (x, y):
                probtorch.sample("y", dist.Normal(x @ b, 1.0), obs=y)

        target = Target.from_model(stored)
        weakref.finalize(target, room.cleanup)
    return lambda: target.value_and_grad(np.zeros(2))


def parameters(size: int) -> Callable[[], object]:
    """A gradient of a hierarchical model of so many parameters."""
    y = probtorch.tensor(np.random.default_rng(0).normal(size=size))

    def model():
        tau = probtorch.sample("tau", dist.HalfNormal(1.0))
        with probtorch.plate("group", size):
            z = probtorch.sample("z", dist.Normal(0.0, 1.0))
            probtorch.sample("y", dist.Normal(tau * z, 1.0), obs=y)

    target = Target.from_model(model)
    return lambda: target.value_and_grad(np.zeros(target.dim))


def chains(size: int) -> Callable[[], object]:
    """NUTS, 20 + 20 transitions of so many chains of 3 parameters."""
    rng = np.random.default_rng(0)
    data = probtorch.tensor(rng.normal(size=(20, 2))), probtorch.tensor(rng.normal(size=20))

    def sample():
        kernel = NUTS(_line, init_strategy=probtorch.infer.init_to_uniform)
        mcmc = MCMC(kernel, 20, 20, num_chains=size, seed=0, progress_bar=False)
        mcmc.diagnose = False
        mcmc.run(*data)

    return sample


def models(size: int) -> Callable[[], object]:
    """`fit_many` of so many data sets of 20 rows, 200 + 200 transitions."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 2)), rng.normal(size=20)) for _ in range(size)]
    settings = {"num_samples": 200, "warmup_steps": 200, "seed": 0, "progress_bar": False}
    fit_many(_line, data[:2], **settings)
    return lambda: fit_many(_line, data, **settings)


def series(size: int) -> Callable[[], object]:
    """A smoothed series of so many steps, by `scan`."""
    y = probtorch.tensor(np.random.default_rng(0).normal(size=size))

    def step(state, now):
        level, total = state
        level = 0.3 * level + 0.7 * now
        return (level, total - 0.5 * (now - level) ** 2), None

    zero = probtorch.tensor(0.0, dtype=probtorch.float64)
    smoothed = probtorch.compile(lambda y: probtorch.scan(step, (zero, zero), y)[0][1])
    return lambda: smoothed(y)


CURVES: dict[str, tuple[Callable[[int], Callable[[], object]], tuple[int, ...]]] = {
    "rows": (rows, (10**4, 10**5, 10**6, 10**7, 10**8)),
    "rows by columns": (rows_by_columns, (10**4, 10**5, 10**6, 10**7)),
    "rows in JAX": (rows_in_jax, (10**4, 10**5, 10**6, 10**7)),
    "rows read by NumPy": (memory, (10**4, 10**5, 10**6, 10**7)),
    "parameters": (parameters, (10**3, 10**4, 10**5)),
    "chains": (chains, (4, 64, 512, 4096)),
    "models": (models, (1, 10, 100, 1000, 10_000)),
    "series": (series, (10**3, 10**4, 10**5, 10**6)),
}

_PEERS = {"rows in JAX": "jax"}


def point(curve: str, size: int) -> dict[str, float]:
    """Measure a point in this process: seconds, seconds of the first call, and MB."""
    before = peak_resident()
    act = CURVES[curve][0](size)
    start = time.process_time()
    act()
    first = time.process_time() - start
    seconds, spent = first, 0.0
    for _ in range(20):
        if spent > 5.0 or first > 30.0:
            break
        start = time.process_time()
        act()
        seconds = min(seconds, time.process_time() - start)
        spent += time.process_time() - start
    return {"seconds": seconds, "first": first, "mb": peak_resident() - before}


def run(names, curves=None):
    """Measure all points, each in a process; returns (text, what went wrong)."""
    found, failures = [], []
    for curve in (CURVES if curves is None else curves) if OURS in names else ():
        if _PEERS.get(curve, OURS) not in names:
            continue
        per_unit = None
        for size in CURVES[curve][1]:
            child = [sys.executable, "-W", "ignore", "-m", "benchmarks.curves", curve, str(size)]
            try:
                said = subprocess.run(
                    child, capture_output=True, text=True, timeout=LIMIT, check=True
                )
            except subprocess.SubprocessError as error:
                failures.append(f"{curve} {size}: {error}")
                continue
            got = json.loads(said.stdout.splitlines()[-1])
            unit = got["seconds"] / size
            growth = "" if per_unit is None else f"{unit / per_unit:.2f}"
            per_unit = unit
            found.append(
                [
                    curve,
                    f"{size:,}",
                    duration(got["first"]),
                    duration(got["seconds"]),
                    duration(unit),
                    growth,
                    f"{got['mb']:.0f}",
                ]
            )
    columns = ["curve", "size", "first call", "call", "per unit", "to the size before", "MB"]
    return table(columns, found), failures


if __name__ == "__main__":
    print(json.dumps(point(sys.argv[1], int(sys.argv[2]))))
