"""Reparameterisations: the same model in coordinates that are easier to explore.

A `Reparam` states auxiliary sites in place of one sample site and computes its value from them; the
site itself becomes deterministic. Or it gives the site another distribution, which depends on them;
then the site may be observed. The `reparam` handler applies them by name. The joint law of all
named values is unchanged.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from probtorch.core.shape import broadcast_shapes
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike, Tree
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.effects.primitives import param, sample
from probtorch.effects.runtime import Handler, outside
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, ModelError
from probtorch.tensor import Tensor

__all__ = ["LocScaleReparam", "Reparam", "TransformReparam", "peeled", "reparam", "states_instead"]


@runtime_checkable
class Reparam(Protocol):
    """What `reparam` asks of a reparameterisation.

    One that has an attribute ``takes_data`` which is True is also applied to sites whose value is
    known; one with ``is_joint``, to the values of all steps of a `scan` together.
    """

    def apply(self, site: Site) -> Tensor | Distribution | None:
        """State auxiliary sites and return the value that `site` takes, or its new distribution.

        None leaves the site as it is.
        """


class reparam(Handler):
    """Reparameterise latent sites.

    Parameters
    ----------
    fn : callable, optional
    config : dict from names to Reparam, or callable
        A callable is given the site and returns a Reparam or None. Auxiliary sites are not
        reparameterised again; nest a second handler for that. Sites of a `scan` are
        reparameterised step by step.

    Raises
    ------
    ModelError
        If an observed site is to be reparameterised.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> from probtorch.effects.handlers import trace
    >>> def model():
    ...     return sample("theta", Normal(3.0, 2.0))
    >>> list(trace(reparam(model, config={"theta": LocScaleReparam(0.0)})).get_trace())
    ['theta_decentered', 'theta']
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        config: Mapping[str, Reparam] | Callable[[Site], Reparam | None] | None = None,
    ) -> None:
        if isinstance(fn, Mapping):
            fn, config = None, fn
        super().__init__(fn)
        if not (isinstance(config, Mapping) or callable(config)):
            raise ArgumentError(
                "reparam",
                expected="config, a dict from site names to reparameterisations, or a function",
                got=f"{config!r:.60}",
                fix="write reparam(model, config={'x': LocScaleReparam(0.)})"
                if config is None
                else "for a choice by the data write NUTS(model, reparam='auto'), or give "
                "config=probtorch.infer.choose_reparam(model, *args)",
            )
        self.config: Callable[[Site], Reparam | None] = (
            functools.partial(_by_name, config) if isinstance(config, Mapping) else config
        )

    enters_steps = True
    _in_a_step = False

    # Arguments of the wrapped model in a run, for what depends on them.
    _called_with: tuple[tuple[object, ...], dict[str, object]] = ((), {})

    def __call__(self, *args: object, **kwargs: object) -> Tree:
        if self.fn is None:
            return super().__call__(*args, **kwargs)
        with self.for_one_run() as run:
            run._called_with = args, kwargs
            return self.fn(*args, **kwargs)

    def for_one_run(self) -> reparam:
        """Return the handler that one call enters: a copy, which knows the call's arguments."""
        return copy.copy(self)

    def for_a_step(self) -> reparam:
        """Return the handler that a step of `scan` enters."""
        run = copy.copy(self)
        run._in_a_step = True
        return run

    def on_sample(self, site: Site) -> None:
        """Replace the site by its auxiliary sites."""
        change = self.config(site)
        if change is None:
            return
        if self._in_a_step or "steps" in site.notes:
            if getattr(change, "is_joint", False) == self._in_a_step:
                return
        site.notes["called_with"] = self._called_with
        if site.value is not None and not getattr(change, "takes_data", False):
            raise ModelError(
                f"site {site.name!r} cannot be reparameterised",
                expected="a latent site without a value",
                got="an observed site" if site.observed else "a site whose value is fixed already",
                fix="leave it out of config, or put the handler that fixes it outside of reparam",
                at=site.location,
            )
        with outside(self):
            made = change.apply(site)
        if isinstance(made, Distribution):
            site.fn = made
        elif made is not None:
            site.event_dim = len(site.fn.event_shape)
            site.value, site.kind, site.fn = made, "deterministic", None


