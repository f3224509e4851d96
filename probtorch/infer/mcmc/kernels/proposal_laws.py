"""Distributions that a user states as proposals: of the unconstrained vector, or site by site.

A law draws in the kernel's own program, with bits of the chain's key and counters, and has a log
density on the unconstrained scale. Distributions of sites are on the model's scale: what they draw
is brought to the unconstrained one by a run of the model, which also tells the log-determinant, so
that supports may depend on other sites.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.validation import validation_enabled
from probtorch.errors import InferenceError, ShapeError
from probtorch.infer.mcmc.randomness import CountedDraws, Key
from probtorch.infer.model_runs import in_float64
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.slots import Evaluation, Placing, slot_values
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

__all__ = ["ProposalLaw", "Stated", "is_stated"]

Stated: TypeAlias = Distribution | Mapping[str, Distribution]


def is_stated(proposal: object) -> bool:
    """Return whether it is a distribution, or a dict of them."""
    if isinstance(proposal, Mapping):
        return bool(proposal) and all(isinstance(x, Distribution) for x in proposal.values())
    return isinstance(proposal, Distribution)


def _unchecked(fn: Distribution) -> Distribution:
    """A distribution, and those it is made of, with density 0 outside of the support: a chain may
    stand where nothing is proposed.
    """
    found = copy.copy(fn)
    found._validate_args = False
    for name, part in vars(fn).items():
        if isinstance(part, Distribution):
            setattr(found, name, _unchecked(part))
    return found


@dataclass(frozen=True, eq=False)
class ProposalLaw:
    """What a kernel proposes from, on a target once it has one.

    Parameters
    ----------
    stated : Distribution or dict of str to Distribution
    owner : str
        The kernel, for messages.
    target : Target, optional
    """

    stated: Stated
    owner: str
    target: Target | None = None

    # Programs are kept by their kernel's static fields: the same objects make the same program.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProposalLaw):
            return NotImplemented
        return self.stated is other.stated and self.target is other.target

    def __hash__(self) -> int:
        return hash((id(self.stated), id(self.target)))

    def on(self, target: Target) -> ProposalLaw:
        """Return it for a target.

        Raises
        ------
        ShapeError
            If a distribution is of another shape than the vector, or its site.
        InferenceError
            If distributions of sites are not those of the target, are discrete, or other sites are
            summed out.
        """
        if isinstance(self.stated, Mapping):
            self._check_sites(self.stated, target)
        else:
            self._check_shape("an event", self.stated, (target.dim,), self.stated.event_shape)
        return replace(self, target=target)

    def _check_sites(self, stated: Mapping[str, Distribution], target: Target) -> None:
        missing = [name for name in target.slots if name not in stated]
        unknown = [name for name in stated if name not in target.slots]
        discrete = [name for name, fn in stated.items() if fn.is_discrete]
        summed = isinstance(target, ModelTarget) and bool(target.summed)
        if missing or unknown or discrete or summed:
            got = f"none of {missing[0]!r}" if missing else "discrete sites that are summed out"
            got = f"one of {unknown[0]!r}" if unknown else got
            raise InferenceError(
                f"{self.owner}(proposal=...)",
                expected=f"a continuous distribution for each of {', '.join(target.slots)}",
                got=f"a discrete one of {discrete[0]!r}" if discrete else got,
                fix=f"state all of them, or one distribution of all {target.dim} unconstrained "
                "coordinates",
            )
        holes = [name for name, slot in target.slots.items() if slot.holes is not None]
        if holes:
            raise InferenceError(
                f"{self.owner}(proposal=...)",
                expected=f"a distribution of the {target.slots[holes[0]].free_shape[0]} missing "
                f"elements of {holes[0]!r}",
                got="one of all elements",
                fix=f"write {self.owner}(model), in place of a Target; or state one distribution "
                f"of all {target.dim} unconstrained coordinates",
            )
        for name, fn in stated.items():
            shape = tuple(fn.batch_shape) + tuple(fn.event_shape)
            self._check_shape(f"values of site {name!r}", fn, target.slots[name].shape, shape)

    def _check_shape(
        self, what: str, fn: Distribution, wanted: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        found = tuple(shape)
        plain = isinstance(self.stated, Mapping) or not tuple(fn.batch_shape)
        if found == tuple(wanted) and plain:
            return
        batch = "" if plain else f" and batch shape {tuple(fn.batch_shape)}"
        raise ShapeError(
            f"{self.owner}(proposal={type(fn).__name__}(...))",
            expected=f"{what} of shape {tuple(wanted)}",
            got=f"shape {found}{batch}",
            fix="expand it, and count its dims by to_event()",
        )

    def draw(self, key: Key, counter: TensorBase) -> tuple[TensorBase, TensorBase]:
        """Return a position and the first counter that was not used, in tensor ops."""
        stated, target = self.stated, self.target
        assert target is not None
        with in_float64(), CountedDraws(key, counter) as draws:
            if isinstance(stated, Mapping):
                values = {n: fn.sample(generator=Generator(0)) for n, fn in stated.items()}
                position = self._placed(values)
            else:
                position = stated.sample(generator=Generator(0))
        return cast(position, float64), counter + draws.used

    def _placed(self, values: Mapping[str, TensorBase]) -> TensorBase:
        """The position of values by site."""
        target = self.target
        assert target is not None
        if isinstance(target, ModelTarget):
            placing = Placing(values, target.slots)
            with validation_enabled(False):
                target.run(placing)
            parts = placing.parts
        else:
            parts = {n: reshape(values[n], (s.stop - s.start,)) for n, s in target.slots.items()}
        return cat([cast(parts[name], float64) for name in target.slots])

    def log_prob(self, position: TensorBase) -> TensorBase:
        """Return its log density on the unconstrained scale, 0-d, in tensor ops."""
        stated, target = self.stated, self.target
        assert target is not None
        with in_float64(), validation_enabled(False):
            if not isinstance(stated, Mapping):
                return _unchecked(stated).log_prob(position)
            log_det: TensorBase | float = 0.0
            values = {n: slot_values(position, slot) for n, slot in target.slots.items()}
            if isinstance(target, ModelTarget):
                evaluation = Evaluation(position, target.slots, sites=False)
                target.run(evaluation)
                values, log_det = evaluation.values, evaluation.total()
            for name, fn in stated.items():
                log_det = log_det + total(_unchecked(fn).log_prob(values[name]))
        assert isinstance(log_det, TensorBase)  # there is a site
        return log_det

    def __repr__(self) -> str:
        """What it is, with the first digits of a hash of its numbers: for results and files."""
        stated = self.stated
        named = stated.items() if isinstance(stated, Mapping) else [("", stated)]
        told, digest = [], hashlib.sha256()
        for name, fn in named:
            told.append(f"{name}: {type(fn).__name__}" if name else type(fn).__name__)
            for leaf in flatten(fn)[0]:
                digest.update(np.ascontiguousarray(leaf.array).tobytes())
        return f"{', '.join(told)} ({digest.hexdigest()[:8]})"
