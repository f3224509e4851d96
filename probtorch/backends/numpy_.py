"""The CPU backend: NumPy, with SciPy's special functions.

The functions are those every backend has; see `registry.py`. They are imported when first asked
for, because a program that needs none should not wait for them.
"""

from typing import Any

import numpy as np

__all__ = [
    "contiguous",
    "device_of",
    "namespace",
    "owns",
    "special",
    "to_host",
    "unavailable_reason",
]

_SCALARS = (bool, int, float, complex, np.generic)


def owns(array: Any) -> bool:
    """Whether `array` is a NumPy array or a number."""
    return isinstance(array, (np.ndarray, *_SCALARS))


def namespace() -> Any:
    """Return NumPy."""
    return np


def unavailable_reason(index: int | None) -> str | None:
    """Return None: there is always a CPU."""
    return None


def contiguous(array: Any) -> np.ndarray:
    """Return the array in row-major order: itself if it is, else a copy."""
    return np.asarray(array, order="C")


def device_of(array: Any) -> str:
    """Return "cpu"."""
    return "cpu"


def to_host(array: Any) -> np.ndarray:
    """Return `array` itself, or a 0-d array for a number."""
    return np.asarray(array)


def special() -> Any:
    """Return `scipy.special`."""
    import scipy.special

    return scipy.special
