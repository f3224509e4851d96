"""Holes in data: the coordinates of a partly observed site are those of its missing elements.

`sample(name, d, obs=data, obs_mask=there)` has a latent site of the full shape,
`{name}_unobserved`. What it is where there are data nobody looks at: a target leaves its density
out there, fills it with the data, and gives coordinates to the other elements alone. That needs one
mask at all values of the sites; where the mask depends on them, the site stays whole.

Read slots.py first. Guides work on whole sites, whose rows are those of plates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase, is_tensor
from probtorch.core.typed import Shape
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.transform import Transform
from probtorch.effects.primitives import PARTLY
from probtorch.effects.site import Site
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, logical_and
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import reshape

if TYPE_CHECKING:
    from probtorch.effects.trace import Trace
    from probtorch.infer.slots import Slot

__all__ = ["Holes", "packed", "partly_observed"]


class Holes:
    """Which elements of a site are missing.

    Attributes
    ----------
    known : ndarray of bool, shape of the site's batch
        Where there are data.
    places : ndarray of int, shape (holes,)
        Where there are none, in the flattened batch.
    """

    def __init__(self, known: np.ndarray) -> None:
        self.known = known
        self.places = np.flatnonzero(~known)

    def are_those_of(self, site: Site) -> bool:
        """Whether the mask of a run is the one that was found at first."""
        there = site.notes[PARTLY][0] if PARTLY in site.notes else None
        if not is_tensor(there) or _batch(there, self.known.shape) is None:
            return False
        return bool(eq(there, wrap(self.known)).all())

    def transform(self, site: Site) -> HolesTransform:
        """The way from the coordinates to the site's values."""
        data = site.notes[PARTLY][1]
        return HolesTransform(biject_to(site.fn.support), self, data)

    def filled(self, values: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return values, shape (draws, *shape), with others where there are data."""
        events = values.ndim - 1 - self.known.ndim
        return np.where(self.known.reshape(self.known.shape + (1,) * events), others, values)

    def hide_data(self, site: Site) -> None:
        """Take what is known out of the site's density."""
        missing = wrap(~self.known)
        mask = site.mask
        site.mask = missing if mask is None or mask is True else logical_and(missing, mask)


class HolesTransform(Transform):
    """From coordinates of the missing elements, shape (holes, *event), to values of all of them.

    Parameters
    ----------
    base : Transform
        Of all elements.
    holes : Holes
    data : Tensor
        What stands at the others; broadcasts with the values.
    """

    def __init__(self, base: Transform, holes: Holes, data: TensorBase) -> None:
        super().__init__()
        self.base, self.holes, self.data = base, holes, data
        self.domain, self.codomain = base.domain, base.codomain

    def _call(self, x: TensorBase) -> TensorBase:
        return self._joined(self.base(self._spread(x)))

    def _inverse(self, y: TensorBase) -> TensorBase:
        return self._gathered(self.base.inv(y))

    def call_and_ladj(self, x: TensorBase) -> tuple[TensorBase, TensorBase]:
        y, log_det = self.base.call_and_ladj(self._spread(x))
        return self._joined(y), self._gathered(log_det)

    def inverse_shape(self, shape: Shape) -> Shape:
        free = tuple(self.base.inverse_shape(shape))
        return (len(self.holes.places), *free[self.holes.known.ndim :])

    def _spread(self, x: TensorBase) -> TensorBase:
        known, rest = self.holes.known, x.array.shape[1:]
        flat = wrap(np.zeros((known.size, *rest)))
        return reshape(index_put(flat, (wrap(self.holes.places),), x), (*known.shape, *rest))

    def _gathered(self, x: TensorBase) -> TensorBase:
        known = self.holes.known
        return reshape(x, (known.size, *x.array.shape[known.ndim :]))[wrap(self.holes.places)]

    def _joined(self, y: TensorBase) -> TensorBase:
        known = self.holes.known
        events = y.array.ndim - known.ndim
        return where(wrap(known.reshape(known.shape + (1,) * events)), self.data, y)


def packed(slots: Sequence[Slot], runs: Sequence[Trace]) -> list[Slot]:
    """Return slots in which partly observed sites have the coordinates of their holes alone.

    Parameters
    ----------
    slots : sequence of Slot
    runs : sequence of Trace
        At different values of the sites: where masks differ, slots stay as they are.
    """
    found, start = [], 0
    for slot in slots:
        holes, free = _holes(slot, [run[slot.name] for run in runs]), slot.free_shape
        if holes is not None:
            free = (len(holes.places), *free[holes.known.ndim :])
        size = math.prod(free)
        found.append(replace(slot, start=start, stop=start + size, free_shape=free, holes=holes))
        start += size
    return found


def partly_observed(sites: Mapping[str, Site], slots: Sequence[Slot]) -> bool:
    """Whether one of the sites that have slots is what is missing of data."""
    return any(PARTLY in sites[slot.name].notes for slot in slots)


def _holes(slot: Slot, sites: Sequence[Site]) -> Holes | None:
    """The holes of a site with data, if they are the same in all runs."""
    if slot.levels is not None or not all(PARTLY in site.notes for site in sites):
        return None
    shape = slot.shape[: len(slot.shape) - len(sites[0].fn.event_shape)]
    masks = [_batch(site.notes[PARTLY][0], shape) for site in sites]
    known = masks[0]
    if not shape or known is None or slot.free_shape[: len(shape)] != shape:
        return None
    same = all(mask is not None and np.array_equal(mask, known) for mask in masks)
    return Holes(known.copy()) if same and known.any() else None


def _batch(there: object, shape: Shape) -> np.ndarray | None:
    """A mask in the shape of the batch, None if it has more."""
    array = to_host(there.array) if is_tensor(there) else np.asarray(there)
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        return None
