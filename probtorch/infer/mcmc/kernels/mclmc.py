"""Microcanonical Langevin Monte Carlo: no step is rejected, and the bias that leaves is controlled.

The step size is tuned to what the energy may vary by, per step and dimension; the bias goes with
its cube root. For standard normals of 2 to 50 dimensions the default makes variances 2 % too small,
or 4 % too large with the leapfrog's steps. See microcanonical.py for the dynamics,
adjusted_mclmc.py for the sampler without bias.

References
----------
J. Robnik, U. Seljak, "Fluctuation without dissipation: microcanonical Langevin Monte Carlo", AABI
(2024). J. Robnik, R. Cohn-Gordon, U. Seljak, "Controlling the asymptotic bias of the unadjusted
(microcanonical) Hamiltonian and Langevin Monte Carlo", arXiv:2412.08876 (2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import map_tree, record, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import PhasePoint
from probtorch.infer.mcmc.kernel import setting, statistic, tuned
from probtorch.infer.mcmc.kernels.hmc import DIVERGENCE_THRESHOLD
from probtorch.infer.mcmc.kernels.microcanonical import (
    SPLITTINGS,
    checked_splitting,
    isokinetic_step,
    needs_two_dims,
    refreshed,
)
from probtorch.infer.mcmc.kernels.stepping import StepSizeKernel
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.infer.mcmc.warm_up.tuners import EnergyTuner
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import ceil, clamp, where
from probtorch.ops.control import while_loop

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["MCLMC", "MCLMCInfo", "MCLMCState"]

# Steps that one draw may take.
MOST_STEPS = 1024


@record
class MCLMCState:
    """What goes on from draw to draw.

    Parameters
    ----------
    position : Tensor, shape (dim,), float64
    direction : Tensor, shape (dim,)
        Of motion, a unit vector, whitened; zero before the first step.
    logdensity : Tensor, 0-d
    grad : Tensor, shape (dim,)
    counter : Tensor, 0-d int64
    """

    position: TensorBase
    direction: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    counter: TensorBase


@record
class MCLMCInfo:
    """What happened on the way to one draw.

    Parameters
    ----------
    energy_variance : Tensor, 0-d
        Mean square of the change of energy in a step, by the dimension; infinite if `diverging`.
    diverging : Tensor, bool
        Whether a step lost the energy; it was not taken, and the direction turned round.
    lp, step_size : Tensor, 0-d
    n_steps : Tensor, int64
        Gradients.
    """

    energy_variance: TensorBase = statistic("energy_variance")
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


_Walk: TypeAlias = tuple[TensorBase, TensorBase, PhasePoint, TensorBase, TensorBase]


class MCLMC(StepSizeKernel[MCLMCState]):
    """Microcanonical Langevin Monte Carlo, unadjusted [robnik2024]_.

    It takes far longer steps than kernels that have to be accepted, the more so in many
    dimensions, at the price of a bias that no number of draws takes away: about 2 % of variances
    with the default of `desired_energy_var`. Compare with `NUTS` or `AdjustedMCLMC` where that
    matters.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. The posterior needs two coordinates.
    step_size : float
        To begin with, or to keep; in the units of HMC's.
    desired_energy_var : float
        Variance of the energy's error, per step and dimension, that the step size is tuned to
        [robnik2025]_. A tenth of it makes steps 1.5 times smaller, and the bias of variances two
        times.
    momentum_length : float
        How far the direction is remembered, in units of the metric, as for `GHMC`.
    num_steps : int, optional
        Steps from draw to draw; by default as many as take it `momentum_length` further.
    integrator : {"mclachlan", "leapfrog"}
        What a step is made of: two gradients, or one of less use.
    adapt_step_size, adapt_mass_matrix, find_heuristic_step_size : bool
        What warm-up tunes, as for `NUTS`.
    metric, inverse_mass_matrix
        As for `NUTS`.

    References
    ----------
    [robnik2024]_, [robnik2025]_, [mclachlan1995]_.

    Examples
    --------
    >>> from probtorch.infer import MCLMC, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=5)
    >>> mcmc = MCMC(MCLMC(target), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 500 draws: x (5))
    """

    info = MCLMCInfo
    moves_particles = False

    desired_energy_var: float = setting(default=5e-4, between=(0.0, math.inf))
    momentum_length: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))
    num_steps: int | None = static(default=None)
    integrator: str = static(default="mclachlan")

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_splitting("MCLMC", self.integrator)
        steps = self.num_steps
        if steps is not None and not (isinstance(steps, int) and steps >= 1):
            raise ArgumentError(
                "MCLMC(num_steps=...)",
                expected="an int of at least 1",
                got=f"{steps!r:.60}",
                fix="leave it out",
            )

    def tuner(self) -> EnergyTuner:
        """Return what tunes the step size, as a chain begins with it."""
        return EnergyTuner.around(self.step_size, self.desired_energy_var)

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "desired_energy_var": self.desired_energy_var}

    def first_values(
        self, target: Target, state: MCLMCState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the metric to begin with.

        Raises
        ------
        ArgumentError
            If the posterior has one coordinate.
        ShapeError
            If the inverse mass matrix that was given does not fit the target.
        """
        needs_two_dims("MCLMC", target.dim)
        return super().first_values(target, state, spectrum, warming)

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> MCLMCState:
        """Return the state at a position, whose direction is to be drawn."""
        logdensity, grad = self.density(position)
        return MCLMCState(position, 0.0 * position, logdensity, grad, as_tensor(counter))

    def step(self, key: Key, state: MCLMCState) -> tuple[MCLMCState, MCLMCInfo]:
        """Return ``(state, info)`` after the steps of one draw."""
        (dim,) = state.position.shape
        steps = self._steps()

        def advance(carry: _Walk) -> _Walk:
            taken, counter, point, squares, lost = carry
            noise = normals(key, counter, dim)
            direction = refreshed(point.momentum, noise, self.step_size / self.momentum_length)
            start = PhasePoint(point.position, direction, point.logdensity, point.grad)
            end, change = isokinetic_step(
                self.density, self.metric, start, self.step_size, self.integrator
            )
            # False for nan, too.
            fine = (absolute(change) < DIVERGENCE_THRESHOLD) & (end.logdensity < np.inf)
            back = PhasePoint(start.position, -direction, start.logdensity, start.grad)
            point = map_tree(lambda new, old: where(fine, new, old), end, back)
            squares = squares + where(fine, change * change, 0.0)
            return taken + 1, counter + dim, point, squares, lost | ~fine

        start = PhasePoint(state.position, state.direction, state.logdensity, state.grad)
        none, no = wrap(np.zeros((), np.int64)), wrap(np.asarray(False))
        taken, counter, end, squares, lost = while_loop(
            lambda carry: carry[0] < steps,
            advance,
            (none, state.counter, start, 0.0 * state.logdensity, no),
        )
        variance = where(lost, np.inf, squares / (dim * cast(taken, squares.dtype)))
        gradients = taken * (len(SPLITTINGS[self.integrator]) - 1)
        new = MCLMCState(end.position, end.momentum, end.logdensity, end.grad, counter)
        return new, MCLMCInfo(variance, lost, end.logdensity, self.step_size, gradients)

    def _steps(self) -> TensorBase:
        if self.num_steps:
            return wrap(np.asarray(self.num_steps))
        # Compared as floats: the quotient may not fit an integer.
        steps = clamp(ceil(self.momentum_length / self.step_size), min=1.0, max=float(MOST_STEPS))
        return cast(steps, int64)
