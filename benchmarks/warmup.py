"""Warm-up: effective draws per gradient, and gradients spent on warm-up, on one native density.

Each system samples our compiled density of each posterior through a counter (`counting.py`), so
that differences are those of starts, adaptation and trajectories alone. A process per posterior
(`warmup_child.py`), in which ours and nutpie take turns, writes a file of results per system; what
is there already is not run again, so a long run can be stopped and continued, and peers be run once
while our side changes.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.peers import OURS
from benchmarks.report import table

__all__ = ["SYSTEMS", "run"]

ROOT = Path(__file__).resolve().parents[1]
CHAINS, DRAWS = 4, 1000
LENGTHS = ("1000", "300")
# Ours alone: its own default.
OUR_LENGTHS = ("default",)
# What each of ours is compared with; 400 is the most that ours should need.
OPPONENT = {"default": "1000", "400": "1000"}
NUTPIE = ("nutpie", "nutpie:low_rank=True")
SYSTEMS = (OURS, *NUTPIE, "numpyro")
# Adapters whose systems run in one process, in turns.
IN_TURNS = (OURS, "nutpie")
# How many times as many seeds a posterior gets: of the first ones single seeds decide; a gradient
# of the last takes 0.1 ms, and its density is verified in Python for seconds.
SEEDS_OF = {
    **dict.fromkeys(("irt_2pl", "election", "latent_gp", "stochastic_volatility"), 2.0),
    "lotka_volterra": 0.4,
}
SECONDS = 1500.0
TOO_SLOW = f"more than {SECONDS:.0f} s"
MAX_RHAT, MAX_Z = 1.05, 5.0
# Posteriors count where a metric of nutpie's fails to mix for less than this share of its seeds.
MAX_UNMIXED = 0.2
METHOD = (
    f"{CHAINS} chains x (warm-up + {DRAWS}), {{seeds}} seeds ({{others}}), one thread. All systems "
    "call the same machine code for density and gradient; its calls are counted, those of starts "
    "and searches with the rest. Peers start at points uniform on (-2, 2) in each coordinate. ESS: "
    "smallest bulk ESS over all unconstrained parameters, by the same routine for all. Each cell: "
    "ESS per 1000 gradients after warm-up / per 1000 of all gradients / gradients of the warm-up "
    "in thousands, the four chains together; sums over seeds. Ratios: ours by the better of "
    "nutpie's two metrics in that measure (default and 400: against its 1000); for gradients of "
    "the warm-up that metric which has more ESS per gradient. ESS per second: processor time of "
    "starts, warm-up and sampling, everything compiled; ours and nutpie take turns, seed by seed, "
    "in one process. Remarks: seeds with an R-hat above "
    f"{MAX_RHAT}, divergences a run, posterior means more than {MAX_Z:.0f} standard errors from "
    "nutpie's. The means of ratios leave out posteriors in which each of nutpie's metrics has such "
    "an R-hat for a fifth of its seeds."
)


class Results:
    """What is known of all runs, and the processes that add to it.

    Parameters
    ----------
    folder : Path
    seeds : int
    """

    def __init__(self, folder, seeds):
        self.folder, self.seeds = folder, seeds
        self.failures = []

    def seeds_of(self, posterior):
        """Return how many seeds a posterior gets."""
        return max(1, round(self.seeds * SEEDS_OF.get(posterior, 1.0)))

    def file(self, posterior, system):
        return self.folder / f"{posterior}.{system.replace(':', '.')}.json"

    def records(self, posterior, system):
        """Return the records of a file, by LENGTH/SEED."""
        path = self.file(posterior, system)
        return json.loads(path.read_text()) if path.exists() else {}

    def described(self, length):
        """Return a length as the tables call it: with its number, if that is ours to choose."""
        chosen = {
            record["warmup"]
            for path in self.folder.glob(f"*.{OURS}*.json")
            for key, record in json.loads(path.read_text()).items()
            if key.startswith("default/") and "error" not in record
        }
        numbers = ", ".join(map(str, sorted(chosen)))
        return f"{length} ({numbers})" if length == "default" and numbers else length

    def complete(self, posterior, lengths):
        """Run what is missing of some systems, in turns; `lengths` are those of each."""
        plan = {}
        for system, own in lengths.items():
            known = self.records(posterior, system)
            names = [f"{n}/{seed}" for n in own for seed in range(self.seeds_of(posterior))]
            if wanted := [key for key in names if key not in known]:
                plan[system] = str(self.file(posterior, system)), wanted
        if not plan:
            return
        command = [sys.executable, "-m", "benchmarks.warmup_child", " ".join(plan), posterior]
        command += [str(CHAINS), str(DRAWS), json.dumps(plan)]
        with tempfile.TemporaryFile("w+") as log:
            try:
                status = subprocess.run(
                    command, cwd=ROOT, stdout=log, stderr=log, timeout=SECONDS * len(plan)
                ).returncode
            except subprocess.TimeoutExpired:
                status = TOO_SLOW
                # Missing runs are not tried again, and the table says so.
                for system, (file, wanted) in plan.items():
                    known = self.records(posterior, system)
                    errors = {key: {"error": TOO_SLOW} for key in wanted if key not in known}
                    Path(file).write_text(json.dumps(known | errors))
            log.seek(0)
            last = (log.read().strip().splitlines() or ["no message"])[-1]
        if status:
            ended = f"the process ended with {status}: {last}"
            self.failures += [f"{system}, {posterior}: {ended}" for system in plan]

    def pooled(self, posterior, system, length):
        """Return the runs of all seeds as one `Cell`, or None."""
        known = self.records(posterior, system)
        keys = [f"{length}/{seed}" for seed in range(self.seeds_of(posterior))]
        runs = [known[key] for key in keys if key in known]
        for key in keys:
            if "error" in known.get(key, {}):
                self.failures.append(f"{system}, {posterior}, {key}: {known[key]['error']}")
        good = [r for r in runs if "error" not in r]
        return Cell(good) if good else None

    def absence(self, posterior, system, length):
        """Return why there is no cell."""
        known = self.records(posterior, system)
        keys = [f"{length}/{seed}" for seed in range(self.seeds_of(posterior))]
        errors = [known[key]["error"] for key in keys if "error" in known.get(key, {})]
        return "-" if not errors else TOO_SLOW if TOO_SLOW in errors else "failed"


class Cell:
    """Runs of one system on one posterior at one length."""

    def __init__(self, runs):
        def total(name):
            return float(sum(r[name] for r in runs))

        self.dim, self.warmup = len(runs[0]["mean"]), runs[0]["warmup"]
        ess, after, before = total("ess"), total("gradients"), total("warmup_gradients")
        self.per_gradient = 1e3 * ess / after
        self.overall = 1e3 * ess / (after + before)
        self.warmup_gradients = before / len(runs)
        self.per_second = ess / total("seconds")
        self.divergences = total("divergences") / len(runs)
        self.unmixed = sum(not r["rhat"] <= MAX_RHAT for r in runs)
        self.mixes = self.unmixed < MAX_UNMIXED * len(runs)
        self.mean = np.mean([r["mean"] for r in runs], 0)
        self.mcse = np.sqrt(np.square([r["mcse"] for r in runs]).sum(0)) / len(runs)

    def __str__(self):
        return f"{self.per_gradient:.3g} / {self.overall:.3g} / {self.warmup_gradients / 1e3:.3g}k"

    def errors_from(self, other):
        """Return the largest difference in posterior means, in joint standard errors."""
        return float(np.max(np.abs(self.mean - other.mean) / np.hypot(self.mcse, other.mcse)))

    def remarks(self, name, reference):
        """Return what is wrong with these runs."""
        found = []
        if self.unmixed:
            found.append(f"R-hat x {self.unmixed}")
        if self.divergences >= 1:
            found.append(f"{self.divergences:.0f} divergences")
        if reference is not None and self.errors_from(reference) > MAX_Z:
            found.append(f"means {self.errors_from(reference):.1f} errors off")
        return f"{name}: {', '.join(found)}" if found else ""


def label(system):
    """Return how a system is called in tables."""
    name, _, settings = system.partition(":")
    names = {OURS: "ours", "numpyro": "NumPyro", "nutpie:low_rank=True": "nutpie low rank"}
    return names.get(system) or " ".join(filter(None, (names.get(name, name), settings)))


MEASURES = {
    "per_gradient": "ESS per gradient",
    "overall": "with warm-up",
    "per_second": "ESS per second",
}


def ratios(ours, peers):
    """Return our cell by the better of nutpie's in each measure; gradients of warm-up too."""
    found = {m: getattr(ours, m) / max(getattr(p, m) for p in peers) for m in MEASURES}
    best = max(peers, key=lambda p: p.per_gradient)
    return found | {"warmup_gradients": ours.warmup_gradients / max(best.warmup_gradients, 1.0)}


