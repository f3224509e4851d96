"""Distributions written as for PyTorch or Pyro: public methods overridden, no fields stated.

Such a class calls ``super().__init__(batch_shape, event_shape)``, keeps its parameters as
attributes, and overrides `log_prob`, `sample` or `rsample`. Here is what makes it one of ours: its
draws take a generator too, its attributes are the leaves of a tree, `arg_constraints` is checked,
and with a `cdf` it can be truncated and censored.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from probtorch.core.rng import Generator, drawing_as, generator_for
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
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
    for name in ("sample", "rsample"):
        method = cls.__dict__.get(name)
        if callable(method) and "generator" not in inspect.signature(method).parameters:
            setattr(cls, name, _with_generator(method))


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
