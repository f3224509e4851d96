"""MALA in the metric of the place: the simplified manifold Metropolis-adjusted Langevin algorithm.

With the softened curvature G at a point and the gradient g of the log density, a proposal of step
size h is normal with mean ``q + h^2/2 G^-1 g`` and covariance ``h^2 G^-1``. The drift that the
change of G would add is left out, which is the simplification; the test makes up for it. So second
derivatives are all that it takes, where Riemannian HMC (rmhmc.py) takes third ones.

References
----------
M. Girolami, B. Calderhead, "Riemann manifold Langevin and Hamiltonian Monte Carlo methods", JRSS B
73 (2011), equation 14. M. Betancourt, "A general metric for Riemannian manifold Hamiltonian Monte
Carlo" (2013), for the metric.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernel import setting, tuned
from probtorch.infer.mcmc.kernels.curved_kernel import CurvedKernel, CurvedState
from probtorch.infer.mcmc.kernels.curved_space import CurvedSpace, curved
from probtorch.infer.mcmc.kernels.random_walk import MetropolisInfo, accept_probability
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import where
from probtorch.ops.reduction import sum as total

__all__ = ["SMMALA"]


class SMMALA(CurvedKernel):
    """The simplified manifold MALA [girolami2011]_, with the softabs metric [betancourt2013]_.

    One look at the density and its second derivatives a draw: for a few coordinates whose scales
    and correlations change from place to place. Where they do not, `MALA` does the same at the
    price of a gradient.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    step_size : float
        Scale of the noise, in units of the curvature, to begin with or to keep.
    alpha : float
        Curvatures below ``1 / alpha``, in units of `metric`, count as that; see `RMHMC`.
    adapt_step_size, adapt_mass_matrix : bool
        What warm-up tunes.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to.
    metric : {"diag"}
        Units of the coordinates, learnt as for `NUTS`. They only say which curvatures are small.
    inverse_mass_matrix
        As for `NUTS`: variances to begin with or to keep.
    max_dim : int
        Coordinates up to which it runs; each draw costs as much as that many gradients or more.

    Raises
    ------
    InferenceError
        In a run, if the target has more than `max_dim` coordinates.

    References
    ----------
    [girolami2011]_, [betancourt2013]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, SMMALA, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(SMMALA(target), num_samples=2000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 2000 draws: x (2))
    """

    info = MetropolisInfo

    step_size: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))
    target_accept_prob: float = setting(default=0.574, between=(0.0, 1.0))

    def step(self, key: Key, state: CurvedState) -> tuple[CurvedState, MetropolisInfo]:
        """Return ``(state, info)`` after one proposal."""
        (dim,) = state.position.shape
        size = as_tensor(self.step_size)
        space = CurvedSpace(self.density, self.metric.scale, as_tensor(self.alpha))
        here = space.metric(state.hessian)
        z = normals(key, state.counter, dim)
        momentum = here.momentum(z) + 0.5 * size * space.scale * state.grad
        position = state.position + size * space.velocity(here, momentum)
        logdensity, grad, hessian = curved(self.density, position)
        there = space.metric(hessian)
        # The noise that would lead back from there, whitened.
        back = there.whitened((state.position - position) / (size * space.scale))
        back = back - there.whitened_momentum(0.5 * size * space.scale * grad)
        proposed = here.half_log_determinant() - 0.5 * total(z * z)
        returned = there.half_log_determinant() - 0.5 * total(back * back)
        accept_prob = accept_probability(logdensity - state.logdensity + returned - proposed)
        accepted = uniform(key, state.counter + dim) < accept_prob
        new = CurvedState(
            where(accepted, position, state.position),
            where(accepted, logdensity, state.logdensity),
            where(accepted, grad, state.grad),
            where(accepted, hessian, state.hessian),
            state.counter + (dim + 1),
        )
        one = wrap(np.array(1))
        return new, MetropolisInfo(accept_prob, new.logdensity, size, one)
