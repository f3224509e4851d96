"""What a recorded call keeps of its arguments: `Links`, from stand-ins to the caller's tensors.

A function is recorded on stand-ins for some of its arguments (`versions.stand_ins`). If the
recording comes to nothing, its results are used all the same, and what it stored elsewhere
(``cache.append((x,))``, ``self.seen = x``) stays there. So a stand-in becomes what ``x.view_as(x)``
would be: another tensor with the caller's memory, through which gradients reach the caller's.
"""

from __future__ import annotations

from probtorch.autograd.modes import enable_grad
from probtorch.core.dispatch import TapeNode, mark_changed
from probtorch.core.op import Operand
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.movement import another

__all__ = ["Links", "let_stay"]


class _Staying(TapeNode):
    """An entry of the tape that backward passes do not free: what leads to a leaf is there as often
    as the leaf is.
    """

    __slots__ = ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        found: tuple[Operand, ...] = _INPUTS.__get__(self)
        return found

    @inputs.setter
    def inputs(self, items: tuple[Operand, ...] | None) -> None:
        """Leave them as they are."""


_INPUTS = vars(TapeNode)["inputs"]


def let_stay(view: TensorBase, t: TensorBase) -> None:
    """Let the entries of the tape between a leaf and a view of all of it stay."""
    x = view
    while t.grad_fn is None and x is not t and x.grad_fn is not None:
        x.grad_fn.__class__ = _Staying
        (below,) = x.grad_fn.inputs
        assert isinstance(below, TensorBase)  # of which `another` makes a view
        x = below


class Links:
    """The stand-ins of one recording, and the caller's tensors.

    Parameters
    ----------
    given : list of Tensor
        What the function is called with.
    tensors : list of Tensor
        The caller's.
    """

    def __init__(self, given: list[TensorBase], tensors: list[TensorBase]) -> None:
        self._pairs = [(s, t) for s, t in zip(given, tensors, strict=True) if s is not t]
        # Older on the tape than what is made of the stand-ins, so that all of that comes first.
        with enable_grad():
            self._ways = [another(t) if t.requires_grad else None for _, t in self._pairs]

    def callers(self, x: object) -> object:
        """Return the caller's tensor for a stand-in, anything else as it is."""
        return next((t for s, t in self._pairs if s is x), x)

    def note_changes(self) -> None:
        """Let the tape know of caller's tensors whose memory the call changed in place."""
        changed = [t for s, t in self._pairs if s._version]
        if changed:
            mark_changed(*changed)

    def close(self) -> None:
        """Let gradients through, and let changes of the caller's memory be known of stand-ins."""
        for (s, t), way in zip(self._pairs, self._ways, strict=True):
            if way is not None:
                let_stay(way, t)
                s.grad_fn, s._index, s.requires_grad = way.grad_fn, way._index, True
            s._base = t if t._base is None else t._base
            s._extra = {**(s._extra or {}), "root": None}
