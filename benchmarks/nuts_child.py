"""One system, one model, one fresh process: sample, print its summary, then time warm runs.

Called by `benchmarks.nuts` as ``SYSTEM PROBLEM OUTPUT CHAINS WARMUP DRAWS REPEATS``. The time to
the summary is taken by the parent, which saw this process start; it includes this file's imports.
"""

import json
import sys
import time


def main(system, problem, output, chains, warmup, draws, repeats):
    from benchmarks.peers import adapter
    from benchmarks.problems import PROBLEMS

    run = adapter(system).sampler(PROBLEMS[problem])
    start = time.perf_counter()
    samples = run(0, chains, warmup, draws)
    first = time.perf_counter() - start
    run.print_summary()
    print("benchmark: summary printed", json.dumps({"first_run": first}), flush=True)

    best = first
    for seed in range(1, repeats + 1):
        start = time.perf_counter()
        samples = run(seed, chains, warmup, draws)
        best = min(best, time.perf_counter() - start)
    print(json.dumps({"sampling": best}), flush=True)

    import numpy as np

    np.savez(output, **{name: samples[name] for name in PROBLEMS[problem].monitored})


if __name__ == "__main__":
    name, case, path, *sizes = sys.argv[1:]
    main(name, case, path, *map(int, sizes))
