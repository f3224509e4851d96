"""ChEES-HMC: many chains that learn together how long their trajectories should be.

As long as makes the most of the change of the squared distance from the centre (the "change in the
estimator of the expected square"): trajectories that turn round, or end on the other side at the
same distance, are worth nothing by it. Distances are those of the metric's coordinates. The rest is
in shared_lengths.py.

References
----------
M. D. Hoffman, A. Radul, P. Sountsov, "An adaptive-MCMC scheme for setting trajectory lengths in
Hamiltonian Monte Carlo", AISTATS (2021).
"""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mcmc.integrators import PhasePoint
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.kernels.shared_lengths import LengthKernel
from probtorch.infer.mcmc.kernels.walkers import evaluated
from probtorch.ops.reduction import sum as total

__all__ = ["ChEESHMC"]


class ChEESHMC(LengthKernel[HMCState]):
    """Hamiltonian Monte Carlo of many chains that learn the trajectories' length [hoffman2021]_.

    A `NUTS` for many chains: no search for the length in each draw, and no walker waits for
    another's tree. Each walker is a chain of the result: ``num_chains`` ensembles make ``num_chains
    * walkers`` chains.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each walker of each ensemble.
    walkers : int
        Chains that learn together.
    step_size : float
        To begin with, or to keep.
    trajectory_length : float
        The mean, to begin with, or to keep where the step size is; lengths are uniform from 0 to
        twice as much.
    adapt_step_size : bool
        Whether warm-up tunes step size and length.
    target_accept_prob : float, in (0, 1)
        Harmonic mean of the walkers' acceptances that the step size is tuned to.
    adapt_mass_matrix, inverse_mass_matrix, find_heuristic_step_size
        As for `NUTS`; the metric is diagonal.

    References
    ----------
    [hoffman2021]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, ChEESHMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(ChEESHMC(target, walkers=8), num_samples=200, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(8 chains x 200 draws: x (2))
    """

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCState:
        """Return the state at positions, shape (walkers, dim)."""
        return HMCState(position, *evaluated(self.density, position), as_tensor(counter))

    def slopes(
        self, state: HMCState, ends: PhasePoint, weights: TensorBase, time: TensorBase
    ) -> TensorBase:
        """Return how the criterion changes with the logarithm of the length, (walkers,)."""
        before = self.whitened(state.position, 0.0 * weights + 1.0)
        after = self.whitened(ends.position, weights)
        gain = total(after * after, 1) - total(before * before, 1)
        # The whitened momentum is the velocity of the whitened position.
        return gain * total(after * ends.momentum, 1) * time
