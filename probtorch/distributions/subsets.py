"""Random subsets whose elements keep apart."""

from __future__ import annotations

import numpy as np

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import half_log_det
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diagonal
from probtorch.ops.linalg import inv
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = ["DeterminantalPointProcess"]


class DeterminantalPointProcess(Distribution):
    """Subsets of n things, likely where the things in them are unlike each other.

    Probability ``p(x) = det(diag(x) @ kernel_matrix @ diag(x) + eye(n) - diag(x)) /
    det(kernel_matrix + eye(n))`` with ``n = len(x)``.

    The probability of a subset is proportional to the determinant of its part of the kernel.

    Parameters
    ----------
    kernel_matrix : Tensor, shape (..., n, n), positive definite
        How alike things are, and on the diagonal how good: the L-ensemble's L. TFP has its
        eigenvalues and eigenvectors.

    Notes
    -----
    Values are vectors of 0 and 1. A draw takes n steps of n ** 2 operations each [poulson2020]_.
    """

    kernel_matrix: Parameter = param(constraints.positive_definite)
    support = constraints.independent(constraints.boolean, 1)

    def _infer_event_shape(self) -> Shape:
        return self.kernel_matrix.array.shape[-1:]

    def _eye(self) -> Tensor:
        return self.kernel_matrix.new_tensor(np.eye(self._event_shape[0]))

    def _marginal(self) -> Tensor:
        """Return the kernel of marginal probabilities, L (L + 1)^-1."""
        eye = self._eye()
        return eye - inv(self.kernel_matrix + eye)

    def _log_prob(self, x: Tensor) -> Tensor:
        # What is left out becomes a part of its own, with determinant 1.
        part = self.kernel_matrix * (unsqueeze(x, -1) * unsqueeze(x, -2))
        eye = self._eye()
        chosen = cholesky(part + eye * unsqueeze(1.0 - x, -1))
        return 2.0 * (half_log_det(chosen) - half_log_det(cholesky(self.kernel_matrix + eye)))

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        n = shape[-1]
        left = expand(self._marginal(), (*shape, n))
        uniform, chosen = rng.uniform(shape), []
        for j in range(n):
            p = left[..., j, j]
            taken = uniform[..., j] < p
            chosen.append(where(taken, 1.0, 0.0))
            # What is known of one thing changes the probabilities of the others.
            column = left[..., :, j : j + 1]
            size = unsqueeze(unsqueeze(where(taken, p, p - 1.0), -1), -1)
            left = left - column * (left[..., j : j + 1, :] / size)
        return stack(chosen, -1)

    def _mean(self) -> Tensor:
        return diagonal(self._marginal(), 0, -2, -1)

    def _variance(self) -> Tensor:
        p = self._mean()
        return p * (1.0 - p)
