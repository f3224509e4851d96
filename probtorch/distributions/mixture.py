"""Mixtures of one family."""

from __future__ import annotations

from typing import Self

from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import also_called, explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Values
from probtorch.distributions.pathwise import conditionals, moved_mixture
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """Mixture of the last batch dim of one distribution.

    Density ``f(x) = sum(probs * base(x))``.

    Parameters
    ----------
    mixture_distribution : Categorical, batch shape (...)
        Which component.
    component_distribution : Distribution, batch shape (..., components)

    Notes
    -----
    A component of weight 0 has no part in value or gradient; where all components
    exclude a value the density is -inf with gradient 0.

    Draws of continuous numbers carry the gradient that keeps their level in the mixture's cdf, in
    weights too; so do vectors of independent numbers and multivariate normal ones, element after
    element, each given those before (Graves 2016). It can be taken once.
    """

    _mass_on_ends = True

    __tree_fields__ = ("mixture_distribution", "component_distribution")
    __static_fields__ = ("_expanded", "_validate_args", "_weak")

    @also_called(None, mixing_distribution="mixture_distribution")
    def __init__(
        self,
        mixture_distribution: Distribution,
        component_distribution: Distribution,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ArgumentError(
                "MixtureSameFamily",
                expected="a Categorical as mixture_distribution",
                got=type(mixture_distribution).__name__,
                fix="pass Categorical(probs=weights)",
            )
        mixture, component = mixture_distribution, component_distribution
        count, batch = mixture.num_categories, component._batch_shape
        if not batch or batch[-1] != count:
            raise ShapeError(
                "MixtureSameFamily",
                expected=f"components whose last batch dim is {count}, the number of weights",
                got=f"batch shape {tuple(batch)}",
                fix="give the parameters of the components one value per component in the last dim",
            )
        self.mixture_distribution, self.component_distribution = mixture, component
        self._set_shapes(
            broadcast_shapes(mixture._batch_shape, batch[:-1], op="MixtureSameFamily"),
            component._event_shape,
            dtype=component._dtype,
            device=component._device,
            validate_args=validate_args,
        )
        self._takes_integers = component._takes_integers

    @property
    def mixing_distribution(self) -> Categorical:
        """`mixture_distribution`: NumPyro's name for it."""
        return self.mixture_distribution

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("mixture_distribution", "component_distribution")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The support of the components; where their bounds differ, the union."""
        component = self.component_distribution
        if constraints.is_dependent(type(component).support):
            return AnyOf(component.support)
        return component.support

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        component, n = self.component_distribution, len(self._event_shape)
        # Inside the union is not inside every component: those mask for themselves.
        inside = inside and not isinstance(self.support, AnyOf)
        each = component._density(unsqueeze(value, -1 - n), inside)
        return logsumexp(self.mixture_distribution._log_weights() + each, -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        count, n = self.mixture_distribution.num_categories, len(self._event_shape)
        batch, event = shape[: len(shape) - n], shape[len(shape) - n :]
        each = self.component_distribution._sample(rng, (*batch, count, *event))
        index = self.mixture_distribution._sample(rng, batch)
        index = expand(reshape(index, (*batch, *(1,) * (n + 1))), (*batch, 1, *event))
        return reshape(gather(each, len(batch), index), shape)

    @property
    def has_rsample(self) -> bool:
        """Whether the components are continuous and have conditional cdfs."""
        return conditionals(self.component_distribution) is not None

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = self._sample(rng, shape).detach()
        if not grad_enabled():
            return x
        x = x if x.array.dtype == rng.dtype else cast(x, rng.dtype)
        return moved_mixture(
            x, self.mixture_distribution._log_weights(), self.component_distribution
        )

    def _cdf(self, value: Tensor) -> Tensor:
        weights = self.mixture_distribution._weights()
        return total(weights * self.component_distribution.cdf(unsqueeze(value, -1)), -1)

    def _survival(self, value: Tensor) -> Tensor:
        weights = self.mixture_distribution._weights()
        return total(weights * self.component_distribution.survival(unsqueeze(value, -1)), -1)

    def _log_cdf(self, value: Tensor) -> Tensor:
        logs = self.component_distribution.log_cdf(unsqueeze(value, -1))
        return logsumexp(self.mixture_distribution._log_weights() + logs, -1)

    def _log_survival(self, value: Tensor) -> Tensor:
        logs = self.component_distribution.log_survival(unsqueeze(value, -1))
        return logsumexp(self.mixture_distribution._log_weights() + logs, -1)

    def _averaged(self, each: Tensor) -> Tensor:
        """Average over the components, which are the dim before the event dims of `each`."""
        n, weights = len(self._event_shape), self.mixture_distribution._weights()
        weights = reshape(weights, (*weights.array.shape, *(1,) * n))
        return total(weights * each, -1 - n)

    def _mean(self) -> Tensor:
        return self._averaged(self.component_distribution.mean)

    def _variance(self) -> Tensor:
        component = self.component_distribution
        apart = component.mean - unsqueeze(self._mean(), -1 - len(self._event_shape))
        return self._averaged(component.variance + apart * apart)


class AnyOf(constraints.Constraint):
    """Union of a batch of sets of single numbers, along the last batch dim."""

    def __init__(self, each: Constraint) -> None:
        self.each = each
        self.event_dim = each.event_dim
        self.is_discrete = each.is_discrete

    def check(self, value: Tensor) -> Tensor:
        return self.each.check(unsqueeze(value, -1 - self.event_dim)).any(-1)

    def interior(self, value: Tensor) -> float | Tensor:
        return 0 if self.is_discrete else 0.0


explain_calls(globals())
