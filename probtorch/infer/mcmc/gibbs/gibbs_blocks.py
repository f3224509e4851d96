"""What blocks a Gibbs sampler has: from what users say to coordinates, and what each one learns.

A user's block is some sites and what updates them. In a program it is a `Part`: places in the
position, and either the name of an update of single coordinates or the number of a kernel. Which
coordinate belongs to which block is written down in an array, the layout, so that a saved chain
knows it without its model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from probtorch.core.arguments import choice_of
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.levels import Structure, StructureUpdate
from probtorch.infer.mcmc.gibbs.conjugate_updates import FAMILIES, family_of, offset_of
from probtorch.infer.mcmc.gibbs.discrete_updates import UPDATES
from probtorch.infer.mcmc.gibbs.given_updates import FullConditional, GivenUpdate
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.conditional_prior import ConditionalPrior
from probtorch.infer.mcmc.metrics import Metric
from probtorch.infer.mcmc.warm_up.adaptation import AcceptanceTuner, Learner
from probtorch.infer.mixed import MixedTarget
from probtorch.infer.names import unknown_name
from probtorch.infer.potential import DensityTarget, Target
from probtorch.infer.slots import Slot
from probtorch.ops.indexing import index_put

if TYPE_CHECKING:
    from probtorch.effects.site import Site

__all__ = [
    "Block",
    "BlockLearners",
    "BlockMetrics",
    "KeptMetric",
    "Part",
    "block_target",
    "layout_of",
    "named_blocks",
    "names_at",
    "part_on",
    "parts_of",
    "structures_of",
]

# With more values than this, one is proposed instead of looking at all.
MANY_VALUES = 100

# What may tune a kernel whose step size `Gibbs` keeps with those of the others.
TUNERS = (AcceptanceTuner, NoneType)

# What may update a block: a kernel, with its settings or as a class, or the name of an update.
Updating: TypeAlias = "Kernel | Callable[..., Kernel] | FullConditional | str"
# Names of sites, None for those that no other block has; and what updates them.
Update: TypeAlias = "Kernel | FullConditional | str"
Block: TypeAlias = "tuple[tuple[str, ...] | None, Update]"


@dataclasses.dataclass(frozen=True)
class Part:
    """A block in a program.

    Parameters
    ----------
    places : tuple of int
        Coordinates, at least one.
    update : str
        A key of `UPDATES` or `CONJUGATE`, or "" for a kernel or a given function.
    given : GivenUpdate or None
        The latter.
    structure : StructureUpdate or None
        What a site brings that nothing else can move.
    kernel : int
        Number of its kernel.
    tuned : int
        Its number among those whose step size is tuned, -1 if it is not.
    tunes, follows : str
        The fields of its kernel and of the info for that.
    metric : int
        Number of its metric, -1 if it has none.
    searches, shallow : bool
        As for `Warmup`.
    follows_prior : bool
        As for `Kernel`.
    prior : ConditionalPrior or None
        What is lent to a kernel that does; a saved chain gets it with its target.
    """

    places: tuple[int, ...]
    update: str = ""
    given: GivenUpdate | None = None
    structure: StructureUpdate | None = None
    kernel: int = -1
    tuned: int = -1
    tunes: str = ""
    follows: str = ""
    metric: int = -1
    searches: bool = False
    shallow: bool = False
    follows_prior: bool = False
    prior: ConditionalPrior | None = None


@record
class BlockMetrics:
    """The metrics of the blocks that have one."""

    parts: tuple[Metric, ...]

    def log_determinant(self) -> float:
        """Return that of all together: blocks are taken for independent."""
        return sum(metric.log_determinant() for metric in self.parts)


class BlockLearners:
    """What warm-up learns for each block that has a metric; a `Learner`.

    Parameters
    ----------
    learners : sequence of (places, Learner)
    """

    learns = "metric"

    def __init__(self, learners: Sequence[tuple[np.ndarray, Learner]]) -> None:
        self._all = list(learners)

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down what was drawn."""
        for places, learner in self._all:
            learner.add(positions[:, places], None if grads is None else grads[:, places])

    def end_segment(self, *, switch: bool) -> None:
        """Let what was added count."""
        for _, learner in self._all:
            learner.end_segment(switch=switch)

    def learnt(self, now: BlockMetrics, *, choose: bool, last: bool = False) -> BlockMetrics:
        """Return the metrics to go on with, given the present ones."""
        new = tuple(
            learner.learnt(metric, choose=choose, last=last)
            for (_, learner), metric in zip(self._all, now.parts, strict=True)
        )
        same = all(a is b for a, b in zip(new, now.parts, strict=True))
        return now if same else BlockMetrics(new)

    def shift(self) -> float | None:
        """Return how far two windows are apart, in the block where that is most."""
        found = [s for _, learner in self._all if (s := learner.shift()) is not None]
        return max(found, default=None)

    def forget(self) -> None:
        """Begin anew."""
        for _, learner in self._all:
            learner.forget()

    def snapshot(self) -> Tree:
        """Return all of it, as a tree for `probtorch.save`."""
        return [learner.snapshot() for _, learner in self._all]

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        for (_, learner), one in zip(self._all, saved, strict=True):
            learner.restore(one)


