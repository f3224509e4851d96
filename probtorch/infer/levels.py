"""`Levels`: the values of a discrete site as places on a line, for samplers that move it.

A sampler's position is a vector of float64, in which each element of a discrete site has one
coordinate: the number of its value among those of the support. Numbers that are not whole mean the
nearest one that is, so a density of such coordinates is a step function, whose gradient is 0.

`Structure` is what stands in their place where values are no numbers, such as trees: the
distribution says itself what its coordinates are, and what moves them in `Gibbs`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.distributions.constraints import Integer, IntegerGreaterThanEq
from probtorch.errors import InferenceError
from probtorch.ops.arithmetic import clamp, floor
from probtorch.ops.comparisons import eq
from probtorch.ops.extremes import argmax
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import all as every

if TYPE_CHECKING:
    from probtorch.effects.site import Site
    from probtorch.infer.mcmc.gibbs.discrete_updates import SweepState
    from probtorch.infer.mcmc.integrators import Density
    from probtorch.infer.mcmc.randomness import Key


__all__ = ["Levels", "Structure", "StructureUpdate", "levels_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Levels:
    """The values of a discrete site, numbered.

    Parameters
    ----------
    lowest, highest : float
        Least and largest number; infinite where there is none.
    first : float
        The value with number 0, where values are consecutive whole numbers.
    dtype : dtype
        Of the values.
    table : ndarray, shape (values, *event), or None
        The values themselves, where they are something else.
    """

    lowest: float
    highest: float
    first: float
    dtype: DType
    table: np.ndarray | None = None

    def numbers(self, q: TensorBase) -> TensorBase:
        """Return the whole numbers that coordinates of any value stand for, as float64."""
        return clamp(floor(q.detach() + 0.5), min=self.lowest, max=self.highest)

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the coordinates of values of some shape."""
        return shape if self.table is None else shape[: len(shape) - (self.table.ndim - 1)]

    def at(self, site: Site, q: TensorBase) -> TensorBase:
        """Return the value of a site at its coordinates."""
        return self(q)

    def __call__(self, q: TensorBase) -> TensorBase:
        """Return the values of coordinates."""
        numbers = self.numbers(q)
        if self.table is not None:
            return wrap(self.table)[numbers.long()]
        return cast(numbers + self.first, self.dtype)

    def inv(self, value: TensorBase) -> TensorBase:
        """Return the coordinates of values, in tensor ops."""
        if self.table is None:
            return cast(value, float64) - self.first
        count, *event = self.table.shape
        lead = value.array.shape[: value.array.ndim - len(event)]
        same = eq(reshape(value, (*lead, 1, *event)), wrap(self.table))
        whole = reshape(same, (*lead, count, math.prod(event)))
        return cast(argmax(cast(every(whole, -1), float64), -1), float64)

    def around(self, value: float) -> Levels:
        """Return the same values with number 0 at another one; for whole numbers only."""
        shift = value - self.first
        return dataclasses.replace(
            self, lowest=self.lowest - shift, highest=self.highest - shift, first=value
        )


class StructureUpdate(Protocol):
    """What moves a `Structure`: an update of its coordinates given all others, in tensor ops.

    ``update(density, key, walk, first)`` leaves the conditional distribution of the coordinates
    from number `first` on invariant, times their prior where the density has none. It becomes a
    part of the program of `Gibbs`, and takes its random bits from the counter of the walk.
    """

    def __call__(self, density: Density, key: Key, walk: SweepState, first: int) -> SweepState: ...


class Structure(abc.ABC):
    """The coordinates of a site whose values are no numbers, say trees.

    A distribution has it as ``structure()``. Nothing but its own update moves it: chains start with
    it at one point, and its draws are not judged or summarised.

    Attributes
    ----------
    update : StructureUpdate
    size : int
        Number of coordinates.
    start : ndarray, shape (size,)
        Where it starts.
    """

    update: StructureUpdate
    size: int
    start: np.ndarray

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the coordinates."""
        return (self.size,)

    def described(self) -> dict[str, object]:
        """Return what makes sense of draws without their model: values that JSON can hold."""
        return {}

    @abc.abstractmethod
    def at(self, site: Site, q: TensorBase) -> TensorBase:
        """Return the value of a site at its coordinates; the distribution may be told of them."""

    @abc.abstractmethod
    def inv(self, value: TensorBase) -> TensorBase:
        """Return the coordinates of a value, in tensor ops."""


def levels_of(site: Site) -> Levels | Structure:
    """Return the values of a discrete site, the first of its support having number 0.

    Raises
    ------
    InferenceError
        If they are neither finitely many nor whole numbers.
    """
    fn = site.fn
    if hasattr(fn, "structure"):
        own: Structure = fn.structure()
        return own
    while hasattr(fn, "reinterpreted_batch_ndims"):
        fn = fn.base_dist
    if getattr(fn, "has_enumerate_support", False):
        values = fn.enumerate_support(expand=False)
        event = tuple(fn.event_shape)
        table = to_host(reshape(values, (values.shape[0], *event)).array)
        top = float(len(table) - 1)
        if not event and (np.diff(table.astype(np.float64)) == 1.0).all():
            return Levels(0.0, top, float(table[0]), table.dtype)
        return Levels(0.0, top, 0.0, table.dtype, table)
    support = fn.support
    if tuple(fn.event_shape) or not isinstance(support, (Integer, IntegerGreaterThanEq)):
        raise InferenceError(
            f"discrete site {site.name!r} cannot be moved value by value",
            expected="a finite support that can be listed, or whole numbers",
            got=f"a latent {type(fn).__name__}, whose support is {support!r}",
            fix="sum it out by hand, or write it as sites of single counts",
            at=site.location,
        )
    dtype = fn.sample().array.dtype
    if isinstance(support, Integer):
        return Levels(-np.inf, np.inf, 0.0, dtype)
    bound = support.lower_bound
    least = to_host(bound.array) if isinstance(bound, TensorBase) else np.asarray(bound)
    return Levels(0.0, np.inf, float(least.min()), dtype)
