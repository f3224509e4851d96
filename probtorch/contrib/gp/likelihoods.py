"""Likelihoods: how observations depend on a function's values, of which a normal is known."""

from __future__ import annotations

import abc
from collections.abc import Callable

from probtorch.contrib.gp.parameterized import Given, Parameterized, positive
from probtorch.core.signatures import explain_calls
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.counts import Poisson as PoissonDistribution
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.normal import Normal
from probtorch.effects.primitives import factor, sample
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import exp
from probtorch.ops.sampling import randn_like
from probtorch.tensor import Tensor

__all__ = ["Binary", "Gaussian", "Likelihood", "MultiClass", "Poisson"]

Response = Callable[[Tensor], Tensor]


class Likelihood(Parameterized, abc.ABC):
    """Base: a module that is given a normal of the function's values, and states the site ``y``.

    One of your own states `of`, the distribution of observations where the values are known.
    """

    @abc.abstractmethod
    def of(self, f: Tensor) -> Distribution:
        """Return the distribution of observations.

        Parameters
        ----------
        f : Tensor, shape (..., n)
            Values of the function.
        """

    def forward(
        self, f_loc: Tensor, f_var: Tensor | None = None, y: Tensor | None = None
    ) -> Tensor:
        """State the observations, given a normal of each value of the function.

        Parameters
        ----------
        f_loc : Tensor, shape (..., n)
            Means; the values where there is no variance.
        f_var : Tensor, shape (..., n), optional
            Variances. Values are drawn, so that a log density is an estimate of its mean.
        y : Tensor, optional
            The observations; drawn without them.
        """
        f = f_loc if f_var is None else f_loc + sqrt(f_var) * randn_like(f_loc)
        dist = self.of(f)
        out: Tensor = sample("y", dist.to_event(len(dist.batch_shape)), obs=y)
        return out


class Gaussian(Likelihood):
    """Normal noise.

    Parameters
    ----------
    variance : Tensor or number, positive, optional
        1 without it.

    Notes
    -----
    The mean of the log density over a normal is exact: the log density at the means, less half of
    the ratio of variances.
    """

    def __init__(self, variance: Given | None = None) -> None:
        super().__init__()
        self.variance = positive(variance)

    def of(self, f: Tensor) -> Normal:
        """Return the distribution of observations; see `Likelihood.of`."""
        return Normal(f, sqrt(self.variance))

    def forward(
        self, f_loc: Tensor, f_var: Tensor | None = None, y: Tensor | None = None
    ) -> Tensor:
        """State the observations; see `Likelihood.forward`."""
        if y is None or f_var is None:
            return super().forward(f_loc, f_var, y)
        dist = self.of(f_loc)
        factor("y_spread", (f_var / self.variance).sum() * -0.5)
        out: Tensor = sample("y", dist.to_event(len(dist.batch_shape)), obs=y)
        return out


class Binary(Likelihood):
    """Observations of 0 or 1.

    Parameters
    ----------
    response_function : callable, optional
        From values to probabilities of 1; the logistic function without it.
    """

    def __init__(self, response_function: Response | None = None) -> None:
        super().__init__()
        self.response_function = response_function

    def of(self, f: Tensor) -> Bernoulli:
        """Return the distribution of observations; see `Likelihood.of`."""
        if self.response_function is None:
            return Bernoulli(logits=f)
        return Bernoulli(probs=self.response_function(f))


class MultiClass(Likelihood):
    """Observations of one of several classes, with a function for each: latent_shape (classes,).

    Parameters
    ----------
    num_classes : int
    response_function : callable, optional
        From values, shape (..., n, classes), to probabilities; softmax without it.
    """

    def __init__(self, num_classes: int, response_function: Response | None = None) -> None:
        super().__init__()
        self.num_classes, self.response_function = num_classes, response_function

    def of(self, f: Tensor) -> Categorical:
        """Return the distribution of observations; `f` has the shape (..., classes, n)."""
        shape = tuple(f.array.shape)
        if len(shape) < 2 or shape[-2] != self.num_classes:
            raise ShapeError(
                "MultiClass",
                expected=f"values of {self.num_classes} functions, shape (..., "
                f"{self.num_classes}, n)",
                got=str(shape),
                fix=f"give the process latent_shape=({self.num_classes},)",
            )
        values = f.mT
        if self.response_function is None:
            return Categorical(logits=values)
        return Categorical(probs=self.response_function(values))


class Poisson(Likelihood):
    """Counts.

    Parameters
    ----------
    response_function : callable, optional
        From values to rates; the exponential function without it.
    """

    def __init__(self, response_function: Response | None = None) -> None:
        super().__init__()
        self.response_function = response_function

    def of(self, f: Tensor) -> PoissonDistribution:
        """Return the distribution of observations; see `Likelihood.of`."""
        return PoissonDistribution(
            exp(f) if self.response_function is None else self.response_function(f)
        )


explain_calls(globals())
