"""`render_model`: the sites of a model, its plates, and which site depends on which.

Dependence is found by watching one run: `_Origins` remembers for every tensor from which sites it
was computed, through whatever operations, discrete ones included. What a site's distribution was
made of is what the site depends on. What Python reads out of a tensor (`item`, an `if`) and what
is in a branch that was not taken are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
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

__all__ = ["ModelRelations", "get_model_relations", "render_model"]

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
) -> ModelRelations:
    """Return which sites of a model depend on which, by one run of it.

    Parameters
    ----------
    model : callable
    model_args, model_kwargs : tuple, dict, optional
        What it is called with.

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
    for name, (site, origins) in sites.items():
        if site.kind == "param":
            constraint = site.args[1] if len(site.args) > 1 else None
            found["param_constraint"][name] = "" if constraint is None else str(constraint)
            continue
        params = {n for n in origins if sites[n][0].kind == "param"}
        found["sample_sample"][name] = [n for n in sites if n in origins - params]
        found["sample_param"][name] = [n for n in sites if n in params]
        found["sample_dist"][name] = _distribution(site)
        for frame in site.plates:
            found["plate_sample"].setdefault(frame.name, []).append(name)
        if site.observed or site.kind == "factor":
            found["observed"].append(name)
        if site.kind == "deterministic":
            found["deterministic"].append(name)
    return found


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
    name: str, sites: Mapping[str, tuple[Site, frozenset[str]]], shown: Mapping[str, Site]
) -> list[str]:
    """What a site depends on, through sites that are not shown."""
    found, todo = set(), list(sites[name][1])
    while todo:
        origin = todo.pop()
        if origin in shown:
            found.add(origin)
        else:
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
