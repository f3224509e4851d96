"""`ExponentialFamily`: what distributions share that state their natural parameters.

The derivatives of the log normaliser are the means of the sufficient statistics, so that entropy
and divergence follow from it alone (Nielsen and Nock 2010): both are Bregman divergences.
"""

from __future__ import annotations

from probtorch.autograd import grad
from probtorch.core.dispatch import set_grad_enabled
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.kl_rules import no_closed_form, register_kl
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["ExponentialFamily"]


class ExponentialFamily(Distribution):
    """Distributions whose log density is linear in natural parameters, less a log normaliser.

    ``log p(x) = <natural, statistics(x)> - log_normalizer(natural) + carrier(x)``. A class that
    states `_natural_params`, `_log_normalizer` and, where the carrier is not 0,
    `_mean_carrier_measure`, has its entropy and the divergences within the class. The names are
    PyTorch's.

    Notes
    -----
    The distributions of this package have formulas of their own and are no subclasses.

    References
    ----------
    F. Nielsen and R. Nock, Entropies and cross-entropies of exponential families, 2010.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        """Natural parameters, each of shape ``batch_shape + ...``."""
        raise NotImplementedError(f"{type(self).__name__} does not state its _natural_params")

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        """Return the log normaliser, shape `batch_shape`."""
        raise NotImplementedError(f"{type(self).__name__} does not state its _log_normalizer")

    @property
    def _mean_carrier_measure(self) -> float | Tensor:
        """Mean of the log carrier measure."""
        return 0.0

    def _entropy(self) -> Tensor:
        size, natural, means = _means(self)
        value = size - self._mean_carrier_measure
        for parameter, mean in zip(natural, means, strict=True):
            value = value - _inner(self, parameter * mean)
        return value


def _inner(d: Distribution, terms: Tensor) -> Tensor:
    """Sum over the dims behind those of the batch."""
    return sum_rightmost(terms, max(len(terms.array.shape) - len(d._batch_shape), 0))


def _means(d: ExponentialFamily) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the log normaliser, the natural parameters and the means of their statistics."""
    stated = d._natural_params
    moving = any(x.requires_grad for x in stated)
    before = set_grad_enabled(True)
    try:
        natural = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in stated)
        size = d._log_normalizer(*natural)
        means = grad(total(size), list(natural), create_graph=moving)
    finally:
        set_grad_enabled(before)
    if moving:
        return size, natural, tuple(means)
    return size.detach(), stated, tuple(x.detach() for x in means)


@register_kl(ExponentialFamily, ExponentialFamily)
def _(p: ExponentialFamily, q: ExponentialFamily) -> Tensor:
    if type(p) is not type(q):
        raise no_closed_form(p, q, "two members of one exponential family")
    size, natural, means = _means(p)
    value = q._log_normalizer(*q._natural_params) - size
    for ours, theirs, mean in zip(natural, q._natural_params, means, strict=True):
        value = value - _inner(p, (theirs - ours) * mean)
    return value
