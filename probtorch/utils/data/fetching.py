"""How a batch is made of the samples of a dataset, and which random streams it draws from.

Draws inside a dataset come from streams made anew for each batch from the epoch's seed and the
batch's number (`streams_of`): what a batch holds depends neither on the number of workers nor on
where an epoch was resumed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from probtorch.core.philox import philox_bits
from probtorch.core.rng import default_generator
from probtorch.core.tree import record
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.utils.data.collate import default_collate
from probtorch.utils.data.dataset import fetch, takes_batches

__all__ = ["MASK", "Fetcher", "seed_all", "streams_of"]

MASK = 0xFFFFFFFF


@record
class Fetcher:
    """How to make a batch: what every worker, and the loader without workers, does with a key.

    `batched` says whether a key is a list of indices (or a number of samples of a stream) that is
    collated, or a single index.
    """

    dataset: Any
    collate: Callable[..., object]
    batched: bool
    stream: bool
    drop_last: bool = False

    def begin(self) -> Iterator[object] | None:
        """Return the iterator of a stream, None for a dataset with numbered samples."""
        return iter(self.dataset) if self.stream else None

    @property
    def draws_nothing(self) -> bool:
        """Whether no code but the library's own runs when a batch is made."""
        return self.batched and self.collate is default_collate and takes_batches(self.dataset)

    def get(self, key: Any, iterator: Iterator[Tree] | None) -> Tree:
        """Return the batch of `key`.

        Raises
        ------
        StopIteration
            At the end of a stream, and only there.
        """
        if self.stream:
            assert iterator is not None  # `begin` gave it
            if not self.batched:
                return self.collate(next(iterator))
            samples = list(itertools.islice(iterator, len(key)))
            if not samples or (self.drop_last and len(samples) < len(key)):
                raise StopIteration
            return self.collate(samples)
        try:
            if not self.batched:
                return self.collate(self.dataset[key])
            if self.draws_nothing:
                return self.dataset.take(key)
            return self.collate(fetch(self.dataset, key))
        except StopIteration as error:
            # Let through, it would look like the end of the epoch.
            raise ArgumentError(
                f"{type(self.dataset).__name__}: StopIteration while fetching {key!r:.60}",
                expected="a sample, or an IndexError for an index out of range",
                got="StopIteration",
                fix="derive from IterableDataset if the data are a stream",
            ) from error


class streams_of:
    """Context in which all global generators start from the seed of an epoch and a batch number.

    That is ours, NumPy's and Python's. They are put back at the end, errors included.
    """

    def __init__(self, seed: int, number: int) -> None:
        self.seed, self.number = seed, number

    def __enter__(self) -> None:
        self.before = default_generator.get_state(), np.random.get_state(), random.getstate()
        seed_all(self.seed, self.number)

    def __exit__(self, *exc: object) -> None:
        ours, numpys, pythons = self.before
        default_generator.set_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)


def seed_all(seed: int, number: int) -> None:
    """Seed the three global generators; stream 0 of a seed is left to its owner."""
    default_generator.set_state((seed, number + 1, 0))
    word = philox_bits(seed, 0, number)
    random.seed(word)
    np.random.seed(word & MASK)
