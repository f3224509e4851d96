"""Gaussian processes as linear models of some basis functions, for models of one's own.

Values at n points cost O(n m) for m basis functions, where the process itself costs O(n**3), and
the sites are m weights: fast in NUTS. Points lie inside a box, with room to the walls, where the
approximation is 0; the shorter the length scale in units of the box, the more functions it needs.

Each function states the site ``beta`` in a plate ``basis``. Two of them in a model want
`handlers.scope`.
"""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.contrib.hsgp.laplacian import eigenfunctions, eigenfunctions_periodic
from probtorch.contrib.hsgp.spectral_densities import (
    Box,
    Positive,
    diag_spectral_density_matern,
    diag_spectral_density_periodic,
    diag_spectral_density_squared_exponential,
)
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.normal import Normal
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.site import as_value
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = [
    "hsgp_matern",
    "hsgp_periodic_non_centered",
    "hsgp_squared_exponential",
    "linear_approximation",
]


def linear_approximation(phi: Tensor, spd: Tensor, m: int, non_centered: bool = True) -> Tensor:
    """Return ``phi @ w`` with independent normal weights w, site ``beta``.

    Parameters
    ----------
    phi : Tensor, shape (n, m)
        Basis functions at points.
    spd : Tensor, shape (m,)
        Roots of the variances of the weights.
    m : int
        Number of basis functions.
    non_centered : bool
        The site is standard normal, and scaled; it is the weights themselves without it, which is
        better where data say much about every weight.
    """
    with plate("basis", m):
        if non_centered:
            return phi @ (spd * sample("beta", Normal(0.0, 1.0)))
        return phi @ sample("beta", Normal(0.0, spd))


def hsgp_squared_exponential(
    x: TensorLike,
    alpha: Positive,
    length: TensorLike,
    ell: Box,
    m: int | Sequence[int],
    non_centered: bool = True,
) -> Tensor:
    """Return a function with the kernel ``alpha * exp(-r**2 / 2)`` at points, shape (n,).

    Parameters
    ----------
    x : Tensor or array, shape (n, dim) or (n,)
        Points around 0.
    alpha : Tensor or number, positive
        Variance of the function.
    length : Tensor, shape () or (dim,), or number, positive
        In the units of x.
    ell : number, or Tensor, shape (dim,), positive
        Half of the sides of the box: 1.2 to 4 times the largest x, more for long length scales.
    m : int or sequence of int
        Basis functions in each dim: about 1.75 times ell / length, or more.
    non_centered : bool
        See `linear_approximation`.

    References
    ----------
    Riutort-Mayol, Burkner, Andersen, Solin and Vehtari (2023), "Practical Hilbert space approximate
    Bayesian Gaussian processes for probabilistic programming", whose section 4 says how ell and m
    are chosen; Solin and Sarkka (2020), "Hilbert space methods for reduced-rank Gaussian process
    regression".

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.linspace(-1.0, 1.0, 5)
    >>> hsgp_squared_exponential(x, 1.0, 0.5, ell=1.5, m=12).shape
    Size([5])
    """
    phi = eigenfunctions(x, ell, m)
    spd = diag_spectral_density_squared_exponential(alpha, length, ell, m, _dims(x))
    return linear_approximation(phi, sqrt(spd), phi.array.shape[1], non_centered)


def hsgp_matern(
    x: TensorLike,
    nu: float,
    alpha: Positive,
    length: TensorLike,
    ell: Box,
    m: int | Sequence[int],
    non_centered: bool = True,
) -> Tensor:
    """Return a function with the Matern kernel of order `nu` at points, shape (n,).

    Parameters
    ----------
    x : Tensor or array, shape (n, dim) or (n,)
    nu : float, positive
        Order: 0.5, 1.5 or 2.5 for example.
    alpha, length, ell, m, non_centered
        See `hsgp_squared_exponential`; rougher functions need more basis functions.
    """
    phi = eigenfunctions(x, ell, m)
    spd = diag_spectral_density_matern(nu, alpha, length, ell, m, _dims(x))
    return linear_approximation(phi, sqrt(spd), phi.array.shape[1], non_centered)


def hsgp_periodic_non_centered(
    x: TensorLike, alpha: Positive, length: TensorLike, w0: TensorLike, m: int
) -> Tensor:
    """Return a function with the kernel ``alpha * exp(-2 sin(w0 r / 2)**2 / length**2)``.

    Parameters
    ----------
    x : Tensor or array, shape (n,) or (n, 1)
    alpha : Tensor or number, positive
        Variance of the function.
    length : Tensor or number, positive
        Without a unit; see `contrib.gp.kernels.Periodic`.
    w0 : Tensor or number, positive
        Angular frequency, 2 pi by the period.
    m : int
        Cosines, the constant among them; there is one sine less.

    References
    ----------
    Riutort-Mayol et al. (2023), appendix B.
    """
    cosines, sines = eigenfunctions_periodic(x, w0, m)
    scales = sqrt(diag_spectral_density_periodic(alpha, length, m))
    phi, spd = cat([cosines, sines[:, 1:]], 1), cat([scales, scales[1:]], 0)
    return linear_approximation(phi, spd, 2 * m - 1)


def _dims(x: TensorLike) -> int:
    points = as_value(x, "x")
    return 1 if points.array.ndim == 1 else int(points.array.shape[1])


explain_calls(globals())
