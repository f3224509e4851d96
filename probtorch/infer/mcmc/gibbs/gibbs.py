"""Gibbs sampling: blocks of sites, each updated by a kernel of its own given all others.

A transition goes from block to block. One of continuous sites is moved by a step of any kernel,
whose density is that of the whole with everything else fixed; a discrete site is drawn from its
conditional distribution, element by element, or moved by Metropolis's rule where its values are too
many (discrete_updates.py). All of it is one program. gibbs_blocks.py says which coordinate belongs
to which block; mixed.py has the target in which discrete sites are coordinates.

References
----------
S. Geman, D. Geman, "Stochastic relaxation, Gibbs distributions, and the Bayesian restoration of
images", IEEE PAMI 6 (1984). L. Tierney, "Markov chains for exploring posterior distributions",
Annals of Statistics 22 (1994), for cycles of kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.gibbs.conjugate_updates import CONJUGATE
from probtorch.infer.mcmc.gibbs.discrete_updates import UPDATES, SweepState, sweep
from probtorch.infer.mcmc.gibbs.gibbs_blocks import (
    Block,
    BlockLearners,
    BlockMetrics,
    KeptMetric,
    Part,
    Updating,
    block_target,
    layout_of,
    named_blocks,
    names_at,
    part_on,
    parts_of,
    structures_of,
)
from probtorch.infer.mcmc.gibbs.given_updates import FullConditional, kept_if_impossible
from probtorch.infer.mcmc.kernel import Kernel, setting, statistic
from probtorch.infer.mcmc.kernels.conditional_prior import GaussianGiven
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.randomness import Key
from probtorch.infer.mcmc.warm_up.adaptation import DEEPEST, AcceptanceTuner, Learner, Warmup
from probtorch.infer.mixed import MixedTarget
from probtorch.infer.potential import Target
from probtorch.ops.indexing import index_put
from probtorch.ops.pieces import stack

if TYPE_CHECKING:
    from probtorch.core.typed import TensorLike
    from probtorch.infer.mcmc.kernels.hmc import HMCInfo
    from probtorch.infer.mcmc.metrics import Metric
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.results import SampledDraws

__all__ = ["Gibbs", "GibbsInfo"]


# What updates single coordinates.
EACH = UPDATES | CONJUGATE


@record
class GibbsInfo:
    """What happened in one transition, all blocks together.

    Parameters
    ----------
    accept_prob : Tensor
        Mean over the blocks that may reject; 1 if none does.
    accept : Tensor
        For each kernel whose step size is tuned, what it is tuned by; nan if it has no sites.
    diverging : Tensor, bool
        Whether any block's trajectory diverged.
    lp : Tensor
        Log density of the new position.
    step_size : Tensor
        Mean over the blocks whose step size is tuned; nan if there is none.
    n_steps : Tensor, int64
        How often the density was evaluated.
    outside : Tensor, bool
        Whether the function of a `FullConditional` drew values that have no density.
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    accept: TensorBase = statistic(like="step_size")
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    lp: TensorBase = statistic("lp")
    step_size: TensorBase = statistic("step_size")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)
    outside: TensorBase = statistic("outside_support", dtype=bool, combine=np.logical_or)


