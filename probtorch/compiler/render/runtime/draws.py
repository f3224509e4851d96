"""Draws for arrays in native code: bits, uniform and normal numbers, and samplers, in a loop.

Samplers by rejection (`lang/routines/draws.py`) are branches and loops, which go one draw at a
time. Most draws come of the first proposal, though, and need no branch: where a sampler says how
(`Quick` of ops/rejection.py), loops over a few hundred elements make these, which LLVM turns into
vector code. What a first formula does not make goes, gathered, through the next, and only the rest
through the whole. Normal quantiles are made so, too: all by the formula of the middle, and one in
seven then by that of the tails. The bits are the same.
"""

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.routines.draws import Draw, signature, stream_key, write_draw
from probtorch.compiler.lang.routines.integers import bits_to_integers
from probtorch.compiler.lang.routines.philox import philox_pair
from probtorch.ops.exact import (
    is_far,
    log,
    quantile_in_the_middle,
    quantile_in_the_tails,
)
from probtorch.ops.rejection import SAMPLERS

__all__ = [
    *("BLOCK", "INTEGERS", "NUMBERS", "NUMBER_TYPES"),
    *("signatures", "write", "write_numbers"),
]

# Elements of a block: its uniform numbers and flags stay in the first-level cache.
BLOCK = 256


def signatures(name):
    """Return the functions of a sampler.

    ``pt_draw_NAME`` takes the parameters, seed, stream and counter of one draw. ``pt_draws_NAME``
    takes arrays of the parameters; for each whether they go on (1), or stay what their first
    `BLOCK` elements are (0); seed and stream; whether counters are listed (1) or follow each other
    (0), their list, and the first; an array for the results, and their number.
    """
    count = SAMPLERS[name].arity
    places = ["ptr"] * count + ["i64"] * count
    return {
        f"pt_draw_{name}": signature(name),
        f"pt_draws_{name}": ("void", [*places, *["i64"] * 3, "ptr", "i64", "ptr", "i64"]),
    }


def write(text, name):
    """Write the module of a sampler."""
    write_draw(text, name)
    result, types = signatures(name)[f"pt_draws_{name}"]
    w = Draw(text, text.printer, f"pt_draws_{name}", result, types, flags="")
    _Sampling(w, name).write()
    w.finish()


class _Sampling:
    """The body of ``pt_draws_NAME``, block by block."""

    def __init__(self, w, name):
        self.w, self.name, self.sampler = w, name, SAMPLERS[name]
        count = self.sampler.arity
        self.arrays, self.steps = w.arguments[:count], w.arguments[count : 2 * count]
        self.seed, self.stream, self.listed, self.counters, self.first, self.into, self.n = (
            w.arguments[2 * count :]
        )
        self.key = stream_key(self.seed)
        # Of a block: counters, the names of the elements' streams, and elements picked out.
        self.numbers, self.words, self.left = (self._memory("i64") for _ in range(3))
        self.most = max((len(q.blocks) for q in self.sampler.quick), default=0)
        self.uniforms = [self._memory("double") for _ in range(2 * self.most)]
        # The same numbers of elements that are picked out, with their parameters and draws.
        self.gathered = [self._memory("double") for _ in range(2 * self.most + count + 1)]
        self.flags = self._memory("i64")

    def _memory(self, ty):
        # One more than a block has: what is picked out is written before it is counted.
        return self.w.array(self.w.on_stack(BLOCK + 1, ty), ty)

    def write(self):
        w = self.w
        with w.loop(0, self.n, BLOCK) as begin:
            count = w.minimum(self.n, begin + BLOCK) - begin
            self.values = [
                w.array(w.offset(a, begin * step, "double"), "double")
                for a, step in zip(self.arrays, self.steps, strict=True)
            ]
            self.out = w.array(w.offset(self.into, begin, "double"), "double")
            self._name_streams(begin, count)
            todo = w.variable("i64", 1)
            # Parameters are mostly alike: the first ones tell what is worth while.
            for quick in self.sampler.quick:
                with w.when(quick.covers(w, *self._given(0))):
                    self._at_once(quick, count)
                    todo.value = 0
            with w.when(todo.value != 0), w.loop(0, count) as i:
                self._one(i)

    def _given(self, i):
        return [a[i] for a in self.values]

    def _name_streams(self, begin, count):
        w = self.w
        listed, consecutive = w.branch(self.listed != 0)
        with listed, w.loop(0, count) as i:
            self.numbers[i] = w.load(self.counters, begin + i, "i64")
        with consecutive, w.loop(0, count) as i:
            self.numbers[i] = self.first + begin + i
        if self.sampler.quick:
            with w.loop(0, count) as i:
                self.words[i] = w.philox(self.seed, self.stream, self.numbers[i])

    def _one(self, i):
        """A draw by the whole formula."""
        numbers = self.seed, self.stream, self.numbers[i]
        self.out[i] = self.w.call(f"pt_draw_{self.name}", "double", *self._given(i), *numbers)

    def _at_once(self, quick, count):
        """The draws of a block: those that are quick, then the others."""
        w, sampler = self.w, self.sampler
        first, *others = quick.formulas
        pairs = [self.uniforms[2 * k : 2 * k + 2] for k in range(len(quick.blocks))]
        with w.loop(0, count) as i:
            for block, pair in zip(quick.blocks, pairs, strict=True):
                words = philox_pair(w, self.key, self.words[i], w.whole(block))
                for numbers, bits in zip(pair, words, strict=True):
                    numbers[i] = w.bits_to_uniform(bits)
        if quick.normal:
            _quantiles(w, pairs[-1][1], count)
        with w.loop(0, count) as i:
            values = self._given(i)
            allowed = w.logical_and(sampler.allows(w, *values), quick.covers(w, *values))
            sure, self.out[i] = first(w, [[u[i] for u in pair] for pair in pairs], *values)
            self.flags[i] = w.convert(w.logical_and(allowed, sure), "i64")
        left = _picked(w, self.left, count, lambda i: i, lambda i: self.flags[i] == 0)
        for formula in others:
            left = self._again(quick, formula, pairs, left)
        with w.loop(0, left) as k:
            self._one(self.left[k])

    def _again(self, quick, formula, pairs, left):
        """Put those that are left through a further formula; gives how many then are."""
        w, sampler = self.w, self.sampler
        flat = [numbers for pair in pairs for numbers in pair]
        *inputs, results = self.gathered[: len(flat) + sampler.arity + 1]
        with w.loop(0, left) as k:
            i = self.left[k]
            for there, here in zip(inputs, [*flat, *self.values], strict=True):
                there[k] = here[i]
        with w.loop(0, left) as k:
            numbers = [x[k] for x in inputs]
            values = numbers[len(flat) :]
            allowed = w.logical_and(sampler.allows(w, *values), quick.covers(w, *values))
            both = [numbers[j : j + 2] for j in range(0, len(flat), 2)]
            sure, results[k] = formula(w, both, *values)
            self.flags[k] = w.convert(w.logical_and(allowed, sure), "i64")
        with w.loop(0, left) as k:
            self.out[self.left[k]] = results[k]
        # In place: what is picked out is never ahead of what is read.
        return _picked(w, self.left, left, lambda k: self.left[k], lambda k: self.flags[k] == 0)


