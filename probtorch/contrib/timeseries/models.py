"""Series of several numbers: a process for each, or mixtures of shared ones."""

from __future__ import annotations

from probtorch.autograd.modes import no_grad
from probtorch.contrib.timeseries.matern import MaternKernel, checked_start
from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.gaussian_hmm import GaussianHMM
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.effects.pyro_module import PyroModule, PyroParam
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn.parameter import Parameter
from probtorch.ops.contraction import matmul
from probtorch.ops.diagonals import diag_embed
from probtorch.ops.sampling import randn
from probtorch.ops.tensor_utils import block_diag_embed
from probtorch.tensor import Tensor

__all__ = ["IndependentMaternGP", "LinearlyCoupledMaternGP"]


def _check_targets(targets: Tensor, obs_dim: int) -> None:
    if targets.ndim != 2 or targets.shape[-1] != obs_dim:
        raise ShapeError(
            "targets",
            expected=f"shape (steps, {obs_dim})",
            got=str(tuple(targets.shape)),
            fix="one row per step, one column per series",
        )


def _check_times(dts: Tensor) -> Tensor:
    if dts.ndim != 1:
        raise ShapeError(
            "dts",
            expected="times in one dim",
            got=str(tuple(dts.shape)),
            fix="write tensor([1.0, 2.0]), counted from the last step",
        )
    return dts.reshape(-1, 1, 1, 1)


