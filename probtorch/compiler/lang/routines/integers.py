"""Routines on whole numbers: powers, and random bits as numbers of a range."""

from __future__ import annotations

from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.nodes import Binary, Value

__all__ = ["bits_to_integers", "power"]


def power(w: KernelFunction, x: Value, n: Value) -> Value:
    """Repeated squaring, modulo 2**64 as integers are; the exponent is not negative."""
    base, left, product = (w.variable("i64", start) for start in (x, n, 1))
    with w.repeat_while(lambda: left.value > 0):
        here, rest = base.value, left.value
        product.value = product.value * w.where((rest & 1) != 0, here, 1)
        base.value = here * here
        left.value = rest >> 1
    return product.value


def bits_to_integers(w: KernelFunction, bits: Value, low: Value, span: Value) -> Value:
    """Low + the high word of bits times span."""
    high: Value = w.put(Binary("umulh", bits, span))
    return high + low
