"""Random numbers inside compiled loops: pure functions of (seed, stream, counter).

A chain has one `Key` for its life; what moves is a counter, which is part of the kernel's state. So
draws do not depend on threads, chunks or whether the program is compiled, and a saved state resumes
exactly. See core/rng.py for the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.ops.random_numbers import bits_to_uniform, philox
from probtorch.ops.special import ndtri

if TYPE_CHECKING:
    from probtorch.core.rng import Generator

__all__ = ["CountedDraws", "Key", "bits", "key_of", "normals", "uniform"]


@record
class Key:
    """Seed and stream, each a 0-d int64 tensor holding the bits of an unsigned number."""

    seed: TensorBase
    stream: TensorBase


def key_of(generator: Generator) -> Key:
    """Return the `Key` of a Generator; its counter is not looked at."""
    seed, stream, _ = generator.get_state()
    return Key(_signed(seed), _signed(stream))


def _signed(word: int) -> TensorBase:
    return wrap(np.asarray(np.uint64(word)).view(np.int64))


def bits(key: Key, counter: TensorBase) -> TensorBase:
    """Return 64 random bits per element of `counter`, as int64."""
    return philox(key.seed, key.stream, counter)


def uniform(key: Key, counter: TensorBase) -> TensorBase:
    """Return draws from the open interval (0, 1), float64, one per element of `counter`."""
    return bits_to_uniform(bits(key, counter))


def normals(key: Key, counter: TensorBase, size: int) -> TensorBase:
    """Return `size` standard normal draws from the counters ``counter, counter + 1, ...``."""
    return ndtri(uniform(key, counter + wrap(np.arange(size))))


class CountedDraws(Listener):
    """While it listens, draws take their bits from a key and from consecutive counters.

    Parameters
    ----------
    key : Key
    counter : Tensor, 0-d int64

    Attributes
    ----------
    used : int
        Counters so far.
    """

    def __init__(self, key: Key, counter: TensorBase) -> None:
        self.key, self.counter, self.used = key, counter, 0

    def drawn(
        self, what: str, generator: Generator, count: int
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Return seed, stream and first counter."""
        first = self.counter + self.used
        self.used += count
        return self.key.seed, self.key.stream, first
