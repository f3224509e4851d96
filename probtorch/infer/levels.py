"""`Levels`: the values of a discrete site as places on a line, for samplers that move it.

A sampler's position is a vector of float64, in which each element of a discrete site has one
coordinate: the number of its value among those of the support. Numbers that are not whole mean the
nearest one that is, so a density of such coordinates is a step function, whose gradient is 0.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

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


__all__ = ["Levels", "levels_of"]


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

    def __call__(self, q: TensorBase) -> TensorBase:
        """Return the values of coordinates."""
        numbers = self.numbers(q)
        if self.table is not None:
            return wrap(self.table)[numbers.long()]
        return cast(numbers + self.first, self.dtype)

    def call_and_ladj(self, q: TensorBase) -> tuple[TensorBase, TensorBase]:
        """Return the values, and 0: no volume is changed."""
        return self(q), wrap(np.zeros(()))

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


def levels_of(site: Site) -> Levels:
    """Return the values of a discrete site, the first of its support having number 0.

    Raises
    ------
    InferenceError
        If they are neither finitely many nor whole numbers.
    """
    fn = site.fn
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