def one_table(results, posteriors, systems, length):
    """Return a table of all systems at one length, and the ratios by system and posterior."""
    ours = [s for s in systems if s.partition(":")[0] == OURS]
    rows, found = [], {s: {} for s in ours}
    for posterior in posteriors:
        lengths = {s: length if s in ours else OPPONENT.get(length, length) for s in systems}
        cells = {s: results.pooled(posterior, s, n) for s, n in lengths.items()}
        peers = [cells[s] for s in NUTPIE if cells.get(s)]
        there = [c for c in cells.values() if c]
        if not there:
            continue
        # Runs that did not mix have standard errors that mean nothing.
        reference = next((c for c in peers if not c.unmixed), None)
        row = [f"{posterior} ({there[0].dim})"]
        row += [str(cells[s] or results.absence(posterior, s, lengths[s])) for s in systems]
        for s in ours:
            if not cells[s] or not peers:
                row += ["-"] * 4
                continue
            by = ratios(cells[s], peers)
            if any(c.mixes for c in peers):
                found[s][posterior] = by
            row += [f"{by[m]:.2f}" for m in (*MEASURES, "warmup_gradients")]
        notes = [c.remarks(label(s), reference) for s, c in cells.items() if c]
        rows.append([*row, "; ".join(filter(None, notes))])
    header = ["posterior (dim)", *(label(s) for s in systems)]
    for s in ours:
        prefix = f"{label(s)}: " if len(ours) > 1 else ""
        header += [f"{prefix}{m}" for m in (*MEASURES.values(), "warm-up gradients")]
    return table([*header, "remarks"], rows), found


