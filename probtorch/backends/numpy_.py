"""The CPU backend: NumPy, with SciPy's special functions.

The functions are those every backend has; see `registry.py`. They are imported when first asked
for, because a program that needs none should not wait for them.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

__all__ = [
    "address",
    "device_of",
    "namespace",
    "owns",
    "special",
    "to_host",
    "unavailable_reason",
]

_SCALARS = (bool, int, float, complex, np.generic)


def owns(array: object) -> bool:
    """Whether `array` is a NumPy array or a number."""
    return isinstance(array, (np.ndarray, *_SCALARS))


def address(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    return array.ctypes.data


def namespace() -> ModuleType:
    """Return NumPy."""
    return np


def unavailable_reason(index: int | None) -> str | None:
    """Return None: there is always a CPU."""
    return None


def device_of(array: np.ndarray) -> str:
    """Return "cpu"."""
    return "cpu"


def to_host(array: np.ndarray) -> np.ndarray:
    """Return `array` itself, or a 0-d array for a number."""
    return np.asarray(array)


def special() -> ModuleType:
    """Return `scipy.special`."""
    import scipy.special

    return scipy.special
