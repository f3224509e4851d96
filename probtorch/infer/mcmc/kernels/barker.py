"""Barker's proposal: a random walk whose steps turn up the gradient, coordinate by coordinate.

A step z of each whitened coordinate is normal; it is taken with probability ``sigmoid(z g)``, with
the gradient g there, and turned round otherwise. Where the gradient is so large that MALA's drift
would throw a chain away, this one merely knows for sure which way to go.

References
----------
S. Livingstone, G. Zanella, "The Barker proposal: combining robustness and efficiency in
gradient-based MCMC", Journal of the Royal Statistical Society B 84 (2022). J. Vogrinc,
S. Livingstone, G. Zanella, "Optimal design of the Barker proposal and other locally balanced
Metropolis-Hastings algorithms", Biometrika 110 (2023), for the acceptance to aim at.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernel import setting
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.kernels.random_walk import MetropolisInfo, accept_probability
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import sigmoid, softplus

__all__ = ["BarkerMH"]


class BarkerMH(SteppingKernel[HMCState]):
    """Metropolis's algorithm with Barker's proposal [livingstone2022]_: one gradient per draw.

    It takes as many draws as `MALA` where that is well tuned, and is far less sensitive to the step
    size and to gradients that explode: for posteriors with light tails or without a warm-up to
    speak of.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    step_size : float
        Scale of the proposals, in units of the metric, to begin with or to keep.
    adapt_step_size, adapt_mass_matrix, find_heuristic_step_size : bool
        What warm-up tunes, as for `NUTS`.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to [vogrinc2023]_.
    metric, inverse_mass_matrix
        As for `NUTS`: in whose coordinates steps are drawn and turned.

    References
    ----------
    [livingstone2022]_, [vogrinc2023]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, BarkerMH, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(BarkerMH(target), num_samples=2000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 2000 draws: x (2))
    """

    info = MetropolisInfo

    target_accept_prob: float = setting(default=0.4, between=(0.0, 1.0))

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCState:
        """Return the state at a position."""
        return HMCState(position, *self.density(position), as_tensor(counter))

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, MetropolisInfo]:
        """Return ``(state, info)`` after one proposal."""
        (dim,) = state.position.shape
        force = self.metric.force(state.grad)
        z = self.step_size * normals(key, state.counter, dim)
        turned = uniform(key, state.counter + dim + wrap(np.arange(dim))) > sigmoid(z * force)
        z = where(turned, -z, z)
        position = state.position + self.metric.velocity(z)
        logdensity, grad = self.density(position)
        # The density of z, less what is the same there and back: sigmoid(z g) for each coordinate.
        correction = softplus(-z * force) - softplus(z * self.metric.force(grad))
        accept_prob = accept_probability(logdensity - state.logdensity + correction.sum())
        accepted = uniform(key, state.counter + 2 * dim) < accept_prob
        new = HMCState(
            where(accepted, position, state.position),
            where(accepted, logdensity, state.logdensity),
            where(accepted, grad, state.grad),
            state.counter + (2 * dim + 1),
        )
        one = wrap(np.array(1))
        return new, MetropolisInfo(accept_prob, new.logdensity, self.step_size, one)