class Gibbs(Kernel[HMCState]):
    """Gibbs sampling over blocks of sites, with any kernel for each [geman1984]_, [tierney1994]_.

    It is for models with discrete sites that cannot be summed out (`NUTS` sums finite ones out by
    itself, and is the better choice where it can): counts without bound, many sites that depend on
    each other. Draws of discrete sites are whole numbers.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    blocks : dict, optional
        From a site, or a tuple of sites, to what updates them: for continuous sites a kernel of
        single points, as a class or with its settings, `EllipticalSlice` where their prior is a
        Gaussian given all else; for discrete ones "conditional" (a draw from
        the values' probabilities given all else), "modified" (another value is proposed in
        proportion to its probability) or "metropolis" (one other value is proposed); for either a
        `FullConditional`, a function of yours. "conjugate" draws each element of continuous sites
        from its conditional distribution, where that is of the family of its prior: Normal,
        MultivariateNormal, LogNormal, Gamma, Chi2, Exponential, InverseGamma, Beta or Dirichlet;
        its acceptance is 1 if it is. Blocks are updated in this order, then all sites that are in
        none.
    kernel : kernel
        What updates the continuous sites that are in no block, together.
    discrete : {"conditional", "modified", "metropolis"}
        What updates the discrete sites that are in no block, one element after the other. Those
        with more than 100 values, or infinitely many, are left to "metropolis" anyway.

    Raises
    ------
    ArgumentError
        If a block is not of this form; if its kernel moves ensembles (`AIES`, `ESS`), evaluates
        more than log density and gradient (`RMHMC`), or is not exact (`MCLMC`).
    InferenceError
        In a run, if a kernel and the sites of its block do not go together.

    Notes
    -----
    Finite sites with ``infer={"enumerate": "parallel"}``, or all in `config_enumerate`, are summed
    out, and not moved; the results' `infer_discrete` draws them.

    An element of a discrete site costs an evaluation of the whole density for each other value of
    its support. Discrete sites that depend strongly on each other, or on continuous ones, move
    slowly when they are updated one by one: look at R-hat and effective sizes.

    References
    ----------
    [geman1984]_, [tierney1994]_.

    Examples
    --------
    How many were there, if 7 of them were seen, each with probability 0.6?

    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, Gibbs
    >>> def survey(seen):
    ...     number = probtorch.sample("number", dist.Poisson(10.0))
    ...     probtorch.sample("seen", dist.Binomial(number, 0.6), obs=seen)
    >>> mcmc = MCMC(Gibbs(survey), num_samples=2000, num_chains=2, seed=1, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor(7.0))
    >>> draws.posterior["number"].dtype, bool(abs(draws.posterior["number"].mean() - 11.0) < 0.3)
    (dtype('int64'), True)
    """

    info = GibbsInfo
    moves_discrete = True

    blocks: Mapping[str | tuple[str, ...], Updating] | None = dataclasses.field(
        default=None, metadata={"outside": True}, kw_only=False
    )
    kernel: Updating = setting(default=NUTS)
    discrete: str = setting(default="conditional")

    # What a chain has, which users do not give. The layout comes first in a saved chain: the rest
    # follows from it.
    layout: TensorBase = dataclasses.field(default=cast("TensorBase", None), init=False)
    # Of shape (kernels that are tuned, 1): in a saved chain only what is as long as a position, or
    # shorter, has one dim.
    step_size: TensorBase = dataclasses.field(default=cast("TensorBase", None), init=False)
    metric: BlockMetrics = dataclasses.field(default=cast("BlockMetrics", None), init=False)
    depth: int | TensorBase = dataclasses.field(default=DEEPEST, init=False)
    kernels: tuple[Kernel, ...] = dataclasses.field(default=(), init=False)
    # What those that are tuned aim at.
    aims: tuple[float, ...] = dataclasses.field(default=(), init=False, metadata={"static": True})
    parts: tuple[Part, ...] = dataclasses.field(default=(), init=False, metadata={"static": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks is not None and not isinstance(self.blocks, Mapping):
            raise ArgumentError(
                "Gibbs(blocks=...)",
                expected="a dict from sites to what updates them",
                got=f"{self.blocks!r:.60}",
                fix='write blocks={("a", "b"): NUTS, "z": "conditional"}',
            )
        named = named_blocks(self.blocks, self.kernel, self.discrete, self.model, self.potential_fn)
        self._set(_named=named)
        sizes = [np.exp(float(t.averaging.log_step.array)) for t in self._tuners()]
        aims = tuple(float(t.target.array) for t in self._tuners())
        self._set(step_size=wrap(np.array(sizes).reshape(-1, 1)), aims=aims)

    def _blocks(self) -> tuple[Block, ...]:
        made: tuple[Block, ...] = self.__dict__["_named"]
        return made

    def _kernels(self) -> list[Kernel]:
        """The kernels of all blocks, whether they will have sites or not."""
        return [update for _, update in self._blocks() if isinstance(update, Kernel)]

    def _tuners(self) -> list[AcceptanceTuner]:
        """The tuners of those whose step size is tuned."""
        each = [kernel.warmup for kernel in self._kernels()]
        return [w.tuner for w in each if isinstance(w.tuner, AcceptanceTuner) and w.follows]

    def target(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
    ) -> Target:
        """Return the `Target` for the arguments of a run, discrete sites being coordinates."""
        if isinstance(self.model, Target):
            self._set(_target=self.model)
        if self.model is None or isinstance(self.model, Target):
            return super().target(args, kwargs, init_params)
        made = MixedTarget(self.model, tuple(args), dict(kwargs))
        # For the functions of blocks, where a saved chain is made again without a target.
        self._set(_target=made)
        return made

    def on(self, target: Target) -> Self:
        """Return the kernel with the updates that sites of the target bring, and what others read.

        A saved chain is made again before its target is known, and may go on with other arguments.
        """
        if self.layout is None:
            return self
        owners = [kernel.name for kernel in self.kernels]
        others = [
            part_on(part, target, owners[part.kernel] if owners else "")
            for part in self.parts
            if part.structure is None
        ]
        return replace(self, parts=(*structures_of(target), *others))

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        shown = [
            f"{', '.join(names) if names else 'the rest'}: "
            f"{update.attrs() if isinstance(update, Kernel) else update}"
            for names, update in self._blocks()
        ]
        return {**super().attrs(), "blocks": "; ".join(shown)}

    @property
    def posterior_alone(self) -> str:
        """The first function that draws given all of the data, "" if there is none."""
        given = [update for _, update in self._blocks() if isinstance(update, FullConditional)]
        return repr(given[0]) if given else ""

    def of_run(
        self, target: Target, kernels: Sequence[Self], draws: SampledDraws
    ) -> Mapping[str, object]:
        """Return nothing, and warn of a block whose prior was no Gaussian on the way."""
        for part in parts_of(self._blocks(), layout_of(self._blocks(), target), target):
            if part.prior is not None:
                part.prior.check_at(draws.positions)
        return {}

    # -------------------------------------------------------------------------------------- warm-up

    @property
    def warmup(self) -> Warmup:
        """What the kernels of the blocks have in theirs, side by side."""
        each = [kernel.warmup for kernel in self._kernels()]
        tuners, tuner = self._tuners(), None
        if tuners:
            sizes = np.array([[np.exp(float(t.averaging.log_step.array))] for t in tuners])
            tuner = AcceptanceTuner.around(
                sizes,
                np.array(self.aims).reshape(-1, 1),
                follows="accept",
                searches=any(w.searches for w in each),
            )
        learns = any(w.learner is not None for w in each)
        return Warmup(
            tuner=tuner,
            searches=any(w.searches for w in each),
            learner=self._learners if learns else None,
            shallow=any(w.shallow for w in each),
        )

    def _learners(self, target: Target, position: np.ndarray) -> BlockLearners:
        layout = layout_of(self._blocks(), target)
        made: list[tuple[np.ndarray, Learner]] = []
        for part, kernel in self._used(layout, target):
            learner = kernel.warmup.learner
            if part.metric < 0:
                continue
            places = np.array(part.places)
            block = block_target(target, names_at(target, part.places), position)
            if learner is None:
                made.append((places, KeptMetric()))
            else:
                made.append((places, learner(block, position[places])))
        return BlockLearners(made)

    def _used(self, layout: np.ndarray, target: Target | None) -> list[tuple[Part, Kernel]]:
        """The parts that have kernels, with these as users made them."""
        used = {int(i) for i in np.unique(layout[0])}
        kernels = [
            update
            for number, (_, update) in enumerate(self._blocks())
            if isinstance(update, Kernel) and number in used
        ]
        parts = [p for p in parts_of(self._blocks(), layout, target) if p.kernel >= 0]
        return list(zip(parts, kernels, strict=True))

    def first_values(
        self, target: Target, state: HMCState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return blocks and their kernels as a chain has them."""
        layout = layout_of(self._blocks(), target)
        position, grad = state.position.array, state.grad.array
        kernels: list[Kernel] = []
        metrics: list[Metric] = []
        for part, kernel in self._used(layout, target):
            places = np.array(part.places)
            block = block_target(target, names_at(target, part.places), position)
            own = HMCState(
                wrap(position[places]), state.logdensity, wrap(grad[places]), state.counter
            )
            if part.prior is not None:
                part.prior.check(position)
                kernels.append(_bare(kernel, part, {}))
                continue
            values = dict(kernel.first_values(block, own, None, warming))
            if part.metric >= 0:
                metrics.append(cast("Metric", values.pop("metric")))
            kernels.append(_bare(kernel, part, values))
        return self._in_chain(layout, target, kernels, metrics)

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return blocks and kernels of the kind that a saved chain has; it begins with a layout."""
        layout = leaves[0] if leaves and leaves[0].shape == (4, dim) else np.zeros((4, dim))
        kernels: list[Kernel] = []
        metrics: list[Metric] = []
        target: Target | None = self.__dict__.get("_target")
        for part, kernel in self._used(layout, target):
            if part.follows_prior:
                kernels.append(_bare(kernel, part, {}))
                continue
            values = dict(kernel.blank_values(len(part.places), leaves))
            if part.metric >= 0:
                metrics.append(cast("Metric", values.pop("metric")))
            kernels.append(_bare(kernel, part, values))
        return self._in_chain(layout, target, kernels, metrics)

    def _in_chain(
        self,
        layout: np.ndarray,
        target: Target | None,
        kernels: list[Kernel],
        metrics: list[Metric],
    ) -> Mapping[str, object]:
        return {
            "layout": wrap(np.array(layout)),
            "kernels": tuple(kernels),
            "metric": BlockMetrics(tuple(metrics)),
            "parts": parts_of(self._blocks(), layout, target),
        }

    def first_guess(self, key: Key, state: HMCState) -> tuple[TensorBase, HMCState]:
        """Return step sizes to begin with, and the state after the search for them."""
        sizes, counter = self.step_size, state.counter
        for part in self.parts:
            if part.tuned < 0 or not part.searches:
                continue
            kernel = self._kernel_of(part, state.position)
            own = kernel.init(state.position[_whole(part)], counter)
            size, own = kernel.first_guess(key, own)
            sizes, counter = index_put(sizes, (part.tuned, 0), size), own.counter
        return sizes, replace(state, counter=counter)

    def tuned_values(self, names: Sequence[str]) -> dict[str, float | list[float]]:
        """Return step sizes, one for each block that has one, in the order of the blocks."""
        used = [part.tuned for part in self.parts if part.tuned >= 0]
        return {name: getattr(self, name).array[used, 0].tolist() for name in names}

    # ---------------------------------------------------------------------------------- transitions

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCState:
        """Return the state at a position."""
        logdensity, grad = self.density(position)
        return HMCState(position, logdensity, grad, as_tensor(counter))

    def step(self, key: Key, state: HMCState) -> tuple[HMCState, GibbsInfo]:
        """Return ``(state, info)`` after an update of each block in turn."""
        position, logdensity, counter = state.position, state.logdensity, state.counter
        taken, never = wrap(np.array(0)), wrap(np.array(False))
        accepted, follows, diverging, outside = [], {}, never, never
        for part in self.parts:
            if part.update:
                zero = wrap(np.zeros(()))
                walk = sweep(
                    EACH[part.update],
                    self.density,
                    key,
                    SweepState(position, logdensity, counter, wrap(np.array(0)), zero),
                    np.array(part.places),
                    self.layout[1],
                    self.layout[2],
                    whole=part.update in UPDATES,
                )
                position, logdensity, counter = walk.position, walk.logdensity, walk.counter
                taken = taken + walk.taken
                if part.update != "conditional":
                    accepted.append(walk.accept / len(part.places))
                continue
            if part.structure is not None:
                none = wrap(np.zeros(()))
                walk = SweepState(position, logdensity, counter, wrap(np.array(0)), none)
                walk = part.structure(self.density, key, walk, part.places[0])
                position, logdensity, counter = walk.position, walk.logdensity, walk.counter
                taken = taken + walk.taken
                continue
            if part.given is not None:
                proposed, counter, inside = part.given(key, position, counter)
                found, _ = self.density(proposed)
                position, logdensity, impossible = kept_if_impossible(
                    found, logdensity, proposed, position
                )
                taken, outside = taken + 1, outside | impossible | ~inside
                continue
            kernel, here = self._kernel_of(part, position), _whole(part)
            own, info = kernel.step(key, kernel.init(position[here], counter))
            told = cast("HMCInfo", info)  # or one with some of its fields
            position = index_put(position, (here,), own.position)
            logdensity, counter = own.logdensity, own.counter
            taken = taken + told.n_steps + 1
            if hasattr(told, "accept_prob"):
                accepted.append(told.accept_prob)
            if hasattr(told, "diverging"):
                diverging = diverging | told.diverging
            if part.tuned >= 0:
                follows[part.tuned] = getattr(told, part.follows)
        # Once more: the gradient along one block changed with the others.
        logdensity, grad = self.density(position)
        new = HMCState(position, logdensity, grad, counter)
        # Kernels without sites have nothing that they could be tuned by.
        accept = wrap(np.full((len(self.aims), 1), np.nan))
        for number, value in follows.items():
            accept = index_put(accept, (number, 0), value)
        sizes = [self.step_size[number, 0] for number in follows]
        size = _mean(sizes, np.nan)
        return new, GibbsInfo(
            _mean(accepted, 1.0), accept, diverging, logdensity, size, taken + 1, outside
        )

    def _kernel_of(self, part: Part, position: TensorBase) -> Kernel:
        """The kernel of a block, on the density of the block alone."""
        kernel = self.kernels[part.kernel]
        here = _whole(part)

        def density(x: TensorBase) -> tuple[TensorBase, TensorBase]:
            value, grad = self.density(index_put(position, (here,), x))
            return value, grad[here]

        values: dict[str, object] = {"density": density}
        if part.prior is not None:
            values["gaussian"] = GaussianGiven(position, part.prior)
        if part.metric >= 0:
            values["metric"] = self.metric.parts[part.metric]
        if part.tuned >= 0:
            values[part.tunes] = self.step_size[part.tuned, 0]
        if part.shallow:
            values["depth"] = self.depth
        return replace(kernel, **values)


def _whole(part: Part) -> TensorBase:
    """The places of a part, as a tensor."""
    return wrap(np.array(part.places))


def _bare(kernel: Kernel, part: Part, values: Mapping[str, object]) -> Kernel:
    """A block's kernel without a density and without what `Gibbs` holds for it."""
    made = kernel.in_use(_nowhere, **values)
    elsewhere: dict[str, object] = {"density": None}
    if part.metric >= 0:
        elsewhere["metric"] = None
    if part.tuned >= 0:
        elsewhere[part.tunes] = None
    if part.shallow:
        elsewhere["depth"] = None
    return replace(made, **elsewhere)


def _nowhere(position: TensorBase) -> tuple[TensorBase, TensorBase]:
    raise AssertionError("a kernel in a block is given its density at each step")


def _mean(values: Sequence[TensorBase], none: float) -> TensorBase:
    return stack(list(values)).mean() if values else wrap(np.array(none))
