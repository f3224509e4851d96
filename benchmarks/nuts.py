"""NUTS from a bare interpreter to a printed summary, and draws per second once warm.

Each system runs in a process of its own: `python -m benchmarks.nuts_child`. Two such processes
run one after the other; the first starts with empty caches where the system's cache can be put
elsewhere (ours, JAX's, PyTensor's and Numba's can), the second finds what the first left.
Effective sample sizes are ArviZ's bulk ESS for every system, and posterior means must agree
within Monte Carlo error.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.peers import OURS
from benchmarks.problems import PROBLEMS
from benchmarks.report import duration, table

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("numpyro", "nutpie", "pyro")
CHAINS, WARMUP, DRAWS = 4, 1000, 1000
SUMMARY_PRINTED = "benchmark: summary printed"
# Larger than any honest disagreement: the largest of about 100 standard normals is near 3.
MAX_Z = 5.0
METHOD = (
    f"{CHAINS} chains x ({WARMUP} + {DRAWS}), each system's default settings (mass matrix "
    "diagonal, ours low rank where it pays; target acceptance 0.8, in ours 0.7 where trajectories "
    "are short), float64, one core. First and second result: wall time from starting `python` to "
    "the printed summary, caches empty and "
    "caches filled. Sampling: best of {repeats} further runs in that process, everything compiled "
    "or in the system's cache (NumPyro retraces and reloads in each run, which is counted). ESS/s: "
    "smallest bulk ESS over all parameters, by that time. Agreement: largest difference in "
    "posterior mean to the first system, in Monte Carlo standard errors (over {max_z:.0f}: not the "
    "same posterior)."
)


def measure(system, problem, folder, repeats, cache):
    """Run one child process; returns its report with the time to the summary."""
    out = folder / f"{system}-{problem}.npz"
    environment = os.environ | {
        "PROBTORCH_CACHE_DIR": str(cache / "probtorch"),
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "NUMBA_CACHE_DIR": str(cache / "numba"),
        "PYTENSOR_FLAGS": f"base_compiledir={cache / 'pytensor'}",
    }
    command = [sys.executable, "-m", "benchmarks.nuts_child", system, problem, str(out)]
    command += [str(n) for n in (CHAINS, WARMUP, DRAWS, repeats)]
    first_result, report = None, {}
    # A file, not a pipe: a system that writes much to stderr must not wait for a reader.
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        for line in child.stdout:
            if line.startswith(SUMMARY_PRINTED):
                first_result = time.perf_counter() - start
                report |= json.loads(line.removeprefix(SUMMARY_PRINTED))
            elif line.startswith('{"sampling"'):
                report |= json.loads(line)
        status = child.wait()
        log.seek(0)
        last = (log.read().strip().splitlines() or ["no message"])[-1]
    if status or first_result is None:
        raise RuntimeError(f"the process ended with {status}: {last}")
    with np.load(out) as arrays:
        draws = {name: arrays[name] for name in PROBLEMS[problem].monitored}
    return report | {"first_result": first_result, "draws": draws}


def quality(draws):
    """Return the smallest bulk ESS, and the posterior means with their standard errors."""
    import arviz

    data = arviz.convert_to_dataset(draws)
    ess, mcse, mean = (
        {name: np.ravel(values[name]) for name in draws}
        for values in (arviz.ess(data), arviz.mcse(data), data.mean(("chain", "draw")))
    )
    flat = [np.concatenate([part[name] for name in draws]) for part in (ess, mean, mcse)]
    return float(flat[0].min()), flat[1], flat[2]


def run(names, repeats=3, slow=False, problems=None):
    """Measure the systems in `names`; returns (text, what went wrong)."""
    systems = [n for n in names if n == OURS or n in PEERS]
    if not slow:
        systems = [n for n in systems if n != "pyro"]
    rows, failures = [], []
    for problem in problems or PROBLEMS:
        results = {}
        for system in systems:
            with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as name:
                folder = Path(name)
                try:
                    cold = measure(system, problem, folder, 0, folder)
                    results[system] = measure(system, problem, folder, repeats, folder)
                    results[system]["cold"] = cold["first_result"]
                except (RuntimeError, OSError, KeyError, json.JSONDecodeError) as error:
                    failures.append(f"{system}, {problem}: {error}")
        reference = None
        for system, result in results.items():
            ess, mean, mcse = quality(result["draws"])
            if reference is None:
                reference = mean, mcse
            z = np.abs(mean - reference[0]) / np.hypot(mcse, reference[1])
            if z.max() > MAX_Z:
                failures.append(f"{system}, {problem}: posterior means {z.max():.1f} errors apart")
            result |= {"ess": ess, "z": z.max()}
        ours = results.get(OURS)
        for system, result in results.items():
            ratio = "-"
            if ours and system != OURS:
                ratio = f"{ours['sampling'] / result['sampling']:.2f}"
            rows.append(
                [
                    problem,
                    system,
                    duration(result["cold"]),
                    duration(result["first_result"]),
                    duration(result["sampling"]),
                    f"{result['ess']:.0f}",
                    f"{result['ess'] / result['sampling']:.3g}",
                    ratio,
                    f"{result['z']:.1f}",
                ]
            )
    header = ["model", "system", "first result", "second result", "sampling", "min ESS", "ESS/s"]
    header += ["sampling, ours / theirs", "agreement"]
    return f"{table(header, rows)}\n\n{METHOD.format(repeats=repeats, max_z=MAX_Z)}", failures
