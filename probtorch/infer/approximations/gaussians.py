"""Normal densities on R^dim, alone and in mixtures: what approximations draw from.

`GaussianDensity` has a full covariance or standard deviations; `GaussianPaths` is the mixture, in
equal parts, of the normals that L-BFGS leaves along its paths, whose covariances are a diagonal and
a few directions (starts/lbfgs_paths.py). Plain NumPy: rows of arrays are points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from probtorch.core.late import special
from probtorch.core.rng import Generator
from probtorch.infer.sequential.weights import uniforms
from probtorch.infer.starts.lbfgs_paths import InverseHessian
from probtorch.infer.starts.path_starts import normal_numbers

__all__ = ["GaussianDensity", "GaussianPaths"]

LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, eq=False)
class GaussianDensity:
    """A normal distribution.

    Attributes
    ----------
    mean : ndarray, shape (dim,)
    root : ndarray, shape (dim, dim) or (dim,)
        Lower triangular factor of the covariance, or standard deviations.
    """

    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of_precision(cls, mean: np.ndarray, precision: np.ndarray) -> GaussianDensity:
        """Return the normal with a precision matrix, positive definite, or a vector of precisions.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the matrix is not positive definite.
        """
        if precision.ndim == 1:
            return cls(mean, 1.0 / np.sqrt(precision))
        # With rows and columns reversed the factor of P is the transposed inverse of that of the
        # covariance.
        reverse = np.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
        return cls(mean, np.tril(np.linalg.inv(reverse.T)))

    @property
    def covariance(self) -> np.ndarray:
        """The covariance, shape (dim, dim)."""
        return np.diag(self.root**2) if self.root.ndim == 1 else self.root @ self.root.T

    @property
    def log_det(self) -> float:
        """The natural log of the determinant of the covariance."""
        diagonal = self.root if self.root.ndim == 1 else np.diag(self.root)
        return 2.0 * float(np.log(diagonal).sum())

    def sample(self, count: int, generator: Generator) -> np.ndarray:
        """Return independent draws, shape (count, dim)."""
        normals = normal_numbers(generator, (count, self.mean.size))
        return self.mean + (normals * self.root if self.root.ndim == 1 else normals @ self.root.T)

    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return log densities, shape (points,), in nats."""
        away = points - self.mean
        if self.root.ndim == 1:
            z = away / self.root
        else:
            z = np.linalg.solve(self.root, away.T).T
        return -0.5 * ((z * z).sum(-1) + self.log_det + self.mean.size * LOG_2PI)


@dataclass(frozen=True, eq=False)
class GaussianPaths:
    """The mixture, in equal parts, of normals with a mean and an estimate of L-BFGS each.

    Attributes
    ----------
    means : ndarray, shape (paths, dim)
    hessian : InverseHessian
        The covariances.
    """

    means: np.ndarray
    hessian: InverseHessian

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        root, directions, variances = self.hessian.decomposition()
        log_det = 2.0 * np.log(root).sum(-1) + np.log(variances).sum(-1)
        return root, directions, variances, log_det

    def sample(self, count: int, generator: Generator) -> np.ndarray:
        """Return draws, shape (count, dim): as many of each path, but for one, in random order."""
        paths, dim = self.means.shape
        each = -(-count // paths)
        normals = normal_numbers(generator, (paths, each, dim))
        points = (self.means[:, None] + self.hessian.times_root(normals)).reshape(-1, dim)
        order = np.argsort(uniforms(generator, len(points)), kind="stable")
        return points[order[:count]]

    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return log densities of the mixture, shape (points,), in nats."""
        root, directions, variances, log_det = self._parts
        each = np.empty((len(self.means), len(points)))
        for i, mean in enumerate(self.means):
            z = (points - mean) / root[i]
            along = z @ directions[i].T
            squared = (z * z).sum(-1) + (along * along * (1.0 / variances[i] - 1.0)).sum(-1)
            each[i] = -0.5 * (squared + log_det[i] + mean.size * LOG_2PI)
        return np.asarray(special.logsumexp(each, axis=0) - math.log(len(each)))
