"""Seasons and convolutions along one dim, and matrices in blocks, by the names of `pyro.ops`.

Compositions of ops, for models of time series above all. Cosine and Haar transforms are in
`probtorch.distributions.transforms`.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.fft

from probtorch.core.dtype import get_default_dtype
from probtorch.core.making import as_tensor
from probtorch.core.shape import normalize_dim
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import div, where
from probtorch.ops.comparisons import eq
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diagonal
from probtorch.ops.fourier import irfft, rfft
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import movedim, reshape, unsqueeze
from probtorch.ops.padding import pad
from probtorch.ops.pieces import cat
from probtorch.ops.products import vector_norm
from probtorch.ops.reduction import cumsum

__all__ = [
    "block_diag_embed",
    "block_diagonal",
    "convolve",
    "next_fast_len",
    "periodic_cumsum",
    "periodic_features",
    "periodic_repeat",
    "repeated_matmul",
    "safe_normalize",
]


def periodic_repeat(tensor: TensorLike, size: int, dim: int) -> TensorBase:
    """Repeat one period along a dim until it has `size` elements: a season that stays the same.

    Parameters
    ----------
    tensor : Tensor
        One period along `dim`.
    size : int
    dim : int

    Examples
    --------
    >>> import probtorch
    >>> periodic_repeat(probtorch.tensor([1, 2, 3]), 5, -1)
    tensor([1, 2, 3, 1, 2])
    """
    x = as_tensor(tensor, "periodic_repeat")
    dim = normalize_dim(dim, x.array.ndim, "periodic_repeat")
    period = x.array.shape[dim]
    if size < 0 or (size and not period):
        raise ArgumentError(
            "periodic_repeat",
            expected="a size >= 0, and a period with elements",
            got=f"size={size}, a period of {period}",
            fix="give one period along dim",
        )
    return index_select(x, dim, np.arange(size) % max(period, 1))


def periodic_cumsum(tensor: TensorLike, period: int, dim: int) -> TensorBase:
    """Sum up the elements that are one, two, three ... periods before: a season that drifts.

    Parameters
    ----------
    tensor : Tensor
        The changes; the first period is where it starts.
    period : int
    dim : int

    Examples
    --------
    >>> import probtorch
    >>> periodic_cumsum(probtorch.tensor([1.0, 2.0, 0.0, 0.5, 3.0]), 2, -1)
    tensor([1.0000, 2.0000, 1.0000, 2.5000, 4.0000])
    """
    x = as_tensor(tensor, "periodic_cumsum")
    dim = normalize_dim(dim, x.array.ndim, "periodic_cumsum")
    if period < 1:
        raise ArgumentError(
            "periodic_cumsum", expected="period >= 1", got=str(period), fix="count the steps"
        )
    x = movedim(x, dim, -1)
    shape = x.array.shape
    rows = -(-shape[-1] // period)
    x = pad(x, (0, rows * period - shape[-1]))
    x = cumsum(reshape(x, (*shape[:-1], rows, period)), -2)
    return movedim(reshape(x, (*shape[:-1], rows * period))[..., : shape[-1]], -1, dim)


def periodic_features(
    duration: int,
    max_period: float | None = None,
    min_period: float | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> TensorBase:
    """Return cosines and sines of time, as predictors of long seasons.

    Parameters
    ----------
    duration : int
        The number of steps, of length 1.
    max_period : float, optional
        The longest period, in steps; `duration` if None. The others divide it by 2, 3 and so on.
    min_period : float, optional
        All periods are longer; at least 2 steps, which is also the default.
    dtype, device : optional

    Returns
    -------
    Tensor, shape (duration, 2 * ceil(max_period / min_period) - 2)
        Of each period, from the longest on: all cosines of ``2 pi t / period``, then minus the
        sines.

    Raises
    ------
    ArgumentError
        Unless ``2 <= min_period <= max_period``.
    """
    longest = float(duration if max_period is None else max_period)
    shortest = 2.0 if min_period is None else float(min_period)
    if not 2.0 <= shortest <= longest:
        raise ArgumentError(
            "periodic_features",
            expected="2 <= min_period <= max_period",
            got=f"min_period={shortest:g}, max_period={longest:g}",
            fix="periods below two steps cannot be told from longer ones",
        )
    # Whole numbers below the ratio, as arange counts them.
    counts = np.arange(1, longest / shortest)
    angle = 2.0 * math.pi / longest * counts * np.arange(duration)[:, None]
    both = np.concatenate([np.cos(angle), -np.sin(angle)], -1)
    found = as_tensor(both, "periodic_features")
    return found.to(dtype=dtype or get_default_dtype(), device=device)


def next_fast_len(size: int) -> int:
    """Return the least number from `size` on that has no prime factors but 2, 3 and 5."""
    return int(scipy.fft.next_fast_len(size, real=True))


_CUT = {
    "full": lambda m, n: m + n - 1,
    "same": lambda m, n: max(m, n),
    "valid": lambda m, n: max(m, n) - min(m, n) + 1,
}


def convolve(signal: TensorLike, kernel: TensorLike, mode: str = "full") -> TensorBase:
    """Convolve along the last dim, by Fourier transforms; the dims before broadcast.

    Parameters
    ----------
    signal : Tensor, shape (..., m)
    kernel : Tensor, shape (..., n)
    mode : {"full", "same", "valid"}
        All ``m + n - 1`` sums; the ``max(m, n)`` in the middle; or those without ends that are
        cut off.
    """
    x, k = as_tensor(signal, "convolve"), as_tensor(kernel, "convolve")
    if mode not in _CUT or not x.array.ndim or not k.array.ndim:
        raise ArgumentError(
            "convolve",
            expected=f"a dim at least, and a mode of {', '.join(_CUT)}",
            got=f"mode={mode!r}, shapes {x.array.shape} and {k.array.shape}",
            fix="convolve(signal, kernel, 'full')",
        )
    m, n = x.array.shape[-1], k.array.shape[-1]
    whole, size = m + n - 1, _CUT[mode](m, n)
    fast = next_fast_len(whole)
    found = irfft(rfft(x, fast) * rfft(k, fast), fast)
    start = (whole - size) // 2
    return found[..., start : start + size]


def repeated_matmul(M: TensorLike, n: int) -> TensorBase:
    """Return the powers ``M, M @ M, ...`` up to the n-th, in a new first dim; in log n products.

    Parameters
    ----------
    M : Tensor, shape (..., k, k)
    n : int
    """
    x = as_tensor(M, "repeated_matmul")
    if n < 1 or x.array.ndim < 2 or x.array.shape[-1] != x.array.shape[-2]:
        raise ShapeError(
            "repeated_matmul",
            expected="square matrices, and n >= 1",
            got=f"shape {x.array.shape}, n={n}",
            fix="powers are of square matrices",
        )
    powers = unsqueeze(x, 0)
    while powers.array.shape[0] < n:
        powers = cat([powers, matmul(powers[-1], powers)])
    return powers[:n]


def block_diag_embed(mat: TensorLike) -> TensorBase:
    """Put matrices, (..., b, m, n), on the diagonal of one, (..., b * m, b * n); 0 elsewhere."""
    x = as_tensor(mat, "block_diag_embed")
    *batch, b, m, n = _at_least(x, 3, "block_diag_embed")
    on = np.eye(b, dtype=bool)[:, None, :, None]
    spread = where(on, reshape(x, (*batch, b, m, 1, n)), 0)
    return reshape(spread, (*batch, b * m, b * n))


def block_diagonal(mat: TensorLike, block_size: int) -> TensorBase:
    """Return the blocks, (..., b, m, n), on the diagonal of a matrix; m is `block_size`."""
    x = as_tensor(mat, "block_diagonal")
    *batch, rows, columns = _at_least(x, 2, "block_diagonal")
    b = rows // block_size if block_size > 0 else 0
    if b * block_size != rows or not b or columns % b:
        raise ShapeError(
            "block_diagonal",
            expected="a matrix of whole blocks",
            got=f"shape {x.array.shape} and block_size={block_size}",
            fix="block_size is the number of rows of one block",
        )
    blocks = reshape(x, (*batch, b, block_size, b, columns // b))
    return movedim(diagonal(blocks, 0, -4, -2), -1, -3)


def _at_least(x: TensorBase, dims: int, op: str) -> tuple[int, ...]:
    if x.array.ndim < dims:
        raise ShapeError(
            op, expected=f"at least {dims} dims", got=f"shape {x.array.shape}", fix="unsqueeze(0)"
        )
    return x.array.shape


def safe_normalize(x: TensorLike, *, p: float = 2) -> TensorBase:
    """Divide vectors, along the last dim, by their p-norm; 0 becomes the first unit vector."""
    x = as_tensor(x, "safe_normalize")
    norm = vector_norm(x, p, -1, keepdim=True)
    nothing = eq(norm, 0.0)  # of nan there is a norm, nan
    first = np.eye(1, x.array.shape[-1], dtype=x.array.dtype)[0]
    return where(nothing, first, div(x, where(nothing, 1.0, norm)))


explain_calls(globals())
