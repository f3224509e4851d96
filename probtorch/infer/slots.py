"""Slots: where latent sites live in one flat vector, and the handlers that go between the two.

`Discovery` gives each latent site of a first run its slot. In later runs `Evaluation` takes the
values of the sites from the vector and collects the terms of the density; `Inversion` takes them
from the user and fills the vector, `Placing` from a program, in tensor ops. The bijection between
the two is looked up anew at every run, since a support may depend on sites before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.dtype import float64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.transform import Transform, identity_transform
from probtorch.distributions.uniform import Delta, ImproperUniform
from probtorch.effects.runtime import Handler
from probtorch.effects.scans import ScannedSite
from probtorch.effects.site import Site, as_value
from probtorch.errors import DomainError, InferenceError, ModelError, ShapeError
from probtorch.infer.enumeration.summed import ValueGiver, own_shape
from probtorch.infer.holes import Holes
from probtorch.infer.levels import Levels, Structure
from probtorch.infer.starts.initialization import uniform_point
from probtorch.ops.movement import reshape

if TYPE_CHECKING:
    from probtorch.core.rng import Generator


__all__ = [
    *("Discovery", "Evaluation", "Inversion", "Placing", "SitesChangedError", "Slot"),
    *("bijection", "innermost", "slot_values"),
]


class SitesChangedError(ModelError):
    """A model whose latent sites, or their shapes, are others than when inference began.

    Attributes
    ----------
    site : str
        One that came, went or changed.
    """

    def __init__(
        self, subject: str, *, site: str, expected: str, got: str, fix: str, at: str
    ) -> None:
        super().__init__(subject, expected=expected, got=got, fix=fix, at=at)
        self.site = site


@record
class Slot:
    """Where a latent site lives in the flat vector.

    Attributes
    ----------
    name : str
    start, stop : int
        Its slice of the flat vector.
    free_shape : tuple of int
        Shape of the unconstrained values.
    shape : tuple of int
        Shape of the constrained ones, batch and event.
    location : str
        The "file:line" of the sample statement.
    levels : Levels, Structure or None
        Of a discrete site that is moved and not summed out: its values, which the coordinates
        number; or what its coordinates are.
    falls_off : bool
        Whether the prior does; not that of an `ImproperUniform`.
    holes : Holes or None
        Of a site that is partly observed: the elements that have coordinates.
    """

    name: str
    start: int
    stop: int
    free_shape: tuple[int, ...]
    shape: tuple[int, ...]
    location: str = ""
    levels: Levels | Structure | None = None
    falls_off: bool = True
    holes: Holes | None = None

    @property
    def is_structure(self) -> bool:
        """Whether nothing but an update of its own moves it."""
        return isinstance(self.levels, Structure)


def slot_values(q: TensorBase, slot: Slot) -> TensorBase:
    """Return the unconstrained values of one site, in its shape: a view of `q`."""
    if slot.free_shape == ():
        return q[slot.start]
    part = q[slot.start : slot.stop]
    return part if len(slot.free_shape) == 1 else reshape(part, slot.free_shape)


def bijection(site: Site, slot: Slot) -> Transform:
    """Return the way from the coordinates of a continuous site to its values.

    Raises
    ------
    SitesChangedError
        If what is missing of its data is not what was missing when inference began.
    """
    if slot.holes is None:
        return biject_to(site.fn.support)
    if not slot.holes.are_those_of(site):
        raise SitesChangedError(
            f"other elements of site {site.name!r} are missing",
            site=site.name,
            expected=f"the obs_mask with which inference began, {len(slot.holes.places)} holes",
            got="another obs_mask",
            fix="let obs_mask depend on no latent site",
            at=site.location,
        )
    return slot.holes.transform(site)


UNCONDITIONAL = (
    "make the statement unconditional; choose between values with where(). Sites that come and go "
    "are for ParticleGibbs(model) and Importance(model)"
)


class Discovery(Handler):
    """Give each latent site a slot, and the value at 0 or at a random point."""

    def __init__(self, generator: Generator | None) -> None:
        super().__init__()
        self.generator = generator
        self.slots = []

    def on_sample(self, site: Site) -> None:
        if not _is_latent(site):
            return
        if site.fn.is_discrete:
            self.on_discrete(site)
            return
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        transform = biject_to(site.fn.support)
        free = tuple(transform.inverse_shape(shape))
        size = math.prod(free)
        start = self.slots[-1].stop if self.slots else 0
        self.slots.append(
            Slot(
                *(site.name, start, start + size, free, shape, site.location),
                falls_off=not isinstance(innermost(site.fn), ImproperUniform),
            )
        )
        point = wrap(self._point(size).reshape(free))
        # On the tape, as in every later run: an error can then name the op that made a bad value.
        point.requires_grad = True
        site.value = transform(point)

    def on_discrete(self, site: Site) -> None:
        """Refuse a discrete site that was not summed out."""
        raise _infinite_site(site)

    def _point(self, size: int) -> np.ndarray:
        return np.zeros(size) if self.generator is None else uniform_point(self.generator, (size,))

    def on_plate(self, site: Site) -> None:
        # A loader has the whole dataset for samplers. A subsample would be all rows too, but of
        # data that may have been cut to it.
        if site.value is None and "loader" not in site.notes:
            raise InferenceError(
                f"plate {site.name!r} draws {site.notes['size']} of {site.notes['full_size']} rows",
                expected="all rows: a sampler needs the same density at every step",
                got="a random subsample",
                fix="leave subsample_size out, or use SVI",
                at=site.location,
            )


def innermost(fn: Distribution) -> Distribution:
    """Return the distribution inside of those that count dims or leave out elements."""
    while isinstance(base := getattr(fn, "base_dist", None), Distribution):
        fn = base
    return fn


class Evaluation(ValueGiver):
    """Give the latent sites their values from the flat vector, and collect what the run says.

    Must be the outermost handler but for those that only read: what it meets without a value is
    latent.
    """

    def __init__(
        self,
        q: TensorBase,
        slots: Mapping[str, Slot],
        density: bool = True,
        sites: bool = True,
    ) -> None:
        super().__init__()
        self.q, self.slots, self.density = q, slots, density
        # Whether the densities of the sites are among the terms, or the log-determinants alone.
        self.sites = density and sites
        self.values, self.computed, self.terms = {}, {}, []

    def on_sample(self, site: Site) -> None:
        if not _is_latent(site):
            return
        slot = self.slots.get(site.name)
        shape = own_shape(site)
        if slot is None or slot.shape != shape:
            raise _changed(site, slot, shape)
        free = slot_values(self.q, slot)
        transform = identity_transform if slot.levels else bijection(site, slot)
        if slot.levels is not None:
            site.value = slot.levels.at(site, free)
        elif transform is identity_transform:
            site.value = free
        elif self.density:
            site.value, log_det = transform.call_and_ladj(free)
            self.terms.append(log_det.sum() if log_det.array.ndim else log_det)
        else:
            site.value = transform(free)
        if site.value.array.shape != shape:
            raise _moving_support(site)
        if slot.holes is not None:
            slot.holes.hide_data(site)
        self.values[site.name] = site.value
        active = recorder()
        if active is not None:
            active.named(site.value, f"site {site.name!r}")
        # The bijection keeps the value in the support: its density needs no check. That of a
        # discrete site may have become another one, which its numbers do not know.
        site.inside = slot.levels is None

    def after_sample(self, site: Site) -> None:
        if self.sites:
            self.terms.append(site.compute_log_prob_sum())

    after_factor = after_sample

    def after_deterministic(self, site: Site) -> None:
        self.computed[site.name] = site.value

    def total(self) -> TensorBase:
        """The sum of all terms, a 0-d float64 tensor."""
        if len(self.values) < len(self.slots):
            name = next(name for name in self.slots if name not in self.values)
            raise SitesChangedError(
                f"site {name!r} was not met in this run of the model",
                site=name,
                expected=f"the same latent sites in every run: {', '.join(map(repr, self.slots))}",
                got=f"only {', '.join(map(repr, self.values)) or 'none'}",
                fix=UNCONDITIONAL,
                at=self.slots[name].location,
            )
        if not self.terms:
            return wrap(np.zeros(()))
        total = self.terms[0]
        for term in self.terms[1:]:
            total = total + term
        return cast(total, float64)


class Inversion(Handler):
    """Take the latent sites' values from a function, and collect the unconstrained point."""

    def __init__(
        self, value: Callable[[Site], TensorLike], slots: Mapping[str, Slot], dim: int
    ) -> None:
        super().__init__()
        self.value, self.slots = value, slots
        self.q = np.zeros(dim)

    def on_sample(self, site: Site) -> None:
        if not _is_latent(site):
            return
        slot = self.slots.get(site.name)
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        if slot is None or slot.shape != shape:
            raise _changed(site, slot, shape)
        value = as_value(self.value(site), site.name)
        value = cast(value, float64) if value.array.dtype.kind in "biuf" else value
        support = site.fn.support
        if value.array.shape != shape:
            value = _fitted(value, site, shape)
        inside = support.check(value).array
        if not inside.all():
            bad = tuple(int(i) for i in np.argwhere(~inside)[0]) if inside.ndim else ()
            raise DomainError(
                f"value of site {site.name!r}",
                expected=f"values in {support!r}",
                got=f"{value.array[bad]}" + (f" at index {bad}" if bad else ""),
                fix="give a value inside the support of the site's distribution",
                at=site.location,
            )
        free = (slot.levels or bijection(site, slot)).inv(value)
        self.q[slot.start : slot.stop] = free.array.reshape(-1)
        site.value = value


