"""Invertible maps with log-determinants, and the registries from constraints to them."""

from probtorch.distributions.transforms.cholesky import (
    CholeskyTransform,
    CorrMatrixCholeskyTransform,
    PositiveDefiniteTransform,
)
from probtorch.distributions.transforms.matrix import (
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    SoftplusLowerCholeskyTransform,
    UnitLowerCholeskyTransform,
)
from probtorch.distributions.transforms.registry import (
    ConstraintRegistry,
    biject_to,
    transform_to,
)
from probtorch.distributions.transforms.scalar import (
    AbsTransform,
    AffineTransform,
    ExpTransform,
    IntervalTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
)
from probtorch.distributions.transforms.transform import (
    CatTransform,
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
    StackTransform,
    Transform,
    identity_transform,
)
from probtorch.distributions.transforms.vector import (
    OrderedTransform,
    PermuteTransform,
    PositiveOrderedTransform,
    SoftmaxTransform,
    StickBreakingTransform,
    ZeroSumTransform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "CholeskyTransform",
    "ComposeTransform",
    "ConstraintRegistry",
    "CorrCholeskyTransform",
    "CorrMatrixCholeskyTransform",
    "ExpTransform",
    "IndependentTransform",
    "IntervalTransform",
    "LowerCholeskyTransform",
    "OrderedTransform",
    "PermuteTransform",
    "PositiveDefiniteTransform",
    "PositiveOrderedTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusLowerCholeskyTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "UnitLowerCholeskyTransform",
    "ZeroSumTransform",
    "biject_to",
    "identity_transform",
    "transform_to",
]
