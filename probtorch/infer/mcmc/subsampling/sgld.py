"""Stochastic gradient Langevin dynamics: a step up the gradient of some rows, and noise.

A step of size h is ``q + h^2/2 F F^T g + h F z`` with the metric's factor F, as of `MALA` (mala.py)
without acceptance. With exact gradients the variances of a Gaussian are too large by ``h^2 / 4``.

References
----------
M. Welling, Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML (2011).
S. J. Vollmer, K. C. Zygalakis, Y. W. Teh, "Exploration of the (non-)asymptotic bias and variance of
stochastic gradient Langevin dynamics", JMLR 17 (2016), for steps of constant size.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.infer.mcmc.subsampling.stochastic_gradients import (
    StochasticGradientKernel,
    StochasticInfo,
)
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.reduction import sum as total

__all__ = ["SGLD"]


class SGLD(StochasticGradientKernel[PointState]):
    """Stochastic gradient Langevin dynamics [welling2011]_, for data of many rows.

    A draw looks at as many rows as the model's plate says (``subsample_size``). Steps have a
    constant size [vollmer2016]_ and nothing is rejected, so variances are too large, by about the
    mean of ``excess_variance`` in `sample_stats`; a warning says so beyond a tenth.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`; a plate of the model draws subsamples. Without one, gradients are exact.
    step_size : float
        Scale of the noise, in units of the metric.
    control_variates : bool
        Whether gradients are taken against those of the same rows near the mode, which takes two
        evaluations a draw and most of the noise away where the posterior is narrow [baker2019]_.
    metric : {"auto", "dense", "diag"}
        What precedes the gradient, and is the covariance of the noise; "auto" is dense in up to
        2000 dimensions.
    adapt_mass_matrix : bool
        Whether warm-up learns the metric from draws. By default it is that of the curvature near
        the mode: draws that forget slowly would make it too narrow.
    inverse_mass_matrix
        As for `NUTS`.

    References
    ----------
    [welling2011]_, [vollmer2016]_, [baker2019]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, SGLD
    >>> def model(y):
    ...     loc = probtorch.sample("loc", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("data", len(y), subsample_size=10) as rows:
    ...         probtorch.sample("y", dist.Normal(loc, 1.0), obs=y[rows])
    >>> y = probtorch.linspace(0.0, 2.0, 1000)
    >>> mcmc = MCMC(SGLD(model), num_samples=10000, num_chains=4, seed=1, progress_bar=False)
    >>> draws = mcmc.run(y)
    >>> bool(abs(draws.posterior["loc"].mean() - 1.0) < 0.01)
    True
    """

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> PointState:
        """Return the state at a position."""
        value, _ = self.density_of(position, wrap(np.arange(float(self.batch))))
        return PointState(position, value, as_tensor(counter))

    def step(self, key: Key, state: PointState) -> tuple[PointState, StochasticInfo]:
        """Return ``(state, info)`` after one step."""
        (dim,) = state.position.shape
        value, grad, counter = self.estimate(key, state.counter, state.position)
        square = self.step_size * self.step_size
        kick = 0.5 * square * self.metric.force(grad) + self.step_size * normals(key, counter, dim)
        position = state.position + self.metric.velocity(kick)
        well = isfinite(value + total(position))
        new = PointState(
            where(well, position, state.position),
            where(well, value, state.logdensity),
            counter + dim,
        )
        excess = where(well, 0.25 * square * self.mean_square(grad), 0.0)
        return new, StochasticInfo(
            new.logdensity, excess, ~well, as_tensor(self.step_size), self.evaluations
        )
