"""Constraints: the sets that parameters and values live in, as typed objects.

A constraint says four things: `check(value)`, a boolean tensor of the batch shape; `event_dim`, how
many rightmost dims form one element of the set (a simplex has 1, a Cholesky factor 2);
`is_discrete`; and `interior(value)`, some harmless element, which masked densities compute with in
place of a value outside. Bounds may be numbers or tensors, so the support of one site can depend on
another. The maps from unconstrained space onto these sets are in transforms/registry.py.

Names follow `torch.distributions.constraints` and Pyro's additions. Read the scalar ones first.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import set_recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant, read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import floor
from probtorch.ops.comparisons import eq, ge, gt, le, logical_and, lt
from probtorch.ops.linalg import cholesky, cholesky_ex
from probtorch.ops.movement import cat as join
from probtorch.ops.movement import diagonal, slice_, tril, unsqueeze
from probtorch.ops.movement import stack as pile
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "Constraint",
    "boolean",
    "cat",
    "circular",
    "column_stochastic_matrix",
    "complex",
    "corr_cholesky",
    "corr_matrix",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer",
    "integer_greater_than",
    "integer_interval",
    "interval",
    "is_dependent",
    "l1_ball",
    "less_than",
    "left_open_interval",
    "less_than_eq",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "offset_multiplier",
    "one_hot",
    "open_interval",
    "ordered_vector",
    "positive",
    "positive_definite",
    "positive_definite_circulant_vector",
    "positive_integer",
    "positive_ordered_vector",
    "positive_semidefinite",
    "real",
    "real_matrix",
    "real_vector",
    "row_stochastic_matrix",
    "scaled_unit_lower_cholesky",
    "simplex",
    "softplus_lower_cholesky",
    "softplus_positive",
    "sphere",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
    "unit_lower_cholesky",
    "zero_sum",
]


class Constraint:
    """A set of values, with a test for membership.

    Attributes
    ----------
    event_dim : int
        Number of rightmost dims that together form one element.
    is_discrete : bool
        Whether the set is made of isolated points.
    """

    event_dim: int = 0
    is_discrete: bool = False
    _name: str

    def check(self, value: Tensor) -> Tensor:
        """Return whether each element lies in the set.

        Parameters
        ----------
        value : Tensor, shape (..., *event)

        Returns
        -------
        Tensor of bool, shape (...)
        """
        raise NotImplementedError(f"{type(self).__name__} does not define check")

    def interior(self, value: Tensor) -> float | Tensor:
        """Return an element of the set, a number or a tensor that broadcasts against `value`."""
        raise NotImplementedError(f"{type(self).__name__} does not define interior")

    def __call__(self, value: Tensor) -> Tensor:
        return self.check(value)

    def __repr__(self) -> str:
        if "_name" in self.__dict__:
            return self._name
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        fields = ", ".join(f"{k}={_short(v)}" for k, v in self._fields().items())
        return f"{name}({fields})"

    def _fields(self) -> dict[str, object]:
        """Return what tells this constraint from others of its class."""
        return {k: v for k, v in self.__dict__.items() if k not in _DERIVED}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and _same(self._fields(), other._fields())

    def __hash__(self) -> int:
        return hash(type(self))


_DERIVED = ("_name", "event_dim", "is_discrete")


def _same(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    """Whether two field tables agree; tensors agree only when they are the same object."""
    return a.keys() == b.keys() and all(
        a[k] is b[k]
        or (not isinstance(a[k], TensorBase) and not isinstance(b[k], TensorBase) and a[k] == b[k])
        for k in a
    )


def _short(bound: object) -> str:
    if isinstance(bound, TensorBase):
        return (
            f"{bound.array.item():g}" if bound.array.size == 1 else f"<shape {bound.array.shape}>"
        )
    return f"{bound:g}" if isinstance(bound, float) else repr(bound)


_AnyConstraint = TypeVar("_AnyConstraint", bound=Constraint)


def _named(name: str, constraint: _AnyConstraint) -> _AnyConstraint:
    """Give `constraint` the name under which this module exports it, for its repr."""
    constraint._name = name
    return constraint


def _is_integral(value: Tensor) -> Tensor:
    return eq(value, floor(value)) if value.array.dtype.kind == "f" else eq(value, value)


# ------------------------------------------------------------------------------ dependent


class Dependent(Constraint):
    """A set that is known only for an instance: ``resolve(instance)`` tells it."""

    def __init__(
        self,
        resolve: Callable[..., Constraint] | None = None,
        *,
        event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:
        self._resolve = resolve
        self.event_dim = event_dim
        self.is_discrete = is_discrete

    def resolve(self, owner: object) -> Constraint:
        """Return the constraint that holds for `owner`."""
        assert self._resolve is not None  # the sets of a distribution have it
        return self._resolve(owner)

    def check(self, value: Tensor) -> Tensor:
        raise ArgumentError(
            "dependent constraint",
            expected="a constraint of one distribution, such as Uniform(0, 1).support",
            got="the constraint of a class, whose bounds are not known yet",
            fix="ask an instance for its support",
        )

    def __repr__(self) -> str:
        return "dependent"


dependent = Dependent


class dependent_property(property, Dependent):
    """Decorator for a `support` that depends on the parameters.

    On the class it is a `Dependent` constraint that knows `event_dim` and `is_discrete`; on an
    instance, the constraint itself.
    """

    def __init__(
        self,
        fn: Callable[..., Constraint] | None = None,
        *,
        event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:
        property.__init__(self, fn)
        Dependent.__init__(self, fn, event_dim=event_dim, is_discrete=is_discrete)

    def __call__(self, fn: Callable[..., Constraint]) -> dependent_property:  # type: ignore[override]  # a decorator
        return type(self)(fn, event_dim=self.event_dim, is_discrete=self.is_discrete)

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else self.resolve(instance)

    __hash__ = Constraint.__hash__


def is_dependent(constraint: object) -> TypeGuard[Dependent]:
    """Whether `constraint` is one whose bounds are known only for an instance."""
    return isinstance(constraint, Dependent)


# ------------------------------------------------------------------------------ intervals


class Real(Constraint):
    """Real numbers; infinities count, nan does not."""

    def check(self, value: Tensor) -> Tensor:
        return eq(value, value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0


class Complex(Constraint):
    """Complex numbers; infinities count, nan does not."""

    def check(self, value: Tensor) -> Tensor:
        return eq(value, value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0


class Circular(Real):
    """Angles in radians. Every real stands for an angle, so the density has to be periodic."""


class OffsetMultiplier(Real):
    """Real numbers that are sampled as ``(x - offset) / multiplier``: Stan's form of scaling.

    Parameters
    ----------
    offset, multiplier : float or Tensor
        Where values are about, and their size there, above 0.
    """

    def __init__(self, offset: float | Tensor = 0.0, multiplier: float | Tensor = 1.0) -> None:
        self.offset, self.multiplier = offset, multiplier


class GreaterThan(Constraint):
    """x > lower_bound."""

    def __init__(self, lower_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return gt(value, self.lower_bound)

    def interior(self, value: Tensor) -> float | Tensor:
        return self.lower_bound + 1.0


class GreaterThanEq(GreaterThan):
    """x >= lower_bound."""

    def check(self, value: Tensor) -> Tensor:
        return ge(value, self.lower_bound)


class SoftplusPositive(GreaterThan):
    """Positive reals that are reached by softplus instead of exp: kinder to large values."""

    def __init__(self) -> None:
        super().__init__(0.0)


class LessThan(Constraint):
    """x < upper_bound."""

    def __init__(self, upper_bound: float | Tensor) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return lt(value, self.upper_bound)

    def interior(self, value: Tensor) -> float | Tensor:
        return self.upper_bound - 1.0


class LessThanEq(LessThan):
    """x <= upper_bound."""

    def check(self, value: Tensor) -> Tensor:
        return le(value, self.upper_bound)


class Interval(Constraint):
    """lower_bound <= x <= upper_bound."""

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return logical_and(ge(value, self.lower_bound), le(value, self.upper_bound))

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.5 * self.lower_bound + 0.5 * self.upper_bound


class HalfOpenInterval(Interval):
    """lower_bound <= x < upper_bound."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(ge(value, self.lower_bound), lt(value, self.upper_bound))


