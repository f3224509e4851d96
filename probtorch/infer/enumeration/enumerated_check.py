"""Whether a model gives the same for all values of its discrete sites at once as for each alone.

Enumeration puts dims to the left of all that a model knows of. Code that indexes from the left or
reduces over all dims means something else then (``x.mean()`` for ``x.mean(-1)``), and no shape has
to tell. So the first run of a model is compared with some at single values: every log density has
to agree. In some all rows of all sites have the first value, or the last, or another one; in some
each row has one at random. ``z.any()`` is the same at most random values of many rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.origins import like_origin
from probtorch.distributions.uniform import Delta
from probtorch.distributions.validation import validation_enabled
from probtorch.effects.enumeration import Enumeration, SummedVariable
from probtorch.effects.placing import PARTICLES
from probtorch.effects.plate_rows import give_rows
from probtorch.effects.runtime import Handler
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.decode import selected, values_at

if TYPE_CHECKING:
    from probtorch.effects.site import Site


__all__ = ["GiveValues", "check_against_one", "crossed_particles"]

ONE_BY_ONE = "or leave vectorize_particles out"

# Agreement relative to the size of the numbers, in double and in single precision. Double leaves
# room for parts in single: a Python number times a category is a float32 for many values, and as
# exact as the number for one.
RTOL, SINGLE_RTOL = 1e-5, 1e-3
# Supports up to this size are tried value by value, of larger ones the ends; and random values.
SMALL, RANDOM = 4, 1


class GiveValues(Handler):
    """Give latent sites values by name, and plates the rows that they had in a trace.

    Parameters
    ----------
    values : dict of str to Tensor
    trace : Trace
    """

    def __init__(self, values: dict[str, TensorBase], trace: Trace) -> None:
        super().__init__()
        self.values, self.trace = values, trace

    def on_sample(self, site: Site) -> None:
        """Give the value; a point mass computes its own, from the values given before it."""
        if site.value is None and site.name in self.values and not isinstance(site.fn, Delta):
            site.value = self.values[site.name]

    def on_plate(self, site: Site) -> None:
        """Give the rows."""
        give_rows(site, self.trace)


def check_against_one(
    found: Sequence[Trace],
    enumeration: Enumeration,
    again: Callable[[list[GiveValues]], Sequence[Trace]],
    particles: int = 0,
) -> None:
    """Compare an enumerated run with one at single values.

    Parameters
    ----------
    found : sequence of Trace
        Of a model, or of a guide and then its model.
    enumeration : Enumeration
    again : callable
        Runs them without enumeration, each under one of the given handlers.
    particles : int
        How many the run has at once, along the plate of that name; 0 for none. Runs at single
        values are of the first or of the last.

    Raises
    ------
    InferenceError
        If a log density differs, with the site.
    """
    variables = enumeration.variables
    if not variables and not particles:
        return
    shapes = {
        site.notes["variable"]: tuple(site.plate_shape)
        for trace in found
        for site in trace.nodes.values()
        if "variable" in site.notes
    }
    sizes = {v: variables[v].size for v in shapes}
    for turn, chosen in enumerate(_choices(sizes, shapes)):
        row = None if not particles else (0, particles - 1)[turn % 2]
        values: dict[str, TensorBase] = {}
        handlers = []
        for trace in found:
            # What a guide has drawn is replayed: its values come first.
            values = {**_values_of_one(trace, values_at(trace, chosen), row), **values}
            handlers.append(GiveValues(values, trace))
        # Data that are impossible under a value have no mass in either run: no error.
        with validation_enabled(False):
            alone = again(handlers)
            difference = _disagreement(found, alone, chosen, row)
        if difference is None:
            continue
        # A model that is random beside its sites differs from itself: that is nothing to refuse.
        if _differ(alone, again(handlers)):
            return
        raise _refusal(variables, particles, *difference)


def _choices(
    sizes: Mapping[int, int], shapes: Mapping[int, tuple[int, ...]]
) -> Iterator[dict[int, np.ndarray]]:
    """Yield positions of values to compare at, for each variable an array of its rows' shape."""
    largest = max(sizes.values(), default=2)
    positions = range(largest) if largest <= SMALL else (0, largest - 1)
    for position in positions:
        yield {v: np.full(shapes[v], min(position, size - 1)) for v, size in sizes.items()}
    rng = np.random.default_rng(0)
    for _ in range(RANDOM):
        yield {v: rng.integers(size, size=shapes[v]) for v, size in sizes.items()}


