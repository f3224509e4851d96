"""The softabs metric: a mass matrix for each point, from the curvature of the density there.

The Hessian of minus the log density says how narrow a density is in each direction, but may have
negative eigenvalues, or none worth the name. Each eigenvalue ``c`` becomes ``c coth(alpha c)``:
its magnitude, but for those within ``1 / alpha`` of zero, which become ``1 / alpha``. That is
smooth, so the metric has derivatives; they are those of the Hessian, turned into its eigenvectors
and multiplied by quotients of differences.

References
----------
M. Betancourt, "A general metric for Riemannian manifold Hamiltonian Monte Carlo", Geometric Science
of Information (2013), arXiv:1212.4693, section 3, whose notation the comments follow.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed
from probtorch.ops.exponentials import exp, expm1, log
from probtorch.ops.movement import reshape, transpose
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.ops.spectral import eigh

__all__ = ["SoftAbs", "softabs"]

# Below it, x coth(x) and its derivative are sums of their series, right to 1e-14.
SMALL = 0.05
# Eigenvalues closer than this, as a share of their size or 1 / alpha, count as equal: quotients of
# their differences would lose five digits, the derivative between them is right to ten.
EQUAL = 1e-5
# Curvatures whose squares would leave the numbers are as good as infinite.
LARGEST = 1e100


@record
class SoftAbs:
    """The metric at a point: ``G = vectors diag(values) vectors^T``.

    Parameters
    ----------
    values : Tensor, shape (dim,)
        Softened eigenvalues, all positive.
    slopes : Tensor, shape (dim, dim)
        Quotients of differences of softened and given eigenvalues; derivatives on the diagonal.
    vectors : Tensor, shape (dim, dim)
        Eigenvectors in columns.
    finite : Tensor, 0-d bool
        Whether the Hessian was below `LARGEST`; if not, the metric is that of the identity.
    """

    values: TensorBase
    slopes: TensorBase
    vectors: TensorBase
    finite: TensorBase

    def half_log_determinant(self) -> TensorBase:
        """Return half the logarithm of the determinant of G."""
        return 0.5 * total(log(self.values))

    def momentum(self, normals: TensorBase) -> TensorBase:
        """Return a momentum with covariance G, from standard normals.

        By the symmetric root: signs and order of eigenvectors, which are arbitrary, do not count.
        """
        return matmul(self.vectors, sqrt(self.values) * matmul(normals, self.vectors))

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return ``G^-1 p``."""
        return matmul(self.vectors, matmul(momentum, self.vectors) / self.values)

    def kinetic_energy(self, momentum: TensorBase) -> TensorBase:
        """Return ``p . G^-1 p / 2``; the determinant is not in it."""
        along = matmul(momentum, self.vectors)
        return 0.5 * total(along * along / self.values)

    def whitened(self, step: TensorBase) -> TensorBase:
        """Return a change of position in a basis in which the metric is the identity."""
        return sqrt(self.values) * matmul(step, self.vectors)

    def whitened_momentum(self, momentum: TensorBase) -> TensorBase:
        """Return a momentum in that basis."""
        return matmul(momentum, self.vectors) / sqrt(self.values)

    def pull(self, momentum: TensorBase) -> TensorBase:
        """Return a matrix M, shape (dim, dim), that stands for how the energy follows the metric.

        The derivative of ``log |G| / 2 + p . G^-1 p / 2`` along a coordinate is the sum of the
        elements of ``M * dH``, with dH the derivative of the Hessian of minus the log density.
        """
        # With u = G^-1 p in the eigenbasis: dG = Q (J * (Q^T dH Q)) Q^T, so the determinant gives
        # J_ii / values_i on the diagonal, and the quadratic form -J_ij u_i u_j.
        u = matmul(momentum, self.vectors) / self.values
        size = u.array.shape[0]
        outer = reshape(u, (size, 1)) * reshape(u, (1, size))
        inner = self.slopes * (diag_embed(1.0 / self.values) - outer)
        return 0.5 * matmul(matmul(self.vectors, inner), transpose(self.vectors, 0, 1))


def softabs(hessian: TensorBase, alpha: TensorBase) -> SoftAbs:
    """Return the metric of a Hessian.

    Parameters
    ----------
    hessian : Tensor, shape (dim, dim)
        Of minus the log density; symmetric.
    alpha : Tensor, 0-d
        Curvatures below its inverse are softened.
    """
    size = hessian.array.shape[0]
    # A nan is not below it either.
    finite = every(absolute(hessian) < LARGEST)
    given, vectors = eigh(where(finite, hessian, wrap(np.eye(size))))
    values, _ = _softened(given, alpha)

    def each(x: TensorBase) -> tuple[TensorBase, TensorBase]:
        return reshape(x, (size, 1)), reshape(x, (1, size))

    (a, b), (fa, fb) = each(given), each(values)
    gap = a - b
    equal = absolute(gap) <= EQUAL * (absolute(a) + absolute(b) + 1.0 / alpha)
    between = _softened(0.5 * (a + b), alpha)[1]
    slopes = where(equal, between, (fa - fb) / where(equal, 1.0, gap))
    return SoftAbs(values, slopes, vectors, finite)


def _softened(x: TensorBase, alpha: TensorBase) -> tuple[TensorBase, TensorBase]:
    """``x coth(alpha x)`` and its derivative."""
    y = alpha * x
    size = absolute(y)
    small = size < SMALL
    # Where it is small, the other branch is given any number at which it is finite.
    large = where(small, 1.0, size)
    less = -expm1(-2.0 * large)
    coth = (2.0 - less) / less
    y2 = where(small, y * y, 0.0)
    series = 1.0 + y2 * (1.0 / 3.0 + y2 * (-1.0 / 45.0 + y2 * (2.0 / 945.0 + y2 * (-1.0 / 4725.0))))
    of_series = y * (2.0 / 3.0 + y2 * (-4.0 / 45.0 + y2 * (12.0 / 945.0 + y2 * (-8.0 / 4725.0))))
    steep = coth - 4.0 * large * exp(-2.0 * large) / (less * less)
    value = where(small, series, large * coth) / alpha
    return value, where(small, of_series, where(y < 0.0, -steep, steep))