class Placing(Handler):
    """Give the latent sites values by name, and collect their coordinates, in tensor ops."""

    def __init__(self, values: Mapping[str, TensorBase], slots: Mapping[str, Slot]) -> None:
        super().__init__()
        self.values, self.slots = values, slots
        self.parts: dict[str, TensorBase] = {}

    def on_sample(self, site: Site) -> None:
        """Give the value."""
        slot = self.slots.get(site.name)
        if slot is None or site.observed or site.value is not None:
            return
        value = self.values[site.name]
        free = (slot.levels or bijection(site, slot)).inv(value)
        self.parts[site.name] = reshape(free, (slot.stop - slot.start,))
        site.value = value


def _is_latent(site: Site) -> bool:
    """Whether the site is still without a value and has a density; a point mass has no freedom."""
    return (
        not site.observed
        and site.value is None
        and hasattr(site.fn, "log_prob")
        and not isinstance(site.fn, Delta)
    )


def _fitted(value: TensorBase, site: Site, shape: tuple[int, ...]) -> TensorBase:
    """A number, for all elements of the site's shape; an error for any other shape.

    Shapes that broadcast are refused, too: one of ``(1,)`` for three elements is more often a
    forgotten index than one value for all.
    """
    if value.array.shape:
        raise ShapeError(
            f"value of site {site.name!r}",
            expected=f"shape {shape}, or one number for all elements",
            got=f"shape {tuple(value.array.shape)}",
            fix="give one value per element of the site",
            at=site.location,
        )
    return wrap(np.broadcast_to(value.array, shape).copy())


