"""Orbital Monte Carlo: all points of an orbit are candidates, none is rejected.

The orbit of a point is what leapfrog steps lead to from it, there and back: so many points in all,
among which the present one has a place drawn uniformly. The next state is drawn from the orbit's
points by their densities, of position and momentum together. Leapfrog steps keep volume and can be
taken back, so each point of the orbit would have had the same one with the same chance; that draw
is then a Gibbs step along it.

Points are drawn on the way, as in `GIST`: each next one takes the place of the one in hand with its
share of all weights so far. (The paper's orbits are periodic and return all points with weights; a
chain here returns one of each.)

References
----------
K. Neklyudov, M. Welling, "Orbital MCMC", AISTATS (2022), section 3. M. Betancourt, "A conceptual
introduction to Hamiltonian Monte Carlo", arXiv:1701.02434 (2017), appendix A.2, for orbits that are
static trajectories.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64, int64
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
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import floor, minimum, where
from probtorch.ops.comparisons import shift_left
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log, logaddexp

__all__ = ["OrbitalHMC"]

# Steps taken this way, the first counter not used, the end of the way and its drop; the log of all
# weights, the point in hand with its drop, and sums of the two acceptances.
_Orbit: TypeAlias = tuple[
    TensorBase, TensorBase, PhasePoint, TensorBase, TensorBase, PhasePoint, TensorBase, TensorBase,
    TensorBase,
]  # fmt: skip


class OrbitalHMC(TrajectoryKernel):
    """Hamiltonian orbits of a fixed number of points, one of which is drawn [neklyudov2022]_.

    As `HMC` with so many steps, but that no gradient is thrown away: where an end would be
    rejected, another point of the orbit is the draw. Orbits reach half as far on average.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy, reparam
        As for `NUTS`.
    num_points : int
        Points of an orbit, the present one included.
    adapt_step_size, adapt_mass_matrix, metric, target_accept_prob, inverse_mass_matrix
        As for `NUTS`; the acceptance is the mean over the orbit.
    find_heuristic_step_size, divergence_threshold
        As for `NUTS`.

    References
    ----------
    [neklyudov2022]_, [betancourt2017]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, OrbitalHMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(OrbitalHMC(target), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 500 draws: x (2))
    """

    num_points: int = static(default=4)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(num_points=count_of(self.name, "num_points", self.num_points, 2))

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "num_points": self.num_points}

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, HMCInfo]:
        """Return ``(state, info)`` after one orbit."""
        (dim,) = state.position.shape
        momentum = sample_momentum(key, state.counter, dim)
        start = PhasePoint(state.position, momentum, state.logdensity, state.grad)
        energy = kinetic_energy(momentum) - state.logdensity
        # Warm-up begins with short ways.
        points = minimum(
            wrap(np.asarray(self.num_points)), 1 + shift_left(wrap(np.asarray(1)), self.depth)
        )
        place = uniform(key, state.counter + dim) * cast(points, float64)
        behind = minimum(cast(floor(place), int64), points - 1)
        zero, none = wrap(np.zeros((), np.int64)), wrap(np.zeros(()))
        seen: _Orbit = (
            zero, state.counter + dim + 1, start, none, none, start, none, none, none
        )  # fmt: skip
        ahead = self._walked(key, energy, seen, points - 1 - behind, 1.0)
        _, counter, _, _, weights, held, drop, rate, symmetric = ahead
        back = self._walked(
            key,
            energy,
            (zero, counter, start, none, weights, held, drop, rate, symmetric),
            behind,
            -1.0,
        )
        taken = ahead[0] + back[0]
        _, counter, _, lost, _, held, drop, rate, symmetric = back
        kept = (ahead[3] > -self.divergence_threshold) & (lost > -self.divergence_threshold)
        new = HMCState(held.position, held.logdensity, held.grad, counter)
        others = cast(points - 1, float64)
        info = HMCInfo(
            rate / others,
            symmetric / others,
            ~kept,
            energy - drop,
            -drop,
            held.logdensity,
            self.step_size,
            taken,
            0 * taken,
            kept & ~kept,
        )
        return new, info

    def _walked(
        self, key: Key, energy: TensorBase, seen: _Orbit, steps: TensorBase, way: float
    ) -> _Orbit:
        """Take so many steps, fewer where the energy is lost, and draw among the points seen."""

        def going(carry: _Orbit) -> TensorBase:
            return (carry[0] < steps) & (carry[3] > -self.divergence_threshold)

        def advance(carry: _Orbit) -> _Orbit:
            taken, counter, point, _, weights, held, drop, rate, symmetric = carry
            point = leapfrog(self.density, self.metric, point, way * self.step_size)
            now = energy_drop(energy, kinetic_energy(point.momentum) - point.logdensity)
            weights = logaddexp(weights, now)
            wanted = log(uniform(key, counter)) < now - weights
            one, other = acceptance(now)
            held = PhasePoint(
                where(wanted, point.position, held.position),
                where(wanted, point.momentum, held.momentum),
                where(wanted, point.logdensity, held.logdensity),
                where(wanted, point.grad, held.grad),
            )
            return (
                taken + 1,
                counter + 1,
                point,
                now,
                weights,
                held,
                where(wanted, now, drop),
                rate + one,
                symmetric + other,
            )

        return while_loop(going, advance, seen)
