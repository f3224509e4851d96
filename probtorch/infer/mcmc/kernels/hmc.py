"""Hamiltonian Monte Carlo, and the state and info that all its kin share.

What a kernel is, kernel.py says; settings and warm-up that others share are in kernels.py. Read
integrators.py and metrics.py first; momenta are whitened as explained there.

References
----------
R. M. Neal, "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo (2011), chapter
5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import Density, PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import statistic, tuned
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.metrics import Metric, kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.infer.mcmc.warm_up.adaptation import DEEPEST, Warmup
from probtorch.infer.mcmc.warm_up.curvature import curvature_at_divergences
from probtorch.infer.starts.path_starts import init_to_typical_set
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, minimum, where
from probtorch.ops.comparisons import isfinite, shift_left
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.mcmc.warm_up.metric_settings import FormOfMetric, GivenMass
    from probtorch.infer.potential import Target
    from probtorch.infer.results import SampledDraws
    from probtorch.infer.starts.initialization import Strategy


__all__ = [
    "DIVERGENCE_THRESHOLD",
    "HMC",
    "HMCInfo",
    "HMCState",
    "TrajectoryKernel",
    "acceptance",
    "acceptance_of",
    "energy_drop",
    "trajectory",
]

# An energy error this large means that the integrator has left the level set [hoffman2014, section
# 3.1.1]; Stan's value.
DIVERGENCE_THRESHOLD = 1000.0
# Of a Gaussian in a metric that fits, a third of a period: the most draws for a gradient on near
# normal posteriors (benchmarks/kernels.py), and so much jitter costs none of them.
LENGTH, JITTER = 2.0, 0.2


@record
class HMCState:
    """What the next transition needs.

    Parameters
    ----------
    position : Tensor, shape (dim,), float64
    logdensity : Tensor, 0-d
    grad : Tensor, shape (dim,)
    counter : Tensor, 0-d int64
        The first random counter not used yet.
    """

    position: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    counter: TensorBase


@record
class HMCInfo:
    """What happened in one transition; all 0-d tensors.

    Parameters
    ----------
    accept_prob : Tensor
        Mean over the trajectory of min(1, exp(-energy error)); with adaptive steps the error is
        that of each step as it was tried first.
    accept_symmetric : Tensor
        Mean over the trajectory of the symmetric statistic, what the step size is tuned by; see
        `acceptance`.
    diverging : Tensor, bool
    energy : Tensor
        Hamiltonian of the new state with the momentum it was reached with.
    energy_error : Tensor
        `energy` minus that of the start of the trajectory; of a trajectory with friction the sum
        over its leapfrog steps alone.
    lp : Tensor
        Log density of the new state.
    step_size : Tensor
        What the trajectory was integrated with.
    n_steps : Tensor, int64
        Leapfrog steps, each one gradient, those tried in vain too.
    tree_depth : Tensor, int64
        Doublings; 0 for plain HMC.
    reached_max_treedepth : Tensor, bool
        Whether the trajectory was cut off before it turned.
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    accept_symmetric: TensorBase = statistic()
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    energy: TensorBase = statistic("energy")
    energy_error: TensorBase = statistic("energy_error")
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)
    tree_depth: TensorBase = statistic("tree_depth", dtype=np.int64, combine=np.maximum)
    reached_max_treedepth: TensorBase = statistic(
        "reached_max_treedepth", dtype=bool, combine=np.logical_or
    )


def energy_drop(start: TensorBase, energy: TensorBase) -> TensorBase:
    """Return ``start - energy``, and -inf where the energy is nan or infinite.

    An infinite log density counts as a divergence, too: a chain that reached a pole would never
    leave it.
    """
    return where(isfinite(energy), start - energy, -np.inf)


def acceptance(drop: TensorBase) -> tuple[TensorBase, TensorBase]:
    """Return the acceptance of a point by its `energy_drop`, and its symmetric statistic.

    The first is ``min(1, exp(drop))``; the second ``2 min(1, exp(drop)) / (1 + exp(drop))``, which
    does not change if the trajectory is walked the other way. In equilibrium both have the same
    mean; the second varies less, and a step size that is too small cannot hide behind drops of
    the energy on the way into the typical set.
    """
    return acceptance_of(drop, exp(-absolute(drop)))


def acceptance_of(drop: TensorBase, smaller: TensorBase) -> tuple[TensorBase, TensorBase]:
    """Return the `acceptance` where ``smaller = exp(-abs(drop))`` is known."""
    return where(drop < 0.0, smaller, 1.0), 2.0 * smaller / (1.0 + smaller)