class LeftOpenInterval(Interval):
    """lower_bound < x <= upper_bound."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(gt(value, self.lower_bound), le(value, self.upper_bound))


class OpenInterval(Interval):
    """lower_bound < x < upper_bound."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(gt(value, self.lower_bound), lt(value, self.upper_bound))


greater_than = GreaterThan
greater_than_eq = GreaterThanEq
less_than = LessThan
less_than_eq = LessThanEq
interval = Interval
half_open_interval = HalfOpenInterval
left_open_interval = LeftOpenInterval
open_interval = OpenInterval
real = _named("real", Real())
complex = _named("complex", Complex())
circular = _named("circular", Circular())
offset_multiplier = OffsetMultiplier
positive = _named("positive", GreaterThan(0.0))
nonnegative = _named("nonnegative", GreaterThanEq(0.0))
softplus_positive = _named("softplus_positive", SoftplusPositive())
unit_interval = _named("unit_interval", Interval(0.0, 1.0))


# ------------------------------------------------------------------------------ discrete


class Boolean(Constraint):
    """0 or 1 (or False and True)."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return eq(value * value, value) if value.array.dtype.kind != "b" else eq(value, value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0


class Integer(Constraint):
    """Whole numbers."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return _is_integral(value)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0


class IntegerGreaterThanEq(Constraint):
    """Whole numbers from lower_bound on."""

    is_discrete = True

    def __init__(self, lower_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return logical_and(_is_integral(value), ge(value, self.lower_bound))

    def interior(self, value: Tensor) -> float | Tensor:
        return self.lower_bound


class IntegerInterval(Constraint):
    """Whole numbers from lower_bound to upper_bound, both included."""

    is_discrete = True

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        inside = logical_and(ge(value, self.lower_bound), le(value, self.upper_bound))
        return logical_and(_is_integral(value), inside)

    def interior(self, value: Tensor) -> float | Tensor:
        return self.lower_bound


class OneHot(Constraint):
    """Vectors of one 1 and otherwise 0."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return logical_and(every(boolean.check(value), -1), eq(total(value, -1), 1))

    def interior(self, value: Tensor) -> float | Tensor:
        return corner(value)


class MultinomialConstraint(Constraint):
    """Vectors of counts that add up to `total_count`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, total_count: TensorLike) -> None:
        self.total_count = total_count

    def check(self, value: Tensor) -> Tensor:
        counts = every(nonnegative_integer.check(value), -1)
        return logical_and(counts, eq(total(value, -1), self.total_count))

    def interior(self, value: Tensor) -> float | Tensor:
        count = self.total_count
        if isinstance(count, TensorBase) and count.array.ndim:
            count = unsqueeze(count, -1)
        return corner(value) * count


