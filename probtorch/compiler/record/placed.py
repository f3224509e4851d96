"""Tensors outside in whose place others come: a replay reads the one that is there by then.

A state that is carried from call to call is another tensor in the same entry of a dict, attribute,
item of a list or variable each time. Where that was seen (`calls/varying.py`), a recording knows
what is there as a `PlacedTensor`, by its place, as it knows a `.grad` by its leaf. It fits any
plain tensor of the same form: one of which Python can ask nothing but its form and its elements.
"""

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.core.tensor_base import TensorBase
from probtorch.tensor import Tensor

__all__ = ["PlacedTensor", "is_plain"]

# What is kept with a tensor because it shares memory with others.
_OF_VIEWS = {"root", "views"}


def is_plain(x):
    """Whether all that Python can ask of a tensor is its form and its elements, besides who it is:
    it is off the tape, has no gradient or hook, and comes from no number.
    """
    return (
        type(x) is Tensor
        and not x.requires_grad
        and x.grad_fn is None
        and x._grad is None
        and (x._extra is None or x._extra.keys() <= _OF_VIEWS)
    )


class PlacedTensor(TensorBase):
    """The tensor that is in a place when it is asked for: one tensor outside, for a recording.

    Parameters
    ----------
    table, key
        ``table[key]`` is a plain tensor now.
    """

    __slots__ = ("_form", "first", "key", "table")

    def __init__(self, table, key):
        self.table, self.key, self.first = table, key, table[key]
        self._form = self._of(self.first)
        self.requires_grad, self.grad_fn, self._grad = False, None, None
        self._base, self._version, self._index, self._extra = None, 0, 0, None

    @staticmethod
    def _of(t):
        return t.array.shape, t.array.dtype, device_of(t.array)

    @property
    def now(self):
        """What is in the place now, None where there is nothing."""
        try:
            return self.table[self.key]
        except (LookupError, ValueError, AttributeError):
            return None

    @property
    def array(self):  # type: ignore[override]  # nobody sets it: another tensor is put there
        """The elements of the tensor that is there now. Where none is that `fits`, no path that
        knows of it does; a look at its form finds that of the recording.
        """
        t = self.now
        return t.array if isinstance(t, TensorBase) else np.zeros(*self._form[:2])

    def fits(self):
        """Whether what is there now can take the place of what was recorded."""
        t = self.now
        return is_plain(t) and self._of(t) == self._form

    def settle(self):
        """Forget the tensor that was recorded."""
        self.first = None
