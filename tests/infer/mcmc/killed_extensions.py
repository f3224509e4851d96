"""The run that test_stored_extensions.py kills: chains that draw to the disk until there is enough.

``killed_extensions.py FOLDER`` forks a process for each number on its stdin, which makes the run,
or what is left of it, and is killed before its so many-th change of what is on the disk; 0 lets it
end. It writes what became of it in a line.
"""

import itertools
import os
import signal
import sys
import warnings

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS
from probtorch.infer.mcmc import store, stored_record

# Calls by which files get names, room, rows and their places on the disk.
CHANGES = ("pwrite", "replace", "link", "fsync", "unlink")


def model():
    scale = probtorch.sample("scale", dist.HalfNormal(2.0))
    with probtorch.plate("row", 3):
        probtorch.sample("x", dist.Normal(0.0, scale))


def run(**where):
    """Return the draws; there are as many again as the first, and more, until there are enough."""
    mcmc = MCMC(NUTS(model), 60, 40, num_chains=2, seed=7, thinning=2, progress_bar=False)
    mcmc.diagnose = False
    return mcmc.run(until_ess=150, **where)


def kill_before(moment):
    """Have this process killed before its so many-th change of the disk."""
    made = itertools.count(1)

    def counted(change):
        def call(*args, **kwargs):
            if next(made) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **kwargs)

        return call

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = sys.argv[1]
    store.EVERY, stored_record.MOST_ROWS = 0.0, 4
    run()  # what is compiled here is there in all of them
    for line in sys.stdin:
        child = os.fork()
        if not child:
            kill_before(int(line))
            run(store=folder, checkpoint=folder, checkpoint_every=1e-9)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
