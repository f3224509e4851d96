"""Kernels of Brownian motion, and of several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.parameterized import Given, positive
from probtorch.core.signatures import explain_calls
from probtorch.effects.pyro_module import PyroParam, PyroSample
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import zeros
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import minimum, where
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.sampling import randn
from probtorch.tensor import Tensor

__all__ = ["Brownian", "Coregionalize"]


class Brownian(Kernel):
    """Brownian motion from 0 at x = 0, in both directions.

    Its covariances are ``variance * min(|x|, |z|)`` on the same side of 0, and 0 across it.

    Parameters
    ----------
    input_dim : int
        1.
    variance : Tensor or number, positive, optional
        Of a unit of x; 1 without it.
    active_dims : sequence of int, optional
    """

    def __init__(
        self,
        input_dim: int = 1,
        variance: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        if input_dim != 1:
            raise ArgumentError(
                "Brownian", expected="input_dim 1", got=repr(input_dim),
                fix="a Brownian sheet is a Product of kernels, one for each dim",
            )  # fmt: skip
        super().__init__(input_dim, active_dims)
        self.variance = positive(variance)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)[:, 0]
        if diag:
            return self.variance * absolute(x)
        z = x if Z is None else self.points(Z, "Z")[:, 0]
        a, b = unsqueeze(x, 1), unsqueeze(z, 0)
        return self.variance * where(a * b > 0.0, minimum(absolute(a), absolute(b)), 0.0)


class Coregionalize(Kernel):
    """Linear model of coregionalization: covariances of outputs, where a feature says which.

    Points give weights to outputs (one-hot rows say which one): ``x @ (W W' + diag(v)) @ z``. Times
    another kernel it makes functions of several correlated outputs.

    Parameters
    ----------
    input_dim : int
        Number of outputs.
    rank : int, optional
        Columns of W; all of them without it.
    components : Tensor, shape (input_dim, rank), optional
        W at first; small random numbers without it.
    diagonal : Tensor, shape (input_dim,), optional
        The variances v at first, positive; halves without it.
    active_dims : sequence of int, optional

    References
    ----------
    Alvarez, Rosasco and Lawrence (2012), "Kernels for vector-valued functions: a review".
    """

    def __init__(
        self,
        input_dim: int,
        rank: int | None = None,
        components: Tensor | PyroParam | PyroSample | None = None,
        diagonal: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, active_dims)
        wanted = input_dim if rank is None else rank
        if components is None:
            components = 0.1 * randn(input_dim, wanted)
        if isinstance(components, Tensor):
            shape = tuple(components.shape)
            if len(shape) != 2 or shape[0] != input_dim or (rank is not None and shape[1] != rank):
                raise ShapeError(
                    "Coregionalize", expected=f"components of shape ({input_dim}, {wanted})",
                    got=str(shape), fix="a row for each output; leave rank out to have it read off",
                )  # fmt: skip
            components = PyroParam(components)
        self.components = cast(Tensor, components)
        self.diagonal = positive(zeros(input_dim) + 0.5 if diagonal is None else diagonal)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)
        w, v = self.components, self.diagonal
        left = x @ w
        if diag:
            return total(left * left, -1) + total(x * x * v, -1)
        z = x if Z is None else self.points(Z, "Z")
        right = left if Z is None else z @ w
        return left @ right.mT + (x * v) @ z.mT


explain_calls(globals())
