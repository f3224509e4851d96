"""Constraints made of others: of each element, of pieces along a dim, of rows and columns."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.distributions.constraints.base import Constraint, named
from probtorch.distributions.constraints.intervals import real
from probtorch.distributions.constraints.vectors import simplex
from probtorch.errors import ShapeError
from probtorch.ops.pieces import cat as join
from probtorch.ops.pieces import stack as pile
from probtorch.ops.reduction import all as every
from probtorch.tensor import Tensor

__all__ = [
    "Cat",
    "ColumnStochasticMatrix",
    "IndependentConstraint",
    "Stack",
    "cat",
    "column_stochastic_matrix",
    "independent",
    "real_matrix",
    "real_vector",
    "row_stochastic_matrix",
    "stack",
]


class IndependentConstraint(Constraint):
    """Arrays whose elements each satisfy `base`; the last dims count as one event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        if isinstance(base_constraint, IndependentConstraint):
            reinterpreted_batch_ndims += base_constraint.reinterpreted_batch_ndims
            base_constraint = base_constraint.base_constraint
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete

    def check(self, value: Tensor) -> Tensor:
        inside = self.base_constraint.check(value)
        n = self.reinterpreted_batch_ndims
        if n == 0:
            return inside
        if inside.array.ndim < n:
            raise ShapeError(
                "independent constraint",
                expected=f"a value with at least {self.event_dim} dims",
                got=f"shape {value.array.shape}",
                fix="give the value its event dims, or use to_event with fewer",
            )
        return every(inside, tuple(range(-n, 0)))

    def interior(self, value: Tensor) -> float | Tensor:
        return self.base_constraint.interior(value)

    def __repr__(self) -> str:
        if "_name" in self.__dict__:
            return self._name
        return f"independent({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class ColumnStochasticMatrix(Constraint):
    """Matrices whose columns are points of the simplex."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return every(simplex.check(value.mT), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        return 1.0 / value.array.shape[-2]


class Cat(Constraint):
    """Arrays made of pieces along `dim`, each with a constraint of its own."""

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        self.cseq = list(cseq)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        self.dim = dim
        self.event_dim = max(c.event_dim for c in self.cseq)
        self.is_discrete = any(c.is_discrete for c in self.cseq)

    def check(self, value: Tensor) -> Tensor:
        parts = value.split(self.lengths, self.dim)
        return _joined(self, parts, value, join)

    def interior(self, value: Tensor) -> float | Tensor:
        parts = value.split(self.lengths, self.dim)
        return join([x * 0 + c.interior(x) for c, x in zip(self.cseq, parts)], self.dim)


class Stack(Constraint):
    """Arrays whose slices along `dim` each have a constraint of their own."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq = list(cseq)
        self.dim = dim
        inner = max(c.event_dim for c in self.cseq)
        # One more where the new dim lies among the event dims of the slices.
        self.event_dim = inner + 1 if self.dim + inner >= 0 > self.dim else inner
        self.is_discrete = any(c.is_discrete for c in self.cseq)

    def check(self, value: Tensor) -> Tensor:
        return _joined(self, value.unbind(self.dim), value, pile)

    def interior(self, value: Tensor) -> float | Tensor:
        parts = value.unbind(self.dim)
        return pile([x * 0 + c.interior(x) for c, x in zip(self.cseq, parts)], self.dim)


def _joined(
    constraint: Cat | Stack,
    parts: Sequence[Tensor],
    value: Tensor,
    join_along: Callable[[Sequence[Tensor], int], Tensor],
) -> Tensor:
    """Join the checks of pieces along a batch dim; pieces of one element must all pass."""
    inner = max(c.event_dim for c in constraint.cseq)
    checks = []
    for c, x in zip(constraint.cseq, parts, strict=True):
        extra = inner - c.event_dim
        checks.append(every(c.check(x), tuple(range(-extra, 0))) if extra else c.check(x))
    dim = constraint.dim
    # Counted from the end of the batch dims, which are all that a check has.
    dim = dim - (value.array.ndim if dim >= 0 else 0) + inner
    return join_along(checks, dim) if dim < 0 else functools.reduce(operator.and_, checks)


independent = IndependentConstraint
cat = Cat
stack = Stack
real_vector = named("real_vector", IndependentConstraint(real, 1))
real_matrix = named("real_matrix", IndependentConstraint(real, 2))
row_stochastic_matrix = named("row_stochastic_matrix", IndependentConstraint(simplex, 1))
column_stochastic_matrix = named("column_stochastic_matrix", ColumnStochasticMatrix())


explain_calls(globals())
