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

from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.hmc import HMC
from probtorch.infer.mcmc.kernels.nuts import NUTS

__all__ = ["HMC", "MCMC", "NUTS"]
