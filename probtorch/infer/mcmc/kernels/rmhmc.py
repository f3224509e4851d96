"""Hamiltonian Monte Carlo whose mass matrix follows the curvature of the density.

The metric is that of softabs.py, another one at each point, so the energy has position and momentum
in one term and leapfrog steps would not conserve volume. The generalised leapfrog does; but two of
its three parts are equations for what they return, solved by iteration. Where one is not solved,
or the way back from an end does not lead to the start, the proposal is rejected and reported.

All that is asked of a model is one function, `Target.curved_density`: at a point with a matrix M
it returns log density and Hessian, and the gradient with the third derivatives that M picks.

References
----------
M. Girolami, B. Calderhead, "Riemann manifold Langevin and Hamiltonian Monte Carlo methods", JRSS B
73 (2011), section 6, for the integrator. M. Betancourt, "A general metric for Riemannian manifold
Hamiltonian Monte Carlo" (2013), for the metric. E. Zappa, M. Holmes-Cerfon, J. Goodman, "Monte
Carlo on manifolds", Communications on Pure and Applied Mathematics 71 (2018), section 2.2, for the
look at the way back.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernel import setting, statistic, tuned
from probtorch.infer.mcmc.kernels.curved_kernel import CurvedKernel, CurvedState
from probtorch.infer.mcmc.kernels.curved_space import (
    CurvedPoint,
    CurvedSpace,
    generalised_leapfrog,
    norm,
)
from probtorch.infer.mcmc.kernels.hmc import DIVERGENCE_THRESHOLD, acceptance, energy_drop
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import ceil, clamp, where
from probtorch.ops.control import cond, while_loop

__all__ = ["RMHMC", "RMHMCInfo"]

# The way back from an end may miss the start by so many tolerances, for each step it takes.
RETURN = 10.0


@record
class RMHMCInfo:
    """What one trajectory came to.

    Parameters
    ----------
    accept_prob, accept_symmetric
        Of its end; see `acceptance`.
    diverging : Tensor, bool
        Whether the energy was lost.
    unsolved : Tensor, bool
        Whether it was rejected as an equation was not solved, or the way back led elsewhere.
    energy, energy_error, lp, step_size
        As for `HMC`.
    n_steps : Tensor, int64
        Evaluations of the density with its curvature, several for each step.
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    accept_symmetric: TensorBase = statistic()
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    unsolved: TensorBase = statistic("unsolved", dtype=bool, combine=np.logical_or)
    energy: TensorBase = statistic("energy")
    energy_error: TensorBase = statistic("energy_error")
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


# Steps taken, evaluations, whether all equations were solved, the energy drop, and the end.
_Way: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase, CurvedPoint]


