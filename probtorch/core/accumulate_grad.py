"""Where the graph of a backward pass ends, and the steps to there that `next_functions` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.core.tensor_base import TensorBase

if TYPE_CHECKING:
    from probtorch.core.dispatch import TapeNode

__all__ = ["AccumulateGrad", "step_to"]


class AccumulateGrad:
    """Where the graph of a backward pass ends: the leaf whose `.grad` is added to."""

    __slots__ = ("variable",)

    def __init__(self, variable: TensorBase) -> None:
        self.variable = variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccumulateGrad) and other.variable is self.variable

    def __hash__(self) -> int:
        return id(self.variable)

    @property
    def next_functions(self) -> tuple[()]:
        """Nothing: gradients go no further."""
        return ()

    def name(self) -> str:
        """Return "AccumulateGrad"."""
        return "AccumulateGrad"

    def __repr__(self) -> str:
        return f"<AccumulateGrad object at {id(self.variable):#x}>"


def step_to(x: object, epoch: float) -> tuple[TapeNode | AccumulateGrad | None, int]:
    """Where the gradient of an input goes; of what was changed in place since, where it went."""
    if not isinstance(x, TensorBase):
        return None, 0
    node, index, wanted = x.grad_fn, x._index, x.requires_grad
    for until, *place, _ in (x._extra or {}).get("history", ()):
        if epoch < until:
            node, index, wanted = place
            break
    if node is not None:
        return node, index
    return AccumulateGrad(x) if wanted else None, 0