def corner(value: Tensor) -> Tensor:
    """The first unit vector of the size of the last dim of `value`."""
    return wrap(np.eye(1, value.array.shape[-1], dtype=value.array.dtype)[0])


boolean = _named("boolean", Boolean())
integer = _named("integer", Integer())
integer_greater_than = IntegerGreaterThanEq
integer_interval = IntegerInterval
nonnegative_integer = _named("nonnegative_integer", IntegerGreaterThanEq(0))
positive_integer = _named("positive_integer", IntegerGreaterThanEq(1))
one_hot = _named("one_hot", OneHot())
multinomial = MultinomialConstraint


# ------------------------------------------------------------------------------ vectors


class Simplex(Constraint):
    """Nonnegative vectors that add up to 1, within the rounding of a sum of that many terms."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        inside = every(ge(value, 0.0), -1)
        return logical_and(inside, le(absolute(total(value, -1) - 1.0), _slack(value)))

    def interior(self, value: Tensor) -> float | Tensor:
        return 1.0 / value.array.shape[-1]


class OrderedVector(Constraint):
    """Strictly increasing vectors."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return every(gt(_from(value, 1), _until(value, -1)), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        return wrap(np.arange(1, value.array.shape[-1] + 1, dtype=value.array.dtype))


class PositiveOrderedVector(OrderedVector):
    """Strictly increasing vectors of positive numbers."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(gt(value, 0.0), -1))


class Sphere(Constraint):
    """Vectors of Euclidean length 1."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        length = total(value * value, -1)
        return le(absolute(length - 1.0), _slack(value))

    def interior(self, value: Tensor) -> float | Tensor:
        return corner(value)


