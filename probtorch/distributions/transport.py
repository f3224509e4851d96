"""Normal vectors whose draws move with the parameters in another way than scale times noise.

A draw may move along any field that carries the old density into the new one. Here are the field of
optimal transport, a field with rotations added that are learned, and for mixtures of normals of
several sizes the field that moves draws along rays. Densities are those of the plain classes; only
the variance of gradients differs. All from Jankowiak and Obermeyer (2018), "Pathwise derivatives
beyond the reparameterization trick", and Jankowiak and Karaletsos (2019), "Pathwise derivatives for
multivariate distributions". Read multivariate_normal.py and pathwise.py first.
"""

from __future__ import annotations

import math

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.kl_rules import kl_divergence, register_kl
from probtorch.distributions.multivariate_normal import MultivariateNormal, squared_length
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.pathwise import at_level, moving
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import check_sizes, half_log_det
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.diagonals import tril
from probtorch.ops.exponential_sums import log_softmax, logsumexp
from probtorch.ops.exponentials import exp, log
from probtorch.ops.families import unbroadcast
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import gammainc
from probtorch.ops.spectral import eigh
from probtorch.tensor import Tensor

__all__ = ["AVFMultivariateNormal", "GaussianScaleMixture", "OMTMultivariateNormal"]


class FactoredNormal(Distribution):
    """Normal vectors of mean `loc` and covariance ``scale_tril @ scale_tril.T``."""

    loc: Parameter = param(constraints.real_vector)
    scale_tril: Parameter = param(constraints.lower_cholesky)
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        n = self.loc.array.shape[-1]
        check_sizes(type(self).__name__, "a scale_tril", (n, n), self.scale_tril)
        return (n,)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self.loc + reshape(self.scale_tril @ unsqueeze(rng.normal(shape), -1), shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        constant = half_log_det(self.scale_tril) + self._event_shape[0] * HALF_LOG_2PI
        return squared_length(self.scale_tril, x - self.loc) * -0.5 - constant

    @property
    def covariance_matrix(self) -> Tensor:
        """The matrix ``scale_tril @ scale_tril.T``."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of `covariance_matrix`."""
        return MultivariateNormal(
            self.loc, scale_tril=self.scale_tril, validate_args=False
        ).precision_matrix

    def _entropy(self) -> Tensor:
        n = self._event_shape[0]
        return half_log_det(self.scale_tril) + n * (0.5 + HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self.loc

    _mode = _mean

    def _variance(self) -> Tensor:
        return total(self.scale_tril * self.scale_tril, -1)


class OMTMultivariateNormal(FactoredNormal):
    """Normal vectors whose draws move by optimal transport when `scale_tril` changes.

    Density ``f(x) = exp(-(x - loc) @ inv(S) @ (x - loc) / 2) / sqrt(det(2 * pi * S))`` with ``S
    = scale_tril @ transpose(scale_tril)``.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Mean.
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
        Cholesky factor of the covariance.

    Notes
    -----
    The field is linear and symmetric, x -> M (x - loc) with M C + C M = dC for the covariance C: no
    other field moves draws less. A draw with gradient costs one eigendecomposition; its gradient
    can be taken once. Where draws carry no gradient this is `MultivariateNormal`.

    References
    ----------
    Jankowiak, Obermeyer (2018), "Pathwise derivatives beyond the reparameterization trick".
    """

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        L = self.scale_tril
        apart = L.detach() @ unsqueeze(rng.normal(shape), -1)
        C = L @ L.mT
        sizes, axes = eigh(C.detach())
        pairs = unsqueeze(sizes, -1) + unsqueeze(sizes, -2)
        M = axes @ ((axes.mT @ moving(C) @ axes) / pairs) @ axes.mT
        return self.loc + reshape(apart + M @ apart, shape)


class _Rotated(Function):
    """scale_tril @ noise, with the derivative of a field that has rotations in it.

    The control variate gets the gradient of half the squared gradient of `scale_tril`: descent on
    it makes the estimate less variable, as its mean does not depend on it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, *args: Tensor) -> Tensor:
        ctx.save_for_backward(*args)
        L, _, noise = args
        return reshape(L @ unsqueeze(noise, -1), noise.array.shape)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        L, control, noise = ctx.saved_tensors
        g, across = unsqueeze(gradients[0], -1), unsqueeze(noise, -2)
        B, C = control[..., 0, :, :], control[..., 1, :, :]
        pairs = (L.mT @ g) * across
        turned = unbroadcast(pairs - pairs.mT, L.array.shape)
        slope = tril(unbroadcast(g * across, L.array.shape) + turned * (B.mT @ C))
        weight = slope * turned
        both = stack([C @ weight.mT, B @ weight], -3)
        return slope, unbroadcast(both, control.array.shape), None


class AVFMultivariateNormal(FactoredNormal):
    """Normal vectors whose gradients have less variance, by rotations that are learned.

    Density ``f(x) = exp(-(x - loc) @ inv(S) @ (x - loc) / 2) / sqrt(det(2 * pi * S))`` with ``S
    = scale_tril @ transpose(scale_tril)``.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
        Mean.
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
        Cholesky factor of the covariance.
    control_var : Tensor, shape (..., 2, m, n)
        How much the field turns with each element of `scale_tril`; zeros for the plain field. A
        larger m leaves more choice.

    Notes
    -----
    The mean of the gradient is the same for every `control_var`. Its own gradient is that of half
    the squared length of the gradient of `scale_tril`: an optimizer that descends on it makes
    the gradient less variable.

    References
    ----------
    Jankowiak, Karaletsos (2019), "Pathwise derivatives for multivariate distributions".
    """

    control_var: Parameter = param(constraints.independent(constraints.real, 3))

    def _infer_event_shape(self) -> Shape:
        shape = super()._infer_event_shape()
        given = self.control_var.array.shape
        if given[-3] != 2 or given[-1] != shape[0]:
            raise ShapeError(
                "AVFMultivariateNormal",
                expected=f"a control_var of shape (..., 2, m, {shape[0]})",
                got=f"shape {given}",
                fix="start from full((2, 1, n), 0.1), with requires_grad",
            )
        return shape

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.loc + _Rotated.apply(self.scale_tril, self.control_var, rng.normal(shape))


@register_kl(FactoredNormal, FactoredNormal)
@register_kl(FactoredNormal, MultivariateNormal)
@register_kl(MultivariateNormal, FactoredNormal)
def _(p: FactoredNormal | MultivariateNormal, q: FactoredNormal | MultivariateNormal) -> Tensor:
    return kl_divergence(_plain(p), _plain(q))


def _plain(d: FactoredNormal | MultivariateNormal) -> MultivariateNormal:
    if isinstance(d, MultivariateNormal):
        return d
    return MultivariateNormal(d.loc, scale_tril=d.scale_tril, validate_args=False)


class GaussianScaleMixture(Distribution):
    """Mixture of normal vectors of mean 0 that differ in size alone.

    Component j has the covariance ``diag((component_scale[j] * coord_scale) ** 2)``.

    Density ``f(x) = sum(w[j] * exp(-z @ z / (2 * s[j] ** 2)) / prod(coord_scale * s[j] * sqrt(2 *
    pi)) for j in range(len(w)))`` with ``z = x / coord_scale`` and ``s = component_scale`` and ``w
    = exp(component_logits) / sum(exp(component_logits))``.

    Parameters
    ----------
    coord_scale : Tensor, shape (..., n), positive
    component_logits : Tensor, shape (..., k)
        Log weights of the components; a number added to all changes nothing.
    component_scale : Tensor, shape (..., k), positive

    Notes
    -----
    Draws have pathwise gradients in weights and sizes too: a draw moves along its ray, at a fixed
    probability of being closer to 0. The gradient can be taken once.

    References
    ----------
    Jankowiak, Karaletsos (2019), "Pathwise derivatives for multivariate distributions".
    """

    coord_scale: Parameter = param(constraints.independent(constraints.positive, 1))
    component_logits: Parameter = param(constraints.real_vector)
    component_scale: Parameter = param(constraints.independent(constraints.positive, 1))
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        k, given = self.component_logits.array.shape[-1], self.component_scale.array.shape[-1]
        if given != k:
            raise ShapeError(
                "GaussianScaleMixture",
                expected=f"a component_scale of shape (..., {k}), to match component_logits",
                got=f"shape {self.component_scale.array.shape}",
                fix="give one size for each component",
            )
        return (self.coord_scale.array.shape[-1],)

    def _noise(self, rng: Source, shape: Shape) -> Tensor:
        """Draws for a `coord_scale` of 1."""
        weights = exp(log_softmax(self.component_logits.detach(), -1))
        which = unsqueeze(rng.categorical(weights, shape[:-1]), -1)
        k = self.component_scale.array.shape[-1]
        sizes = expand(self.component_scale.detach(), (*shape[:-1], k))
        return gather(sizes, -1, which) * rng.normal(shape)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self.coord_scale * self._noise(rng, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        noise = self._noise(rng, shape)
        square, half = total(noise * noise, -1, True), 0.5 * shape[-1]
        log_p, sizes = log_softmax(self.component_logits, -1), self.component_scale
        # |noise|^2 / 2 over a squared size is gamma distributed of shape n / 2.
        ratio = square * 0.5 / (sizes * sizes)
        level = total(exp(log_p) * gammainc(half, ratio), -1, True)
        slopes = exp(log_p + half * log(ratio) - ratio - math.lgamma(half)) / square
        moved = at_level(square, level, total(slopes, -1, True))
        return self.coord_scale * noise * sqrt(moved / square)

    def _log_prob(self, x: Tensor) -> Tensor:
        z, n = x / self.coord_scale, self._event_shape[0]
        sizes = self.component_scale
        square = total(z * z, -1, True) / (sizes * sizes)
        each = log_softmax(self.component_logits, -1) - n * log(sizes) - 0.5 * square
        return logsumexp(each, -1) - total(log(self.coord_scale), -1) - n * HALF_LOG_2PI

    def _mean(self) -> Tensor:
        return self.coord_scale * 0.0 + 0.0 * total(self.component_logits, -1, True)

    def _mode(self) -> Tensor:
        return self._mean()

    def _variance(self) -> Tensor:
        weights, sizes = exp(log_softmax(self.component_logits, -1)), self.component_scale
        return total(weights * sizes * sizes, -1, True) * self.coord_scale * self.coord_scale
