"""Stochastic gradient HMC: Langevin dynamics with a momentum, by gradients of some rows.

The paper's step, made symmetric: see `UnderdampedKernel` (stochastic_gradients.py). With exact
gradients the variances of a Gaussian are right; noise of the gradients, of variance V in whitened
coordinates, is heat, and widens them by ``step_size * V / (2 friction)``.

References
----------
T. Chen, E. B. Fox, C. Guestrin, "Stochastic gradient Hamiltonian Monte Carlo", ICML (2014).
"""

from __future__ import annotations

import math

from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernel import tuned
from probtorch.infer.mcmc.subsampling.stochastic_gradients import UnderdampedKernel
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import exp, expm1

__all__ = ["SGHMC"]


class SGHMC(UnderdampedKernel):
    """Stochastic gradient Hamiltonian Monte Carlo [chen2014]_, for data of many rows.

    As `SGLD`, but with a momentum, which carries the chain on and allows longer steps.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`; a plate of the model draws subsamples. Without one, gradients are exact.
    step_size : float
        In units of the metric.
    friction : float
        How fast the momentum is forgotten: the more, the less the noise of the gradients widens the
        draws, and the shorter the way that the chain walks on.
    control_variates : bool
        As for `SGLD`.
    metric, adapt_mass_matrix, inverse_mass_matrix
        As for `SGLD`.

    References
    ----------
    [chen2014]_, [leimkuhler2016]_, [baker2019]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, SGHMC
    >>> def model(y):
    ...     loc = probtorch.sample("loc", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("data", len(y), subsample_size=10) as rows:
    ...         probtorch.sample("y", dist.Normal(loc, 1.0), obs=y[rows])
    >>> y = probtorch.linspace(0.0, 2.0, 1000)
    >>> mcmc = MCMC(SGHMC(model), num_samples=4000, num_chains=4, seed=1, progress_bar=False)
    >>> draws = mcmc.run(y)
    >>> bool(abs(draws.posterior["loc"].mean() - 1.0) < 0.01)
    True
    """

    step_size: float | TensorBase = tuned(default=0.5, between=(0.0, math.inf))
    friction: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))

    @property
    def first_friction(self) -> TensorBase:
        """The friction."""
        return as_tensor(self.friction)

    def rubbed(
        self, momentum: TensorBase, friction: TensorBase, noise: TensorBase
    ) -> tuple[TensorBase, TensorBase]:
        """Return momentum and friction after friction and noise."""
        rate = self.step_size * friction
        return exp(-rate) * momentum + sqrt(-expm1(-2.0 * rate)) * noise, friction

    def excess(self, mean_square: TensorBase) -> TensorBase:
        """Return the heat of the gradients' noise, relative."""
        return self.step_size * (mean_square - 1.0) / (2.0 * self.friction)
