"""What the first call of a program costs, with its code in the compiler's cache and without.

Three programs: the density of eight schools with its gradient, a training step of the autoencoder
of `benchmarks.svi`, and a graph of 1000 operations on vectors, one in ten a reduction. Each call
is the first of a fresh process (the autoencoder's second step: the first runs eagerly), in which
everything is imported.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.nuts import ROOT
from benchmarks.peers import OURS
from benchmarks.report import duration, table

__all__ = ["PROGRAMS", "run"]

PROGRAMS = {
    "eight_schools": "eight schools, density and gradient",
    "autoencoder": "autoencoder, training step",
    "thousand": "1000 operations",
}
COLD, WARM = 2, 8
# Seconds beyond the recording that a call may take with its code in the cache.
WANTED = 0.02

METHOD = (
    "First call of a fresh process, imports done: processor time, which is what it takes where "
    "nothing else runs; best of {cold} processes ({warm} for full caches). Empty: nothing in the "
    "cache, so the vector runtime is compiled too, once per machine. New: the runtime is there, "
    "the program is not. Full: the second process. Recording is the eager run that the graph is "
    "taken from; compiling is all between a graph and its native code; the rest of a call is "
    "binding memory, looking at Python values, and the run."
)


def first_call(program, folder):
    """Return the times of a first call in a new process, by name, in seconds."""
    environment = {**os.environ, "PROBTORCH_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "benchmarks.compile_child", program]
    child = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if child.returncode:
        raise RuntimeError(f"the process ended with {child.returncode}: {child.stderr[-300:]}")
    return json.loads(child.stdout.splitlines()[-1])


def forget_programs(folder):
    """Delete programs from a cache, and leave what all of them share."""
    entries = {file: file.read_bytes() for file in Path(folder).glob("*.entry")}
    for file, content in entries.items():
        meta = json.loads(content.partition(b"\n")[0])["meta"]
        if "plan" in meta:
            (Path(folder) / f"{meta['code']}.entry").unlink(missing_ok=True)
            file.unlink()


def measured(program):
    """Return the best times of a program by state of the cache."""
    found = {"empty": [], "new": [], "full": []}
    with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as top:
        folder = Path(top) / "cache"
        for _ in range(COLD):
            shutil.rmtree(folder, ignore_errors=True)
            found["empty"].append(first_call(program, folder))
            forget_programs(folder)
            found["new"].append(first_call(program, folder))
        found["full"] = [first_call(program, folder) for _ in range(WARM)]
    if any(t["compiled"] for t in found["full"]) or not all(
        t["compiled"] for t in found["empty"] + found["new"]
    ):
        raise RuntimeError("the cache was not in the state that was meant")
    return {state: min(times, key=lambda t: t["total"]) for state, times in found.items()}


def run(names):
    """Measure ours, if it is among `names`; returns (text, what went wrong)."""
    rows, failures = [], []
    for program, what in PROGRAMS.items() if OURS in names else ():
        try:
            best = measured(program)
        except RuntimeError as error:
            failures.append(f"{what}: {error}")
            continue
        full = best["full"]
        beyond = full["total"] - full["recording"]
        if beyond > WANTED:
            failures.append(f"{what}: {duration(beyond)} beyond the recording, not {WANTED} s")
        times = [full["recording"], *(best[s]["compiling"] for s in ("empty", "new", "full"))]
        times += [*(best[s]["total"] for s in ("empty", "new", "full")), beyond]
        rows.append([what, str(full["ops"]), *map(duration, times)])
    header = ["program", "ops", "recording", "compiling, empty", "new", "full"]
    header += ["first call, empty", "new", "full", "full, beyond recording"]
    return f"{table(header, rows)}\n\n{METHOD.format(cold=COLD, warm=WARM)}", failures
