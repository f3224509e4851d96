"""Draws for arrays in native code: samplers (`lang/routines/draws.py`) and bits, in a loop."""

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.routines.draws import signature, write_draw
from probtorch.compiler.lang.routines.integers import bits_to_integers
from probtorch.ops.rejection import SAMPLERS

__all__ = ["INTEGERS", "signatures", "write"]


def signatures(name):
    """Return the functions of a sampler.

    ``pt_draw_NAME`` takes the parameters, seed, stream and counter of one draw. ``pt_draws_NAME``
    takes arrays of the parameters, seed and stream, an array of counters, an array for the
    results, and their number.
    """
    count = SAMPLERS[name].arity
    return {
        f"pt_draw_{name}": signature(name),
        f"pt_draws_{name}": ("void", ["ptr"] * count + ["i64", "i64", "ptr", "ptr", "i64"]),
    }


def write(text, name):
    """Write the module of a sampler."""
    write_draw(text, name)
    count = SAMPLERS[name].arity
    w = text.function(f"pt_draws_{name}", *signatures(name)[f"pt_draws_{name}"])
    arrays, (seed, stream, counters, into, n) = w.arguments[:count], w.arguments[count:]
    with w.loop(0, n) as i:
        values = [w.load(a, i, "double") for a in arrays]
        counter = w.load(counters, i, "i64")
        x = w.call(f"pt_draw_{name}", "double", *values, seed, stream, counter)
        w.store(into, i, x, "double")
    w.finish()


def _philox_bits(w, seed, stream, first, into, n):
    """Random bits of the counters from `first` on."""
    with w.loop(0, n) as i:
        w.store(into, i, w.philox(seed, stream, first + i), "i64")


INTEGERS = {
    "pt_philox_bits": KernelRoutine(_philox_bits, ("i64", "i64", "i64", "ptr", "i64"), "void"),
    # Random bits, the lowest number, how many there are.
    "pt_bits_to_integers": KernelRoutine(bits_to_integers, ("i64",) * 3, "i64"),
}
