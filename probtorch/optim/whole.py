"""`WholeOptimizer`: one formula per parameter as a whole, for updates that look at rows or norms.

A subclass states the same as one of `optim/elementwise.py`, but `rule` computes with the whole
parameter in Tensor ops, and state may have other shapes. It always takes the loop form, which can
be recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core.dispatch import wrap
from probtorch.core.typed import StateDict
from probtorch.optim.elementwise import ElementwiseOptimizer
from probtorch.optim.typed import Group
from probtorch.tensor import Tensor

__all__ = ["WholeOptimizer"]


class WholeOptimizer(ElementwiseOptimizer):
    """Base of optimizers whose update of an element depends on other elements of its parameter."""

    def shapes(self, group: Group, p: Tensor) -> Mapping[str, tuple[int, ...]]:
        """Return the names and shapes of the state tensors of a parameter; all start from 0."""
        raise NotImplementedError(f"{type(self).__name__} does not define shapes()")

    def _slots_of(self, group: Group, p: Tensor) -> Iterable[str]:
        return self.shapes(group, p)

    def _fresh_slots(self, group: Group, p: Tensor) -> StateDict:
        xp = array_module(p.array)
        return {
            name: wrap(xp.zeros(shape, p.array.dtype))
            for name, shape in self.shapes(group, p).items()
        }

    def _flat(
        self,
        group: Group,
        numbers: tuple[float, ...],
        params: Sequence[Tensor],
        states: Sequence[Mapping[str, np.ndarray]],
    ) -> bool:
        return False
