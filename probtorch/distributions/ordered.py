"""Independent draws in ascending order: what names the components of a mixture."""

from __future__ import annotations

import math
import operator
from typing import ClassVar, Self, overload

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.extremes import OrderedReach, Reach
from probtorch.distributions.fields import INSTANCE_STATE, Values
from probtorch.distributions.source import Source
from probtorch.distributions.wrapping import Wrapped
from probtorch.errors import ArgumentError
from probtorch.ops.movement import movedim, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.sorting import sort
from probtorch.tensor import Tensor

__all__ = ["Ordered"]

_SUPPORTS = {
    constraints.real: constraints.ordered_vector,
    constraints.positive: constraints.positive_ordered_vector,
    constraints.nonnegative: constraints.positive_ordered_vector,
}


class Ordered(Wrapped):
    """Distribution of independent draws of one distribution, put in ascending order.

    Density ``f(x) = factorial(size) * prod(base(x))``.

    Use it where the order of components says nothing, as in a mixture: all orders are equally
    probable then, and chains that settle in different ones seem to disagree. With ordered
    locations there is one of them.

    Parameters
    ----------
    base_dist : Distribution
        Continuous, of single numbers: on the real line, above a bound or in an interval, as points
        in time where something changes are. The bound may depend on parameters.
    size : int
        How many draws; the event shape is ``(size,)``.

    Raises
    ------
    ArgumentError
        If there are no such draws.

    Notes
    -----
    The density is ``size!`` times the product of the densities of the draws, where they ascend: an
    `ordered` vector of Stan with independent priors. `sample` sorts.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> bool((Ordered(Normal(0.0, 5.0), 3).sample().diff() > 0.0).all())
    True
    """

    __static_fields__: ClassVar[tuple[str, ...]] = ("size", *INSTANCE_STATE)

    def __init__(
        self, base_dist: Distribution, size: int, *, validate_args: bool | None = None
    ) -> None:
        if isinstance(base_dist.support, constraints.Circular):
            raise ArgumentError(
                "Ordered(base_dist=...)",
                expected="numbers that have an order",
                got=f"{type(base_dist).__name__}, whose values are angles",
                fix="angles have none on a circle: give one of them a place of its own, or order "
                "other parameters of the components",
            )
        if base_dist._event_shape or _ascending(base_dist.support) is None:
            shape = tuple(base_dist._event_shape)
            raise ArgumentError(
                "Ordered(base_dist=...)",
                expected="a continuous distribution of single numbers, on a line or an interval",
                got=f"{type(base_dist).__name__} with support {base_dist.support}"
                + (f" and event shape {shape}" if shape else ""),
                fix="give the distribution of one of the draws, and how many there are as size",
            )
        self.size = _whole(size)
        self._wrap(base_dist, validate_args=validate_args)
        self._set_shapes(
            tuple(base_dist._batch_shape),
            (self.size,),
            dtype=base_dist._dtype,
            device=base_dist._device,
            validate_args=self._validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("base_dist", "size")

    @constraints.dependent_property(event_dim=1)
    def support(self) -> Constraint:
        """Ascending vectors of numbers where the draws are."""
        found = _ascending(self.base_dist.support)
        assert found is not None  # checked when it was made
        return found

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        drawn = self.base_dist._rsample(rng, (self.size, *shape[:-1]))
        return sort(movedim(drawn, 0, -1), -1)[0]

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        drawn = self.base_dist._sample(rng, (self.size, *shape[:-1]))
        return sort(movedim(drawn, 0, -1), -1)[0]

    def _log_prob(self, x: Tensor) -> Tensor:
        base = self.base_dist
        # The dim of the draws goes in front of all batch dims, those that x leaves out too.
        for _ in range(len(base._batch_shape) + 1 - len(x.array.shape)):
            x = unsqueeze(x, 0)
        each = base._to_batch(base._density(movedim(x, -1, 0), True))
        return total(each, 0) + math.lgamma(self.size + 1)


def _ascending(support: Constraint) -> Constraint | None:
    """The vectors of ascending numbers of a set, if it is a line or an interval."""
    if support in _SUPPORTS:
        return _SUPPORTS[support]
    within: constraints.Interval | constraints.GreaterThan
    if isinstance(support, constraints.Interval):
        low, high = _of_elements(support.lower_bound), _of_elements(support.upper_bound)
        within = type(support)(low, high)
    elif isinstance(support, constraints.GreaterThan):
        within = constraints.greater_than(_of_elements(support.lower_bound))
    elif isinstance(support, Reach):
        loc, scale = _of_elements(support.loc), _of_elements(support.scale)
        reach = Reach(loc, scale, _of_elements(support.concentration), support.floor)
        return OrderedReach(reach)
    else:
        return None
    return constraints.ordered_within(within)


@overload
def _of_elements(bound: Tensor) -> Tensor: ...
@overload
def _of_elements(bound: float | Tensor) -> float | Tensor: ...
def _of_elements(bound: float | Tensor) -> float | Tensor:
    """A bound of a batch, for all elements of its vectors."""
    return unsqueeze(bound, -1) if isinstance(bound, TensorBase) and bound.array.ndim else bound


def _whole(size: int) -> int:
    try:
        count = operator.index(size)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentError(
            "Ordered(size=...)",
            expected="a whole number of draws, at least 1",
            got=repr(size),
            fix="pass size=2",
        )
    return count


explain_calls(globals())
