"""Which arguments of a step come as tensors, so that each compiled step may have other numbers.

Arrays of NumPy's do from the start; Python's floats, such as the weight of a prior that grows from
step to step, once they have changed. Where a model does something else with a tensor than with what
stood there (``y.std()``, ``isinstance``), they stay what they are: values of Python that are
watched.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.compiler.calls.versions import NUMBERS
from probtorch.core.dispatch import wrap
from probtorch.core.tree import flatten

__all__ = ["NumbersAsTensors"]

# Changes of floats from one step to the next, after which they come as tensors.
MAX_CHANGES = 2


class NumbersAsTensors:
    """The choice for one fit; it begins with arrays.

    Attributes
    ----------
    why_not : str
        Why arrays, or floats, no longer come as tensors; "" where they do.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._arrays, self._floats, self._floats_fail = True, False, False
        self._last: list[float] | None = None
        self._changes = 0

    @property
    def convert(self) -> Callable[[object], object] | None:
        """What is applied to the leaves of arguments; None where they all stay."""
        return self.tensor_of if self._arrays or self._floats else None

    def tensor_of(self, x: object) -> object:
        """Return a tensor in the place of an array (on the same memory) or a float, or `x`."""
        kind = type(x)
        if self._floats and kind is float:
            return wrap(np.asarray(x))
        if self._arrays and issubclass(kind, np.ndarray) and x.dtype.kind in "fiub":  # type: ignore[attr-defined]
            return wrap(x)  # type: ignore[arg-type]  # an array by its type
        return x

    def stand_in(self, inputs: object) -> bool:
        """Whether tensors stand in the place of anything among the inputs of a step."""
        return any(self.tensor_of(x) is not x for x in flatten(inputs)[0])

    def floats_change(self, leaves: list[object]) -> bool:
        """Note the floats of a step; whether they come as tensors from now on."""
        if self._floats or self._floats_fail:
            return False
        now = [x for x in leaves if type(x) is float]
        if self._last is not None and len(now) == len(self._last) and now != self._last:
            self._changes += 1
        self._last = now
        self._floats = self._changes >= MAX_CHANGES
        return self._floats

    def retreat(self, reason: str, inputs: object) -> bool:
        """Leave what comes as tensors as it is, floats first; False where nothing does."""
        if not self.stand_in(inputs) or (self._floats_fail and NUMBERS in reason):
            return False
        if self._floats:
            self._floats, self._floats_fail = False, True
        else:
            self._arrays, self.why_not = False, reason
        return True
