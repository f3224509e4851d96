"""What a step of `scan` states: the first two are run for it, without drawing anything.

`StepFinder` is the only handler while they run. Parameters go on to those around; sites are noted,
with values at a point that is another one in the second step, so that a support or a shape that
depends on the carried state shows. scans.py is the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np

from probtorch.core.casting import cast as cast_to
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.runtime import STATE, Handler, Placement, perform
from probtorch.effects.site import Site
from probtorch.errors import ModelError
from probtorch.ops.movement import expand
from probtorch.tensor import Tensor

__all__ = ["TRIED", "StepFinder", "as_wide", "form_of", "only", "whole_data"]

# Where the first two steps are tried, on the unconstrained scale: what a support depends on shows.
TRIED = (0.0, 0.5)


class StepFinder(Handler):
    """Note what a step states, at one point of its latent sites.

    Parameters
    ----------
    params : dict of str to Tensor
        Gets the parameters, which are asked for once.
    point : float
        On the unconstrained scale.
    around : tuple of Handler
        What parameters are asked of.

    Attributes
    ----------
    sites : dict of str to Site
    """

    def __init__(
        self, params: dict[str, Tensor], point: float, around: tuple[Handler, ...]
    ) -> None:
        super().__init__()
        self.params, self.point, self.around = params, point, around
        self.sites: dict[str, Site] = {}

    def _note(self, site: Site) -> None:
        if site.name in self.sites:
            raise ModelError(
                f"site {site.name!r} in a step of scan",
                expected="a name of its own for every site",
                got="a second statement in the same step",
                fix="rename one of them",
                at=site.location or None,
            )
        self.sites[site.name] = site

    def on_sample(self, site: Site) -> None:
        """Note it, and give it a value."""
        self._note(site)
        if not hasattr(site.fn, "log_prob"):
            raise ModelError(
                f"site {site.name!r} in a step of scan",
                expected="a distribution with log_prob",
                got=repr(site.fn),
                fix="use a distribution",
                at=site.location or None,
            )
        if site.value is None:
            site.value = some_value(site, self.point)

    def on_factor(self, site: Site) -> None:
        """Note it."""
        self._note(site)

    on_deterministic = on_factor

    def on_param(self, site: Site) -> None:
        """Ask for it outside, once."""
        if site.name not in self.params:
            inside = STATE.handlers
            STATE.handlers = self.around
            try:
                self.params[site.name] = cast("Tensor", perform(site))
            finally:
                STATE.handlers = inside
        site.value = self.params[site.name]

    def on_plate(self, site: Site) -> None:
        """Refuse subsamples."""
        if site.notes.get("size") != site.notes.get("full_size"):
            raise ModelError(
                f"plate {site.name!r} in a step of scan",
                expected="all rows at each step",
                got=f"{site.notes['size']} of {site.notes['full_size']} rows",
                fix="put the plate around the loop",
                at=site.location or None,
            )


@contextmanager
def only(handler: Handler, plates: Placement) -> Iterator[None]:
    """Context: statements go to one handler, in some plates."""
    before = STATE.handlers, STATE.plates
    STATE.handlers, STATE.plates = (handler,), plates
    try:
        yield
    finally:
        STATE.handlers, STATE.plates = before


def as_wide(first: list[Tensor], after: list[object]) -> list[Tensor]:
    """Return the state before the first step, in the wider precision that it has after it: a 0-d
    start must not narrow what is computed with the data's.
    """
    if len(first) != len(after):
        return first
    found = [as_tensor(x, "scan").array.dtype for x in after]
    return [
        cast_to(x, d) if x.array.dtype.kind == d.kind == "f" and x.array.dtype < d else x
        for x, d in zip(first, found, strict=True)
    ]


def whole_data(site: Site, slices: list[Tensor], tensors: list[Tensor]) -> Tensor:
    """Return the data of all steps, of which a site has a slice."""
    for piece, tensor in zip(slices, tensors, strict=True):
        if site.value is piece:
            return tensor
    raise ModelError(
        f"data of site {site.name!r} in a step of scan",
        expected="a slice of xs, as the step is given it",
        got="a value that is made in the step, or comes from outside",
        fix="put the data into xs: scan(step, init, {'x': x, 'y': y}), and obs=item['y']",
        at=site.location or None,
    )


def some_value(site: Site, point: float) -> Tensor:
    """Return a value of a latent site that needs no draw."""
    fn = site.fn
    if not fn.is_discrete:
        transform = biject_to(fn.support)
        free = transform.inverse_shape(tuple(fn.batch_shape) + tuple(fn.event_shape))
        dtype = np.float64 if fn._dtype is None else fn._dtype
        return transform(wrap(np.full(tuple(free), point, dtype)))
    if fn.has_enumerate_support:
        values = fn.enumerate_support()
        return values[0] if point == TRIED[0] else values[len(values.array) - 1]
    lowest = getattr(fn.support, "lower_bound", 0)
    shape = tuple(fn.batch_shape) + tuple(fn.event_shape)
    return expand(as_tensor(lowest, site.name) + (point != TRIED[0]), shape)


def form_of(site: Site) -> tuple[object, ...]:
    """Return what has to be the same at each step."""
    if site.kind != "sample":
        return (site.kind, site.value.array.shape)
    fn = site.fn
    shapes = tuple(fn.batch_shape), tuple(fn.event_shape), site.observed
    if site.observed:
        return shapes
    bounds = [
        np.asarray(as_tensor(value, name).array).tolist()
        for name, value in sorted(vars(fn.support).items())
        if name.endswith("bound")
    ]
    return (*shapes, type(fn.support).__name__, str(bounds))
