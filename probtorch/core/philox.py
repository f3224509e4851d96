"""Counter-based random bits: a pure function of (seed, stream, counter).

Philox4x32-10 of Salmon et al. (2011), on Python's integers, on arrays and, for long sequences, by
native code. The compiled twin of `philox_bits` is `lang/routines/philox.py` of the compiler; all
agree bit for bit. `bits_to_uniform` is the only step from bits to numbers.

The 128-bit Philox counter is (low, high word of counter, low, high word of stream), its key the
(low, high) word of the seed. Of the four words of a block we keep the first two: one counter, one
64-bit draw, so that the counters of a tensor are simply first, first + 1, ... and any element can
be made alone.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import overload

import numpy as np

from probtorch.config import settings
from probtorch.core.native_code import native_function
from probtorch.core.signatures import explain_calls

__all__ = [
    "bits_to_uniform",
    "consecutive_bits",
    "consecutive_uniforms",
    "native_draw",
    "native_numbers",
    "philox_bits",
    "philox_pairs",
    "sequence_of_bits",
]

# Multipliers and key increments of Philox4x32 [salmon2011, table 2 and sec. 4.3]; the increments
# are the golden ratio and sqrt(3) - 1, scaled to 32 bits.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

_LOW = 0xFFFFFFFF
WORD = 0xFFFFFFFFFFFFFFFF

# Up to this many draws, counters beside each other in one long Python integer take less than NumPy,
# whose hundred calls are 90 us whatever their number (see `_laned`).
_MANY = 256

# Counters per pass through the rounds: four uint64 work arrays of this length stay in the
# second-level cache.
_BLOCK = 8192


# Native code takes 0.2 s to load, and what lies in the cache 0.01 s to link: nanoseconds that draws
# must have cost before that is done.
_WORTH_LOADING, _WORTH_LINKING = 3e8, 1e7


_spent = 0.0  # what draws took without native code, in estimated nanoseconds


def native_draw(name: str, cost: float) -> Callable[..., np.ndarray] | None:
    """Return the native function for draws of a name, None while loading it is not worth it.

    Parameters
    ----------
    name : str
        "bits", "uniforms", "normals", "exponentials", or that of a sampler.
    cost : float
        What this draw takes without it, in nanoseconds.
    """
    global _spent
    if not settings.jit:
        return None
    _spent += cost
    if "llvmlite.binding" not in sys.modules and _spent <= _WORTH_LOADING:
        return native_function(f"linked {name}") if _spent > _WORTH_LINKING else None
    return native_function(name)


def philox_block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Return the four 32-bit words of Philox4x32-10 for one counter block and key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = MULTIPLIERS
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + INCREMENTS[0]) & _LOW, (k1 + INCREMENTS[1]) & _LOW
    return c0, c1, c2, c3


@overload
def philox_bits(seed: int, stream: int, counter: np.ndarray) -> np.ndarray: ...
@overload
def philox_bits(seed: int, stream: int, counter: int) -> int: ...
def philox_bits(seed: int, stream: int, counter: np.ndarray | int) -> np.ndarray | int:
    """Return the 64 random bits that belong to each counter.

    Parameters
    ----------
    seed, stream : int
        Taken modulo 2**64.
    counter : int, or array of a 64-bit integer type, any shape
        An int is taken modulo 2**64; int64 counters are read as the uint64 of the same bits.

    Returns
    -------
    bits : int in [0, 2**64), or uint64 array of the counter's shape

    Notes
    -----
    Pure: no state is read or changed. An int goes through Python integers, about 5 us; an array
    of a few through long ones, about 10 us; a larger one through NumPy, about 40 ns per draw once
    it is large.

    Examples
    --------
    >>> philox_bits(0, 0, 0) == int(philox_bits(0, 0, np.zeros(1, np.uint64))[0])
    True
    """
    seed, stream = seed & WORD, stream & WORD
    if isinstance(counter, np.ndarray):
        counters = np.ascontiguousarray(counter).reshape(-1).view(np.uint64)
        few = counters.size <= _MANY
        return (_lanes if few else _array_bits)(seed, stream, counters).reshape(counter.shape)
    return _one(seed, stream, operator.index(counter) & WORD)


def philox_pairs(
    seed: int, streams: np.ndarray, counters: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Return both 64-bit halves of the blocks of some streams, the first being `philox_bits`.

    Parameters
    ----------
    seed : int
        Taken modulo 2**64.
    streams : uint64 array, shape (n,)
    counters : int, or array of a 64-bit integer type that broadcasts with `streams`
    """
    seed = seed & WORD
    counters = np.broadcast_to(np.asarray(counters).astype(np.uint64), streams.shape)
    if 0 < streams.size <= _MANY:
        packed, low = _packed(streams), _LOW * _ones(streams.size)
        w0, w1, w2, w3 = _laned(seed, packed & low, packed >> 32 & low, counters)
        return _unpacked(w0 | w1 << 32, streams.size), _unpacked(w2 | w3 << 32, streams.size)
    first, second = np.empty_like(streams), np.empty_like(streams)
    for start in range(0, streams.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        _rounds(seed, streams[part], counters[part], first[part], second[part])
    return first, second


def consecutive_bits(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return the bits of ``count`` counters from ``first`` on, as uint64 of shape (count,).

    The same numbers as `philox_bits` on those counters, by whichever road is the shorter for that
    many.
    """
    native = _native_sequence("bits", seed, stream, first, count)
    return sequence_of_bits(seed, stream, first, count) if native is None else native


def consecutive_uniforms(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return ``bits_to_uniform(consecutive_bits(...))``, float64 of shape (count,)."""
    native = native_numbers("uniforms", seed, stream, first, count)
    return (
        bits_to_uniform(sequence_of_bits(seed, stream, first, count)) if native is None else native
    )


def native_numbers(
    kind: str,
    seed: int,
    stream: int,
    first: int,
    count: int,
    scale: float = 1.0,
    shift: float = 0.0,
) -> np.ndarray | None:
    """Return ``scale x + shift`` by native code, or None without it.

    Here x are `consecutive_uniforms` ("uniforms"), their normal quantiles ("normals"), or minus
    their logarithms ("exponentials").
    """
    if count > _FEW:
        return _native_sequence(kind, seed, stream, first, count, scale, shift)
    found = _native_sequence(kind, seed, stream, first, count)
    if found is not None and not (scale == 1.0 and shift == 0.0):
        found = found * scale + shift
    return found


# Functions that were found; the same bits come from one that is linked alone, so it is kept.
_known: dict[str, Callable[..., np.ndarray]] = {}

# A call takes as long as hundreds of numbers. So few draws are taken from so many made at once: by
# name the seed, the stream, the first counter, and the numbers that were made last.
_FEW, _AHEAD = 32, 256
_made: dict[str, tuple[int, int, int, np.ndarray]] = {}


def _native_sequence(
    name: str, seed: int, stream: int, first: int, count: int, *others: float
) -> np.ndarray | None:
    native = _known.get(name) if settings.jit else None
    if native is None:
        native = native_draw(name, _cost(name, count))
        if native is None:
            return None
        _known[name] = native
    if count > _FEW:
        return native(seed & WORD, stream & WORD, first & WORD, count, *others)
    made = _made.get(name)
    if made is not None:
        its_seed, its_stream, start, numbers = made
        at = first - start
        if 0 <= at <= _AHEAD - count and seed == its_seed and stream == its_stream:
            return numbers[at : at + count].copy()
    numbers = native(seed & WORD, stream & WORD, first & WORD, _AHEAD)
    _made[name] = seed, stream, first, numbers
    return numbers[:count].copy()


def _cost(name: str, count: int) -> float:
    """What draws take without native code, in nanoseconds: the bits, and what becomes of them."""
    bits = 10_000.0 + 150.0 * count if count <= _MANY else 70_000.0 + 40.0 * count
    return bits if name in ("bits", "uniforms") else bits + min(2_000.0 * count, 90_000.0)


def sequence_of_bits(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return what `consecutive_bits` does, never by native code."""
    seed, stream = seed & WORD, stream & WORD
    if count < 2:
        few = [_one(seed, stream, (first + i) & WORD) for i in range(count)]
        return np.array(few, dtype=np.uint64)
    # uint64 arithmetic wraps at 2**64 as the counters do.
    counters = np.arange(count, dtype=np.uint64) + np.uint64(first & WORD)
    return (_lanes if count <= _MANY else _array_bits)(seed, stream, counters)


@overload
def bits_to_uniform(bits: np.ndarray) -> np.ndarray: ...
@overload
def bits_to_uniform(bits: int) -> float: ...
def bits_to_uniform(bits: np.ndarray | int) -> np.ndarray | float:
    """Map 64 random bits to a float64 in the open interval (0, 1).

    Parameters
    ----------
    bits : int in [0, 2**64), or array of uint64 or int64

    Returns
    -------
    uniform : float or float64 array of the same shape
        ``((bits >> 11) | 1) * 2**-53`` with an unsigned shift: the 2**52 midpoints of equal cells,
        from 2**-53 to 1 - 2**-53, each exact, so that log(u), log1p(-u) and ndtri(u) are always
        finite.

    Notes
    -----
    ``((bits >> 11) + 0.5) * 2**-53`` would be the midpoints of 2**53 cells, but the sum has 54
    bits: the largest rounds up to 1.0.
    """
    if isinstance(bits, np.ndarray):
        # Below 2**53 a signed conversion gives the same value, and processors have that one as an
        # instruction.
        cells = (bits.view(np.uint64) >> np.uint64(11)) | np.uint64(1)
        return cells.view(np.int64) * 2.0**-53
    return ((operator.index(bits) & WORD) >> 11 | 1) * 2.0**-53


def _one(seed: int, stream: int, counter: int) -> int:
    block = (counter & _LOW, counter >> 32, stream & _LOW, stream >> 32)
    w0, w1, _, _ = philox_block(block, (seed & _LOW, seed >> 32))
    return w0 | w1 << 32


def _lanes(seed: int, stream: int, counters: np.ndarray) -> np.ndarray:
    """The draws of a few counters of one stream at once; see `_laned`."""
    count = counters.size
    if not count:
        return np.empty(0, np.uint64)
    ones = _ones(count)
    c0, c1, _, _ = _laned(seed, (stream & _LOW) * ones, (stream >> 32) * ones, counters)
    return _unpacked(c0 | c1 << 32, count)


def _laned(seed: int, c2: int, c3: int, counters: np.ndarray) -> tuple[int, int, int, int]:
    """`philox_block` of a few counters at once: a long integer has a word in each 64 of its bits.

    Products of 32-bit words fill a lane and no more, so one product of long integers is all of
    theirs; what a shift brings in from the next lane is masked. `c2` and `c3` are the halves of the
    streams, in lanes.
    """
    ones = _ones(counters.size)
    low = _LOW * ones
    packed = _packed(counters)
    c0, c1 = packed & low, packed >> 32 & low
    k0, k1 = seed & _LOW, seed >> 32
    m0, m1 = MULTIPLIERS
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1 = p1 >> 32 & low ^ c1 ^ k0 * ones, p1 & low
        c2, c3 = p0 >> 32 & low ^ c3 ^ k1 * ones, p0 & low
        k0, k1 = (k0 + INCREMENTS[0]) & _LOW, (k1 + INCREMENTS[1]) & _LOW
    return c0, c1, c2, c3


def _packed(words: np.ndarray) -> int:
    """A uint64 array as one long integer."""
    return int.from_bytes(words.astype("<u8", copy=False).tobytes(), "little")


def _unpacked(lanes: int, count: int) -> np.ndarray:
    """The uint64 array of a long integer."""
    return np.frombuffer(lanes.to_bytes(8 * count, "little"), "<u8").astype(np.uint64)


@functools.cache
def _ones(count: int) -> int:
    """1 in each of so many lanes."""
    return ((1 << 64 * count) - 1) // WORD


def _array_bits(seed: int, stream: int, counters: np.ndarray) -> np.ndarray:
    """Philox over a flat uint64 array, block by block so that the work arrays stay in cache."""
    bits = np.empty(counters.shape, dtype=np.uint64)
    for start in range(0, counters.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        _rounds(seed, stream, counters[part], bits[part])
    return bits


def _rounds(
    seed: int,
    stream: np.ndarray | int,
    counters: np.ndarray,
    bits: np.ndarray,
    others: np.ndarray | None = None,
) -> None:
    """Write the draws of ``counters`` to ``bits``, and the rest of their blocks to ``others``.

    32-bit words in uint64 have exact products.
    """
    low, shift = np.uint64(_LOW), np.uint64(32)
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    k0, k1 = seed & _LOW, seed >> 32
    c0, c1 = counters & low, counters >> shift
    if isinstance(stream, np.ndarray):
        c2, c3 = stream & low, stream >> shift
    else:
        c2, c3 = np.full_like(c0, stream & _LOW), np.full_like(c0, stream >> 32)
    for _ in range(ROUNDS):
        # In place: c0 and c2 become the two products, then their halves; the freed arrays change
        # places.
        np.multiply(c0, m0, out=c0)
        np.multiply(c2, m1, out=c2)
        c1 ^= c2 >> shift
        c1 ^= np.uint64(k0)
        c3 ^= c0 >> shift
        c3 ^= np.uint64(k1)
        c2 &= low
        c0 &= low
        c0, c1, c2, c3 = c1, c2, c3, c0
        k0, k1 = (k0 + INCREMENTS[0]) & _LOW, (k1 + INCREMENTS[1]) & _LOW
    np.bitwise_or(c0, c1 << shift, out=bits)
    if others is not None:
        np.bitwise_or(c2, c3 << shift, out=others)


# What users call; the functions between a draw and its bits are called for every draw.
explain_calls(globals(), names=("philox_bits",))
