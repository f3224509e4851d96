"""The orders of dims in memory that PyTorch's functions take, as values of `memory_format=`.

They say how images are to lie in memory for cuDNN and MKL. Here elements lie as operations leave
them and results do not depend on it, so all of them are welcome and none moves anything.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.signatures import explain_calls

__all__ = [
    "channels_last",
    "channels_last_3d",
    "contiguous_format",
    "memory_format",
    "preserve_format",
]


class memory_format:
    """An order of dims in memory, by its name."""

    def __init__(self, name: str, ndim: int = 0) -> None:
        self.name, self._ndim = name, ndim

    def rows_of(self, array: np.ndarray) -> np.ndarray:
        """Return a view whose rows lie one after the other if `array` has this format."""
        ndim = array.ndim
        return array.transpose(0, *range(2, ndim), 1) if ndim == self._ndim else array

    def __repr__(self) -> str:
        return self.name


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last", 4)
channels_last_3d = memory_format("channels_last_3d", 5)

explain_calls(globals())
