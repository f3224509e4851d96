"""The Metropolis-adjusted Langevin algorithm: a step up the gradient, and noise.

A proposal of step size h is ``q + h^2/2 F F^T g + h F z`` with the gradient g, the metric's factor
F and standard normal z. That is one leapfrog step from the momentum z, and the ratio of the
proposal's densities is that of the kinetic energies [neal2011, section 5.2]; so it is written here.

References
----------
G. O. Roberts, R. L. Tweedie, "Exponential convergence of Langevin distributions and their discrete
approximations", Bernoulli 2 (1996). G. O. Roberts, J. S. Rosenthal, "Optimal scaling of discrete
approximations to Langevin diffusions", Journal of the Royal Statistical Society B 60 (1998), for
the acceptance to aim at.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import setting
from probtorch.infer.mcmc.kernels.hmc import HMCState, energy_drop
from probtorch.infer.mcmc.kernels.random_walk import MetropolisInfo, accept_probability
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import where

__all__ = ["MALA"]


class MALA(SteppingKernel[HMCState]):
    """The Metropolis-adjusted Langevin algorithm [roberts1996]_: one gradient per draw.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    step_size : float
        Scale of the noise, in units of the metric, to begin with or to keep.
    adapt_step_size, adapt_mass_matrix, find_heuristic_step_size : bool
        What warm-up tunes, as for `NUTS`.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to [roberts1998]_.
    metric, inverse_mass_matrix
        As for `NUTS`: what precedes the gradient, and is the covariance of the noise.

    References
    ----------
    [roberts1996]_, [roberts1998]_.

    Examples
    --------
    >>> from probtorch.infer import MALA, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(MALA(target), num_samples=2000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 2000 draws: x (2))
    """

    info = MetropolisInfo

    target_accept_prob: float = setting(default=0.574, between=(0.0, 1.0))

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCState:
        """Return the state at a position."""
        logdensity, grad = self.density(position)
        return HMCState(position, logdensity, grad, as_tensor(counter))

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, MetropolisInfo]:
        """Return ``(state, info)`` after one proposal."""
        (dim,) = state.position.shape
        noise = sample_momentum(key, state.counter, dim)
        start = PhasePoint(state.position, noise, state.logdensity, state.grad)
        end = leapfrog(self.density, self.metric, start, self.step_size)
        energy = kinetic_energy(noise) - state.logdensity
        drop = energy_drop(energy, kinetic_energy(end.momentum) - end.logdensity)
        accept_prob = accept_probability(drop)
        accepted = uniform(key, state.counter + dim) < accept_prob
        new = HMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            state.counter + (dim + 1),
        )
        one = wrap(np.array(1))
        return new, MetropolisInfo(accept_prob, new.logdensity, self.step_size, one)
