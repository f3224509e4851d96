"""`Trace`: the sites of one run of a model, in order, and their joint log density.

Reads like NumPyro's (``tr["x"]["value"]``, a mapping from names) and like Pyro's
(``tr.nodes["x"]["value"]``). It is filled by the `trace` handler in handlers.py. `plate_info` turns
the plates around each site into named dims with coordinates, which is what results are labelled
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tree import record
from probtorch.core.typed import Shape, Tree
from probtorch.effects.site import Site
from probtorch.errors import ModelError
from probtorch.tensor import Tensor

__all__ = ["PlateInfo", "Trace", "plate_info"]


def _all_sites(name: str, site: Site) -> bool:
    return True


class _Nodes(dict):
    """Sites by name; looks up Pyro's "_INPUT" and "_RETURN" too, without listing them.

    What these say is kept here, and the trace asks for it: as a reference cycle of the two, all
    that a run computed would wait for the garbage collector.
    """

    def __init__(self) -> None:
        super().__init__()
        self.args: tuple[object, ...] = ()
        self.kwargs: dict[str, object] = {}
        self.returned: Tree = None

    def __missing__(self, name: str) -> Site:
        if name == "_INPUT":
            return Site("args", name, args=self.args, kwargs=self.kwargs)
        if name == "_RETURN":
            return Site("return", name, value=self.returned)
        raise KeyError(name)


def _of_nodes(name: str) -> Tree:
    """A property of a trace that its nodes keep: to a reader of the trace, a tree."""

    def fetch(trace: Trace) -> object:
        return getattr(trace.nodes, name)

    def store(trace: Trace, value: object) -> None:
        setattr(trace.nodes, name, value)

    return property(fetch, store)


class Trace(Mapping):
    """The sites of one run of a model, by name and in order of appearance.

    Attributes
    ----------
    nodes : dict of Site
        ``nodes["_RETURN"]["value"]`` is the model's return value and ``nodes["_INPUT"]`` its
        arguments, as in Pyro.
    args, kwargs, returned
        The model's arguments and return value.
    """

    args = _of_nodes("args")
    kwargs = _of_nodes("kwargs")
    returned = _of_nodes("returned")

    def __init__(self) -> None:
        self.nodes: dict[str, Site] = _Nodes()

    def __getitem__(self, name: str) -> Site:
        return self.nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def trace(self) -> Trace:
        """The trace itself: Pyro's ``with trace() as tp: ...; tp.trace`` works too."""
        return self

    def get_trace(self) -> Trace:
        """Return the trace itself; see `trace`."""
        return self

    def add(self, site: Site) -> None:
        """Append a site.

        Raises
        ------
        ModelError
            If the name is taken; a parameter may be read again, and a plate entered again at the
            same size.
        """
        before = self.nodes.get(site.name)
        if before is not None and before is not site:
            if before.kind == site.kind == "param":
                return
            if before.kind == site.kind == "plate":
                _check_same_plate(before, site)
                return
            raise ModelError(
                f"Multiple {site.kind} sites named {site.name!r}",
                expected="a name of its own for every site",
                got=f"{before.kind} at {before.location} and {site.kind} at {site.location}",
                fix=f"rename one; in a loop write f'{site.name}_{{i}}'",
                at=site.location,
            )
        self.nodes[site.name] = site

    def copy(self) -> Trace:
        """Return a trace with the same sites, to which others can be added."""
        out = Trace()
        out.nodes.update(self.nodes)
        out.args, out.kwargs, out.returned = self.args, self.kwargs, self.returned
        return out

    # -------------------------------------------------------------------- density

    def compute_log_prob(self, site_filter: Callable[[str, Site], bool] = _all_sites) -> None:
        """Fill in ``log_prob`` and its kin at every site with a density.

        Raises
        ------
        ModelError
            If a site has batch dims outside any plate.
        DomainError
            If a value lies outside its support and validation is on.
        """
        for name, site in self.nodes.items():
            if site.has_density and site_filter(name, site):
                site.compute_log_prob_sum()

    def log_prob_sum(self, site_filter: Callable[[str, Site], bool] = _all_sites) -> Tensor:
        """Return the joint log density of all sites that ``site_filter(name, site)`` lets through.

        Returns
        -------
        log_joint : Tensor, shape ()
            Natural log, scaled and masked; raises what `compute_log_prob` raises.
        """
        total = None
        for name, site in self.nodes.items():
            if site.has_density and site_filter(name, site):
                term = site.compute_log_prob_sum()
                total = term if total is None else total + term
        return wrap(np.zeros(())) if total is None else total

    # -------------------------------------------------------------------- groups of sites

    @property
    def stochastic_nodes(self) -> list[str]:
        """Names of the latent sample sites."""
        return [n for n, s in self.nodes.items() if s.kind == "sample" and not s.observed]

    @property
    def observation_nodes(self) -> list[str]:
        """Names of the observed sample sites."""
        return [n for n, s in self.nodes.items() if s.kind == "sample" and s.observed]

    @property
    def param_nodes(self) -> list[str]:
        """Names of the parameters."""
        return [n for n, s in self.nodes.items() if s.kind == "param"]

    @property
    def reparameterized_nodes(self) -> list[str]:
        """Names of the latent sites whose draws are differentiable."""
        return [n for n in self.stochastic_nodes if getattr(self.nodes[n].fn, "has_rsample", False)]

    @property
    def nonreparam_stochastic_nodes(self) -> list[str]:
        """Names of the latent sites whose draws carry no gradient."""
        differentiable = set(self.reparameterized_nodes)
        return [n for n in self.stochastic_nodes if n not in differentiable]

    # -------------------------------------------------------------------- reading

    def format_shapes(self, title: str = "Trace Shapes:", last_site: str | None = None) -> str:
        """Return a table of the shapes of distributions, values and log densities, batch | event.

        Parameters
        ----------
        title : str
            The first line.
        last_site : str, optional
            Stop after this site.
        """
        rows = [(title, "", "", "")]
        groups = (("Param Sites:", ("param",)), ("Sample Sites:", ("sample", "factor")))
        for heading, kinds in groups:
            rows.append((heading, "", "", ""))
            for name, site in self.nodes.items():
                if site.kind in kinds:
                    rows.extend(_shape_rows(name, site))
                if name == last_site:
                    break
        plates = {f.name: f for s in self.nodes.values() for f in s.plates if f.dim is not None}
        rows.append(("Plates:", "", "", ""))
        rows.extend(
            (name, "dim", str(frame.dim), f"size {frame.size}") for name, frame in plates.items()
        )
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            f"{a:>{widths[0]}} {b:>{widths[1]}} {c:>{widths[2]}} {'|' if b else ''} {d}".rstrip()
            for a, b, c, d in rows
        )

    def __repr__(self) -> str:
        return f"<trace of {', '.join(map(repr, self.nodes)) or 'no sites'}>"


