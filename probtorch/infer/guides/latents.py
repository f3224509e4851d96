"""What a guide knows of a latent site of its model, and the runs that find out.

A model is run twice, by an initialisation strategy and at a random point: the first run shows the
latent sites, their plates and where they start, the second which supports depend on other sites.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tree import record, static
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.transform import Transform, identity_transform
from probtorch.distributions.uniform import Delta
from probtorch.effects.runtime import Handler, generator_in_force
from probtorch.effects.site import Frame, Site, as_value
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.summed import OneValue
from probtorch.infer.model_runs import OUTSIDE, lifted, out_of_sight
from probtorch.infer.starts.initialization import (
    Strategy,
    check_value_names,
    for_one_start,
    uniform_point,
)

if TYPE_CHECKING:
    from probtorch.distributions.constraints import Constraint
    from probtorch.effects.trace import Trace
    from probtorch.infer.guides.base import AutoGuide

__all__ = ["GivenRows", "Latent", "latent_of", "latents_of"]


@record
class Latent:
    """What a guide knows of one latent site of its model.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the values, batch and event; all rows of its plates.
    free_shape : tuple of int
        Of the unconstrained values.
    batch_ndim : int
        How many dims of either belong to plates.
    event_dim : int
        How many dims of `shape` are one event of the site's distribution.
    frames : tuple of Frame
        Its vectorised plates, outermost first.
    support : Constraint
    init : ndarray
        Value to start from, of shape `shape`.
    location : str
        The "file:line" of the statement.
    """

    name: str = static()
    shape: tuple[int, ...] = static()
    free_shape: tuple[int, ...] = static()
    batch_ndim: int = static()
    event_dim: int = static()
    frames: tuple[Frame, ...] = static()
    support: Constraint = static()
    init: np.ndarray = static()
    location: str = static()

    @property
    def transform(self) -> Transform:
        """The bijection from unconstrained values onto the support."""
        return biject_to(self.support)

    @property
    def is_real(self) -> bool:
        """Whether the support is all of R^n."""
        return self.transform is identity_transform

    @property
    def free_event_ndim(self) -> int:
        """How many dims of the unconstrained values belong to no plate."""
        return len(self.free_shape) - self.batch_ndim

    @property
    def size(self) -> int:
        """Number of unconstrained values."""
        return math.prod(self.free_shape)

    @property
    def free_init(self) -> np.ndarray:
        """The starting point on the unconstrained scale."""
        return to_host(self.transform.inv(wrap(self.init)).array)


class GivenRows(Handler):
    """Note the names of plates whose rows the model's caller chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.given_rows: set[str] = set()

    def on_plate(self, site: Site) -> None:
        """Note a plate that works on rows it was given."""
        if site.value is not None and site.notes["size"] != site.notes["full_size"]:
            self.given_rows.add(site.name)


class _Start(GivenRows):
    """Give latent sites the values of a strategy, or those at a random point."""

    def __init__(self, strategy: Strategy | None, generator: Generator) -> None:
        super().__init__()
        self.strategy, self.draws = strategy, generator
        self.latent: dict[str, Site] = {}

    def on_sample(self, site: Site) -> None:
        if site.observed or site.value is not None or not hasattr(site.fn, "log_prob"):
            return
        if isinstance(site.fn, Delta):
            return
        if site.fn.is_discrete:
            raise _discrete(site)
        site.generator = self.draws
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        if self.strategy is None:
            transform = biject_to(site.fn.support)
            free = tuple(transform.inverse_shape(shape))
            value = transform(wrap(uniform_point(self.draws, free, 1.0)))
        else:
            value = as_value(self.strategy(site), site.name)
            if value.array.dtype.kind in "biuf":
                value = cast(value, float64)
            value = wrap(np.broadcast_to(to_host(value.array), shape).copy())
        site.value = value
        self.latent[site.name] = site


