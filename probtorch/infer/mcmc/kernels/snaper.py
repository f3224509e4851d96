"""SNAPER-HMC: walkers whose trajectories are made for the direction that is hardest to move along.

The length makes the most of the change of the squared distance along the first principal component
of the walkers, per unit of time. The component is found on the way, by a power iteration that goes
on from move to move. ChEES (chees.py) looks at the distance in all dimensions, in which that of one
direction is lost where there are many.

References
----------
P. Sountsov, M. D. Hoffman, "Focusing on difficult directions for learning HMC trajectory lengths",
arXiv:2110.11576 (2021).
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.infer.mcmc.integrators import PhasePoint
from probtorch.infer.mcmc.kernels.shared_lengths import LengthKernel
from probtorch.infer.mcmc.kernels.walkers import evaluated
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.contraction import matmul
from probtorch.ops.reduction import sum as total

__all__ = ["SNAPERHMC", "SNAPERState"]

# The n-th move counts for the component as MEMORY / (MEMORY + n): later ones, nearer to the
# posterior, more than earlier ones.
MEMORY = 8.0


@record
class SNAPERState:
    """Where the walkers are, and the direction that is hardest for them.

    Parameters
    ----------
    position : Tensor, shape (walkers, dim), float64
    principal : Tensor, shape (dim,)
        The first principal component of whitened positions, times its variance; zero at first.
    moves : Tensor, 0-d
        Made so far.
    logdensity : Tensor, shape (walkers,)
    grad : Tensor, shape (walkers, dim)
    counter : Tensor, 0-d int64
    """

    position: TensorBase
    principal: TensorBase
    moves: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    counter: TensorBase


class SNAPERHMC(LengthKernel[SNAPERState]):
    """Hamiltonian Monte Carlo of many chains, made for their hardest direction [sountsov2021]_.

    As `ChEESHMC`, with a length that suits the widest direction of the posterior, as the metric
    leaves it, however many others there are.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each walker of each ensemble.
    walkers, step_size, trajectory_length, adapt_step_size, target_accept_prob
        As for `ChEESHMC`.
    adapt_mass_matrix, inverse_mass_matrix, find_heuristic_step_size
        As for `NUTS`; the metric is diagonal.

    References
    ----------
    [sountsov2021]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, SNAPERHMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(SNAPERHMC(target, walkers=8), num_samples=200, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(8 chains x 200 draws: x (2))
    """

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> SNAPERState:
        """Return the state at positions, shape (walkers, dim)."""
        values, grads = evaluated(self.density, position)
        unknown, none = 0.0 * grads[0], wrap(np.zeros(()))
        return SNAPERState(position, unknown, none, values, grads, as_tensor(counter))

    def slopes(
        self, state: SNAPERState, ends: PhasePoint, weights: TensorBase, time: TensorBase
    ) -> TensorBase:
        """Return how the criterion changes with the logarithm of the length, (walkers,)."""
        before = self.whitened(state.position, 0.0 * weights + 1.0)
        after = self.whitened(ends.position, weights)
        axis = self._axis(state, before)
        along = matmul(after, axis)
        gain = along * along - matmul(before, axis) ** 2
        # Of gain^2 / time: the whitened momentum is the velocity of the whitened position.
        return 4.0 * gain * along * matmul(ends.momentum, axis) * time - gain * gain

    def after(self, state: SNAPERState) -> SNAPERState:
        """Return the state after one more step of the power iteration."""
        rows = self.whitened(state.position, 0.0 * state.logdensity + 1.0)
        moments = matmul(matmul(rows, self._axis(state, rows)), rows) / self.walkers
        share = MEMORY / (MEMORY + state.moves)
        principal = state.principal + share * (moments - state.principal)
        return replace(state, principal=principal, moves=state.moves + 1.0)

    def _axis(self, state: SNAPERState, rows: TensorBase) -> TensorBase:
        """The component as a unit vector; that of the first walker while there is none."""
        axis = where(state.moves > 0.0, state.principal, rows[0])
        return axis / sqrt(total(axis * axis) + 1e-300)
