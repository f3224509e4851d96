"""Microcanonical Hamiltonian Monte Carlo, accepted or rejected: no bias.

A trajectory of the microcanonical dynamics (microcanonical.py) begins in a direction drawn anew and
has a random length, as in dynamic_hmc.py; its end is accepted by the error of the energy, which has
the change of volume in it.

References
----------
J. Robnik, R. Cohn-Gordon, U. Seljak, "Metropolis adjusted microcanonical Hamiltonian Monte Carlo",
arXiv:2503.01707 (2025).
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
from probtorch.core.tree import record, static
from probtorch.infer.mcmc.integrators import PhasePoint
from probtorch.infer.mcmc.kernel import setting, statistic, tuned
from probtorch.infer.mcmc.kernels.hmc import DIVERGENCE_THRESHOLD, HMCState, acceptance, energy_drop
from probtorch.infer.mcmc.kernels.microcanonical import (
    SPLITTINGS,
    checked_splitting,
    isokinetic_step,
    needs_two_dims,
    refreshed,
)
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import ceil, clamp, where
from probtorch.ops.control import while_loop

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["AdjustedMCLMC", "AdjustedMCLMCInfo"]

# Steps that a trajectory may take.
MOST_STEPS = 1024


@record
class AdjustedMCLMCInfo:
    """What one trajectory came to; as in `HMCInfo`."""

    accept_prob: TensorBase = statistic("acceptance_rate")
    accept_symmetric: TensorBase = statistic()
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    energy_error: TensorBase = statistic("energy_error")
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


_Walk: TypeAlias = tuple[TensorBase, PhasePoint, TensorBase]


class AdjustedMCLMC(SteppingKernel[HMCState]):
    """Microcanonical Hamiltonian Monte Carlo with accept and reject [robnik2025b]_.

    As `DynamicHMC`, with a momentum that never changes its length: steep places cannot throw it
    far.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy, reparam
        As for `NUTS`. The posterior needs two coordinates.
    trajectory_length : float
        The mean, in the units of `DynamicHMC`; lengths are uniform from 0 to twice as much.
    integrator : {"mclachlan", "leapfrog"}
        What a step is made of: two gradients, or one of less use.
    target_accept_prob : float, in (0, 1)
        Acceptance that the step size is tuned to.
    adapt_step_size, adapt_mass_matrix, find_heuristic_step_size : bool
        What warm-up tunes, as for `NUTS`.
    metric, inverse_mass_matrix
        As for `NUTS`.

    References
    ----------
    [robnik2025b]_, [robnik2023]_, [mclachlan1995]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, AdjustedMCLMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=5)
    >>> kernel = AdjustedMCLMC(target)
    >>> MCMC(kernel, num_samples=500, num_chains=4, seed=1, progress_bar=False).run()
    Draws(4 chains x 500 draws: x (5))
    """

    info = AdjustedMCLMCInfo
    follows = "accept_symmetric"

    target_accept_prob: float = setting(default=0.9, between=(0.0, 1.0))
    trajectory_length: float | TensorBase = tuned(default=0.5 * math.pi, between=(0.0, math.inf))
    integrator: str = static(default="mclachlan")

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_splitting("AdjustedMCLMC", self.integrator)

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "trajectory_length": self.trajectory_length}

    def first_values(
        self, target: Target, state: HMCState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the metric to begin with.

        Raises
        ------
        ArgumentError
            If the posterior has one coordinate.
        ShapeError
            If the inverse mass matrix that was given does not fit the target.
        """
        needs_two_dims("AdjustedMCLMC", target.dim)
        return super().first_values(target, state, spectrum, warming)

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCState:
        """Return the state at a position."""
        logdensity, grad = self.density(position)
        return HMCState(position, logdensity, grad, as_tensor(counter))

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, AdjustedMCLMCInfo]:
        """Return ``(state, info)`` after one trajectory."""
        (dim,) = state.position.shape
        counter = state.counter + dim
        length = 2.0 * self.trajectory_length * uniform(key, counter)
        # Compared as floats: the quotient may not fit an integer.
        steps = cast(clamp(ceil(length / self.step_size), min=1.0, max=float(MOST_STEPS)), int64)

        def going(carry: _Walk) -> TensorBase:
            taken, _, drop = carry
            return (taken < steps) & (drop > -DIVERGENCE_THRESHOLD)

        def advance(carry: _Walk) -> _Walk:
            taken, point, drop = carry
            end, change = isokinetic_step(
                self.density, self.metric, point, self.step_size, self.integrator
            )
            return taken + 1, end, energy_drop(drop, change)

        noise = normals(key, state.counter, dim)
        direction = refreshed(0.0 * noise, noise, wrap(np.ones(())))
        start = PhasePoint(state.position, direction, state.logdensity, state.grad)
        none = wrap(np.zeros((), np.int64))
        taken, end, drop = while_loop(going, advance, (none, start, wrap(np.zeros(()))))
        accept_prob, accept_symmetric = acceptance(drop)
        diverging = ~(drop > -DIVERGENCE_THRESHOLD)
        accepted = (uniform(key, counter + 1) < accept_prob) & ~diverging
        new = HMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            counter + 2,
        )
        info = AdjustedMCLMCInfo(
            accept_prob,
            accept_symmetric,
            diverging,
            where(accepted, -drop, 0.0),
            new.logdensity,
            self.step_size,
            taken * (len(SPLITTINGS[self.integrator]) - 1),
        )
        return new, info
