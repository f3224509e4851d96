"""The run that test_killed_chains.py kills: two chains of NUTS, draws on the disk, checkpoints.

``killed_chains.py serve LENGTH FOLDER`` forks a process for each line on its stdin, which makes the
run, and writes its number, and a byte for every checkpoint: forking saves the import and the
compiler. ``killed_chains.py LENGTH FOLDER`` makes the run, or what is left of it, to its end.
"""

import os
import sys
import time
import warnings

import probtorch
from probtorch.infer import MCMC, NUTS, Checkpoint, Target
from probtorch.infer.mcmc import chain, threads
from probtorch.infer.mcmc.chunk import ChunkRunner

# Seconds that a chain rests before every transition, so that a checkpoint, some ten syncs, is not
# long beside them; between two looks of the main thread; between two checkpoints.
REST = POLL = 0.001
EVERY = 0.004
SCALES = probtorch.tensor([0.01, 0.1, 1.0, 10.0])
TARGET = Target.from_density(lambda q: -0.5 * ((q / SCALES) ** 2).sum(), 4)


def run(length, folder=None, checkpoint=None):
    """Return draws of so many transitions after a fifth as many of warm-up."""
    mcmc = MCMC(
        NUTS(TARGET), length, length // 5, num_chains=2, seed=7, thinning=5, progress_bar=False
    )
    mcmc.diagnose = False
    if folder is None:
        return mcmc.run()
    return mcmc.run(store=os.fspath(folder), checkpoint=checkpoint, checkpoint_every=EVERY)


class Told(Checkpoint):
    """Writes a byte after every file."""

    def save(self, step, values=None):
        path = super().save(step, values)
        os.write(1, b".")
        return path


def serve(length, folder):
    """Fork a run for every line on stdin."""
    chain.GROWTH, threads.POLL = 1, POLL  # a transition per call
    call = ChunkRunner.run

    def slowly(runner, *args, **kwargs):
        time.sleep(REST)
        return call(runner, *args, **kwargs)

    ChunkRunner.run = slowly
    run(20)  # what is compiled here is there in all of them
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            run(length, folder, Told(folder))
            os._exit(0)
        os.write(1, b"%d\n" % child)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            sys.exit("the run ended by itself: an error above, or too few transitions")
        os.write(1, b"\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3])
    else:
        run(int(sys.argv[1]), sys.argv[2], sys.argv[2])