def latents_of(
    guide: AutoGuide, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[dict[str, Latent], frozenset[str]]:
    """Run a guide's model; return its latent sites, and plates whose rows the caller chooses."""
    if guide.precise:
        args, kwargs = lifted(args), lifted(kwargs)
    runs = []
    # The second run, elsewhere, shows which supports depend on other sites. It draws the same rows.
    for strategy in (for_one_start(guide.init_loc_fn), None):
        in_force = generator_in_force() or default_generator
        start = _Start(strategy, Generator(*in_force.get_state()))
        # A random point may lie where the model is not defined; it is only asked for more.
        failing = contextlib.suppress(*(OUTSIDE if strategy is None else ()))
        with no_grad(), out_of_sight(start, OneValue(), failing, precise=guide.precise) as seen:
            guide.model(*args, **kwargs)
        if not start.latent:
            raise _no_latent(guide, seen)
        runs.append(start)
    first, second = runs
    check_value_names(guide.init_loc_fn, first.latent, "the model of the guide")
    for name, site in first.latent.items():
        if name in second.latent:
            _check_support(guide, site, second.latent[name])
    latents = {name: latent_of(site) for name, site in first.latent.items()}
    return latents, frozenset(first.given_rows)


def latent_of(site: Site) -> Latent:
    """Return what a guide knows of a latent site, from a run of its model."""
    frames = tuple(f for f in site.plates if f.dim is not None)
    batch = len(site.fn.batch_shape)
    value = to_host(site.value.array)
    event = value.ndim - batch
    for frame in frames:
        if frame.subsampled and frame.dim is not None:
            # Rows that were not looked at start where the others do.
            rows = np.arange(frame.full_size) % frame.size
            value = np.take(value, rows, axis=value.ndim - event + frame.dim)
    support = site.fn.support
    return Latent(
        name=site.name,
        shape=value.shape,
        free_shape=value.shape
        if support.is_discrete
        else tuple(biject_to(support).inverse_shape(value.shape)),
        batch_ndim=batch,
        event_dim=event,
        frames=frames,
        support=support,
        init=value,
        location=site.location,
    )


def _check_support(guide: AutoGuide, site: Site, other: Site) -> None:
    """Refuse a support that differs between two runs."""
    shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
    transforms = biject_to(site.fn.support), biject_to(other.fn.support)
    origin = wrap(np.full(transforms[0].inverse_shape(shape), 0.1))
    a, b = (to_host(t(origin).array) for t in transforms)
    if a.shape != b.shape or not np.allclose(a, b, rtol=1e-12, atol=1e-12):
        raise InferenceError(
            f"{guide.__name__}: the support of site {site.name!r} depends on other sites",
            expected="a support that is the same in every run of the model",
            got=f"{site.fn.support!r} and {other.fn.support!r}",
            fix=f"draw from a fixed interval and scale it: u = sample({site.name + '_unit'!r}, "
            "Uniform(0., 1.)), then compute with u",
            at=site.location,
        )


def _discrete(site: Site) -> InferenceError:
    return InferenceError(
        f"an automatic guide cannot draw the discrete site {site.name!r}",
        expected="continuous latent sites",
        got=f"a latent {type(site.fn).__name__} on {site.fn.support!r}",
        fix="sample with MCMC(Gibbs(model)): it moves such a site by an update of its own"
        if hasattr(site.fn, "structure")
        else "sum it out in the model (MixtureSameFamily, logsumexp), or hide it with "
        "handlers.block and write its guide by hand in an AutoGuideList",
        at=site.location,
    )


def _no_latent(guide: AutoGuide, seen: Trace) -> InferenceError:
    discrete = [n for n in seen.stochastic_nodes if getattr(seen[n].fn, "is_discrete", False)]
    if discrete:
        return InferenceError(
            f"{guide.__name__}: the model has no continuous latent sites",
            expected="at least one continuous sample statement without obs",
            got=f"discrete sites {', '.join(map(repr, discrete))}",
            fix="sum them out under a guide without statements, SVI(model, lambda *args: None, "
            "optim, TraceEnum_ELBO()), or give unknown parameters a prior",
        )
    observed = ", ".join(map(repr, seen.observation_nodes))
    return InferenceError(
        f"{guide.__name__}: the model has no latent sites",
        expected="at least one sample statement without obs",
        got=f"observed sites {observed}" if observed else "no sample statements",
        fix="leave the value of what is to be inferred out: sample('x', distribution); a model of "
        "param statements alone takes an empty guide: lambda *args, **kwargs: None",
    )
