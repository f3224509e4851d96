"""Values of enumerated sites, after they were summed out: the most probable ones, or a joint draw.

The sum over a variable leaves the table it was summed in. Backwards through these tables, each
variable is chosen given those that went after it: by the largest entry (which generalises Viterbi's
algorithm), or at random (forward filtering, backward sampling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.origins import like_origin
from probtorch.effects.enumeration import Enumeration, SummedVariable
from probtorch.effects.runtime import generator_in_force
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.factors import marginal_terms, names_of
from probtorch.infer.enumeration.sum_product import Axes, Eliminated
from probtorch.ops.categories import categorical
from probtorch.ops.exponential_sums import softmax

__all__ = ["decode", "decode_many", "selected", "values_at"]

# The axis over sets of tables; no plate has this name.
SETS = "(sets)"


def decode(
    trace: Trace,
    enumeration: Enumeration,
    axes: Axes,
    temperature: int = 1,
    generator: Generator | None = None,
) -> dict[str, TensorBase]:
    """Return a value for every latent site of an enumerated trace.

    Parameters
    ----------
    trace : Trace
        Of one run, in which all variables of `enumeration` were enumerated.
    enumeration : Enumeration
    axes : Axes
    temperature : {0, 1}
        0 for the most probable values of the enumerated sites, 1 for a draw from their posterior,
        both jointly and given the other sites.
    generator : Generator, optional
        The one in force if None.

    Returns
    -------
    dict of str to Tensor
        For a site that was drawn for each value of others, the draw for their chosen values.

    Raises
    ------
    InferenceError
        If the data have probability 0.
    """
    tables: list[Eliminated] = []
    variables = enumeration.variables
    with no_grad():
        marginal_terms(
            trace, set(variables), axes, scaled=False, maximum=temperature == 0, tables=tables
        )
    chosen = _choices(tables, variables, axes, temperature, generator)
    return values_at(trace, {v: _laid_out(trace, variables[v], i) for v, i in chosen.items()})


def decode_many(
    tables: Sequence[Eliminated],
    variables: Mapping[int, SummedVariable],
    axes: Axes,
    temperature: int = 1,
    generator: Generator | None = None,
) -> dict[int, np.ndarray]:
    """Return the positions of chosen values for many sets of tables at once.

    Parameters
    ----------
    tables : sequence of Eliminated
        Each with a dim in front, over the sets: two or more.
    variables : mapping from int to SummedVariable
    axes : Axes
        Of one set.
    temperature, generator
        See `decode`.

    Returns
    -------
    dict of int to ndarray of int, each (sets, *rows of the variable's plates)
    """
    sizes = {axis: size for axis, size in axes.size.items() if isinstance(axis, str)}
    rows = {v: replace(x, plates=x.plates | {SETS}) for v, x in variables.items()}
    wide = Axes(rows.values(), {SETS: len(tables[0].table), **sizes})
    spread = [Eliminated(t.variable, t.table, (SETS, *t.axes)) for t in tables]
    return _choices(spread, rows, wide, temperature, generator)


def _choices(
    tables: Sequence[Eliminated],
    variables: Mapping[int, SummedVariable],
    axes: Axes,
    temperature: int,
    generator: Generator | None,
) -> dict[int, np.ndarray]:
    """Positions of the values of all variables, for each row of their plates."""
    generator = generator or generator_in_force()
    chosen: dict[int, np.ndarray] = {v: _nothing(variables[v], axes) for v in variables}
    for table in reversed(tables):
        logits = _given(table, chosen, axes)
        if not (logits > -np.inf).any(-1).all():
            raise _impossible(variables[table.variable])
        if temperature == 0:
            picked = logits.argmax(-1)
        else:
            picked = categorical(softmax(wrap(logits), -1), generator=generator).array
        chosen[table.variable] = picked
    return chosen


def values_at(trace: Trace, chosen: Mapping[int, np.ndarray]) -> dict[str, TensorBase]:
    """Return the values of the latent sites of a trace for chosen values of its variables.

    Parameters
    ----------
    trace : Trace
    chosen : mapping from int to ndarray of int
        For every variable the position of its value, of the shape of the plates around it.
    """
    found = {}
    for name, site in trace.nodes.items():
        if site.kind == "sample" and not site.observed:
            if not hasattr(site.fn, "event_shape"):
                found[name] = site.value
                continue
            at = partial(_tensor_at, site, len(site.fn.event_shape), chosen)
            found[name] = like_origin(site.value, at(site.value), at)
    return found


def _tensor_at(
    site: Site, event_ndim: int, chosen: Mapping[int, np.ndarray], value: TensorBase
) -> TensorBase:
    array = selected(site, value, event_ndim, chosen)
    return wrap(to_device(array, device_of(value.array)))


def selected(
    site: Site, value: TensorBase, event_ndim: int, chosen: Mapping[int, np.ndarray]
) -> np.ndarray:
    """Return a tensor of a site at chosen values of the variables that it depends on.

    Parameters
    ----------
    site : Site
    value : Tensor
        Its value, or its log density.
    event_ndim : int
        How many dims on the right are no batch dims.
    chosen : mapping from int to ndarray of int
        See `values_at`.

    Returns
    -------
    ndarray
        Without the dims of variables.
    """
    array = to_host(value.array)
    batch = array.shape[: array.ndim - event_ndim]
    depth = -1 - site.free_dim  # type: ignore[operator]  # set in every enumerated run
    if len(batch) <= depth:
        return array
    names = names_of(site, batch)
    lead = len(batch) - depth
    key: list[np.ndarray | slice] = []
    for name in names[:lead]:
        index = np.zeros((), np.int64) if name is None else chosen[name]  # type: ignore[index]
        key.append(index.reshape((1,) * (depth - index.ndim) + index.shape))
    for i, size in enumerate(batch[lead:]):
        key.append(np.arange(size).reshape([-1 if j == i else 1 for j in range(depth)]))
    found = array[tuple(key)]
    # Plates that are not around the site have size 1, on the left.
    extra = depth - len(site.plate_shape)
    if found.shape[:extra] == (1,) * extra:
        found = found.reshape(found.shape[extra:])
    return found.copy()


def _laid_out(trace: Trace, variable: SummedVariable, indices: np.ndarray) -> np.ndarray:
    """Choices for the rows of a variable's plates, with the plates at their dims."""
    return indices.reshape(trace[variable.name].plate_shape)


def _plates(v: int, axes: Axes) -> tuple[str, ...]:
    """Plates of a variable that have a dim, from left to right."""
    return axes.ordered(p for p in axes.plates[v] if axes.size[p] != 1)


def _nothing(variable: SummedVariable, axes: Axes) -> np.ndarray:
    """The first value in all rows: right for a variable of one value, which no table has."""
    return np.zeros(tuple(axes.size[p] for p in _plates(variable.id, axes)), np.int64)


def _at(indices: np.ndarray, v: int, plates: tuple[str, ...], axes: Axes) -> np.ndarray:
    """Choices for variable `v`, to broadcast with the rows of `plates`."""
    own = set(_plates(v, axes))
    sizes = iter(indices.shape)
    return indices.reshape([next(sizes) if p in own else 1 for p in plates])


def _given(table: Eliminated, chosen: dict[int, np.ndarray], axes: Axes) -> np.ndarray:
    """A table at the values chosen for the other variables: rows of the plates, then values."""
    plates = _plates(table.variable, axes)
    array = np.moveaxis(_array(table.table), table.axes.index(table.variable), -1)
    key: list[np.ndarray | slice] = []
    for axis in table.axes:
        if axis == table.variable:
            continue
        if isinstance(axis, str):
            rows = np.arange(axes.size[axis])
            key.append(rows.reshape([-1 if p == axis else 1 for p in plates]))
        else:
            key.append(_at(chosen[axis], axis, plates, axes))
    found = array[(*key, slice(None))] if key else array
    return np.broadcast_to(found, (*(axes.size[p] for p in plates), array.shape[-1]))


def _array(table: TensorBase | np.ndarray) -> np.ndarray:
    return to_host(table.array) if isinstance(table, TensorBase) else table


def _impossible(variable: SummedVariable) -> InferenceError:
    return InferenceError(
        f"no value of site {variable.name!r} is possible",
        expected="data to which the model gives a positive probability",
        got="log density -inf for each value",
        fix="check the data, and zeros among the probabilities",
        at=variable.location,
    )
