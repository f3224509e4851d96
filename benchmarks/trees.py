"""Sums of trees: the time of a sweep over all of them, ours and pymc-bart's.

Friedman's function of ten variables with noise of 1, a normal likelihood with an unknown scale, one
chain. Seconds are the processor's, the second of two runs of one process, so nothing is compiled in
it; the error is that of the mean of the function, and of a linear fit beside it. The peer draws its
50 trees by particle Gibbs, and moves a tenth of them in a sweep (its default), so times are given
per tree that is moved, too.

Run as ``python -m benchmarks.trees [rows [trees [draws]]]``; the peer is timed if it is installed.
"""

import sys
import time
import warnings

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks import machine
from probtorch.contrib.bart import bart
from probtorch.infer import MCMC, Gibbs

VARIABLES = 10


def data(rows):
    """Return covariates, the function, and noisy outcomes."""
    rng = np.random.default_rng(0)
    x = rng.random((rows, VARIABLES))
    truth = (
        10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20.0 * (x[:, 2] - 0.5) ** 2
        + 10.0 * x[:, 3] + 5.0 * x[:, 4]
    )  # fmt: skip
    return x, truth, truth + rng.standard_normal(rows)


def error(found, truth):
    """Return the root of the mean squared difference."""
    return float(np.sqrt(np.mean((found - truth) ** 2)))


def ours(x, y, trees, draws):
    """Return seconds and the mean of the function, after as many sweeps of warm-up as draws."""

    def model(x, y):
        f = bart("f", x, y, trees=trees)
        sigma = probtorch.sample("sigma", dist.HalfNormal(5.0))
        with probtorch.plate("row", len(x)):
            probtorch.sample("y", dist.Normal(f, sigma), obs=y)

    for _ in range(2):
        mcmc = MCMC(
            Gibbs(model), num_samples=draws, warmup_steps=draws, num_chains=1, seed=1,
            progress_bar=False,
        )  # fmt: skip
        mcmc.diagnose = False
        start = time.process_time()
        found = mcmc.run(probtorch.tensor(x), probtorch.tensor(y))
        seconds = time.process_time() - start
    return seconds, found.posterior["f"].mean((0, 1)), trees


def peer(x, y, trees, draws):
    """Return the same of pymc-bart."""
    import pymc
    import pymc_bart

    for _ in range(2):
        with pymc.Model():
            f = pymc_bart.BART("f", x, y, m=trees)
            sigma = pymc.HalfNormal("sigma", 5.0)
            pymc.Normal("y", f, sigma, observed=y)
            start = time.process_time()
            found = pymc.sample(
                draws, tune=draws, chains=1, cores=1, random_seed=1, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
            seconds = time.process_time() - start
    return seconds, found.posterior["f"].values.mean((0, 1)), max(1, int(0.1 * trees))


def main():
    """Print a row for each system."""
    rows, trees, draws = map(int, [*sys.argv[1:], *(1000, 50, 500)[len(sys.argv) - 1 :]])
    x, truth, y = data(rows)
    print(machine.describe(["numpy", "scipy", "llvmlite"]))
    print(f"{rows} rows, {VARIABLES} variables, {trees} trees, {draws} sweeps and {draws} draws")
    ones = np.column_stack([np.ones(rows), x])
    print(f"linear fit: error {error(ones @ np.linalg.lstsq(ones, y, rcond=None)[0], truth):.2f}")
    for name, run in (("ours", ours), ("pymc-bart", peer)):
        try:
            with warnings.catch_warnings(action="ignore"):
                seconds, found, moved = run(x, y, trees, draws)
        except ImportError as absent:
            print(f"{name}: left out ({absent.name} is not installed)")
            continue
        sweep = seconds / (2 * draws)
        print(
            f"{name}: {1e3 * sweep:.2f} ms a sweep, {1e9 * sweep / moved / rows:.0f} ns for each "
            f"row and tree moved, error {error(found, truth):.2f}"
        )


if __name__ == "__main__":
    main()
