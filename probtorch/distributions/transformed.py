"""`TransformedDistribution`: the distribution of T(x) for x from a base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from probtorch.core.dispatch import grad_enabled
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.told import rerun
from probtorch.core.typed import Shape, SizeLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Values
from probtorch.distributions.formulas import known_true, sum_rightmost, with_event_dims
from probtorch.distributions.origins import origin_of, remember
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.transform import ComposeTransform, Transform
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import clamp, sign, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.reduction import all as every
from probtorch.tensor import Tensor

__all__ = ["TransformedDistribution"]


def drawn(y: Tensor, x: Tensor, whole: ComposeTransform, rng: Source | None = None) -> Tensor:
    """Return `y`, the draw T(x); where T has bounds that rounding reaches, `x` is remembered."""
    return remember(y, x, whole.parts, rng) if any(map(_is_bounded, whole.parts)) else y


def _is_bounded(part: Transform) -> bool:
    codomain = part.codomain
    return not isinstance(getattr(codomain, "base_constraint", codomain), constraints.Real)


def _back(whole: ComposeTransform, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Pre-image and log-determinant of a draw y from x."""
    way, dim, out = [x], whole.codomain.event_dim, None
    for part in whole.parts[:-1]:
        way.append(part._call(way[-1]))
    for part, known in zip(reversed(whole.parts), reversed(way), strict=True):
        dim += part.domain.event_dim - part.codomain.event_dim
        y, term = _back_through(part, y, known)
        extra = dim - part.domain.event_dim
        term = sum_rightmost(term, extra) if extra else term
        out = term if out is None else out + term
    assert out is not None  # a whole has parts
    return y, out


