"""From a constraint to a transform onto it: `biject_to` and `transform_to`.

Two registries with different promises. `biject_to(c)` is a bijection with a log-determinant: what
samplers need, whose density must be right. `transform_to(c)` is some cheap map onto the set,
perhaps with more numbers than degrees of freedom (softmax for a simplex): what optimisers need.
They agree except for the simplex.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar, overload

from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.constraints.base import how_to_say, infinite_somewhere
from probtorch.distributions.transforms.cholesky import (
    CorrMatrixCholeskyTransform,
    PositiveDefiniteTransform,
)
from probtorch.distributions.transforms.directions import (
    AngleTransform,
    Normalize,
    UnitVectorTransform,
)
from probtorch.distributions.transforms.fourier import ComplexTransform
from probtorch.distributions.transforms.matrix import (
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    ScaledUnitLowerCholeskyTransform,
    SoftplusLowerCholeskyTransform,
    UnitLowerCholeskyTransform,
)
from probtorch.distributions.transforms.pieces import CatTransform, StackTransform
from probtorch.distributions.transforms.scalar import (
    AffineTransform,
    ExpTransform,
    IntervalTransform,
    RowsTransform,
    SigmoidTransform,
    SoftplusTransform,
)
from probtorch.distributions.transforms.shaping import PartialSumsTransform
from probtorch.distributions.transforms.structured import (
    L1BallTransform,
    PositiveDefiniteCirculantTransform,
    TransposeTransform,
)
from probtorch.distributions.transforms.transform import (
    ComposeTransform,
    IndependentTransform,
    Transform,
    identity_transform,
)
from probtorch.distributions.transforms.vector import (
    OrderedTransform,
    PositiveOrderedTransform,
    SoftmaxTransform,
    StickBreakingTransform,
    ZeroSumTransform,
)
from probtorch.errors import ArgumentError

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]


_Maker = TypeVar("_Maker", bound=Callable[..., Transform])


class ConstraintRegistry:
    """A table from classes of constraints to functions that make a transform onto one of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._makers: dict[type[Constraint], Callable[..., Transform]] = {}

    @overload
    def register(
        self, constraint: Constraint | type[Constraint], factory: None = None
    ) -> Callable[[_Maker], _Maker]: ...
    @overload
    def register(self, constraint: Constraint | type[Constraint], factory: _Maker) -> _Maker: ...
    def register(
        self,
        constraint: Constraint | type[Constraint],
        factory: Callable[..., Transform] | None = None,
    ) -> Callable[..., object]:
        """Add ``factory(constraint) -> Transform`` for a class of constraints (or an instance).

        Parameters
        ----------
        constraint : Constraint or subclass of it
        factory : callable, optional
            Without it `register` is a decorator.
        """
        if factory is None:
            return lambda f: self.register(constraint, f)
        kind = constraint if isinstance(constraint, type) else type(constraint)
        if not issubclass(kind, constraints.Constraint):
            raise ArgumentError(
                f"{self.name}.register",
                expected="a constraint or a class of constraints",
                got=repr(constraint),
                fix="subclass probtorch.distributions.constraints.Constraint",
            )
        self._makers[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """Return a transform from unconstrained space onto `constraint`.

        Raises
        ------
        ArgumentError
            If none is registered: discrete sets have none.
        """
        maker = self._makers.get(type(constraint))
        if isinstance(constraint, type) and issubclass(constraint, Constraint):
            raise ArgumentError(
                f"{self.name}({constraint.__name__})",
                expected="a constraint",
                got="a class of constraints",
                fix=how_to_say(constraint),
            )
        if maker is None:
            discrete = getattr(constraint, "is_discrete", False)
            raise ArgumentError(
                f"{self.name}({constraint!r})",
                expected="a constraint with a registered transform",
                got="a discrete set" if discrete else f"{type(constraint).__name__}",
                fix="enumerate the site, or use a sampler for discrete values"
                if discrete
                else f"register one with {self.name}.register",
            )
        return maker(constraint)


biject_to = ConstraintRegistry("biject_to")
transform_to = ConstraintRegistry("transform_to")


def _both(kind: type[Constraint]) -> Callable[[_Maker], _Maker]:
    def add(factory: _Maker) -> _Maker:
        biject_to.register(kind, factory)
        transform_to.register(kind, factory)
        return factory

    return add


def _zero(bound: object) -> bool:
    return isinstance(bound, (int, float)) and bound == 0


@_both(constraints.Real)
@transform_to.register(constraints.Circular)
def _identity(constraint: Constraint) -> Transform:
    return identity_transform


@_both(constraints.Complex)
def _complex(constraint: Constraint) -> Transform:
    return ComplexTransform()


@biject_to.register(constraints.Circular)
def _angle(constraint: Constraint) -> Transform:
    return AngleTransform()


@biject_to.register(constraints.Sphere)
def _unit_vector(constraint: Constraint) -> Transform:
    return UnitVectorTransform()


@transform_to.register(constraints.Sphere)
def _normalized(constraint: Constraint) -> Transform:
    return Normalize()


@_both(constraints.OffsetMultiplier)
def _scaled(constraint: constraints.OffsetMultiplier) -> Transform:
    return AffineTransform(
        constraint.offset, constraint.multiplier, domain=constraints.real, codomain=constraint
    )


@_both(constraints.GreaterThan)
@_both(constraints.GreaterThanEq)
def _above(constraint: constraints.GreaterThan | constraints.GreaterThanEq) -> Transform:
    bound = constraint.lower_bound
    if infinite_somewhere(bound):
        return RowsTransform(bound, math.inf, codomain=constraint)
    if _zero(bound):
        return (
            _POSITIVE if constraint == constraints.positive else _onto(ExpTransform(), constraint)
        )
    shift = AffineTransform(bound, 1.0, domain=constraints.positive, codomain=constraint)
    return ComposeTransform([ExpTransform(), shift])


@_both(constraints.LessThan)
@_both(constraints.LessThanEq)
def _below(constraint: constraints.LessThan | constraints.LessThanEq) -> Transform:
    bound = constraint.upper_bound
    if infinite_somewhere(bound):
        return RowsTransform(-math.inf, bound, codomain=constraint)
    shift = AffineTransform(bound, -1.0, domain=constraints.positive, codomain=constraint)
    return ComposeTransform([ExpTransform(), shift])


@_both(constraints.Interval)
@_both(constraints.HalfOpenInterval)
@_both(constraints.LeftOpenInterval)
@_both(constraints.OpenInterval)
def _between(
    constraint: constraints.Interval
    | constraints.HalfOpenInterval
    | constraints.LeftOpenInterval
    | constraints.OpenInterval,
) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if infinite_somewhere(low, high):
        return RowsTransform(low, high, codomain=constraint)
    if _zero(low) and isinstance(high, (int, float)) and high == 1:
        return _onto(SigmoidTransform(), constraint)
    return IntervalTransform(low, high, codomain=constraint)


def _onto(transform: Transform, constraint: Constraint) -> Transform:
    """State the exact set (open, closed) that was asked for as the codomain."""
    return transform.with_domain(transform.domain, constraint)


_POSITIVE = ExpTransform()


@_both(constraints.SoftplusPositive)
def _softplus(constraint: Constraint) -> Transform:
    return SoftplusTransform()


@biject_to.register(constraints.Simplex)
def _stick_breaking(constraint: Constraint) -> Transform:
    return StickBreakingTransform()


@transform_to.register(constraints.Simplex)
def _softmax(constraint: Constraint) -> Transform:
    return SoftmaxTransform()


@_both(constraints.OrderedVector)
def _ordered(constraint: Constraint) -> Transform:
    return OrderedTransform()


@_both(constraints.PositiveOrderedVector)
def _positive_ordered(constraint: Constraint) -> Transform:
    return PositiveOrderedTransform()


@_both(constraints.OrderedWithin)
def _ordered_within(constraint: constraints.OrderedWithin) -> Transform:
    base = constraint.base_constraint
    low = base.lower_bound
    if not isinstance(base, constraints.Interval):
        shift = AffineTransform(low, 1.0, 1, codomain=constraint)
        return ComposeTransform([PositiveOrderedTransform(), shift])
    scaled = AffineTransform(low, base.upper_bound - low, 1, codomain=constraint)
    return ComposeTransform([StickBreakingTransform(), PartialSumsTransform(), scaled])


@_both(constraints.ZeroSum)
def _zero_sum(constraint: constraints.ZeroSum) -> Transform:
    return ZeroSumTransform(constraint.event_dim)


@_both(constraints.L1Ball)
def _l1_ball(constraint: Constraint) -> Transform:
    return L1BallTransform()


@_both(constraints.PositiveDefiniteCirculantVector)
def _circulant(constraint: constraints.PositiveDefiniteCirculantVector) -> Transform:
    return PositiveDefiniteCirculantTransform(constraint.size)


@_both(constraints.LowerCholesky)
def _lower_cholesky(constraint: Constraint) -> Transform:
    return LowerCholeskyTransform()


@_both(constraints.SoftplusLowerCholesky)
def _softplus_lower_cholesky(constraint: Constraint) -> Transform:
    return SoftplusLowerCholeskyTransform()


@_both(constraints.ScaledUnitLowerCholesky)
def _scaled_unit_lower_cholesky(constraint: Constraint) -> Transform:
    return ScaledUnitLowerCholeskyTransform()


@_both(constraints.UnitLowerCholesky)
def _unit_lower_cholesky(constraint: Constraint) -> Transform:
    return UnitLowerCholeskyTransform()


@_both(constraints.CorrCholesky)
def _corr_cholesky(constraint: Constraint) -> Transform:
    return CorrCholeskyTransform()


@_both(constraints.PositiveDefinite)
@_both(constraints.PositiveSemidefinite)
def _positive_definite(constraint: Constraint) -> Transform:
    return PositiveDefiniteTransform()


@_both(constraints.CorrMatrix)
def _corr_matrix(constraint: Constraint) -> Transform:
    return ComposeTransform([CorrCholeskyTransform(), CorrMatrixCholeskyTransform().inv])


def _by_parts(registry: ConstraintRegistry) -> None:
    """Register constraints made of others, whose parts are looked up in the same registry."""

    @registry.register(constraints.IndependentConstraint)
    def _independent(constraint: constraints.IndependentConstraint) -> Transform:
        base = registry(constraint.base_constraint)
        n = constraint.reinterpreted_batch_ndims
        return base if base is identity_transform and n == 0 else IndependentTransform(base, n)

    @registry.register(constraints.ColumnStochasticMatrix)
    def _columns(constraint: Constraint) -> Transform:
        rows = registry(constraints.row_stochastic_matrix)
        turned = TransposeTransform().with_domain(constraints.row_stochastic_matrix, constraint)
        return ComposeTransform([rows, turned])

    @registry.register(constraints.Cat)
    def _cat(constraint: constraints.Cat) -> Transform:
        parts = [registry(c) for c in constraint.cseq]
        return CatTransform(parts, constraint.dim, constraint.lengths)

    @registry.register(constraints.Stack)
    def _stack(constraint: constraints.Stack) -> Transform:
        return StackTransform([registry(c) for c in constraint.cseq], constraint.dim)


_by_parts(biject_to)
_by_parts(transform_to)
