"""One loop over time in a fresh process: its first call, and where the time went, as JSON.

Called by `benchmarks.loops` as ``SERIES SPELLING``.
"""

from benchmarks.machine import restrict_to_one_core

restrict_to_one_core()

import json  # noqa: E402 - after the thread settings
import sys  # noqa: E402
import time  # noqa: E402

from benchmarks.density import probes  # noqa: E402
from benchmarks.loops import JAX, value_and_grad  # noqa: E402
from benchmarks.peers import adapter  # noqa: E402
from benchmarks.problems import DENSITIES  # noqa: E402


def ours(name, spelling):
    """Return the times of the first call of ours, by its parts."""
    from probtorch.compiler import density
    from probtorch.compiler.run import executor

    spent = {"recording": 0.0, "rolling": 0.0, "compiling": 0.0}
    within: list[tuple[str, float]] = []  # timed functions that run: part, seconds of other parts

    def timed(fn, part):
        def wrapper(*args, **kwargs):
            # What rolling records again is part of rolling.
            here = "rolling" if any(outer == "rolling" for outer, _ in within) else part
            start = time.perf_counter()
            within.append((here, 0.0))
            try:
                return fn(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - start
                _, others = within.pop()
                spent[here] += seconds - others
                if within:
                    outer, before = within.pop()
                    within.append((outer, before + seconds))

        return wrapper

    density.record = timed(density.record, "recording")
    density.rolling.rolled = timed(density.rolling.rolled, "rolling")
    density.NativeDensity._rolled = timed(density.NativeDensity._rolled, "rolling")
    executor.CpuProgram.__init__ = timed(executor.CpuProgram.__init__, "compiling")
    call, point = value_and_grad(name, spelling), probes(DENSITIES[name])[0]
    start = time.perf_counter()
    call(point)
    return {**spent, "total": time.perf_counter() - start}


def theirs(name):
    """Return the times of JAX: tracing and lowering, compiling, and all with the first run."""
    import jax

    fn = jax.jit(jax.value_and_grad(adapter("jax").log_density(DENSITIES[name])))
    point = probes(DENSITIES[name])[0]
    times = [time.perf_counter()]
    lowered = fn.lower(point)
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    compiled(point)[1].block_until_ready()
    return {
        "recording": times[1] - times[0],
        "rolling": 0.0,
        "compiling": times[2] - times[1],
        "total": time.perf_counter() - times[0],
    }


if __name__ == "__main__":
    series, spelling = sys.argv[1:]
    print(json.dumps(theirs(series) if spelling == JAX else ours(series, spelling)))
