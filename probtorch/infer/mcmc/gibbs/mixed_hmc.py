"""Mixed Hamiltonian Monte Carlo: discrete values change on the way along a trajectory.

Each discrete element has a kinetic energy of its own, exponential with mean 1. A trajectory of
leapfrog steps is interrupted at even intervals; there an element, drawn at random, is offered
another value, and takes it if its energy pays for it: for a rise of minus the log density, less the
log ratio of the chances to propose. What it pays is what the density loses, so the total energy
changes by the errors of the leapfrog steps alone, and by these the whole trajectory is accepted or
rejected. A path and its reverse have the same chances: intervals are even, elements are drawn
independently, and an offer that is refused changes nothing.

References
----------
G. Zhou, "Mixed Hamiltonian Monte Carlo for mixed discrete and continuous variables", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import static
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.mcmc.gibbs.discrete_updates import PROPOSALS, SweepState
from probtorch.infer.mcmc.gibbs.gibbs import Gibbs, GibbsInfo
from probtorch.infer.mcmc.gibbs.gibbs_blocks import Part
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.kernels.hmc import HMC, HMCState, acceptance, energy_drop
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import clamp, floor, where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log
from probtorch.ops.indexing import index_put

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["MixedHMC"]

# Updates done, position, momentum, log density, gradient, energies of discrete elements, counter,
# sum of the drops of the energy, evaluations.
Course = tuple[
    TensorBase,
    TensorBase,
    TensorBase,
    TensorBase,
    TensorBase,
    TensorBase,
    TensorBase,
    TensorBase,
    TensorBase,
]


class MixedHMC(Gibbs):
    """Hamiltonian Monte Carlo with discrete values that change along the trajectory [zhou2020]_.

    Where discrete and continuous sites depend on each other, it moves both together, at lower cost
    than `Gibbs`, which takes turns. Draws of discrete sites are whole numbers.

    Parameters
    ----------
    inner_kernel : HMC
        With the model; its length of trajectories, its step size and its metric are used.
    num_discrete_updates : int, optional
        How often a discrete element is offered another value in a trajectory; by default as often
        as there are elements.
    random_walk : bool
        Offer one of the other values, each as likely as any.
    modified : bool
        Offer another value in proportion to its probability [liu1996]_. By default any value is
        drawn from these, the present one, too, and always taken. Elements with more than 100 values
        are left to the random walk anyway.

    Raises
    ------
    ArgumentError
        If the inner kernel is not `HMC`, or both options are asked for.

    References
    ----------
    [zhou2020]_, [liu1996]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import HMC, MCMC, MixedHMC
    >>> def model(y):
    ...     c = probtorch.sample("c", dist.Categorical(probtorch.tensor([0.15, 0.3, 0.55])))
    ...     x = probtorch.sample("x", dist.Normal(0.5 * c - 0.5, 0.5))
    ...     probtorch.sample("y", dist.Normal(x, 1.0), obs=y)
    >>> kernel = MixedHMC(HMC(model, trajectory_length=1.2), num_discrete_updates=4)
    >>> mcmc = MCMC(kernel, num_samples=2000, num_chains=2, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor(0.5))
    >>> bool(abs((draws.posterior["c"] == 2).mean() - 0.616) < 0.05)
    True
    """

    updates: int = static(default=0)

    def __init__(
        self,
        inner_kernel: HMC,
        *,
        num_discrete_updates: int | None = None,
        random_walk: bool = False,
        modified: bool = False,
    ) -> None:
        if type(inner_kernel) is not HMC:
            raise ArgumentError(
                "MixedHMC(inner_kernel)",
                expected="HMC(model), whose trajectories have a fixed length",
                got=f"{inner_kernel!r:.60}",
                fix="wrap the model: MixedHMC(HMC(model, trajectory_length=1.2)); around NUTS "
                "there is DiscreteHMCGibbs",
            )
        if random_walk and modified:
            raise ArgumentError(
                "MixedHMC(random_walk, modified)",
                expected="one of them",
                got="both",
                fix="modified=True looks at all values, random_walk=True at one",
            )
        number = num_discrete_updates
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            number = 0
        if number is not None and number < 1:
            raise ArgumentError(
                "MixedHMC(num_discrete_updates=...)",
                expected="an int of at least 1",
                got=repr(num_discrete_updates),
                fix="leave it out for one per discrete element",
            )
        self._set(
            model=inner_kernel.model,
            potential_fn=inner_kernel.potential_fn,
            init_strategy=inner_kernel.init_strategy,
            reparam=inner_kernel.reparam,
            blocks=None,
            kernel=inner_kernel,
            discrete="metropolis" if random_walk else "modified" if modified else "conditional",
            updates=number or 0,
        )
        self.__post_init__()

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "num_discrete_updates": self.updates}

    def first_values(
        self, target: Target, state: HMCState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return what a chain has.

        Raises
        ------
        InferenceError
            If there is no continuous site.
        """
        if structures := [name for name, s in target.slots.items() if s.is_structure]:
            raise InferenceError(
                f"MixedHMC: site {structures[0]!r} of {target.name}",
                expected="numbers, whole or real",
                got="a site that brings an update of its own",
                fix="use Gibbs(model)",
            )
        if all(slot.levels is not None for slot in target.slots.values()):
            raise InferenceError(
                f"MixedHMC: {target.name} has discrete sites only",
                expected="at least one continuous site",
                got=f"{', '.join(map(repr, target.slots))}",
                fix="use Gibbs(model)",
            )
        return super().first_values(target, state, spectrum, warming)

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, GibbsInfo]:
        """Return ``(state, info)`` after one trajectory."""
        (moving,) = (part for part in self.parts if part.kernel >= 0)
        discrete = [part for part in self.parts if part.update]
        here = wrap(np.array(moving.places))
        own = cast("HMC", self._kernel_of(moving, state.position))
        (dim,), count = here.array.shape, sum(len(part.places) for part in discrete)
        offers = (self.updates or count) if count else 0

        momentum, counter = sample_momentum(key, state.counter, dim), state.counter + dim
        jittered = 1.0 + own.jitter * (2.0 * uniform(key, counter) - 1.0)
        step_size, accept_draw = own.step_size * jittered, uniform(key, counter + 1)
        counter = counter + 2
        energies = -log(uniform(key, counter + wrap(np.arange(state.position.array.shape[0]))))
        counter = counter + state.position.array.shape[0]
        # As many in each interval, before the first offer and after the last one, too.
        steps = clamp(floor(own._steps(as_tensor(own.step_size)) / (offers + 1.0) + 0.5), min=1.0)
        # Whole from here on, as the density takes them.
        position = state.position
        for part in discrete:
            places = wrap(np.array(part.places))
            whole = floor(position[places] + 0.5)
            whole = clamp(whole, min=self.layout[1][places], max=self.layout[2][places])
            position = index_put(position, (places,), whole)

        def moved(course: Course) -> Course:
            """Take the leapfrog steps of an interval."""
            done, position, momentum, logdensity, grad, energies, counter, drop, taken = course
            kernel = cast("HMC", self._kernel_of(moving, position))
            start = PhasePoint(position[here], momentum, logdensity, grad[here])
            energy = kinetic_energy(momentum) - logdensity

            def going(carry: tuple[TensorBase, TensorBase, PhasePoint]) -> TensorBase:
                return (carry[0] < steps) & (carry[1] > -own.divergence_threshold)

            def advance(
                carry: tuple[TensorBase, TensorBase, PhasePoint],
            ) -> tuple[TensorBase, TensorBase, PhasePoint]:
                point = leapfrog(kernel.density, kernel.metric, carry[2], step_size)
                change = energy_drop(energy, kinetic_energy(point.momentum) - point.logdensity)
                return carry[0] + 1, change, point

            zero = wrap(np.zeros(())), wrap(np.zeros(()))
            walked, change, end = while_loop(going, advance, (*zero, start))
            return (
                done,
                index_put(position, (here,), end.position),
                end.momentum,
                end.logdensity,
                index_put(grad, (here,), end.grad),
                energies,
                counter,
                drop + change,
                taken + walked.long(),
            )

        def offered(course: Course) -> Course:
            """Offer one discrete element another value."""
            done, position, momentum, logdensity, _, energies, counter, drop, taken = course
            walk = SweepState(position, logdensity, counter + 1, taken, 0.0 * drop)
            chosen = uniform(key, counter)
            before = 0
            for part in discrete:
                walk, energies = self._offer(key, walk, energies, part, before, chosen, count)
                before += len(part.places)
            logdensity, grad = self.density(walk.position)
            return (
                done + 1,
                walk.position,
                momentum,
                logdensity,
                grad,
                energies,
                walk.counter,
                drop,
                walk.taken + 1,
            )

        def fine(course: Course) -> TensorBase:
            return (course[0] < offers) & (course[7] > -own.divergence_threshold)

        begin: Course = (
            wrap(np.array(0)),
            position,
            momentum,
            state.logdensity,
            state.grad,
            energies,
            counter,
            wrap(np.zeros(())),
            wrap(np.array(0)),
        )
        course = while_loop(fine, lambda course: offered(moved(course)), begin) if count else begin
        _, end, _, logdensity, grad, _, counter, drop, taken = moved(course)
        accept_prob, accept_symmetric = acceptance(drop)
        diverging = ~(drop > -own.divergence_threshold)
        accepted = (accept_draw < accept_prob) & ~diverging
        new = HMCState(
            where(accepted, end, position),
            where(accepted, logdensity, state.logdensity),
            where(accepted, grad, state.grad),
            counter,
        )
        accept = wrap(np.array(self.aims).reshape(-1, 1))
        if moving.tuned >= 0:
            accept = index_put(accept, (moving.tuned, 0), accept_symmetric)
        never = wrap(np.array(False))
        info = GibbsInfo(accept_prob, accept, diverging, new.logdensity, step_size, taken, never)
        return new, info

    def _offer(
        self,
        key: Key,
        walk: SweepState,
        energies: TensorBase,
        part: Part,
        first: int,
        chosen: TensorBase,
        count: int,
    ) -> tuple[SweepState, TensorBase]:
        """Offer another value to the chosen element, if it is one of a part."""
        number = floor(count * chosen) - first
        mine = (number >= 0) & (number < len(part.places))

        def offer(
            carry: tuple[TensorBase, SweepState, TensorBase],
        ) -> tuple[TensorBase, SweepState, TensorBase]:
            _, walk, energies = carry
            at = wrap(np.array(part.places))[number.long()]
            found = PROPOSALS[part.update](
                self.density, key, walk, at, self.layout[1][at], self.layout[2][at]
            )
            paid = energies[at] + found.log_ratio
            taken = paid > 0.0
            after = SweepState(
                index_put(walk.position, (at,), where(taken, found.value, walk.position[at])),
                where(taken, found.logdensity, walk.logdensity),
                found.counter,
                found.taken,
                walk.accept,
            )
            rest = index_put(energies, (at,), where(taken, paid, energies[at]))
            return wrap(np.array(1)), after, rest

        none = wrap(np.array(0))
        _, walk, energies = while_loop(
            lambda carry: (carry[0] < 1) & mine, offer, (none, walk, energies)
        )
        return walk, energies
