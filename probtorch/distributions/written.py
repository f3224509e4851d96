"""Distributions written as for PyTorch or Pyro: public methods overridden, no fields stated.

Such a class calls ``super().__init__(batch_shape, event_shape)``, keeps its parameters as
attributes, and overrides `log_prob`, `sample` or `rsample`. Here is what makes it one of ours: its
draws take a generator too, its attributes are the leaves of a tree, `arg_constraints` is checked,
and with a `cdf` it can be truncated and censored.

A class derived from one of ours may override the same public methods. Wrappers, mixtures and sample
statements ask for the formulas behind them (`_density`, `_sample`, `_rsample`), so these then lead
to what was overridden, and where that calls `super()` it finds the formulas of the base (`stated`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from probtorch.core.rng import Generator, drawing_as, generator_for
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.source import Source
from probtorch.distributions.validation import check_parameter
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.distributions.fields import WithFields

__all__ = ["adopt", "check_attributes", "split_attributes"]

Draw = Callable[..., Tensor]


def adopt(cls: type) -> None:
    """Give draws that a class overrides a `generator`, and densities the shape of the batch."""
    if "__init__" in cls.__dict__ and "log_prob" in cls.__dict__:
        cls.log_prob = _of_batch(cls.__dict__["log_prob"])  # type: ignore[attr-defined]  # it has one
    for name in ("cdf", "icdf"):
        # What asks for the formula, as truncation and the search for quantiles do, finds this one.
        overrides = name in cls.__dict__ and any(hasattr(base, name) for base in cls.__bases__)
        if overrides and not hasattr(cls, f"_{name}"):
            setattr(cls, f"_{name}", cls.__dict__[name])
    # Formulas that are stated are of the shapes that were set; else all is the class's own.
    for name in () if getattr(cls, "_fields", ()) else ("batch_shape", "event_shape"):
        stated = cls.__dict__.get(name)
        if isinstance(stated, property) and any(hasattr(base, name) for base in cls.__bases__):
            behind = _Overridden(name)
            setattr(cls, f"_{name}", behind)
            setattr(cls, name, behind.around(stated))
    for name in ("sample", "rsample"):
        method = cls.__dict__.get(name)
        if callable(method) and "generator" not in inspect.signature(method).parameters:
            setattr(cls, name, _with_generator(method))
    _lead_to_overrides(cls)


class _Overridden:
    """The shape behind a property of a class that overrides it: what that property says.

    Until it has an answer, and where it asks for this one itself, the shape that was set counts.
    """

    def __init__(self, name: str) -> None:
        self.name, self.kept = name, f"_set_{name}"

    def __set__(self, d: Distribution, value: Shape) -> None:
        d.__dict__[self.kept] = value

    def __get__(self, d: Distribution | None, owner: type | None = None) -> object:
        if d is None:
            return self
        if not d.__dict__.get(f"{self.kept}_asked"):
            try:
                return tuple(getattr(d, self.name))
            except AttributeError:
                pass
        return d.__dict__.get(self.kept, ())

    def around(self, stated: property) -> property:
        """Return the property with a note while it is being asked."""
        assert stated.fget is not None
        fget = stated.fget

        def shape(d: Distribution) -> object:
            store, asked = d.__dict__, f"{self.kept}_asked"
            outer = store.get(asked, False)
            store[asked] = True
            try:
                return fget(d)
            finally:
                store[asked] = outer

        return property(shape, doc=stated.__doc__)


def _density(self: Distribution, value: Tensor, inside: bool) -> Tensor:
    return self.log_prob(value)


def _sample(self: Distribution, rng: Source, shape: Shape) -> Tensor:
    return self._as_written("sample", rng, shape)


def _rsample(self: Distribution, rng: Source, shape: Shape) -> Tensor:
    return self._as_written("rsample", rng, shape)


_LEADING = {"_density": _density, "_sample": _sample, "_rsample": _rsample}


def _lead_to_overrides(cls: type) -> None:
    """Let formulas lead to public methods that a class overrides after they were stated.

    Where a class states no formulas at all, `Distribution` looks at its methods itself.
    """
    order = cls.__mro__
    root = max(i for i, c in enumerate(order) if "_density" in c.__dict__)

    def stated(*names: str) -> int:
        return min(next(i for i, c in enumerate(order) if name in c.__dict__) for name in names)

    if stated("log_prob") < stated("_density", "_log_prob") < root:
        _lead(cls, "_density")
    drawn = stated("_sample", "_rsample")
    if stated("rsample") < drawn < root:
        _lead(cls, "_rsample")
        if stated("rsample") < stated("sample"):
            # Draws without a gradient are the same draws.
            setattr(cls, "_sample", _rsample)  # noqa: B010  # mypy: no attribute to it
    if stated("sample") < drawn < root:
        _lead(cls, "_sample")


def _lead(cls: type, name: str) -> None:
    found = (c.__dict__[name] for c in cls.__mro__ if name in c.__dict__)
    formula = next(f for f in found if f not in _LEADING.values())
    beneath = {**getattr(cls, "_beneath", {}), name: formula}
    setattr(cls, "_beneath", beneath)  # noqa: B010  # mypy: no attribute to it
    setattr(cls, name, _LEADING[name])


def _of_batch(method: Draw) -> Draw:
    @functools.wraps(method)
    def log_prob(self: Distribution, value: TensorLike) -> Tensor:
        out = method(self, value)
        return self._to_batch(out) if self._written else out

    return log_prob


def _with_generator(method: Draw) -> Draw:
    @functools.wraps(method)
    def draw(
        self: WithFields, sample_shape: SizeLike = (), generator: Generator | None = None
    ) -> Tensor:
        # The method draws from the generator in force, which stands in for the one asked for.
        with drawing_as(generator_for(generator)):
            return method(self, sample_shape)

    return draw


def check_attributes(d: WithFields, stated: Mapping[str, Constraint]) -> None:
    """Check attributes that hold parameters against the class's `arg_constraints`."""
    for name, constraint in stated.items():
        value = d.__dict__.get(name)
        if isinstance(value, TensorBase) and not constraints.is_dependent(constraint):
            check_parameter(type(d).__name__, name, value, constraint, d)


def split_attributes(d: WithFields) -> tuple[tuple[str, ...], tuple[tuple[str, object], ...]]:
    """Return the names of attributes that are leaves, and the other ones with their values."""
    leaves = tuple(n for n, v in d.__dict__.items() if isinstance(v, TensorBase))
    others = tuple((n, v) for n, v in d.__dict__.items() if n not in leaves)
    return leaves, others
