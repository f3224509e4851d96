"""The run that test_killed_chains.py kills: two chains of NUTS, draws on the disk, checkpoints.

``killed_chains.py serve LENGTH FOLDER [WARMUP]`` forks a process for each line on its stdin, which
makes the run, and writes its number, and a byte for every checkpoint: forking saves the import and
the compiler. ``killed_chains.py run LENGTH FOLDER [WARMUP]`` makes the run, or what is left of it.
``killed_chains.py journal LENGTH FOLDER`` serves a run with draws in memory, whose chains write
down what they draw between two checkpoints; it writes a byte for every transition.
"""

import os
import sys
import time
import warnings

import probtorch
from probtorch.infer import MCMC, NUTS, Checkpoint, Target
from probtorch.infer.mcmc import chain, journal, threads
from probtorch.infer.mcmc.chunk import ChunkRunner

# Seconds that a chain rests before every transition, so that a checkpoint, some ten syncs, is not
# long beside them; between two looks of the main thread; between two checkpoints.
REST = POLL = 0.001
EVERY = 0.004
# Transitions of a chain after a checkpoint, however slow the disk is, before it waits for another;
# and those after which it waits to be killed. A file has what chains were like when they last took
# a snapshot, EVERY after the one before, between two transitions: the rests of AHEAD transitions
# take longer, or all might wait for a file that there is nothing new to put into.
AHEAD, LIFE = 8, 17
# No life is long enough to get through all of the warm-up: it takes so many transitions more.
WARMUP = 8
SCALES = probtorch.tensor([0.01, 0.1, 1.0, 10.0])
TARGET = Target.from_density(lambda q: -0.5 * ((q / SCALES) ** 2).sum(), 4)


def run(length, folder=None, checkpoint=None, warmup=None):
    """Return draws of so many transitions after a warm-up that is longer than a life."""
    warmup = min(length, LIFE + WARMUP) if warmup is None else warmup
    mcmc = MCMC(NUTS(TARGET), length, warmup, num_chains=2, seed=7, thinning=5, progress_bar=False)
    mcmc.diagnose = False
    if folder is None:
        return mcmc.run()
    return mcmc.run(store=os.fspath(folder), checkpoint=checkpoint, checkpoint_every=EVERY)


class Told(Checkpoint):
    """Writes a byte after every file, and lets the chains go on."""

    def __init__(self, folder, pace):
        super().__init__(folder)
        self.pace = pace

    def save(self, step, values=None):
        path = super().save(step, values)
        self.pace.files += 1
        os.write(1, b".")
        return path


class Pace:
    """Keeps a run near its checkpoints, and from its end: it is killed before, however slowly."""

    def __init__(self):
        self.files, self.made, self.seen = 0, {}, {}

    def wait(self, runner):
        """Return when the chain may make its next transition, if ever."""
        made = self.made[runner] = self.made.get(runner, 0) + 1
        files, then = self.seen.get(runner, (0, 0))
        while made > LIFE or (self.files == files and made > then + AHEAD):
            time.sleep(POLL)
        if self.files > files:
            self.seen[runner] = self.files, made


def in_memory(length, folder):
    """Draw as `run` does, with a checkpoint as often as is cheap."""
    mcmc = MCMC(NUTS(TARGET), length, length // 5, num_chains=2, seed=7, progress_bar=False)
    mcmc.diagnose = False
    return mcmc.run(checkpoint=folder)


def serve(length, folder, warmup=None, *, journals):
    """Fork a run for every line on stdin."""
    call = ChunkRunner.run
    if journals:
        # What records cost depends on what else runs here.
        journal.SHARE = 1.0
    else:
        chain.GROWTH, threads.POLL = 1, POLL  # a transition per call

    pace = None if journals else Pace()

    def slowly(runner, count, **kwargs):
        time.sleep(2 * REST * count if journals else REST)
        if pace is not None:
            pace.wait(runner)
        found = call(runner, count, **kwargs)
        if journals:
            os.write(1, b"." * count)
        return found

    run(20)  # what is compiled here is there in all of them
    ChunkRunner.run = slowly
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            if journals:
                in_memory(length, folder)
            else:
                run(length, folder, Told(folder, pace), warmup)
            os._exit(0)
        os.write(1, b"%d\n" % child)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            sys.exit("the run ended by itself: an error above, or too few transitions")
        os.write(1, b"\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what, length, folder, *rest = sys.argv[1:]
    warmup = int(rest[0]) if rest else None
    if what == "run":
        run(int(length), folder, folder, warmup)
    else:
        serve(int(length), folder, warmup, journals=what == "journal")