def _picked(w, into, count, value, condition):
    """Write ``value(i)`` where ``condition(i)`` holds, one after the other; gives their number."""
    found = w.variable("i64", 0)
    with w.loop(0, count) as i:
        into[found.value] = value(i)
        found.value = found.value + w.convert(condition(i), "i64")
    return found.value


def _quantiles(w, values, count):
    """Put normal quantiles in the place of uniform numbers, at most `BLOCK`."""
    far, places = (w.array(w.on_stack(BLOCK + 1, ty), ty) for ty in ("double", "i64"))
    number = _picked(w, places, count, lambda i: i, lambda i: is_far(w, values[i]))
    with w.loop(0, number) as k:
        far[k] = values[places[k]]
    with w.loop(0, count) as i:
        values[i] = quantile_in_the_middle(w, values[i])
    with w.loop(0, number) as k:
        far[k] = quantile_in_the_tails(w, far[k])
    with w.loop(0, number) as k:
        values[places[k]] = far[k]


def _philox_bits(w, seed, stream, first, into, n):
    """Random bits of the counters from `first` on."""
    with w.loop(0, n) as i:
        into[i] = w.philox(seed, stream, first + i)


def write_numbers(text, name):
    """Write a function of `NUMBERS`: ``scale x + shift`` for the counters from `first` on."""
    w = Draw(text, text.printer, name, *NUMBER_TYPES, flags="")
    seed, stream, first, into, n, scale, shift = w.arguments
    numbers = w.array(w.on_stack(BLOCK, "double"), "double")
    with w.loop(0, n, BLOCK) as begin:
        count = w.minimum(n, begin + BLOCK) - begin
        with w.loop(0, count) as i:
            numbers[i] = w.bits_to_uniform(w.philox(seed, stream, first + begin + i))
        NUMBERS[name](w, numbers, count)
        out = w.array(w.offset(into, begin, "double"), "double")
        with w.loop(0, count) as i:
            out[i] = numbers[i] * scale + shift
    w.finish()


def _exponentials(w, numbers, count):
    with w.loop(0, count) as i:
        numbers[i] = -log(w, numbers[i])


def _categories(w, seed, stream, first, into, n, sums, size, below_one):
    """Categories of one row of weights by inversion, for the counters from `first` on.

    There are `size` sums of its weights; `below_one` is the largest number below 1.
    """
    levels, total = w.array(w.on_stack(BLOCK, "double"), "double"), sums[size - 1]
    half = w.variable("i64", 1)
    with w.repeat_while(lambda: half.value * 2 <= size):
        half.value = half.value * 2
    with w.loop(0, n, BLOCK) as begin:
        count = w.minimum(n, begin + BLOCK) - begin
        found = into.at(begin)
        with w.loop(0, count) as i:
            u = w.bits_to_uniform(w.philox(seed, stream, first + begin + i))
            levels[i] = w.minimum(u * total, total * below_one)
            found[i] = w.whole(0)
        # How many sums are not above the level: a bit of that number for all elements in turn.
        step = w.variable("i64", half.value)
        with w.repeat_while(lambda: step.value > 0):
            with w.loop(0, count) as i:
                further = found[i] + step.value
                there = sums[w.minimum(further, size) - 1] <= levels[i]
                goes = w.logical_and(further <= size, there)
                found[i] = w.where(goes, further, found[i])
            step.value = w.lshr(step.value, 1)


INTEGERS = {
    "pt_philox_bits": KernelRoutine(_philox_bits, "i64 i64 i64 i64* i64", "void"),
    "pt_categories": KernelRoutine(
        _categories, "i64 i64 i64 i64* i64 double* i64 double", "void", flags=""
    ),
    # Random bits, the lowest number, how many there are.
    "pt_bits_to_integers": KernelRoutine(bits_to_integers, "i64 i64 i64", "i64"),
}
NUMBER_TYPES = "void", ["i64", "i64", "i64", "ptr", "i64", "double", "double"]
# What becomes of uniform numbers, in place.
NUMBERS = {
    "pt_uniforms": lambda w, numbers, count: None,
    "pt_normals": _quantiles,
    "pt_exponentials": _exponentials,
}
