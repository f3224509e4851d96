"""The `.grad` of tensors made outside: what a replay reads there, and what it leaves.

A training step clears gradients, adds to them, clips and reads them. While it is recorded, the
first look at a `.grad` says what it has to be at each replay: None (a guard), or a tensor, whoever
that is then. `LeftGradient` stands for that tensor among what a program reads and writes outside.
What is left in the end becomes further outputs, which a replay puts in place as new tensors.
"""

import numpy as np

from probtorch.core.history import edge
from probtorch.core.tensor_base import TensorBase

__all__ = ["LeftGradient", "is_spent"]


class LeftGradient(TensorBase):
    """The gradient that a leaf has when it is asked for: one tensor outside, for a recording."""

    __slots__ = ("_first", "_form", "leaf")

    def __init__(self, leaf):
        self.leaf = leaf
        self._first = leaf._grad.array
        self._form = self._first.shape, self._first.dtype
        self.requires_grad, self.grad_fn, self._grad = False, None, None
        self._base, self._version, self._index, self._extra = None, 0, 0, None

    @property
    def now(self):
        """The gradient that is there now."""
        return self.leaf._grad

    @property
    def array(self):  # type: ignore[override]  # nobody sets it: its leaf has another gradient
        """The elements of the gradient that is there now. Where none is, no path fits that reads
        it; a look at its form finds that of the recording.
        """
        g = self.leaf._grad
        if g is not None:
            return g.array
        return np.zeros(*self._form) if self._first is None else self._first

    def settle(self):
        """Forget the gradient that was recorded."""
        self._first = None


def is_spent(t):
    """Whether the graph of `t` was freed: nobody can go backwards from it any more."""
    seen, todo = set(), [t.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if node.inputs is None:
            return True
        seen.add(node)
        todo += (edge(x, node)[0] for x in node.inputs if isinstance(x, TensorBase))
    return False
