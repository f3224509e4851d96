"""In what order samples are loaded, and how they are grouped into batches.

A sampler is an iterable of indices with a length, one pass per epoch. The random ones take a single
number from their generator when a pass begins and draw the rest from a stream of their own: so the
order of an epoch is a function of the generator's state at its start, which is what lets the loader
resume in its middle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence, Sized

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributed.group import get_rank, get_world_size
from probtorch.errors import ArgumentError
from probtorch.ops.categories import multinomial
from probtorch.ops.random_integers import randint, randperm
from probtorch.utils.data.dataset import dataset_length

__all__ = [
    "BatchSampler",
    "BlockRandomSampler",
    "BucketBatchSampler",
    "DistributedSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

# Indices drawn at once with replacement, so that a pass over a billion does not begin with all.
CHUNK = 8192


class Sampler:
    """Base of samplers: define ``__iter__`` and, where it is known, ``__len__``."""

    def __init__(self, data_source: object = None) -> None:
        pass

    def __repr__(self) -> str:
        return call_of(self)

    def __iter__(self) -> Iterator[object]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__()")


class SequentialSampler(Sampler):
    """0, 1, 2, ...

    Parameters
    ----------
    data_source : Dataset
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(dataset_length(self.data_source)))

    def __len__(self) -> int:
        return dataset_length(self.data_source)