class RMHMC(CurvedKernel):
    """Riemannian Hamiltonian Monte Carlo [girolami2011]_ with the softabs metric [betancourt2013]_.

    The mass matrix is that of the place, so one step size suits necks and wide parts alike: it
    draws from funnels and hierarchical models as they are written, where `NUTS` warns of
    divergences. A step takes second and third derivatives and some ten evaluations, each as dear
    as `dim` gradients or more: for models of up to 30 coordinates.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    step_size : float
        To begin with, or to keep.
    trajectory_length : float
        Step size times number of steps, in units of the metric. A Gaussian is at its farthest from
        the start at pi, and again uncorrelated at 3 pi / 2; funnels take as much to be walked.
    jitter : float, in [0, 1)
        Each trajectory has its own step size, uniform within this share of the adapted one.
    alpha : float
        Curvatures below ``1 / alpha``, in units of `metric`, count as that. Large values follow the
        curvature faithfully, small ones make steps safer where it changes its sign. Funnels want
        10, with many coordinates up to 100.
    adapt_step_size, adapt_mass_matrix : bool
        What warm-up tunes.
    metric : {"diag"}
        Units of the coordinates, learnt as for `NUTS`. They only say which curvatures are small.
    inverse_mass_matrix
        As for `NUTS`: variances to begin with or to keep.
    target_accept_prob : float, in (0, 1)
        Acceptance that it is tuned to.
    max_num_steps : int
        Steps that a trajectory may take.
    tolerance : float
        Equations count as solved when an iteration changes less, in units of the metric.
    max_iterations : int
        Iterations for each of them; after so many the proposal is rejected and counted, as
        ``unsolved`` in `sample_stats`. Where that is frequent, results say so.
    reversible : bool
        Whether the way back from each end is walked, too. Without, an evaluation in two is saved,
        and an error of the order of the share of ends that cannot be taken back is taken: 1 in
        1000 in a funnel.
    max_dim : int
        Coordinates up to which it runs; more take minutes for what `NUTS` does in seconds.

    Raises
    ------
    InferenceError
        In a run, if the target has more than `max_dim` coordinates.

    Notes
    -----
    That draws are right rests on steps that can be taken back. So the way back from each end that
    would be accepted is walked, too, and ends that do not lead to the start are rejected
    [zappa2018]_.

    References
    ----------
    [girolami2011]_, [betancourt2013]_, [zappa2018]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, RMHMC
    >>> def funnel():
    ...     v = probtorch.sample("v", dist.Normal(0.0, 3.0))
    ...     probtorch.sample("x", dist.Normal(0.0, (0.5 * v).exp()))
    >>> kernel = RMHMC(funnel, alpha=10.0)
    >>> mcmc = MCMC(kernel, num_samples=1000, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(4 chains x 1000 draws: v, x)
    """

    info = RMHMCInfo
    follows = "accept_symmetric"

    step_size: float | TensorBase = tuned(default=0.2, between=(0.0, math.inf))
    target_accept_prob: float = setting(default=0.9, between=(0.0, 1.0))
    trajectory_length: float | TensorBase = tuned(default=4.5, between=(0.0, math.inf))
    jitter: float = static(default=0.2)
    max_num_steps: int = static(default=100)
    tolerance: float = static(default=1e-6)
    max_iterations: int = static(default=40)
    reversible: bool = static(default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_num_steps", "max_iterations"):
            self._set(**{name: count_of(self.name, name, getattr(self, name))})
        for name, top in (("jitter", 1.0), ("tolerance", 1e-2)):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0.0 <= value < top):
                raise ArgumentError(
                    f"RMHMC({name}=...)",
                    expected=f"a number in [0, {top:g})",
                    got=f"{value!r:.60}",
                    fix="leave it out for the default",
                )
            self._set(**{name: float(value)})

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "trajectory_length": self.trajectory_length}

    def step(self, key: Key, state: CurvedState) -> tuple[CurvedState, RMHMCInfo]:
        """Return ``(state, info)`` after one trajectory, accepted at its end or not."""
        (dim,) = state.position.shape
        counter = state.counter + dim
        step_size = self.step_size * (1.0 + self.jitter * (2.0 * uniform(key, counter) - 1.0))
        # Compared as floats: the quotient may not fit an integer.
        steps = ceil(self.trajectory_length / step_size)
        steps = cast(clamp(steps, min=1.0, max=float(self.max_num_steps)), int64)

        space = CurvedSpace(self.density, self.metric.scale, as_tensor(self.alpha))
        metric = space.metric(state.hessian)
        momentum = metric.momentum(normals(key, state.counter, dim))
        start = CurvedPoint(
            state.position,
            momentum,
            state.logdensity,
            state.grad,
            state.hessian,
            metric,
            0.0 * momentum,
        )
        energy = start.energy()
        _, there, solved, drop, end = self._way(space, start, step_size, steps)
        chance, _ = acceptance(drop)
        kept = drop > -DIVERGENCE_THRESHOLD
        hopeful = solved & kept
        wanted = hopeful & (uniform(key, counter + 1) < chance)
        # The way back is walked where it decides: a rejected end needs none.
        back, returned = wrap(np.zeros((), np.int64)), solved
        if self.reversible:
            back, returned = cond(
                wanted,
                lambda: self._way_back(space, start, end, step_size, steps),
                lambda: (wrap(np.zeros((), np.int64)), solved),
            )
        accepted, unsolved = wanted & returned, ~(solved & returned)
        accept_prob, accept_symmetric = acceptance(where(unsolved, -math.inf, drop))
        new = CurvedState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            where(accepted, end.hessian, state.hessian),
            counter + 2,
        )
        error = where(accepted, -drop, 0.0)
        info = RMHMCInfo(
            accept_prob,
            accept_symmetric,
            solved & ~kept,
            unsolved,
            energy + error,
            error,
            new.logdensity,
            step_size,
            there + back,
        )
        return new, info

    def _way(
        self, space: CurvedSpace, start: CurvedPoint, step_size: TensorBase, steps: TensorBase
    ) -> _Way:
        """Walk so many steps, fewer where one fails or the energy is lost."""
        energy = start.energy()

        def going(carry: _Way) -> TensorBase:
            taken, _, solved, drop, _ = carry
            return (taken < steps) & solved & (drop > -DIVERGENCE_THRESHOLD)

        def advance(carry: _Way) -> _Way:
            taken, evaluations, _, _, point = carry
            point, solved, more = generalised_leapfrog(
                space, point, step_size, self.tolerance, self.max_iterations
            )
            drop = energy_drop(energy, point.energy())
            return taken + 1, evaluations + more, solved, drop, point

        none, yes = wrap(np.zeros((), np.int64)), wrap(np.asarray(True))
        return while_loop(going, advance, (none, none, yes, wrap(np.zeros(())), start))

    def _way_back(
        self,
        space: CurvedSpace,
        start: CurvedPoint,
        end: CurvedPoint,
        step_size: TensorBase,
        steps: TensorBase,
    ) -> tuple[TensorBase, TensorBase]:
        """Walk back from an end: evaluations, and whether that leads to the start."""
        turned = replace(end, momentum=-end.momentum, push=0.0 * end.push)
        _, evaluations, solved, _, found = self._way(space, turned, step_size, steps)
        off = norm(start.metric.whitened((found.position - start.position) / space.scale))
        return evaluations, solved & (off <= RETURN * self.tolerance * steps)
