"""`AutoStructured`: a conditional distribution for each site, given the sites before it.

Unconstrained values are laid out as blocks: the rows of plates that the posterior keeps apart stay
batch dims, all the rest of a site (event, and rows that are coupled) is one vector. A block is
``loc + shift + noise``: the noise is normal, with scales of its own (or nothing, or the user's),
and the shift is a function, usually linear, of how far the blocks before it are from their ``loc``.
That function has an entry for each row, so local latents follow the global ones, each in its way.

structure.py says which blocks depend on which. Read mean_field.py first.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.placing import replicate
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.base import SummarisedByDraws, check_scale, off_tape, plate_at
from probtorch.infer.guides.layout import SiteBlock, block_of
from probtorch.infer.guides.structure import elimination_parents, factors_of, sorted_by_parents
from probtorch.infer.names import unknown_name
from probtorch.infer.starts.initialization import Strategy, init_to_feasible
from probtorch.nn.module import Module
from probtorch.nn.utils import with_parameters
from probtorch.ops.movement import expand, reshape, squeeze, unsqueeze
from probtorch.ops.pieces import cat

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.effects.site import Frame


__all__ = ["AutoStructured"]

CONDITIONALS = ("delta", "normal", "mvn")


class AutoStructured(SummarisedByDraws):
    """A distribution for each site given the sites before it.

    Parameters
    ----------
    model : callable
    conditionals : str, callable, or dict of str to either
        How a site is distributed given the others, for all sites or by name: ``"delta"`` a point,
        ``"normal"`` independent numbers, ``"mvn"`` (also for sites that a dict leaves out) a
        multivariate normal; or a function without arguments that returns noise around 0, with
        `param` and `sample` statements of its own (helpers: ``infer={"is_auxiliary": True}``).
    dependencies : str, or dict of str to dict of str to (str or callable)
        ``"linear"`` lets every site depend on the earlier ones that the posterior ties it to; they
        are read off a run of the model. Or ``{site: {earlier site: "linear"}}``, where a function
        of the earlier site's distance from its location may stand for "linear"; a `Module` is
        trained along.
    init_loc_fn : callable
        Where the guide starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    create_plates, prefix, dtype
        See `AutoGuide`.

    Raises
    ------
    ArgumentError
        If conditionals or dependencies are of an unknown kind, or go around in a circle.
    ModelError
        At the first call: if they name a site that the model does not have.
    InferenceError
        If a site outside of a plate that works on subsamples is to depend on a site inside.

    Notes
    -----
    Rows of a plate are kept apart if every log density that sees the site lies in the plate;
    otherwise all rows are part of one vector. Global sites come before local ones, which then
    depend on them row by row: that also works where the plate works on subsamples, and the guide
    grows linearly with the number of rows.

    Parameters are ``{site}_auto_loc``, ``{site}_auto_scale``, ``{site}_auto_scale_tril`` (unit
    diagonal) and ``{site}_auto_weight``, whose columns are the numbers of the sites in
    ``guide.dependencies[site]``, in that order; those of networks are called
    ``{site}_auto_on_{earlier site}.{name}``. Functions get and return tensors
    ``(..., numbers of the site)`` on the unconstrained scale. A point has the density 1 there,
    without Jacobian, as in `AutoDelta`.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoStructured
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     scale = probtorch.sample("scale", dist.LogNormal(0.0, 1.0))
    ...     with probtorch.plate("row", len(y)):
    ...         z = probtorch.sample("z", dist.Normal(0.0, scale))
    ...         probtorch.sample("y", dist.Normal(z, 1.0), obs=y)
    >>> guide = AutoStructured(model, conditionals={"scale": "normal", "z": "normal"})
    >>> svi = SVI(model, guide, Adam({"lr": 0.01}), seed=0)
    >>> result = svi.run(5, probtorch.tensor([1.0, -2.0, 0.5]), progress_bar=False)
    >>> guide.dependencies
    {'z': {'scale': 'linear'}}
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        conditionals: str | Mapping[str, str | Callable[[], TensorBase]] = "mvn",
        dependencies: str | Mapping[str, Mapping[str, str | Callable[..., TensorBase]]] = "linear",
        init_loc_fn: Strategy = init_to_feasible,
        init_scale: float = 0.1,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, init_loc_fn=init_loc_fn, create_plates=create_plates, prefix=prefix, dtype=dtype
        )
        self.init_scale = check_scale("AutoStructured", init_scale)
        _check_conditionals(conditionals)
        _check_dependencies(dependencies)
        # By name once the model has been met.
        self.conditionals: Any = conditionals
        self.dependencies: Any = dependencies
        self._blocks: dict[str, SiteBlock] = {}

    # -------------------------------------------------------------------------------- structure

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model to find its latent sites and what they depend on."""
        if self._blocks:
            return
        super().setup(*args, **kwargs)
        factors, ties = factors_of(self.model, self.latents, args, kwargs, precise=self.precise)
        blocks = {n: block_of(latent, factors) for n, latent in self.latents.items()}
        self.conditionals = self._named_conditionals()
        cliques = [names for names, _ in (*factors, *ties)]
        self.dependencies = self._named_dependencies(blocks, cliques)
        order = sorted_by_parents(
            sorted(blocks, key=lambda n: len(blocks[n].local)), self.dependencies
        )
        self._blocks = {n: blocks[n] for n in order}

    def _named_conditionals(self) -> dict[str, object]:
        given = self.conditionals
        if not isinstance(given, Mapping):
            return dict.fromkeys(self.latents, given)
        self._check_names(given, "conditionals")
        return {n: given.get(n, "mvn") for n in self.latents}

    def _named_dependencies(
        self, blocks: Mapping[str, SiteBlock], cliques: Iterable[Iterable[str]]
    ) -> dict[str, dict[str, str | Callable[..., TensorBase]]]:
        given = self.dependencies
        if isinstance(given, Mapping):
            self._check_names(given, "dependencies")
            for name, earlier in given.items():
                self._check_names(earlier, "dependencies")
                for other in earlier:
                    moved = blocks[other].beyond(blocks[name])
                    if any(f.indices is not None for f in moved):
                        raise _comes_and_goes(self, name, other, moved[0])
            return {n: dict(earlier) for n, earlier in given.items()}
        order = sorted(blocks, key=lambda n: len(blocks[n].local))
        found: dict[str, dict[str, str | Callable[..., TensorBase]]] = {}
        for name, parents in elimination_parents(order, cliques).items():
            for other in parents:
                if all(f.indices is None for f in blocks[other].beyond(blocks[name])):
                    found.setdefault(name, {})[other] = given
        return found

    def _check_names(self, given: Iterable[str], argument: str) -> None:
        for name in given:
            if name not in self.latents:
                raise unknown_name(
                    f"AutoStructured({argument}=...): the model has no latent site {name!r}",
                    name,
                    self.latents,
                )

    # ---------------------------------------------------------------------------------- running

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State all latent sites; see `AutoGuide.draw`."""
        values = {}
        away: dict[str, TensorBase] = {}
        for name in self._blocks:
            latent = self.latents[name]
            free = self._free(name, plates, away)
            with self._within(latent, plates):
                if self.conditionals[name] == "delta":
                    point = Delta(latent.transform(free), 0.0, latent.event_dim)
                    values[name] = sample(name, point, infer={"inside": True})
                else:
                    values[name] = self._state(latent, free)
        return {n: values[n] for n in self.latents}

    def _free(self, name: str, plates: dict[str, plate], away: dict[str, TensorBase]) -> TensorBase:
        """Draw the unconstrained value of a site, given how far those before are from their loc."""
        layout, kind = self._blocks[name], self.conditionals[name]
        stem = f"{name}_{self.prefix}"
        with contextlib.ExitStack() as stack:
            for frame in layout.local:
                stack.enter_context(plate_at(plates, frame))
            loc = param(f"{stem}_loc", lambda: self._start(layout), constraints.real, 1)
            middle = self._shifted(loc, name, away)
            if callable(kind):
                vector = middle + self._called(f"{stem}_noise", kind)
            elif kind == "delta":
                vector = middle
            else:
                helper = {"is_auxiliary": True}
                vector = sample(f"{name}_aux", self._around(layout, middle, kind), infer=helper)
        away[name] = vector - loc
        return layout.restored(vector)

    def _start(self, layout: SiteBlock) -> np.ndarray:
        return layout.laid_out(self._init(layout.latent))

    def _around(self, layout: SiteBlock, middle: TensorBase, kind: str) -> Distribution:
        """The normal of a block around its middle."""
        stem, n = f"{layout.latent.name}_{self.prefix}", layout.size
        scale = param(
            f"{stem}_scale",
            lambda: np.full((*layout.rows, n), self.init_scale, self.dtype),
            constraints.softplus_positive,
            1,
        )
        if kind == "normal" or n == 1:
            return Normal(middle, scale).to_event(1)
        tril = param(
            f"{stem}_scale_tril",
            lambda: np.broadcast_to(np.eye(n, dtype=self.dtype), (*layout.rows, n, n)).copy(),
            constraints.unit_lower_cholesky,
            2,
        )
        return MultivariateNormal(
            middle, scale_tril=unsqueeze(scale, -1) * tril, validate_args=False
        )

    def _shifted(self, loc: TensorBase, name: str, away: dict[str, TensorBase]) -> TensorBase:
        """A site's location, moved by how far the ones it depends on are from theirs."""
        layout, stem = self._blocks[name], f"{name}_{self.prefix}"
        seen, middle = [], loc
        for other, function in self.dependencies.get(name, {}).items():
            vector = self._blocks[other].seen_by(layout, away[other])
            if callable(function):
                middle = middle + self._called(f"{stem}_on_{other}", function, vector)
            else:
                seen.append(vector)
        if not seen:
            return middle
        # One matrix for all linear dependences: a parameter for each pair of sites is slow.
        lead = broadcast_shapes(*(v.array.shape[:-1] for v in seen), op=self.__name__)
        vector = cat([expand(v, (*lead, v.array.shape[-1])) for v in seen], -1)
        shape = (*layout.rows, layout.size, vector.array.shape[-1])
        weight = param(f"{stem}_weight", lambda: np.zeros(shape, self.dtype), constraints.real, 2)
        if weight.array.ndim == 2:
            return middle + vector @ weight.mT
        return middle + squeeze(weight @ unsqueeze(vector, -1), -1)

    def _called(self, stem: str, function: Callable[..., TensorBase], *args: object) -> TensorBase:
        """Call a user's function; the parameters of a module are those of the inference."""
        if isinstance(function, Module):
            weights = {
                n: param(f"{stem}.{n}", lambda p=p: p.detach().to(self.dtype))
                for n, p in function.named_parameters()
            }
            function = with_parameters(function, weights)
        return function(*args)

    # -------------------------------------------------------------------------------- questions

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws on the unconstrained scale; see `AutoGuide.free_draws`."""
        count = math.prod(shape)
        depth = max(latent.batch_ndim for latent in self.latents.values())
        away: dict[str, TensorBase] = {}
        hidden = block(hide_fn=lambda site: site.kind != "param")
        with hidden, seed_handler(None, generator), replicate(None, count, -1 - depth):
            plates = {
                f.name: plate(f.name, f.full_size, dim=f.dim, coords=f.coords)
                for latent in self.latents.values()
                for f in latent.frames
            }
            found = {n: self._free(n, plates, away) for n in self._blocks}
        return {n: self._particles(found[n], n, shape, count) for n in self.latents}

    def _particles(
        self, free: TensorBase, name: str, shape: tuple[int, ...], count: int
    ) -> TensorBase:
        own = self.latents[name].free_shape
        if free.array.size == math.prod(own):
            # A point, which depends on no draw.
            return wrap(np.broadcast_to(to_host(free.array).reshape(own), (*shape, *own)).copy())
        return reshape(free, (*shape, *own))

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return medians by name; see `AutoGuide.median`.

        Exact where all dependencies are linear and no conditional is a function, since the guide is
        then symmetric around its locations; otherwise of 10 000 draws.
        """
        with self._asked():
            dependencies = [f for d in self.dependencies.values() for f in d.values()]
            if any(callable(f) for f in (*self.conditionals.values(), *dependencies)):
                return super().median()
            found = {}
            for name, layout in self._blocks.items():
                loc = param(f"{name}_{self.prefix}_loc", lambda b=layout: self._start(b))
                found[name] = self.latents[name].transform(layout.restored(loc))
            return off_tape({n: found[n] for n in self.latents})


