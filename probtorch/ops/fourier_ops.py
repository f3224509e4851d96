"""The three ops that carry out all Fourier transforms of fourier.py.

`fft_complex` goes along some dims, either way; `fft_real` is of real numbers, of whose spectrum
half says the other; and `fft_hermitian` is its inverse. The matrix of the first is symmetric, so it
is its own transpose; the others are each other's, up to what counts twice.

The array library computes them (NumPy's pocketfft, cuFFT through CuPy), in the precision of the
input. Hermitian inputs are taken as they are: of elements that should be real the imaginary part is
ignored.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import Attrs, Op
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.complex_numbers import conj
from probtorch.ops.families import linear

__all__ = ["IRFFT", "OTHER_WAY", "RFFT", "along_dims"]

# What divides: nothing on the way there and n on the way back, the root of n both ways, or the
# reverse of the first. The norm under which the other way has this one's factor.
OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _run_complex(x: np.ndarray, dims: tuple[int, ...], inverse: bool, norm: str) -> np.ndarray:
    room = namespace(x).fft
    return (room.ifftn if inverse else room.fftn)(x, axes=dims, norm=norm)


def _samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray], Attrs]]:
    z = rng.standard_normal((3, 4, 5)) + 1j * rng.standard_normal((3, 4, 5))
    return [
        ((z,), {"dims": (0, 2), "inverse": True, "norm": "ortho"}),
        ((z,), {"dims": (1,), "inverse": False, "norm": "backward"}),
        ((z,), {"dims": (0, 1, 2), "inverse": True, "norm": "forward"}),
        ((z[0],), {"dims": (1,), "inverse": True, "norm": "backward"}),
    ]


def _by_matrices(x: np.ndarray, dims: tuple[int, ...], inverse: bool, norm: str) -> np.ndarray:
    for d in dims:
        x = np.moveaxis(np.moveaxis(x, d, -1) @ _matrix(x.shape[d], inverse, norm), -1, d)
    return x


def _matrix(n: int, inverse: bool, norm: str) -> np.ndarray:
    """The matrix of a transform, by its definition."""
    turns = np.outer(np.arange(n), np.arange(n)) / n
    divided = norm == ("backward" if inverse else "forward")
    scale = math.sqrt(n) if norm == "ortho" else n if divided else 1.0
    return np.exp((2j if inverse else -2j) * np.pi * turns) / scale


def _of_complex(op: Op) -> Op:
    """Return `op`, which the tests try on complex numbers alone."""
    op.extra["of_complex"] = True
    return op


_FFT = _of_complex(
    linear(
        "fft_complex",
        "fourier",
        run=_run_complex,
        transpose=lambda g, x, dims, inverse, norm: along_dims(g, dims, inverse, norm),
        core="dims",
        samples=_samples,
        reference=_by_matrices,
        doc="Discrete Fourier transform along some dims, or its inverse.",
    )
)


def _once(n: int, m: int, dtype: np.dtype, like: np.ndarray, dim: int) -> TensorBase:
    """How often each element of half a spectrum of `n` counts: once where it is its own mirror."""
    counts = np.full(m, 2.0, dtype)
    counts[0] = 1.0
    if n % 2 == 0:
        counts[n // 2] = 1.0
    return wrap(namespace(like).asarray(counts.reshape([-1] + [1] * (like.ndim - 1 - dim))))


def _counts(g: TensorBase, n: int, dim: int) -> TensorBase:
    single = g.array.dtype in (dtypes.float32, dtypes.complex64)
    dtype = dtypes.float32 if single else dtypes.float64
    return _once(n, n // 2 + 1, dtype, g.array, dim)


def _from_half(g: TensorBase, x: TensorBase, dim: int, norm: str) -> TensorBase:
    n = x.array.shape[dim]
    attrs = {"dim": dim, "n": n, "norm": OTHER_WAY[norm]}
    return apply(IRFFT, (conj(g) / _counts(g, n, dim),), attrs)


def _to_half(g: TensorBase, x: TensorBase, dim: int, n: int, norm: str) -> TensorBase:
    half = apply(RFFT, (g,), {"dim": dim, "norm": OTHER_WAY[norm]})
    return conj(half) * _counts(g, n, dim)


RFFT = _of_complex(
    linear(
        "fft_real",
        "fourier",
        run=lambda x, dim, norm: namespace(x).fft.rfft(x, axis=dim, norm=norm),
        transpose=_from_half,
        core="dim",
        samples=lambda rng: [
            ((rng.standard_normal((2, 5)),), {"dim": 1, "norm": "backward"}),
            ((rng.standard_normal((4, 3)),), {"dim": 0, "norm": "forward"}),
            ((rng.standard_normal((1, 6)),), {"dim": 1, "norm": "ortho"}),
        ],
        reference=lambda x, dim, norm: _by_matrices(x, (dim,), False, norm).take(
            range(x.shape[dim] // 2 + 1), dim
        ),
        doc="The half of a spectrum of real numbers that says the other, along one dim.",
    )
)


def _mirrored(x: np.ndarray, dim: int, n: int, norm: str) -> np.ndarray:
    half = np.moveaxis(x, dim, -1).copy()
    half[..., 0] = half[..., 0].real
    if n % 2 == 0:
        half[..., -1] = half[..., -1].real
    whole = np.concatenate([half, half[..., 1 : (n + 1) // 2][..., ::-1].conj()], -1)
    return np.moveaxis(_by_matrices(whole, (whole.ndim - 1,), True, norm).real, -1, dim)


def _half_samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray], Attrs]]:
    z = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    return [
        ((z,), {"dim": 1, "n": 7, "norm": "backward"}),
        ((z,), {"dim": 1, "n": 6, "norm": "ortho"}),
        ((z,), {"dim": 0, "n": 4, "norm": "forward"}),
        ((z,), {"dim": 0, "n": 5, "norm": "backward"}),
    ]


IRFFT = _of_complex(
    linear(
        "fft_hermitian",
        "fourier",
        run=lambda x, dim, n, norm: namespace(x).fft.irfft(x, n, axis=dim, norm=norm),
        transpose=_to_half,
        core="dim",
        samples=_half_samples,
        reference=_mirrored,
        doc="Real numbers whose spectrum has this half: the inverse of `fft_real`.",
    )
)


def along_dims(x: TensorBase, dims: tuple[int, ...], inverse: bool, norm: str) -> TensorBase:
    """Return the transform of complex numbers along dims, or its inverse."""
    if not dims:
        return x
    return apply(_FFT, (x,), {"dims": dims, "inverse": inverse, "norm": norm})
