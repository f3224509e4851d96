"""Gaussian processes with any likelihood: the function's values are latent."""

from __future__ import annotations

from typing import cast

import numpy as np

from probtorch.contrib.gp.conditional import conditional, jittered
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.likelihoods import Likelihood
from probtorch.contrib.gp.models.model import GPModel, Mean
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.effects.handlers import scale
from probtorch.effects.primitives import sample
from probtorch.effects.pyro_module import PyroParam
from probtorch.errors import ArgumentError, DTypeError
from probtorch.nn.parameter import Parameter
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.movement import unsqueeze
from probtorch.tensor import Tensor

__all__ = ["VariationalGP", "VariationalSparseGP"]


class _Latent(GPModel):
    """Base of both: a normal guide of values at some points, with `whiten` and `latent_shape`."""

    def _state_guide(self, points: int, latent_shape: Shape | None, likelihood: Likelihood) -> None:
        if not isinstance(likelihood, Likelihood):
            raise DTypeError(
                type(self).__name__,
                expected="a Likelihood",
                got=f"{type(likelihood).__name__} {likelihood!r:.60}",
                fix="for example likelihood=likelihoods.Binary()",
            )
        self.likelihood = likelihood
        if latent_shape is None:
            latent_shape = () if self.y is None else tuple(self.y.array.shape[:-1])
        self.latent_shape = tuple(latent_shape)
        zeros = np.zeros((*self.latent_shape, points))
        self.f_loc = Parameter(self.X.new_tensor(zeros))
        eye = np.broadcast_to(np.eye(points), (*self.latent_shape, points, points))
        factor = PyroParam(self.X.new_tensor(eye.copy()), constraints.lower_cholesky)
        self.f_scale_tril = cast(Tensor, factor)

    def _check_noiseless(self, noiseless: bool) -> None:
        if not noiseless:
            raise ArgumentError(
                f"predictions of {type(self).__name__}",
                expected="noiseless=True",
                got="False",
                fix="observations are drawn by its likelihood: gp.likelihood(loc, var)",
            )

    def _normal(self, loc: Tensor | None, scale_tril: Tensor, points: int) -> Distribution:
        if loc is None:
            loc = self.X.new_zeros(points)
        dist = MultivariateNormal(loc, scale_tril=scale_tril).expand(self.latent_shape)
        return dist.to_event(len(self.latent_shape))