def _infinite_site(site: Site) -> InferenceError:
    """Error for a discrete latent site that cannot be summed out."""
    kind = type(site.fn).__name__
    if isinstance(site.fn, ScannedSite):
        got = f"states of a scan, each a {type(site.fn.base_dist).__name__}"
        fix = (
            "write the steps as `for t in markov(range(n))`, with a name for each site, which sums "
            "states out; or move them along with the others: Gibbs(model)"
        )
    elif hasattr(site.fn, "structure"):
        got = f"a latent {kind}, which has no coordinates that a gradient or a sum could follow"
        fix = "sample with MCMC(Gibbs(model)): it moves such a site by an update of its own"
    elif hasattr(site.fn, "reinterpreted_batch_ndims"):
        got = f"a latent {kind}, whose values are a product of supports"
        fix = "use a plate in place of to_event(): its rows are summed out one by one"
    else:
        got = f"a latent {kind}, whose support {site.fn.support!r} is infinite"
        fix = (
            "move it along with the others, Gibbs(model); marginalise it (a Poisson with a Gamma "
            "rate is a NegativeBinomial); or bound it: a finite support is summed out"
        )
    return InferenceError(
        f"Continuous inference cannot handle discrete sample site {site.name!r}",
        expected="continuous latent sites, or discrete ones with a finite support",
        got=got,
        fix=fix,
        at=site.location,
    )


def _moving_support(site: Site) -> InferenceError:
    return InferenceError(
        f"the support of site {site.name!r} depends on a discrete site that is summed out",
        expected="one support for all values of the discrete site",
        got=f"{site.fn.support!r}",
        fix="sample on a fixed support, and shift or scale the value by the discrete site",
        at=site.location,
    )


def _changed(site: Site, slot: Slot | None, shape: tuple[int, ...]) -> SitesChangedError:
    if slot is None:
        return SitesChangedError(
            f"site {site.name!r} was not there when inference began",
            site=site.name,
            expected="the same latent sites in every run of the model",
            got=f"a new latent site {site.name!r}",
            fix=UNCONDITIONAL,
            at=site.location,
        )
    return SitesChangedError(
        f"site {site.name!r} changed its shape",
        site=site.name,
        expected=f"shape {slot.shape}, as when inference began",
        got=f"shape {shape}",
        fix="let no shape depend on the value of another site",
        at=site.location,
    )
