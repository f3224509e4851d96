"""Transforms of vectors: onto the simplex, ordered vectors, softmax and permutations."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import numpy as np

from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import neg, where
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import exp, log, softplus
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, movedim, slice_, squeeze, unsqueeze
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "LowerCholeskyAffine",
    "OrderedTransform",
    "Permute",
    "PermuteTransform",
    "PositiveOrderedTransform",
    "SoftmaxTransform",
    "StickBreakingTransform",
    "ZeroSumTransform",
    "last_part",
]


def last_part(x: Tensor, start: int, stop: int | None = None) -> Tensor:
    """x[..., start:stop] of the last dim."""
    shape = x.array.shape
    first, last, _ = slice(start, stop).indices(shape[-1])
    return slice_(x, (*((0, 1, n) for n in shape[:-1]), (first, 1, max(last - first, 0))))


class StickBreakingTransform(Transform):
    """Vectors of K - 1 reals onto the simplex of K parts, part by part from the left.

    Part k takes the share sigmoid(x_k - log(K - k)) of what is left, so that x = 0 gives equal
    parts.

    Notes
    -----
    All in logarithms: parts keep their relative precision however small, and the
    log-determinant is the sum of the K log parts. The inverse divides by sums of later parts, never
    by 1 minus earlier ones; a part that has underflowed to 0 gives -inf, and inf where all later
    ones have, not a wrong finite number.
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        u = x - self._offset(x)
        rest = neg(softplus(u))
        left = cumsum(rest, -1)
        zero = x.new_zeros((*x.array.shape[:-1], 1))
        # log part k = log sigmoid(u_k) + the log of what the parts before have left.
        return exp(cat([u, zero], -1) + cat([left, last_part(left, -1)], -1))

    def _inverse(self, y: Tensor) -> Tensor:
        part, later = last_part(y, 0, -1), flip(cumsum(flip(last_part(y, 1), -1), -1), -1)
        # Where nothing was left to share, any share is right: equal parts.
        some = (part > 0.0) | (later > 0.0)
        x = log(where(some, part, 1.0)) - log(where(some, later, 1.0))
        return where(some, x + self._offset(x), 0.0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        u = x - self._offset(x)
        n = x.array.shape[-1]
        # Sum over the parts of log part k; log(1 - share j) enters once for j and for each later
        # part.
        weights = x.new_tensor(np.arange(n + 1, 1, -1))
        return total(u - weights * softplus(u), -1)

    @staticmethod
    def _offset(x: Tensor) -> Tensor:
        n = x.array.shape[-1]
        return x.new_tensor(np.log(np.arange(n, 0, -1)))

    def forward_shape(self, shape: Shape) -> Shape:
        return _resized(shape, 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return _resized(shape, -1)


def _resized(shape: Shape, change: int) -> Shape:
    if not shape or shape[-1] + change < 1:
        raise ShapeError(
            "StickBreakingTransform",
            expected="a vector: at least 1 real, at least 2 parts",
            got=f"shape {tuple(shape)}",
            fix="check the event shape",
        )
    return (*shape[:-1], shape[-1] + change)


class SoftmaxTransform(Transform):
    """y = softmax(x) along the last dim: cheap, but not bijective; log is a right inverse."""

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = False

    def _call(self, x: Tensor) -> Tensor:
        return softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)


class OrderedTransform(Transform):
    """y_1 = x_1, y_k = y_{k-1} + exp(x_k): increasing vectors."""

    domain = constraints.real_vector
    codomain = constraints.ordered_vector

    def _call(self, x: Tensor) -> Tensor:
        return cumsum(cat([last_part(x, 0, 1), exp(last_part(x, 1))], -1), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return cat([last_part(y, 0, 1), log(last_part(y, 1) - last_part(y, 0, -1))], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return total(last_part(x, 1), -1)


class PositiveOrderedTransform(Transform):
    """y_k = exp(x_1) + ... + exp(x_k): increasing vectors of positive numbers."""

    domain = constraints.real_vector
    codomain = constraints.positive_ordered_vector

    def _call(self, x: Tensor) -> Tensor:
        return cumsum(exp(x), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        first = last_part(y, 0, 1)
        return log(cat([first, last_part(y, 1) - last_part(y, 0, -1)], -1))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return total(x, -1)


class PermuteTransform(Transform):
    """The elements along a dim in another order: y_i = x[permutation_i].

    Parameters
    ----------
    permutation : sequence of int
    dim : int, below 0
        The dim to permute; it and those behind it form one element of the domain.
    """

    _settings = ("permutation", "dim")

    def __init__(
        self, permutation: Tensor | Sequence[int], dim: int = -1, cache_size: int = 0
    ) -> None:
        if dim >= 0:
            raise ArgumentError(
                "PermuteTransform",
                expected="dim, counted from the end",
                got=repr(dim),
                fix="-1 is the last dim",
            )
        self.dim = dim
        self.domain = self.codomain = constraints.independent(constraints.real, -dim)
        self.permutation = tuple(int(i) for i in permutation)
        if sorted(self.permutation) != list(range(len(self.permutation))):
            raise ShapeError(
                "PermuteTransform",
                expected=f"each of 0 to {len(self.permutation) - 1} once",
                got=str(self.permutation),
                fix="use randperm(n)",
            )

    def _call(self, x: Tensor) -> Tensor:
        return self._ordered(x, list(self.permutation))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._ordered(y, [int(i) for i in np.argsort(self.permutation)])

    def _ordered(self, x: Tensor, order: list[int]) -> Tensor:
        behind = [slice(None)] * (-1 - self.dim)
        index: tuple[EllipsisType | list[int] | slice, ...] = (..., order, *behind)
        return x[index]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[: self.dim])


# Pyro's name.
Permute = PermuteTransform


class LowerCholeskyAffine(Transform):
    """y = loc + scale_tril x, for vectors.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
    scale_tril : Tensor, shape (..., n, n)
        Lower triangular, without a 0 on its diagonal.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    _settings = ("loc", "scale_tril")

    def __init__(self, loc: Tensor, scale_tril: Tensor, cache_size: int = 0) -> None:
        self.loc, self.scale_tril = loc, scale_tril

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + squeeze(self.scale_tril @ unsqueeze(x, -1), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        shift = unsqueeze(y - self.loc, -1)
        tril = self.scale_tril
        lead = shift.array.shape[:-2]
        if tril.array.shape[:-2] != lead:
            tril = expand(tril, (*lead, *tril.array.shape[-2:]))
        return squeeze(solve_triangular(tril, shift, upper=False), -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scales = total(log(absolute(diagonal(self.scale_tril, 0, -2, -1))), -1)
        return scales + x.new_zeros(x.array.shape[:-1])

    def forward_shape(self, shape: Shape) -> Shape:
        return self._wide(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._wide(shape)

    def _wide(self, shape: Shape) -> Shape:
        given = self.scale_tril.array.shape[:-1]
        return broadcast_shapes(tuple(shape), self.loc.array.shape, given, op="LowerCholeskyAffine")


class ZeroSumTransform(Transform):
    """Arrays of K - 1 reals along each dim onto those of K whose sums are 0, isometrically.

    Parameters
    ----------
    transform_ndims : int
        How many of the last dims add up to 0, each along itself.

    Notes
    -----
    The columns of the Helmert basis are orthonormal, so lengths and volumes are kept
    and the log-determinant is 0.
    """

    _settings = ("transform_ndims",)

    def __init__(self, transform_ndims: int = 1) -> None:
        self.transform_ndims = transform_ndims
        self.domain = constraints.independent(constraints.real, transform_ndims)
        self.codomain = constraints.zero_sum(transform_ndims)

    def _call(self, x: Tensor) -> Tensor:
        for dim in range(-self.transform_ndims, 0):
            basis = x.new_tensor(_helmert(x.array.shape[dim]).T)
            x = movedim(movedim(x, dim, -1) @ basis, -1, dim)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for dim in range(-self.transform_ndims, 0):
            basis = y.new_tensor(_helmert(y.array.shape[dim] - 1))
            y = movedim(movedim(y, dim, -1) @ basis, -1, dim)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[: x.array.ndim - self.transform_ndims])

    def forward_shape(self, shape: Shape) -> Shape:
        return self._with(shape, 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._with(shape, -1)

    def _with(self, shape: Shape, change: int) -> Shape:
        cut = len(shape) - self.transform_ndims
        if cut < 0 or min(n + change for n in shape[cut:]) < 1:
            raise ShapeError(
                "ZeroSumTransform",
                expected=f"{self.transform_ndims} dims of at least {2 if change < 0 else 1}",
                got=f"shape {tuple(shape)}",
                fix="check the event shape",
            )
        return (*shape[:cut], *(n + change for n in shape[cut:]))


def _helmert(n: int) -> np.ndarray:
    """Orthonormal basis, shape (n + 1, n), of the vectors that add up to 0."""
    basis = np.zeros((n + 1, n))
    for j in range(n):
        basis[: j + 1, j] = 1.0
        basis[j + 1, j] = -(j + 1.0)
        basis[:, j] /= np.sqrt((j + 1.0) * (j + 2.0))
    return basis


explain_calls(globals())
