"""Markov chain Monte Carlo: what a kernel is, kernels, warm-up, and the driver that runs chains.

- `kernel.py` is what a kernel is; kernels/ has them, a file each: `random_walk.py` is the shortest
  one, `integrators.py` and `metrics.py` the mechanics of `hmc.py` and `nuts.py`. gibbs/ has blocks
  of sites with an update of their own, subsampling/ kernels that look at some rows at a time.
- warm_up/ has what is tuned and learnt, and when: read `adaptation.py` first.
- `chunk.py` puts a kernel, its tuner and the loop over draws into one program, which runs eagerly
  or as native code; `chain.py` runs one chain.
- `driver.py` has the class `MCMC`, `one_run.py` a run of it: chains start (`starts.py`), run in
  threads (`threads.py`, with Ctrl-C; `handle.py` for those in the background), and what they drew,
  in memory (`recording.py`) or on the disk (`store.py`), is put together (`collect.py`);
  `progress.py` has what is shown.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.hmc import HMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.kernels.random_walk import RandomWalkKernel

__all__ = ["HMC", "MCMC", "NUTS", "RandomWalkKernel"]

# What does the work of names of Pyro's that are not here.
INSTEAD = {
    "ArrowheadMassMatrix": 'NUTS(model, full_mass=[("a", "b")]) makes blocks of sites',
    "BlockMassMatrix": 'NUTS(model, full_mass=[("a", "b")]) makes blocks of sites',
    "MCMCKernel": "a kernel of your own derives from infer.mcmc.kernel.Kernel",
    "StreamingMCMC": "MCMC.run(store=folder) streams draws to the disk, with diagnostics",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
