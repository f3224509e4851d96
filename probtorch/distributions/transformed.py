"""`TransformedDistribution`: the distribution of T(x) for x from a base."""

from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution, sum_rightmost
from probtorch.distributions.transforms.transform import ComposeTransform, Transform
from probtorch.errors import ArgumentError
from probtorch.ops.elementwise import sign

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """Distribution of T(x) for x from `base_distribution`.

    Parameters
    ----------
    base_distribution : Distribution
    transforms : Transform or sequence of Transform
        Applied in this order. They must be bijective for a density, and differentiable for
        `rsample`.

    Notes ----- `log_prob` inverts the transforms; `sample_and_log_prob` uses the pre-image of the
    draw it makes, which also serves where the inverse has lost it (tanh at 20 is 1 in float32).
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
        base, n = base_distribution, len(base_distribution._event_shape)
        extra = whole.domain.event_dim - n
        if transforms and extra > 0:
            base = _grown(base, whole, extra).to_event(extra)
        shape = whole.forward_shape((*base._batch_shape, *base._event_shape))
        change = whole.codomain.event_dim - whole.domain.event_dim
        event = len(base._event_shape) + (change if transforms else 0)
        self.base_dist = base
        self._set_shapes(
            shape[: len(shape) - event],
            shape[len(shape) - event :],
            dtype=base._dtype,
            validate_args=base._validate_args if validate_args is None else validate_args,
        )

    @classmethod
    def _from_tree(cls, values):
        return cls(*values.values())

    def _tree_names(self):
        return ("base_dist", "transforms")

    @property
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

    def _rsample(self, rng, shape):
        return self._transform(self.base_dist._rsample(rng, self._transform.inverse_shape(shape)))

    def _sample(self, rng, shape):
        return self._transform(self.base_dist._sample(rng, self._transform.inverse_shape(shape)))

    def _density_of_pair(self, x, y, ladj, inside):
        base, whole = self.base_dist, self._transform
        dims = len(self._event_shape) - whole.codomain.event_dim
        return base._to_batch(base._density(x, inside)) - sum_rightmost(ladj, dims)

    def _log_prob(self, y):
        # The base masks for itself: a codomain can be wider than the image of the base's support.
        x = self._transform._inverse(y)
        return self._density_of_pair(x, y, self._transform.log_abs_det_jacobian(x, y), False)

    def sample_and_log_prob(self, sample_shape=(), generator=None):
        """Return a draw and its log density, computed from the draw's pre-image."""
        base = self.base_dist
        if self._expanded is not None:
            pad = len(self._batch_shape) + len(self._event_shape)
            shape = self._transform.inverse_shape((*self._batch_shape, *self._event_shape))
            base = base.expand(shape[: len(shape) - len(base._event_shape)]) if pad else base
        x = base(sample_shape, generator)
        y, ladj = self._transform.call_and_ladj(x)
        return y, self._to_batch(self._density_of_pair(x, y, ladj, True))

    def _increasing(self):
        """Sign of the derivative of the transforms of the line."""
        slope = self._transform.sign
        return slope if not hasattr(slope, "_data") else sign(slope)

    def _cdf(self, y):
        p = self.base_dist.cdf(self._transform._inverse(y))
        # A decreasing map sends P(x <= t) to P(y >= T(t)).
        return 0.5 + self._increasing() * (p - 0.5)

    def _icdf(self, p):
        p = 0.5 + self._increasing() * (p - 0.5)
        return self._transform(self.base_dist.icdf(p))


def _grown(base, whole, extra):
    """Expand `base` by dims of size 1 until it has `extra` batch dims to reinterpret."""
    missing = extra - len(base._batch_shape)
    return base.expand_by((1,) * missing) if missing > 0 else base
