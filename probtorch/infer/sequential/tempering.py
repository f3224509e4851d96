"""`TemperedPath`: the densities between where particles start and the posterior.

    log p_t(q) = (1 - t) log p_0(q) + t log p_1(q),     0 <= t <= 1,

from the prior of a model, or a reference distribution, to the posterior. The temperature is one
coordinate more: one compiled density of dim + 1 numbers serves all temperatures, and its slope in
the last of them is the log likelihood, which the weights are made of. The prior is the model with
its observed sites and factors masked, so that sites which are summed out need nothing special.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.density_context import DensityContext
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.mixture import MixtureSameFamily
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.enumeration.summed import OneValue
from probtorch.infer.gradient_check import DensityCheck
from probtorch.infer.mapping import DrawMap
from probtorch.infer.mixed import MixedTarget
from probtorch.infer.model_runs import in_float64
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.slots import Slot, bijection
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.foreign import native_density
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat

__all__ = ["TemperedHandle", "TemperedPath"]

# How often draws of the prior that are no numbers in unconstrained space are drawn again.
TRIES = 20


@record
class TemperedHandle:
    """The density at one temperature by its address: ``handle(q) -> (log density, gradient)``.

    Parameters
    ----------
    function, context : Tensor, 0-d int64
        See `DensityHandle`; the density takes dim + 1 numbers.
    temperature : Tensor, 0-d float64
    """

    function: TensorBase
    context: TensorBase
    temperature: TensorBase

    def _both(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        point = cat([position, reshape(self.temperature, (1,))], 0)
        return native_density(point, self.function, self.context)

    def __call__(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        value, grad = self._both(position)
        return value, grad[:-1]

    def ratio(self, position: TensorBase) -> TensorBase:
        """Return the log density at the end of the path less that at its start; -inf outside."""
        value, grad = self._both(position)
        return where(value > -np.inf, grad[position.array.shape[0]], -np.inf)


class _PriorOnly(Handler):
    """Take what is observed out of the density."""

    def on_sample(self, site: Site) -> None:
        if site.observed:
            site.mask = False

    def on_factor(self, site: Site) -> None:
        site.mask = False


class _ToFree(Handler):
    """Take the latent sites' values from a dict, and collect their unconstrained ones."""

    def __init__(self, values: dict[str, TensorBase], slots: Mapping[str, Slot]) -> None:
        super().__init__()
        self.values, self.slots = values, slots
        self.free: dict[str, TensorBase] = {}

    def on_sample(self, site: Site) -> None:
        if site.observed or site.name not in self.values:
            return
        site.value = self.values[site.name]
        slot = self.slots[site.name]
        free = (slot.levels or bijection(site, slot)).inv(site.value)
        self.free[site.name] = reshape(free, (free.array.size,))


