"""Native code for eager operations: the door through which they reach the compiler.

Two kinds are asked for by name: functions that make many draws (`core/philox.py` decides when
loading them is worth it), and ufuncs for rows (`ops/rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.core import doors

__all__ = ["native_function"]

# The door that compiler/machine/eager_code.py fills: from a name to a function, or to None.
_find: Callable[[str], Callable[..., np.ndarray] | None] | None = None


def native_function(name: str) -> Callable[..., np.ndarray] | None:
    """Return the native function of a name, None where there is no native code."""
    find = doors.native_code.open() if _find is None else _find
    return find(name)
