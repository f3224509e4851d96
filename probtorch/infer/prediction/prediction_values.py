"""Values of sites on their way into a run of `Predictive`, and out of it.

prediction_runs.py runs the model under the handlers that are here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import trace
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site, as_value
from probtorch.errors import ShapeError
from probtorch.infer.enumeration.summed import ValueGiver

__all__ = [
    "Arrays",
    "Computed",
    "FirstDraw",
    "FromVector",
    "as_array",
    "guide_draws",
    "without_gradients",
]

Arrays = dict[str, np.ndarray]


class FirstDraw(Handler):
    """Give latent sites the first of their draws, and find out how many leading dims there are."""

    def __init__(self, samples: Arrays, batch_ndims: int | None) -> None:
        super().__init__()
        self.samples, self.batch_ndims = samples, batch_ndims
        self.lead: dict[str, int] = {}

    def on_sample(self, site: Site) -> None:
        if site.observed or site.value is not None or site.name not in self.samples:
            return
        x = self.samples[site.name]
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        lead = x.ndim - len(shape) if self.batch_ndims is None else self.batch_ndims
        if lead < 1 or x.shape[lead:] != shape:
            raise ShapeError(
                f"posterior samples of site {site.name!r}",
                expected=f"shape (num_samples, *{shape}) or (chain, draw, *{shape})",
                got=f"shape {x.shape}",
                fix="pass draws of this model, with the same sizes of plates; for other rows leave "
                f"{site.name!r} out of them, draws.select([...]), and it is drawn anew",
                at=site.location,
            )
        if not math.prod(x.shape[:lead]):
            raise ShapeError(
                f"posterior samples of site {site.name!r}",
                expected="at least one draw",
                got=f"shape {x.shape}",
                fix="sample first",
            )
        self.lead[site.name] = lead
        site.value = wrap(x[(0,) * lead])


class Computed(Handler):
    """Give deterministic sites the values that there are for them."""

    def __init__(self, values: Mapping[str, np.ndarray | TensorBase]) -> None:
        super().__init__()
        self.values = values

    def on_deterministic(self, site: Site) -> None:
        if site.name in self.values:
            site.value = as_value(self.values[site.name], site.name)


class FromVector(ValueGiver):
    """Give latent sites their values from one vector, in which they lie one after the other."""

    def __init__(self, q: TensorBase, samples: Arrays) -> None:
        super().__init__()
        self.values, start = {}, 0
        for name, x in samples.items():
            shape, end = x.shape[1:], start + math.prod(x.shape[1:])
            value = q[start:end].reshape(shape)
            self.values[name] = value if x.dtype.kind == "f" else value.to(wrap(x[:0]).dtype)
            start = end

    @classmethod
    def of(cls, samples: Arrays) -> Callable[[TensorBase], FromVector]:
        """Return the function from a vector to the handler."""
        return lambda q: cls(q, samples)

    def on_sample(self, site: Site) -> None:
        if not site.observed and site.name in self.values:
            site.value = self.values[site.name]


def guide_draws(
    guide: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    count: int,
    generator: Generator,
) -> Arrays:
    """Return draws of the guide's latent sites, by name, (count, ...)."""
    rows: dict[str, list[np.ndarray]] = {}
    for _ in range(count):
        with trace() as found, seed_handler(None, generator):
            guide(*args, **kwargs)
        for name in found.stochastic_nodes:
            if not found[name].infer.get("is_auxiliary"):
                rows.setdefault(name, []).append(as_array(found[name].value))
    return {name: np.stack(values) for name, values in rows.items()}


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Return a context in which nothing is on the tape."""
    before = set_grad_enabled(False)
    try:
        yield
    finally:
        set_grad_enabled(before)


def as_array(value: TensorLike) -> np.ndarray:
    """Return a value of a site in the memory of the host."""
    return to_host(as_value(value, "value").array)
