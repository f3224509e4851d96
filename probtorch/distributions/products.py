"""Products of two densities over the same value that have a closed form: `conjugate_update`.

The product of a prior and a likelihood of one family is of that family again; what it integrates to
is the evidence. Rules are found by the class of the pair; add one with `register_product`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from probtorch.core.signatures import explain_calls
from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.distribution import Distribution, Independent
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import squeeze, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import lgamma
from probtorch.tensor import Tensor

__all__ = ["conjugate_update", "register_product"]

Update: TypeAlias = tuple[Distribution, Tensor]
_Rule = TypeVar("_Rule", bound=Callable[..., Update])
_RULES: dict[type[Distribution], Callable[..., Update]] = {}


def register_product(family: type[Distribution]) -> Callable[[_Rule], _Rule]:
    """Decorator: use ``fn(p, q) -> (product, log normalizer)`` for two of this class."""

    def add(fn: _Rule) -> _Rule:
        _RULES[family] = fn
        return fn

    return add


def conjugate_update(p: Distribution, q: Distribution) -> Update:
    """Return the distribution whose density is prop. to the product of two, and what it was.

    ``p(x) q(x) = exp(log_normalizer) product(x)``.

    Parameters
    ----------
    p, q : Distribution
        Both normal, multivariate normal, Beta, Gamma or Dirichlet, or `Independent` ones of them.

    Returns
    -------
    product : Distribution
    log_normalizer : Tensor, of the batch shape

    Raises
    ------
    NotImplementedError
        If there is no closed form for the pair.

    Notes
    -----
    It is Pyro's method of that name as a function.

    Examples
    --------
    >>> from probtorch.distributions import Gamma
    >>> conjugate_update(Gamma(2.0, 1.0), Gamma(3.0, 4.0))[0]
    Gamma(concentration=4, rate=5)
    """
    if isinstance(p, Independent) and isinstance(q, Independent):
        n = p.reinterpreted_batch_ndims
        if n == q.reinterpreted_batch_ndims:
            product, logs = conjugate_update(p.base_dist, q.base_dist)
            return Independent(product, n), sum_rightmost(logs, n)
    rule = _RULES.get(type(p))
    if rule is None or type(q) is not type(p):
        raise NotImplementedError(
            f"the product of a {type(p).__name__} and a {type(q).__name__} density has no rule; "
            "there are rules for two of one kind: "
            f"{', '.join(kind.__name__ for kind in _RULES)}; register_product adds one"
        )
    return rule(p, q)


@register_product(Normal)
def _normals(p: Normal, q: Normal) -> Update:
    both = p.scale * p.scale + q.scale * q.scale
    spread = sqrt(both)
    share = p.scale * p.scale / both
    loc = p.loc + share * (q.loc - p.loc)
    return Normal(loc, p.scale * q.scale / spread), Normal(q.loc, spread).log_prob(p.loc)


@register_product(MultivariateNormal)
def _vectors(p: MultivariateNormal, q: MultivariateNormal) -> Update:
    P, Q = p.covariance_matrix, q.covariance_matrix
    factor = cholesky(P + Q)
    # Half of each: with H = L^-1 P, P - P (P + Q)^-1 P = P - H^T H.
    half = solve_triangular(factor, P, upper=False)
    gap = solve_triangular(factor, unsqueeze(q.loc - p.loc, -1), upper=False)
    loc = p.loc + squeeze(half.mT @ gap, -1)
    evidence = MultivariateNormal(q.loc, scale_tril=factor).log_prob(p.loc)
    rest = P - half.mT @ half
    return MultivariateNormal(loc, covariance_matrix=(rest + rest.mT) * 0.5), evidence


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


@register_product(Beta)
def _betas(p: Beta, q: Beta) -> Update:
    a = p.concentration1 + q.concentration1 - 1.0
    b = p.concentration0 + q.concentration0 - 1.0
    before = _log_beta(p.concentration1, p.concentration0)
    data = _log_beta(q.concentration1, q.concentration0)
    return Beta(a, b), _log_beta(a, b) - before - data


@register_product(Gamma)
def _gammas(p: Gamma, q: Gamma) -> Update:
    a, b = p.concentration + q.concentration - 1.0, p.rate + q.rate

    def constant(shape: Tensor, rate: Tensor) -> Tensor:
        return shape * log(rate) - lgamma(shape)

    before, data = constant(p.concentration, p.rate), constant(q.concentration, q.rate)
    return Gamma(a, b), before + data - constant(a, b)


@register_product(Dirichlet)
def _shares(p: Dirichlet, q: Dirichlet) -> Update:
    a = p.concentration + q.concentration - 1.0

    def constant(x: Tensor) -> Tensor:
        return total(lgamma(x), -1) - lgamma(total(x, -1))

    return Dirichlet(a), constant(a) - constant(p.concentration) - constant(q.concentration)


explain_calls(globals())
