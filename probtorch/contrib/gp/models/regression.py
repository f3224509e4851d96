"""Gaussian process regression: normal noise, and the function integrated out."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.contrib.gp.conditional import conditional, jittered
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.models.model import GPModel, Mean
from probtorch.contrib.gp.parameterized import Given, positive, reading
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.primitives import sample
from probtorch.effects.pyro_module import pyro_method
from probtorch.effects.site import as_value
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.movement import unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reshaping import diag
from probtorch.ops.sampling import randn_like
from probtorch.tensor import Tensor

__all__ = ["GPRegression"]


class GPRegression(GPModel):
    """Gaussian process regression: ``y = f(X) + noise``, f integrated out exactly.

    A density costs O(n^3). The kernel's parameters and the noise are learned by `SVI`, sampled by
    `NUTS` where they have priors, or both.

    Parameters
    ----------
    X, y, kernel
        See `GPModel`.
    noise : Tensor or number, positive, optional
        Variance of the noise; 1 without it. A distribution or `PyroSample` is a prior.
    mean_function : callable, optional
    jitter : float, optional

    Notes
    -----
    ``gp(Xnew, full_cov=False, noiseless=True)`` predicts f, or observations of it with
    ``noiseless=False``.

    References
    ----------
    Rasmussen and Williams (2006), "Gaussian Processes for Machine Learning", chapter 2.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.contrib import gp
    >>> X = probtorch.linspace(0.0, 1.0, 20)
    >>> y = (6.0 * X).sin()
    >>> gpr = gp.models.GPRegression(X, y, gp.kernels.RBF(1), noise=0.01)
    >>> losses = gp.util.train(gpr, num_steps=200)
    >>> loc, var = gpr(probtorch.tensor([0.5]))
    >>> bool((loc - 0.14).abs() < 0.05)
    True
    """

    def __init__(
        self,
        X: TensorLike,
        y: TensorLike | None,
        kernel: Kernel,
        noise: Given | None = None,
        mean_function: Mean | None = None,
        jitter: float | None = None,
    ) -> None:
        super().__init__(X, y, kernel, mean_function, jitter)
        self.noise = positive(noise)

    def joint(self, X: Tensor) -> Tensor:
        """State the observations; see `GPModel.joint`."""
        tril = self._factor(X)
        loc = X.new_zeros(X.array.shape[0]) + self.mean_at(X)
        dist = MultivariateNormal(loc, scale_tril=tril)
        if self.y is not None:
            dist = dist.expand(self.y.array.shape[:-1])
        out: Tensor = sample("y", dist.to_event(len(dist.batch_shape)), obs=self.y)
        return out

    def approximation(self) -> None:
        """There is nothing but random attributes."""

    def posterior(
        self, X: Tensor, Xnew: Tensor, full_cov: bool, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variances at new points; see `GPModel.posterior`."""
        rest = self.observed() - self.mean_at(X)
        loc, cov = conditional(Xnew, X, self.kernel, rest, Lff=self._factor(X), full_cov=full_cov)
        if not noiseless:
            cov = jittered(cov, self.noise) if full_cov else cov + self.noise
        return loc + self.mean_at(Xnew), cov

    def iter_sample(self, noiseless: bool = True) -> Callable[[TensorLike], Tensor]:
        """Return a function that draws the process at one set of points after the other.

        Draws go together: each is given the data and all that was drawn before, as if one function
        had been drawn.

        Parameters
        ----------
        noiseless : bool
            Draw the function, or observations of it.

        Returns
        -------
        callable
            From points, shape (m, dims) or (m,), to draws, shape (..., m).
        """
        sites = trace(self.guide).get_trace().nodes
        drawn = {name: site["value"] for name, site in sites.items() if site["type"] == "sample"}
        seen: list[tuple[Tensor, Tensor]] = []
        spread: list[Tensor | float] = []

        @no_grad()
        def draw(Xnew: TensorLike) -> Tensor:
            # Points may be close, or the same again: in single precision there is no factor.
            points = as_value(Xnew, "Xnew").double()
            with substitute(data=drawn):
                if not spread:
                    spread.append(self._spread())
                new, values, mean = self._further(points, seen, noiseless, spread[0])
            seen.append((new, values))
            return (values + mean).to(self.X.dtype)

        return cast(Callable[[TensorLike], Tensor], draw)

    def _spread(self) -> Tensor | float:
        """What the deviations of one draw of the function are multiplied by."""
        return 1.0

    @pyro_method
    def _further(
        self,
        new: Tensor,
        seen: list[tuple[Tensor, Tensor]],
        noiseless: bool,
        spread: Tensor | float,
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """Points, a draw of values less the mean there, given the data and others, and the mean."""
        with reading("guide"):
            noise = self.noise + self.jitter
            own = self.jitter if noiseless else noise
            X = cat([self.X.double(), *(points for points, _ in seen)], 0)
            f = cat([self.observed() - self.mean_at(self.X), *(v for _, v in seen)], -1)
            given = X.new_tensor(np.arange(X.array.shape[0]) < self.X.array.shape[0])
            tril = cholesky(self.kernel(X) + diag(given * noise + (1.0 - given) * own))
            loc, cov = conditional(new, X, self.kernel, f, Lff=tril, full_cov=True)
            root = cholesky(jittered(cov, own))
            values = loc + spread * (root @ unsqueeze(randn_like(loc), -1))[..., 0]
            return new, values, self.mean_at(new)

    def _factor(self, X: Tensor) -> Tensor:
        return cholesky(jittered(self.kernel(X), self.noise + self.jitter))


explain_calls(globals())
