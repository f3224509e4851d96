"""`MaternKernel`: processes with a Matern kernel as linear state space models.

The state is the value of a process and its first derivatives. Over a time it is multiplied by the
exponential of ``time * F``, where F has the one eigenvalue -rate: so ``F + rate`` is nilpotent, and
the exponential a polynomial times ``exp(-rate * time)``.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.effects.pyro_module import PyroModule, PyroParam
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import ones
from probtorch.ops.contraction import matmul
from probtorch.ops.exponentials import exp
from probtorch.tensor import Tensor

__all__ = ["MaternKernel", "checked_start"]

# Of the companion matrix, the last row in powers of the rate: (D + rate)^order = 0.
_BINOMIALS = {0.5: (1.0,), 1.5: (1.0, 2.0), 2.5: (1.0, 3.0, 3.0)}


def checked_start(name: str, start: Tensor | None, size: int, default: float) -> Tensor:
    """Return initial values, one for each of `size`."""
    if start is None:
        return default * ones(size)
    if tuple(start.shape) != (size,):
        raise ShapeError(
            name,
            expected=f"shape ({size},)",
            got=str(tuple(start.shape)),
            fix="give one number for each, or leave it out",
        )
    return start


class MaternKernel(PyroModule):
    """Several independent processes in time, each with a Matern kernel.

    Parameters
    ----------
    nu : {0.5, 1.5, 2.5}
        Order: draws have ``nu - 0.5`` derivatives.
    num_gps : int
        How many processes.
    length_scale_init, kernel_scale_init : Tensor, shape (num_gps,), optional
        Where the scales in time and in size start: at 1.

    References
    ----------
    Hartikainen and Sarkka (2010), Kalman filtering and smoothing solutions to temporal Gaussian
    process regression models.
    """

    length_scale: Tensor
    kernel_scale: Tensor

    def __init__(
        self,
        nu: float = 1.5,
        num_gps: int = 1,
        length_scale_init: Tensor | None = None,
        kernel_scale_init: Tensor | None = None,
    ) -> None:
        if nu not in _BINOMIALS:
            raise ArgumentError(
                "nu",
                expected="0.5, 1.5 or 2.5",
                got=repr(nu),
                fix="others are no finite state: contrib.gp has dense processes",
            )
        super().__init__()
        self.nu, self.num_gps = nu, num_gps
        self.state_dim = len(_BINOMIALS[nu])
        for name, start in (("length", length_scale_init), ("kernel", kernel_scale_init)):
            value = checked_start(f"{name}_scale_init", start, num_gps, 1.0)
            setattr(self, f"{name}_scale", PyroParam(value, constraint=constraints.positive))

    def _rate(self) -> Tensor:
        return (math.sqrt(2.0 * self.nu) / self.length_scale).reshape(-1, 1, 1)

    def _constant(self, matrix: object) -> Tensor:
        return self.length_scale.new_tensor(np.asarray(matrix, float))

    def transition_matrix(self, dt: float | Tensor) -> Tensor:
        """Return what rows of states are multiplied by over a time.

        Parameters
        ----------
        dt : float or Tensor, shape broadcastable with (num_gps, 1, 1)
            The time; a Tensor of shape (times, 1, 1, 1) is for several.

        Returns
        -------
        Tensor, shape (..., num_gps, state_dim, state_dim)
        """
        rate, order = self._rate(), self.state_dim
        nilpotent = self._constant(np.eye(order, k=-1)) + rate * self._constant(np.eye(order))
        for i, times in enumerate(_BINOMIALS[self.nu]):
            last = np.zeros((order, order))
            last[i, -1] = -times
            nilpotent = nilpotent + rate ** (order - i) * self._constant(last)
        total, power = self._constant(np.eye(order)), self._constant(np.eye(order))
        for n in range(1, order):
            power = matmul(power, nilpotent * dt) / n
            total = total + power
        return exp(-rate * dt) * total

    def stationary_covariance(self) -> Tensor:
        """Return the covariance of states at any time, (num_gps, state_dim, state_dim)."""
        rate = self._rate()
        covariance = self._constant(np.eye(self.state_dim, 1) @ np.eye(1, self.state_dim))
        if self.state_dim == 2:
            covariance = covariance + rate**2 * self._constant([[0.0, 0.0], [0.0, 1.0]])
        elif self.state_dim == 3:
            # Of the derivative; the value and its second derivative covary by minus that.
            signs = [[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
            covariance = covariance + rate**2 / 3.0 * self._constant(signs)
            covariance = covariance + rate**4 * self._constant(np.diag([0.0, 0.0, 1.0]))
        return self.kernel_scale.square().reshape(-1, 1, 1) * covariance

    def process_covariance(self, A: Tensor) -> Tensor:
        """Return the covariance of the noise over the time of a transition matrix."""
        stationary = self.stationary_covariance()
        return stationary - matmul(A.mT, matmul(stationary, A))

    def transition_matrix_and_covariance(self, dt: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return `transition_matrix` and `process_covariance` over a time."""
        transition = self.transition_matrix(dt)
        return transition, self.process_covariance(transition)


explain_calls(globals())