class TemperedPath:
    """From a prior, or a reference, to a target; see the module.

    Parameters
    ----------
    target : Target
    reference : Distribution, optional
        Of the unconstrained vector: event shape (dim,), on all of R^dim. Needed for a density that
        is no model.

    Attributes
    ----------
    density : NativeDensity
        Of dim + 1 numbers, the last one the temperature.
    discrete : ndarray of bool, shape (dim,)
        Which coordinates are the numbers of values.
    """

    engine = "SMC"  # whose path it is, for messages

    def __init__(self, target: Target, reference: Distribution | None) -> None:
        self.target, self.reference = target, reference
        self.discrete = np.zeros(target.dim, bool)
        for slot in target.slots.values():
            self.discrete[slot.start : slot.stop] = slot.levels is not None
        self._check_discrete()
        self._prior: ModelTarget | None = None
        if reference is not None:
            _check_reference(self.engine, reference, target)
        elif isinstance(target, ModelTarget):
            args, kwargs = target.given
            kind = MixedTarget if isinstance(target, MixedTarget) else ModelTarget
            self._prior = kind(_PriorOnly(target.model), args, kwargs)
            # Counts without bound are numbered from where the data are possible.
            self._prior.slots.update(target.slots)
            self._free = DrawMap(self._free_one)
        else:
            raise ArgumentError(
                f"{self.engine} on {target.name}, which is no model",
                expected="reference=..., a distribution of its dim coordinates to begin with",
                got="no reference",
                fix="write reference=dist.Normal(0.0, 1.0).expand([dim]).to_event(1)",
            )
        last = Slot("temperature", target.dim, target.dim + 1, (), ())
        slots = {**target.slots, "temperature": last}
        self.density = NativeDensity(
            self._between,
            target.dim + 1,
            name=f"the tempered density of {target.name}",
            check=DensityCheck(target.name, slots),
        )

    def _check_discrete(self) -> None:
        """Refuse discrete sites that no path leads to."""
        for slot in self.target.slots.values():
            if slot.is_structure:
                raise InferenceError(
                    f"{self.engine} on {self.target.name}, whose site {slot.name!r} is a structure",
                    expected="sites that are moved at each temperature",
                    got="one whose own update knows the posterior alone",
                    fix=f"use MCMC(Gibbs({self.target.name}))",
                    at=slot.location or None,
                )
            if slot.levels is not None and self.reference is not None:
                raise ArgumentError(
                    f"{self.engine}(reference=...)",
                    expected="the prior to begin with, where discrete sites are moved",
                    got=f"a reference, and the discrete site {slot.name!r}",
                    fix="leave the reference out",
                )

    def _between(self, point: TensorBase) -> TensorBase:
        q, temperature = point[:-1], point[self.target.dim]
        if self._prior is not None:
            start = self._prior.logdensity(q)
        else:
            assert self.reference is not None
            with in_float64():
                start = self.reference.log_prob(q)
        end = self.target.logdensity(q)
        # Outside of both there is nothing to interpolate.
        inside = isfinite(start) & (end > -np.inf)
        return where(inside, start + temperature * (end - start), -np.inf)

    def handle(self, context: DensityContext, temperature: float) -> TemperedHandle:
        """Return the density at a temperature, as a thread's programs call it."""
        function, at = context.function, context.address
        return TemperedHandle(
            wrap(np.asarray(function, np.int64)),
            wrap(np.asarray(at, np.int64)),
            wrap(np.asarray(temperature, np.float64)),
        )

    def draws(self, count: int, generator: Generator) -> np.ndarray:
        """Return draws of the start, unconstrained, shape (count, dim).

        Raises
        ------
        InferenceError
            If they are not finite.
        """
        found = self._drawn(count, generator)
        for _ in range(TRIES):
            bad = ~np.isfinite(found).all(axis=1)
            if not bad.any():
                return found
            # A draw that was rounded to the edge of its support.
            found[bad] = self._drawn(int(bad.sum()), generator)
        raise InferenceError(
            f"draws of the prior of {self.target.name}",
            expected="finite unconstrained values",
            got=f"{int(bad.sum())} of {count} that are not, in {TRIES} tries",
            fix="look at the supports of the priors, or give a reference",
        )

    def parts_of(self, positions: np.ndarray) -> np.ndarray:
        """Return which part of a mixture, if the start is one, each of positions is of: numbers."""
        reference = self.reference
        if not isinstance(reference, MixtureSameFamily):
            return np.zeros(len(positions), np.int64)
        with no_grad(), in_float64():
            points = wrap(positions[:, None])
            densities = reference.component_distribution.log_prob(points).array
            weights = reference.mixture_distribution.logits.array
        return np.asarray(to_host(densities + weights)).argmax(axis=1)

    def _drawn(self, count: int, generator: Generator) -> np.ndarray:
        if self.reference is not None:
            with no_grad():
                return to_host(self.reference.sample((count,), generator=generator).array).astype(
                    np.float64
                )
        prior, names = self._prior, list(self.target.slots)
        assert prior is not None
        # With the data in place: sites may be drawn given what was observed before them.
        predictive = Predictive(
            lambda: prior.run(*STATE.handlers),
            num_samples=count,
            return_sites=names,
            seed=generator,
        )
        with in_float64():
            found = {n: np.asarray(to_host(x.array)) for n, x in predictive().items()}
        free = self._free(found)
        return np.concatenate([free[name] for name in names], axis=1)

    def _free_one(self, values: dict[str, TensorBase]) -> dict[str, TensorBase]:
        assert self._prior is not None
        handler = _ToFree(values, self._prior.slots)
        discrete = (OneValue(0, self._prior.sums_out),) if self._prior.summed else ()
        self._prior.run(handler, *discrete)
        return handler.free


def _check_reference(engine: str, reference: Distribution, target: Target) -> None:
    shape = tuple(reference.batch_shape), tuple(reference.event_shape)
    if shape != ((), (target.dim,)):
        raise ShapeError(
            f"{engine}(reference=...)",
            expected=f"a distribution of batch shape () and event shape ({target.dim},), the "
            "unconstrained vector",
            got=f"batch shape {shape[0]} and event shape {shape[1]}",
            fix="write .expand([dim]).to_event(1), or leave it out to begin at the prior",
        )