class L1Ball(Constraint):
    """Vectors whose absolute values add up to at most 1."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return le(total(absolute(value), -1), 1.0 + _slack(value))

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0


class PositiveDefiniteCirculantVector(Constraint):
    """First rows of circulant matrices that are positive definite.

    Parameters
    ----------
    size : int, optional
        Length of the row. Unconstrained space has ``size // 2 + 1`` numbers, which leave it open
        whether a row is even or odd: without a size it is odd.
    """

    event_dim = 1

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def check(self, value: Tensor) -> Tensor:
        n = value.array.shape[-1]
        back = value[..., as_tensor(-np.arange(n) % n)]
        even = every(le(absolute(value - back), 1e-6 * absolute(value)), -1)
        positive = every(gt(value @ value.new_tensor(circulant_spectrum(n)), 0.0), -1)
        return logical_and(even, positive)

    def interior(self, value: Tensor) -> float | Tensor:
        return corner(value)


@functools.cache
def circulant_spectrum(n: int) -> np.ndarray:
    """From the first row of a circulant matrix to its eigenvalues, one for each order."""
    turns = np.outer(np.arange(n), np.arange(n // 2 + 1)) % n
    return np.cos(2.0 * np.pi * turns / n)


class ZeroSum(Constraint):
    """Arrays whose sums along each of the last `event_dim` dims are 0."""

    def __init__(self, event_dim: int = 1) -> None:
        self.event_dim = event_dim

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor | None = None
        for d in range(1, self.event_dim + 1):
            size = total(absolute(value), -d, True)
            near = le(absolute(total(value, -d, True)), (size + 1.0) * _slack(value))
            rest = tuple(range(-self.event_dim, 0))
            near = every(near, rest)
            inside = near if inside is None else logical_and(inside, near)
        assert inside is not None  # there is a dim to sum over
        return inside

    def interior(self, value: Tensor) -> float | Tensor:
        return 0.0

    def _fields(self) -> dict[str, object]:
        return {"event_dim": self.event_dim}


def _from(x: Tensor, start: int) -> Tensor:
    """x[..., start:] of the last dim."""
    shape = x.array.shape
    return slice_(x, (*((0, 1, n) for n in shape[:-1]), (start, 1, max(shape[-1] - start, 0))))


def _until(x: Tensor, stop: int) -> Tensor:
    """x[..., :stop] of the last dim, for a negative stop."""
    shape = x.array.shape
    return slice_(x, (*((0, 1, n) for n in shape[:-1]), (0, 1, max(shape[-1] + stop, 0))))


def _slack(value: Tensor) -> float:
    """How far a sum along the last dim may be off: rounding, or data written to 6 digits."""
    dtype, size = value.array.dtype, value.array.shape[-1]
    eps = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    return max(1e-6, (64 + size) * eps)


simplex = _named("simplex", Simplex())
ordered_vector = _named("ordered_vector", OrderedVector())
positive_ordered_vector = _named("positive_ordered_vector", PositiveOrderedVector())
sphere = _named("sphere", Sphere())
l1_ball = _named("l1_ball", L1Ball())
positive_definite_circulant_vector = _named(
    "positive_definite_circulant_vector", PositiveDefiniteCirculantVector()
)
zero_sum = ZeroSum


# ------------------------------------------------------------------------------ matrices


class Square(Constraint):
    """Square matrices."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        shape = value.array.shape
        same = every(eq(value, value), (-2, -1))
        return same if shape[-1] == shape[-2] else same & False

    def interior(self, value: Tensor) -> float | Tensor:
        return wrap(np.eye(value.array.shape[-1], dtype=value.array.dtype))


class Symmetric(Square):
    """Matrices equal to their transpose, within rounding."""

    def check(self, value: Tensor) -> Tensor:
        gap = absolute(value - value.mT)
        size = absolute(value) + absolute(value.mT)
        near = every(le(gap, size * 1e-6), (-2, -1))
        return logical_and(super().check(value), near)


class PositiveSemidefinite(Symmetric):
    """Symmetric matrices without a negative eigenvalue (beyond rounding)."""

    def check(self, value: Tensor) -> Tensor:
        values = _eigenvalues(value)
        least = values.amin(-1)
        return logical_and(super().check(value), ge(least, -_slack(value) * values.amax(-1)))


