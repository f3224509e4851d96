"""`TransformedDistribution`: the distribution of T(x) for x from a base."""

import math

from probtorch.core.dispatch import grad_enabled, recorder
from probtorch.distributions import constraints
from probtorch.distributions.distribution import (
    Distribution,
    known_true,
    sum_rightmost,
    with_event_dims,
)
from probtorch.distributions.transforms.transform import ComposeTransform, Transform
from probtorch.errors import ArgumentError
from probtorch.ops.elementwise import clamp, isfinite, sign, where
from probtorch.ops.reduction import all as every

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """Distribution of T(x) for x from `base_distribution`.

    Parameters
    ----------
    base_distribution : Distribution
    transforms : Transform or sequence of Transform
        Applied in this order. They must be bijective for a density, and differentiable for
        `rsample`.

    Notes
    -----
    `log_prob` inverts the transforms; `sample_and_log_prob` uses the pre-image of the
    draw it makes, which also serves where the inverse has lost it (tanh at 20 is 1 in float32). A
    sample statement does so too for transforms that are costly to invert; see `remembering`.
    """

    __tree_fields__ = ("base_dist",)
    __static_fields__ = ("transforms", "_expanded", "_validate_args", "_weak")

    def __init__(self, base_distribution, transforms, *, validate_args=None):
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

    @classmethod
    def _from_tree(cls, values):
        return cls(*values.values())

    def _tree_names(self):
        return ("base_dist", "transforms")

    @constraints.dependent_property
    def support(self):
        """The codomain of the last transform, over the event dims."""
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        extra = len(self._event_shape) - support.event_dim
        return constraints.independent(support, extra) if extra else support

    @property
    def has_rsample(self):
        """As the base."""
        return self.base_dist.has_rsample

    def remembering(self):
        """Return a copy that knows the density of its last draw, if inverting it is costly."""
        if not self._transform.costly_inverse:
            return self
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, _remembers=True)
        return out

    # The last draw, its density, and whether that is on the tape; only for copies that remember.
    _remembers, _last = False, None

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "_last"}

    def _rsample(self, rng, shape):
        x = self.base_dist._rsample(rng, self._transform.inverse_shape(shape))
        if not self._remembers:
            return self._transform(x)
        y, ladj = self._transform.call_and_ladj(x)
        self._last = y, self._density_of_pair(x, ladj, True), grad_enabled()
        return y

    def _sample(self, rng, shape):
        return self._transform(self.base_dist._sample(rng, self._transform.inverse_shape(shape)))

    def _density_of_pair(self, x, ladj, inside):
        base = self.base_dist
        dims = len(self._event_shape) - self._transform.codomain.event_dim
        return base._to_batch(base._density(x, inside)) - sum_rightmost(ladj, dims)

    def _log_prob(self, y):
        # The very tensor that was drawn, with its tape: an equal one may be a leaf.
        if self._last is not None and self._last[0] is y and self._last[2] >= grad_enabled():
            return self._last[1]
        whole = self._transform
        x, ladj = whole._inverse_and_ladj(y)
        # A boundary of the codomain comes from infinity, where the base has no density left.
        n = len(self.base_dist._event_shape)
        ends = every(isfinite(x), tuple(range(-n, 0))) if n else isfinite(x)
        known = known_true(ends)
        if not known and recorder() is None:
            here = with_event_dims(ends, len(self._event_shape))
            y = where(here, y, self.support.interior(y))
            x, ladj = whole._inverse_and_ladj(y)
        # The base masks for itself: a codomain can be wider than the image of the base's support.
        lp = self._density_of_pair(x, ladj, False)
        return lp if known else where(ends, lp, -math.inf)

    def sample_and_log_prob(self, sample_shape=(), generator=None):
        """Return a draw and its log density, computed from the draw's pre-image."""
        base = self.base_dist
        if self._expanded is not None:
            shape = self._transform.inverse_shape((*self._batch_shape, *self._event_shape))
            base = base.expand(shape[: len(shape) - len(base._event_shape)])
        x = base(sample_shape, generator)
        y, ladj = self._transform.call_and_ladj(x)
        return y, self._to_batch(self._density_of_pair(x, ladj, True))

    def _increasing(self):
        """Sign of the derivative of the transforms of the line."""
        slope = self._transform.sign
        return slope if not hasattr(slope, "_data") else sign(slope)

    def _cdf(self, y):
        low = getattr(self.support, "lower_bound", None)
        high = getattr(self.support, "upper_bound", None)
        if low is not None or high is not None:
            # Beyond the bounds the inverse is that of the bound: minus or plus infinity.
            y = clamp(y, low, high)
        p = self.base_dist.cdf(self._transform._inverse(y))
        # A decreasing map sends P(x <= t) to P(y >= T(t)).
        return 0.5 + self._increasing() * (p - 0.5)

    def _icdf(self, p):
        p = 0.5 + self._increasing() * (p - 0.5)
        return self._transform(self.base_dist.icdf(p))