def _back_through(part: Transform, y: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    n = part.domain.event_dim
    if not _is_bounded(part):
        return part._inverse_and_ladj(y)
    if not y.requires_grad:
        # At a fixed y what went into the part does not depend on the parameters of parts before it.
        known = known.detach()
        return known, part.log_abs_det_jacobian(known, y)
    # The inverse where it is finite, so that the gradient passes through y.
    finite = isfinite(part._inverse(y.detach()))
    finite = every(finite, tuple(range(-n, 0))) if n else finite
    if known_true(finite):
        return part._inverse_and_ladj(y)
    # A point inside stands in for a bound, whose infinite slope would reach the gradient.
    inside = part._call(known.new_zeros(known.array.shape) + part.domain.interior(known))
    y = where(with_event_dims(finite, part.codomain.event_dim), y, inside)
    x = where(with_event_dims(finite, n), part._inverse(y), known)
    return x, part.log_abs_det_jacobian(x, y)


class TransformedDistribution(Distribution):
    """Distribution of T(x) for x from `base_distribution`.

    Density ``f(x) = base(inverse(x)) * slope(x)``.

    There `inverse` leads from x back to what was transformed, and `slope` is the determinant of its
    Jacobian.

    Parameters
    ----------
    base_distribution : Distribution
    transforms : Transform or sequence of Transform
        Applied in this order. They must be bijective for a density, and differentiable for
        `rsample`.

    Notes
    -----
    `log_prob` inverts the transforms. Where a draw has been rounded to a bound (tanh at 20 is 1 in
    float32, small parts of a simplex are 0) the inverse has lost what it came from; of the very
    tensor that was drawn, `log_prob` still knows it, unless the tensor was changed in place.
    `sample_and_log_prob` uses the pre-image of the draw it makes. A sample statement does so too
    for transforms that are costly to invert; see `remembering`.
    """

    _mass_on_ends = True

    __tree_fields__ = ("base_dist",)
    __static_fields__ = ("transforms", "_expanded", "_validate_args", "_weak")

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        *,
        validate_args: bool | None = None,
    ) -> None:
        transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in transforms):
            raise ArgumentError(
                "TransformedDistribution",
                expected="a Transform or a sequence of them",
                got=", ".join(type(t).__name__ for t in transforms),
                fix="use the classes of probtorch.distributions.transforms",
            )
        self.transforms = tuple(transforms)
        whole = self._transform = ComposeTransform(transforms)
        base = base_distribution
        # Parameters of the transforms may have a larger batch than the base.
        shape = (*base._batch_shape, *base._event_shape)
        missing = max(whole.domain.event_dim - len(shape), 0) if transforms else 0
        need = whole.inverse_shape(whole.forward_shape((*(1,) * missing, *shape)))
        if need != shape:
            base = base.expand(need[: len(need) - len(base._event_shape)])
        if transforms:
            base = base.to_event(max(whole.domain.event_dim - len(base._event_shape), 0))
        shape = whole.forward_shape(need)
        change = whole.codomain.event_dim - whole.domain.event_dim if transforms else 0
        event = len(base._event_shape) + change
        self.base_dist = base
        self._set_shapes(
            shape[: len(shape) - event],
            shape[len(shape) - event :],
            dtype=base._dtype,
            device=base._device,
            validate_args=base._validate_args if validate_args is None else validate_args,
        )

    def clear_cache(self) -> None:
        """Do nothing, as nothing is cached: training loops written for Pyro call it."""

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("base_dist", "transforms")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The codomain of the last transform, over the event dims."""
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        extra = len(self._event_shape) - support.event_dim
        return constraints.independent(support, extra) if extra else support

    @property
    def has_rsample(self) -> bool:
        """As the base."""
        return self.base_dist.has_rsample

    def remembering(self) -> Distribution:
        """Return a copy that knows the density of its last draw, if inverting it is costly."""
        if not self._transform.costly_inverse:
            return self
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, _remembers=True)
        return out

    # The last draw, its density, and whether that is on the tape; only for copies that remember.
    _remembers, _last = False, None

    def __getstate__(self) -> Values:
        return {name: value for name, value in self.__dict__.items() if name != "_last"}

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        x = self.base_dist._rsample(rng, self._transform.inverse_shape(shape))
        if not self._remembers:
            return drawn(self._transform(x), x, self._transform, rng)
        y, ladj = self._transform.call_and_ladj(x)
        self._last = y, self._density_of_pair(x, ladj, True), grad_enabled()
        return y

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        x = self.base_dist._sample(rng, self._transform.inverse_shape(shape))
        return drawn(self._transform(x), x, self._transform, rng)

    def _check_value(self, value: Tensor) -> bool:
        # A draw may have been rounded to a bound that the support leaves out.
        known = origin_of(value, self._transform.parts) is not None
        return known or super()._check_value(value)

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        return super()._density(
            value, inside or origin_of(value, self._transform.parts) is not None
        )

    def _density_of_pair(self, x: Tensor, ladj: Tensor, inside: bool) -> Tensor:
        base = self.base_dist
        dims = len(self._event_shape) - self._transform.codomain.event_dim
        return base._to_batch(base._density(x, inside)) - sum_rightmost(ladj, dims)

    def _log_prob(self, y: Tensor) -> Tensor:
        # The very tensor that was drawn, with its tape: an equal one may be a leaf.
        if self._last is not None and self._last[0] is y and self._last[2] >= grad_enabled():
            return self._last[1]
        whole = self._transform
        origin = origin_of(y, whole.parts)
        if origin is not None:
            x, ladj = _back(whole, y, origin)
            return self._density_of_pair(x, ladj, False)
        x, ladj = whole._inverse_and_ladj(y)
        # A boundary of the codomain comes from infinity, where the base has no density left.
        n = len(self.base_dist._event_shape)
        ends = every(isfinite(x), tuple(range(-n, 0))) if n else isfinite(x)
        known = known_true(ends)
        if not known and not rerun():
            here = with_event_dims(ends, len(self._event_shape))
            y = where(here, y, self.support.interior(y))
            x, ladj = whole._inverse_and_ladj(y)
        # The base masks for itself: a codomain can be wider than the image of the base's support.
        lp = self._density_of_pair(x, ladj, False)
        return lp if known else where(ends, lp, -math.inf)

    def sample_and_log_prob(
        self, sample_shape: SizeLike = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a draw and its log density, computed from the draw's pre-image."""
        if self._beneath:
            return super().sample_and_log_prob(sample_shape, generator)
        base = self.base_dist
        if self._expanded is not None:
            shape = self._transform.inverse_shape((*self._batch_shape, *self._event_shape))
            base = base.expand(shape[: len(shape) - len(base._event_shape)])
        x = base(sample_shape, generator)
        y, ladj = self._transform.call_and_ladj(x)
        return drawn(y, x, self._transform), self._to_batch(self._density_of_pair(x, ladj, True))

    def _increasing(self) -> float | Tensor:
        """Sign of the derivative of the transforms of the line."""
        slope = self._transform.sign
        return slope if not isinstance(slope, Tensor) else sign(slope)

    def _origin(self, y: Tensor) -> Tensor:
        """The x with T(x) = y, of numbers."""
        low = getattr(self.support, "lower_bound", None)
        high = getattr(self.support, "upper_bound", None)
        if low is not None or high is not None:
            # Beyond the bounds the inverse is that of the bound: minus or plus infinity.
            y = clamp(y, low, high)
        return self._transform._inverse(y)

    def _one_of(self, y: Tensor, rising: str, falling: str) -> Tensor:
        """One of two methods of the base: a decreasing map sends P(x <= t) to P(y >= T(t))."""
        x, up = self._origin(y), self._increasing()
        if isinstance(up, Tensor):
            both = (getattr(self.base_dist, name)(x) for name in (rising, falling))
            return where(up > 0.0, *both)
        return getattr(self.base_dist, rising if up > 0.0 else falling)(x)

    def _cdf(self, y: Tensor) -> Tensor:
        return self._one_of(y, "cdf", "survival")

    def _log_cdf(self, y: Tensor) -> Tensor:
        return self._one_of(y, "log_cdf", "log_survival")

    def _survival(self, y: Tensor) -> Tensor:
        return self._one_of(y, "survival", "cdf")

    def _log_survival(self, y: Tensor) -> Tensor:
        return self._one_of(y, "log_survival", "log_cdf")

    def _icdf(self, p: Tensor) -> Tensor:
        p = 0.5 + self._increasing() * (p - 0.5)
        return self._transform(self.base_dist.icdf(p))


explain_calls(globals())
