"""One system in a fresh process: two steps of the autoencoder, each announced when it is done.

Called by `benchmarks.svi` as ``SYSTEM``. The parent reads the clock, which saw this process start.
"""

import sys

from benchmarks.machine import restrict_to_one_core

restrict_to_one_core()

from benchmarks.svi import autoencoder, batches  # noqa: E402 - after the thread settings

step = autoencoder(sys.argv[1], batches(2))
for i in range(2):
    print("step", i, step(), flush=True)
