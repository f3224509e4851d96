"""The no-U-turn sampler: multinomial, with Stan's criterion and extra checks, not recursive.

A trajectory doubles, forwards or backwards in time, until it turns back on itself. Recursion would
build each doubling as a balanced binary tree and check every subtree for turning. Here the leaves
of a doubling are walked once, in order, and the subtrees that end at a leaf are checked when it is
reached. Leaf k ends one subtree of 2^j leaves for each j up to the number of trailing ones in the
binary form of k. What the checks need of earlier leaves is kept in O(depth) rows: the subtree of
level j that ends at k begins at ``k + 1 - 2^j``, an even leaf, kept in row "number of ones of that
leaf"; no later leaf before k has that row. Its right half, the subtree of level j - 1, begins a row
further. The last leaf of its left half, an odd one, is in row j - 1 of a second table: so many
trailing ones it has. Of a subtree of two leaves nothing needs to be kept: the first one is where
the step began.

The draw is chosen as in Stan: among the points of one doubling with probability proportional to
their weight exp(-energy), here as each leaf arrives (the same law as Stan's subtree by subtree);
between the old trajectory and the new doubling with probability min(1, ratio of weights), which
favours points far away.

What a step is, an integrator says (integrators.py); it may refuse one that cannot be taken back,
and then the trajectory ends as it does where it turns.

Momenta are whitened (metrics.py), so the criterion is a plain dot product.

References
----------
M. D. Hoffman, A. Gelman, "The No-U-Turn Sampler", JMLR 15 (2014).
M. Betancourt, "A conceptual introduction to Hamiltonian Monte Carlo", arXiv:1701.02434 (2017),
appendix A. Stan's base_nuts.hpp for the checks across two neighbouring subtrees. D. Phan, N.
Pradhan, M. Jankowiak, arXiv:1912.11554 (2019), for the iterative walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import FixedSteps, Integrator, PhasePoint
from probtorch.infer.mcmc.kernel import setting
from probtorch.infer.mcmc.kernels.adaptive_steps import (
    ENERGY_TOLERANCE,
    MAX_HALVINGS,
    AdaptiveSteps,
)
from probtorch.infer.mcmc.kernels.hmc import (
    HMCInfo,
    HMCState,
    TrajectoryKernel,
    acceptance,
    acceptance_of,
    energy_drop,
)
from probtorch.infer.mcmc.kernels.stepping import ACCEPTANCE
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, bits, uniform
from probtorch.infer.mcmc.warm_up.adaptation import AcceptanceTuner
from probtorch.infer.mcmc.warm_up.easing import Easing
from probtorch.infer.starts.path_starts import init_to_typical_set
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import neg, where
from probtorch.ops.comparisons import shift_left
from probtorch.ops.control import cond, while_loop
from probtorch.ops.exponentials import exp
from probtorch.ops.indexing import index_put
from probtorch.ops.reduction import sum as total
from probtorch.ops.rooms import room

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.metric_settings import FormOfMetric, GivenMass
    from probtorch.infer.potential import Target
    from probtorch.infer.starts.initialization import Strategy


__all__ = ["NUTS"]

DEEPEST_TREE = 20
# Weights are relative to the point where the trajectory began, until an energy is so many nats
# below it: the exponential overflows at 709, and there are up to 2**20 leaves.
FAR = 500.0
MOST_HALVINGS = 20
SHORTEST_STEPS = f"leave it at {MAX_HALVINGS}, which allows steps of 1/{2**MAX_HALVINGS}"


T = TypeVar("T")


@record
class End:
    """An end of the trajectory, with the force there: steps go on from it.

    Without the gradient, which only proposals need.
    """

    position: TensorBase
    momentum: TensorBase
    logdensity: TensorBase
    force: TensorBase

    def point(self) -> PhasePoint:
        """Return where a step begins; its gradient stands for none."""
        return PhasePoint(self.position, self.momentum, self.logdensity, self.force, self.force)


@record
class Proposal:
    """The point that would be the draw if the trajectory ended here."""

    position: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    energy: TensorBase


@record
class Checkpoints:
    """Rows by which subtrees are checked, one for each; see the module docstring.

    `momenta`: at the first leaf of a subtree, ``momenta[0]``, and at the last leaf of its left
    half, ``momenta[1]``. `before`: the sum of all momenta before the first leaf.
    """

    momenta: TensorBase
    before: TensorBase


# What is carried from seam to seam: the level of the subtree, whether one turned.
Seams: TypeAlias = tuple[TensorBase, TensorBase]


@record
class Doubling:
    """The new half of the trajectory while its leaves are walked.

    `weight` is the sum of exp(energy drop - `shift`) over its leaves; see `_weighed`.
    """

    leaf: TensorBase
    gradients: TensorBase
    end: End
    momentum_sum: TensorBase
    proposal: Proposal
    shift: TensorBase
    weight: TensorBase
    accept_sum: TensorBase
    symmetric_sum: TensorBase
    turning: TensorBase
    diverging: TensorBase
    rows: Checkpoints


@record
class Trajectory:
    """All that is known of the trajectory between doublings.

    `weight` is the sum of exp(energy drop - `shift`) over its points, of which the first drops by
    0.
    """

    left: End
    right: End
    momentum_sum: TensorBase
    proposal: Proposal
    shift: TensorBase
    weight: TensorBase
    depth: TensorBase
    leaves: TensorBase
    gradients: TensorBase
    accept_sum: TensorBase
    symmetric_sum: TensorBase
    turning: TensorBase
    diverging: TensorBase
    counter: TensorBase
    rows: Checkpoints


class NUTS(TrajectoryKernel):
    """The no-U-turn sampler: Hamiltonian Monte Carlo that finds how far to go by itself.

    Parameters
    ----------
    model : callable or Target, optional
        A model with sample statements.
    potential_fn : callable, optional
        Instead of a model: minus a log density, of a vector or a dict of unconstrained values; then
        `run` needs `init_params`.
    step_size : float
        To begin with, or to keep.
    adapt_step_size, adapt_mass_matrix : bool
        What warm-up tunes.
    metric : str or sequence of sequences of str
        What the mass matrix looks like: "diag", variances; "low_rank", variances and a few
        directions; "dense", all covariances; blocks of sites, ``[("a", "b"), ("c",)]``, each dense,
        with variances elsewhere; or "auto", low rank where the draws of the warm-up say that it
        pays, else diagonal. It is made of draws and gradients (see estimates.py).
    full_mass : bool or sequence, optional
        Pyro's spelling: True for "dense", False for "diag", or blocks of sites; `dense_mass` is
        NumPyro's.
    target_accept_prob : float, in (0, 1), optional
        Acceptance that the step size is tuned to; higher is slower, with fewer divergences. Left
        out it is 0.8, and 0.7 in chains whose trajectories have 3 steps and lose no energy (see
        warm_up/easing.py).
    max_tree_depth : int, in [1, 20]
        A trajectory has at most 2**max_tree_depth - 1 steps.
    init_strategy : callable
        Where chains start; see `init_to_typical_set` and its kin. Stan's rule is `init_to_uniform`.
    reparam : "auto", dict or callable, optional
        The coordinates of the model's sites: a dict from names to reparameterisations, or a
        function of a site, as for `handlers.reparam`. "auto" chooses between centred and
        non-centred for each hierarchical site by a short run, and says what it chose; see
        `choose_reparam`.
    inverse_mass_matrix : array_like, shape (dim,) or (dim, dim), or dict, optional
        Variances, or covariance, of the unconstrained parameters, to begin with or to keep; or by
        site, ``{"site": variances of its shape}``, 1 for sites that are left out, and
        ``{("a", "b"): covariance}`` for dense blocks of sites.
    find_heuristic_step_size : bool, optional
        Whether to look for a step size before adapting it; by default whenever it is adapted.
    adaptive_steps : bool
        Whether each step of a trajectory is halved as often as its energy error asks for (WALNUTS)
        [bourabee2025]_: for densities with narrow places (a funnel's neck, a latent Gaussian
        process for a scale), where a fixed step size diverges. Where no step needs it, it costs
        nothing. `step_size` is then that of the undivided step, and `target_accept_prob` the
        acceptance it would have.
    energy_tolerance : float
        With `adaptive_steps`: greatest difference between two energies within a step, in nats.
    max_halvings : int, in [1, 20]
        With `adaptive_steps`: a step that needs more is a divergence.
    use_multinomial_sampling : bool
        Only True: slice sampling, the older scheme, is less efficient.
    max_plate_nesting, jit_compile, jit_options, ignore_jit_warnings
        Accepted so that scripts run unchanged, and not needed here: plates place themselves, and
        everything is compiled.
    forward_mode_differentiation, regularize_mass_matrix
        The same: estimates from draws and gradients need no shrinking.
    transforms
        Only None.

    Notes
    -----
    Random numbers of one transition: the momentum, one number for all directions, then one per
    doubling and one per leaf.

    References
    ----------
    [hoffman2014]_, [betancourt2017]_; see nuts.py for the algorithm, adaptive_steps.py for steps.

    Examples
    --------
    >>> from probtorch.infer import MCMC, NUTS
    >>> kernel = NUTS(potential_fn=lambda q: 0.5 * (q["x"] * q["x"]).sum(), full_mass=True)
    >>> mcmc = MCMC(kernel, num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run(init_params={"x": [0.0, 0.0]})
    Draws(4 chains x 500 draws: x (2))
    >>> mcmc.get_samples()["x"].shape
    Size([2000, 2])
    """

    max_tree_depth: int = static(default=10)
    integrator: Integrator = FixedSteps()
    adaptive_steps: bool = setting(default=False)
    # Whether the acceptance may be eased: nobody said what it should be.
    eases: bool = setting(default=False)
    energy_tolerance: float = setting(default=ENERGY_TOLERANCE, between=(0.0, math.inf))
    max_halvings: int = setting(default=MAX_HALVINGS)

    def __init__(
        self,
        model: Callable[..., object] | Target | None = None,
        potential_fn: Callable[..., TensorBase] | None = None,
        step_size: float = 1,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        full_mass: bool | None = None,
        use_multinomial_sampling: bool = True,
        transforms: None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: Mapping[str, object] | None = None,
        ignore_jit_warnings: bool = False,
        target_accept_prob: float | None = None,
        max_tree_depth: int = 10,
        init_strategy: Strategy = init_to_typical_set,
        *,
        reparam: object = None,
        metric: FormOfMetric = "auto",
        dense_mass: bool | Sequence[Sequence[str]] | None = None,
        inverse_mass_matrix: GivenMass | None = None,
        regularize_mass_matrix: bool = True,
        find_heuristic_step_size: bool | None = None,
        forward_mode_differentiation: bool = False,
        adaptive_steps: bool = False,
        energy_tolerance: float = ENERGY_TOLERANCE,
        max_halvings: int = MAX_HALVINGS,
    ) -> None:
        settings = locals()
        if not use_multinomial_sampling:
            raise ArgumentError(
                "NUTS(use_multinomial_sampling=False)",
                expected="True",
                got="False",
                fix="leave the argument out",
            )
        for name, most, fix in (
            ("max_tree_depth", DEEPEST_TREE, "leave it at 10, which allows 1023 steps"),
            ("max_halvings", MOST_HALVINGS, SHORTEST_STEPS),
        ):
            value = settings[name]
            if not (isinstance(value, int) and 1 <= value <= most):
                raise ArgumentError(
                    f"NUTS({name}=...)",
                    expected=f"an int from 1 to {most}",
                    got=repr(value),
                    fix=fix,
                )
        settings["adaptive_steps"] = bool(adaptive_steps)
        if target_accept_prob is None:
            # Of the first try of a step that may be halved there is nothing to be gained.
            settings |= {"target_accept_prob": ACCEPTANCE, "eases": not settings["adaptive_steps"]}
        self._settle(settings)
        if self.adaptive_steps:
            self._set(integrator=AdaptiveSteps(self.energy_tolerance, self.max_halvings))

    def tuner(self) -> AcceptanceTuner:
        """Return what tunes the step size, as a chain begins with it."""
        tuner = super().tuner()
        assert isinstance(tuner, AcceptanceTuner)  # what any kernel has that follows an acceptance
        return replace(tuner, easing=Easing.begun()) if self.eases else tuner

    def earlier(self) -> Self | None:
        """Return it as it was before acceptance was eased, with an acceptance of 0.8 throughout."""
        return replace(self, eases=False) if self.eases else None

    def mistaken(self) -> Mapping[str, tuple[Self, str]]:
        """Return it with an acceptance that is eased, where one was given."""
        if self.eases or self.adaptive_steps:
            return {}
        fix = "leave target_accept_prob out, as when the state was saved, or begin anew"
        built = f"NUTS without target_accept_prob, where {ACCEPTANCE:g} may be eased"
        return {built: (replace(self, eases=True), fix)}

    def stated(self) -> str:
        """Return it with the acceptance that it was given."""
        return f"NUTS(target_accept_prob={self.target_accept_prob:g}), which keeps to it"

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        attrs = {**super().attrs(), "max_tree_depth": self.max_tree_depth}
        if self.adaptive_steps:
            attrs |= {
                "adaptive_steps": True,
                "energy_tolerance": self.energy_tolerance,
                "max_halvings": self.max_halvings,
            }
        return attrs

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, HMCInfo]:
        """Return ``(HMCState, HMCInfo)`` after one transition; pure in its arguments.

        Parameters
        ----------
        key : Key
        state : HMCState
        """
        dim = state.position.array.shape[0]
        momentum = sample_momentum(key, state.counter, dim)
        directions = bits(key, state.counter + dim)
        energy = kinetic_energy(momentum) - state.logdensity
        force = self.metric.force(state.grad)
        start = End(state.position, momentum, state.logdensity, force)
        trajectory = Trajectory(
            left=start,
            right=start,
            momentum_sum=momentum,
            proposal=Proposal(state.position, state.logdensity, state.grad, energy),
            shift=_float(0.0),
            weight=_float(1.0),
            depth=_int(0),
            leaves=_int(0),
            gradients=_int(0),
            accept_sum=_float(0.0),
            symmetric_sum=_float(0.0),
            turning=_false(),
            diverging=_false(),
            counter=state.counter + (dim + 1),
            rows=self._rows(state.position),
        )
        trajectory = while_loop(
            lambda t: (
                (t.depth < self.max_tree_depth) & (t.depth < self.depth) & ~t.turning & ~t.diverging
            ),
            lambda t: self._double(key, directions, energy, t),
            trajectory,
        )
        return self._finish(trajectory, energy)

    def _finish(self, t: Trajectory, energy: TensorBase) -> tuple[HMCState, HMCInfo]:
        chosen = t.proposal
        info = HMCInfo(
            accept_prob=t.accept_sum / t.leaves.double(),
            accept_symmetric=t.symmetric_sum / t.leaves.double(),
            diverging=t.diverging,
            energy=chosen.energy,
            energy_error=chosen.energy - energy,
            lp=chosen.logdensity,
            step_size=self.step_size,
            n_steps=t.gradients,
            tree_depth=t.depth,
            reached_max_treedepth=~t.turning & ~t.diverging,
        )
        return HMCState(chosen.position, chosen.logdensity, chosen.grad, t.counter), info

    # --------------------------------------------------------------------------------- one doubling

    def _double(
        self, key: Key, directions: TensorBase, energy: TensorBase, t: Trajectory
    ) -> Trajectory:
        """Return the trajectory twice as long, or cut off where the new half turns or diverges."""
        forward = (directions >> t.depth & 1) == 1
        step_size = where(forward, self.step_size, neg(self.step_size))
        inner = _either(forward, t.right, t.left)
        leaves = shift_left(_int(1), t.depth)
        new = self._walk(key, energy, step_size, leaves, inner, t)

        complete = ~new.turning & ~new.diverging
        old = cond(
            new.shift > t.shift,
            lambda weight, change: weight * exp(change),
            lambda weight, change: weight,
            *(t.weight, t.shift - new.shift),
        )
        rejected = ~complete | (uniform(key, t.counter) * old >= new.weight)
        momentum_sum = t.momentum_sum + new.momentum_sum

        # Turning of the whole, and across the seam: each half with the nearest point of the other
        # one.
        first = new.rows.momenta[0, 0]
        outer = where(forward, t.left.momentum, t.right.momentum)
        turning = (
            _turns(momentum_sum, outer, new.end.momentum)
            | _turns(t.momentum_sum + first, outer, first)
            | _turns(new.momentum_sum + inner.momentum, inner.momentum, new.end.momentum)
        )
        return Trajectory(
            left=_either(forward, t.left, new.end),
            right=_either(~forward, t.right, new.end),
            momentum_sum=momentum_sum,
            proposal=_either(rejected, t.proposal, new.proposal),
            shift=new.shift,
            weight=old + where(complete, new.weight, 0.0),
            depth=t.depth + complete.long(),
            leaves=t.leaves + new.leaf,
            gradients=t.gradients + new.gradients,
            accept_sum=t.accept_sum + new.accept_sum,
            symmetric_sum=t.symmetric_sum + new.symmetric_sum,
            turning=new.turning | (complete & turning),
            diverging=new.diverging,
            counter=t.counter + 1 + new.leaf,
            rows=new.rows,
        )

    def _walk(
        self,
        key: Key,
        energy: TensorBase,
        step_size: TensorBase,
        leaves: TensorBase,
        start: End,
        t: Trajectory,
    ) -> Doubling:
        """Return the `Doubling` after up to `leaves` steps from an end of the trajectory `t`."""
        dim, counter = start.position.array.shape[0], t.counter + 1
        zeros = wrap(np.broadcast_to(0.0, (dim,)))
        doubling = Doubling(
            leaf=_int(0),
            gradients=_int(0),
            end=start,
            momentum_sum=zeros,
            # The first leaf takes its place.
            proposal=Proposal(zeros, _float(0.0), zeros, _float(0.0)),
            shift=t.shift,
            weight=_float(0.0),
            accept_sum=_float(0.0),
            symmetric_sum=_float(0.0),
            turning=_false(),
            diverging=_false(),
            rows=t.rows,
        )
        return while_loop(
            lambda s: (s.leaf < leaves) & ~s.turning & ~s.diverging,
            lambda s: self._leaf(key, counter, energy, step_size, s),
            doubling,
        )

    def _rows(self, position: TensorBase) -> Checkpoints:
        # A row for each number of ones in an even leaf's number; one more is written where no sum
        # is to be kept. None is read before a leaf of the same doubling has written it.
        more, dtype = self.max_tree_depth + 1, position.array.dtype
        return Checkpoints(
            *(
                room(position, (*rows, *position.array.shape), dtype, i)
                for i, rows in enumerate(((2, more), (more,)))
            )
        )

    # ------------------------------------------------------------------------------------- one leaf

    def _leaf(
        self, key: Key, counter: TensorBase, energy: TensorBase, step_size: TensorBase, s: Doubling
    ) -> Doubling:
        """Return the doubling with one more leaf."""
        step = self.integrator(self.density, self.metric, s.end.point(), step_size)
        end = step.point
        assert end.force is not None  # it began with one
        drop = energy_drop(energy, step.energy)
        diverging = ~step.accurate | ~(drop > -self.divergence_threshold)

        shift, weight, own, accept, symmetric = cond(
            (s.shift > 0.0) | (drop > FAR), _weighed_afar, _weighed, drop, s.shift, s.weight
        )
        if step.tried_energy is not step.energy:
            accept, symmetric = acceptance(energy_drop(energy, step.tried_energy))
        passed = uniform(key, counter + s.leaf) * weight >= own
        here = Proposal(end.position, end.logdensity, end.grad, step.energy)

        ones, trailing, odd = _ones(s.leaf), _trailing_ones(s.leaf), s.leaf & 1
        begins = where(odd == 0, ones, self.max_tree_depth)
        momentum_sum = s.momentum_sum + end.momentum
        rows = Checkpoints(
            index_put(s.rows.momenta, (odd, where(odd == 0, ones, trailing)), end.momentum),
            index_put(s.rows.before, (begins,), s.momentum_sum),
        )
        turning = self._turning(ones, trailing, s.end.momentum, end.momentum, momentum_sum, rows)
        return Doubling(
            leaf=s.leaf + 1,
            gradients=s.gradients + step.gradients,
            end=End(end.position, end.momentum, end.logdensity, end.force),
            momentum_sum=momentum_sum,
            proposal=_either(passed, s.proposal, here),
            shift=shift,
            weight=weight,
            accept_sum=s.accept_sum + accept,
            symmetric_sum=s.symmetric_sum + symmetric,
            # Where there is no way back the trajectory ends, as it does where it turns.
            turning=turning | ~step.reversible,
            diverging=diverging,
            rows=rows,
        )

    def _turning(
        self,
        ones: TensorBase,
        trailing: TensorBase,
        last: TensorBase,
        momentum: TensorBase,
        momentum_sum: TensorBase,
        rows: Checkpoints,
    ) -> TensorBase:
        """Whether a subtree that ends at the present leaf turns, as a whole or across its seam.

        `last` is the momentum one leaf before.
        """

        def check(state: Seams) -> Seams:
            level, _ = state
            first, middle, before = rows.momenta[0], rows.momenta[1], rows.before
            row = ones - level
            left_first, left_before, left_last = first[row], before[row], middle[level - 1]
            right_first, right_before = first[row + 1], before[row + 1]
            whole = _turns(momentum_sum - left_before, left_first, momentum)
            left = _turns(right_before - left_before + right_first, left_first, right_first)
            right = _turns(momentum_sum - right_before + left_last, left_last, momentum)
            return level + 1, whole | left | right

        # A subtree of two leaves is its own seam: one check says all three.
        pair = (trailing > 0) & _turns(last + momentum, last, momentum)
        *_, turning = while_loop(
            lambda state: (state[0] <= trailing) & ~state[1], check, (_int(2), pair)
        )
        return turning


# What is carried of weights from leaf to leaf, and is known of one: `shift` and `weight` of a
# `Doubling`, the leaf's own share of the latter, and its `acceptance`.
Weighed: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]


def _weighed(drop: TensorBase, shift: TensorBase, weight: TensorBase) -> Weighed:
    """Add a leaf where `shift` is 0: one exponential is all that weights and acceptance need.

    Energies that rise by 750 are weights of 0, which nobody draws.
    """
    smaller = exp(-absolute(drop))
    accept, symmetric = acceptance_of(drop, smaller)
    own = where(drop < 0.0, smaller, 1.0 / smaller)
    return shift, weight + own, own, accept, symmetric


def _weighed_afar(drop: TensorBase, shift: TensorBase, weight: TensorBase) -> Weighed:
    """Add a leaf where energies have fallen so far that weights are taken of the lowest one."""
    lowest = where(drop > shift, drop, shift)
    own = exp(drop - lowest)
    return lowest, weight * exp(shift - lowest) + own, own, *acceptance(drop)


def _turns(momentum_sum: TensorBase, p: TensorBase, q: TensorBase) -> TensorBase:
    """Whether a sum of momenta from p to q points away from p or q [betancourt2017, app. A.4.2]."""
    return (total(momentum_sum * p) <= 0.0) | (total(momentum_sum * q) <= 0.0)


def _either(condition: TensorBase, first: T, second: T) -> T:
    """Choose between two records by a branch: compiled, it is only `second` that is ever copied."""
    return cond(condition, lambda x, _: x, lambda _, y: y, first, second)


def _ones(k: TensorBase) -> TensorBase:
    """Number of ones in the binary form of k < 2^31, by sums of neighbouring fields, ever wider."""
    k = k - (k >> 1 & 0x55555555)
    k = (k & 0x33333333) + (k >> 2 & 0x33333333)
    k = (k + (k >> 4)) & 0x0F0F0F0F
    k = k + (k >> 8)
    return (k + (k >> 16)) & 0x3F


def _trailing_ones(k: TensorBase) -> TensorBase:
    return _ones(k ^ (k + 1)) - 1


def _float(x: float) -> TensorBase:
    return wrap(np.asarray(x, np.float64))


def _int(x: int) -> TensorBase:
    return wrap(np.asarray(x, np.int64))


def _false() -> TensorBase:
    return wrap(np.asarray(False))
