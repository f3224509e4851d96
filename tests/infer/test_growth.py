"""A process that goes on for long does not grow: steps, shapes, models; resident sizes in MB."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal
from probtorch.optim import Adam

STATM = Path("/proc/self/statm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not STATM.exists(), reason="resident sizes are read from Linux's /proc"),
]
RNG = np.random.default_rng(0)
# What may be kept for each of a few hundred: programs of 128 shapes are.
MOST = 50.0


def resident() -> float:
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(act: Callable[[int], object], warm: int, count: int) -> float:
    for i in range(warm):
        act(i)
    before = resident()
    for i in range(warm, warm + count):
        act(i)
    return resident() - before


def data(rows: int):
    return probtorch.tensor(RNG.normal(size=(rows, 3))), probtorch.tensor(RNG.normal(size=rows))


def regression(x, y, scale=1.0):
    b = probtorch.sample("b", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def fit(model):
    return SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)


def other_model(i):
    def model(x, y):
        regression(x, y, 1.0 + i)

    return model


def test_steps_leave_nothing():
    svi, batch = fit(regression), data(50)
    assert growth(lambda i: svi.step(*batch), 500, 20_000) < 5.0


def test_shapes_leave_programs_of_the_latest():
    svi = fit(regression)

    def act(i):
        batch = data(10 + i)
        for _ in range(2):  # the second is compiled
            svi.step(*batch)

    assert growth(act, 10, 100) < MOST


def test_fits_of_new_models_leave_nothing():
    def act(i):
        svi, batch = fit(other_model(i)), data(20)
        for _ in range(4):
            svi.step(*batch)

    assert growth(act, 10, 60) < 10.0


def test_runs_of_new_models_leave_nothing():
    def act(i):
        mcmc = MCMC(NUTS(other_model(i)), 20, 20, seed=i, progress_bar=False)
        mcmc.diagnose = False
        mcmc.run(*data(20))

    assert growth(act, 10, 60) < 10.0
