"""Run benchmark suites and print, or write, their tables: see `--help`."""

from benchmarks.machine import describe, restrict_to_one_core

restrict_to_one_core()

import argparse  # noqa: E402 - after the thread settings, on principle
import sys  # noqa: E402

from benchmarks import (  # noqa: E402
    compile_time,
    curves,
    density,
    distributions,
    eager,
    fit,
    kernel_peers,
    kernels,
    leaks,
    loops,
    nuts,
    operations,
    scale,
    svi,
    training,
    warmup,
)
from benchmarks.kernel_targets import TARGETS  # noqa: E402
from benchmarks.peers import OURS, PEERS, adapter, missing  # noqa: E402
from benchmarks.problems import PROBLEMS  # noqa: E402
from benchmarks.report import write_section  # noqa: E402
from benchmarks.warmup import SYSTEMS  # noqa: E402
from benchmarks.warmup_problems import POSTERIORS  # noqa: E402

SUITES = {
    "eager": eager,
    "operations": operations,
    "density": density,
    "distributions": distributions,
    "nuts": nuts,
    "svi": svi,
    "training": training,
    "compile_time": compile_time,
    "loops": loops,
    "warmup": warmup,
    "kernels": kernels,
    "scale": scale,
    "curves": curves,
    "leaks": leaks,
    "kernel_peers": kernel_peers,
    "fit": fit,
}
# Minutes, and half an hour: only by their names.
LONG = ("warmup", "kernels", "scale", "curves", "leaks", "kernel_peers", "fit")


def main() -> int:
    """Run the suites asked for; the exit status is 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, "all"])
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(PEERS)}; default: all")
    parser.add_argument("--models", help="for nuts, warmup, kernels, fit; default: all")
    parser.add_argument("--slow", action="store_true", help="nuts: include Pyro (minutes)")
    group = parser.add_argument_group("warmup")
    group.add_argument("--systems", help=f"separated by spaces; default: {' '.join(SYSTEMS)}")
    group.add_argument("--seeds", type=int, default=5)
    group.add_argument("--lengths", help="comma-separated; all: 1000,300,default")
    group.add_argument("--results", help="folder of results, which are reused")
    group.add_argument("--fresh", help="systems to run again, separated by spaces")
    options = parser.parse_args()

    wanted = options.peers.split(",") if options.peers else list(PEERS)
    if unknown := set(wanted) - set(PEERS):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    models = options.models.split(",") if options.models else None
    posteriors = {"warmup": POSTERIORS, **dict.fromkeys(("kernels", "kernel_peers"), TARGETS)}
    known = {**posteriors, "fit": fit.CASES}.get(options.suite, PROBLEMS)
    if models and (unknown := set(models) - set(known)):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    extras = {
        "nuts": {"slow": options.slow, "problems": models},
        "kernels": {"targets": models},
        "kernel_peers": {"targets": models},
        "fit": {"models": models},
        "warmup": {
            "posteriors": models,
            "systems": options.systems and options.systems.split(),
            "seeds": options.seeds,
            "lengths": options.lengths and options.lengths.split(","),
            "results": options.results,
            "fresh": (options.fresh or "").split(),
        },
    }
    absent = {name: package for name in (OURS, *wanted) if (package := missing(name))}
    names = [name for name in (OURS, *wanted) if name not in absent]
    installed = dict.fromkeys(d for name in names for d in adapter(name).DISTRIBUTIONS)
    machine = describe(installed)
    print(machine)
    for name, package in absent.items():
        print(f"left out: {name} ({package} is not installed)")

    failed = False
    everything = [suite for suite in SUITES if suite not in LONG]
    for suite in everything if options.suite == "all" else [options.suite]:
        text, problems = SUITES[suite].run(names, **extras.get(suite, {}))
        print(f"\n{suite}\n\n{text}")
        for problem in problems:
            print(f"not measured: {problem}")
        failed |= bool(problems)
        if options.write:
            line = machine.replace("\n", "; ")
            write_section(suite, f"{text}\n\nMeasured on {line}.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
