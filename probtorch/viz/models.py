"""`render_model`: the sites of a model, its plates, and which site depends on which.

`get_model_relations` has what it draws, `get_dependencies` what inference needs of it.

Dependence is found by watching one run: `_Origins` remembers for every tensor from which sites it
was computed, through whatever operations, discrete ones included. What a site's distribution was
made of is what the site depends on. What Python reads out of a tensor (`item`, an `if`) and what
is in a branch that was not taken are not seen.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypedDict

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.listener import Listener
from probtorch.core.op import Attrs, Op, Operand, Output
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.viz.dot import Dot

__all__ = [
    "Dependencies",
    "ModelRelations",
    "get_dependencies",
    "get_model_relations",
    "render_model",
]

_NONE: frozenset[str] = frozenset()


class ModelRelations(TypedDict):
    """Who depends on whom in a model; see `get_model_relations`."""

    sample_sample: dict[str, list[str]]
    sample_param: dict[str, list[str]]
    sample_dist: dict[str, str]
    param_constraint: dict[str, str]
    plate_sample: dict[str, list[str]]
    observed: list[str]
    deterministic: list[str]


class Dependencies(TypedDict):
    """Who depends on whom before and after data are seen; see `get_dependencies`."""

    prior_dependencies: dict[str, dict[str, set[str]]]
    posterior_dependencies: dict[str, dict[str, set[str]]]


class _Origins(Listener):
    """Names of the sites that tensors were computed from."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, frozenset[str]] = {}
        self._kept: list[TensorBase] = []  # so that identities stay theirs

    def _origins(self, tree: object) -> frozenset[str]:
        """Of all tensors in a tree, and of the distributions in one."""
        found = _NONE
        for x in leaves(tree):
            if isinstance(x, TensorBase):
                found |= self._of.get(id(x), _NONE)
        return found

    def _mark(self, tree: object, names: frozenset[str]) -> None:
        """From now on tensors in a tree come from these sites alone."""
        for x in leaves(tree):
            if isinstance(x, TensorBase):
                self._of[id(x)] = names
                self._kept.append(x)

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """What comes out comes from what went in."""
        names = self._origins([*inputs, *attrs.values()])
        if names:
            self._mark(list(out) if isinstance(out, tuple) else out, names)
        super().applied(op, inputs, attrs, out)

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Another name of the same elements."""
        self._mark(t, self._origins(source))
        super().alias(source, t, taped)

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """The target, too, comes from what is written into it."""
        self._mark(target, self._origins([target, value]))
        super().in_place(target, value)

    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Iterable[object],
        outs: Iterable[TensorBase],
    ) -> None:
        """As an operation."""
        inputs, outs = list(inputs), list(outs)
        self._mark(outs, self._origins(inputs))
        super().function_applied(function, ctx, inputs, outs)


class _Relations(Handler):
    """Notes, for every site of a run, where what it is made of comes from."""

    def __init__(self, fn: Callable[..., object], origins: _Origins) -> None:
        super().__init__(fn)
        self.origins = origins
        self.sites: dict[str, tuple[Site, frozenset[str]]] = {}

    def after_sample(self, site: Site) -> None:
        """The value comes from the site, the site from what its distribution is made of."""
        self.sites[site.name] = site, self.origins._origins([site.fn, list(site.args)])
        if not site.observed:
            self.origins._mark(site.value, frozenset((site.name,)))

    def after_deterministic(self, site: Site) -> None:
        """It depends on what its value was computed from."""
        self.sites[site.name] = site, self.origins._origins(site.value) - {site.name}
        self.origins._mark(site.value, frozenset((site.name,)))

    def after_param(self, site: Site) -> None:
        """Parameters depend on nothing."""
        self.sites[site.name] = site, _NONE
        self.origins._mark(site.value, frozenset((site.name,)))

    def after_factor(self, site: Site) -> None:
        """A factor is an observation of what it was computed from."""
        self.sites[site.name] = site, self.origins._origins([site.fn, list(site.args), site.value])


def _run(
    model: Callable[..., object],
    model_args: Iterable[object],
    model_kwargs: Mapping[str, object] | None,
) -> dict[str, tuple[Site, frozenset[str]]]:
    with _Origins() as origins:
        watched = _Relations(model, origins)
        watched(*model_args, **dict(model_kwargs or {}))
    return watched.sites


def get_model_relations(
    model: Callable[..., object],
    model_args: tuple[object, ...] | None = None,
    model_kwargs: Mapping[str, object] | None = None,
    include_deterministic: bool = False,
) -> ModelRelations:
    """Return which sites of a model depend on which, by one run of it.

    Parameters
    ----------
    model : callable
    model_args, model_kwargs : tuple, dict, optional
        What it is called with.
    include_deterministic : bool
        Whether a site depends on deterministic sites and those of `Delta`. Otherwise it depends on
        what they depend on.

    Returns
    -------
    dict
        ``"sample_sample"``: of each site, the sites that its distribution is made of;
        ``"sample_param"``: the params; ``"sample_dist"``: the name of its distribution;
        ``"param_constraint"``: of each param, its constraint; ``"plate_sample"``: of each plate,
        its sites; ``"observed"`` and ``"deterministic"``: names of such sites.

    Notes
    -----
    Of a loop or a branch the run that was taken is seen.

    Examples
    --------
    >>> from probtorch import distributions as dist, sample
    >>> def model(y):
    ...     loc = sample("loc", dist.Normal(0.0, 1.0))
    ...     sample("y", dist.Normal(loc * 2.0, 1.0), obs=y)
    >>> get_model_relations(model, (1.0,))["sample_sample"]
    {'loc': [], 'y': ['loc']}
    """
    sites = _run(model, model_args or (), model_kwargs)
    found: ModelRelations = {
        "sample_sample": {},
        "sample_param": {},
        "sample_dist": {},
        "param_constraint": {},
        "plate_sample": {},
        "observed": [],
        "deterministic": [],
    }
    seen = sites if include_deterministic else _random(sites)
    for name, (site, _) in sites.items():
        if site.kind == "param":
            constraint = site.args[1] if len(site.args) > 1 else None
            found["param_constraint"][name] = "" if constraint is None else str(constraint)
            continue
        origins = _shown_origins(name, sites, seen)
        params = [n for n in origins if sites[n][0].kind == "param"]
        found["sample_sample"][name] = [n for n in origins if n not in params]
        found["sample_param"][name] = params
        found["sample_dist"][name] = _distribution(site)
        for frame in site.plates:
            found["plate_sample"].setdefault(frame.name, []).append(name)
        if site.observed or site.kind == "factor":
            found["observed"].append(name)
        if site.kind == "deterministic":
            found["deterministic"].append(name)
    return found


def get_dependencies(
    model: Callable[..., object],
    model_args: tuple[object, ...] | None = None,
    model_kwargs: Mapping[str, object] | None = None,
    include_deterministic: bool = False,
) -> Dependencies:
    """Return on which sites each site depends, before data are seen and after, by one run.

    Parameters
    ----------
    model : callable
    model_args, model_kwargs : tuple, dict, optional
        What it is called with.
    include_deterministic : bool
        Whether deterministic sites and those of `Delta` are sites like others. Otherwise what
        depends on one depends on what that depends on.

    Returns
    -------
    dict
        ``"prior_dependencies"``: of each site, itself and the latent sites that its distribution is
        made of. ``"posterior_dependencies"``: of each latent site, itself and the sites at or after
        it that it is not independent of, given the data and all other sites: those that depend on
        it, and those on which one of these depends besides. Each comes with the plates
        across whose rows the two depend: where every row of one depends on all rows of the other.

    Notes
    -----
    Observations that are masked out by ``mask=False`` are left out. All sites count as if something
    that depends on them were observed.

    References
    ----------
    Webb et al. (2018), Faithful inversion of generative models for effective amortized inference.

    Examples
    --------
    >>> from probtorch import distributions as dist, sample
    >>> def model(y):
    ...     a, b = (sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    ...     sample("y", dist.Normal(a + b, 1.0), obs=y)
    >>> get_dependencies(model, (1.0,))["posterior_dependencies"]
    {'a': {'a': set(), 'y': set(), 'b': set()}, 'b': {'b': set(), 'y': set()}}
    """
    sites = _run(model, model_args or (), model_kwargs)
    stated = {
        name: found
        for name, found in (sites if include_deterministic else _random(sites)).items()
        if found[0].kind != "param" and not (_is_data(found[0]) and found[0].mask is False)
    }
    latent = [name for name, (site, _) in stated.items() if not _is_data(site)]
    prior: dict[str, dict[str, set[str]]] = {}
    for name in stated:
        origins = {name, *_shown_origins(name, sites, stated)}
        prior[name] = {n: set() for n in stated if n == name or n in origins.intersection(latent)}
    posterior: dict[str, dict[str, set[str]]] = {
        name: {n: set() for n in stated if name in prior[n]} for name in latent
    }
    place = {name: i for i, name in enumerate(stated)}
    plates = {
        name: {frame.name for frame in site.plates if frame.dim is not None}
        for name, (site, _) in stated.items()
    }
    for name, upstream in prior.items():
        # Those that one site is made of are tied to one another once it is known.
        tied = [n for n in upstream if n in posterior]
        for one, other in itertools.product(tied, tied):
            if place[one] <= place[other]:
                across = posterior[one].setdefault(other, set())
                across |= plates[one] & plates[other] - plates[name]
    return {"prior_dependencies": prior, "posterior_dependencies": posterior}


def _is_data(site: Site) -> bool:
    return site.observed or site.kind == "factor"


def _random(
    sites: Mapping[str, tuple[Site, frozenset[str]]],
) -> dict[str, tuple[Site, frozenset[str]]]:
    """Sites whose values do not follow from those of others."""
    return {
        name: found
        for name, found in sites.items()
        if found[0].kind != "deterministic" and _distribution(found[0]) != "Delta"
    }


def render_model(
    model: Callable[..., object],
    model_args: tuple[object, ...] | None = None,
    model_kwargs: Mapping[str, object] | None = None,
    filename: str | os.PathLike[str] | None = None,
    render_distributions: bool = False,
    render_params: bool = False,
    render_deterministic: bool = False,
) -> Dot:
    """Return a graph of a model: its sites, its plates, and which site depends on which.

    Parameters
    ----------
    model : callable
    model_args, model_kwargs : tuple, dict, optional
        What it is called with.
    filename : str or path-like, optional
        Where to write the picture; its ending says in which format. Without Graphviz the graph is
        written as text, and a warning says so.
    render_distributions : bool
        Say beside the graph which site has which distribution, and which param which constraint.
    render_params : bool
        Show params.
    render_deterministic : bool
        Show deterministic sites; otherwise what depends on one depends on what that depends on.

    Returns
    -------
    Dot
        Notebooks show it, where Graphviz is installed. Observed sites are grey, deterministic ones
        dashed, params without a line around them.

    Examples
    --------
    >>> from probtorch import distributions as dist, plate, sample
    >>> def model(y):
    ...     loc = sample("loc", dist.Normal(0.0, 1.0))
    ...     with plate("rows", len(y)):
    ...         sample("y", dist.Normal(loc, 1.0), obs=y)
    >>> print(render_model(model, ([1.0, 2.0],)).source)
    digraph "model" {
      "loc" [label="loc" shape="circle" style="filled" fillcolor="white"]
      subgraph "cluster_rows" {
        label="rows" labeljust=r labelloc=b
        "y" [label="y" shape="circle" style="filled" fillcolor="gray"]
      }
      "loc" -> "y"
    }
    """
    sites = _run(model, model_args or (), model_kwargs)
    shown = {
        name: site
        for name, (site, _) in sites.items()
        if (render_params or site.kind != "param")
        and (render_deterministic or site.kind != "deterministic")
    }
    dot = Dot("model")
    _draw_plates(dot, (), shown)
    for name in shown:
        for origin in _shown_origins(name, sites, shown):
            dot.edge(origin, name)
    if render_distributions:
        lines = [_legend(site) for site in shown.values()]
        dot.node("_distributions", label="\n".join(lines) + "\n", shape="plaintext")
    if filename is not None:
        dot.render(filename)
    return dot


def _draw_plates(dot: Dot, plates: tuple[str, ...], sites: Mapping[str, Site]) -> None:
    """Draw sites that are in these plates and no others, then the plates within them."""
    inner: dict[str, None] = {}
    for name, site in sites.items():
        around = tuple(frame.name for frame in site.plates)
        if around == plates:
            dot.node(name, label=name, **_look(site))
        elif around[: len(plates)] == plates:
            inner[around[len(plates)]] = None
    for plate in inner:
        dot.open_cluster("__".join((*plates, plate)), plate)
        _draw_plates(dot, (*plates, plate), sites)
        dot.close_cluster()


def _look(site: Site) -> dict[str, object]:
    if site.kind == "param":
        return {"shape": "plain"}
    if site.kind == "factor":
        return {"shape": "square", "style": "filled", "fillcolor": "gray"}
    style = "filled,dashed" if site.kind == "deterministic" else "filled"
    return {"shape": "circle", "style": style, "fillcolor": "gray" if site.observed else "white"}


def _shown_origins(
    name: str, sites: Mapping[str, tuple[Site, frozenset[str]]], shown: Container[str]
) -> list[str]:
    """What a site depends on, through sites that are not shown."""
    found, todo = set(), list(sites[name][1])
    while todo:
        origin = todo.pop()
        if origin in shown and origin != name:
            found.add(origin)
        elif origin != name:
            todo += sites[origin][1]
    return [n for n in sites if n in found]


def _distribution(site: Site) -> str:
    """The name of the innermost distribution: of Independent(Normal), Normal."""
    fn = site.fn
    while hasattr(fn, "base_dist") and type(fn).__name__ in ("Independent", "MaskedDistribution"):
        fn = fn.base_dist
    if site.kind == "deterministic":
        return "Deterministic"
    return "Factor" if site.kind == "factor" else type(fn).__name__


def _legend(site: Site) -> str:
    if site.kind == "param":
        constraint = site.args[1] if len(site.args) > 1 and site.args[1] is not None else "real"
        return f"{site.name} \u2208 {constraint}"
    sign = "=" if site.kind == "deterministic" else "~"
    return f"{site.name} {sign} {_distribution(site)}"


explain_calls(globals())
