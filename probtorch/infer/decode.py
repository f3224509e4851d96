"""Values of enumerated sites, after they were summed out: the most probable ones, or a joint draw.

The sum over a variable leaves the table it was summed in. Backwards through these tables, each
variable is chosen given those that went after it: by the largest entry (which generalises Viterbi's
algorithm), or at random (forward filtering, backward sampling).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.distributions.categorical import Categorical
from probtorch.effects.enumeration import Enumeration
from probtorch.effects.runtime import generator_in_force
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.infer.factors import marginal_terms, names_of
from probtorch.infer.sum_product import Axes, Eliminated

__all__ = ["decode"]


def decode(
    trace: Trace,
    enumeration: Enumeration,
    axes: Axes,
    temperature: int = 1,
    generator: Generator | None = None,
) -> dict[str, Any]:
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
    generator = generator or generator_in_force()
    chosen: dict[int, np.ndarray] = {v: _nothing(variables[v], axes) for v in variables}
    for table in reversed(tables):
        logits = _given(table, chosen, axes)
        if not (logits > -np.inf).any(-1).all():
            raise _impossible(trace, variables[table.variable].name)
        if temperature == 0:
            picked = logits.argmax(-1)
        else:
            picked = Categorical(logits=wrap(logits)).sample(generator=generator)._data
        chosen[table.variable] = picked
    found = {}
    for v, variable in variables.items():
        site = trace[variable.name]
        shape = tuple(site.plate_shape) + tuple(site.fn.event_shape)
        found[variable.name] = wrap(to_host(variable.values._data)[chosen[v]].reshape(shape))
    for name, site in trace.nodes.items():
        if site.kind == "sample" and not site.observed and name not in found:
            found[name] = _selected(site, chosen, axes)
    return found


def _plates(v, axes):
    """Plates of a variable that have a dim, from left to right."""
    return axes.ordered(p for p in axes.plates[v] if axes.size[p] != 1)


def _nothing(variable, axes):
    """The first value in all rows: right for a variable of one value, which no table has."""
    return np.zeros(tuple(axes.size[p] for p in _plates(variable.id, axes)), np.int64)


def _at(indices, v, plates, axes):
    """Choices for variable `v`, to broadcast with the rows of `plates`."""
    own = set(_plates(v, axes))
    sizes = iter(indices.shape)
    return indices.reshape([next(sizes) if p in own else 1 for p in plates])


def _given(table, chosen, axes):
    """A table at the values chosen for the other variables: rows of the plates, then values."""
    plates = _plates(table.variable, axes)
    array = np.moveaxis(to_host(table.table._data), table.axes.index(table.variable), -1)
    key: list[Any] = []
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


def _selected(site, chosen, axes):
    """The value of a site at the values chosen for the variables that it depends on."""
    value = site.value
    if not hasattr(site.fn, "event_shape"):
        return value
    n = len(site.fn.event_shape)
    shape = tuple(value.shape)
    batch = shape[: len(shape) - n]
    names = names_of(site, batch)
    if not any(isinstance(name, int) for name in names):
        return value
    plates = [name for name in names if isinstance(name, str)]
    key: list[Any] = []
    for size, name in zip(batch, names):
        if name is None:
            key.append(0)
        elif isinstance(name, str):
            key.append(np.arange(size).reshape([-1 if p == name else 1 for p in plates]))
        else:
            order = axes.ordered(plates)
            index = _at(chosen[name], name, order, axes)
            key.append(np.transpose(index, [order.index(p) for p in plates]))
    found = to_host(value._data)[tuple(key)]
    return wrap(np.ascontiguousarray(found).reshape(*site.plate_shape, *shape[len(batch) :]))


def _impossible(trace, name):
    return InferenceError(
        f"no value of site {name!r} is possible",
        expected="data to which the model gives a positive probability",
        got="log density -inf for each value",
        fix="check the data, and zeros among the probabilities",
        at=trace[name].location,
    )
