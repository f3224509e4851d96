"""`MixedTarget`: the posterior of a model whose discrete sites are coordinates too.

`ModelTarget` sums finite discrete sites out and refuses the others, for samplers that move
continuous values only. Here all have a slot of the flat vector (levels.py has what their
coordinates mean), and the density is that of the values as they are; its gradient along discrete
coordinates is 0. Finite sites that are annotated for it are summed out here, too. Kernels that know
how to move such coordinates (mcmc/gibbs.py, mcmc/mixed_hmc.py) make this target of their model;
draws come back as whole numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast as as_type

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64, int64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.enumerable import as_annotated
from probtorch.effects.site import Site
from probtorch.infer.enumeration.summed import is_summed
from probtorch.infer.levels import Levels, Structure, levels_of
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.potential import DensityTarget, ModelTarget, Target
from probtorch.infer.slots import Discovery, Evaluation, Placing, Slot
from probtorch.infer.starts.initialization import Strategy, init_to_sample, uniform_point
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import logical_and
from probtorch.ops.indexing import index_put
from probtorch.ops.pieces import cat

__all__ = ["MixedTarget"]

# Where unbounded sites are looked for, above the least value: counts in data bound latent ones from
# below more often than from above. 4^12 is 1.6e7.
LADDER = (0.0, *(4.0**k for k in range(13)))


class MixedTarget(ModelTarget):
    """The joint density of continuous and discrete latent sites.

    Parameters
    ----------
    model : callable
    args : tuple
    kwargs : dict
        What it is called with.

    Raises
    ------
    InferenceError
        If the values of a discrete site are neither finitely many nor whole numbers.
    """

    def __init__(
        self, model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        super().__init__(model, args, kwargs)
        self._start_counts()

    def sums_out(self, site: Site) -> bool:
        """Whether a site is summed out: where that is asked for by `config_enumerate` or at it."""
        return is_summed(site) and as_annotated(site) is not None

    def _finder(self, generator: Generator | None) -> Discovery:
        return _MixedDiscovery(generator)

    def _start_counts(self) -> None:
        """Number the values of unbounded sites from where the data are possible."""
        free = {
            n: s
            for n, s in self.slots.items()
            if isinstance(s.levels, Levels) and math.isinf(s.levels.highest)
        }
        if not free:
            return
        first = dict(self.slots)
        for above in LADDER:
            for name, slot in free.items():
                assert isinstance(slot.levels, Levels)
                levels = slot.levels.around(slot.levels.first + above)
                self.slots[name] = replace(slot, levels=levels)
            try:
                if math.isfinite(float(self.logdensity(wrap(np.zeros(self.dim))).array)):
                    return
            except OUTSIDE:
                continue
        self.slots.update(first)  # starting points are looked for elsewhere, and asked for

    def start(self, strategy: Strategy, generator: Generator) -> np.ndarray:
        """Return the point that a strategy amounts to.

        Strategies are for continuous sites. Discrete ones start at the values that `init_to_value`
        names, at draws of `init_to_sample`, and else at random or where the data are possible.
        """
        function, given = strategy, {}
        while isinstance(function, functools.partial):
            given = {**(function.keywords.get("values") or {}), **given}
            function = function.func

        def value(site: Site) -> TensorLike:
            site.generator = generator
            levels = self.slots[site.name].levels
            if levels is None or site.name in given or function is init_to_sample:
                return strategy(site)
            if isinstance(levels, Structure):
                return levels.at(site, wrap(levels.start))
            shape = self.slots[site.name].free_shape
            bounded = math.isfinite(levels.highest)
            point = uniform_point(generator, shape) if bounded else np.zeros(shape)
            return levels(wrap(point))

        return self._invert(value)

    def part_that_starts(self) -> tuple[Target, np.ndarray, np.ndarray] | None:
        """Return what starts are looked for in, where structures have theirs; see `TargetBase`."""
        structures = [slot for slot in self.slots.values() if isinstance(slot.levels, Structure)]
        if not structures:
            return None
        whole, found = np.zeros(self.dim), np.ones(self.dim, bool)
        for slot in structures:
            assert isinstance(slot.levels, Structure)
            whole[slot.start : slot.stop] = slot.levels.start
            found[slot.start : slot.stop] = False
        places = np.flatnonzero(found)
        around, here = wrap(whole), wrap(places)

        def density(x: object) -> TensorBase:
            return self.logdensity(index_put(around, (here,), as_type("TensorBase", x)))

        density.__name__ = self.name
        return DensityTarget(density, len(places), None), whole, places

    def values_at(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the values of the latent sites at `q`, as the model sees them."""
        evaluation = Evaluation(q, self.slots, density=False)
        self.run(evaluation, *self._discrete())
        return evaluation.values

    def position_of(
        self, values: Mapping[str, TensorBase], instead: Mapping[str, TensorBase]
    ) -> tuple[TensorBase, TensorBase]:
        """Return the position of values of all latent sites, in tensor ops.

        Parameters
        ----------
        values, instead : dict of str to Tensor
            Of the shapes of the sites; and what the model sees where one is outside its support.

        Returns
        -------
        position : Tensor, shape (dim,)
        inside : Tensor of bool, shape ()
            Whether all values are inside their supports.
        """
        placing = _PlacingInside(values, instead, self.slots)
        self.run(placing, *self._discrete())
        parts = [cast(placing.parts[name], float64) for name in self.slots]
        return cat(parts), placing.inside

    def constrain(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the values of latent and deterministic sites at `q`, discrete ones as int64."""
        found = super().constrain(q)
        for name, slot in self.slots.items():
            if isinstance(slot.levels, Levels) and slot.levels.dtype.kind in "biuf":
                found[name] = cast(found[name], int64)
        return found


class _PlacingInside(Placing):
    """Give values of the supports of sites, others where one is outside."""

    def __init__(
        self,
        values: Mapping[str, TensorBase],
        instead: Mapping[str, TensorBase],
        slots: Mapping[str, Slot],
    ) -> None:
        super().__init__(dict(values), slots)
        self.instead, self.inside = instead, wrap(np.array(True))

    def on_sample(self, site: Site) -> None:
        """Give the value."""
        name, slot = site.name, self.slots.get(site.name)
        new = self.values.get(name) is not self.instead.get(name)
        if slot is not None and new and not isinstance(slot.levels, Structure):
            inside = site.fn.support.check(self.values[name]).all()
            kept = where(inside, self.values[name], self.instead[name])
            self.values = {**self.values, name: kept}
            self.inside = logical_and(self.inside, inside)
        super().on_sample(site)


class _MixedDiscovery(Discovery):
    """Give discrete latent sites a slot, too; their first value has number 0."""

    def on_discrete(self, site: Site) -> None:
        """Give the slot, and the value at 0."""
        levels = levels_of(site)
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        free = levels.free_shape(shape)
        size = math.prod(free)
        start = self.slots[-1].stop if self.slots else 0
        self.slots.append(Slot(site.name, start, start + size, free, shape, site.location, levels))
        if isinstance(levels, Structure):
            point = levels.start
        else:
            point = self._point(size) if math.isfinite(levels.highest) else np.zeros(size)
        site.value = levels.at(site, wrap(point.reshape(free)))