class KeptMetric:
    """The `Learner` of a metric that is not learnt."""

    learns = "metric"

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down nothing."""

    def end_segment(self, *, switch: bool) -> None:
        """Do nothing."""

    def learnt(self, now: object, *, choose: bool, last: bool = False) -> object:
        """Return the present one."""
        return now

    def shift(self) -> float | None:
        """Return None: windows are not compared."""
        return None

    def forget(self) -> None:
        """Do nothing."""

    def snapshot(self) -> None:
        """Return None."""
        return None

    def restore(self, saved: object) -> None:
        """Do nothing."""


# -------------------------------------------------------------------------------- what users say


def named_blocks(
    blocks: Mapping[str | tuple[str, ...], Updating] | None,
    rest: Updating,
    discrete: str,
    model: object,
    potential_fn: object,
) -> tuple[Block, ...]:
    """Return what updates which sites: the user's blocks, then three for all others.

    Those are discrete sites, discrete ones with more values than can be looked at, and continuous
    ones.

    Raises
    ------
    ArgumentError
        If a block names no site or one that another has, or has no kernel and no known update, or
        one for ensembles or whole models.
    """
    made: list[Block] = []
    seen: set[str] = set()
    for key, updating in (blocks or {}).items():
        names = (key,) if isinstance(key, str) else tuple(key)
        twice = [name for name in names if name in seen]
        if not names or twice:
            raise ArgumentError(
                "Gibbs(blocks=...)",
                expected="each site in one block, and blocks with at least one site",
                got=f"{twice[0]!r} in two blocks" if twice else "a block without sites",
                fix='write blocks={("a", "b"): NUTS, "c": Slice}',
            )
        seen |= set(names)
        made.append((names, _kernel_or_update("blocks", updating, model, potential_fn)))
    choice_of("Gibbs", "discrete", discrete, UPDATES)
    last = _kernel_or_update("kernel", rest, model, potential_fn)
    return (*made, (None, discrete), (None, "metropolis"), (None, last))


def _kernel_or_update(what: str, updating: Updating, model: object, potential_fn: object) -> Update:
    """A kernel with its settings, or the name of an update."""
    if isinstance(updating, str) and updating in (*UPDATES, "conjugate") and what == "blocks":
        return updating
    if isinstance(updating, FullConditional) and what == "blocks":
        return updating
    made: object = updating
    if not isinstance(updating, (Kernel, str)) and callable(updating):
        if model is None:
            made = cast("Callable[..., object]", updating)(potential_fn=potential_fn)
        else:
            made = updating(model)
    if isinstance(made, Kernel):
        _check_block_kernel(what, made)
        return made
    raise ArgumentError(
        f"Gibbs({what}=...)",
        expected="a kernel of single points, as a class or with its settings, such as NUTS or "
        "NUTS(model, target_accept_prob=0.9)"
        + (f", or one of {', '.join(map(repr, (*UPDATES, 'conjugate')))}" * (what == "blocks")),
        got=f"{updating!r:.60}",
        fix='write blocks={("a", "b"): NUTS, "z": "conditional"}',
    )


def _check_block_kernel(what: str, kernel: Kernel) -> None:
    """Refuse a kernel that cannot move a part of one point given the rest of it."""
    name, fix = kernel.name, "use NUTS, Slice or EllipticalSlice"
    if kernel.members:
        # Walkers would have to be draws given where the other blocks are, which is elsewhere after
        # each step; of a chain there is one.
        got = f"{name}, which moves {kernel.members} points of one density; a block has one point"
        fix = f"{fix}; or {name}(model), which moves all sites together"
    elif kernel.moves_discrete:
        got = f"{name}, which has blocks itself"
        fix = "write all blocks in one dict"
    elif not kernel.takes_any_density():
        got = f"{name}, which evaluates more of a model than log density and gradient"
    elif not (kernel.moves_particles and isinstance(kernel.warmup.tuner, TUNERS)):
        got = f"{name}, whose steps alone do not"
    else:
        return
    raise ArgumentError(
        f"Gibbs({what}=...)",
        expected="a kernel of single points that leaves any log density as it is, at each step",
        got=got,
        fix=fix,
    )


# ---------------------------------------------------------------------------- from sites to places


def layout_of(blocks: Sequence[Block], target: Target) -> np.ndarray:
    """Return for each coordinate its block, the least and the largest number it may have, and the
    family of a conjugate update.

    Parameters
    ----------
    blocks : sequence of Block
        See `named_blocks`.
    target : Target

    Returns
    -------
    ndarray, shape (4, dim)
        Bounds are infinite where there is none; families are -1 where there is none. Conjugate
        coordinates have the offset from their family in place of the least number.

    Raises
    ------
    ModelError
        If a block names a site that is not there.
    InferenceError
        If a discrete site has a kernel for continuous ones, or the other way round; if all values
        of a site are asked for that are too many, or infinite.
    """
    layout = np.empty((4, target.dim))
    layout[1:] = [[-np.inf], [np.inf], [-1.0]]
    owner = {}
    for number, (names, _) in enumerate(blocks):
        for name in names or ():
            if name not in target.slots:
                raise unknown_name(
                    f"Gibbs(blocks=...): {target.name} has no latent site {name!r}",
                    name,
                    target.slots,
                )
            owner[name] = number
    for name, slot in target.slots.items():
        here = slice(slot.start, slot.stop)
        levels = slot.levels
        if isinstance(levels, Structure):
            if name in owner:
                raise InferenceError(
                    f"Gibbs(blocks=...): what updates site {name!r}",
                    expected="no block: the site brings an update of its own",
                    got=repr(blocks[owner[name]][1]),
                    fix="leave it out of the blocks",
                    at=slot.location or None,
                )
            layout[0, here] = len(blocks)  # of no block
            continue
        many = levels is not None and not levels.highest - levels.lowest < MANY_VALUES
        rest = len(blocks) - 1 if levels is None else len(blocks) - (2 if many else 3)
        number = owner.get(name, rest)
        layout[0, here] = number
        update = blocks[number][1]
        if levels is not None:
            layout[1, here], layout[2, here] = levels.lowest, levels.highest
        if isinstance(update, FullConditional):
            if not isinstance(target, MixedTarget):
                raise InferenceError(
                    "Gibbs(blocks=...) with a FullConditional",
                    expected="a model with sample statements",
                    got=repr(target),
                    fix="give the model itself: a density knows no values of sites",
                )
            continue
        if update == "conjugate" and levels is None:
            site = _site(target, name)
            layout[3, here] = list(FAMILIES).index(family_of(site))
            layout[1, here] = np.ravel(offset_of(site, slot.free_shape))
            continue
        if isinstance(update, str) != (levels is not None) or update == "conjugate":
            raise InferenceError(
                f"Gibbs(blocks=...): what updates site {name!r}",
                expected="a kernel for a continuous site"
                if levels is None
                else f"one of {', '.join(map(repr, UPDATES))} for a discrete site",
                got=repr(update),
                fix="put it into a block of its own kind, or leave it out",
                at=slot.location or None,
            )
        if levels is None:
            continue
        if update != "metropolis" and not np.isfinite(levels.highest):
            raise InferenceError(
                f"Gibbs(blocks=...): what updates site {name!r}",
                expected="a finite support, whose values can all be looked at",
                got=f"{update!r} for a site whose support has no end",
                fix=f'write blocks={{{name!r}: "metropolis"}}, or leave it out',
                at=slot.location or None,
            )
    return layout


def _site(target: Target, name: str) -> Site:
    """A continuous site, for its conditional distribution."""
    if not isinstance(target, MixedTarget):
        raise InferenceError(
            "Gibbs(blocks=...) with a conjugate update",
            expected="a model with sample statements",
            got=repr(target),
            fix="give the model itself: a density knows no priors of sites",
        )
    return target.trace_at(wrap(np.zeros(target.dim))).nodes[name]


def parts_of(
    blocks: Sequence[Block], layout: np.ndarray, target: Target | None
) -> tuple[Part, ...]:
    """Return the blocks that have coordinates, in order; without a target `Gibbs.on` ends them."""
    parts = structures_of(target)
    kernels = tuned = metrics = 0
    for number, (names, update) in enumerate(blocks):
        places = tuple(int(i) for i in np.flatnonzero(layout[0] == number))
        if isinstance(update, FullConditional):
            assert names is not None
            own = GivenUpdate(update, names, cast(MixedTarget, target))
            parts.append(Part(places, given=own))
            continue
        if update == "conjugate":
            for i, family in enumerate(FAMILIES):
                of_family = tuple(at for at in places if layout[3, at] == i)
                if of_family:
                    parts.append(Part(of_family, f"conjugate {family}"))
            continue
        if isinstance(update, str):
            if places:
                parts.append(Part(places, update))
            continue
        warmup = update.warmup
        if places:
            parts.append(
                Part(
                    places,
                    kernel=kernels,
                    tuned=tuned if warmup.follows else -1,
                    tunes="" if warmup.tuner is None else warmup.tuner.tunes,
                    follows="" if warmup.tuner is None else warmup.tuner.follows,
                    metric=metrics if "metric" in type(update).__tree_fields__ else -1,
                    searches=warmup.searches,
                    shallow=warmup.shallow,
                    follows_prior=update.follows_prior,
                )
            )
            if target is not None:
                parts[-1] = part_on(parts[-1], target, update.name)
            kernels += 1
            metrics += parts[-1].metric >= 0
        tuned += warmup.follows
    return tuple(parts)


def part_on(part: Part, target: Target, owner: str) -> Part:
    """Return a part, whose kernel has this name, with what it has to know of a target."""
    if part.given is not None:
        assert isinstance(target, MixedTarget)
        return dataclasses.replace(part, given=dataclasses.replace(part.given, target=target))
    if part.follows_prior:
        prior = ConditionalPrior.of(target, names_at(target, part.places), owner)
        return dataclasses.replace(part, prior=prior)
    return part


def names_at(target: Target, places: Sequence[int]) -> list[str]:
    """Return the sites that have these coordinates, in the order of them."""
    wanted = set(places)
    return [name for name, s in target.slots.items() if s.start in wanted and s.stop > s.start]


def structures_of(target: Target | None) -> list[Part]:
    """Return the parts that sites bring updates for, in the order of the sites."""
    return [
        Part(tuple(range(slot.start, slot.stop)), structure=slot.levels.update)
        for slot in (() if target is None else target.slots.values())
        if isinstance(slot.levels, Structure)
    ]


def block_target(target: Target, names: Sequence[str], position: np.ndarray) -> Target:
    """Return the density of some sites alone, the others being where they are at a position."""
    places = np.concatenate([np.arange(s.start, s.stop) for s in _slots(target, names)])
    around = wrap(np.array(position))

    def density(x: object) -> TensorBase:
        values = cast("dict[str, TensorBase]", x)
        flat = [values[name].reshape(-1) for name in values]
        whole = around
        for slot, value in zip(_slots(target, names), flat, strict=True):
            whole = index_put(whole, (wrap(np.arange(slot.start, slot.stop)),), value)
        return target.logdensity(whole)

    example = {slot.name: np.zeros(slot.free_shape) for slot in _slots(target, names)}
    found = DensityTarget(density, None, example)
    assert found.dim == len(places)
    return found


def _slots(target: Target, names: Sequence[str]) -> list[Slot]:
    return [target.slots[name] for name in names]
