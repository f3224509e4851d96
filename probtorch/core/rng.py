"""Counter-based random bits and the three integers that stand for a random stream.

Every random number in probtorch is a pure function of (seed, stream, counter): Philox4x32-10 of
Salmon et al. (2011). So a draw is the same eagerly or compiled, on CPU or GPU, in whatever order
and by however many workers it is made, and the whole state of a generator is three integers. The
compiled twin of `philox_bits` is `pt_philox` in `compiler/render/mathlib.py`; the two agree bit for
bit.

Nothing here knows a distribution: `bits_to_uniform` is the only step from bits to numbers, and
`uniform` or `normal` are ops written on top of it.

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
import random
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, SupportsIndex, overload

import numpy as np

from probtorch.config import settings
from probtorch.core.dispatch import recorder
from probtorch.core.native_code import native_function
from probtorch.core.signatures import explain_calls
from probtorch.core.surroundings import surroundings
from probtorch.errors import ArgumentError

__all__ = [
    "Generator",
    "GeneratorState",
    "bits_to_uniform",
    "consecutive_bits",
    "consecutive_uniforms",
    "default_generator",
    "drawing_as",
    "generator_for",
    "manual_seed",
    "native_draw",
    "native_numbers",
    "philox_bits",
    "philox_pairs",
    "set_rng_seed",
]

# Multipliers and key increments of Philox4x32 [salmon2011, table 2 and sec. 4.3]; the increments
# are the golden ratio and sqrt(3) - 1, scaled to 32 bits.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

_LOW = 0xFFFFFFFF
_WORD = 0xFFFFFFFFFFFFFFFF

# Key under which a stream's children are hashed: ASCII "spawning". Every constant does; it only has
# to stay the same.
_SPAWN_KEY = 0x737061776E696E67

# Of a generator made without a seed, the same for all, as PyTorch has it.
FIRST_SEED = 67280421310721

# Below this many draws plain Python integers (5 us each) beat NumPy's fixed cost (about 90 us for
# the hundred array calls).
_FEW = 16
# Up to this many, counters beside each other in one long Python integer do (see `_lanes`).
_MANY = 256

# Counters per pass through the rounds: four uint64 work arrays of this length stay in the
# second-level cache.
_BLOCK = 8192


# Native code takes 0.2 s to load: nanoseconds that draws must have cost before that is done.
_WORTH_LOADING = 3e8


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
        return None
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
    seed, stream = seed & _WORD, stream & _WORD
    if isinstance(counter, np.ndarray):
        counters = np.ascontiguousarray(counter).reshape(-1).view(np.uint64)
        few = counters.size <= _MANY
        return (_lanes if few else _array_bits)(seed, stream, counters).reshape(counter.shape)
    return _one(seed, stream, operator.index(counter) & _WORD)


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
    seed = seed & _WORD
    counters = np.broadcast_to(np.asarray(counters).astype(np.uint64), streams.shape)
    first, second = np.empty_like(streams), np.empty_like(streams)
    if streams.size < _FEW:
        key = seed & _LOW, seed >> 32
        for i, (s, c) in enumerate(zip(streams.tolist(), counters.tolist(), strict=True)):
            w = philox_block((c & _LOW, c >> 32, s & _LOW, s >> 32), key)
            first[i], second[i] = w[0] | w[1] << 32, w[2] | w[3] << 32
        return first, second
    for start in range(0, streams.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        _rounds(seed, streams[part], counters[part], first[part], second[part])
    return first, second


def consecutive_bits(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return the bits of ``count`` counters from ``first`` on, as uint64 of shape (count,).

    The same numbers as `philox_bits` on those counters, by whichever road is the shorter for that
    many.
    """
    native = _native_sequence("bits", seed, stream, first, count, ())
    return _sequence(seed, stream, first, count) if native is None else native


