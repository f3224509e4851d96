"""Numbers that are missing among the arguments of a model, named where they spoil a parameter.

A nan in one row of a covariate is met far from where it is: as a bad parameter of a distribution.
Errors of first runs and of starts that fail name the argument and the row as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from probtorch.errors import DomainError
from probtorch.infer.labels import array_of, bound_arguments

__all__ = ["CURES", "gaps_among", "with_gaps_told"]

CURES = {
    "nan": "leave these rows out, x[~isnan(x)], or give the missing values a distribution, "
    "sample(..., obs=x, obs_mask=~isnan(x))",
    "inf": "look at how these numbers were made: the log of 0, or a division by 0",
}
KINDS = {"nan": np.isnan, "inf": np.isinf}

E = TypeVar("E", bound=Exception)


def gaps_among(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    kind: str = "nan",
) -> str:
    """Return which arguments have nan or infinite numbers, and where; "" if none has.

    Parameters
    ----------
    model, args, kwargs
        What is run.
    kind : {"nan", "inf"}
    """
    parts = []
    for name, array in _arrays(model, args, kwargs):
        if array.dtype.kind == "f" and KINDS[kind](array).any():
            places = np.argwhere(KINDS[kind](array))
            first = tuple(int(i) for i in places[0])
            parts.append(
                f"argument {name} has {kind} in {len(places)} of {array.size} places, "
                f"the first at index {first}"
            )
    return "; ".join(parts)


def with_gaps_told(
    error: E,
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> E | DomainError:
    """Return an error of a run; if it is about a nan, one that names the arguments with nan."""
    if not isinstance(error, DomainError) or "nan" not in str(error.got):
        return error
    gaps = gaps_among(model, args, kwargs)
    if not gaps:
        return error
    return DomainError(
        error.subject,
        expected=error.expected,
        got=f"{error.got}; {gaps}",
        fix=CURES["nan"],
        at=error.location,
    )


def _arrays(
    model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays among the arguments, and those one level down in dicts and tables, by name."""
    for name, value in bound_arguments(model, args, kwargs).items():
        columns = isinstance(value, Mapping) or hasattr(value, "columns")
        parts = value.items() if columns and hasattr(value, "items") else [(None, value)]
        for key, part in parts:
            array = array_of(part)
            if array is not None:
                yield repr(name) if key is None else f"{name}[{key!r}]", array
