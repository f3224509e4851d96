"""Draws by rejection as CUDA C: the formulas of ops/rejection.py, a function per sampler.

A sibling of `runtime/draws.py`; the random bits (Philox) are here too. Additions and products are
written as functions that are never contracted, so each is rounded by itself, as NumPy rounds it.
What is left to differ from the CPU is CUDA's quantile of the normal distribution, by a unit or two
in the last place: a draw then differs as little, or, where a test falls between the two, belongs to
the next attempt.
"""

import functools
import math
import struct

from probtorch.compiler.render.algebra import V
from probtorch.compiler.render.cuda_algebra import C_TYPES, CudaAlgebra, spell
from probtorch.core.rng import INCREMENTS, MULTIPLIERS, ROUNDS
from probtorch.ops.rejection import SAMPLERS, STREAM_KEY

__all__ = ["PHILOX", "PHILOX_PAIR", "draw_text"]

# A block of Philox 4x32-10: four words c0 .. c3.
_BLOCK = f"""
  unsigned int c0 = (unsigned int)counter, c1 = (unsigned int)((u64)counter >> 32);
  unsigned int c2 = (unsigned int)stream, c3 = (unsigned int)((u64)stream >> 32);
  unsigned int k0 = (unsigned int)key, k1 = (unsigned int)((u64)key >> 32);
  for (int i = 0; i < {ROUNDS}; ++i) {{
    const u64 p0 = {MULTIPLIERS[0]}ULL * c0, p1 = {MULTIPLIERS[1]}ULL * c2;
    c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
    c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
    c1 = (unsigned int)p1;
    c3 = (unsigned int)p0;
    k0 += {INCREMENTS[0]}u;
    k1 += {INCREMENTS[1]}u;
  }}
"""

# Its first half, and both halves.
PHILOX = f"""
static __device__ i64 pt_philox(i64 key, i64 stream, i64 counter) {{{_BLOCK}
  return (i64)((u64)c0 | (u64)c1 << 32);
}}
"""
PHILOX_PAIR = f"""
static __device__ i64 pt_philox_pair(i64 key, i64 stream, i64 counter, i64 *other) {{{_BLOCK}
  *other = (i64)((u64)c2 | (u64)c3 << 32);
  return (i64)((u64)c0 | (u64)c1 << 32);
}}
"""

_ROUNDED = {"add": "__dadd_rn", "sub": "__dsub_rn", "mul": "__dmul_rn", "div": "__ddiv_rn"}


@functools.cache
def draw_text(name):
    """Return the function ``pt_draw_NAME`` of the parameters, seed, stream and counter of a draw.

    For parameters that are not allowed it gives nan.
    """
    sampler = SAMPLERS[name]
    s = _Draw()
    parameters = [V(f"q{i}", "double", s) for i in range(sampler.arity)]
    out = s.variable("double", V(spell(math.nan, "double"), "double", s))
    s.open(f"if ({sampler.allows(s, *parameters).name}) {{")
    s.assign(out, sampler.formula(s, *parameters))
    s.close()
    params = "".join(f"double q{i}, " for i in range(sampler.arity))
    body = "\n".join(s.lines)
    return (
        f"\nstatic __device__ double pt_draw_{name}({params}i64 seed, i64 stream, i64 counter) {{\n"
        f"const i64 key = (i64)((u64)seed ^ {STREAM_KEY}ULL);\n"
        f"const i64 words = pt_philox(seed, stream, counter);\n{body}\nreturn {out};\n}}\n"
    )


class _Draw(CudaAlgebra):
    """The algebra of samplers; variables `key` and `words` name the element's random words."""

    def __init__(self):
        super().__init__(None)

    def binary(self, op, a, b, flags=""):
        """Write an arithmetic operation that is rounded by itself."""
        x, y, ty = self._pair(a, b)
        if ty != "double":
            return super().binary(op, a, b)
        return self.emit(f"{_ROUNDED[op]}({x.name}, {y.name})", ty)

    def open(self, line):
        """Open a block."""
        self.lines.append(line)

    def close(self):
        """Close a block."""
        self.lines.append("}")

    def variable(self, ty, start=None):
        """Declare a variable; returns its name."""
        name = self.fresh("a")
        first = "" if start is None else f" = {start.name}"
        self.lines.append(f"{C_TYPES[ty]} {name}{first};")
        return name

    def assign(self, name, v):
        """Write an assignment."""
        self.lines.append(f"{name} = {v.name};")

    def counting(self, like):
        """Return the number of the first attempt."""
        return self.value(0, "i64")

    def uniforms(self, n):
        """Return the n-th pair of uniform numbers."""
        other = self.variable("i64")
        n = self.value(n, "i64")
        first = self.emit(f"pt_philox_pair(key, words, {n.name}, &{other})", "i64")
        return self.bits_to_uniform(first), self.bits_to_uniform(V(other, "i64", self))

    def split(self, x):
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m, for positive normal x."""
        one = 1023 << 52
        root = int.from_bytes(struct.pack("<d", math.sqrt(0.5)), "little")
        # Moved up by 1 - sqrt(1/2), in steps of the last place, the exponent field is that of m's.
        moved = self.emit(f"__double_as_longlong({x.name}) + {one - root}LL", "i64")
        k = self.emit(f"(double)(({moved.name} >> 52) - 1023)", "double")
        mask = (1 << 52) - 1
        m = self.emit(f"__longlong_as_double(({moved.name} & {mask}LL) + {root}LL)", "double")
        return k, m

    def power_of_two(self, n):
        """Return 2**n for whole n in the range of normal exponents."""
        return self.emit(f"__longlong_as_double(((i64){n.name} + 1023) << 52)", "double")

    def choose(self, condition, yes, no, operands):
        """Branch: the result of ``yes(s, *operands)`` or of ``no(s, *operands)``."""
        out = self.variable("double")
        self.open(f"if ({condition.name}) {{")
        self.assign(out, yes(self, *operands))
        self.open("} else {")
        self.assign(out, no(self, *operands))
        self.close()
        return V(out, "double", self)

    def either(self, condition, test, operands):
        """Whether `condition` holds, or else ``test(s, *operands)``."""
        out = self.variable("i1", condition)
        self.open(f"if (!{out}) {{")
        self.assign(out, test(self, *operands))
        self.close()
        return V(out, "i1", self)

    def until(self, step, state, operands=()):
        """Repeat ``done, state = step(s, *state, *operands)`` until it is done."""
        cells = [(self.variable(x.ty, x), x.ty) for x in state]
        done = self.variable("i1", self.value(False, "i1"))
        self.open(f"while (!{done}) {{")
        now = [self.emit(name, ty) for name, ty in cells]
        finished, following = step(self, *now, *operands)
        self.assign(done, finished)
        for (name, _), x in zip(cells, following, strict=True):
            self.assign(name, x)
        self.close()
        return tuple(self.emit(name, ty) for name, ty in cells)
