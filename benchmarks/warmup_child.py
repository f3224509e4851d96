"""One posterior, one process: runs of one system or of several in turns, as JSON.

Called by `benchmarks.warmup` as ``SYSTEMS POSTERIOR CHAINS DRAWS PLAN``. The plan has a file and
names LENGTH/SEED of each system. A file has a record per run under its name, which is written as
soon as it is there. Systems that come together have the same density, and take turns run by run.
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


class Runs:
    """What one system does on a posterior, and the file that tells of it.

    Parameters
    ----------
    system : str
    density : CountedDensity
    file : path
    wanted : list of str
        Names of runs.
    chains, draws : int
    """

    def __init__(self, system, density, file, wanted, chains, draws):
        self.name, settings = parsed(system)
        self.run, self.density = adapter(self.name).density_sampler(density, **settings), density
        self.path, self.wanted, self.chains, self.draws = Path(file), wanted, chains, draws
        self.records = json.loads(self.path.read_text()) if self.path.exists() else {}
        self._compiled = set()

    def __call__(self, key):
        length, seed = key.split("/")
        warmup = None if length == "default" else int(length)
        rest = self.run, self.density, self.chains, warmup, self.draws
        try:
            program = warmup if self.name == "numpyro" else "all lengths"
            if program not in self._compiled:
                measure(*rest, 1000)
                self._compiled.add(program)
            self.records[key] = measure(*rest, int(seed))
        except Exception as error:
            self.records[key] = {"error": f"{type(error).__name__}: {error!s:.300}"}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.records))
        os.replace(part, self.path)


def main(posterior, chains, draws, plan):
    """Run what a plan says, a dict of ``(file, names of runs)`` by system, seed after seed."""
    density = counted(posterior)
    systems = [Runs(name, density, *rest, chains, draws) for name, rest in plan.items()]
    keys = dict.fromkeys(key for runs in systems for key in runs.wanted)
    for turn, key in enumerate(sorted(keys, key=lambda key: int(key.split("/")[1]))):
        # Nobody always follows the same one.
        for runs in systems if turn % 2 == 0 else reversed(systems):
            if key in runs.wanted:
                runs(key)


if __name__ == "__main__":
    _, posterior, chains, draws, plan = sys.argv[1:]
    main(posterior, int(chains), int(draws), json.loads(plan))
