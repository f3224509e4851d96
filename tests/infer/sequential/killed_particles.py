"""The run that test_killed_particles.py kills: SMC, with checkpoints at every look.

``killed_particles.py FOLDER`` forks a process for each line on its stdin, which makes the run, and
writes its number, and a byte for every checkpoint: forking saves the import and the compiler.
"""

import os
import sys
import time
import warnings

import numpy as np

import probtorch
from probtorch.distributions import HalfNormal, Normal
from probtorch.effects import plate, sample
from probtorch.infer import SMC, Checkpoint, RandomWalk
from probtorch.infer.sequential import mutation

# Particles that are moved between two looks; a rest before each of them, so that a checkpoint, some
# syncs, is not long beside them.
PIECE, REST = 8, 0.002


def model(y):
    mu = sample("mu", Normal(0.0, 3.0))
    sd = sample("sd", HalfNormal(1.0))
    with plate("row", len(y)):
        sample("y", Normal(mu, sd), obs=y)


def run(folder=None, checkpoint=None, particles=400):
    """Return the particles as arrays by name, with the evidence and its error."""
    smc = SMC(
        RandomWalk(model),
        particles,
        num_threads=1,
        seed=5,
        ess_threshold=0.9,
        progress_bar=False,
    )
    saving = {} if folder is None else {"checkpoint": checkpoint or folder, "checkpoint_every": 0.0}
    draws = smc.run(probtorch.tensor([1.0, 0.2, 2.3, -0.5]), **saving)
    facts = [*draws.temperatures, *draws.num_steps, draws.log_evidence, draws.log_evidence_error]
    return {**draws.posterior, **draws.sample_stats, "facts": np.array(facts)}


class Told(Checkpoint):
    """Writes a byte after every file."""

    def save(self, step, values=None):
        path = super().save(step, values)
        os.write(1, b".")
        return path


def serve(folder):
    """Fork a run for every line on stdin."""

    def slowly(self, steps):
        time.sleep(REST)
        return PIECE

    mutation.Mutation._piece = slowly
    run(particles=20)  # what is compiled here is there in all of them
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            run(folder, Told(folder))
            os._exit(0)
        os.write(1, b"%d\n" % child)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            sys.exit("the run ended by itself: an error above, or too few particles")
        os.write(1, b"\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(sys.argv[1])
