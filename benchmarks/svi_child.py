"""One system in a fresh process: two steps of the autoencoder, each with the time it was done.

Called by `benchmarks.svi` as ``SYSTEM``. The clock is the same in all processes, and is read here:
the parent shares the core, and gets it when this process rests.
"""

import sys
import time

from benchmarks.machine import restrict_to_one_core

restrict_to_one_core()

from benchmarks.svi import autoencoder, batches  # noqa: E402 - after the thread settings

step = autoencoder(sys.argv[1], batches(2))
for i in range(2):
    loss = step()
    print("step", i, time.perf_counter(), loss, flush=True)
