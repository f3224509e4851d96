"""Guides that are written by hand, in part or whole: `AutoCallable` and `EasyGuide`.

What they share is a function that states sample sites when it is called. Draws are made by calling
it again, with the arguments that it was first called with.
"""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Callable, Iterable

from probtorch.autograd.modes import no_grad
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block, trace
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.effects.runtime import STATE
from probtorch.effects.site import Frame
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer.guides.base import SummarisedByDraws, drawn_side_by_side, off_tape, plate_at
from probtorch.infer.guides.latents import Latent, latent_of
from probtorch.infer.guides.layout import SiteBlock
from probtorch.infer.model_runs import lifted, out_of_sight
from probtorch.infer.starts.initialization import Strategy, init_to_feasible
from probtorch.ops.movement import expand

__all__ = ["AutoCallable", "EasyGuide", "SiteGroup"]


class FunctionGuide(SummarisedByDraws):
    """Base of guides that are a function with sample statements."""

    # Whether draws may be one run under `vmap`: not where a function of the user's could draw from
    # NumPy, which it would do once for all of them.
    side_by_side = False
    # What the first call was given: draws are made with it.
    _given: tuple[tuple[object, ...], dict[str, object]] = ((), {})

    @abc.abstractmethod
    def stated(self, *args: object, **kwargs: object) -> object:
        """State the sites; what is returned is what a call of the guide returns, if a dict."""

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model once to find its latent sites, and keep the arguments."""
        if not self.latents:
            self._given = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
            super().setup(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Call the function; return what it returns if that is a dict, values by name."""
        self.setup(*args, **kwargs)
        with self._in_store():
            found = self.stated(*args, **kwargs)
        return found if isinstance(found, dict) else {}

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State the sites, with the arguments of the first call; return their values by name."""
        args, kwargs = self._given
        with trace() as seen:
            self.stated(*args, **kwargs)
        return {name: seen[name].value for name in self.latents}

    def sample_posterior(
        self,
        sample_shape: int | tuple[int, ...] = (),
        *,
        generator: Generator | None = None,
    ) -> dict[str, TensorBase]:
        """Return draws of the sites by name; see `AutoGuide.sample_posterior`.

        A function of yours is called once for each.

        Sites in plates that work on subsamples are left out.
        """
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        generator = generator or default_generator
        hidden = block(hide_fn=lambda site: site.kind != "param")
        names = [n for n, x in self.latents.items() if not any(f.subsampled for f in x.frames)]

        def one() -> dict[str, TensorBase]:
            values = self.draw({})
            # A point, or a value that does not fill its plates.
            return {n: expand(values[n].detach(), self._shape(n)) for n in names}

        with self._asked(), hidden, seed_handler(None, generator):
            return drawn_side_by_side(one, shape, self.side_by_side)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.latents[name].shape

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws of the continuous sites on the unconstrained scale."""
        drawn = self.sample_posterior(shape, generator=generator)
        return {
            name: self.latents[name].transform.inv(x)
            for name, x in drawn.items()
            if not self.latents[name].support.is_discrete
        }


class AutoCallable(FunctionGuide):
    """A function with sample statements as a guide, alone or in an `AutoGuideList`.

    Parameters
    ----------
    model : callable
    guide : callable
        Called with the model's arguments; draws some of the latent sites or all. What it returns is
        kept if it is a dict from names to values.
    median : callable, optional
        Called as the guide, returns medians by name; by default they are those of 10 000 draws,
        made one by one.
    prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Draws, medians and parameters are asked with the arguments of the first call. Quantiles and
    medians are of continuous sites.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import AutoCallable, AutoGuideList, AutoNormal
    >>> from probtorch.effects.handlers import block
    >>> def model():
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     return probtorch.sample("y", dist.Normal(x, 1.0))
    >>> def y_by_hand():
    ...     loc = probtorch.param("y_loc", probtorch.tensor(0.5))
    ...     probtorch.sample("y", dist.Normal(loc, 1.0))
    >>> guide = AutoGuideList(model)
    >>> guide.append(AutoNormal(block(model, hide=["y"])))
    >>> guide.append(AutoCallable(model, y_by_hand, lambda: {"y": probtorch.param("y_loc")}))
    >>> _ = guide()
    >>> guide.median()["y"].item()
    0.5
    """

    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        median: Callable[..., dict[str, TensorBase]] | None = None,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, prefix=prefix, dtype=dtype)
        for name, given in (("guide", guide), ("median", median)):
            if not callable(given) and not (name == "median" and given is None):
                raise ArgumentError(
                    f"AutoCallable({name}=...)",
                    expected="a function of the model's arguments",
                    got=f"{type(given).__name__} {given!r:.60}",
                    fix="write AutoCallable(model, guide), with sample statements in guide",
                )
        self.guide = guide
        self._median = median

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the function once to find its latent sites, and keep the arguments."""
        if self.latents:
            return
        self._given = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
        with no_grad(), self._in_store(), out_of_sight() as seen:
            self.stated(*self._given[0], **self._given[1])
        self.latents = {
            name: latent_of(site)
            for name, site in seen.nodes.items()
            if site.kind == "sample"
            and not site.observed
            and not site.infer.get("is_auxiliary")
            and hasattr(site.fn, "log_prob")
        }

    def stated(self, *args: object, **kwargs: object) -> object:
        """Call the function."""
        return self.guide(*args, **kwargs)

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return what the function given as `median` returns, or medians of 10 000 draws."""
        if self._median is None:
            return super().median(*args, **kwargs)
        if not (args or kwargs):
            args, kwargs = self._given
        with self._asked(), block(hide_fn=lambda site: site.kind != "param"):
            return off_tape(dict(self._median(*args, **kwargs)))


