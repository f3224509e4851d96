"""What is asked of the groups, sizes and dims of draws."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probtorch.diagnostics.layout import (
    GROUP_DIMS,
    MATCHING_GROUPS,
    PREDICTIONS,
    dim_names,
    dims_key,
)
from probtorch.errors import ArgumentError, DTypeError, ShapeError

__all__ = ["check_dims", "check_groups"]

# Groups of what the sampler did, mostly a number per draw.
STATISTICS = ("sample_stats", "warmup_sample_stats")


def check_groups(arrays: dict[str, dict[str, np.ndarray]]) -> None:
    """Groups are known, arrays are numeric, and leading dims agree."""
    if not (arrays["posterior"] or arrays["sample_stats"]):
        raise ArgumentError(
            "Draws", expected="at least one variable in posterior or sample_stats", got="none",
            fix="give posterior={name: array (chain, draw, *event)}",
        )  # fmt: skip
    for group, variables in arrays.items():
        if group not in GROUP_DIMS:
            raise ArgumentError(
                f"group {group!r}", expected=f"one of {', '.join(GROUP_DIMS)}", got=repr(group),
                fix="use the group of ArviZ's schema with this meaning, or keep it in `attrs`",
            )  # fmt: skip
        lead = GROUP_DIMS[group]
        for name, values in variables.items():
            kinds = "biufc" if lead else "biufcU"
            if values.dtype.kind not in kinds:
                raise DTypeError(
                    f"{group}[{name!r}]",
                    expected="numbers or booleans" + ("" if lead else ", or text"),
                    got=f"dtype {values.dtype}", fix="convert it, or leave the variable out",
                )  # fmt: skip
            if values.ndim < len(lead):
                raise ShapeError(
                    f"{group}[{name!r}]", expected=f"leading dims {lead}",
                    got=f"shape {values.shape}",
                    fix="draws of a single chain need a leading dim: x[None]",
                )  # fmt: skip
    for family in MATCHING_GROUPS:
        _check_leading_sizes({group: arrays[group] for group in family if group in arrays})


def _check_leading_sizes(groups: dict[str, dict[str, np.ndarray]]) -> None:
    """All variables of these groups have the same numbers of chains and draws."""
    first = None
    for group, variables in groups.items():
        for name, values in variables.items():
            sizes = values.shape[:2]
            first = first or (f"{group}[{name!r}]", sizes)
            if sizes != first[1] or sizes[0] == 0:
                raise ShapeError(
                    f"{group}[{name!r}]",
                    expected=f"(chain, draw) = {first[1]} as in {first[0]}, at least one chain",
                    got=f"shape {values.shape}",
                    fix="put chain first and draw second: np.moveaxis, or reshape",
                )  # fmt: skip


def check_dims(
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    dims: Mapping[str, tuple[str | None, ...]],
    coords: Mapping[str, np.ndarray],
) -> None:
    """Names of dims fit the arrays, and each name has one size."""
    labelled = {dim: (f"coords[{dim!r}]", len(labels)) for dim, labels in coords.items()}
    sizes = {False: dict(labelled), True: dict(labelled)}
    for reserved in ("chain", "draw", "sample"):
        users = [name for name, given in dims.items() if reserved in given]
        if users or reserved in coords:
            raise ArgumentError(
                f"dim {reserved!r} of {users[0] if users else 'coords'}",
                expected="a name other than chain, draw and sample", got=repr(reserved),
                fix="rename the plate",
            )  # fmt: skip
    for group, variables in arrays.items():
        for name, values in variables.items():
            shape = values.shape[len(GROUP_DIMS[group]) :]
            given, seen = dims.get(dims_key(group, name), ()), sizes[group in PREDICTIONS]
            # A log density has lost the event dims of its site, which come last; a statistic of
            # the sampler may have the name of a site.
            lost = group in ("log_likelihood", "log_prior") or (not shape and group in STATISTICS)
            if len(given) > len(shape) and not lost:
                raise ShapeError(
                    f"dims of {group}[{name!r}]", expected=f"at most {len(shape)} names",
                    got=f"{given} for shape {values.shape}",
                    fix="name event dims only; chain and draw need no names",
                )  # fmt: skip
            names = dim_names(name, len(shape), dims, group)
            if len(set(names)) < len(names):
                raise ArgumentError(
                    f"dims of {group}[{name!r}]", expected="different names", got=str(names),
                    fix="give the second one another name, such as school_other",
                )  # fmt: skip
            for dim, size in zip(names, shape):
                where, known = seen.setdefault(dim, (f"{group}[{name!r}]", size))
                if size != known:
                    raise ShapeError(
                        f"{group}[{name!r}], dim {dim!r}",
                        expected=f"size {known} as in {where}", got=f"size {size}",
                        fix="give each plate its own name, and one label per entry",
                    )  # fmt: skip
