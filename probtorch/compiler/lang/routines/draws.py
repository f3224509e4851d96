"""Draws by rejection: the formulas of ops/rejection.py, a function per sampler.

Arithmetic carries no flags, so each operation is rounded by itself, as NumPy rounds it: a draw has
the bits of the eager one, on a GPU as well.
"""

from __future__ import annotations

import math

from probtorch.compiler.lang.function import KernelFunction, RoutineModule
from probtorch.compiler.lang.nodes import Operand, Value
from probtorch.compiler.lang.routines.elementary import split
from probtorch.compiler.lang.routines.formats import F64
from probtorch.compiler.lang.routines.philox import philox_pair
from probtorch.ops.rejection import SAMPLERS, STREAM_KEY

__all__ = ["Draw", "signature", "stream_key", "write_draw"]


def signature(name: str) -> tuple[str, list[str]]:
    """Return the types of ``pt_draw_NAME``: of the draw; of parameters, seed, stream, counter."""
    return "double", ["double"] * SAMPLERS[name].arity + ["i64"] * 3


def write_draw(module: RoutineModule, name: str) -> None:
    """Write ``pt_draw_NAME``; for parameters that are not allowed it gives nan."""
    sampler, (result, types) = SAMPLERS[name], signature(name)
    s = Draw(module, module.printer, f"pt_draw_{name}", result, types, flags="")
    parameters, (seed, stream, counter) = s.arguments[:-3], s.arguments[-3:]
    s.key = stream_key(seed)
    s.stream = s.philox(seed, stream, counter)
    out = s.variable("double", math.nan)
    with s.when(sampler.allows(s, *parameters)):
        out.value = sampler.formula(s, *parameters)
    s.finish(out.value)


def stream_key(seed: Value) -> Value:
    """Write the key of the elements' words."""
    return seed ^ (STREAM_KEY - (1 << 64) if STREAM_KEY >> 63 else STREAM_KEY)


class Draw(KernelFunction):
    """The algebra of samplers; `key` and `stream` name the element's random words."""

    key: Value
    stream: Value

    def counting(self, like: object) -> Value:
        """Return the number of the first attempt."""
        return self.whole(0)

    def uniforms(self, n: Operand) -> tuple[Value, Value]:
        """Return the n-th pair of uniform numbers."""
        first, second = philox_pair(self, self.key, self.stream, self.whole(n))
        return self.bits_to_uniform(first), self.bits_to_uniform(second)

    def split(self, x: Value) -> tuple[Value, Value]:
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m, for positive normal x."""
        return split(self, F64, x)

    def power_of_two(self, n: Value) -> Value:
        """Return 2**n for whole n in the range of normal exponents."""
        return self.from_bits((self.convert(n, "i64") + F64.bias) << F64.mantissa)
