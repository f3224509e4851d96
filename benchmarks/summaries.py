"""The statistics of a posterior, ours against ArviZ's on arrays: import and processor time.

Wants ArviZ 1.x (`arviz-stats`), whose functions take arrays; both must agree before they are timed.

Run as ``python -m benchmarks.summaries``; it takes a minute.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module

import numpy as np

import probtorch
from benchmarks.machine import describe, version
from benchmarks.report import table
from probtorch.diagnostics.convergence import statistics
from probtorch.diagnostics.psis import psis

CHAINS = 4
# Draws per chain, and the coefficient of the autoregressive draws.
CASES = [(500, 0.0), (500, 0.9), (2000, 0.0)]
ENTRIES, THEIR_ENTRIES = 2000, 50
PARAMETERS = 12_000
IMPORTS = {"ours": "probtorch.diagnostics.convergence", "ArviZ": "arviz_stats.base"}
IMPORT_TIME = (
    "import time, numpy, scipy.special; t = time.process_time(); import {}; "
    "print(time.process_time() - t)"
)


def autoregression(draws: int, entries: int, coefficient: float) -> np.ndarray:
    """Return draws (chain, draw, entry), standard normal each."""
    x = np.random.default_rng(0).standard_normal((CHAINS, draws, entries))
    for i in range(1, draws):
        x[:, i] = coefficient * x[:, i - 1] + (1.0 - coefficient**2) ** 0.5 * x[:, i]
    return x


def arviz_statistics(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what `statistics` does, by ArviZ."""
    arviz = import_module("arviz_stats.base").array_stats
    axes = {"chain_axis": 0, "draw_axis": 1}
    interval = arviz.hdi(x, prob=0.9, axis=(0, 1))
    return {
        "mean": x.mean(axis=(0, 1)),
        "sd": x.std(axis=(0, 1), ddof=1),
        "hdi_low": interval[..., 0],
        "mcse_mean": arviz.mcse(x, method="mean", **axes),
        "mcse_sd": arviz.mcse(x, method="sd", **axes),
        "ess_bulk": arviz.ess(x, method="bulk", **axes),
        "ess_tail": arviz.ess(x, method="tail", prob=(0.05, 0.95), **axes),
        "r_hat": arviz.rhat(x, method="rank", **axes),
    }


def best(fn: Callable[..., object], *arguments: object, runs: int = 5) -> float:
    """Return the least processor time of a call, in seconds."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        fn(*arguments)
        times.append(time.process_time() - start)
    return min(times)


def imported(module: str) -> float:
    """Return the processor time of an import, beside NumPy and SciPy's special functions."""
    command = [sys.executable, "-c", IMPORT_TIME.format(module)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    runs = [subprocess.check_output(command, env=environment, text=True) for _ in range(4)]
    return min(map(float, runs))


def main() -> None:
    """Print the table."""
    print(describe(["numpy", "scipy", "arviz-stats"]))
    if version("arviz-stats") is None:
        sys.exit("arviz-stats is not installed: pip install arviz-stats")
    probtorch.set_num_threads(1)
    rows = []
    for draws, coefficient in CASES:
        few = autoregression(draws, THEIR_ENTRIES, coefficient)
        found = statistics(few)
        for name, theirs in arviz_statistics(few).items():
            np.testing.assert_allclose(found[name], theirs, rtol=1e-6, err_msg=name)
        many = autoregression(draws, ENTRIES, coefficient)
        own = best(statistics, many) * PARAMETERS / ENTRIES
        theirs = best(arviz_statistics, few) * PARAMETERS / THEIR_ENTRIES
        case = (
            f"{PARAMETERS} parameters, {CHAINS} x {draws} draws, lag-one correlation {coefficient}"
        )
        rows.append([case, f"{own:.2f}", f"{theirs:.2f}", f"{theirs / own:.1f}"])
    ratios = np.random.default_rng(0).standard_normal((500, 4000))
    arviz = import_module("arviz_stats.base").array_stats
    own, theirs = best(psis, ratios), best(lambda: arviz.psislw(ratios, axis=-1))
    rows.append(["PSIS, 500 rows of 4000", f"{own:.2f}", f"{theirs:.2f}", f"{theirs / own:.1f}"])
    own, theirs = (imported(module) for module in IMPORTS.values())
    rows.append(["import", f"{own:.2f}", f"{theirs:.2f}", f"{theirs / own:.1f}"])
    print(f"\n{table(['', 'ours, s', 'ArviZ, s', 'ArviZ / ours'], rows)}")


if __name__ == "__main__":
    main()
