"""Native code for eager draws, which core/rng.py loads where that is worth it.

The functions are those that compiled programs call, so draws have the same bits as with arrays.
"""

import ctypes
import functools

import numpy as np

from probtorch.compiler import engine
from probtorch.core import doors
from probtorch.ops.rejection import SAMPLERS

__all__ = ["native_function", "native_sampler", "native_sequence"]

_POINTER, _WORD = ctypes.c_void_p, ctypes.c_int64
# What there is for consecutive counters: the native function, and the dtype of what it gives.
_SEQUENCES = {
    "bits": ("pt_philox_bits", np.uint64),
    "uniforms": ("pt_uniforms", np.float64),
    "normals": ("pt_normals", np.float64),
}


@doors.native_draws.fill
@functools.cache
def native_function(name):
    """Return the native function for "bits", "uniforms" or "normals", or of a sampler."""
    return native_sequence(name) if name in _SEQUENCES else native_sampler(name)


def native_sequence(name):
    """Return the function of seed, stream, first counter and count that gives an array."""
    symbol, dtype = _SEQUENCES[name]
    types = _WORD, _WORD, _WORD, _POINTER, _WORD
    function = ctypes.CFUNCTYPE(None, *types)(engine.runtime_address(symbol))

    def draw(seed, stream, first, count):
        out = np.empty(count, dtype)
        function(seed, stream, first, out.ctypes.data, count)
        return out

    return draw


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
