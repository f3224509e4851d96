"""From the trace of an enumerated run to factors with named axes, and the sums over them.

`axes_of` names what the dims of a run are, `factor_of` packs the log density of a site, and
`marginal_terms` sums variables out of a trace: what comes back are the terms of the log density
that is left. Masks count inside of a sum, scales (of subsampling) outside: the terms are scaled.

A masked element of an enumerated site is not there: its values are averaged, so that it adds
nothing, as no masked element of any site does.

Read effects/enumeration.py and sum_product.py first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.enumeration import Enumeration, out_of_sight
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.sum_product import (
    Axes,
    Axis,
    Eliminated,
    Factor,
    aligned,
    connected,
    eliminate,
)
from probtorch.ops.arithmetic import where

__all__ = [
    "Term",
    "axes_of",
    "compute_densities",
    "factor_of",
    "marginal_terms",
    "names_of",
    "unscaled",
]


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """A summand of a log density.

    Attributes
    ----------
    factor : Factor or None
        Scaled and masked; None for a site that no variable concerns: `log_prob` has its value.
    sites : tuple of Site
        One, or those that a sum over variables has joined.
    """

    factor: Factor | None
    sites: tuple[Site, ...]


def axes_of(enumeration: Enumeration, *traces: Trace) -> Axes:
    """Return the axes of a run: its variables, and the plates of its traces."""
    plates: dict[str, tuple[int, int]] = {}
    for trace in traces:
        for site in trace.nodes.values():
            for frame in site.plates:
                if frame.dim is not None:
                    plates.setdefault(frame.name, (frame.dim, frame.size))
    order = sorted(plates, key=lambda name: plates[name][0])
    return Axes(enumeration.variables.values(), {name: plates[name][1] for name in order})


def names_of(site: Site, shape: tuple[int, ...]) -> list[Axis | None]:
    """Return the axis at each batch dim of a tensor of a site, None where the size is 1.

    Raises
    ------
    InferenceError
        If a variable is out of sight of the site's chain.
    """
    free: int = site.free_dim  # type: ignore[assignment]  # set in every enumerated run
    ndim, dims = len(shape), site.notes["dims"]
    names: list[Axis | None] = []
    for i, size in enumerate(shape):
        dim = i - ndim
        if size == 1:
            names.append(None)
        elif dim > free:
            names.append(next(frame.name for frame in site.plates if frame.dim == dim))
        elif dim in dims:
            names.append(dims[dim])
        else:
            raise out_of_sight(site)
    return names


def unscaled(site: Site) -> TensorBase:
    """Return the log density of a site whose density was computed, without its scale."""
    assert site.unscaled_log_prob is not None
    return site.unscaled_log_prob


def factor_of(site: Site, value: TensorBase, axes: Axes) -> Factor:
    """Return a tensor of a site, such as its log density, as a factor.

    Raises
    ------
    InferenceError
        If the site is outside of a plate, and a variable that it depends on is inside.
    """
    value, own = axes.packed(value, names_of(site, value.array.shape))
    plates = axes.of_rows(frame.name for frame in site.plates if frame.dim is not None)
    for axis in own:
        if isinstance(axis, int) and not axes.plates[axis] <= plates:
            raise _outside(site, axis, axes, plates)
    return Factor(value, own, plates, site.name)


def compute_densities(*traces: Trace) -> None:
    """Compute the log densities of all sites, which are remembered: while their run is watched."""
    for trace in traces:
        for site in trace.nodes.values():
            if site.has_density:
                site.compute_log_prob()


def has_variables(site: Site, value: TensorBase) -> bool:
    """Whether a tensor of a site has dims of variables."""
    shape, free = value.array.shape, site.free_dim
    if free is None or len(shape) < -free:
        return False
    return any(size > 1 for size in shape[: len(shape) + free + 1])


def marginal_terms(
    trace: Trace,
    variables: Collection[int],
    axes: Axes,
    *,
    scaled: bool = True,
    maximum: bool = False,
    tables: list[Eliminated] | None = None,
    extra: Iterable[Factor] = (),
) -> list[Term]:
    """Return the terms of the log density of a trace after `variables` are summed out of it.

    Parameters
    ----------
    trace : Trace
    variables : set of int
    axes : Axes
    scaled : bool
        Whether scales count.
    maximum, tables
        See `sum_product.eliminate`.
    extra : iterable of Factor
        Further factors of the sums.

    Raises
    ------
    InferenceError
        If a sum is intractable, or its sites have different scales.
    """
    terms: list[Term] = []
    factors: list[Factor] = list(extra)
    members: dict[str, Site] = {}
    for name, site in trace.nodes.items():
        if not site.has_density:
            continue
        value = site.compute_log_prob()
        if not has_variables(site, value):
            terms.append(Term(None, (site,)))
            continue
        factor = factor_of(site, value, axes)
        if not any(axis in variables for axis in factor.axes):
            terms.append(Term(factor, (site,)))
            continue
        factor = factor_of(site, _unscaled(site), axes) if _is_scaled(site) else factor
        if "variable" in site.notes and site.mask is not None and site.mask is not True:
            factor = _averaged(factor, site, axes)
        factors.append(factor)
        members[name] = site
    for group in connected(factors, variables):
        (factor,) = eliminate(group, variables, axes, maximum=maximum, tables=tables)
        sites = tuple(members[f.origin] for f in group if f.origin in members)
        terms.append(Term(_scaled(factor, sites, axes) if scaled else factor, sites))
    return terms


def _is_scaled(site: Site) -> bool:
    return type(site.scale) is not float or site.scale != 1.0


def _unscaled(site: Site) -> TensorBase:
    value = site.unscaled_log_prob
    return value if value is not None else site.compute_log_prob()


def _averaged(factor: Factor, site: Site, axes: Axes) -> Factor:
    """A factor of an enumerated site, with the values of masked elements averaged."""
    size = -math.log(axes.size[site.notes["variable"]])
    if site.mask is False:
        return Factor(factor.value + size, factor.axes, factor.plates, factor.origin)
    assert isinstance(site.mask, TensorBase)  # or it is not averaged
    mask = factor_of(site, site.mask, axes)
    onto = axes.ordered({*factor.axes, *mask.axes})
    value = aligned(factor.value, factor.axes, onto)
    value = where(aligned(mask.value, mask.axes, onto), value, value + size)
    return Factor(value, onto, factor.plates, factor.origin)


def _scaled(factor: Factor, sites: tuple[Site, ...], axes: Axes) -> Factor:
    """The result of a sum, times the scale that all of its sites have."""
    first = sites[0]
    for site in sites[1:]:
        if site.scale is not first.scale and not _same(site.scale, first.scale):
            raise _scales_differ(first, site)
    scale = first.scale
    if not isinstance(scale, TensorBase) or not scale.array.ndim:
        if type(scale) is float and scale == 1.0:
            return factor
        return Factor(factor.value * scale, factor.axes, factor.plates, factor.origin)
    scales = factor_of(first, scale, axes)
    if not factor.plates.issuperset(a for a in scales.axes if isinstance(a, str)):
        raise _scales_differ(first, first)
    onto = axes.ordered({*factor.axes, *scales.axes})
    value = aligned(factor.value, factor.axes, onto) * aligned(scales.value, scales.axes, onto)
    return Factor(value, onto, factor.plates, factor.origin)


def _same(a: TensorBase | float, b: TensorBase | float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    if isinstance(a, TensorBase) and isinstance(b, TensorBase):
        # One `scale` handler makes a tensor for each site.
        return np.array_equal(to_host(a.array), to_host(b.array))
    return False


# ------------------------------------------------------------------------------------------- errors


def _outside(site: Site, axis: int, axes: Axes, plates: frozenset[str]) -> InferenceError:
    name = axes.names[axis]
    missing = ", ".join(map(repr, sorted(axes.plates[axis] - plates)))
    return InferenceError(
        f"site {site.name!r} depends on {name!r}, and is outside of plate {missing}",
        expected="sites that depend on one row of an enumerated site, inside its plates",
        got=f"{site.name!r} in {', '.join(map(repr, sorted(plates))) or 'no plate'}: it depends on "
        f"all rows of {name!r}, which has a value for each combination of them",
        fix=f"put {site.name!r} inside plate {missing}, or write it as a loop: for i in plate(...)",
        at=site.location,
    )


def _scales_differ(first: Site, second: Site) -> InferenceError:
    return InferenceError(
        f"sites {first.name!r} and {second.name!r} of one sum have different scales",
        expected="one scale for all sites that an enumerated site is summed out of",
        got=f"{_shown(first.scale)} and {_shown(second.scale)}: a sum over a site outside of a "
        "subsampling plate cannot be estimated from some of the rows without bias",
        fix="put the enumerated site inside the plate, use all rows, or enumerate it in the guide",
        at=second.location,
    )


def _shown(scale: object) -> str:
    return f"{scale:g}" if isinstance(scale, float) else "a tensor of scales"