@record
class PlateInfo:
    """Named dims of the sites of a trace.

    Attributes
    ----------
    dims : dict of str to tuple
        For every site the names of its batch dims from left to right; None for a dim that no plate
        takes.
    coords : dict of str to tuple
        For every plate with coordinates its labels, one per row.
    sizes : dict of str to int
        For every vectorised plate the number of rows in use.
    """

    dims: dict[str, tuple[str | None, ...]]
    coords: dict[str, tuple[object, ...]]
    sizes: dict[str, int]


def plate_info(trace: Trace) -> PlateInfo:
    """Return which plate each batch dim of each site belongs to.

    Notes
    -----
    A plate that works on a subsample has a size but no coordinates: its rows differ from run to
    run. The values of a deterministic site say nothing of their batch dims: a dim counts as the
    plate's when the plate is around the statement and the sizes agree.
    """
    dims, coords, sizes = {}, {}, {}
    for name, site in trace.nodes.items():
        if site.kind not in ("sample", "param", "deterministic"):
            continue
        for frame in site.plates:
            if frame.dim is not None:
                sizes[frame.name] = frame.size
                if frame.coords is not None and not frame.subsampled:
                    coords[frame.name] = frame.coords
        dims[name] = _dim_names(site)
    return PlateInfo(dims, coords, sizes)


def _dim_names(site: Site) -> tuple[str | None, ...]:
    shape = _batch_shape(site)
    if shape is None:
        return ()
    names: list[str | None] = [None] * len(shape)
    for frame in site.plates:
        if frame.dim is not None and -frame.dim <= len(shape) and shape[frame.dim] == frame.size:
            names[frame.dim] = frame.name
    return tuple(names)


def _batch_shape(site: Site) -> Shape | None:
    """Sizes of the dims of a site that may belong to plates; None when it has no shape."""
    if site.kind == "sample":
        shape = getattr(site.fn, "batch_shape", None)
        return None if shape is None else tuple(shape)
    shape = getattr(site.value, "shape", None)
    if shape is None:
        return None
    shape = tuple(shape)
    return shape if site.event_dim is None else shape[: len(shape) - site.event_dim]


def _check_same_plate(before: Site, site: Site) -> None:
    first, second = before.notes["full_size"], site.notes["full_size"]
    if first != second:
        raise ModelError(
            f"plate {site.name!r}",
            expected=f"size {first}, as at {before.location}",
            got=f"size {second} at {site.location}",
            fix="give plates of different sizes different names",
            at=site.location,
        )


def _shape_rows(name: str, site: Site) -> Iterator[tuple[str, str, str, str]]:
    """The lines of `format_shapes` for one site."""
    event_dim = site.event_dim or 0
    if site.kind == "sample" and hasattr(site.fn, "event_shape"):
        event_dim = len(site.fn.event_shape)
        yield name, "dist", _numbers(site.fn.batch_shape), _numbers(site.fn.event_shape)
        name = ""
    shape = tuple(getattr(site.value, "shape", ()))
    split = len(shape) - event_dim
    yield name, "value", _numbers(shape[:split]), _numbers(shape[split:])
    if site.log_prob is not None:
        yield "", "log_prob", _numbers(site.log_prob.shape), ""


def _numbers(shape: Iterable[int]) -> str:
    return " ".join(map(str, shape))
