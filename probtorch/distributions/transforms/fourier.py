"""Real numbers as complex ones: pairs, Fourier coefficients, and where those of a real vector lie.

Densities over complex vectors are in the coordinates that they have: real and imaginary parts; of
the coefficients of a real vector those that are not 0 for every such vector.
"""

from __future__ import annotations

import math

from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.complex_numbers import complex as from_parts
from probtorch.ops.complex_numbers import view_as_complex, view_as_real
from probtorch.ops.fourier import irfft, rfft
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = [
    "ComplexTransform",
    "PackRealFastFourierCoefficientsTransform",
    "RealFastFourierTransform",
]


class ComplexTransform(Transform):
    """Pairs of real numbers to complex numbers."""

    domain = constraints.real_vector
    codomain = constraints.complex

    def _call(self, x: Tensor) -> Tensor:
        return view_as_complex(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return view_as_real(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[:-1])

    def forward_shape(self, shape: Shape) -> Shape:
        if not shape or shape[-1] != 2:
            raise ShapeError(
                "ComplexTransform",
                expected="a last dim of size 2, real and imaginary part",
                got=f"shape {tuple(shape)}",
                fix="stack the parts along a new last dim",
            )
        return tuple(shape[:-1])

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape, 2)


class _Coefficients(Transform):
    """What maps between real vectors and their coefficients share: the sizes of both."""

    domain = constraints.real_vector
    codomain = constraints.independent(constraints.complex, 1)
    _settings: tuple[str, ...] = ("transform_shape",)

    @explained(None)
    def __init__(self, transform_shape: Shape | None = None) -> None:
        if transform_shape is not None and len(transform_shape) != 1:
            raise ArgumentError(
                type(self).__name__,
                expected="the size of one dim, such as (8,)",
                got=repr(transform_shape),
                fix="transform the other dims with transforms of their own",
            )
        self.transform_shape = None if transform_shape is None else tuple(transform_shape)

    def _size(self, count: int) -> int:
        """The size of the vector that so many coefficients belong to; even if it is not given."""
        return 2 * (count - 1) if self.transform_shape is None else self.transform_shape[0]

    def forward_shape(self, shape: Shape) -> Shape:
        self._check(shape[-1] // 2 + 1, shape[-1])
        return (*shape[:-1], shape[-1] // 2 + 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        n = self._size(shape[-1])
        self._check(shape[-1], n)
        return (*shape[:-1], n)

    def _check(self, count: int, n: int) -> None:
        if self._size(count) != n or n // 2 + 1 != count:
            raise ShapeError(
                type(self).__name__,
                expected="real vectors of an even size, or of the one that is given",
                got=f"{n} numbers for {count} coefficients",
                fix=f"state the size: {type(self).__name__}(({n},))",
            )


class PackRealFastFourierCoefficientsTransform(_Coefficients):
    """Real vectors as the coefficients that a real vector of that size may have.

    Real parts come first, then the imaginary parts that are not 0 for every real vector.

    Parameters
    ----------
    transform_shape : tuple of one int, optional
        Size of the vectors; even if None.

    Notes
    -----
    The name is NumPyro's.
    """

    def _call(self, x: Tensor) -> Tensor:
        n = x.array.shape[-1]
        count = n // 2 + 1
        self._check(count, n)
        zero = x.new_zeros((*x.array.shape[:-1], 1))
        parts = [zero, last_part(x, count), *([zero] if n % 2 == 0 else [])]
        return from_parts(last_part(x, 0, count), cat(parts, -1))

    def _inverse(self, y: Tensor) -> Tensor:
        count = y.array.shape[-1]
        n = self._size(count)
        self._check(count, n)
        return cat([y.real, last_part(y.imag, 1, n - count + 1)], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[:-1])


class RealFastFourierTransform(_Coefficients):
    """Real vectors to their Fourier coefficients, the first half of them.

    Parameters
    ----------
    transform_shape : tuple of one int, optional
        Size of the vectors; even if None.
    transform_ndims : int
        Only 1.

    Notes
    -----
    The name is NumPyro's, where the log-determinant is 0; here it is that in the coordinates of
    `PackRealFastFourierCoefficientsTransform`.
    """

    def __init__(self, transform_shape: Shape | None = None, transform_ndims: int = 1) -> None:
        super().__init__(transform_shape)
        if transform_ndims != 1:
            raise ArgumentError(
                "RealFastFourierTransform(transform_ndims=...)",
                expected="1",
                got=repr(transform_ndims),
                fix="of several dims the coefficients depend on each other; transform one",
            )

    def _call(self, x: Tensor) -> Tensor:
        n = x.array.shape[-1]
        self._check(n // 2 + 1, n)
        return rfft(x)

    def _inverse(self, y: Tensor) -> Tensor:
        n = self._size(y.array.shape[-1])
        self._check(y.array.shape[-1], n)
        return irfft(y, n)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = x.array.shape[-1]
        # Rows are orthogonal: of squared length n where all parts are real, else n / 2.
        real = 2 - n % 2
        constant = 0.5 * (real * math.log(n) + (n - real) * math.log(0.5 * n))
        return x.new_zeros(x.array.shape[:-1]) + constant


explain_calls(globals())
