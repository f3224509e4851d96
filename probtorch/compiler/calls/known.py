"""`KnownOutside`: arguments of a compiled function that it finds elsewhere, too.

Other tensors of a shape are the same version, as are other lists, unless code may ask which one it
has (``x is self.last``) or reach it by another way. Then who it is belongs to the version's key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.calls.rebuilt import boxes
from probtorch.compiler.calls.versions import same_ones

if TYPE_CHECKING:
    from probtorch.compiler.calls.rebuilt import Given
    from probtorch.compiler.guards.environment import Environment
    from probtorch.core.tensor_base import TensorBase

__all__ = ["KnownOutside"]


class KnownOutside:
    """What a function was seen to find outside of its arguments.

    Attributes
    ----------
    ones : dict of int to object
        By its id a tensor or container, where the function may ask which one that is, or it may
        stand among the arguments as well.
    asks : bool
        Whether it may ask.
    """

    def __init__(self) -> None:
        self.ones: dict[int, object] = {}
        self.asks = False

    def who(self, tensors: list[TensorBase], arguments: Given) -> tuple[object, ...] | None:
        """Return which tensors and containers are known from outside of the arguments, and which
        containers are one; None where there are none.
        """
        found = boxes(arguments, everything=self.asks)
        if not self.ones and not self.asks and len(found) < 2:
            return None
        alike = same_ones(found)
        if alike is None and self.ones.keys().isdisjoint(map(id, (*tensors, *found))):
            return None
        known = (id(x) if id(x) in self.ones else None for x in (*tensors, *found))
        return (*known, alike)

    def met(
        self,
        environment: Environment,
        tensors: list[TensorBase],
        arguments: Given,
        key: tuple[object, ...],
    ) -> tuple[object, ...]:
        """Note what is not to be taken for each other; returns the key of a version with it."""
        self.asks |= environment.asks_who
        outside = environment.boxes(everything=self.asks)
        if self.asks or (outside and boxes(arguments)):
            self.ones.update(environment.tensors())
            self.ones.update(outside)
        return (*key[:-1], self.who(tensors, arguments))
