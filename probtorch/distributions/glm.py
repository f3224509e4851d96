"""Generalised linear models as distributions of their outcomes: Stan's fused densities.

Each is the distribution of all rows given covariates `x` and coefficients, in the numerically exact
parameterisation (log odds, log mean). In compiled code the linear predictor, the density and the
slopes of both are one nest over the rows, as if the density had been written out by hand: there is
no separate fused routine to fall out of step with it.

Orders of arguments are Stan's, less the outcome. The classes keep the covariates and coefficients
as their parameters; the functions, of Stan's names, return the plain distribution at the predictor,
which has the KL rules and the conjugacies of its class.
"""

from __future__ import annotations

import abc

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.counts import Binomial, NegativeBinomial, Poisson
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given, Parameter, param
from probtorch.distributions.normal import Normal
from probtorch.distributions.ordinal import OrderedLogistic
from probtorch.distributions.source import Source
from probtorch.distributions.validation import check_parameter
from probtorch.errors import ShapeError
from probtorch.ops.exponentials import exp, log
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "BernoulliLogitGLM",
    "BinomialLogitGLM",
    "CategoricalLogitGLM",
    "NegBinomial2LogGLM",
    "NormalIdGLM",
    "OrderedLogisticGLM",
    "PoissonLogGLM",
    "bernoulli_logit_glm",
    "binomial_logit_glm",
    "categorical_logit_glm",
    "neg_binomial_2_log_glm",
    "normal_id_glm",
    "ordered_logistic_glm",
    "poisson_log_glm",
]