def summary(found):
    """Return geometric means and worst ratios, over posteriors that nutpie samples well."""
    rows = []
    for length, by_system in found.items():
        for system, by_posterior in by_system.items():
            if not by_posterior:
                continue
            row = [length, label(system), str(len(by_posterior))]
            for measure in (*MEASURES, "warmup_gradients"):
                values = {p: r[measure] for p, r in by_posterior.items()}
                mean = math.exp(np.mean(np.log(list(values.values()))))
                pick = max if measure == "warmup_gradients" else min
                worst = pick(values, key=values.get)
                row.append(f"{mean:.2f}; {values[worst]:.2f} ({worst})")
            rows.append(row)
    header = ["warm-up", "system", "posteriors"]
    header += [f"{m}: mean; worst" for m in (*MEASURES.values(), "warm-up gradients")]
    return table(header, rows)


def run(names, posteriors=None, systems=None, seeds=5, lengths=None, results=None, fresh=()):
    """Measure; returns (text, what went wrong).

    Parameters
    ----------
    names : list of str
        Installed systems.
    posteriors, systems : list of str, optional
        Which; all by default. A system is an adapter's name with settings after a colon:
        ``probtorch:metric=diag``.
    seeds : int
    lengths : list of str, optional
        Of warm-up; "default" for ours.
    results : path, optional
        Folder of the results; a temporary one if None.
    fresh : list of str
        Systems whose results are not to be reused.
    """
    from benchmarks.warmup_problems import POSTERIORS

    posteriors = list(POSTERIORS) if posteriors is None else posteriors
    systems = list(systems or SYSTEMS)
    with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as temporary:
        folder = Path(results or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        known = Results(folder, seeds)
        for posterior in posteriors:
            wanted = {}
            for system in systems:
                if system.partition(":")[0] not in names:
                    continue  # results that are there are used all the same
                if system in fresh:
                    known.file(posterior, system).unlink(missing_ok=True)
                ours = system.partition(":")[0] == OURS
                own = lengths or (*LENGTHS, *(OUR_LENGTHS if ours else ()))
                if not ours:
                    own = dict.fromkeys(OPPONENT.get(n, n) for n in own)
                wanted[system] = own
            # Those that are compared in seconds take turns; the others may take much longer.
            in_turns = {s: own for s, own in wanted.items() if s.partition(":")[0] in IN_TURNS}
            alone = [{s: own} for s, own in wanted.items() if s not in in_turns]
            for group in [in_turns, *alone]:
                print(f"warmup: {posterior}, {', '.join(group)}", file=sys.stderr, flush=True)
                known.complete(posterior, group)
        systems = [s for s in systems if any(known.records(p, s) for p in posteriors)]
        parts, found = [], {}
        for length in lengths or (*LENGTHS, *OUR_LENGTHS):
            text, found[length] = one_table(known, posteriors, systems, length)
            parts.append(f"Warm-up {known.described(length)}:\n\n{text}")
        parts.insert(0, summary(found))
        others = ", ".join(f"{name} {known.seeds_of(name)}" for name in SEEDS_OF)
        parts.append(METHOD.format(seeds=seeds, others=others))
        return "\n\n".join(parts), list(dict.fromkeys(known.failures))
