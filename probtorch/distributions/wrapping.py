"""What distributions made of another distribution have in common.

A wrapper states `_parts`, the names of its parts in the order of its constructor: distributions and
tensors, which are the leaves of its tree. A part that is None is left out.
"""

from __future__ import annotations

from typing import ClassVar, Self

from probtorch.core.dtype import promote_types
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import INSTANCE_STATE, Given, Values, as_parameter
from probtorch.distributions.validation import check_parameter
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import where
from probtorch.ops.special import log1mexp
from probtorch.tensor import Tensor

__all__ = ["Wrapped", "check_whole", "given_or_none", "log_between", "univariate"]


class Wrapped(Distribution):
    """A distribution made of `base_dist`, whose device it has.

    Its dtype is the base's, widened by parts with dims: a draw at a bound is that bound.
    """

    _mass_on_ends = True

    _parts: ClassVar[tuple[str, ...]] = ("base_dist",)
    base_dist: Distribution

    __static_fields__: ClassVar[tuple[str, ...]] = INSTANCE_STATE

    def _wrap(
        self, base: Distribution, *others: Tensor | None, validate_args: bool | None = None
    ) -> None:
        """Set the base, and the shapes: its batch shape broadcast with that of other parts."""
        self.base_dist = base
        shapes, dtype = [tuple(x.array.shape) for x in others if x is not None], base._dtype
        for x in others:
            if x is not None and x.array.ndim and x.array.dtype.kind == "f":
                dtype = x.array.dtype if dtype is None else promote_types(dtype, x.array.dtype)
        self._set_shapes(
            broadcast_shapes(tuple(base._batch_shape), *shapes, op=type(self).__name__),
            base._event_shape,
            dtype=dtype,
            device=base._device,
            validate_args=base._validate_args if validate_args is None else validate_args,
        )

    @property
    def __tree_fields__(self) -> tuple[str, ...]:
        return tuple(n for n in self._parts if _is_leaf(self.__dict__[n]))

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(**{n: values[n] for n in cls._parts if n in values})

    def _tree_names(self) -> tuple[str, ...]:
        return tuple(n for n in self._parts if self.__dict__[n] is not None)

    @property
    def has_rsample(self) -> bool:
        """As the base."""
        return self.base_dist.has_rsample


def _is_leaf(part: object) -> bool:
    return isinstance(part, (TensorBase, Distribution))


def given_or_none(value: Given | None, name: str) -> Tensor | None:
    """Return a part as a tensor, None for one that is left out."""
    return None if value is None else as_parameter(value, name)[0]


def univariate(base: Distribution, owner: str) -> Distribution:
    """Return `base`, refusing distributions of vectors and those without a cdf."""
    if base._event_shape or not hasattr(base, "_cdf"):
        raise ArgumentError(
            owner,
            expected="a distribution of single numbers with a cdf",
            got=type(base).__name__
            + (f" of event shape {tuple(base._event_shape)}" if base._event_shape else ""),
            fix="wrap the univariate distribution, and call to_event afterwards",
        )
    return base


def check_whole(d: Distribution, base: Distribution) -> None:
    """Refuse a base whose listed outcomes are not whole numbers: its steps are taken to be 1."""
    outcomes = getattr(base.support, "outcomes", None)
    if d._validate_args and outcomes is not None:
        owner = f"{type(d).__name__}: {type(base).__name__}"
        check_parameter(owner, "outcomes", outcomes, constraints.integer, d)


def log_between(d: Distribution, low: Tensor | None, high: Tensor | None) -> Tensor:
    """Log probability of (low, high], by the tail in which it keeps its digits."""
    if low is None:
        assert high is not None  # one of the two bounds is given
        return d.log_cdf(high)
    if high is None:
        return d.log_survival(low)
    below, above = d.log_cdf(low), d.log_survival(low)
    upper = below > above
    top = where(upper, above, d.log_cdf(high))
    rest = where(upper, d.log_survival(high), below)
    # Where nothing is cut off the difference is infinite.
    some = rest > -float("inf")
    gap = where(some, top - where(some, rest, 0.0), 1.0)
    return top + where(some, log1mexp(gap), 0.0)