def trajectory(
    density: Density,
    metric: Metric,
    start: PhasePoint,
    step_size: TensorBase,
    steps: TensorBase,
    threshold: float = DIVERGENCE_THRESHOLD,
) -> tuple[TensorBase, TensorBase, PhasePoint]:
    """Return how many leapfrog steps were taken, the energy drop at their end, and that end.

    Parameters
    ----------
    density, metric
        As for `leapfrog`.
    start : PhasePoint
    step_size, steps : Tensor, 0-d
    threshold : float
        The trajectory ends where the energy has grown by more.
    """
    energy = kinetic_energy(start.momentum) - start.logdensity

    def going(carry: tuple[TensorBase, TensorBase, PhasePoint]) -> TensorBase:
        taken, drop, _ = carry
        return (taken < steps) & (drop > -threshold)

    def advance(
        carry: tuple[TensorBase, TensorBase, PhasePoint],
    ) -> tuple[TensorBase, TensorBase, PhasePoint]:
        taken, _, point = carry
        point = leapfrog(density, metric, point, step_size)
        drop = energy_drop(energy, kinetic_energy(point.momentum) - point.logdensity)
        return taken + 1, drop, point

    zero = wrap(np.zeros((), np.int64)), wrap(np.zeros(()))
    return while_loop(going, advance, (*zero, start))


class TrajectoryKernel(SteppingKernel[HMCState]):
    """What `HMC` and `NUTS` have in common: trajectories, which may diverge.

    Parameters
    ----------
    divergence_threshold : float
        Energy error beyond which a trajectory ends and is reported as diverging.
    depth : int
        Doublings that a trajectory may take; the first segments of the warm-up allow few.
    """

    info = HMCInfo
    follows = "accept_symmetric"

    divergence_threshold: float = static(default=DIVERGENCE_THRESHOLD)
    depth: int | TensorBase = tuned(default=DEEPEST)

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCState:
        """Return the state at a position, a float64 tensor of shape (dim,)."""
        logdensity, grad = self.density(position)
        return HMCState(position, logdensity, grad, as_tensor(counter))

    def metrics_of_spectra(
        self, target: Target, spectra: Spectrum, warming: bool
    ) -> list[np.ndarray] | None:
        """Return the metrics that chains begin with, as stacked leaves."""
        plain = type(self).init, type(self).first_values
        if plain != (TrajectoryKernel.init, SteppingKernel.first_values):
            return None  # of a kernel that begins otherwise
        if self.inverse_mass_matrix is not None or not (self.adapt_mass_matrix and warming):
            return None
        return self.form_for(target).of_spectra(spectra)

    @property
    def warmup(self) -> Warmup:
        """Step size and mass matrix; the first trajectories are short."""
        return replace(super().warmup, shallow=True)

    def along(
        self,
        key: Key,
        state: HMCState,
        step_size: TensorBase,
        steps: TensorBase,
        counter: TensorBase,
    ) -> tuple[HMCState, HMCInfo]:
        """Return ``(state, info)`` after a trajectory of so many steps, accepted at its end or not.

        Parameters
        ----------
        key : Key
        state : HMCState
            The momentum is drawn by its counter.
        step_size, steps : Tensor, 0-d
        counter : Tensor, 0-d int64
            Whose number decides; the next one is the first not used.
        """
        momentum = sample_momentum(key, state.counter, state.position.array.shape[0])
        accept_draw = uniform(key, counter)
        start = PhasePoint(state.position, momentum, state.logdensity, state.grad)
        energy = kinetic_energy(momentum) - state.logdensity
        taken, drop, end = trajectory(
            self.density, self.metric, start, step_size, steps, self.divergence_threshold
        )
        accept_prob, accept_symmetric = acceptance(drop)
        diverging = ~(drop > -self.divergence_threshold)
        accepted = (accept_draw < accept_prob) & ~diverging
        new = HMCState(
            where(accepted, end.position, state.position),
            where(accepted, end.logdensity, state.logdensity),
            where(accepted, end.grad, state.grad),
            counter + 1,
        )
        error = where(accepted, -drop, 0.0)
        never = diverging & ~diverging
        info = HMCInfo(
            accept_prob,
            accept_symmetric,
            diverging,
            energy + error,
            error,
            new.logdensity,
            step_size,
            taken,
            0 * taken,
            never,
        )
        return new, info

    def of_run(
        self, target: Target, kernels: Sequence[Self], draws: SampledDraws
    ) -> Mapping[str, object]:
        """Return what the curvature is at divergent draws; see curvature.py."""
        diverging = draws.sample_stats["diverging"]
        if not diverging.any():
            return {}
        return curvature_at_divergences(target, kernels, draws.positions, diverging)


