"""Kernels of products of points: of lines, polynomials and constants; and white noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.contrib.gp.kernels.isotropic import constant_diagonal
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.parameterized import Given, positive
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["Constant", "DotProduct", "Linear", "Polynomial", "WhiteNoise"]


class _Scaled(Kernel):
    """Base of kernels with nothing but a variance."""

    def __init__(
        self,
        input_dim: int,
        variance: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, active_dims)
        self.variance = positive(variance)


class DotProduct(_Scaled):
    """Base of kernels ``variance * g(x @ z)``.

    Parameters
    ----------
    input_dim : int
    variance : Tensor or number, positive, optional
        1 without it.
    active_dims : sequence of int, optional
    """

    def product(self, X: Tensor, Z: Tensor | None, diag: bool) -> Tensor:
        """Return scalar products, shape (n, m), or (n,)."""
        x = self.points(X)
        if diag:
            return total(x * x, -1)
        return x @ (x if Z is None else self.points(Z, "Z")).mT


class Linear(DotProduct):
    """Linear kernel, ``variance * x @ z``: of linear functions with normal slopes.

    Parameters
    ----------
    input_dim, variance, active_dims
        See `DotProduct`.
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        return self.variance * self.product(X, Z, diag)


class Polynomial(DotProduct):
    """Polynomial kernel, ``variance * (bias + x @ z) ** degree``.

    Parameters
    ----------
    input_dim, variance
        See `DotProduct`.
    bias : Tensor or number, positive, optional
        1 without it.
    degree : int, positive
    active_dims : sequence of int, optional
    """

    def __init__(
        self,
        input_dim: int,
        variance: Given | None = None,
        bias: Given | None = None,
        degree: int = 1,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, variance, active_dims)
        if not isinstance(degree, int) or degree < 1:
            raise ArgumentError(
                "Polynomial",
                expected="a positive int as degree",
                got=repr(degree),
                fix="degree 1 is a line with an intercept",
            )
        self.bias = positive(bias)
        self.degree = degree

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        return self.variance * (self.bias + self.product(X, Z, diag)) ** self.degree


class Constant(_Scaled):
    """Constant kernel, ``variance``: of functions that are one normal number everywhere.

    Parameters
    ----------
    input_dim : int
    variance : Tensor or number, positive, optional
        1 without it.
    active_dims : sequence of int, optional
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)
        if diag:
            return constant_diagonal(self.variance, x)
        z = x if Z is None else self.points(Z, "Z")
        return expand(self.variance, (x.array.shape[0], z.array.shape[0]))


class WhiteNoise(_Scaled):
    """White noise, ``variance`` of a point with itself, 0 with any other.

    Parameters
    ----------
    input_dim : int
    variance : Tensor or number, positive, optional
        1 without it.
    active_dims : sequence of int, optional

    Notes
    -----
    Points of Z are others, also where they equal points of X: noise is drawn anew.
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)
        if diag:
            return constant_diagonal(self.variance, x)
        if Z is None:
            return self.variance * x.new_tensor(np.eye(x.array.shape[0]))
        shape = (x.array.shape[0], self.points(Z, "Z").array.shape[0])
        return self.variance * x.new_tensor(np.zeros(shape))


explain_calls(globals())
