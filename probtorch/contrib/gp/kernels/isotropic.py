"""Kernels of the distance of two points: stationary, each with a variance and a length scale.

Rasmussen and Williams (2006), "Gaussian Processes for Machine Learning", chapter 4.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence

from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.parameterized import Given, positive
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp, log1p
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "RBF",
    "Exponential",
    "Isotropy",
    "Matern32",
    "Matern52",
    "RationalQuadratic",
    "constant_diagonal",
]


def constant_diagonal(variance: Tensor, x: Tensor) -> Tensor:
    """Return a variance for every point."""
    shape: Shape = (x.array.shape[0],)
    return expand(variance, shape)


class Isotropy(Kernel):
    """Base of kernels ``variance * g(r)`` of the distance r of points in units of a length scale.

    Parameters
    ----------
    input_dim : int
        How many features of a point it looks at.
    variance : Tensor or number, positive, optional
        Of the function's values; 1 without it. A distribution or `PyroSample` is a prior.
    lengthscale : Tensor, shape () or (input_dim,), or number, positive, optional
        In the units of the features: one for all or one for each. 1 without it.
    active_dims : sequence of int, optional
        Which features; the first without it.
    """

    def __init__(
        self,
        input_dim: int,
        variance: Given | None = None,
        lengthscale: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, active_dims)
        self.variance = positive(variance)
        self.lengthscale = positive(lengthscale)

    def squared_distance(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        """Return squared distances in units of the length scale, shape (n, m)."""
        scale = self.lengthscale
        x = self.points(X) / scale
        z = x if Z is None else self.points(Z, "Z") / scale
        # Differences first: the sum of squares less twice the products loses digits near 0.
        apart = unsqueeze(x, 1) - unsqueeze(z, 0)
        return total(apart * apart, -1)

    def distance(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        """Return distances in units of the length scale, with slope 0 where points coincide."""
        squared = self.squared_distance(X, Z)
        apart = squared > 0.0
        return where(apart, sqrt(where(apart, squared, 1.0)), 0.0)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        if diag:
            return constant_diagonal(self.variance, self.points(X))
        return self.variance * self.shape_of(X, Z)

    @abc.abstractmethod
    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations g(r), shape (n, m)."""


class RBF(Isotropy):
    """Squared exponential kernel, ``variance * exp(-r**2 / 2)``: of smooth functions.

    Parameters
    ----------
    input_dim, variance, lengthscale, active_dims
        See `Isotropy`.
    """

    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations, shape (n, m)."""
        return exp(self.squared_distance(X, Z) * -0.5)


class RationalQuadratic(Isotropy):
    """Rational quadratic kernel, ``variance * (1 + r**2 / (2 a)) ** -a``: a mixture of scales.

    Parameters
    ----------
    input_dim, variance, lengthscale
        See `Isotropy`.
    scale_mixture : Tensor or number, positive, optional
        The a above: the larger, the nearer to `RBF`. 1 without it.
    active_dims : sequence of int, optional
    """

    def __init__(
        self,
        input_dim: int,
        variance: Given | None = None,
        lengthscale: Given | None = None,
        scale_mixture: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, variance, lengthscale, active_dims)
        self.scale_mixture = positive(scale_mixture)

    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations, shape (n, m)."""
        a = self.scale_mixture
        return exp(-a * log1p(self.squared_distance(X, Z) * 0.5 / a))


class Exponential(Isotropy):
    """Exponential kernel, ``variance * exp(-r)``: of continuous functions without a slope.

    Parameters
    ----------
    input_dim, variance, lengthscale, active_dims
        See `Isotropy`.
    """

    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations, shape (n, m)."""
        return exp(-self.distance(X, Z))


class Matern32(Isotropy):
    """Matern kernel of order 3/2, ``variance * (1 + s) * exp(-s)`` with ``s = sqrt(3) r``.

    Parameters
    ----------
    input_dim, variance, lengthscale, active_dims
        See `Isotropy`.
    """

    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations, shape (n, m)."""
        s = self.distance(X, Z) * math.sqrt(3.0)
        return (1.0 + s) * exp(-s)


class Matern52(Isotropy):
    """Matern kernel of order 5/2, ``variance * (1 + s + s**2 / 3) * exp(-s)``, ``s = sqrt(5) r``.

    Parameters
    ----------
    input_dim, variance, lengthscale, active_dims
        See `Isotropy`.
    """

    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations, shape (n, m)."""
        s = self.distance(X, Z) * math.sqrt(5.0)
        return (1.0 + s + s * s * (1.0 / 3.0)) * exp(-s)


explain_calls(globals())
