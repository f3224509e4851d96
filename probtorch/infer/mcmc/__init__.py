"""Markov chain Monte Carlo: kernels, adaptation, and the driver that runs chains.

Read in this order. `kernel.py` is what a kernel is; `random_walk.py` the shortest one.
`integrators.py` and `metrics.py` are the mechanics of `hmc.py` and `nuts.py`, `adaptation.py` has
what a warm-up does and when. `chunk.py` puts a kernel, its tuner and the loop over draws into one
program, which runs eagerly or as native code. `driver.py` has the class `MCMC`: chains start
(`starts.py`), run in threads (`threads.py`, with Ctrl-C), and what they drew is put together
(`collect.py`); `progress.py` has what is shown meanwhile.
"""

from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.hmc import HMC
from probtorch.infer.mcmc.nuts import NUTS

__all__ = ["HMC", "MCMC", "NUTS"]
