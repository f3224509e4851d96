"""Spectral densities of kernels: Fourier transforms, by angular frequency.

``S(w)`` is the integral of ``k(r) exp(-i w r) dr``; ``k(0)`` that of ``S(w) / (2 pi)**D dw``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probtorch.contrib.hsgp.laplacian import sqrt_eigenvalues
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.effects.site import as_value
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.reduction import prod
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import ive
from probtorch.tensor import Tensor

__all__ = [
    "diag_spectral_density_matern",
    "diag_spectral_density_periodic",
    "diag_spectral_density_squared_exponential",
    "spectral_density_matern",
    "spectral_density_squared_exponential",
]

Box = float | Sequence[float] | Tensor
Positive = float | Tensor


def spectral_density_squared_exponential(
    dim: int, w: TensorLike, alpha: Positive, length: TensorLike
) -> Tensor:
    """Return that of ``alpha * exp(-r**2 / 2)``, r the distance in units of length scales.

    Parameters
    ----------
    dim : int
    w : Tensor or array, shape (dim, ...)
        Angular frequencies.
    alpha : Tensor or number, positive
        Variance.
    length : Tensor, shape () or (dim,), or number, positive
    """
    freq = as_value(w, "w")
    scaled, volume = _scaled(dim, freq, length)
    # The same as (2 pi)**(dim / 2), without a power.
    return alpha * (volume * math.pow(2.0 * math.pi, dim / 2.0)) * exp(scaled * -0.5)


def spectral_density_matern(
    dim: int, nu: float, w: TensorLike, alpha: Positive, length: TensorLike
) -> Tensor:
    """Return that of the Matern kernel of order `nu`, of variance `alpha`.

    Parameters
    ----------
    dim : int
    nu : float, positive
        1.5 and 2.5 are `Matern32` and `Matern52`, 0.5 is `Exponential`.
    w : Tensor or array, shape (dim, ...)
        Angular frequencies.
    alpha : Tensor or number, positive
    length : Tensor, shape () or (dim,), or number, positive

    References
    ----------
    Rasmussen and Williams (2006), equation 4.15.
    """
    freq = as_value(w, "w")
    scaled, volume = _scaled(dim, freq, length)
    power = nu + dim / 2.0
    constant = math.exp(
        dim * math.log(2.0) + dim / 2.0 * math.log(math.pi)
        + math.lgamma(power) - math.lgamma(nu) + nu * math.log(2.0 * nu)
    )  # fmt: skip
    return alpha * (volume * constant) * (scaled + 2.0 * nu) ** -power


def diag_spectral_density_squared_exponential(
    alpha: Positive, length: TensorLike, ell: Box, m: int | Sequence[int], dim: int
) -> Tensor:
    """Return `spectral_density_squared_exponential` at the frequencies of a box, shape (m**dim,).

    Parameters
    ----------
    alpha, length
        See there.
    ell, m, dim
        See `laplacian.sqrt_eigenvalues`.
    """
    w = sqrt_eigenvalues(ell, m, dim)
    return spectral_density_squared_exponential(dim, w, alpha, length)


def diag_spectral_density_matern(
    nu: float, alpha: Positive, length: TensorLike, ell: Box, m: int | Sequence[int], dim: int
) -> Tensor:
    """Return `spectral_density_matern` at the frequencies of a box, shape (m**dim,).

    Parameters
    ----------
    nu, alpha, length
        See there.
    ell, m, dim
        See `laplacian.sqrt_eigenvalues`.
    """
    return spectral_density_matern(dim, nu, sqrt_eigenvalues(ell, m, dim), alpha, length)


def diag_spectral_density_periodic(alpha: Positive, length: TensorLike, m: int) -> Tensor:
    """Return the variances of the cosines and sines of a periodic kernel, shape (m,).

    The kernel is ``alpha * exp(-2 sin(w0 r / 2)**2 / length**2)``, whose Fourier series is one of
    Bessel functions; that of j = 0 is of the constant.

    Parameters
    ----------
    alpha : Tensor or number, positive
    length : Tensor or number, positive
    m : int

    References
    ----------
    Solin and Sarkka (2014), "Explicit link between periodic covariance functions and state space
    models".
    """
    scale = as_value(length, "length")
    concentration = expand(1.0 / (scale * scale), (m,))
    order = concentration.new_tensor(np.arange(float(m)))
    twice = concentration.new_tensor(np.where(np.arange(m) == 0, 1.0, 2.0))
    return alpha * twice * ive(order, concentration)


def _scaled(dim: int, w: Tensor, length: TensorLike) -> tuple[Tensor, Tensor]:
    """Squared frequencies in units of the length scales, summed over dims, and their product."""
    scale = expand(as_value(length, "length"), (dim,))
    product = w * unsqueeze(scale, 1) if w.array.ndim == 2 else w * scale
    return total(product * product, 0), prod(scale, 0)


explain_calls(globals())
