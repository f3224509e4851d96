"""One point of the suite `scale`, in a process of its own: its times and memory, as JSON.

Called as ``CASE SIZE SYSTEM``. Times are of the processor, of one thread: of the first call, with
what is compiled for it, and of the best of later calls. Memory is the highest resident size of the
first calls beyond what there was when the work was made, with its data.
"""

from benchmarks.machine import peak_resident, restrict_to_one_core

restrict_to_one_core()

import json  # noqa: E402 - after the thread settings
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

from benchmarks.scale_arrays import CASES  # noqa: E402

# Seconds for later calls, and of what is short so many at a time.
SPENT, TOGETHER = 1.5, 0.02


def measure(name: str, size: int, system: str) -> dict[str, float]:
    """Measure a point."""
    work = CASES[name].makers[system](size)
    before = peak_resident()
    start = time.process_time()
    units = _units(work())
    first = time.process_time() - start
    for _ in range(2):  # some are compiled at the second call
        if first < 5.0:
            work()
    megabytes, best, spent, count = peak_resident() - before, first / units, 0.0, 1
    while spent < SPENT and first < 60.0:
        start = time.process_time()
        for _ in range(count):
            units = _units(work())
        seconds = time.process_time() - start
        best, spent = min(best, seconds / count / units), spent + seconds
        if seconds < TOGETHER / 4:
            count *= 4
    return {"first": first, "seconds": best, "mb": megabytes}


def _units(found: object) -> int:
    """How much was done, where work tells."""
    return found if type(found) is int else 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
