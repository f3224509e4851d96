"""Another checkout of this repository against this one: what a change costs, or an earlier release.

The cases are those of the suites, ours alone: they are written in this checkout, and run with the
library of each, in two processes that take turns on one core. Times are of the processor, since
other work on the machine takes nothing of that; the least of all turns counts. Of what takes more
than `LIMIT` times as long here, and of what takes as much less, new processes are asked again:
where objects lie in memory makes some per cent of a short call. First calls are made in processes
of their own, with an empty cache of programs and with the full one.

Run as ``python -m benchmarks.against CHECKOUT [--only TEXT] [--write]``, for instance after
``git worktree add --detach ../before v0.1``; it takes half an hour.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.report import duration, table, write_section

HERE = Path(__file__).resolve().parents[1]
TURNS, PROCESSES, LIMIT = 5, 3, 1.05
# Of these the first call is timed too.
FIRST = ("density: eight_schools", "svi: autoencoder, a step", "loops: ")
FIRST_PROCESSES = 3
METHOD = (
    "Processor time of a call, of a run from beginning to end where it says so; best of {turns} "
    "turns, and of {processes} pairs of processes where the first pair was more than 5 % apart. "
    "First calls: fresh processes, imports done, with an empty cache of programs and with a full "
    "one. `before` is {before}; `now` has all checks switched on."
)


class Library:
    """A process with the library of one checkout.

    Parameters
    ----------
    checkout : Path
    cache : str
        Folder of its compiled programs.
    """

    def __init__(self, checkout: Path, cache: str) -> None:
        command, environment = _command(checkout, cache)
        self._child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> object:
        """Return the answer to a command; a text says what went wrong."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        return json.loads(line) if line else "the process has ended"

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def _command(checkout: Path, cache: str, *case: str) -> tuple[list[str], dict[str, str]]:
    child = str(Path(__file__).with_name("against_child.py"))
    environment = os.environ | {"PROBTORCH_CACHE_DIR": cache}
    return [sys.executable, child, str(checkout), *case], environment


@contextlib.contextmanager
def libraries(checkouts: list[Path], caches: list[str]) -> Iterator[list[Library]]:
    """Context manager: a process for each checkout."""
    found = [Library(c, cache) for c, cache in zip(checkouts, caches, strict=True)]
    try:
        yield found
    finally:
        for library in found:
            library.close()


def in_turns(pair: list[Library], case: str) -> tuple[list[float], str | None]:
    """Return the best time of each, and what went wrong, if anything."""
    made = [library.ask(f"make {case}") for library in pair]
    wrong = next((x for x in made if isinstance(x, str)), None)
    if wrong is not None:
        return [], wrong
    times: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for mine, library in zip(times, pair, strict=True):
            seconds = library.ask("time")
            if isinstance(seconds, str):
                return [], seconds
            mine.append(float(str(seconds)))
    return [min(mine) for mine in times], None


def first_calls(checkouts: list[Path], case: str) -> tuple[list[float], list[float]]:
    """Return the best first calls of each with an empty cache, and with a full one."""
    empty, full = [math.inf, math.inf], [math.inf, math.inf]
    for _ in range(FIRST_PROCESSES):
        for i, checkout in enumerate(checkouts):
            with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as cache:
                for best in (empty, full):
                    command, environment = _command(checkout, cache, case)
                    child = subprocess.run(
                        command, env=environment, capture_output=True, text=True, check=True
                    )
                    best[i] = min(best[i], float(child.stdout.splitlines()[-1]))
    return empty, full


def row(name: str, before: float, now: float) -> list[str]:
    """Return a row of the table."""
    return [name, duration(before), duration(now), f"{now / before:.2f}"]


def measure(checkouts: list[Path], only: str) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, and what could not be measured."""
    best: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        caches = [
            stack.enter_context(tempfile.TemporaryDirectory(prefix="probtorch-bench-"))
            for _ in checkouts
        ]
        asked: list[str] | None = None
        for _ in range(PROCESSES):
            with libraries(checkouts, caches) as pair:
                if asked is None:
                    listed = pair[1].ask("list")
                    assert isinstance(listed, list)
                    asked = [case for case in listed if only in case]
                for case in asked:
                    found, wrong = in_turns(pair, case)
                    if wrong is not None:
                        failures[case] = wrong
                        continue
                    best[case] = list(map(min, best.get(case, found), found))
                    print(*row(case, *best[case]), sep="  ", flush=True)
            asked = [c for c in best if not 1 / LIMIT < best[c][1] / best[c][0] < LIMIT]
    rows = [row(case, *times) for case, times in best.items()]
    for case in (c for c in best if c.startswith(FIRST)):
        for state, times in zip(("empty", "full"), first_calls(checkouts, case), strict=True):
            rows.append(row(f"first call, {state} cache: {case}", *times))
            print(*rows[-1], sep="  ", flush=True)
    return rows, [f"{case}: {wrong}" for case, wrong in failures.items()]


def named(checkout: Path) -> str:
    """Return what a checkout is at."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=commit %h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", default="", help="cases with this text in their names")
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    options = parser.parse_args()
    before = options.checkout.resolve()
    rows, failures = measure([before, HERE], options.only)
    method = METHOD.format(turns=TURNS, processes=PROCESSES, before=named(before))
    text = f"{table(['case', 'before', 'now', 'now / before'], rows)}\n\n{method}"
    print(f"\n{text}")
    for failure in failures:
        print(f"not measured: {failure}")
    if options.write:
        machine = describe(["probtorch"]).replace("\n", "; ")
        write_section("against", f"{text}\n\nMeasured on {machine}.")


if __name__ == "__main__":
    main()
