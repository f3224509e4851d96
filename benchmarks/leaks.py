"""Memory of a process that does the same again and again: steps, shapes and models.

A row is a process of its own (``python -m benchmarks.leaks WHAT COUNT`` prints it): the resident
size at the end, less that after the first hundredth, by when what a first use loads is there.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks.peers import OURS
from benchmarks.report import duration, table
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, Target, Trace_ELBO
from probtorch.optim import Adam

__all__ = ["ROWS", "measured", "run"]

LIMIT = 3600  # seconds a row may take
PAGE = 4096


def _line(x, y):
    b = probtorch.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def _rows(rng: np.random.Generator, count: int) -> tuple[probtorch.Tensor, probtorch.Tensor]:
    return probtorch.tensor(rng.normal(size=(count, 2))), probtorch.tensor(rng.normal(size=count))


def steps() -> Callable[[int], object]:
    """Steps of SVI, each a call from Python on a batch of its own."""
    rng = np.random.default_rng(0)
    svi = SVI(_line, AutoNormal(_line), Adam({"lr": 0.01}), Trace_ELBO())
    return lambda i: svi.step(*_rows(rng, 20))


def shapes() -> Callable[[int], object]:
    """A loss with its gradient on arrays of another length each, three calls of each length."""
    weights = probtorch.nn.Linear(2, 1).double()

    @probtorch.compile
    def loss(x, y):
        weights.zero_grad()
        found = ((weights(x)[:, 0] - y) ** 2).mean()
        found.backward()
        return found

    def act(i: int) -> None:
        data = _rows(np.random.default_rng(i), 10 + i)
        for _ in range(3):
            loss(*data)

    return act


def models() -> Callable[[int], object]:
    """Models, each another function with data of its own length, sampled by NUTS in two chains."""

    def act(i: int) -> None:
        data, scale = _rows(np.random.default_rng(i), 10 + i), 1.0 + i / 1000

        def model(x, y):
            b = probtorch.sample("b", dist.Normal(0.0, scale).expand([2]).to_event(1))
            sigma = probtorch.sample("sigma", dist.HalfNormal(scale))
            with probtorch.plate("row", len(y)):
                probtorch.sample("y", dist.Normal(x @ b, sigma), obs=y)

        mcmc = MCMC(NUTS(model), 50, 50, num_chains=2, seed=i, progress_bar=False)
        mcmc.diagnose = False
        mcmc.run(*data)

    return act


def densities() -> Callable[[int], object]:
    """Densities of many dimensions, each compiled and evaluated once."""

    def act(i: int) -> None:
        data, scale = _rows(np.random.default_rng(i), 10 + i), 1.0 + i / 1000
        target = Target.from_density(
            lambda q: -((data[0] @ q[:2] - data[1]) ** 2).sum() / scale - (q * q).sum(), 2 + i
        )
        target.value_and_grad(np.zeros(2 + i))

    return act


ROWS: dict[str, tuple[Callable[[], Callable[[int], object]], int]] = {
    "steps": (steps, 100_000),
    "shapes": (shapes, 1_000),
    "models": (models, 1_000),
    "densities": (densities, 1_000),
}


def measured(what: str, count: int) -> dict[str, float]:
    """Measure a row in this process: MB of growth, MB at the end, and processor seconds."""
    act, first = ROWS[what][0](), max(count // 100, 3)
    start, before = time.process_time(), 0.0
    for i in range(count):
        if i == first:
            gc.collect()
            before = _resident()
        act(i)
    gc.collect()
    now = _resident()
    return {"growth": now - before, "mb": now, "seconds": time.process_time() - start}


def _resident() -> float:
    """The resident size at this moment, MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def run(names, rows=None):
    """Measure all rows, each in a process; returns (text, what went wrong)."""
    found, failures = [], []
    for what, (make, count) in (ROWS if rows is None else rows).items() if OURS in names else ():
        child = [sys.executable, "-W", "ignore", "-m", "benchmarks.leaks", what, str(count)]
        try:
            said = subprocess.run(child, capture_output=True, text=True, timeout=LIMIT, check=True)
        except subprocess.SubprocessError as error:
            failures.append(f"{what}: {error}")
            continue
        got = json.loads(said.stdout.splitlines()[-1])
        text = (make.__doc__ or what).splitlines()[0].rstrip(".")
        found.append(
            [text, f"{count:,}", f"{got['growth']:.1f}", f"{got['mb']:.0f}"]
            + [duration(got["seconds"])]
        )
    return table(["what", "times", "growth, MB", "MB at the end", "processor"], found), failures


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
