"""`room`: memory for the rows that the turns of a loop write, all of them.

Eagerly it is zeros. A compiled loop fills no memory that it writes anyway, so there the elements
are whatever was there before: nobody may read one that has not been written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import apply
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.families import structured

if TYPE_CHECKING:
    from probtorch.core.typed import DType, Shape

__all__ = ["room"]


def _run_room(x: np.ndarray, shape: Shape, dtype: DType, number: int) -> np.ndarray:
    return namespace(x).zeros(shape, dtype)


_ROOM = structured(
    "room",
    "control",
    run=_run_room,
    # Of no elements: those of a compiled one may be anything.
    samples=lambda rng: [
        ((rng.standard_normal(3),), {"shape": (0, 3), "dtype": np.dtype("float64"), "number": 0})
    ],
    reference=lambda x, shape, dtype, number: np.zeros(shape, dtype),
    doc="Memory that is written before it is read, beside a tensor on the same device.",
)


def room(like: TensorBase, shape: Shape, dtype: DType, number: int) -> TensorBase:
    """Return memory on the device of `like`; what one loop needs has different numbers."""
    return apply(_ROOM, (like,), {"shape": shape, "dtype": dtype, "number": number})