def consecutive_uniforms(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return ``bits_to_uniform(consecutive_bits(...))``, float64 of shape (count,)."""
    native = native_numbers("uniforms", seed, stream, first, count)
    return bits_to_uniform(_sequence(seed, stream, first, count)) if native is None else native


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
    return _native_sequence(kind, seed, stream, first, count, (scale, shift))


def _native_sequence(
    name: str, seed: int, stream: int, first: int, count: int, others: tuple[float, ...]
) -> np.ndarray | None:
    native = native_draw(name, _cost(name, count))
    if native is None:
        return None
    return native(seed & _WORD, stream & _WORD, first & _WORD, count, *others)


def _cost(name: str, count: int) -> float:
    """What draws take without native code, in nanoseconds: the bits, and what becomes of them."""
    bits = 10_000.0 + 150.0 * count if count <= _MANY else 70_000.0 + 40.0 * count
    return bits if name in ("bits", "uniforms") else bits + min(2_000.0 * count, 90_000.0)


def _sequence(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    seed, stream = seed & _WORD, stream & _WORD
    if count < 2:
        few = [_one(seed, stream, (first + i) & _WORD) for i in range(count)]
        return np.array(few, dtype=np.uint64)
    # uint64 arithmetic wraps at 2**64 as the counters do.
    counters = np.arange(count, dtype=np.uint64) + np.uint64(first & _WORD)
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
    return ((operator.index(bits) & _WORD) >> 11 | 1) * 2.0**-53


class GeneratorState(NamedTuple):
    """All that a generator knows: equal states draw equal numbers."""

    seed: int
    stream: int
    counter: int


class Generator:
    """A random stream: a seed, a stream number, and the count of draws already given away.

    Parameters
    ----------
    seed : int, optional
        An integer; taken modulo 2**64. Left out, it is the same number for all generators, as in
        PyTorch; `seed()` draws one from the operating system.
    stream : int, default 0
        Streams of one seed never overlap.
    counter : int, default 0
        The first draw that is still free.
    device : optional
        Accepted for PyTorch's sake: a stream is the same on all devices.

    Raises
    ------
    ArgumentError
        If one of them is not an integer.

    Notes
    -----
    A generator makes no numbers; it hands out counters (`advance`), which `philox_bits` turns into
    bits. Handing out is guarded by a lock: two threads never receive the same counter.

    Examples
    --------
    >>> rng = Generator(7)
    >>> rng.advance(3), rng.advance(1)
    (0, 3)
    """

    __slots__ = ("_counter", "_lock", "_seed", "_stream")

    def __init__(
        self, seed: int = FIRST_SEED, stream: int = 0, counter: int = 0, *, device: object = None
    ) -> None:
        self._seed = _word(seed, "seed")
        self._stream = _word(stream, "stream")
        self._counter = _word(counter, "counter")
        self._lock = threading.Lock()
        self._tell("made")

    def _tell(self, how: str) -> None:
        """Tell who listens: whoever records a function has to repeat this, or refuse to."""
        active = recorder()
        if active is not None:
            active.restarted(self, how)

    @property
    def stream(self) -> int:
        """The stream number, in [0, 2**64)."""
        return self._stream

    @property
    def counter(self) -> int:
        """The first counter not yet handed out, in [0, 2**64)."""
        return self._counter

    def advance(self, n: int) -> int:
        """Reserve ``n`` counters and return the first of them; they wrap at 2**64."""
        if n < 0:
            raise ArgumentError(
                "Generator.advance",
                expected="a count n >= 0",
                got=f"n = {n}",
                fix="to go back, keep get_state() and restore it with set_state()",
            )
        with self._lock:
            first = self._counter
            self._counter = (first + n) & _WORD
        return first

    def manual_seed(self, seed: int) -> Generator:
        """Start over with ``seed`` at counter 0, on the same stream; return the generator."""
        value = _word(seed, "seed")
        with self._lock:
            self._seed, self._counter = value, 0
        self._tell("seeded")
        return self

    def seed(self) -> int:
        """Start over with a seed drawn from the operating system, and return that seed."""
        value = secrets.randbits(64)
        self.manual_seed(value)
        self._tell("set")
        return value

    def initial_seed(self) -> int:
        """Return the seed in use, in [0, 2**64)."""
        return self._seed

    def get_state(self) -> GeneratorState:
        """Return the three integers; `set_state` resumes from them exactly."""
        with self._lock:
            return GeneratorState(self._seed, self._stream, self._counter)

    def set_state(self, state: tuple[int, int, int]) -> None:
        """Resume from what `get_state` returned (any sequence of the three integers will do)."""
        try:
            seed, stream, counter = state
        except (TypeError, ValueError):
            raise ArgumentError(
                "Generator.set_state",
                expected="three integers (seed, stream, counter)",
                got=repr(state),
                fix="pass what get_state() returned",
            ) from None
        values = _word(seed, "seed"), _word(stream, "stream"), _word(counter, "counter")
        with self._lock:
            self._seed, self._stream, self._counter = values
        self._tell("set")

    def spawn(self, n: int) -> list[Generator]:
        """Return ``n`` generators of the same seed on streams of their own, each at counter 0.

        A child's stream is the Philox hash of (this stream, index), with the index taken from this
        generator's counter: so later calls give other children, children can spawn in turn, and the
        state stays three integers. Two of k children share a stream with probability k**2 / 2**65.
        """
        first = self.advance(n)
        self._tell("spawned")
        streams = _sequence(_SPAWN_KEY, self._stream, first, n).tolist()
        return [Generator(self._seed, stream) for stream in streams]

    def __repr__(self) -> str:
        seed, stream, counter = self.get_state()
        return f"Generator(seed={seed}, stream={stream}, counter={counter})"

    def __reduce__(self) -> tuple[object, ...]:
        # A lock cannot be pickled, and need not be: the state is the generator.
        return Generator, tuple(self.get_state())


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, the one that draws are made from unless told, and return it."""
    return default_generator.manual_seed(seed)


def set_rng_seed(rng_seed: int) -> None:
    """Seed the default generator, and those of Python and of NumPy, as Pyro does.

    Parameters
    ----------
    rng_seed : int
        NumPy takes its last 32 bits.
    """
    manual_seed(rng_seed)
    random.seed(operator.index(rng_seed))
    np.random.seed(operator.index(rng_seed) & 0xFFFF_FFFF)


def _word(value: SupportsIndex, name: str) -> int:
    """Reduce an integer of any size or kind modulo 2**64, or refuse it by name."""
    try:
        return operator.index(value) & _WORD
    except TypeError:
        raise ArgumentError(
            "Generator",
            expected=f"an integer {name}",
            got=f"{value!r} of type {type(value).__name__}",
            fix=f"pass an int, for example int({name})",
        ) from None


def _one(seed: int, stream: int, counter: int) -> int:
    block = (counter & _LOW, counter >> 32, stream & _LOW, stream >> 32)
    w0, w1, _, _ = philox_block(block, (seed & _LOW, seed >> 32))
    return w0 | w1 << 32


def _lanes(seed: int, stream: int, counters: np.ndarray) -> np.ndarray:
    """`philox_block` of a few counters at once: a long integer has a word in each 64 of its bits.

    Products of 32-bit words fill a lane and no more, so one product of long integers is all of
    theirs; what a shift brings in from the next lane is masked.
    """
    if not counters.size:
        return np.empty(0, np.uint64)
    ones = _ones(counters.size)
    low = _LOW * ones
    packed = int.from_bytes(counters.astype("<u8", copy=False).tobytes(), "little")
    c0, c1 = packed & low, packed >> 32 & low
    c2, c3 = (stream & _LOW) * ones, (stream >> 32) * ones
    k0, k1 = seed & _LOW, seed >> 32
    m0, m1 = MULTIPLIERS
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1 = p1 >> 32 & low ^ c1 ^ k0 * ones, p1 & low
        c2, c3 = p0 >> 32 & low ^ c3 ^ k1 * ones, p0 & low
        k0, k1 = (k0 + INCREMENTS[0]) & _LOW, (k1 + INCREMENTS[1]) & _LOW
    words = (c0 | c1 << 32).to_bytes(8 * counters.size, "little")
    return np.frombuffer(words, "<u8").astype(np.uint64)


@functools.cache
def _ones(count: int) -> int:
    """1 in each of so many lanes."""
    return ((1 << 64 * count) - 1) // _WORD


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


default_generator = Generator(secrets.randbits(64))


def generator_for(given: Generator | None) -> Generator:
    """Return the generator that a draw comes from: the one given, or else the one in force.

    In force is that of the innermost `seed` handler, and outside of any the default generator.
    """
    if given is not None:
        return given
    found = surroundings().generator()
    return default_generator if found is None else found


@contextmanager
def drawing_as(generator: Generator) -> Iterator[None]:
    """Context manager: draws without a generator of their own are those of this one, which goes on.

    The generator in force stands in for it, and is where it was afterwards.
    """
    now = generator_for(None)
    if now is generator:
        yield
        return
    before = now.get_state()
    now.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(now.get_state())
        now.set_state(before)


# What users call; the functions between a draw and its bits are called for every draw.
explain_calls(globals(), names=("Generator", "manual_seed", "philox_bits", "set_rng_seed"))
