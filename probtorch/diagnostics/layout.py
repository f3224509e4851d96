"""Names around draws: the groups, what their dims are called, how single entries are labelled.

The groups and their spelling are ArviZ's, so that every table, plot and check of that library finds
what it looks for. `draws.py`, `summary.py` and `arviz_.py` all read these tables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    from probtorch.diagnostics.draws import Draws

__all__ = [
    "GROUP_DIMS",
    "MATCHING_GROUPS",
    "PREDICTIONS",
    "chosen",
    "dim_names",
    "dims_key",
    "entry_labels",
    "flat_entries",
    "judged",
    "of_holes",
    "partly_observed",
    "real_parts",
]

CHAIN_DRAW = ("chain", "draw")

# The leading dims of every variable in a group.
GROUP_DIMS = {
    "posterior": CHAIN_DRAW, "sample_stats": CHAIN_DRAW, "log_likelihood": CHAIN_DRAW,
    "log_prior": CHAIN_DRAW, "posterior_predictive": CHAIN_DRAW, "predictions": CHAIN_DRAW,
    "unconstrained_posterior": CHAIN_DRAW,
    "prior": CHAIN_DRAW, "prior_predictive": CHAIN_DRAW, "sample_stats_prior": CHAIN_DRAW,
    "warmup_posterior": CHAIN_DRAW, "warmup_sample_stats": CHAIN_DRAW,
    "prior_sbc": ("sample",), "posterior_sbc": ("sample",),
    "observed_data": (), "constant_data": (), "predictions_constant_data": (),
}  # fmt: skip

# Families of groups whose leading dims agree in size; the first holds one value per posterior draw.
MATCHING_GROUPS = (
    ("posterior", "sample_stats", "log_likelihood", "log_prior", "posterior_predictive",
     "predictions", "unconstrained_posterior"),
    ("prior", "prior_predictive", "sample_stats_prior"),
    ("warmup_posterior", "warmup_sample_stats"),
)  # fmt: skip

# What is predicted has rows of its own: they are neither those of the data nor as many.
PREDICTIONS = ("predictions", "predictions_constant_data")

# What is missing of data x is x_unobserved; see effects/primitives.py.
MISSING_PART = "_unobserved"


def dims_key(group: str, name: str) -> str:
    """Return what the dims of a variable of a group are called in `Draws.dims`."""
    return f"predictions/{name}" if group in PREDICTIONS else name


def dim_names(
    name: str,
    event_ndim: int,
    dims: Mapping[str, Sequence[str | None]],
    group: str = "posterior",
) -> tuple[str, ...]:
    """Name each event dim of a variable: from `dims` where given, else like ``theta_dim_0``.

    A variable may name fewer dims than it has (the plates come first, the event dims stay unnamed).
    """
    given = dims.get(dims_key(group, name), ())[:event_ndim]
    return tuple(
        dim if i < len(given) and (dim := given[i]) is not None else f"{name}_dim_{i}"
        for i in range(event_ndim)
    )


def entry_labels(
    name: str,
    shape: Sequence[int],
    dims: Mapping[str, Sequence[str | None]],
    coords: Mapping[str, Sequence[object] | np.ndarray],
) -> list[str]:
    """Label the entries of a variable in C order: ``theta``, ``theta[0]``, ``theta[Choate, 1]``."""
    if not shape:
        return [name]
    axes = []
    for dim, size in zip(dim_names(name, len(shape), dims), shape):
        axes.append([str(label) for label in coords[dim]] if dim in coords else range(size))
    return [f"{name}[{', '.join(map(str, labels))}]" for labels in itertools.product(*axes)]


def flat_entries(values: np.ndarray) -> np.ndarray:
    """View draws (chain, draw, *event) as (chain, draw, entry), also when there are none."""
    return values.reshape((*values.shape[:2], math.prod(values.shape[2:])))


def partly_observed(posterior: Mapping[str, np.ndarray]) -> set[str]:
    """Return the variables that are data in part: those joined, and the part that is missing."""
    parts = {name: name + MISSING_PART for name in posterior if name + MISSING_PART in posterior}
    return {*parts, *parts.values()}


def of_holes(labels: Sequence[str], values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return labels and draws (chain, draw, entry) of entries that vary: the others are data."""
    flat = flat_entries(values)
    varies = (flat != flat[:1, :1]).any(axis=(0, 1))
    return [label for label, is_hole in zip(labels, varies) if is_hole], flat[:, :, varies]


def real_parts(variables: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, array) with each complex variable as two real ones, `_real` and `_imag`."""
    for name, values in variables.items():
        values = np.asarray(values)
        if values.dtype.kind == "c":
            yield f"{name}_real", values.real
            yield f"{name}_imag", values.imag
        else:
            yield name, values


def judged(names: str | Sequence[str] | None, draws: Draws) -> str | Sequence[str] | None:
    """Return the names given, or those of all variables but for the machinery of a sampler.

    A result says which these are: numbers that mean something together only, such as trees.
    """
    machinery = draws.attrs.get("machinery_sites", ())
    if names is not None or not machinery:
        return names
    return [name for name in draws.posterior if name not in machinery]


def chosen(names: Iterable[str] | None, available: Mapping[str, object], subject: str) -> list[str]:
    """Return the wanted names as a list; None means all of them, a string one."""
    if names is None:
        return list(available)
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in available]
    if unknown:
        raise ArgumentError(
            subject, expected=f"names among {', '.join(map(str, available)) or '(none)'}",
            got=", ".join(map(str, unknown)), fix="check the spelling; leave `names` out for all",
        )  # fmt: skip
    return names
