"""Orthonormal changes of basis along one dim: the discrete cosine and the Haar wavelet transform.

White noise stays white noise under both, so they serve to reparameterise smooth series: what is
correlated in time is nearly independent in these coordinates. Each is a product with a matrix that
depends on the size alone.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ArgumentError
from probtorch.ops.movement import movedim
from probtorch.tensor import Tensor

__all__ = ["DiscreteCosineTransform", "HaarTransform"]


class _Rotation(Transform):
    """Products with a matrix of determinant 1 or -1 along `dim`."""

    def __init__(self, dim: int) -> None:
        if dim >= 0:
            raise ArgumentError(
                type(self).__name__,
                expected="dim, counted from the end",
                got=repr(dim),
                fix="-1 is the last dim",
            )
        self.dim = dim
        self.domain = self.codomain = constraints.independent(constraints.real, -dim)

    def _matrix(self, n: int) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__} does not say which matrix it is")

    def _along(self, x: Tensor, matrix: np.ndarray) -> Tensor:
        weight = x.new_tensor(matrix.T.copy())
        if self.dim == -1:
            return x @ weight
        return movedim(movedim(x, self.dim, -1) @ weight, -1, self.dim)

    def _call(self, x: Tensor) -> Tensor:
        return self._along(x, self._matrix(x.array.shape[self.dim]))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._along(y, np.linalg.inv(self._matrix(y.array.shape[self.dim])))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.array.shape[: self.dim])


class DiscreteCosineTransform(_Rotation):
    """Amplitudes of cosines: the orthonormal transform of type II.

    Parameters
    ----------
    dim : int, below 0
    smooth : float
        0 keeps white noise white; 1 makes white noise of Brownian noise, -1 of violet noise:
        amplitudes are multiplied by frequency ** smooth, scaled to keep volumes.
    """

    _settings = ("dim", "smooth")

    def __init__(self, dim: int = -1, smooth: float = 0.0, cache_size: int = 0) -> None:
        super().__init__(dim)
        self.smooth = float(smooth)

    def _matrix(self, n: int) -> np.ndarray:
        return _cosines(n, self.smooth)


@functools.lru_cache(maxsize=8)
def _cosines(n: int, smooth: float) -> np.ndarray:
    k = np.arange(n)
    basis = math.sqrt(2.0 / n) * np.cos(np.pi / n * (k + 0.5) * k[:, None])
    basis[0] *= math.sqrt(0.5)
    logs = smooth * np.log(k + 0.5)
    return np.exp(logs - logs.mean())[:, None] * basis


class HaarTransform(_Rotation):
    """Sums and differences of neighbours, again and again: a multiscale basis for any size.

    Parameters
    ----------
    dim : int, below 0
    flip : bool
        Whether to reverse the dim first, so that the end of a series has the fewest coordinates.
    """

    _settings = ("dim", "flip")

    def __init__(self, dim: int = -1, flip: bool = False, cache_size: int = 0) -> None:
        super().__init__(dim)
        self.flip = flip

    def _matrix(self, n: int) -> np.ndarray:
        basis = _wavelets(np.eye(n))
        return basis[:, ::-1] if self.flip else basis


def _wavelets(rows: np.ndarray) -> np.ndarray:
    half = len(rows) // 2
    if not half:
        return rows
    first, second, end = rows[: 2 * half : 2], rows[1 : 2 * half : 2], rows[2 * half :]
    coarse = np.concatenate([math.sqrt(0.5) * (first + second), end])
    return np.concatenate([_wavelets(coarse), math.sqrt(0.5) * (first - second)])


explain_calls(globals())
