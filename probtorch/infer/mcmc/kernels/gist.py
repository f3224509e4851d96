"""Hamiltonian Monte Carlo that draws the length of each trajectory, given where it starts.

A trajectory is walked until it turns round, M steps on. Its length L is drawn from the steps up to
there: that is a draw of one more variable given position and momentum, a Gibbs step. The state at
L, its momentum turned round, is then proposed; the same walk from there turns round after M' steps,
and the ratio of the two laws of L goes into the test along with the energies. A length that could
not have been drawn from there is rejected.

Lengths are uniform from 1 to M, so that of the ratio M / M' is left, and the state at L is found on
the way, without keeping all: the i-th step is taken for it with probability 1 / i.

References
----------
N. Bou-Rabee, B. Carpenter, M. Marsden, "GIST: Gibbs self-tuning for locally adaptive Hamiltonian
Monte Carlo", arXiv:2404.15253 (2024), sections 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import static
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.kernels.hmc import (
    HMCInfo,
    HMCState,
    TrajectoryKernel,
    acceptance,
    energy_drop,
)
from probtorch.infer.mcmc.kernels.random_walk import accept_probability
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import minimum, where
from probtorch.ops.comparisons import shift_left
from probtorch.ops.control import cond, while_loop
from probtorch.ops.exponentials import log
from probtorch.ops.reduction import sum as total

__all__ = ["GIST"]

# Steps taken, the sum of momenta on the way, whether the way has ended, and the point at its end;
# then the step that is drawn, and the point there.
_Way: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, PhasePoint, TensorBase, PhasePoint]


class GIST(TrajectoryKernel):
    """Hamiltonian Monte Carlo with lengths drawn by Gibbs self-tuning [bourabee2024]_.

    Where `NUTS` builds a tree both ways, this walks on until the trajectory turns, takes a step of
    the way, and walks back from there to see how likely that was. Plain, without anything to set,
    and not cheap: gradients of the way back serve the test alone, and most of the steps before the
    turn are nearer to the start than one would choose.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy, reparam
        As for `NUTS`.
    max_num_steps : int
        Leapfrog steps that a way may take.
    adapt_step_size, adapt_mass_matrix, metric, target_accept_prob, inverse_mass_matrix
        As for `NUTS`; the acceptance that is aimed at is that by the energies.
    find_heuristic_step_size, divergence_threshold
        As for `NUTS`.

    References
    ----------
    [bourabee2024]_.

    Examples
    --------
    >>> from probtorch.infer import GIST, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(GIST(target), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 500 draws: x (2))
    """

    max_num_steps: int = static(default=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(max_num_steps=count_of(self.name, "max_num_steps", self.max_num_steps))

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, HMCInfo]:
        """Return ``(state, info)`` after one trajectory."""
        (dim,) = state.position.shape
        momentum = sample_momentum(key, state.counter + 1, dim)
        first = state.counter + 1 + dim
        start = PhasePoint(state.position, momentum, state.logdensity, state.grad)
        energy = kinetic_energy(momentum) - state.logdensity
        taken, length, end = self._way(start, lambda i: uniform(key, first + i))
        drop = energy_drop(energy, kinetic_energy(end.momentum) - end.logdensity)
        kept = drop > -self.divergence_threshold

        def way_back() -> tuple[TensorBase, TensorBase]:
            turned = PhasePoint(end.position, -end.momentum, end.logdensity, end.grad)
            back, _, _ = self._way(turned, lambda i: wrap(np.ones(())))
            ratio = log(cast(taken, float64)) - log(cast(back, float64))
            return back, where(length <= back, ratio, -math.inf)

        # A lost trajectory is rejected, whatever its way back.
        nothing = wrap(np.zeros((), np.int64)), wrap(np.asarray(-math.inf))
        back, ratio = cond(kept, way_back, lambda: nothing)
        accept_prob = accept_probability(drop + ratio)
        _, accept_symmetric = acceptance(drop)
        accepted = uniform(key, state.counter) < accept_prob
        new = HMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            first + taken,
        )
        error = where(accepted, -drop, 0.0)
        most = self._most
        info = HMCInfo(
            accept_prob,
            accept_symmetric,
            ~kept,
            energy + error,
            error,
            new.logdensity,
            self.step_size,
            taken + back,
            0 * taken,
            taken >= most,
        )
        return new, info

    @property
    def _most(self) -> TensorBase:
        most = wrap(np.asarray(self.max_num_steps))
        return minimum(most, shift_left(wrap(np.asarray(2)), self.depth))

    def _way(
        self, start: PhasePoint, drawn: Callable[[TensorBase], TensorBase]
    ) -> tuple[TensorBase, TensorBase, PhasePoint]:
        """Walk until the trajectory turns, or loses its energy.

        Returns how many steps that took, which was drawn by the numbers of `drawn`, and the point
        there.
        """
        energy, most = kinetic_energy(start.momentum) - start.logdensity, self._most

        def going(carry: _Way) -> TensorBase:
            return (carry[0] < most) & ~carry[2]

        def advance(carry: _Way) -> _Way:
            taken, way, _, point, length, held = carry
            before = point.momentum
            point = leapfrog(self.density, self.metric, point, self.step_size)
            # The mean of the two momenta stands for the one between, so that no product is needed.
            way = way + before + point.momentum
            drop = energy_drop(energy, kinetic_energy(point.momentum) - point.logdensity)
            ended = (total(way * point.momentum) < 0.0) | ~(drop > -self.divergence_threshold)
            taken = taken + 1
            wanted = drawn(taken - 1) * cast(taken, float64) < 1.0
            held = PhasePoint(
                where(wanted, point.position, held.position),
                where(wanted, point.momentum, held.momentum),
                where(wanted, point.logdensity, held.logdensity),
                where(wanted, point.grad, held.grad),
            )
            return taken, way, ended, point, where(wanted, taken, length), held

        zero = wrap(np.zeros((), np.int64))
        begin = zero, 0.0 * start.momentum, wrap(np.asarray(False)), start
        taken, _, _, _, length, held = while_loop(going, advance, (*begin, zero, start))
        return taken, length, held