class Regression(Distribution, abc.ABC):
    """What regressions have in common: everything but the predictor is that of `outcome`."""

    x: Parameter
    beta: Parameter

    @abc.abstractmethod
    def outcome(self, validate_args: bool | None = None) -> Distribution:
        """Return the distribution of the outcomes at the linear predictor."""

    def _infer_event_shape(self) -> Shape:
        x, beta = self.x.array.shape, self.beta.array.shape
        of_beta = -1 - (self._fields["beta"].constraint is COLUMNS)
        if x[-1] != beta[of_beta]:
            raise ShapeError(
                type(self).__name__,
                expected="x of shape (rows, covariates) and as many coefficients beta",
                got=f"x of shape {tuple(x)} and beta of shape {tuple(beta)}",
                fix="write one covariate as x[:, None], and alpha for the constant",
            )
        return ()

    def _check_parameters(self) -> None:
        """Check all but what makes the predictor, which is checked itself, as `outcome` is made:
        a pass over the covariates would cost more than the density.
        """
        for name, field in self._fields.items():
            if name not in ("x", "alpha", "beta") and field.constraint is not None:
                value = self.__dict__[name]
                check_parameter(type(self).__name__, name, value, field.constraint, self)

    def _checks(self, validate_args: bool | None) -> bool:
        return self._validate_args if validate_args is None else validate_args

    def _product(self) -> Tensor:
        """Return x beta, one number per row."""
        if self.beta.array.ndim == 1:
            return self.x @ self.beta
        return total(self.x * self.beta, -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self.outcome()._sample(rng, shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.outcome()._log_prob(x)

    def _cdf(self, x: Tensor) -> Tensor:
        return self.outcome().cdf(x)

    def _survival(self, x: Tensor) -> Tensor:
        return self.outcome().survival(x)

    def _mean(self) -> Tensor:
        return self.outcome().mean

    def _variance(self) -> Tensor:
        return self.outcome().variance


# Coefficients of several predictors at once.
COLUMNS = constraints.real_matrix


class BernoulliLogitGLM(Regression):
    """Logistic regression: outcomes of 0 and 1 with log odds ``alpha + x @ beta``.

    Probability ``p(y) = prod(exp(y * z) / (1 + exp(z)))`` with ``z = alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,), or (..., 1, covariates) for a batch
    """

    x: Parameter = param(constraints.real_vector)
    alpha: Parameter = param(constraints.real)
    beta: Parameter = param(constraints.real_vector)
    support = constraints.boolean
    has_enumerate_support = True

    def outcome(self, validate_args: bool | None = None) -> Bernoulli:
        """Return the distribution of the outcomes at the linear predictor."""
        return Bernoulli(
            logits=self.alpha + self._product(), validate_args=self._checks(validate_args)
        )

    def _enumerate_support(self) -> Tensor:
        return self.outcome()._enumerate_support()


class BinomialLogitGLM(Regression):
    """Binomial regression: successes in trials with log odds ``alpha + x @ beta``.

    Probability ``p(y) = prod(binom(total_count, y) * exp(y * z) / (1 + exp(z)) **
    total_count)`` with ``z = alpha + x @ beta``.

    Parameters
    ----------
    total_count : Tensor or number, shape () or (rows,)
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,), or (..., 1, covariates) for a batch
    """

    total_count: Parameter = param(constraints.nonnegative_integer)
    x: Parameter = param(constraints.real_vector)
    alpha: Parameter = param(constraints.real)
    beta: Parameter = param(constraints.real_vector)

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Counts up to the number of trials."""
        return constraints.integer_interval(0, self.total_count)

    def outcome(self, validate_args: bool | None = None) -> Binomial:
        """Return the distribution of the outcomes at the linear predictor."""
        eta = self.alpha + self._product()
        return Binomial(
            total_count=self.total_count, logits=eta, validate_args=self._checks(validate_args)
        )


class CategoricalLogitGLM(Regression):
    """Multinomial logistic regression: categories with logits ``alpha + x @ beta``.

    Probability ``p(y) = exp(z[y]) / sum(exp(z))`` with ``z = alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor, shape (categories,)
    beta : Tensor, shape (covariates, categories), or (..., 1, covariates, categories) for a batch
    """

    x: Parameter = param(constraints.real_vector)
    alpha: Parameter = param(constraints.real_vector)
    beta: Parameter = param(COLUMNS)
    has_enumerate_support = True
    _takes_integers = True

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Category numbers."""
        return constraints.integer_interval(0, self.beta.array.shape[-1] - 1)

    def outcome(self, validate_args: bool | None = None) -> Categorical:
        """Return the distribution of the outcomes at the linear predictor."""
        if self.beta.array.ndim == 2:
            eta = self.x @ self.beta
        else:
            product = unsqueeze(self.x, -2) @ self.beta
            shape = product.array.shape
            eta = reshape(product, (*shape[:-2], shape[-1]))
        return Categorical(logits=self.alpha + eta, validate_args=self._checks(validate_args))

    def _enumerate_support(self) -> Tensor:
        return self.outcome()._enumerate_support()


class OrderedLogisticGLM(Regression):
    """Ordered logistic regression: categories that a logistic number around x beta is in.

    Probability ``p(y) = sigmoid(c[y + 1] - z) - sigmoid(c[y] - z)`` with ``z = x @ beta`` and ``c =
    ends(cutpoints)``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    beta : Tensor, shape (covariates,), or (..., 1, covariates) for a batch
    cutpoints : Tensor, shape (categories - 1,), increasing
    """

    x: Parameter = param(constraints.real_vector)
    beta: Parameter = param(constraints.real_vector)
    cutpoints: Parameter = param(constraints.ordered_vector)
    has_enumerate_support = True
    _takes_integers = True

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """Category numbers."""
        return constraints.integer_interval(0, self.cutpoints.array.shape[-1])

    def outcome(self, validate_args: bool | None = None) -> Categorical:
        """Return the distribution of the outcomes at the linear predictor."""
        return OrderedLogistic(
            self._product(), self.cutpoints, validate_args=self._checks(validate_args)
        )

    def _enumerate_support(self) -> Tensor:
        return self.outcome()._enumerate_support()


class PoissonLogGLM(Regression):
    """Poisson regression: counts with log mean ``alpha + x @ beta``.

    Probability ``p(y) = prod(exp(y * z - exp(z)) / factorial(y))`` with ``z = alpha + x @
    beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,), or (..., 1, covariates) for a batch
    """

    x: Parameter = param(constraints.real_vector)
    alpha: Parameter = param(constraints.real)
    beta: Parameter = param(constraints.real_vector)
    support = constraints.nonnegative_integer

    def outcome(self, validate_args: bool | None = None) -> Poisson:
        """Return the distribution of the outcomes at the linear predictor."""
        return Poisson(exp(self.alpha + self._product()), validate_args=self._checks(validate_args))


class NegBinomial2LogGLM(Regression):
    """Negative binomial regression: counts with log mean ``alpha + x @ beta``.

    Probability ``p(y) = prod(gamma(y + phi) / (gamma(phi) * factorial(y)) * exp(y * z) * phi **
    phi / (exp(z) + phi) ** (y + phi))`` with ``z = alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,), or (..., 1, covariates) for a batch
    phi : Tensor or number, positive
        Concentration: the variance is ``mean + mean**2 / phi``.
    """

    x: Parameter = param(constraints.real_vector)
    alpha: Parameter = param(constraints.real)
    beta: Parameter = param(constraints.real_vector)
    phi: Parameter = param(constraints.positive)
    support = constraints.nonnegative_integer

    def outcome(self, validate_args: bool | None = None) -> NegativeBinomial:
        """Return the distribution of the outcomes at the linear predictor."""
        logits = self.alpha + self._product() - log(self.phi)
        return NegativeBinomial(
            total_count=self.phi, logits=logits, validate_args=self._checks(validate_args)
        )


class NormalIdGLM(Regression):
    """Linear regression: normal outcomes with mean ``alpha + x @ beta``.

    Density ``f(y) = prod(exp(-((y - z) / sigma) ** 2 / 2) / (sigma * sqrt(2 * pi)))`` with ``z
    = alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,), or (..., 1, covariates) for a batch
    sigma : Tensor or number, positive
    """

    x: Parameter = param(constraints.real_vector)
    alpha: Parameter = param(constraints.real)
    beta: Parameter = param(constraints.real_vector)
    sigma: Parameter = param(constraints.positive)
    support = constraints.real

    def outcome(self, validate_args: bool | None = None) -> Normal:
        """Return the distribution of the outcomes at the linear predictor."""
        return Normal(
            self.alpha + self._product(), self.sigma, validate_args=self._checks(validate_args)
        )

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.outcome()._rsample(rng, shape)


def bernoulli_logit_glm(
    x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Bernoulli:
    """Return logistic regression: outcomes of 0 and 1 with log odds ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    validate_args : bool, optional
    """
    return BernoulliLogitGLM(x, alpha, beta, validate_args=False).outcome(validate_args)


def binomial_logit_glm(
    total_count: Given, x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Binomial:
    """Return binomial regression: successes in trials with log odds ``alpha + x @ beta``.

    Parameters
    ----------
    total_count : Tensor or number, shape () or (rows,)
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    validate_args : bool, optional
    """
    return BinomialLogitGLM(total_count, x, alpha, beta, validate_args=False).outcome(validate_args)


def categorical_logit_glm(
    x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Categorical:
    """Return multinomial logistic regression: categories with logits ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor, shape (categories,)
    beta : Tensor, shape (covariates, categories)
    validate_args : bool, optional
    """
    return CategoricalLogitGLM(x, alpha, beta, validate_args=False).outcome(validate_args)


def ordered_logistic_glm(
    x: Given, beta: Given, cutpoints: Given, *, validate_args: bool | None = None
) -> Categorical:
    """Return ordered logistic regression: categories that a logistic number around x beta is in.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    beta : Tensor, shape (covariates,)
    cutpoints : Tensor, shape (categories - 1,), increasing
    validate_args : bool, optional
    """
    return OrderedLogisticGLM(x, beta, cutpoints, validate_args=False).outcome(validate_args)


def poisson_log_glm(
    x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Poisson:
    """Return Poisson regression: counts with log mean ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    validate_args : bool, optional
    """
    return PoissonLogGLM(x, alpha, beta, validate_args=False).outcome(validate_args)


def neg_binomial_2_log_glm(
    x: Given, alpha: Given, beta: Given, phi: Given, *, validate_args: bool | None = None
) -> NegativeBinomial:
    """Return negative binomial regression: counts with log mean ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    phi : Tensor or number, positive
        Concentration: the variance is ``mean + mean**2 / phi``.
    validate_args : bool, optional
    """
    return NegBinomial2LogGLM(x, alpha, beta, phi, validate_args=False).outcome(validate_args)


def normal_id_glm(
    x: Given, alpha: Given, beta: Given, sigma: Given, *, validate_args: bool | None = None
) -> Normal:
    """Return linear regression: normal outcomes with mean ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    sigma : Tensor or number, positive
    validate_args : bool, optional
    """
    return NormalIdGLM(x, alpha, beta, sigma, validate_args=False).outcome(validate_args)


explain_calls(globals())