class PositiveDefinite(Symmetric):
    """Symmetric matrices whose eigenvalues are all positive."""

    def check(self, value: Tensor) -> Tensor:
        near = super().check(value)
        if not is_constant(value):
            return logical_and(near, _has_factor(value))
        return logical_and(near, gt(_eigenvalues(value, unit_diagonal=True).amin(-1), 0.0))


def _has_factor(value: Tensor) -> Tensor:
    """Whether matrices have Cholesky factors, for a recording, which then has the very factors that
    a distribution computes with.
    """
    before = set_recorder(None)
    try:
        failed = cholesky_ex(value)[1].array.any()
    finally:
        set_recorder(before)
    factor = cholesky_ex(value)[0] if failed else cholesky(value)
    ends = _diagonal(factor)
    return every(eq(ends, ends), -1)


def _eigenvalues(value: Tensor, unit_diagonal: bool = False) -> Tensor:
    """Eigenvalues of symmetric matrices, by LAPACK on the host; nan and inf count as 0.

    Scaled to a `unit_diagonal` a matrix is as definite as before, and rounding hides it no more
    where its rows are of different sizes.
    A test of membership has no derivative, so no op is needed; a recording is told that it cannot
    repeat this one.
    """
    read("a test for positive definiteness", value)
    matrix = to_host(value.array)
    matrix = np.where(np.isfinite(matrix), matrix, 0.0)
    if unit_diagonal:
        ends = np.sqrt(np.abs(np.diagonal(matrix, 0, -2, -1)))
        ends = np.where(ends > 0.0, ends, 1.0)
        matrix = matrix / ends[..., None] / ends[..., None, :]
    return as_tensor(np.linalg.eigvalsh(matrix))


class LowerTriangular(Square):
    """Square matrices with zeros above the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(eq(value, tril(value)), (-2, -1)))


class LowerCholesky(LowerTriangular):
    """Lower-triangular matrices with a positive diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(gt(_diagonal(value), 0.0), -1))


class SoftplusLowerCholesky(LowerCholesky):
    """Lower-triangular matrices whose positive diagonal is reached by softplus instead of exp."""


class ScaledUnitLowerCholesky(LowerCholesky):
    """Lower Cholesky factors that are reached as unit triangles with scaled rows."""


class UnitLowerCholesky(LowerTriangular):
    """Lower-triangular matrices with ones on the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return logical_and(super().check(value), every(eq(_diagonal(value), 1.0), -1))


class CorrCholesky(LowerCholesky):
    """Cholesky factors of correlation matrices: lower Cholesky with rows of length 1."""

    def check(self, value: Tensor) -> Tensor:
        length = total(value * value, -1)
        unit = every(le(absolute(length - 1.0), _slack(value)), -1)
        return logical_and(super().check(value), unit)


class CorrMatrix(PositiveDefinite):
    """Positive definite matrices with ones on the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        unit = every(le(absolute(_diagonal(value) - 1.0), _slack(value)), -1)
        return logical_and(super().check(value), unit)


def _diagonal(x: Tensor) -> Tensor:
    return diagonal(x, 0, -2, -1)


square = _named("square", Square())
symmetric = _named("symmetric", Symmetric())
positive_semidefinite = _named("positive_semidefinite", PositiveSemidefinite())
positive_definite = _named("positive_definite", PositiveDefinite())
lower_triangular = _named("lower_triangular", LowerTriangular())
lower_cholesky = _named("lower_cholesky", LowerCholesky())
softplus_lower_cholesky = _named("softplus_lower_cholesky", SoftplusLowerCholesky())
scaled_unit_lower_cholesky = _named("scaled_unit_lower_cholesky", ScaledUnitLowerCholesky())
unit_lower_cholesky = _named("unit_lower_cholesky", UnitLowerCholesky())
corr_cholesky = _named("corr_cholesky", CorrCholesky())
corr_matrix = _named("corr_matrix", CorrMatrix())


# ------------------------------------------------------------------------------ combinations


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
real_vector = _named("real_vector", IndependentConstraint(real, 1))
real_matrix = _named("real_matrix", IndependentConstraint(real, 2))
row_stochastic_matrix = _named("row_stochastic_matrix", IndependentConstraint(simplex, 1))
column_stochastic_matrix = _named("column_stochastic_matrix", ColumnStochasticMatrix())


explain_calls(globals())