# ------------------------------------------------------------------------------------------- checks


def _check_conditionals(given: object) -> None:
    for kind in given.values() if isinstance(given, Mapping) else (given,):
        if not callable(kind) and kind not in CONDITIONALS:
            raise ArgumentError(
                "AutoStructured(conditionals=...)",
                expected=f"{', '.join(map(repr, CONDITIONALS))}, a function, or a dict of them",
                got=repr(kind),
                fix='for example {"x": "normal", "y": "delta"}',
            )


def _check_dependencies(given: object) -> None:
    pairs = [("", "", given)]
    if isinstance(given, Mapping):
        pairs = []
        for name, earlier in given.items():
            if not isinstance(earlier, Mapping):
                raise _bad_dependency(f"{name!r}: {earlier!r}")
            pairs += [(name, other, kind) for other, kind in earlier.items()]
    for name, other, kind in pairs:
        if not callable(kind) and kind != "linear":
            raise _bad_dependency(repr(kind))
        if name and name == other:
            raise _bad_dependency(f"{name!r} on itself")


def _bad_dependency(got: str) -> ArgumentError:
    return ArgumentError(
        "AutoStructured(dependencies=...)",
        expected='"linear", or a dict from sites to dicts from earlier sites to "linear" or a '
        "function",
        got=got,
        fix='for example {"y": {"x": "linear"}}: y depends on x',
    )


def _comes_and_goes(guide: AutoStructured, name: str, other: str, frame: Frame) -> InferenceError:
    return InferenceError(
        f"{guide.__name__}: site {name!r} cannot depend on {other!r}",
        expected="dependence on sites that are all there at every step",
        got=f"site {other!r} in plate {frame.name!r}, which works on {frame.size} of "
        f"{frame.full_size} rows",
        fix=f"let {other!r} depend on {name!r} instead",
        at=guide.latents[other].location,
    )
