"""Chains on a pool of MPI processes, compared with chains in threads; started by `mpiexec`."""

import numpy as np
from mpi4py.futures import MPIPoolExecutor

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS


def model():
    probtorch.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))


def positions(**settings):
    mcmc = MCMC(NUTS(model), 50, 50, num_chains=3, seed=0, progress_bar=False, **settings)
    mcmc.diagnose = False
    return mcmc.run().positions


if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        workers = pool.num_workers
        same = np.array_equal(positions(executor=pool), positions())
    print(f"{workers} workers, the same: {same}")