class HMC(TrajectoryKernel):
    """Hamiltonian Monte Carlo with trajectories of a fixed length.

    Parameters
    ----------
    model, potential_fn, step_size, init_strategy, reparam
        As for `NUTS`.
    trajectory_length : float, optional
        Step size times number of steps, which follows the step size, up to 1024. 2 if neither it
        nor `num_steps` is given. Pyro's and Stan's 2 pi are a full period of a Gaussian, which ends
        where it began.
    num_steps : int, optional
        A fixed number of leapfrog steps instead.
    jitter : float, in [0, 1), optional
        Each trajectory has its own step size, uniform within this share of the adapted one, and so
        its own length: no direction has a period that all lengths hit. 0.2 if neither
        `trajectory_length` nor `num_steps` is given, else 0.
    adapt_step_size, adapt_mass_matrix, metric, full_mass, target_accept_prob, inverse_mass_matrix
        As for `NUTS`.
    regularize_mass_matrix, find_heuristic_step_size, forward_mode_differentiation
        As for `NUTS`; and like there, what the other keywords ask for needs no asking here.

    Notes
    -----
    With a `trajectory_length` it is HMCDA, algorithm 5 of [hoffman2014]_: the length is fixed, and
    dual averaging finds the step size. The number of steps is their quotient, cut off, not rounded.

    References
    ----------
    [neal2011]_, [hoffman2014]_.
    """

    trajectory_length: float | TensorBase = tuned(default=LENGTH, between=(0.0, math.inf))
    num_steps: int | None = static(default=None)
    jitter: float = static(default=0.0)
    max_num_steps: int = static(default=1024)

    def __init__(
        self,
        model: Callable[..., object] | Target | None = None,
        potential_fn: Callable[..., TensorBase] | None = None,
        step_size: float = 1,
        trajectory_length: float | None = None,
        num_steps: int | None = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        full_mass: bool | None = None,
        transforms: None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: Mapping[str, object] | None = None,
        ignore_jit_warnings: bool = False,
        target_accept_prob: float = 0.8,
        init_strategy: Strategy = init_to_typical_set,
        *,
        reparam: object = None,
        metric: FormOfMetric = "auto",
        jitter: float | None = None,
        dense_mass: bool | Sequence[Sequence[str]] | None = None,
        inverse_mass_matrix: GivenMass | None = None,
        regularize_mass_matrix: bool = True,
        find_heuristic_step_size: bool | None = None,
        forward_mode_differentiation: bool = False,
    ) -> None:
        settings = locals()
        if trajectory_length is not None and num_steps is not None:
            raise ArgumentError(
                "HMC",
                expected="trajectory_length or num_steps",
                got="both",
                fix="give one; the other follows from the step size",
            )
        if num_steps is not None and not (isinstance(num_steps, int) and num_steps >= 1):
            raise ArgumentError(
                "HMC(num_steps=...)",
                expected="an int of at least 1",
                got=repr(num_steps),
                fix="try 10",
            )
        if jitter is None:
            jitter = JITTER if trajectory_length is None and num_steps is None else 0.0
        if not 0.0 <= float(jitter) < 1.0:
            raise ArgumentError(
                "HMC(jitter=...)", expected="a number in [0, 1)", got=repr(jitter), fix="try 0.1"
            )
        if trajectory_length is None:
            del settings["trajectory_length"]
        self._settle({**settings, "jitter": float(jitter)})

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        length = (
            {"num_steps": self.num_steps}
            if self.num_steps
            else {"trajectory_length": self.trajectory_length}
        )
        jitter = {"jitter": self.jitter} if self.jitter else {}
        return {**super().attrs(), **length, **jitter}

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, HMCInfo]:
        """Return ``(HMCState, HMCInfo)`` after one transition; pure in its arguments.

        Parameters
        ----------
        key : Key
        state : HMCState
        """
        dim = state.position.array.shape[0]
        counter = state.counter + dim
        jittered = 1.0 + self.jitter * (2.0 * uniform(key, counter) - 1.0)
        step_size = self.step_size * jittered
        return self.along(
            key, state, step_size, self._steps(as_tensor(self.step_size)), counter + 1
        )

    def _steps(self, step_size: TensorBase) -> TensorBase:
        if self.num_steps:
            return wrap(np.asarray(self.num_steps))
        # Compared as floats: the quotient may not fit an integer.
        steps = clamp(self.trajectory_length / step_size, min=1.0, max=float(self.max_num_steps))
        return minimum(cast(steps, int64), shift_left(wrap(np.asarray(1)), self.depth))
