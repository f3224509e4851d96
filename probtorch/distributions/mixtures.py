"""Mixtures of different families, choices by a mask, and copulas.

`mixture.py` has mixtures of one family, whose components are a batch dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled
from probtorch.core.dtype import bool_
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.beta import Beta
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import INSTANCE_STATE, Given, Values, as_parameter
from probtorch.distributions.mixture import MixtureSameFamily
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.pathwise import at_level, conditionals
from probtorch.distributions.source import Source
from probtorch.distributions.truncated import _normal_quantile_of_log
from probtorch.distributions.wrapping import univariate
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import ndtr
from probtorch.tensor import Tensor

__all__ = [
    "GaussianCopula",
    "GaussianCopulaBeta",
    "MaskedMixture",
    "Mixture",
    "MixtureGeneral",
    "MixtureOfDiagNormals",
    "MixtureOfDiagNormalsSharedCovariance",
]


class MixtureGeneral(Distribution):
    """Mixture of a list of distributions, of any families that share an event shape.

    Density ``f(x) = sum(probs[k] * component_dist(k, x) for k in range(len(probs)))``.

    There `component_dist` is the density of a component.

    Parameters
    ----------
    mixing_distribution : Categorical, batch shape (...)
        Which component.
    component_distributions : sequence of Distribution, batch shape (...)
    support : Constraint, optional
        Where the components live together; that of the first without it. Each component has
        density 0 outside its own.
    """

    _mass_on_ends = True

    __tree_fields__ = ("mixing_distribution", "component_distributions")
    __static_fields__ = ("_support", *INSTANCE_STATE)

    def __init__(
        self,
        mixing_distribution: Distribution,
        component_distributions: Sequence[Distribution],
        *,
        support: Constraint | None = None,
        validate_args: bool | None = None,
    ) -> None:
        components = list(component_distributions)
        if not isinstance(mixing_distribution, Categorical):
            raise ArgumentError(
                "MixtureGeneral",
                expected="a Categorical as mixing_distribution",
                got=type(mixing_distribution).__name__,
                fix="pass Categorical(probs=weights)",
            )
        events = {tuple(d._event_shape) for d in components}
        if len(components) != mixing_distribution.num_categories or len(events) != 1:
            raise ShapeError(
                "MixtureGeneral",
                expected=f"{mixing_distribution.num_categories} components of one event shape",
                got=f"{len(components)} of event shapes {sorted(events)}",
                fix="give one component per weight",
            )
        if len({d.is_discrete for d in components}) != 1:
            raise ArgumentError(
                "MixtureGeneral",
                expected="components that are all discrete, or all continuous",
                got=", ".join(type(d).__name__ for d in components),
                fix="a probability and a density do not add up; for points among real numbers use "
                "HurdleDistribution or Censored, or give them a site of their own",
            )
        self.mixing_distribution, self.component_distributions = mixing_distribution, components
        self._support = support
        first = components[0]
        batches = (tuple(d._batch_shape) for d in (mixing_distribution, *components))
        self._set_shapes(
            broadcast_shapes(*batches, op="MixtureGeneral"),
            first._event_shape,
            dtype=next((d._dtype for d in components if d._dtype is not None), None),
            device=first._device,
            validate_args=validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        parts = values["mixing_distribution"], values["component_distributions"]
        return cls(*parts, support=values["_support"])

    def _tree_names(self) -> tuple[str, ...]:
        return ("mixing_distribution", "component_distributions")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The support given, or that of the first component."""
        found = self._support
        return self.component_distributions[0].support if found is None else found

    def _log_prob(self, x: Tensor) -> Tensor:
        each = [d._to_batch(d._density(x, False)) for d in self.component_distributions]
        shape = broadcast_shapes(*(p.array.shape for p in each), op="log_prob")
        logs = stack([expand(p, shape) for p in each], -1)
        return logsumexp(self.mixing_distribution._log_weights() + logs, -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        n = len(self._event_shape)
        batch, event = shape[: len(shape) - n], shape[len(shape) - n :]
        draws = [expand(d._sample(rng, shape), shape) for d in self.component_distributions]
        each = stack([cast(x, rng.dtype) for x in draws], len(batch))
        index = self.mixing_distribution._sample(rng, batch)
        index = expand(reshape(index, (*batch, *(1,) * (n + 1))), (*batch, 1, *event))
        return reshape(gather(each, len(batch), index), shape)

    @property
    def has_rsample(self) -> bool:
        """Whether the components are continuous numbers with cdfs."""
        parts = self.component_distributions
        return not self._event_shape and all(conditionals(d) is not None for d in parts)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = self._sample(rng, shape).detach()
        return at_level(x, self.cdf(x), exp(self._log_prob(x))) if grad_enabled() else x

    def _weighted(self, each: list[Tensor]) -> Tensor:
        """Average over the components, of batches followed by event dims."""
        n, weights = len(self._event_shape), self.mixing_distribution._weights()
        out: Tensor | None = None
        for i, value in enumerate(each):
            w = weights[..., i]
            part = reshape(w, (*w.array.shape, *(1,) * n)) * value
            out = part if out is None else out + part
        assert out is not None  # there is a component
        return out

    def _cdf(self, x: Tensor) -> Tensor:
        return self._weighted([d.cdf(x) for d in self.component_distributions])

    def _survival(self, x: Tensor) -> Tensor:
        return self._weighted([d.survival(x) for d in self.component_distributions])

    def _mean(self) -> Tensor:
        return self._weighted([d.mean for d in self.component_distributions])

    def _variance(self) -> Tensor:
        m = self._mean()
        parts = self.component_distributions
        return self._weighted([d.variance + (d.mean - m) * (d.mean - m) for d in parts])


def Mixture(
    mixing_distribution: Distribution,
    component_distributions: Distribution | Sequence[Distribution],
    *,
    validate_args: bool | None = None,
) -> MixtureSameFamily | MixtureGeneral:
    """Return a mixture: of the last batch dim of one distribution, or of a list of them.

    Parameters
    ----------
    mixing_distribution : Categorical
    component_distributions : Distribution, or sequence of Distribution
    validate_args : bool, optional
    """
    if isinstance(component_distributions, Distribution):
        return MixtureSameFamily(
            mixing_distribution, component_distributions, validate_args=validate_args
        )
    return MixtureGeneral(mixing_distribution, component_distributions, validate_args=validate_args)


def MixtureOfDiagNormals(
    locs: Given, coord_scale: Given, component_logits: Given
) -> MixtureSameFamily:
    """Return a mixture of normal vectors with independent elements.

    Parameters
    ----------
    locs : Tensor, shape (..., components, n)
    coord_scale : Tensor, shape (..., components, n), positive
    component_logits : Tensor, shape (..., components)
    """
    components = Normal(locs, coord_scale).to_event(1)
    return MixtureSameFamily(Categorical(logits=component_logits), components)


def MixtureOfDiagNormalsSharedCovariance(
    locs: Given, coord_scale: Given, component_logits: Given
) -> MixtureSameFamily:
    """Return a mixture of normal vectors whose elements have the same scales in all components.

    Parameters
    ----------
    locs : Tensor, shape (..., components, n)
    coord_scale : Tensor, shape (..., n), positive
    component_logits : Tensor, shape (..., components)
    """
    scale = unsqueeze(as_parameter(coord_scale, "coord_scale")[0], -2)
    return MixtureOfDiagNormals(locs, scale, component_logits)


class MaskedMixture(Distribution):
    """Element by element one of two distributions, as a mask says.

    Density ``f(x) = component1_dist(x) if mask else component0_dist(x)``.

    Parameters
    ----------
    mask : Tensor of bool
        Where False `component0`, where True `component1`.
    component0, component1 : Distribution
        Of the same event shape.
    """

    _mass_on_ends = True

    __tree_fields__ = ("mask_", "component0", "component1")
    __static_fields__ = INSTANCE_STATE

    def __init__(
        self,
        mask: Given,
        component0: Distribution,
        component1: Distribution,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.mask_ = cast(as_tensor(mask, "mask"), bool_)
        self.component0, self.component1 = component0, component1
        if tuple(component0._event_shape) != tuple(component1._event_shape):
            raise ShapeError(
                "MaskedMixture",
                expected="components of one event shape",
                got=f"{tuple(component0._event_shape)} and {tuple(component1._event_shape)}",
                fix="call to_event on one of them",
            )
        batches = (tuple(d._batch_shape) for d in (component0, component1))
        self._set_shapes(
            broadcast_shapes(self.mask_.array.shape, *batches, op="MaskedMixture"),
            component0._event_shape,
            dtype=component0._dtype or component1._dtype,
            device=component0._device,
            validate_args=validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return self.__tree_fields__

    @constraints.dependent_property
    def support(self) -> Constraint:
        """That of the components; the line where they differ."""
        a, b = self.component0.support, self.component1.support
        same = type(a) is type(b) and not constraints.is_dependent(type(self.component0).support)
        return a if same else constraints.independent(constraints.real, len(self._event_shape))

    @property
    def has_rsample(self) -> bool:
        """Whether both components have pathwise gradients."""
        return self.component0.has_rsample and self.component1.has_rsample

    def _wide(self) -> Tensor:
        return reshape(self.mask_, (*self.mask_.array.shape, *(1,) * len(self._event_shape)))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        first, second = self.component0._rsample(rng, shape), self.component1._rsample(rng, shape)
        return where(self._wide(), second, first)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        first, second = self.component0._sample(rng, shape), self.component1._sample(rng, shape)
        return where(self._wide(), second, first)

    def _log_prob(self, x: Tensor) -> Tensor:
        # Each at values that are its own, so that the other's take no slope from it.
        wide, a, b = self._wide(), self.component0, self.component1
        first = a._to_batch(a._density(where(wide, a.support.interior(x), x), False))
        second = b._to_batch(b._density(where(wide, x, b.support.interior(x)), False))
        return where(self.mask_, second, first)

    def _mean(self) -> Tensor:
        return where(self._wide(), self.component1.mean, self.component0.mean)

    def _variance(self) -> Tensor:
        return where(self._wide(), self.component1.variance, self.component0.variance)


# The probability of counts is an integral of the copula over a box, and inclusion and exclusion of
# its 2^n corners cancels. With where in the box the levels lie as sites, it is exact for any n.
_COUNTS_IN_A_COPULA = """write where from F(x - 1) to F(x) each level lies as a site:
              n = (len(x),)
              u = sample("u", Uniform(0.0, 1.0).expand(n).to_event(1))
              level = marginal.cdf(x - 1.0) + u * marginal.log_prob(x).exp()
              copula = GaussianCopula(Uniform(0.0, 1.0).expand(n), correlation)
              factor("x", copula.log_prob(level) + marginal.log_prob(x).sum())"""


class GaussianCopula(Distribution):
    """Vectors whose elements have given distributions and the dependence of a normal vector.

    Density ``f(x) = prod(base(x)) * exp(z @ (eye(len(x)) - inv(correlation_matrix)) @ z / 2) /
    sqrt(det(correlation_matrix))`` with ``z = Phi_inverse(F(x))``.

    Parameters
    ----------
    marginal_dist : Distribution, batch shape (..., n)
        Continuous, with a cdf.
    correlation_matrix : Tensor, shape (..., n, n), optional
    correlation_cholesky : Tensor, shape (..., n, n), optional
        Its Cholesky factor; exactly one of the two is given.
    """

    __tree_fields__ = ("marginal_dist", "base_dist")
    __static_fields__ = INSTANCE_STATE

    def __init__(
        self,
        marginal_dist: Distribution,
        correlation_matrix: Given | None = None,
        correlation_cholesky: Given | None = None,
        *,
        validate_args: bool | None = None,
        base_dist: MultivariateNormal | None = None,
    ) -> None:
        marginal = univariate(marginal_dist, "GaussianCopula")
        if marginal.is_discrete:
            raise ArgumentError(
                "GaussianCopula",
                expected="a continuous marginal_dist",
                got=type(marginal_dist).__name__,
                fix=_COUNTS_IN_A_COPULA,
            )
        if not marginal._batch_shape:
            raise ShapeError(
                "GaussianCopula",
                expected="a marginal_dist with one batch element per element of a draw",
                got="batch shape ()",
                fix="expand it to the size of the correlation matrix",
            )
        if base_dist is None:
            matrix = correlation_matrix if correlation_cholesky is None else correlation_cholesky
            loc = as_parameter(0.0 if matrix is None else matrix, "correlation_matrix")[0]
            base_dist = MultivariateNormal(
                loc[..., 0] * 0.0 if loc.array.ndim else loc,
                covariance_matrix=correlation_matrix,
                scale_tril=correlation_cholesky,
                validate_args=validate_args,
            )
        self.marginal_dist, self.base_dist = marginal, base_dist
        batch = tuple(marginal._batch_shape)
        self._set_shapes(
            broadcast_shapes(batch[:-1], tuple(base_dist._batch_shape), op="GaussianCopula"),
            batch[-1:],
            dtype=marginal._dtype or base_dist._dtype,
            device=marginal._device,
            validate_args=validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(values["marginal_dist"], base_dist=values["base_dist"])

    def _tree_names(self) -> tuple[str, ...]:
        return ("marginal_dist", "base_dist")

    @constraints.dependent_property(event_dim=1, is_discrete=False)
    def support(self) -> Constraint:
        """That of the marginals, for each element."""
        return constraints.independent(self.marginal_dist.support, 1)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        z = self.base_dist._rsample(rng, shape)
        return self.marginal_dist.icdf(rng.inside_unit(ndtr(z)))

    def _scores(self, x: Tensor) -> Tensor:
        """Normal quantiles of the levels of x, by the tail in which they keep their digits."""
        d = self.marginal_dist
        low, high = d.log_cdf(x), d.log_survival(x)
        lower = low < high
        z = _normal_quantile_of_log(where(lower, low, high))
        return where(lower, z, -z)

    def _log_prob(self, x: Tensor) -> Tensor:
        z = self._scores(x)
        alone = total(z * z, -1) * -0.5 - self._event_shape[0] * HALF_LOG_2PI
        marginals = total(self.marginal_dist.log_prob_inside(x), -1)
        return self.base_dist._log_prob(z) - alone + marginals

    def _entropy(self) -> Tensor:
        # That of the marginals, less what elements tell of each other: -log det(R) / 2.
        base = self.base_dist
        tied = base._entropy() - self._event_shape[0] * (HALF_LOG_2PI + 0.5)
        return total(self.marginal_dist.entropy(), -1) + tied

    def _mean(self) -> Tensor:
        return self.marginal_dist.mean

    def _variance(self) -> Tensor:
        return self.marginal_dist.variance


def GaussianCopulaBeta(
    concentration1: Given,
    concentration0: Given,
    correlation_matrix: Given | None = None,
    correlation_cholesky: Given | None = None,
    *,
    validate_args: bool | None = None,
) -> GaussianCopula:
    """Return beta numbers with the dependence of a normal vector.

    Parameters
    ----------
    concentration1, concentration0 : Tensor, shape (..., n), positive
    correlation_matrix : Tensor, shape (..., n, n), optional
    correlation_cholesky : Tensor, shape (..., n, n), optional
        Exactly one of the two is given.
    validate_args : bool, optional
    """
    marginal = Beta(concentration1, concentration0, validate_args=validate_args)
    return GaussianCopula(
        marginal, correlation_matrix, correlation_cholesky, validate_args=validate_args
    )


explain_calls(globals())
