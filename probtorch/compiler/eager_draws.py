"""Native code for eager draws, which core/rng.py loads where that is worth it.

The functions are those that compiled programs call, so draws have the same bits as with arrays. On
one core, a million uniforms take 12 ms (with arrays 40), fifty normals 14 us (94), a gamma draw
0.08 us (0.5).
"""

import ctypes
import functools

import numpy as np

from probtorch.compiler import engine
from probtorch.core import doors
from probtorch.ops.rejection import SAMPLERS

__all__ = ["native_bits", "native_function", "native_sampler"]

_POINTER, _WORD = ctypes.c_void_p, ctypes.c_int64


@doors.native_draws.fill
@functools.cache
def native_function(name):
    """Return the native function for random bits ("bits") or of a sampler."""
    return native_bits() if name == "bits" else native_sampler(name)


def native_bits():
    """Return the function of seed, stream, first counter and count that gives random bits."""
    types = _WORD, _WORD, _WORD, _POINTER, _WORD
    function = ctypes.CFUNCTYPE(None, *types)(engine.runtime_address("pt_philox_bits"))

    def bits(seed, stream, first, count):
        out = np.empty(count, np.uint64)
        function(seed, stream, first, out.ctypes.data, count)
        return out

    return bits


def native_sampler(name):
    """Return the function of seed, stream, counters and flat parameters that gives draws."""
    count = SAMPLERS[name].arity
    types = [*[_POINTER] * count, _WORD, _WORD, _POINTER, _POINTER, _WORD]
    function = ctypes.CFUNCTYPE(None, *types)(engine.runtime_address(f"pt_draws_{name}"))

    def draw(seed, stream, counters, *parameters):
        arrays = [np.ascontiguousarray(p, np.float64) for p in parameters]
        counters = np.ascontiguousarray(counters)
        out = np.empty(counters.size)
        places = (a.ctypes.data for a in arrays)
        function(*places, seed, stream, counters.ctypes.data, out.ctypes.data, out.size)
        return out

    return draw