def _by_name(config: Mapping[str, Reparam], site: Site) -> Reparam | None:
    return config.get(site.name)


class LocScaleReparam:
    """Decentre a location-scale family (Gorinova, Moore and Hoffman 2019).

    Draws ``{name}_decentered`` and returns ``loc + scale**(1 - c) * (decentered - c * loc)``.

    Parameters
    ----------
    centered : float or Tensor in [0, 1], optional
        c: 1 leaves the site as it is, 0 is the fully non-centred form; by default learned, one
        number per element, as the parameter ``{name}_centered``.
    shape_params : tuple of str
        Further parameters of the family that are passed on, such as ``df``.
    """

    def __init__(
        self, centered: TensorLike | None = None, shape_params: tuple[str, ...] = ()
    ) -> None:
        if isinstance(centered, (int, float)) and not 0.0 <= centered <= 1.0:
            raise ArgumentError(
                "LocScaleReparam",
                expected="centered in [0, 1]",
                got=repr(centered),
                fix="0 is the non-centred form, 1 the centred one",
            )
        self.centered, self.shape_params = centered, shape_params

    def __repr__(self) -> str:
        return call_of(self)

    def apply(self, site: Site) -> Tensor:
        """State the decentred site and return the value."""
        fn, name = site.fn, site.name
        base, event_dim = peeled(fn)
        if base.event_shape or not (hasattr(base, "loc") and hasattr(base, "scale")):
            raise ModelError(
                f"site {name!r} cannot be decentred",
                expected="a univariate distribution with loc and scale",
                got=type(base).__name__,
                fix="use another reparameterisation for this site",
                at=site.location,
            )
        loc, scale = base.loc, base.scale
        c: Any = self.centered
        if c is None:
            half = loc.new_full(broadcast_shapes(tuple(loc.shape), tuple(scale.shape)), 0.5)
            c = param(f"{name}_centered", half, constraint=constraints.unit_interval)
        if isinstance(c, (int, float)) and c == 0.0:
            # Constants: no gradient of loc and scale passes through the auxiliary density.
            new_loc, new_scale = loc.new_zeros(loc.shape), scale.new_ones(scale.shape)
        else:
            new_loc, new_scale = loc * c, scale**c
        shape = {key: getattr(base, key) for key in self.shape_params}
        decentered = type(base)(loc=new_loc, scale=new_scale, **shape)
        decentered = decentered.expand(tuple(fn.batch_shape) + tuple(fn.event_shape))
        decentered = decentered.to_event(event_dim)
        z = sample(f"{name}_decentered", decentered, infer=site.infer)
        return loc + scale ** (1.0 - c) * (z - c * loc)


class TransformReparam:
    """Draw the base of a `TransformedDistribution` as ``{name}_base``, and transform it."""

    def apply(self, site: Site) -> Tensor:
        """State the base site and return its image."""
        fn = site.fn
        whole, event_dim = peeled(fn)
        if not hasattr(whole, "transforms"):
            raise ModelError(
                f"site {site.name!r} has no transforms to take apart",
                expected="a TransformedDistribution",
                got=type(whole).__name__,
                fix="use TransformedDistribution(base, transforms), or leave the site as it is",
                at=site.location,
            )
        rows = tuple(fn.batch_shape) + tuple(fn.event_shape[:event_dim])
        base = whole.base_dist.expand(rows).to_event(event_dim)
        value = sample(f"{site.name}_base", base, infer=site.infer)
        for transform in whole.transforms:
            value = transform(value)
        return value


# Endings of the names of sites that are stated in place of another one.
_AUXILIARY = frozenset(
    "base dct decentered exponential gamma haar normal t_exponential t_uniform transformed uniform "
    "unwrapped updated z_exponential z_uniform".split()
)


def states_instead(name: str, sites: Collection[str]) -> bool:
    """Whether `name` is what a reparameterisation states in place of one of some sites."""
    return any(name[len(site) + 1 :] in _AUXILIARY for site in sites if name.startswith(f"{site}_"))


def peeled(fn: Any) -> tuple[Any, int]:
    """The distribution inside of `Independent` wrappers, and how many dims they reinterpret."""
    event_dim = 0
    while hasattr(fn, "reinterpreted_batch_ndims"):
        event_dim += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    return fn, event_dim


explain_calls(globals())
