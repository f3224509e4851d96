"""Sparse Gaussian process regression: the function by its values at a few points."""

from __future__ import annotations

from typing import Literal

from probtorch.contrib.gp.conditional import jittered
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.models.model import GPModel, Mean
from probtorch.contrib.gp.parameterized import Given, positive
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.vectors import LowRankMultivariateNormal
from probtorch.effects.primitives import factor, sample
from probtorch.errors import ArgumentError
from probtorch.nn.parameter import Parameter
from probtorch.ops.arithmetic import maximum
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["SparseGPRegression"]

Approximation = Literal["VFE", "FITC", "DTC"]


class SparseGPRegression(GPModel):
    """Regression by a Gaussian process that a few inducing points stand for, in O(n k^2).

    Parameters
    ----------
    X, y, kernel
        See `GPModel`.
    Xu : Tensor or array, shape (k, dims) or (k,)
        Inducing points at first, which are learned: some of X, for example.
    noise : Tensor or number, positive, optional
        Variance of the noise; 1 without it. A distribution or `PyroSample` is a prior.
    mean_function : callable, optional
    approx : str
        What stands for the covariance K of the function at X, where Q is its projection on the
        inducing points. ``"VFE"`` takes Q, and from the log density half of the trace of K - Q in
        units of the noise, so that it is below that of `GPRegression`; ``"DTC"`` takes Q alone, and
        ``"FITC"`` Q with the diagonal of K.
    jitter : float, optional

    Notes
    -----
    ``gp(Xnew, full_cov=False, noiseless=True)`` predicts, as that of `GPRegression` does.

    References
    ----------
    Titsias (2009), "Variational learning of inducing variables in sparse Gaussian processes";
    Quinonero-Candela and Rasmussen (2005), "A unifying view of sparse approximate Gaussian process
    regression".
    """

    def __init__(
        self,
        X: TensorLike,
        y: TensorLike | None,
        kernel: Kernel,
        Xu: TensorLike,
        noise: Given | None = None,
        mean_function: Mean | None = None,
        approx: Approximation = "VFE",
        jitter: float | None = None,
    ) -> None:
        super().__init__(X, y, kernel, mean_function, jitter)
        if approx not in ("VFE", "FITC", "DTC"):
            raise ArgumentError(
                "SparseGPRegression",
                expected="approx 'VFE', 'FITC' or 'DTC'",
                got=repr(approx),
                fix="VFE approximates the exact process best",
            )
        self.Xu = Parameter(self.points(Xu, "Xu").detach().clone())
        self.noise, self.approx = positive(noise), approx

    def joint(self, X: Tensor) -> Tensor:
        """State the observations; see `GPModel.joint`."""
        W, variance, missed = self._parts(X)
        if self.approx == "VFE":
            factor("trace_term", total(missed) / self.noise * (-0.5 * self._outputs()))
        loc = X.new_zeros(X.array.shape[0]) + self.mean_at(X)
        dist = LowRankMultivariateNormal(loc, W.mT, variance)
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
        W, variance, _ = self._parts(X)
        rest = self.observed() - self.mean_at(X)
        # The posterior of the whitened values at Xu: precision I + W V^-1 W', shift W V^-1 y.
        scaled = W / variance
        tril = cholesky(jittered(scaled @ W.mT, 1.0))
        Ws = solve_triangular(self._inducing_factor(), self.kernel(self.Xu, Xnew), upper=False)
        seen = solve_triangular(tril, Ws, upper=False)
        flat = rest.reshape(-1, rest.array.shape[-1])
        shift = solve_triangular(tril, scaled @ flat.mT, upper=False)
        loc = (shift.mT @ seen).reshape(*rest.array.shape[:-1], -1)
        if full_cov:
            cov = self.kernel(Xnew) - Ws.mT @ Ws + seen.mT @ seen
            cov = cov if noiseless else jittered(cov, self.noise)
        else:
            own = maximum(self.kernel(Xnew, diag=True) - total(Ws * Ws, 0), 0.0)
            cov = own + total(seen * seen, 0)
            cov = cov if noiseless else cov + self.noise
        m = loc.array.shape[-1]
        cov = expand(cov, (*loc.array.shape[:-1], *((m,) * (2 if full_cov else 1))))
        return loc + self.mean_at(Xnew), cov

    def _inducing_factor(self) -> Tensor:
        return cholesky(jittered(self.kernel(self.Xu), self.jitter))

    def _parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """W with ``Q = W' W``, shape (k, n); what is added to Q's diagonal; that of K - Q."""
        W = solve_triangular(self._inducing_factor(), self.kernel(self.Xu, X), upper=False)
        missed = maximum(self.kernel(X, diag=True) - total(W * W, 0), 0.0)
        variance = missed * 0.0 + self.noise
        return W, variance + missed if self.approx == "FITC" else variance, missed

    def _outputs(self) -> int:
        """How many observations there are of a point."""
        return 1 if self.y is None else self.y.array.size // self.y.array.shape[-1]


explain_calls(globals())
