"""Guides that are the model itself, with another distribution at each latent site.

A messenger guide runs the model, and at each latent site puts a posterior in place of the prior,
which the sites before it have made. So what a site depends on in the model it may depend on in the
guide, and plates are those of the model. Observed sites, factors and deterministic sites are hidden
from whoever looks at the guide.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.arguments import choice_of
from probtorch.core.dtype import float64
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.normal import Normal
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.scalar import AffineTransform
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block
from probtorch.effects.primitives import param
from probtorch.effects.runtime import Handler, outside
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.base import check_scale, particles_here
from probtorch.infer.guides.by_hand import FunctionGuide
from probtorch.infer.guides.latents import Latent
from probtorch.infer.starts.initialization import Strategy, init_to_feasible, init_to_mean

__all__ = [
    "AutoHierarchicalNormalMessenger",
    "AutoMessenger",
    "AutoNormalMessenger",
    "AutoRegressiveMessenger",
]

WEIGHTS = ("element", "scalar")


class AutoMessenger(FunctionGuide):
    """Base of guides that run the model with a posterior in place of each prior.

    Write a subclass with `get_posterior`, or take one of those below.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the guide starts; see `AutoGuide`.
    amortized_plates : collection of str
        Plates whose rows share their parameters: for rows that come once, or are many.
    prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Draws are runs of the model, with the arguments of the first call; medians and quantiles are
    those of 10 000 draws. Sites in plates that work on subsamples are left out of them.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import AutoMessenger
    >>> def model():
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(x, 1.0), obs=probtorch.tensor(2.0))
    >>> class Shifted(AutoMessenger):
    ...     def get_posterior(self, name, prior):
    ...         shift = probtorch.param(f"{name}_shift", probtorch.tensor(0.0))
    ...         return dist.Normal(prior.mean + shift, 0.5)
    >>> guide = Shifted(model)
    >>> sorted(guide())
    ['x']
    """

    side_by_side = True

    def __init__(
        self,
        model: Callable[..., object],
        *,
        init_loc_fn: Strategy = init_to_feasible,
        amortized_plates: Collection[str] = (),
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn, prefix=prefix, dtype=dtype)
        if isinstance(amortized_plates, str) or not all(
            isinstance(name, str) for name in amortized_plates
        ):
            raise ArgumentError(
                f"{type(self).__name__}(amortized_plates=...)",
                expected="names of plates",
                got=repr(amortized_plates),
                fix='for example amortized_plates=("data",)',
            )
        self.amortized_plates = tuple(amortized_plates)

    @abc.abstractmethod
    def get_posterior(self, name: str, prior: Distribution) -> Distribution | TensorBase:
        """Return what the guide draws a site from, given its prior; or its value.

        Parameters
        ----------
        name : str
        prior : Distribution
            As the model states it, given the values that the guide has drawn before.

        Returns
        -------
        Distribution or Tensor
            On the support of the prior. It is made within the site's plates, so `param` statements
            with an ``event_dim`` have the rows in use.
        """

    def stated(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Run the model with the posteriors; return the values of the latent sites by name."""
        posteriors = _Posteriors(self)
        with contextlib.ExitStack() as stack:
            # Data are hidden from the handlers outside, and have to bear several particles.
            for handler in (block(hide_fn=self._hides), *particles_here(), posteriors):
                stack.enter_context(handler)
            self.model(*args, **kwargs)
        return posteriors.values

    def _hides(self, site: Site) -> bool:
        if site.kind == "sample":
            known = site.name in self.latents or bool(site.infer.get("is_auxiliary"))
            return site.observed or not known
        return site.kind in ("factor", "deterministic")

    # -------------------------------------------------------------------- parts for subclasses

    def _learned(
        self,
        latent: Latent,
        name: str,
        init: Callable[[], np.ndarray],
        constraint: constraints.Constraint = constraints.real,
    ) -> TensorBase:
        """A parameter of a site's unconstrained shape, of the rows in use."""

        def start() -> np.ndarray:
            array = np.broadcast_to(init(), latent.free_shape)
            for frame in latent.frames:
                if frame.name in self.amortized_plates and frame.dim is not None:
                    axis = latent.batch_ndim + frame.dim
                    array = array.mean(axis, keepdims=True)
            return np.array(array, self.dtype)

        label = f"{latent.name}_{self.prefix}_{name}"
        return param(label, start, constraint, latent.free_event_ndim)

    def _around(self, latent: Latent, loc: TensorBase, scale: TensorBase) -> Distribution:
        """The image of a normal on the unconstrained scale."""
        normal = Normal(loc, scale).to_event(latent.free_event_ndim)
        if latent.is_real:
            return normal
        return TransformedDistribution(normal, [latent.transform], validate_args=False)


class _Posteriors(Handler):
    """Give latent sites the distributions of a messenger guide, and note their values."""

    def __init__(self, guide: AutoMessenger) -> None:
        super().__init__()
        self.guide = guide
        self.values: dict[str, TensorBase] = {}

    def on_sample(self, site: Site) -> None:
        """Put the posterior in place of the prior."""
        guide, prior = self.guide, site.fn
        if site.observed or site.value is not None or site.name not in guide.latents:
            return
        with outside(self):
            found = guide.get_posterior(site.name, prior)
        if isinstance(found, TensorBase):
            found = Delta(found, 0.0, len(prior.event_shape))
        _check(guide, site, found)
        batch = broadcast_shapes(
            tuple(found.batch_shape), tuple(prior.batch_shape), op=f"posterior of {site.name!r}"
        )
        site.fn = found if batch == tuple(found.batch_shape) else found.expand(batch)
        site.infer["inside"] = True

    def after_sample(self, site: Site) -> None:
        """Note the value."""
        if site.name in self.guide.latents and not site.observed:
            self.values[site.name] = site.value


