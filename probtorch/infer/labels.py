"""What a model calls its variables and data: dims, coords and arrays for the results.

A plate names a dim and labels it, observed sites are data, and so are arrays among the arguments
of the model that no site observes. results.py writes them beside the draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import record
from probtorch.distributions.distribution import MaskedDistribution
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace, plate_info

__all__ = [
    "Labels",
    "array_arguments",
    "array_of",
    "bound_arguments",
    "labels_of",
    "masked_data",
    "with_gaps",
]


@record
class Labels:
    """Names and data of a model.

    Attributes
    ----------
    dims : dict of str to tuple of str or None
        Names of the batch dims of each variable, None for a dim without a plate.
    coords : dict of str to list
        Labels along the named dims.
    observed : dict of str to ndarray
        Values at the observed sites.
    constant : dict of str to ndarray
        Array arguments of the model that are not among them.
    """

    dims: dict[str, tuple[str | None, ...]]
    coords: dict[str, list[object]]
    observed: dict[str, np.ndarray]
    constant: dict[str, np.ndarray]


def labels_of(
    first: Trace,
    latent: Iterable[str],
    arguments: Mapping[str, np.ndarray],
) -> Labels:
    """Return the labels that a trace of a model gives.

    Parameters
    ----------
    first : Trace
    latent : iterable of str
        Names of the latent and deterministic sites that results show.
    arguments : mapping of str to ndarray
        What the model was given: see `array_arguments`.
    """
    info = plate_info(first)
    observed = {name: to_host(first[name].value.array) for name in first.observation_nodes}
    wanted = {*latent, *observed}
    constant = {}
    for name, array in arguments.items():
        if any(array.shape == y.shape and np.array_equal(array, y) for y in observed.values()):
            continue
        # A variable of the results already has the name: the argument gets another.
        constant[f"{name}_data" if name in first else name] = array
    return Labels(
        dims={
            name: tuple(d and _spelled(d) for d in dims)
            for name, dims in info.dims.items()
            if name in wanted and any(dims)
        },
        coords={_spelled(name): list(labels) for name, labels in info.coords.items()},
        observed=observed,
        constant=constant,
    )


def masked_data(run: Trace) -> tuple[str, ...]:
    """Return the names of the observed sites that have a mask."""
    return tuple(n for n in run.observation_nodes if _masks(run[n]))


def with_gaps(observed: Mapping[str, np.ndarray], runs: Sequence[Trace]) -> dict[str, np.ndarray]:
    """Return the data with nan where a mask takes them out of the density.

    What stands there is no datum: nothing is to be compared with it. Integers become floats then.

    Parameters
    ----------
    observed : dict of str to ndarray
    runs : sequence of Trace
        A mask may depend on latent sites: a gap is one in all runs.
    """
    found = dict(observed)
    for name, y in observed.items():
        there = np.zeros(y.shape, bool)
        for run in runs:
            there |= _there(run[name], y.shape)
        if not there.all():
            found[name] = np.where(there, y, np.nan)
    return found


def _masks(site: Site) -> list[object]:
    masks = [site.mask]
    if isinstance(site.fn, MaskedDistribution):
        masks.append(site.fn._mask)
    return [mask for mask in masks if mask is not None and mask is not True]


def _there(site: Site, shape: tuple[int, ...]) -> np.ndarray:
    """Whether each number of an observed site is in the density."""
    events = len(site.fn.event_shape)
    batch = shape[: len(shape) - events]
    there = np.ones(batch, bool)
    for mask in _masks(site):
        array = to_host(mask.array) if is_tensor(mask) else np.asarray(mask)
        # With values that are summed out in front, it is if it is with any of them.
        array = np.asarray(np.any(array, axis=tuple(range(max(array.ndim - len(batch), 0)))))
        there &= np.broadcast_to(array, batch)
    return np.broadcast_to(there.reshape(batch + (1,) * events), shape)


def array_arguments(
    model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, np.ndarray]:
    """Return the array arguments of a model by the names of its parameters.

    Parameters
    ----------
    model, args, kwargs
        What was run.
    """
    bound = bound_arguments(model, args, kwargs)
    arrays = {name: array_of(value) for name, value in bound.items()}
    return {name: x for name, x in arrays.items() if x is not None and x.dtype.kind in "biuf"}


def bound_arguments(
    model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, object]:
    """Return the arguments of a model by the names of its parameters, as far as they are known."""
    try:
        # A module takes any arguments, and hands them to this.
        bound = inspect.signature(getattr(model, "forward", model)).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return kwargs
    return dict(bound.arguments)


def array_of(value: object) -> np.ndarray | None:
    """A tensor, an array, a column or a list of numbers as an array, None for anything else."""
    if is_tensor(value):
        return to_host(value.array)
    kind = type(value)  # what a proxy says of itself may be an error
    if issubclass(kind, (list, tuple)):
        try:
            return np.array(value)
        except ValueError:  # a ragged list
            return None
    if issubclass(kind, np.generic) or not hasattr(kind, "__array__"):
        return None
    return np.asarray(value)  # columns and tables of pandas, xarray's arrays


def _spelled(plate: str) -> str:
    """A plate's name as a dim of results, where chain, draw and sample mean something else."""
    return f"{plate}_dim" if plate in ("chain", "draw", "sample") else plate