def _refusal(
    variables: dict[int, SummedVariable], particles: int, site: Site, together: float, single: float
) -> InferenceError:
    also = f" and for {particles} particles" if particles else ""
    names = sorted({repr(variable.name) for variable in variables.values()})
    fix = (
        "index with Vindex(x)[..., z, :], and write sums, any() and all() over dims of the "
        "model with dim=-1, counted from the right"
    )
    event_dim = len(getattr(site.fn, "event_shape", ()))
    if event_dim and names and not particles:
        # A scalar site's values would be taken for the elements of an event of that length.
        z = names[0].strip("'")
        dims = "None" if event_dim == 1 else ", ".join(["None"] * event_dim)
        fix = (
            f"{site.name!r} has {event_dim} event dim{'s' * (event_dim > 1)} (to_event): in what "
            f"is computed with it write {z}[..., {dims}], or use a plate instead; else {fix}"
        )
    return InferenceError(
        f"site {site.name!r} cannot be run for all values of discrete sites{also} at once",
        expected="the same log density as for single values of "
        f"{', '.join(names[:4]) or 'one particle'} ...",
        got=f"{together:.6g} among all values, {single:.6g} alone",
        fix=fix + (", " + ONE_BY_ONE if particles else ""),
        at=site.location,
    )


def crossed_particles(what: str) -> InferenceError:
    """Return the error for a model and guide that bear one particle and not several at once."""
    return InferenceError(
        "vectorize_particles: the particles cannot be run at once",
        expected="a model and a guide that give the same for a batch of particles as for each",
        got=what,
        fix="index from the right (Vindex(x)[..., z, :]) and write sums with dim=-1, " + ONE_BY_ONE,
    )


def _values_of_one(
    trace: Trace, values: Mapping[str, TensorBase], row: int | None
) -> dict[str, TensorBase]:
    """Values of a trace as those of one of its particles."""
    found = {}
    for name, x in values.items():
        event = getattr(trace[name].fn, "event_shape", None)
        if event is not None and row is not None:
            one = partial(_tensor_of_one, trace[name], row, len(event))
            x = like_origin(x, one(x), one)
        found[name] = x
    return found


def _tensor_of_one(site: Site, row: int | None, event_ndim: int, x: TensorBase) -> TensorBase:
    return wrap(_of_one(site, x.array, row, event_ndim))


def _of_one(site: Site, array: np.ndarray, row: int | None, event_ndim: int) -> np.ndarray:
    """An array of a site as that of one particle, with the dims of the site's other plates."""
    if row is None:
        return array
    dims = {f.name: f.dim for f in site.plates if f.dim is not None}
    at = array.ndim - event_ndim + dims.pop(PARTICLES)
    if at >= 0:
        array = array.take(row if array.shape[at] > 1 else 0, at)
    extra = array.ndim - event_ndim + min(dims.values(), default=0)
    # Dims of plates that are not around the site, on the left.
    return array.reshape(array.shape[extra:]) if extra > 0 else array


def _disagreement(
    found: Sequence[Trace],
    alone: Sequence[Trace],
    chosen: Mapping[int, np.ndarray],
    row: int | None,
) -> tuple[Site, float, float] | None:
    """The first site whose log density differs, with both numbers."""
    for many, single in zip(found, alone):
        for name, site in single.nodes.items():
            if not site.has_density or name not in many:
                continue
            other = many[name]
            x = _of_one(other, selected(other, other.compute_log_prob(), 0, chosen), row, 0)
            y = to_host(site.compute_log_prob().array)
            if x.ndim > len(site.plate_shape):
                # It depends on rows of plates it is not in, which the sums refuse.
                continue
            rtol = RTOL if x.dtype == y.dtype == np.float64 else SINGLE_RTOL
            with contextlib.suppress(ValueError):
                x, y = np.broadcast_arrays(x, y)
                close = np.isclose(x, y, rtol=rtol, atol=rtol, equal_nan=True)
                if close.all():
                    continue
                worst = tuple(np.argwhere(~close)[0])
                return other, float(x[worst]), float(y[worst])
            return other, float(x.sum()), float(y.sum())
    return None


def _differ(a: Sequence[Trace], b: Sequence[Trace]) -> bool:
    """Whether two runs at the same values have different log densities."""
    for one, other in zip(a, b):
        for name, site in one.nodes.items():
            if site.has_density and name in other:
                x, y = (to_host(s.compute_log_prob().array) for s in (site, other[name]))
                if x.shape != y.shape or not np.array_equal(x, y, equal_nan=True):
                    return True
    return False
