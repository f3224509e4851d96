"""Draws for arrays in native code: bits, uniform and normal numbers, and samplers, in a loop.

Samplers by rejection (`lang/routines/draws.py`) are branches and loops, which go one draw at a
time. Most draws come of the first proposal, though, and need no branch: where a sampler says how
(`Quick` of ops/rejection.py), loops over a few hundred elements make these, which LLVM turns into
vector code, and only the rest go through the whole formula. The bits are the same.
"""

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.routines.draws import Draw, signature, stream_key, write_draw
from probtorch.compiler.lang.routines.integers import bits_to_integers
from probtorch.compiler.lang.routines.philox import philox_pair
from probtorch.ops.rejection import SAMPLERS

__all__ = ["INTEGERS", "NUMBERS", "signatures", "write"]

# Elements of a block: its uniform numbers and flags stay in the first-level cache.
BLOCK = 256


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
    result, types = signatures(name)[f"pt_draws_{name}"]
    w = Draw(text, text.printer, f"pt_draws_{name}", result, types, flags="")
    count = SAMPLERS[name].arity
    arrays, (seed, stream, counters, into, n) = w.arguments[:count], w.arguments[count:]

    def given(i):
        return [w.load(a, i, "double") for a in arrays]

    def one_by_one(i):
        counter = w.load(counters, i, "i64")
        x = w.call(f"pt_draw_{name}", "double", *given(i), seed, stream, counter)
        w.store(into, i, x, "double")

    sampler = SAMPLERS[name]
    if sampler.quick is None:
        with w.loop(0, n) as i:
            one_by_one(i)
    else:
        with w.loop(0, n, BLOCK) as begin:
            end = w.minimum(n, begin + BLOCK)
            # Parameters are mostly alike: the first one tells whether it is worth while.
            likely = sampler.quick.covers(w, *given(begin))
            with w.when(likely):
                _block(w, sampler, given, (seed, stream, counters, into), begin, end, one_by_one)
            with w.when(w.logical_not(likely)), w.loop(begin, end) as i:
                one_by_one(i)
    w.finish()


def _block(w, sampler, given, places, begin, end, one_by_one):
    """The draws from `begin` to `end`: those that are quick at once, then the others."""
    seed, stream, counters, into = places
    quick = sampler.quick
    first, second = (w.array(w.on_stack(BLOCK, "double"), "double") for _ in range(2))
    done = w.array(w.on_stack(BLOCK, "i64"), "i64")
    with w.loop(begin, end) as i:
        words = w.philox(seed, stream, w.load(counters, i, "i64"))
        pair = philox_pair(w, stream_key(seed), words, w.whole(quick.block))
        first[i - begin], second[i - begin] = map(w.bits_to_uniform, pair)
    if quick.normal:
        with w.loop(begin, end) as i:
            second[i - begin] = w.ndtri(second[i - begin])
    with w.loop(begin, end) as i:
        values = given(i)
        allowed = w.logical_and(sampler.allows(w, *values), quick.covers(w, *values))
        sure, x = quick.formula(w, first[i - begin], second[i - begin], *values)
        w.store(into, i, x, "double")
        done[i - begin] = w.convert(w.logical_and(allowed, sure), "i64")
    with w.loop(begin, end) as i, w.when(done[i - begin] == 0):
        one_by_one(i)


def _philox_bits(w, seed, stream, first, into, n):
    """Random bits of the counters from `first` on."""
    with w.loop(0, n) as i:
        w.store(into, i, w.philox(seed, stream, first + i), "i64")


def _uniforms(w, seed, stream, first, into, n):
    """Uniform numbers of the counters from `first` on."""
    with w.loop(0, n) as i:
        w.store(into, i, w.bits_to_uniform(w.philox(seed, stream, first + i)), "double")


def _normals(w, seed, stream, first, into, n):
    """Standard normal numbers of the counters from `first` on."""
    with w.loop(0, n, BLOCK) as begin:
        end = w.minimum(n, begin + BLOCK)
        with w.loop(begin, end) as i:
            w.store(into, i, w.bits_to_uniform(w.philox(seed, stream, first + i)), "double")
        with w.loop(begin, end) as i:
            w.store(into, i, w.ndtri(w.load(into, i, "double")), "double")


_TYPES = ("i64", "i64", "i64", "ptr", "i64")
INTEGERS = {
    "pt_philox_bits": KernelRoutine(_philox_bits, _TYPES, "void"),
    # Random bits, the lowest number, how many there are.
    "pt_bits_to_integers": KernelRoutine(bits_to_integers, ("i64",) * 3, "i64"),
}
NUMBERS = {
    "pt_uniforms": KernelRoutine(_uniforms, _TYPES, "void"),
    "pt_normals": KernelRoutine(_normals, _TYPES, "void"),
}
