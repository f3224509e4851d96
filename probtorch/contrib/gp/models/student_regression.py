"""Student-t process regression: as that of Gaussian processes, with one unknown scale for all."""

from __future__ import annotations

from typing import cast

from probtorch.contrib.gp.conditional import solved
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.models.model import Mean
from probtorch.contrib.gp.models.regression import GPRegression
from probtorch.contrib.gp.parameterized import Given, reading
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.vectors import MultivariateStudentT
from probtorch.effects.primitives import sample
from probtorch.effects.pyro_module import PyroParam, PyroSample, pyro_method
from probtorch.errors import DomainError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.comparisons import isinf
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["TPRegression"]


class TPRegression(GPRegression):
    """Student-t process regression: values are jointly Student distributed, noise included.

    Function and noise are normal with covariances s K, and s is an inverse gamma number with mean
    1, integrated out. Means are those of `GPRegression`; variances depend on the observations, too:
    they are larger where these are larger than the kernel says.

    Parameters
    ----------
    X, y, kernel, noise, mean_function, jitter
        See `GPRegression`; the kernel and the noise say the covariances of values.
    df : Tensor or number, above 2 and finite, optional
        Degrees of freedom; 5 without it. A distribution or `PyroSample` is a prior, whose values
        have to be above 2.

    Raises
    ------
    DomainError
        If `df` is not above 2, or infinite.

    Notes
    -----
    ``tp(Xnew)`` returns means and variances; new values are Student distributed with ``df + n``
    degrees of freedom, n being the number of observations. Several outputs, rows of y, have a scale
    each. Noise is not independent of the function, only uncorrelated: outliers of single
    observations are for `VariationalGP` with a likelihood.

    References
    ----------
    A. Shah, A. G. Wilson, Z. Ghahramani, "Student-t processes as alternatives to Gaussian
    processes", AISTATS 2014.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.contrib import gp
    >>> X = probtorch.linspace(0.0, 1.0, 20)
    >>> y = 3.0 * (6.0 * X).sin()
    >>> both = gp.models.GPRegression, gp.models.TPRegression
    >>> found = [m(X, y, gp.kernels.RBF(1), noise=0.01)(probtorch.tensor([2.0])) for m in both]
    >>> (loc, var), (same, larger) = found
    >>> bool((loc - same).abs() < 1e-4), bool(larger > var)
    (True, True)
    """

    def __init__(
        self,
        X: TensorLike,
        y: TensorLike | None,
        kernel: Kernel,
        noise: Given | None = None,
        mean_function: Mean | None = None,
        jitter: float | None = None,
        df: Given | None = None,
    ) -> None:
        super().__init__(X, y, kernel, noise, mean_function, jitter)
        given: object = df
        if isinstance(df, Distribution):
            given = PyroSample(df)
        elif not isinstance(df, (PyroParam, PyroSample)):
            given = PyroParam(5.0 if df is None else df, constraints.greater_than(2.0))
        self.df = cast(Tensor, given)
        if isinstance(given, PyroParam) and bool(isinf(self.df.detach()).any()):
            raise DomainError(
                f"{type(self).__name__}(df=...)", expected="finite numbers above 2",
                got=str(self.df.tolist()),
                fix="take GPRegression: with infinitely many degrees of freedom all is normal",
            )  # fmt: skip

    def joint(self, X: Tensor) -> Tensor:
        """State the observations; see `GPModel.joint`."""
        tril = self._factor(X) * sqrt((self.df - 2.0) / self.df)
        loc = X.new_zeros(X.array.shape[0]) + self.mean_at(X)
        values: Distribution = MultivariateStudentT(self.df, loc, tril)
        if self.y is not None:
            values = values.expand(self.y.array.shape[:-1])
        out: Tensor = sample("y", values.to_event(len(values.batch_shape)), obs=self.y)
        return out

    def posterior(
        self, X: Tensor, Xnew: Tensor, full_cov: bool, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variances at new points; see `GPModel.posterior`."""
        loc, cov = super().posterior(X, Xnew, full_cov, noiseless)
        shape, rate = self._scale()
        # The mean of an inverse gamma number; its shape is above 1.
        size = rate / (shape - 1.0)
        return loc, cov * size.reshape(*size.shape, *(1,) * (2 if full_cov else 1))

    def _scale(self) -> tuple[Tensor, Tensor]:
        """Shape and rate of the inverse gamma law of s, given the observations of each output."""
        rest = self.observed() - self.mean_at(self.X)
        z = solved(self._factor(self.X), rest)
        n = rest.array.shape[-1]
        return (self.df + n) / 2.0, (self.df - 2.0 + total(z * z, -1)) / 2.0

    @pyro_method
    def _spread(self) -> Tensor:
        with reading("guide"):
            shape, rate = self._scale()
            return unsqueeze(Gamma(shape.expand(rate.shape), rate).sample() ** -0.5, -1).double()


explain_calls(globals())
