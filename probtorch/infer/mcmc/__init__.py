"""Markov chain Monte Carlo: kernels, adaptation, and the driver that runs chains.

Read in this order. `integrators.py` and `metrics.py` are the mechanics; `hmc.py` and `nuts.py` the
kernels, frozen records with pure `init` and `step`; `adaptation.py` step size, mass matrix and
Stan's windows. `chunk.py` puts a kernel, its adaptation and the loop over draws into one program,
which runs eagerly or as native code. `kernels.py` has the constructors that users call, `driver.py`
the class `MCMC`: chains start (`starts.py`), run in threads (`threads.py`, with Ctrl-C), and what
they drew is put together (`collect.py`); `progress.py` has what is shown meanwhile.
"""

from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.hmc import HMC
from probtorch.infer.mcmc.nuts import NUTS

__all__ = ["HMC", "MCMC", "NUTS"]
