"""Onto sets with a structure: the l1 ball, rows of circulant matrices; transposes, recursions."""

from __future__ import annotations

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import circulant_spectrum
from probtorch.distributions.transforms.scalar import LOG_2
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.exponentials import exp, log, log1p, softplus
from probtorch.ops.movement import expand, movedim, slice_, squeeze, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "L1BallTransform",
    "PositiveDefiniteCirculantTransform",
    "RecursiveLinearTransform",
    "TransposeTransform",
]


class L1BallTransform(Transform):
    """Vectors onto those whose absolute values add up to at most 1, element by element.

    Element i is tanh(x_i) times what the elements before it have left of 1.

    Notes
    -----
    What is left is kept as a sum of logarithms, so elements keep their precision however small. The
    inverse subtracts from 1, since a point near the border does not say how near it is.
    """

    domain = constraints.real_vector
    codomain = constraints.l1_ball

    @staticmethod
    def _log_left(x: Tensor) -> Tensor:
        """Log of what is left before each element."""
        size = absolute(last_part(x, 0, -1))
        # 1 - tanh s = 2 exp(-2 s) / (1 + exp(-2 s)).
        shares = LOG_2 - softplus(2.0 * size)
        zero = x.new_zeros((*x.array.shape[:-1], 1))
        return cat([zero, cumsum(shares, -1)], -1)

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x) * exp(self._log_left(x))

    def _inverse(self, y: Tensor) -> Tensor:
        one = y.new_ones((*y.array.shape[:-1], 1))
        left = cat([one, 1.0 - cumsum(absolute(last_part(y, 0, -1)), -1)], -1)
        # atanh(y / left).
        return 0.5 * (log1p(2.0 * y / (left - y)))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        size = absolute(x)
        slopes = 2.0 * (LOG_2 - size - softplus(-2.0 * size))
        return total(self._log_left(x) + slopes, -1)


class PositiveDefiniteCirculantTransform(Transform):
    """Vectors onto the first rows of positive definite circulant matrices, by their eigenvalues.

    Parameters
    ----------
    size : int, optional
        Length of a row; arguments have ``size // 2 + 1`` numbers, the logs of the eigenvalues. Odd,
        twice the numbers less 1, if None.
    """

    domain = constraints.real_vector
    _settings = ("size",)

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        self.codomain = constraints.PositiveDefiniteCirculantVector(size)

    def _row(self, orders: int) -> int:
        n = 2 * orders - 1 if self.size is None else self.size
        if n // 2 + 1 != orders:
            raise ShapeError(
                "PositiveDefiniteCirculantTransform",
                expected=f"{n // 2 + 1} numbers for a row of {n}",
                got=f"{orders}",
                fix="use inverse_shape() of the row's shape",
            )
        return n

    def _call(self, x: Tensor) -> Tensor:
        return exp(x) @ x.new_tensor(_to_row(self._row(x.array.shape[-1])).T.copy())

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y @ y.new_tensor(circulant_spectrum(y.array.shape[-1])))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Of the map to the first half of the row, which has the rest."""
        orders = x.array.shape[-1]
        _, constant = np.linalg.slogdet(_to_row(self._row(orders))[:orders])
        return total(x, -1) + float(constant)

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], self._row(shape[-1]))

    def inverse_shape(self, shape: Shape) -> Shape:
        if self._row(shape[-1] // 2 + 1) != shape[-1]:
            raise ShapeError(
                "PositiveDefiniteCirculantTransform",
                expected="rows of an odd size, where no size is given",
                got=f"shape {tuple(shape)}",
                fix=f"state it: constraints.PositiveDefiniteCirculantVector({shape[-1]})",
            )
        return (*shape[:-1], shape[-1] // 2 + 1)


def _to_row(n: int) -> np.ndarray:
    """From eigenvalues to the first row, shape (n, n // 2 + 1)."""
    # All orders but the first, and the last of an even row, stand for two eigenvalues.
    counts = np.full(n // 2 + 1, 2.0)
    counts[0] = 1.0
    if n % 2 == 0:
        counts[-1] = 1.0
    return circulant_spectrum(n) * counts / n


class TransposeTransform(Transform):
    """Matrices with their last two dims exchanged."""

    domain = constraints.real_matrix
    codomain = constraints.real_matrix

    def _call(self, x: Tensor) -> Tensor:
        return x.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return y.mT

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[:-2])

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2])

    inverse_shape = forward_shape


class RecursiveLinearTransform(Transform):
    """Steps to the states of a linear recursion, y_t = transition_matrix y_{t-1} + x_t.

    Parameters
    ----------
    transition_matrix : Tensor, shape (..., n, n)
    initial_value : Tensor, shape (..., n), optional
        The state before the first step; 0 if None.

    Notes
    -----
    Arguments have shape (..., steps, n). The name and the arguments are NumPyro's.
    """

    domain = constraints.real_matrix
    codomain = constraints.real_matrix
    _settings = ("transition_matrix", "initial_value")

    def __init__(self, transition_matrix: Tensor, initial_value: Tensor | None = None) -> None:
        self.transition_matrix, self.initial_value = transition_matrix, initial_value

    def _start(self, x: Tensor) -> Tensor:
        shape = (*x.array.shape[:-2], x.array.shape[-1])
        if self.initial_value is None:
            return x.new_zeros(shape)
        return expand(self.initial_value, shape)

    def _moved(self, y: Tensor) -> Tensor:
        return squeeze(self.transition_matrix @ unsqueeze(y, -1), -1)

    def _call(self, x: Tensor) -> Tensor:
        shape = self.forward_shape(x.array.shape)
        start = self._start(expand(x, shape))
        # A loop carries one dtype.
        kind = (self._moved(start) + x[..., 0, :]).array.dtype
        x, start = (v if v.array.dtype == kind else cast(v, kind) for v in (x, start))

        def step(before: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
            after = self._moved(before) + now
            return after, after

        return movedim(scan(step, start, movedim(expand(x, shape), -2, 0))[1], 0, -2)

    def _inverse(self, y: Tensor) -> Tensor:
        spans = y.array.shape
        past = slice_(
            y, (*((0, 1, n) for n in spans[:-2]), (0, 1, spans[-2] - 1), (0, 1, spans[-1]))
        )
        before = cat([unsqueeze(self._start(y), -2), past], -2)
        return y - before @ self.transition_matrix.mT

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return y.new_zeros(y.array.shape[:-2])

    def forward_shape(self, shape: Shape) -> Shape:
        lead = broadcast_shapes(
            tuple(shape[:-2]),
            self.transition_matrix.array.shape[:-2],
            () if self.initial_value is None else self.initial_value.array.shape[:-1],
            op="RecursiveLinearTransform",
        )
        return (*lead, *shape[-2:])

    inverse_shape = forward_shape


explain_calls(globals())
