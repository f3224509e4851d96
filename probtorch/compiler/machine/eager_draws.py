"""Native code for eager draws, which core/philox.py asks for where loading it is worth it.

The functions are those that compiled programs call, so draws have the same bits as with arrays.
"""

import functools

import numpy as np

from probtorch.compiler.machine import engine
from probtorch.compiler.machine.sequences import SEQUENCES, bits_at, sequence_at
from probtorch.compiler.render.runtime.draws import BLOCK

__all__ = ["native_draws", "native_sampler", "native_sequence"]


@functools.cache
def native_draws(name):
    """Return the native function for "bits", "categories", "uniforms" and their like, or of a
    sampler.
    """
    if name in _OTHERS:
        return _OTHERS[name]()
    return native_sequence(name) if name in SEQUENCES else native_sampler(name)


def native_bits():
    """Return the function of seed, stream, first counter and count that gives an array."""
    return bits_at(engine.runtime_address("pt_philox_bits"))


def native_categories():
    """Return the function of seed, stream, first counter, count, and sums of weights, that gives
    categories.
    """
    function = engine.runtime_function("pt_categories")

    def draw(seed, stream, first, count, sums, below_one):
        out = np.empty(count, np.int64)
        sums = np.ascontiguousarray(sums, np.float64)
        places = out.ctypes.data, count, sums.ctypes.data, sums.size
        function(seed, stream, first, *places, below_one)
        return out

    return draw


_OTHERS = {"bits": native_bits, "categories": native_categories}


def native_sequence(name):
    """Return the function of seed, stream, first counter and count, and of a scale and a shift,
    that gives an array.
    """
    return sequence_at(engine.runtime_address(SEQUENCES[name]))


def native_sampler(name):
    """Return the function of seed, stream, counters and parameters, as `ops.rejection.draw` has
    them, that gives draws.
    """
    function = engine.runtime_function(f"pt_draws_{name}")
    one = engine.runtime_function(f"pt_draw_{name}")

    def draw(seed, stream, counters, *parameters):
        listed = isinstance(counters, np.ndarray)
        out = np.empty(parameters[0].shape)
        if not out.size:
            return out
        if out.size == 1:
            first = counters.item() if listed else counters
            out[...] = one(*(p.item() for p in parameters), seed, stream, first)
            return out
        # What is the same for all is read again in each block.
        steps = [int(any(p.strides)) for p in parameters]
        arrays = [
            np.ascontiguousarray(p, np.float64) if step else np.full(BLOCK, p.flat[0], np.float64)
            for p, step in zip(parameters, steps, strict=True)
        ]
        places = (a.ctypes.data for a in arrays)
        if listed:
            counters = np.ascontiguousarray(counters)
        which = (1, counters.ctypes.data, 0) if listed else (0, None, counters)
        function(*places, *steps, seed, stream, *which, out.ctypes.data, out.size)
        return out

    return draw