class RandomSampler(Sampler):
    """Samples in random order.

    Parameters
    ----------
    data_source : Dataset
    replacement : bool
        Whether a sample may come again before all have come.
    num_samples : int, optional
        Length of a pass; that of the dataset if None.
    generator : Generator, optional
        The default generator if None.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None:
            _check_count("num_samples", num_samples)
        self.data_source, self.replacement = data_source, replacement
        self._num_samples, self.generator = num_samples, generator

    @property
    def num_samples(self) -> int:
        """Length of a pass."""
        return dataset_length(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        return self._order(_own_stream(self.generator))

    def _order(self, rng: Generator) -> Iterator[int]:
        count, left = dataset_length(self.data_source), self.num_samples
        while left > 0 and count > 0:
            if self.replacement:
                part = randint(0, count, (min(left, CHUNK),), generator=rng).tolist()
            else:
                part = randperm(count, generator=rng).tolist()[:left]
            yield from part
            left -= len(part)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Given indices in random order.

    Parameters
    ----------
    indices : sequence of int
    generator : Generator, optional
        The default generator if None.
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        rng = _own_stream(self.generator)
        order = randperm(len(self.indices), generator=rng).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Indices drawn with given weights.

    Parameters
    ----------
    weights : sequence of float, or Tensor, shape (samples,)
        Nonnegative; they need not add up to 1.
    num_samples : int
        Length of a pass.
    replacement : bool
        Whether an index may come again.
    generator : Generator, optional
        The default generator if None.

    Raises
    ------
    ArgumentError
        If there are not enough positive weights to draw without replacement.
    """

    def __init__(
        self,
        weights: TensorLike,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _check_count("num_samples", num_samples)
        values = weights.array if isinstance(weights, TensorBase) else weights
        self.weights = wrap(np.array(values, np.float64))
        self.num_samples, self.replacement = num_samples, replacement
        self.generator = generator
        positive = int(np.count_nonzero(self.weights.array > 0))
        if self.weights.array.ndim != 1 or (not replacement and positive < num_samples):
            raise ArgumentError(
                "WeightedRandomSampler",
                expected=f"a list of weights, {num_samples} of them positive",
                got=f"shape {self.weights.array.shape}, {positive} positive",
                fix="draw fewer samples, or with replacement=True",
            )

    def __iter__(self) -> Iterator[int]:
        rng = _own_stream(self.generator)
        if not self.num_samples:
            return iter(())
        draws = multinomial(self.weights, self.num_samples, self.replacement, generator=rng)
        return iter(draws.tolist())

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(Sampler):
    """The part of a dataset that one of several processes loads.

    Parameters
    ----------
    dataset : Dataset
    num_replicas : int, optional
        How many processes there are; as many as the run has (`probtorch.distributed`).
    rank : int, optional
        Which one this is, from 0.
    shuffle : bool
        Whether each epoch has an order of its own, which `set_epoch` chooses.
    seed : int
        The same in all processes.
    drop_last : bool
        Leave samples out so that all processes have equally many; otherwise the first come twice.

    Raises
    ------
    ArgumentError
        If one of `num_replicas` and `rank` is left out, or `rank` is out of range.

    Examples
    --------
    >>> parts = [DistributedSampler(range(5), 2, rank, shuffle=False) for rank in range(2)]
    >>> [list(part) for part in parts]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None and rank is None:
            num_replicas, rank = get_world_size(), get_rank()
        if num_replicas is None or rank is None or not 0 <= rank < num_replicas:
            raise ArgumentError(
                "DistributedSampler",
                expected="the number of processes and the rank of this one, from 0",
                got=f"num_replicas={num_replicas}, rank={rank}",
                fix="pass both, or neither under mpirun",
            )
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        count = dataset_length(dataset)
        self.num_samples = count // num_replicas if drop_last else math.ceil(count / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        count = dataset_length(self.dataset)
        order = list(range(count))
        if self.shuffle:
            # A stream for each epoch, so that epochs of one seed are none of another's.
            order = randperm(count, generator=Generator(self.seed, stream=self.epoch)).tolist()
        if count < self.total_size:
            order = (order * math.ceil(self.total_size / count))[: self.total_size]
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, in all processes before they begin it."""
        self.epoch = epoch


class BlockRandomSampler(Sampler):
    """Every sample once, in random order among its neighbours, for data that are read in blocks.

    Blocks of consecutive samples come in random order, and within a few of them, together, samples
    do: so a pass over files on a disk reads each block once, and a batch has rows of several.

    Parameters
    ----------
    data_source : Dataset
    block_rows : int, optional
        Samples of a block; as many as a dataset on the disk says itself.
    together : int
        Blocks that are shuffled at a time.
    generator : Generator, optional
        The default generator if None.

    Raises
    ------
    ArgumentError
        If the size of a block is unknown or not positive.

    Examples
    --------
    >>> order = list(BlockRandomSampler(range(100), block_rows=10, together=2))
    >>> sorted(order) == list(range(100)), len({i // 10 for i in order[:20]})
    (True, 2)
    """

    def __init__(
        self,
        data_source: Sized,
        block_rows: int | None = None,
        together: int = 4,
        generator: Generator | None = None,
    ) -> None:
        given = getattr(data_source, "block_rows", None) if block_rows is None else block_rows
        _check_count("block_rows", given, 1)
        _check_count("together", together, 1)
        assert given is not None  # a count
        self.data_source, self.block_rows, self.together = data_source, int(given), int(together)
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return self._order(_own_stream(self.generator))

    def _order(self, rng: Generator) -> Iterator[int]:
        count = dataset_length(self.data_source)
        starts = [
            int(b) * self.block_rows
            for b in randperm(math.ceil(count / self.block_rows), generator=rng).tolist()
        ]
        for at in range(0, len(starts), self.together):
            rows = np.concatenate(
                [
                    np.arange(s, min(s + self.block_rows, count))
                    for s in starts[at : at + self.together]
                ]
            )
            yield from rows[randperm(len(rows), generator=rng).array].tolist()

    def __len__(self) -> int:
        return dataset_length(self.data_source)


class BatchSampler(Sampler):
    """Lists of indices from another sampler.

    Parameters
    ----------
    sampler : iterable of int
    batch_size : int
    drop_last : bool
        Leave out the last batch where it is smaller.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        _check_count("batch_size", batch_size, least=1)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator: the sampler's pass, and its draw from the generator, begin here.
        return self._batches(iter(self.sampler))

    def _batches(self, indices: Iterator[int]) -> Iterator[list[int]]:
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        return _batches_in(dataset_length(self.sampler), self.batch_size, self.drop_last)


class BucketBatchSampler(Sampler):
    """Random batches of samples of similar length, so that little padding is needed.

    Parameters
    ----------
    lengths : sequence of int
        Length of each sample.
    batch_size : int
    drop_last : bool
        Leave out the last batch where it is smaller.
    shuffle : bool
        Whether each epoch has an order of its own.
    window : int
        Batches that are sorted together: more of them need less padding and mix less.
    generator : Generator, optional
        The default generator if None.

    Notes
    -----
    Samples are shuffled, cut into windows, sorted by length inside each window, cut into batches,
    and the batches of a window are shuffled. With ``window=1`` batches are fully random.

    Examples
    --------
    >>> list(BucketBatchSampler([5, 1, 4, 2], batch_size=2, shuffle=False))
    [[1, 3], [2, 0]]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        drop_last: bool = False,
        *,
        shuffle: bool = True,
        window: int = 100,
        generator: Generator | None = None,
    ) -> None:
        _check_count("batch_size", batch_size, least=1)
        _check_count("window", window, least=1)
        self.lengths = np.asarray(
            lengths.array if isinstance(lengths, TensorBase) else lengths, dtype=np.int64
        )
        self.batch_size, self.drop_last = batch_size, drop_last
        self.shuffle, self.window, self.generator = shuffle, window, generator

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(_own_stream(self.generator) if self.shuffle else None)

    def _batches(self, rng: Generator | None) -> Iterator[list[int]]:
        count, size = len(self.lengths), self.batch_size
        order = np.arange(count) if rng is None else randperm(count, generator=rng).array
        for first in range(0, count, self.window * size):
            pool = order[first : first + self.window * size]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")].tolist()
            batches = [pool[i : i + size] for i in range(0, len(pool), size)]
            if self.drop_last and len(batches[-1]) < size:
                batches.pop()
            if rng is not None:
                batches = [batches[i] for i in randperm(len(batches), generator=rng).tolist()]
            yield from batches

    def __len__(self) -> int:
        return _batches_in(len(self.lengths), self.batch_size, self.drop_last)


def _batches_in(count: int, size: int, drop_last: bool) -> int:
    return count // size if drop_last else math.ceil(count / size)


def _own_stream(generator: Generator | None) -> Generator:
    """Return a generator for one pass; the shared one moves on by one."""
    return (default_generator if generator is None else generator).spawn(1)[0]


def _check_count(name: str, value: object, least: int = 0) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ArgumentError(
            f"{name} should be a positive integer value" if least else f"{name} should be a count",
            expected=f"an integer >= {least}",
            got=f"{name}={value!r}",
            fix="pass an int",
        )


explain_calls(globals())
