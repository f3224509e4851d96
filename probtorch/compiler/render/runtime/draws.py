"""Draws for arrays in native code: samplers (`lang/routines/draws.py`) and bits, in a loop."""

from probtorch.compiler.lang.routines.draws import signature, write_draw
from probtorch.compiler.lang.routines.integers import bits_to_integers
from probtorch.compiler.render.writer import Writer
from probtorch.ops.rejection import SAMPLERS

__all__ = ["integer_signatures", "signatures", "write", "write_integers"]


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
    w = Writer(text, f"pt_draws_{name}", "void", signatures(name)[f"pt_draws_{name}"][1])
    arrays, (seed, stream, counters, into, n) = w.arguments[:count], w.arguments[count:]
    with w.loop(0, n) as i:
        values = [w.load(a, i, "double") for a in arrays]
        counter = w.load(counters, i, "i64")
        x = w.call(f"pt_draw_{name}", "double", *values, seed, stream, counter)
        w.store(into, i, x, "double")
    w.finish()


def integer_signatures():
    """Return the functions for whole numbers.

    ``pt_bits_to_integers`` takes random bits, the lowest number and the count of numbers;
    ``pt_philox_bits`` a seed, a stream, the first counter, an array for the bits of the counters
    from there on, and their number.
    """
    return {
        "pt_bits_to_integers": ("i64", ["i64"] * 3),
        "pt_philox_bits": ("void", ["i64", "i64", "i64", "ptr", "i64"]),
    }


def write_integers(text):
    """Write the module of the functions for whole numbers."""
    w = Writer(text, "pt_philox_bits", "void", integer_signatures()["pt_philox_bits"][1])
    seed, stream, first, into, n = w.arguments
    with w.loop(0, n) as i:
        w.store(into, i, w.philox(seed, stream, first + i), "i64")
    w.finish()
    s = text.function("pt_bits_to_integers", *integer_signatures()["pt_bits_to_integers"])
    s.finish(bits_to_integers(s, *s.arguments))