class IndependentMaternGP(PyroModule):
    """Evenly spaced series, each a process with a Matern kernel and noise of its own.

    Parameters
    ----------
    nu : {0.5, 1.5, 2.5}
        Order of the kernels.
    dt : float
        Time from one step to the next.
    obs_dim : int
        How many series.
    length_scale_init, kernel_scale_init, obs_noise_scale_init : Tensor, shape (obs_dim,), optional
        Where scales start: at 1, those of the noise at 0.2.

    Examples
    --------
    >>> from probtorch.factories import arange
    >>> gp = IndependentMaternGP(nu=1.5, dt=0.5)
    >>> targets = arange(20.0).sin().reshape(20, 1)
    >>> gp.log_prob(targets).shape, gp.forecast(targets, arange(1.0, 4.0)).mean.shape
    (Size([1]), Size([3, 1]))
    """

    obs_noise_scale: Tensor

    def __init__(
        self,
        nu: float = 1.5,
        dt: float = 1.0,
        obs_dim: int = 1,
        length_scale_init: Tensor | None = None,
        kernel_scale_init: Tensor | None = None,
        obs_noise_scale_init: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.nu, self.dt, self.obs_dim = nu, dt, obs_dim
        self.kernel = MaternKernel(nu, obs_dim, length_scale_init, kernel_scale_init)
        noise = checked_start("obs_noise_scale_init", obs_noise_scale_init, obs_dim, 0.2)
        self.obs_noise_scale = PyroParam(noise, constraint=constraints.positive)  # type: ignore[assignment]

    def get_dist(self, duration: int | None = None) -> GaussianHMM:
        """Return the distribution of series, batch shape (obs_dim,), event shape (steps, 1).

        Parameters
        ----------
        duration : int, optional
            Number of steps, for draws.
        """
        noise, size = self.obs_noise_scale, self.kernel.state_dim
        transition, covariance = self.kernel.transition_matrix_and_covariance(self.dt)
        zeros = noise.new_zeros(self.obs_dim, size)
        observed = noise.new_zeros(size, 1)
        observed[0, 0] = 1.0
        return GaussianHMM(
            MultivariateNormal(zeros, self.kernel.stationary_covariance()),
            transition.unsqueeze(-3),
            MultivariateNormal(zeros.unsqueeze(-2), covariance.unsqueeze(-3)),
            observed,
            Normal(noise.new_zeros(self.obs_dim, 1, 1), noise.reshape(-1, 1, 1)).to_event(1),
            duration=duration,
        )

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log density of each series, shape (obs_dim,).

        Parameters
        ----------
        targets : Tensor, shape (steps, obs_dim), nan where missing
        """
        _check_targets(targets, self.obs_dim)
        return self.get_dist().log_prob(targets.mT.unsqueeze(-1))

    @no_grad()
    def forecast(self, targets: Tensor, dts: Tensor) -> Normal:
        """Return the distribution of values after the last step, given all before.

        Parameters
        ----------
        targets : Tensor, shape (steps, obs_dim), nan where missing
        dts : Tensor, shape (times,)
            Times from the last step on.

        Returns
        -------
        Normal, batch shape (times, obs_dim)
            Noise is part of it.
        """
        _check_targets(targets, self.obs_dim)
        last = self.get_dist().filter(targets.mT.unsqueeze(-1))
        transition, covariance = self.kernel.transition_matrix_and_covariance(_check_times(dts))
        value = transition[..., :1]
        loc = matmul(last.loc.unsqueeze(-2), value)[..., 0, 0]
        known = matmul(value.mT, matmul(last.covariance_matrix, value))[..., 0, 0]
        variance = known + covariance[..., 0, 0] + self.obs_noise_scale.square()
        return Normal(loc, variance.sqrt())


class LinearlyCoupledMaternGP(PyroModule):
    """Evenly spaced series that mix shared processes: ``y[i](t) = sum(A[j, i] * f[j](t)) + noise``.

    Parameters
    ----------
    nu, dt
        As for `IndependentMaternGP`.
    obs_dim : int, at least 2
        How many series.
    num_gps : int
        How many processes they mix.
    length_scale_init, kernel_scale_init : Tensor, shape (num_gps,), optional
        Where scales of the processes start: at 1.
    obs_noise_scale_init : Tensor, shape (obs_dim,), optional
        Where scales of the noise start: at 0.2.
    """

    obs_noise_scale: Tensor

    def __init__(
        self,
        nu: float = 1.5,
        dt: float = 1.0,
        obs_dim: int = 2,
        num_gps: int = 1,
        length_scale_init: Tensor | None = None,
        kernel_scale_init: Tensor | None = None,
        obs_noise_scale_init: Tensor | None = None,
    ) -> None:
        if obs_dim < 2:
            raise ArgumentError(
                "obs_dim",
                expected="at least 2",
                got=repr(obs_dim),
                fix="IndependentMaternGP is for one series",
            )
        super().__init__()
        self.nu, self.dt, self.obs_dim, self.num_gps = nu, dt, obs_dim, num_gps
        self.kernel = MaternKernel(nu, num_gps, length_scale_init, kernel_scale_init)
        noise = checked_start("obs_noise_scale_init", obs_noise_scale_init, obs_dim, 0.2)
        self.obs_noise_scale = PyroParam(noise, constraint=constraints.positive)  # type: ignore[assignment]
        self.A = Parameter(0.3 * randn(num_gps, obs_dim, dtype=noise.dtype))

    def _mixed(self) -> Tensor:
        """From states of all processes to series, shape (num_gps * state_dim, obs_dim)."""
        size = self.kernel.state_dim
        values = self.A.new_zeros(self.num_gps, size, 1)
        values[:, 0] = 1.0
        return (values * self.A.unsqueeze(-2)).reshape(self.num_gps * size, self.obs_dim)

    def get_dist(self, duration: int | None = None) -> GaussianHMM:
        """Return the distribution of the series, event shape (steps, obs_dim).

        Parameters
        ----------
        duration : int, optional
            Number of steps, for draws.
        """
        transition, covariance = self.kernel.transition_matrix_and_covariance(self.dt)
        zeros = self.A.new_zeros(self.num_gps * self.kernel.state_dim)
        start = block_diag_embed(self.kernel.stationary_covariance())
        return GaussianHMM(
            MultivariateNormal(zeros, start),
            block_diag_embed(transition),
            MultivariateNormal(zeros, block_diag_embed(covariance)),
            self._mixed(),
            Normal(self.A.new_zeros(self.obs_dim), self.obs_noise_scale).to_event(1),
            duration=duration,
        )

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log density of all series together.

        Parameters
        ----------
        targets : Tensor, shape (steps, obs_dim), nan where missing
        """
        _check_targets(targets, self.obs_dim)
        return self.get_dist().log_prob(targets)

    @no_grad()
    def forecast(self, targets: Tensor, dts: Tensor) -> MultivariateNormal:
        """Return the distribution of values after the last step, given all before.

        Parameters
        ----------
        targets : Tensor, shape (steps, obs_dim), nan where missing
        dts : Tensor, shape (times,)
            Times from the last step on.

        Returns
        -------
        MultivariateNormal, batch shape (times,), event shape (obs_dim,)
            Noise is part of it.
        """
        _check_targets(targets, self.obs_dim)
        last = self.get_dist().filter(targets)
        over = self.kernel.transition_matrix_and_covariance(_check_times(dts))
        transition, covariance = (block_diag_embed(x) for x in over)
        mixed = self._mixed()
        seen = matmul(transition, mixed)
        loc = matmul(last.loc.unsqueeze(-2), seen).squeeze(-2)
        known = matmul(seen.mT, matmul(last.covariance_matrix, seen))
        noise = diag_embed(self.obs_noise_scale.square())
        return MultivariateNormal(loc, known + matmul(mixed.mT, matmul(covariance, mixed)) + noise)


explain_calls(globals())
