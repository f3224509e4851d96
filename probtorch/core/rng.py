"""Generators: the three integers that stand for a random stream.

Every random number in probtorch is a pure function of (seed, stream, counter), see philox.py. So a
draw is the same eagerly or compiled, on CPU or GPU, in whatever order and by however many workers
it is made, and the whole state of a generator is three integers.

Nothing here knows a distribution: `uniform` or `normal` are ops written on top of the bits.
"""

from __future__ import annotations

import operator
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from probtorch.core.dispatch import recorder
from probtorch.core.philox import WORD, sequence_of_bits
from probtorch.core.signatures import explain_calls
from probtorch.core.surroundings import surroundings
from probtorch.errors import ArgumentError

__all__ = [
    "Generator",
    "GeneratorState",
    "Used",
    "default_generator",
    "drawing_as",
    "generator_for",
    "generator_of",
    "manual_seed",
    "set_rng_seed",
    "state_of",
    "used",
]

# Key under which a stream's children are hashed: ASCII "spawning". Every constant does; it only has
# to stay the same.
_SPAWN_KEY = 0x737061776E696E67

# Of a generator made without a seed, the same for all, as PyTorch has it.
FIRST_SEED = 67280421310721


class GeneratorState(NamedTuple):
    """All that a generator knows: equal states draw equal numbers."""

    seed: int
    stream: int
    counter: int


# Generators by their ids, each with a state.
Used: TypeAlias = "dict[int, tuple[Generator, GeneratorState]]"


class _Used(threading.local):
    """What `used` fills, of this thread; None where nobody asks."""

    states: Used | None = None


_USED = _Used()


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

    def _note(self) -> None:
        """Note the state ahead of a change, for `used`."""
        if _USED.states is not None and id(self) not in _USED.states:
            now = GeneratorState(self._seed, self._stream, self._counter)
            _USED.states[id(self)] = self, now

    def _tell(self, how: str) -> None:
        """Tell who listens: whoever records a function has to repeat this, or refuse to."""
        active = recorder()
        if active is not None:
            active.restarted(self, how)

    @property
    def stream(self) -> int:
        """The stream number, in [0, 2**64)."""
        return self.get_state().stream

    @property
    def counter(self) -> int:
        """The first counter not yet handed out, in [0, 2**64)."""
        return self.get_state().counter

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
            self._note()
            self._counter = (first + n) & WORD
        return first

    def manual_seed(self, seed: int) -> Generator:
        """Start over with ``seed`` at counter 0, on the same stream; return the generator."""
        value = _word(seed, "seed")
        with self._lock:
            self._note()
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
        return self.get_state().seed

    def get_state(self) -> GeneratorState:
        """Return the three integers; `set_state` resumes from them exactly."""
        self._tell("looked at")
        return state_of(self)

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
            self._note()
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
        streams = sequence_of_bits(_SPAWN_KEY, self._stream, first, n).tolist()
        return [Generator(self._seed, stream) for stream in streams]

    def __repr__(self) -> str:
        seed, stream, counter = self.get_state()
        return f"Generator(seed={seed}, stream={stream}, counter={counter})"

    def __reduce__(self) -> tuple[object, ...]:
        # A lock cannot be pickled, and need not be: the state is the generator.
        return Generator, tuple(self.get_state())


def state_of(generator: Generator) -> GeneratorState:
    """Return the state of a generator, for whoever listens: `get_state` would tell of that."""
    with generator._lock:
        return GeneratorState(generator._seed, generator._stream, generator._counter)


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
        return operator.index(value) & WORD
    except TypeError:
        raise ArgumentError(
            "Generator",
            expected=f"an integer {name}",
            got=f"{value!r} of type {type(value).__name__}",
            fix=f"pass an int, for example int({name})",
        ) from None


default_generator = Generator(secrets.randbits(64))


def generator_for(given: Generator | None) -> Generator:
    """Return the generator that a draw comes from: the one given, or else the one in force.

    In force is that of the innermost `seed` handler, and outside of any the default generator.
    """
    if given is not None:
        return given
    found = surroundings().generator()
    return default_generator if found is None else found


def generator_of(seed: int | Generator | None) -> Generator:
    """Return the generator that an argument `seed` stands for: the default one for None."""
    if seed is None:
        return default_generator
    return seed if isinstance(seed, Generator) else Generator(seed)


@contextmanager
def used(states: Used | None) -> Iterator[None]:
    """Context manager: generators that this thread uses in it join those in `states`, each with the
    state that it had before; with None they join none.
    """
    before, _USED.states = _USED.states, states
    try:
        yield
    finally:
        _USED.states = before


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
explain_calls(globals(), names=("Generator", "manual_seed", "set_rng_seed"))
