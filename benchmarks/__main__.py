"""Run benchmark suites and print, or write, their tables: see `--help`."""

from benchmarks.machine import describe, restrict_to_one_core

restrict_to_one_core()

import argparse  # noqa: E402 - after the thread settings, on principle
import sys  # noqa: E402

from benchmarks import compile_time, density, eager, loops, nuts, svi  # noqa: E402
from benchmarks.peers import OURS, PEERS, adapter, missing  # noqa: E402
from benchmarks.problems import PROBLEMS  # noqa: E402
from benchmarks.report import write_section  # noqa: E402

SUITES = {
    "eager": eager,
    "density": density,
    "nuts": nuts,
    "svi": svi,
    "compile_time": compile_time,
    "loops": loops,
}


def main() -> int:
    """Run the suites asked for; the exit status is 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, "all"])
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(PEERS)}; default: all")
    parser.add_argument("--models", help=f"for nuts, of {', '.join(PROBLEMS)}; default: all")
    parser.add_argument("--slow", action="store_true", help="nuts: include Pyro (minutes)")
    options = parser.parse_args()

    wanted = options.peers.split(",") if options.peers else list(PEERS)
    if unknown := set(wanted) - set(PEERS):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    models = options.models.split(",") if options.models else None
    if models and (unknown := set(models) - set(PROBLEMS)):
        parser.error(f"unknown models {', '.join(sorted(unknown))}")
    absent = {name: package for name in (OURS, *wanted) if (package := missing(name))}
    names = [name for name in (OURS, *wanted) if name not in absent]
    distributions = dict.fromkeys(d for name in names for d in adapter(name).DISTRIBUTIONS)
    machine = describe(distributions)
    print(machine)
    for name, package in absent.items():
        print(f"left out: {name} ({package} is not installed)")

    failed = False
    for suite in SUITES if options.suite == "all" else [options.suite]:
        extra = {"slow": options.slow, "problems": models} if suite == "nuts" else {}
        text, problems = SUITES[suite].run(names, **extra)
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
