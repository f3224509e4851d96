"""Euclidean metrics: how momentum, velocity and kinetic energy depend on the mass matrix.

The covariance of the position, the inverse mass matrix, is factored as ``inverse_mass = F F^T``.
Momenta are kept whitened, ``p = F^T p_plain``, so that they are standard normal, the kinetic energy
is ``p . p / 2`` and the no-U-turn criterion needs no matrix: ``p_plain . inverse_mass . rho_plain =
p . rho``. Only two products with F per step remain, the velocity ``F p`` and the force ``F^T g``.
The trajectories are those of the plain formulation (Neal 2011, section 4.1).
"""

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.errors import DomainError
from probtorch.infer.mcmc.randomness import normals
from probtorch.ops.contraction import matmul
from probtorch.ops.reduction import sum as total

__all__ = ["DenseMetric", "DiagonalMetric", "kinetic_energy", "sample_momentum"]


def sample_momentum(key, counter, dim):
    """Draw a whitened momentum, shape (dim,), from `dim` counters, the first being `counter`."""
    return normals(key, counter, dim)


def kinetic_energy(momentum):
    """Return half the squared length of a whitened momentum."""
    return 0.5 * total(momentum * momentum)


@record
class DiagonalMetric:
    """A diagonal inverse mass matrix.

    Parameters
    ----------
    scale : Tensor, shape (dim,)
        Its square root: about the standard deviation of each coordinate.
    """

    scale: TensorBase

    @classmethod
    def unit(cls, dim):
        """Return the identity."""
        return cls(wrap(np.ones(dim)))

    @classmethod
    def from_inverse_mass(cls, variance):
        """Return the metric whose inverse mass matrix has this diagonal, array of shape (dim,).

        Raises
        ------
        DomainError
            Unless all entries are positive and finite.
        """
        variance = np.asarray(variance, np.float64)
        bad = np.flatnonzero(~((variance > 0) & np.isfinite(variance)))
        if bad.size:
            raise DomainError(
                "inverse mass matrix",
                expected="positive finite variances",
                got=f"{variance[bad[0]]} at index {bad[0]}",
                fix="give variances of the unconstrained parameters",
            )
        return cls(wrap(np.sqrt(variance)))

    def inverse_mass(self):
        """Return the diagonal of the inverse mass matrix as an array."""
        return self.scale._data**2

    def velocity(self, momentum):
        """Return dq/dt for a whitened momentum."""
        return self.scale * momentum

    def force(self, grad):
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        return self.scale * grad


@record
class DenseMetric:
    """A full inverse mass matrix.

    Parameters
    ----------
    factor : Tensor, shape (dim, dim)
        Its lower Cholesky factor.
    """

    factor: TensorBase

    @classmethod
    def unit(cls, dim):
        """Return the identity."""
        return cls(wrap(np.eye(dim)))

    @classmethod
    def from_inverse_mass(cls, covariance):
        """Return the metric with this inverse mass matrix, array of shape (dim, dim).

        Raises
        ------
        DomainError
            If it is not symmetric and positive definite.
        """
        covariance = np.asarray(covariance, np.float64)
        fix = "give the covariance of the unconstrained parameters, or leave it out"
        if not np.allclose(covariance, covariance.T, rtol=1e-8, atol=0.0):
            raise DomainError(
                "inverse mass matrix",
                expected="a symmetric matrix",
                got="an asymmetric one",
                fix=fix,
            )
        try:
            return cls(wrap(np.linalg.cholesky(covariance)))
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(covariance)[0] if np.isfinite(covariance).all() else np.nan
            raise DomainError(
                "inverse mass matrix",
                expected="a positive definite matrix",
                got=f"smallest eigenvalue {least:.3g}",
                fix=fix,
            ) from None

    def inverse_mass(self):
        """Return the inverse mass matrix as an array."""
        return self.factor._data @ self.factor._data.T

    def velocity(self, momentum):
        """Return dq/dt for a whitened momentum."""
        return matmul(self.factor, momentum)

    def force(self, grad):
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        return matmul(grad, self.factor)
