"""Calls of native code for random bits and numbers at consecutive counters.

They need the address of the code alone, so where it lies in the cache nothing else of the compiler
is imported.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

__all__ = ["SEQUENCES", "bits_at", "sequence_at"]

_POINTER, _WORD, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
# What there is of numbers: the native function, in a module of the same name.
SEQUENCES = {"uniforms": "pt_uniforms", "normals": "pt_normals", "exponentials": "pt_exponentials"}


def _place(array: np.ndarray) -> int:
    """Where the elements of a new array are; `array.ctypes` takes 2 us to say so."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # it is a buffer


def bits_at(address: int) -> Callable[..., np.ndarray]:
    """Return the function of seed, stream, first counter and count that gives random bits."""
    function = ctypes.CFUNCTYPE(None, _WORD, _WORD, _WORD, _POINTER, _WORD)(address)

    def draw(seed: int, stream: int, first: int, count: int) -> np.ndarray:
        out = np.empty(count, np.uint64)
        if count:
            function(seed, stream, first, _place(out), count)
        return out

    return draw


def sequence_at(address: int) -> Callable[..., np.ndarray]:
    """Return the function of seed, stream, first counter and count, and of a scale and a shift,
    that gives numbers.
    """
    types = _WORD, _WORD, _WORD, _POINTER, _WORD, _NUMBER, _NUMBER
    function = ctypes.CFUNCTYPE(None, *types)(address)

    def draw(
        seed: int, stream: int, first: int, count: int, scale: float = 1.0, shift: float = 0.0
    ) -> np.ndarray:
        out = np.empty(count)
        if count:
            function(seed, stream, first, _place(out), count, scale, shift)
        return out

    return draw