class VariationalGP(_Latent):
    """A Gaussian process with any likelihood, and a normal guide of its values at all points.

    Parameters
    ----------
    X, y, kernel
        See `GPModel`.
    likelihood : Likelihood
        Of observations, given the values.
    mean_function : callable, optional
    latent_shape : tuple of int, optional
        Of functions beside each other; that of `y` but for its last dim without it.
    whiten : bool
        The latent site is not f, the values, but white noise that its covariance is made from: for
        guides easier where data say little, and for samplers.
    jitter : float, optional

    Notes
    -----
    The latent site is ``f``, shape (*latent_shape, n). The guide's parameters are ``f_loc`` and
    ``f_scale_tril``; other guides, and `NUTS`, take the model as it is.

    References
    ----------
    Opper and Archambeau (2009), "The variational Gaussian approximation revisited".

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.contrib import gp
    >>> X = probtorch.linspace(-1.0, 1.0, 20)
    >>> vgp = gp.models.VariationalGP(
    ...     X, (X > 0).float(), gp.kernels.RBF(1), gp.likelihoods.Binary(), whiten=True
    ... )
    >>> losses = gp.util.train(vgp, num_steps=300)
    >>> loc, var = vgp(probtorch.tensor([-0.8, 0.8]))
    >>> (loc > 0).tolist()
    [False, True]
    """

    def __init__(
        self,
        X: TensorLike,
        y: TensorLike | None,
        kernel: Kernel,
        likelihood: Likelihood,
        mean_function: Mean | None = None,
        latent_shape: Shape | None = None,
        whiten: bool = True,
        jitter: float | None = None,
    ) -> None:
        super().__init__(X, y, kernel, mean_function, jitter)
        self.whiten = whiten
        self._state_guide(self.X.array.shape[0], latent_shape, likelihood)

    def joint(self, X: Tensor) -> Tensor:
        """State the values and the observations; see `GPModel.joint`."""
        n = X.array.shape[0]
        tril = cholesky(jittered(self.kernel(X), self.jitter))
        if self.whiten:
            eye = X.new_tensor(np.eye(n))
            noise = sample("f", self._normal(None, eye, n))
            f = (tril @ unsqueeze(noise, -1))[..., 0]
        else:
            f = sample("f", self._normal(None, tril, n))
        out: Tensor = self.likelihood(f + self.mean_at(X), None, self.y)
        return out

    def approximation(self) -> None:
        """State the values; see `GPModel.approximation`."""
        sample("f", self._normal(self.f_loc, self.f_scale_tril, self.X.array.shape[0]))

    def posterior(
        self, X: Tensor, Xnew: Tensor, full_cov: bool, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variances at new points; see `GPModel.posterior`."""
        self._check_noiseless(noiseless)
        loc, cov = conditional(
            Xnew, X, self.kernel, self.f_loc, self.f_scale_tril, None, full_cov, self.whiten,
            self.jitter,
        )  # fmt: skip
        return loc + self.mean_at(Xnew), cov


class VariationalSparseGP(_Latent):
    """A Gaussian process with any likelihood, by its values at a few inducing points.

    Data may come in minibatches: `set_data` before each step.

    Parameters
    ----------
    X, y, kernel
        See `GPModel`.
    Xu : Tensor or array, shape (k, dims) or (k,)
        Inducing points at first, which are learned.
    likelihood : Likelihood
    mean_function : callable, optional
    latent_shape : tuple of int, optional
        Of functions beside each other; that of `y` but for its last dim without it.
    num_data : int, optional
        How many observations there are in all, where X is a minibatch of them.
    whiten : bool
        The latent site is white noise that the values are made from.
    jitter : float, optional

    Notes
    -----
    The latent site is ``u``, shape (*latent_shape, k). The likelihood is that at the guide's
    normals of the function's values, so the model is for this guide alone: samplers and other
    guides take `VariationalGP`.

    References
    ----------
    Hensman, Matthews and Ghahramani (2015), "Scalable variational Gaussian process classification".
    """

    def __init__(
        self,
        X: TensorLike,
        y: TensorLike | None,
        kernel: Kernel,
        Xu: TensorLike,
        likelihood: Likelihood,
        mean_function: Mean | None = None,
        latent_shape: Shape | None = None,
        num_data: int | None = None,
        whiten: bool = True,
        jitter: float | None = None,
    ) -> None:
        super().__init__(X, y, kernel, mean_function, jitter)
        self.Xu = Parameter(self.points(Xu, "Xu").detach().clone())
        self.num_data, self.whiten = num_data, whiten
        self._state_guide(self.Xu.array.shape[0], latent_shape, likelihood)

    def joint(self, X: Tensor) -> Tensor:
        """State the values and the observations; see `GPModel.joint`."""
        k, n = self.Xu.array.shape[0], X.array.shape[0]
        tril = cholesky(jittered(self.kernel(self.Xu), self.jitter))
        root = X.new_tensor(np.eye(k)) if self.whiten else tril
        sample("u", self._normal(None, root, k))
        loc, var = conditional(
            X, self.Xu, self.kernel, self.f_loc, self.f_scale_tril, tril, False, self.whiten,
            self.jitter,
        )  # fmt: skip
        with scale(scale=1.0 if self.num_data is None else self.num_data / n):
            out: Tensor = self.likelihood(loc + self.mean_at(X), var, self.y)
        return out

    def approximation(self) -> None:
        """State the values; see `GPModel.approximation`."""
        sample("u", self._normal(self.f_loc, self.f_scale_tril, self.Xu.array.shape[0]))

    def posterior(
        self, X: Tensor, Xnew: Tensor, full_cov: bool, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variances at new points; see `GPModel.posterior`."""
        self._check_noiseless(noiseless)
        loc, cov = conditional(
            Xnew, self.Xu, self.kernel, self.f_loc, self.f_scale_tril, None, full_cov, self.whiten,
            self.jitter,
        )  # fmt: skip
        return loc + self.mean_at(Xnew), cov


explain_calls(globals())