def _check(guide: AutoMessenger, site: Site, found: object) -> None:
    prior = site.fn
    if isinstance(found, Distribution) and tuple(found.event_shape) == tuple(prior.event_shape):
        return
    shown = f"{type(found).__name__}"
    if isinstance(found, Distribution):
        shown += f" of event shape {tuple(found.event_shape)}"
    raise InferenceError(
        f"{guide.__name__}.get_posterior({site.name!r}, ...)",
        expected=f"a distribution of event shape {tuple(prior.event_shape)}, or a tensor",
        got=shown,
        fix="return one on the support of the prior, with to_event() where that has events",
        at=site.location,
    )


class AutoNormalMessenger(AutoMessenger):
    """An independent normal for each unconstrained number, in the order of the model.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the means start; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    amortized_plates, prefix, dtype
        See `AutoMessenger`.

    Notes
    -----
    The family of `AutoNormal`, with rows that may share parameters. Parameters are
    ``{site}_auto_loc`` and ``{site}_auto_scale``.
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        init_loc_fn: Strategy = init_to_mean,
        init_scale: float = 0.1,
        amortized_plates: Collection[str] = (),
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model,
            init_loc_fn=init_loc_fn,
            amortized_plates=amortized_plates,
            prefix=prefix,
            dtype=dtype,
        )
        self.init_scale = check_scale(type(self).__name__, init_scale)

    def _scale(self, latent: Latent) -> TensorBase:
        return self._learned(
            latent, "scale", lambda: np.array(self.init_scale), constraints.softplus_positive
        )

    def get_posterior(self, name: str, prior: Distribution) -> Distribution:
        """Return the normal of a site; see `AutoMessenger.get_posterior`."""
        latent = self.latents[name]
        loc = self._learned(latent, "loc", lambda: self._init(latent))
        return self._around(latent, loc, self._scale(latent))


class AutoHierarchicalNormalMessenger(AutoNormalMessenger):
    """Normals whose means follow those of the priors, and so the sites before.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where sites start that follow no prior; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    init_weight : float
        How much of the prior's mean a site follows at the start.
    weight_type : {"element", "scalar"}
        Whether each number has a weight of its own, or each site one.
    hierarchical_sites : collection of str, optional
        Sites that follow their priors; all of them if None.
    amortized_plates, prefix, dtype
        See `AutoMessenger`.

    Raises
    ------
    InferenceError
        At the first call: if the prior of such a site has no mean.

    Notes
    -----
    On the unconstrained scale the mean of a site is ``loc + weight * T(prior.mean)``, with T the
    map there; at the start loc is 0. Parameters are ``{site}_auto_loc``, ``{site}_auto_scale`` and
    ``{site}_auto_weight``.
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        init_loc_fn: Strategy = init_to_mean,
        init_scale: float = 0.1,
        init_weight: float = 1.0,
        weight_type: str = "element",
        hierarchical_sites: Collection[str] | None = None,
        amortized_plates: Collection[str] = (),
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            amortized_plates=amortized_plates,
            prefix=prefix,
            dtype=dtype,
        )
        choice_of(self.__name__, "weight_type", weight_type, WEIGHTS)
        self.init_weight, self.weight_type = init_weight, weight_type
        self.hierarchical_sites = hierarchical_sites

    def get_posterior(self, name: str, prior: Distribution) -> Distribution:
        """Return the normal of a site, around its prior's mean; see `AutoMessenger`."""
        latent, chosen = self.latents[name], self.hierarchical_sites
        if chosen is not None and name not in chosen:
            return super().get_posterior(name, prior)
        mean = latent.transform.inv(self._mean(latent, prior))
        start = np.array(self.init_weight, self.dtype)
        if self.weight_type == "scalar":
            weight = param(f"{name}_{self.prefix}_weight", lambda: start)
        else:
            weight = self._learned(latent, "weight", lambda: start)
        loc = self._learned(latent, "loc", lambda: np.zeros(()))
        return self._around(latent, loc + weight * mean, self._scale(latent))

    def _mean(self, latent: Latent, prior: Distribution) -> TensorBase:
        try:
            mean = prior.mean
        except NotImplementedError:
            mean = None
        if mean is None or not np.isfinite(to_host(mean.array)).all():
            raise InferenceError(
                f"{self.__name__}: the prior of site {latent.name!r} has no mean to follow",
                expected="a finite mean",
                got=f"{type(prior).__name__} without one",
                fix="name the others in hierarchical_sites=[...]",
                at=latent.location,
            )
        return mean


class AutoRegressiveMessenger(AutoNormalMessenger):
    """The prior of each site, moved and stretched on the unconstrained scale.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the shifts start; see `AutoGuide`.
    init_scale : float
        What draws of the priors are multiplied by at the start.
    amortized_plates, prefix, dtype
        See `AutoMessenger`.

    Notes
    -----
    A site is ``loc + scale * z``, with z a draw of its prior, given the sites before, all of it on
    the unconstrained scale: the dependences of the model stay, weakened by the scale. Parameters
    are ``{site}_auto_loc`` and ``{site}_auto_scale``.
    """

    def get_posterior(self, name: str, prior: Distribution) -> Distribution:
        """Return the changed prior of a site; see `AutoMessenger.get_posterior`."""
        latent = self.latents[name]
        loc = self._learned(latent, "loc", lambda: self._init(latent))
        affine = AffineTransform(loc, self._scale(latent), latent.free_event_ndim)
        there = [] if latent.is_real else [latent.transform]
        back = [t.inv for t in there]
        return TransformedDistribution(prior, [*back, affine, *there], validate_args=False)
