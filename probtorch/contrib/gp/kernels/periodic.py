"""Kernels of functions that repeat themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probtorch.contrib.gp.kernels.isotropic import Isotropy, constant_diagonal
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.parameterized import Given, positive
from probtorch.core.signatures import explain_calls
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import cos, sin
from probtorch.tensor import Tensor

__all__ = ["Cosine", "Periodic"]


class Cosine(Isotropy):
    """Cosine kernel, ``variance * cos(r)``: of sinusoids; on the line alone it is a kernel.

    Parameters
    ----------
    input_dim, variance, lengthscale, active_dims
        See `Isotropy`.
    """

    def shape_of(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Return correlations, shape (n, m)."""
        return cos(self.distance(X, Z))


class Periodic(Kernel):
    """Periodic kernel, ``variance * exp(-2 sum(sin(pi (x - z) / period)**2 / lengthscale**2))``.

    Parameters
    ----------
    input_dim : int
    variance : Tensor or number, positive, optional
    lengthscale : Tensor, shape () or (input_dim,), or number, positive, optional
        Without a unit: a chord of a circle of diameter 1.
    period : Tensor, shape () or (input_dim,), or number, positive, optional
        In the units of the features. 1 without any of them.
    active_dims : sequence of int, optional

    References
    ----------
    MacKay (1998), "Introduction to Gaussian processes".
    """

    def __init__(
        self,
        input_dim: int,
        variance: Given | None = None,
        lengthscale: Given | None = None,
        period: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, active_dims)
        self.variance = positive(variance)
        self.lengthscale = positive(lengthscale)
        self.period = positive(period)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)
        if diag:
            return constant_diagonal(self.variance, x)
        z = x if Z is None else self.points(Z, "Z")
        chord = sin((unsqueeze(x, 1) - unsqueeze(z, 0)) / self.period * math.pi)
        chord = chord / self.lengthscale
        return self.variance * exp(total(chord * chord, -1) * -2.0)


explain_calls(globals())
