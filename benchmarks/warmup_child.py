"""One system, one posterior, one process: runs of several warm-up lengths and seeds, as JSON.

Called by `benchmarks.warmup` as ``SYSTEM POSTERIOR FILE CHAINS DRAWS LENGTH/SEED...``. The file has
a record per run under the name LENGTH/SEED; each is written as soon as it is there.
"""

import ast
import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.counting import CountedDensity
from benchmarks.peers import adapter
from benchmarks.warmup_problems import POSTERIORS
from probtorch import tensor
from probtorch.diagnostics.convergence import ess_bulk, mcse_mean, rhat
from probtorch.infer import Target


def parsed(system):
    """Return the adapter's name and the settings of ``name:setting=value,...``."""
    name, _, rest = system.partition(":")
    settings = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = value
    return name, settings


def counted(posterior):
    """Return the density of `posterior`, compiled."""
    model, arguments = POSTERIORS[posterior]()
    arguments = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    return CountedDensity(Target.from_model(model, **arguments))


def measure(run, density, chains, warmup, draws, seed):
    """Run once; returns what is known of the run, for JSON."""
    before, start = density.calls, time.process_time()
    with warnings.catch_warnings():
        # Runs that have not converged are what the tables are about.
        warnings.simplefilter("ignore")
        result = run(seed, chains, warmup, draws)
    seconds, calls = time.process_time() - start, density.calls - before
    found = run.read(result)
    x, steps = found["positions"], int(found["steps"].sum())
    return {
        "warmup": int(found["warmup"]),
        "draws": int(x.shape[1]),
        "seconds": seconds * found.get("share", 1.0),
        "gradients": steps,
        "warmup_gradients": calls - steps,
        "divergences": int(found["diverging"].sum()),
        "ess": float(min(ess_bulk(x[..., i]) for i in range(x.shape[-1]))),
        "rhat": float(max(rhat(x[..., i]) for i in range(x.shape[-1]))),
        "mean": [float(m) for m in x.mean((0, 1))],
        "mcse": [float(mcse_mean(x[..., i])) for i in range(x.shape[-1])],
    }


def main(system, posterior, file, chains, draws, wanted):
    density = counted(posterior)
    name, settings = parsed(system)
    run = adapter(name).density_sampler(density, **settings)
    path = Path(file)
    records = json.loads(path.read_text()) if path.exists() else {}
    compiled = set()
    for key in wanted:
        length, seed = key.split("/")
        warmup = None if length == "default" else int(length)
        try:
            program = warmup if name == "numpyro" else "all lengths"
            if program not in compiled:
                measure(run, density, chains, warmup, draws, 1000)
                compiled.add(program)
            records[key] = measure(run, density, chains, warmup, draws, int(seed))
        except Exception as error:
            records[key] = {"error": f"{type(error).__name__}: {error!s:.300}"}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(records))
        os.replace(part, path)


if __name__ == "__main__":
    system, posterior, file, chains, draws, *wanted = sys.argv[1:]
    main(system, posterior, file, int(chains), int(draws), wanted)