# ------------------------------------------------------------------------------- groups of sites


class EasyGuide(FunctionGuide):
    """Base of guides that are written by hand with groups of sites as one vector each.

    Write a subclass with a method `guide`, in which `group` finds sites by their names and draws
    them together from a distribution of vectors, and `map_estimate` makes points of others.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where points start; see `AutoGuide`.
    create_plates, prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Plates are entered by the groups, on the rows that the guide has drawn for this call. Draws are
    made with the arguments of the first call; medians and quantiles are those of 10 000 draws, made
    one by one. Parameters of points are called ``{site}_auto_loc``.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import EasyGuide
    >>> def model():
    ...     a = probtorch.sample("a", dist.LogNormal(0.0, 1.0))
    ...     b = probtorch.sample("b", dist.Dirichlet(probtorch.ones(3)))
    ...     probtorch.sample("c", dist.Normal(a, 1.0))
    >>> class Guide(EasyGuide):
    ...     def guide(self):
    ...         self.map_estimate("c")
    ...         group = self.group(match="[ab]")
    ...         loc = probtorch.param("ab_loc", probtorch.zeros(group.event_shape))
    ...         tril = probtorch.param(
    ...             "ab_tril", probtorch.eye(3), dist.constraints.lower_cholesky
    ...         )
    ...         group.sample("ab", dist.MultivariateNormal(loc, scale_tril=tril))
    >>> guide = Guide(model)
    >>> _ = guide()
    >>> sorted((n, tuple(x.shape)) for n, x in guide.sample_posterior(5).items())
    [('a', (5,)), ('b', (5, 3)), ('c', (5,))]
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        init_loc_fn: Strategy = init_to_feasible,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, init_loc_fn=init_loc_fn, create_plates=create_plates, prefix=prefix, dtype=dtype
        )
        # The plates of each call under way, the last one's last.
        self._entered: list[dict[str, plate]] = []

    @abc.abstractmethod
    def guide(self, *args: object, **kwargs: object) -> object:
        """Draw all latent sites of the model, by `group` and `map_estimate` or by statements."""

    def stated(self, *args: object, **kwargs: object) -> object:
        """Make the plates of this call, and call `guide`."""
        self._entered.append(self._plates(args, kwargs))
        try:
            return self.guide(*args, **kwargs)
        finally:
            self._entered.pop()

    def plate(
        self,
        name: str,
        size: int | None = None,
        subsample_size: int | None = None,
        *,
        dim: int | None = None,
    ) -> plate:
        """Return a plate of the model, with the rows of this call.

        Parameters
        ----------
        name : str
        size, subsample_size, dim : int, optional
            Of a plate of the guide's own, if no latent site is in one of this name. Of the model's
            plates they are known.

        Returns
        -------
        plate
            Enter it for parameters and sites of the guide's own that have a value for each row.

        Raises
        ------
        ArgumentError
            If no latent site is in such a plate and there is no size, or another than the
            model's, or `guide` is not being called.
        """
        plates = self._entered[-1] if self._entered else {}
        if name not in plates and size is not None:
            return plate(name, size, subsample_size, dim=dim)
        if name in plates and size not in (None, plates[name].full_size):
            raise ArgumentError(
                f"{self.__name__}.plate({name!r}, size)",
                expected=f"{plates[name].full_size}, the size in the model",
                got=str(size),
                fix="leave it out: the plate is the model's",
            )
        if name not in plates:
            raise ArgumentError(
                f"{self.__name__}.plate({name!r})",
                expected=f"a plate of the model's latent sites, within guide(): "
                f"{', '.join(map(repr, plates)) or 'none'}",
                got=repr(name),
                fix="name one of these, or make a plate of the guide's own",
            )
        return plates[name]

    def group(self, match: str = ".*") -> SiteGroup:
        """Return the latent sites whose whole names a regular expression matches.

        Parameters
        ----------
        match : str

        Returns
        -------
        SiteGroup
            In the model's order.

        Raises
        ------
        ArgumentError
            If it matches none.
        """
        latents = [latent for n, latent in self.latents.items() if re.fullmatch(match, n)]
        if not latents:
            raise ArgumentError(
                f"{self.__name__}.group({match!r})",
                expected=f"a pattern for some of {', '.join(map(repr, self.latents))}",
                got="none that it matches",
                fix="patterns are matched with whole names: '.*_loc' for all that end so",
            )
        return SiteGroup(self, latents)

    def map_estimate(self, name: str) -> TensorBase:
        """State a site as a point that is learned, and return its value.

        Parameters
        ----------
        name : str
        """
        return self.group(re.escape(name)).map_estimate()[name]


class SiteGroup:
    """Some latent sites of a model as one unconstrained vector for each row of their plates.

    `EasyGuide.group` makes it.

    Attributes
    ----------
    guide : EasyGuide
    latents : list of Latent
    frames : tuple of Frame
        Plates that all sites are in, outermost first; the rows of others are part of the vector.
    event_shape : tuple of int
        Length of the vector.
    batch_shape : tuple of int
        Rows of `frames` in use at this call are at these dims.
    """

    def __init__(self, guide: EasyGuide, latents: list[Latent]) -> None:
        self.guide, self.latents = guide, latents
        common: list[Frame] = []
        for frame in latents[0].frames:
            places = [[f.dim for f in x.frames if f.name == frame.name] for x in latents]
            if all(dims == [frame.dim] for dims in places):
                common.append(frame)
        self.frames = tuple(common)
        self._blocks = [SiteBlock.of(latent, self.frames) for latent in latents]
        for latent in latents:
            for frame in latent.frames:
                if frame.subsampled and all(frame.name != f.name for f in common):
                    raise ArgumentError(
                        f"{guide.__name__}.group: site {latent.name!r} is in plate "
                        f"{frame.name!r}, which works on subsamples",
                        expected="groups whose sites are all in such a plate, at one dim, or none",
                        got=", ".join(repr(x.name) for x in latents),
                        fix="make a group of its own for the sites in the plate",
                    )
        self.event_shape = (sum(b.size for b in self._blocks),)
        sizes = {f.dim: f.full_size for f in self.frames if f.dim is not None}
        depth = max((-dim for dim in sizes), default=0)
        self.batch_shape = tuple(sizes.get(dim, 1) for dim in range(-depth, 0))

    def sample(
        self, guide_name: str, fn: Distribution, infer: dict[str, object] | None = None
    ) -> tuple[TensorBase, dict[str, TensorBase]]:
        """Draw all sites of the group from a distribution of vectors.

        Parameters
        ----------
        guide_name : str
            Of the helper site whose value is the vector.
        fn : Distribution, event shape `event_shape`
            On the unconstrained scale; plates that are not around it are entered here.
        infer : dict, optional
            Notes for the helper site.

        Returns
        -------
        vector : Tensor
        values : dict of str to Tensor

        Raises
        ------
        ShapeError
            If `fn` is of vectors of another length.
        """
        if tuple(fn.event_shape) != self.event_shape:
            raise ShapeError(
                f"{self.guide.__name__}: group.sample({guide_name!r}, ...)",
                expected=f"a distribution of event shape {self.event_shape}",
                got=f"{type(fn).__name__} of event shape {tuple(fn.event_shape)}",
                fix="use group.event_shape, and to_event(1) for independent numbers",
            )
        plates = self.guide._entered[-1]
        around = {frame.name for frame in STATE.plates.frames}
        with contextlib.ExitStack() as stack:
            for frame in self.frames:
                if frame.name not in around:
                    stack.enter_context(plate_at(plates, frame))
            vector = sample(guide_name, fn, infer={"is_auxiliary": True, **(infer or {})})
        values, start = {}, 0
        for latent, layout in zip(self.latents, self._blocks, strict=True):
            free = layout.restored(vector[..., start : start + layout.size])
            start += layout.size
            with self.guide._within(latent, plates, around):
                values[latent.name] = self.guide._state(latent, free)
        return vector, values

    def map_estimate(self) -> dict[str, TensorBase]:
        """State all sites of the group as points that are learned; return their values by name."""
        guide, plates, values = self.guide, self.guide._entered[-1], {}
        around = {frame.name for frame in STATE.plates.frames}
        for latent in self.latents:
            with guide._within(latent, plates, around):
                loc = param(
                    f"{latent.name}_{guide.prefix}_loc",
                    lambda latent=latent: guide._init(latent, free=False),
                    latent.support,
                    latent.event_dim,
                )
                values[latent.name] = sample(latent.name, Delta(loc, 0.0, latent.event_dim))
        return values

    def __repr__(self) -> str:
        return f"SiteGroup({', '.join(x.name for x in self.latents)})"
