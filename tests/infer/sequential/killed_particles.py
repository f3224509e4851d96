"""The runs that test_killed_particles.py kills: SMC and particle Gibbs, checkpoints at every look.

``killed_particles.py KIND FOLDER PARTICLES`` writes how many looks a run takes that is left alone.
Then it forks a process for each line on its stdin, which makes the run, and writes its number, and
a byte for every checkpoint: forking saves the import and the compiler.
"""

import os
import sys
import time
import warnings

import numpy as np

import probtorch
from probtorch.distributions import Beta, HalfNormal, Normal, Poisson
from probtorch.effects import plate, sample
from probtorch.infer import SMC, Checkpoint, ParticleGibbs, RandomWalk
from probtorch.infer.sequential import mutation
from probtorch.infer.sequential.run_course import RunCourse
from probtorch.infer.sequential.saved_particles import SavedParticles

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


def branching(y):
    """Sites that come and go, so that draws are kept one by one."""
    loc = sample("loc", Normal(0.0, 1.0)) if sample("coin", Beta(2.0, 2.0)) > 0.5 else 1.0
    for i, value in enumerate(y):
        loc = loc + sample(f"step_{i}", Poisson(1.0))
        sample(f"y_{i}", Normal(loc, 1.0), obs=value)


def run_gibbs(folder=None, checkpoint=None, particles=5):
    """Return all that was drawn, as arrays by name."""
    gibbs = ParticleGibbs(branching, particles, 60, 20, num_chains=2, seed=2, progress_bar=False)
    saving = {} if folder is None else {"checkpoint": checkpoint or folder, "checkpoint_every": 0.0}
    draws = gibbs.run(probtorch.tensor([1.0, 2.5]), **saving)
    each = enumerate(run for chain in draws.values for run in chain)
    values = {f"{i} {name}": x for i, run in each for name, x in run.items()}
    return {**draws.posterior, **draws.sample_stats, **values}


RUNS = {"SMC": run, "ParticleGibbs": run_gibbs}


class Told(Checkpoint):
    """Writes a byte after every file."""

    def save(self, step, values=None):
        path = super().save(step, values)
        os.write(1, b".")
        return path


def looks_of(run):
    """Return how often a run would save itself."""
    update, seen = SavedParticles.update, []
    SavedParticles.update = lambda *args, **kwargs: seen.append(args)
    run()
    SavedParticles.update = update
    return len(seen)


def serve(kind, folder, particles):
    """Say how many looks a run takes; fork a run for every line on stdin."""

    def slowly(self, steps):
        time.sleep(REST)
        return PIECE

    def sweep_slowly(course, *args, **kwargs):
        time.sleep(REST)
        sweep(course, *args, **kwargs)

    sweep = RunCourse._sweep
    mutation.Mutation._piece, RunCourse._sweep = slowly, sweep_slowly
    # What is compiled here is there in all of them.
    os.write(1, b"%d\n" % looks_of(lambda: RUNS[kind](particles=particles)))
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            RUNS[kind](folder, Told(folder), particles)
            os._exit(0)
        os.write(1, b"%d\n" % child)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            sys.exit("the run ended by itself: an error above, or too few particles")
        os.write(1, b"\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
