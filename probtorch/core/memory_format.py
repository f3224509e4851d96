"""The orders of dims in memory that PyTorch's functions take, as values of `memory_format=`.

They say how images are to lie in memory for cuDNN and MKL. Here elements lie as operations leave
them and results do not depend on it, so all of them are welcome and none moves anything.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError

__all__ = [
    "channels_last",
    "channels_last_3d",
    "contiguous_format",
    "lies_in",
    "memory_format",
    "preserve_format",
]


class memory_format:
    """An order of dims in memory, by its name."""

    def __init__(self, name: str, ndim: int = 0) -> None:
        self.name, self.ndim = name, ndim

    def __repr__(self) -> str:
        return self.name


def lies_in(array: np.ndarray, format: memory_format) -> bool:
    """Whether the elements of an array lie in a format, with nothing between them."""
    if not isinstance(format, memory_format):
        raise ArgumentError(
            "is_contiguous",
            expected="a memory format",
            got=f"{format!r:.60}",
            fix="is_contiguous(memory_format=probtorch.channels_last)",
        )
    if format.ndim:
        if array.ndim != format.ndim:
            return False
        array = array.transpose(0, *range(2, array.ndim), 1)
    return bool(array.flags.c_contiguous)


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last", 4)
channels_last_3d = memory_format("channels_last_3d", 5)

explain_calls(globals())
