"""Draws by rejection in native code: the formulas of ops/rejection.py, written as text.

Arithmetic carries no flags, so each operation is rounded by itself, as NumPy rounds it: a draw has
the bits of the eager one. For parameters that are not allowed the result is nan.
"""

import math
import struct

from probtorch.compiler.render.algebra import V
from probtorch.compiler.render.writer import Writer
from probtorch.core.rng import INCREMENTS, MULTIPLIERS, ROUNDS
from probtorch.ops.rejection import SAMPLERS, STREAM_KEY

__all__ = ["integer_signatures", "signatures", "write", "write_integers"]


def signatures(name):
    """Return the functions of a sampler.

    ``pt_draw_NAME`` takes the parameters, seed, stream and counter of one draw. ``pt_draws_NAME``
    takes arrays of the parameters, seed and stream, an array of counters, an array for the
    results, and their number.
    """
    count = SAMPLERS[name].arity
    return {
        f"pt_draw_{name}": ("double", ["double"] * count + ["i64"] * 3),
        f"pt_draws_{name}": ("void", ["ptr"] * count + ["i64", "i64", "ptr", "ptr", "i64"]),
    }


def write(text, name):
    """Write the module of a sampler."""
    _write_philox_pair(text)
    sampler = SAMPLERS[name]
    count = sampler.arity
    types = signatures(name)[f"pt_draw_{name}"][1]
    s = Draw(text, f"pt_draw_{name}", "double", types, flags="")
    parameters, (seed, stream, counter) = s.arguments[:count], s.arguments[count:]
    s.key = seed ^ _signed(STREAM_KEY)
    s.stream = s.philox(seed, stream, counter)
    out = s.variable("double", math.nan)
    with s.when(sampler.allows(s, *parameters)):
        out.value = sampler.formula(s, *parameters)
    s.finish(out.value)

    w = Writer(text, f"pt_draws_{name}", "void", signatures(name)[f"pt_draws_{name}"][1])
    arrays, (seed, stream, counters, into, n) = w.arguments[:count], w.arguments[count:]
    with w.loop(0, n) as i:
        values = [w.load(a, i, "double") for a in arrays]
        counter = w.load(counters, i, "i64")
        x = w.call(f"pt_draw_{name}", "double", *values, seed, stream, counter)
        w.store(into, i, x, "double")
    w.finish()


def _write_philox_pair(text):
    """Write Philox of a key, stream and counter: one half of the block is the result, the other is
    written to a pointer. `core/rng.py` has the twin for arrays.
    """
    w = Writer(text, "philox_pair", "i64", ["i64", "i64", "i64", "ptr"], linkage="internal ")
    key, stream, counter, high = w.arguments
    low = 0xFFFFFFFF

    def upper(x):
        return w.emit(f"lshr i64 {x.name}, 32", "i64")

    k0, k1 = key & low, upper(key)
    c0, c1, c2, c3 = counter & low, upper(counter), stream & low, upper(stream)
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = upper(p1) ^ c1 ^ k0, p1 & low, upper(p0) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + INCREMENTS[0]) & low, (k1 + INCREMENTS[1]) & low
    w.store(high, 0, c2 | (c3 << 32), "i64")
    w.finish(c0 | (c1 << 32))


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
    # low + the high word of bits times count.
    w = Writer(text, "pt_bits_to_integers", "i64", ["i64"] * 3)
    wide = [w.emit(f"zext i64 {x.name} to i128", "i128") for x in (w.arguments[0], w.arguments[2])]
    product = w.emit(f"mul i128 {wide[0].name}, {wide[1].name}", "i128")
    high = w.emit(f"lshr i128 {product.name}, 64", "i128")
    w.finish(w.emit(f"trunc i128 {high.name} to i64", "i64") + w.arguments[1])


def _signed(word):
    """Return an unsigned 64-bit number as the signed one of the same bits."""
    return word - (1 << 64) if word >> 63 else word


class Draw(Writer):
    """The algebra of samplers as text; `key` and `stream` name the element's random words."""

    key: V
    stream: V

    def counting(self, like):
        """Return the number of the first attempt."""
        return self.whole(0)

    def uniforms(self, n):
        """Return the n-th pair of uniform numbers."""
        high = self.variable("i64")
        cell = V(high.name, "ptr", self)
        first = self.call("philox_pair", "i64", self.key, self.stream, self.whole(n), cell)
        return self.bits_to_uniform(first), self.bits_to_uniform(high.value)

    def split(self, x):
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m, for positive normal x."""
        one, root = 1023 << 52, _bits(math.sqrt(0.5))
        bits = self.emit(f"bitcast double {x.name} to i64", "i64")
        # Moved up by 1 - sqrt(1/2), in steps of the last place, the exponent field is that of m's.
        moved = bits + (one - root)
        k = self.convert((moved >> 52) - 1023, "double")
        m = (moved & ((1 << 52) - 1)) + root
        return k, self.emit(f"bitcast i64 {m.name} to double", "double")

    def power_of_two(self, n):
        """Return 2**n for whole n in the range of normal exponents."""
        bits = (self.convert(n, "i64") + 1023) << 52
        return self.emit(f"bitcast i64 {bits.name} to double", "double")

    def choose(self, condition, yes, no, operands):
        """Branch: the result of ``yes(s, *operands)`` or of ``no(s, *operands)``."""
        out = self.variable("double")
        first, second = self.branch(condition)
        with first:
            out.value = yes(self, *operands)
        with second:
            out.value = no(self, *operands)
        return out.value

    def either(self, condition, test, operands):
        """Whether `condition` holds, or else ``test(s, *operands)``."""
        out = self.variable("i1", condition)
        with self.when(self.logical_not(condition)):
            out.value = test(self, *operands)
        return out.value

    def until(self, step, state, operands=()):
        """Repeat ``done, state = step(s, *state, *operands)`` until it is done."""
        cells = [self.variable(x.ty, x) for x in state]
        done = self.variable("i1", 0)
        with self.repeat_while(lambda: self.logical_not(done.value)):
            finished, following = step(self, *(c.value for c in cells), *operands)
            done.value = finished
            for cell, x in zip(cells, following, strict=True):
                cell.value = x
        return tuple(c.value for c in cells)


def _bits(x):
    """The integer of a double's bits."""
    return int.from_bytes(struct.pack("<d", x), "little")
