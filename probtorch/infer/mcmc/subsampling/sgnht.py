"""Stochastic gradient Nose-Hoover thermostats: friction that takes up the noise of gradients.

The friction rises while the momentum is too fast and falls while it is too slow, so heat of any
constant amount is led away; what it is need not be known. The steps are those of
`UnderdampedKernel` (stochastic_gradients.py) with a change of the friction before and after the
noise.

References
----------
N. Ding, Y. Fang, R. Babbush, C. Chen, R. D. Skeel, H. Neven, "Bayesian sampling using stochastic
gradient thermostats", NIPS (2014). B. Leimkuhler, X. Shang, "Adaptive thermostats for noisy
gradient systems", SIAM Journal on Scientific Computing 38 (2016), section 4, for the splitting.
"""

from __future__ import annotations

import math

from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernel import tuned
from probtorch.infer.mcmc.subsampling.stochastic_gradients import UnderdampedKernel
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp, expm1
from probtorch.ops.reduction import sum as total

__all__ = ["SGNHT"]

# Frictions whose rate per step is below this are none, but for rounding.
NO_FRICTION = 1e-9


class SGNHT(UnderdampedKernel):
    """Stochastic gradient Nose-Hoover thermostat [ding2014]_, for data of many rows.

    As `SGHMC`, with a friction that adapts itself to the noise of the gradients, so that this does
    not widen the draws as long as it is about the same everywhere.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`; a plate of the model draws subsamples. Without one, gradients are exact.
    step_size : float
        In units of the metric.
    diffusion : float
        Noise that is added beside that of the gradients; A in the paper. It is the friction where
        gradients are exact.
    control_variates : bool
        As for `SGLD`.
    metric, adapt_mass_matrix, inverse_mass_matrix
        As for `SGLD`.

    References
    ----------
    [ding2014]_, [leimkuhler2016]_, [baker2019]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, SGNHT
    >>> def model(y):
    ...     loc = probtorch.sample("loc", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("data", len(y), subsample_size=10) as rows:
    ...         probtorch.sample("y", dist.Normal(loc, 1.0), obs=y[rows])
    >>> y = probtorch.linspace(0.0, 2.0, 1000)
    >>> mcmc = MCMC(SGNHT(model), num_samples=4000, num_chains=4, seed=1, progress_bar=False)
    >>> draws = mcmc.run(y)
    >>> bool(abs(draws.posterior["loc"].mean() - 1.0) < 0.01)
    True
    """

    step_size: float | TensorBase = tuned(default=0.3, between=(0.0, math.inf))
    diffusion: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))

    @property
    def first_friction(self) -> TensorBase:
        """The friction at rest."""
        return as_tensor(self.diffusion)

    def rubbed(
        self, momentum: TensorBase, friction: TensorBase, noise: TensorBase
    ) -> tuple[TensorBase, TensorBase]:
        """Return momentum and friction after half a change of that, noise, and the other half."""
        friction = self._adapted(friction, momentum)
        rate = self.step_size * friction
        # (1 - exp(-2 rate)) / rate, of either sign of the rate.
        some = absolute(rate) > NO_FRICTION
        spread = where(some, -expm1(-2.0 * rate) / where(some, rate, 1.0), 2.0)
        heat = sqrt(self.diffusion * self.step_size * spread)
        momentum = exp(-rate) * momentum + heat * noise
        return momentum, self._adapted(friction, momentum)

    def _adapted(self, friction: TensorBase, momentum: TensorBase) -> TensorBase:
        """The friction after half a step; the paper's thermostat has the mass of the momentum."""
        mean = total(momentum * momentum) / momentum.array.shape[0]
        return friction + 0.5 * self.step_size * (mean - 1.0)

    def excess(self, mean_square: TensorBase) -> TensorBase:
        """Return none: the friction takes it up."""
        return 0.0 * mean_square
