"""Philox 4x32-10: 128 random bits of a key, a stream and a counter, in 64-bit words.

A word holds 32 bits, so that products are exact. `core/philox.py` has the twin for arrays, and the
constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.nodes import Value
from probtorch.core.philox import INCREMENTS, MULTIPLIERS, ROUNDS

if TYPE_CHECKING:
    from probtorch.compiler.lang.builder import Builder

__all__ = ["philox", "philox_pair"]

_LOW = 0xFFFFFFFF


def philox(w: Builder, key: Value, stream: Value, counter: Value) -> Value:
    """Write the first half of the block."""
    c0, c1, _, _ = _block(w, key, stream, counter)
    return c0 | (c1 << 32)


def philox_pair(w: Builder, key: Value, stream: Value, counter: Value) -> tuple[Value, Value]:
    """Write both halves of the block."""
    c0, c1, c2, c3 = _block(w, key, stream, counter)
    return c0 | (c1 << 32), c2 | (c3 << 32)


def _block(w: Builder, key: Value, stream: Value, counter: Value) -> tuple[Value, ...]:
    k0, k1 = key & _LOW, w.lshr(key, 32)
    c0, c1 = counter & _LOW, w.lshr(counter, 32)
    c2, c3 = stream & _LOW, w.lshr(stream, 32)
    for i in range(ROUNDS):
        if i > 0:
            k0, k1 = (k0 + INCREMENTS[0]) & _LOW, (k1 + INCREMENTS[1]) & _LOW
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = w.lshr(p1, 32) ^ c1 ^ k0, p1 & _LOW, w.lshr(p0, 32) ^ c3 ^ k1, p0 & _LOW
    return c0, c1, c2, c3
