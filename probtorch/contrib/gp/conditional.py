"""What a Gaussian process is at new points, given its values, or a normal of them, at others."""

from __future__ import annotations

import numpy as np

from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.core.signatures import explain_calls
from probtorch.ops.arithmetic import maximum
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["conditional", "jittered", "solved"]


def jittered(covariance: Tensor, variance: Tensor | float) -> Tensor:
    """Return a covariance with a variance added to its diagonal."""
    return covariance + variance * covariance.new_tensor(np.eye(covariance.array.shape[-1]))


def solved(tril: Tensor, rows: Tensor) -> Tensor:
    """Return ``tril^-1 r`` for each row r, shape (..., n) as `rows`."""
    batch = rows.array.shape[:-1]
    flat = rows.reshape(-1, rows.array.shape[-1])
    return solve_triangular(tril, flat.mT, upper=False).mT.reshape(*batch, -1)


def conditional(
    Xnew: Tensor,
    X: Tensor,
    kernel: Kernel,
    f_loc: Tensor,
    f_scale_tril: Tensor | None = None,
    Lff: Tensor | None = None,
    full_cov: bool = False,
    whiten: bool = False,
    jitter: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance of a Gaussian process of mean 0 at new points.

    Parameters
    ----------
    Xnew : Tensor, shape (m, dims) or (m,)
        Where it is asked for.
    X : Tensor, shape (n, dims) or (n,)
        Where its values are known.
    kernel : Kernel
        Its prior covariance.
    f_loc : Tensor, shape (..., n)
        The values at X, or their mean.
    f_scale_tril : Tensor, shape (..., n, n), lower-triangular, optional
        Cholesky factor of their covariance; without it they are known.
    Lff : Tensor, shape (n, n), optional
        Cholesky factor of the prior covariance at X, if it is there already.
    full_cov : bool
        Return the covariance of the new values, or their variances alone.
    whiten : bool
        `f_loc` and `f_scale_tril` speak of ``Lff^-1 f``.
    jitter : float
        Added to the diagonal of the prior covariance at X.

    Returns
    -------
    loc : Tensor, shape (..., m)
    cov : Tensor, shape (..., m, m), or (..., m)
        Not smaller than 0.

    References
    ----------
    Hensman, Matthews and Ghahramani (2015), "Scalable variational Gaussian process classification",
    section 3.
    """
    if Lff is None:
        Lff = cholesky(jittered(kernel(X), jitter))
    W = solve_triangular(Lff, kernel(X, Xnew), upper=False)  # n x m
    v = f_loc if whiten else solved(Lff, f_loc)
    loc = v @ W
    if full_cov:
        cov = kernel(Xnew) - W.mT @ W
    else:
        cov = maximum(kernel(Xnew, diag=True) - total(W * W, -2), 0.0)
    if f_scale_tril is not None:
        n = Lff.array.shape[-1]
        S = f_scale_tril
        if not whiten:
            S = solve_triangular(expand(Lff, (*S.array.shape[:-2], n, n)), S, upper=False)
        spread = S.mT @ W  # (..., n, m)
        cov = cov + (spread.mT @ spread if full_cov else total(spread * spread, -2))
    batch = loc.array.shape[:-1]
    shape = (*batch, *((loc.array.shape[-1],) * (2 if full_cov else 1)))
    return loc, expand(cov, shape)


explain_calls(globals())
