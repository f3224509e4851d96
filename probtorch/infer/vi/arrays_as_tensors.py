"""Arrays of NumPy's among the arguments of a step come as tensors, so that each may have others.

Where a model does something else with a tensor than with an array (``y.std()``, ``y /= 2.0``), the
arrays stay what they are: values of Python that are watched.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.compiler.calls.versions import NUMBERS, OBJECTS
from probtorch.core.dispatch import wrap
from probtorch.core.tree import flatten

__all__ = ["ArraysAsTensors"]


class ArraysAsTensors:
    """The choice for one fit; it begins with tensors.

    Attributes
    ----------
    why_not : str
        Why arrays no longer come as tensors; "" where they do.
    """

    def __init__(self) -> None:
        self.why_not = ""

    @property
    def convert(self) -> Callable[[object], object] | None:
        """What is applied to the leaves of arguments; None where they all stay."""
        return None if self.why_not else self.tensor_of

    def tensor_of(self, x: object) -> object:
        """Return a tensor in the place of an array, of the same memory; anything else as it is.

        Nothing is written to it: a step that is recorded may be taken anew with the array itself.
        """
        if not issubclass(type(x), np.ndarray) or x.dtype.kind not in "fiub":  # type: ignore[attr-defined]
            return x
        seen = x.view()  # type: ignore[attr-defined]  # an array by its type
        seen.flags.writeable = False
        return wrap(seen)

    def stand_in(self, inputs: object) -> bool:
        """Whether tensors stand in the place of arrays among the inputs of a step."""
        return not self.why_not and any(self.tensor_of(x) is not x for x in flatten(inputs)[0])

    def retreat(self, reason: str, inputs: object) -> bool:
        """Leave arrays as they are; False where nothing comes of that."""
        if not self.stand_in(inputs) or NUMBERS in reason or OBJECTS in reason:
            return False
        self.why_not = reason
        return True
