"""Native samplers for eager draws: importing this file hands them to ops/rejection.py.

They are the functions that compiled programs call, so eager draws have the same bits as with NumPy
arrays, in a fifth of the time or less.
"""

import ctypes
import functools

import numpy as np

from probtorch.compiler import engine
from probtorch.ops.rejection import SAMPLERS, use_native

__all__ = ["native_sampler"]


@functools.cache
def native_sampler(name):
    """Return the function of seed, stream, counters and flat parameters that fills an array."""
    count = SAMPLERS[name].arity
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    types = [*[pointer] * count, word, word, pointer, pointer, word]
    function = ctypes.CFUNCTYPE(None, *types)(engine.runtime_address(f"pt_draws_{name}"))

    def draw(seed, stream, counters, *parameters):
        arrays = [np.ascontiguousarray(p, np.float64) for p in parameters]
        counters = np.ascontiguousarray(counters)
        out = np.empty(counters.size)
        places = (a.ctypes.data for a in arrays)
        function(*places, seed, stream, counters.ctypes.data, out.ctypes.data, out.size)
        return out

    return draw


use_native(native_sampler)
