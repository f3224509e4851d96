"""What can be loaded: things with numbered samples, and streams of samples.

A map-style dataset has ``dataset[i]`` and ``len(dataset)``; an `IterableDataset` only an order. A
dataset whose samples lie ready in tensors also has `take`, which fetches a whole batch in one
indexing operation: the loader uses it where nobody could see a difference.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, SupportsIndex

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Index, Tree
from probtorch.errors import (
    ArgumentError,
    DTypeError,
    ProbtorchError,
    ShapeError,
    TensorIndexError,
)
from probtorch.ops.gathering import index_select
from probtorch.ops.random_integers import randperm
from probtorch.tensor import Tensor

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "Samples",
    "StackDataset",
    "StoredRows",
    "Subset",
    "TensorDataset",
    "dataset_length",
    "fetch",
    "random_split",
    "takes_batches",
]


class Samples(Protocol):
    """What has numbered samples: a `Dataset`, a list, an array, a tensor."""

    def __getitem__(self, index: Any, /) -> Tree:
        """Return a sample."""


class Dataset:
    """Base of datasets with numbered samples: define ``__getitem__`` and ``__len__``.

    A subclass may also define ``__getitems__(indices)``, returning a list of samples, where
    fetching many at once is cheaper. ``a + b`` is the one after the other.

    Examples
    --------
    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 4
    ...
    ...     def __getitem__(self, index):
    ...         return index * index
    >>> Squares()[3]
    9
    """

    def __getitem__(self, index: Any) -> Tree:
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__()")

    def __repr__(self) -> str:
        size = getattr(type(self), "__len__", None)
        return f"{type(self).__name__}({f'{size(self)} samples' if size else ''})"

    def __add__(self, other: Samples) -> Dataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Base of datasets that are streams: define ``__iter__``.

    In a loader with several workers each worker iterates over its own copy: let ``__iter__`` ask
    `get_worker_info` which part to yield, or every sample comes once per worker.
    """

    def __iter__(self) -> Iterator[Tree]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__()")

    def __add__(self, other: Samples) -> Dataset:
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Samples that are slices of tensors along their first dim.

    Parameters
    ----------
    *tensors : Tensor, each of shape (samples, ...)

    Raises
    ------
    ShapeError
        If their first dims differ.

    Examples
    --------
    >>> from probtorch import arange
    >>> data = TensorDataset(arange(4), arange(4) * 10)
    >>> data[2]
    (tensor(2), tensor(20))
    """

    def __init__(self, *tensors: Tensor) -> None:
        for i, t in enumerate(tensors):
            if not isinstance(t, TensorBase):
                raise DTypeError(
                    "TensorDataset",
                    expected="tensors",
                    got=f"{type(t).__name__} as argument {i}",
                    fix="wrap it in probtorch.as_tensor",
                )
        sizes = [t.array.shape[:1] for t in tensors]
        if not sizes or () in sizes or len(set(sizes)) != 1:
            raise ShapeError(
                "TensorDataset: size mismatch between tensors",
                expected="at least one tensor, all with the same number of samples in dim 0",
                got=f"shapes {', '.join(str(t.array.shape) for t in tensors) or '(none)'}",
                fix="check that no tensor was transposed or filtered alone",
            )
        self.tensors = tensors

    def __getitem__(self, index: Index) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].array.shape[0]

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the batch of these samples, as `default_collate` would make it."""
        numbers = np.asarray(indices, np.int64)
        # As `self[i]` does, it counts negative ones from the end.
        rows = wrap(np.where(numbers < 0, numbers + len(self), numbers))
        return [index_select(t, 0, rows) for t in self.tensors]


class StoredRows(Dataset):
    """Base of datasets that stay where they are stored, and are read some rows at a time.

    Subclasses define ``__len__`` and `take`. Minibatches read the rows that they want; whoever
    needs all rows (a sampler, for its log density) reads them in blocks of `block_rows`, so that
    memory does not grow with the data.

    Attributes
    ----------
    block_rows : int
    """

    block_rows = 1

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the batch of these samples: tensors with a row for each."""
        raise NotImplementedError(f"{type(self).__name__} does not define take()")

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, ...]:
        at = operator.index(index)
        size = dataset_length(self)
        if not -size <= at < size:
            raise TensorIndexError(
                type(self).__name__,
                expected=f"an index from {-size} to {size - 1}",
                got=str(at),
                fix="check the sampler",
            )
        return tuple(x[0] for x in self.take([at % size]))


class Subset(Dataset):
    """Some samples of a dataset, renumbered.

    Parameters
    ----------
    dataset : Dataset
    indices : sequence of int
        What samples, in the order they shall have.
    """

    def __init__(self, dataset: Samples, indices: Sequence[int]) -> None:
        self.dataset: Any = dataset  # `take` and `__getitems__` are looked for
        self.indices = indices

    def __getitem__(self, index: int | list[int] | tuple[int, ...]) -> Tree:
        if isinstance(index, (list, tuple)):
            return self.__getitems__(index)
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Tree]:
        """Return a list of samples, fetched at once where the dataset can."""
        return fetch(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Sequence[int]) -> Tree:
        """Return the batch of these samples; only where the dataset has `take` itself."""
        return self.dataset.take([self.indices[i] for i in indices])


class ConcatDataset(Dataset):
    """Datasets one after the other, as one.

    Parameters
    ----------
    datasets : iterable of Dataset
        With lengths.

    Raises
    ------
    ArgumentError, DTypeError
        If there are none, or one is a stream.
    """

    def __init__(self, datasets: Iterable[Samples]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError(
                "ConcatDataset: datasets should not be an empty iterable",
                expected="at least one dataset",
                got="none",
                fix="check where the list comes from",
            )
        for d in self.datasets:
            if isinstance(d, IterableDataset):
                raise DTypeError(
                    "ConcatDataset does not support IterableDataset",
                    expected="datasets with numbered samples",
                    got=type(d).__name__,
                    fix="use ChainDataset for streams",
                )
        self.cumulative_sizes = list(itertools.accumulate(dataset_length(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Tree:
        if not -len(self) <= index < len(self):
            raise TensorIndexError(
                "ConcatDataset",
                expected=f"an index from {-len(self)} to {len(self) - 1}",
                got=str(index),
                fix="check the sampler",
            )
        index %= len(self)
        which = bisect.bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]


class StackDataset(Dataset):
    """Datasets side by side: a sample has one of each.

    Parameters
    ----------
    *args : Dataset
        Samples are tuples.
    **kwargs : Dataset
        Samples are dicts with these names.

    Raises
    ------
    ArgumentError
        If there are none, or both kinds.
    ShapeError
        If their lengths differ.

    Examples
    --------
    >>> StackDataset(image=[10, 20, 30], text=["a", "b", "c"])[1]
    {'image': 20, 'text': 'b'}
    """

    def __init__(self, *args: Samples, **kwargs: Samples) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError(
                "StackDataset: at least one dataset should be passed, and tuples or dicts chosen",
                expected="datasets by position, or datasets by name",
                got="both" if args else "none",
                fix="write StackDataset(images, texts) or StackDataset(image=images, text=texts)",
            )
        self.datasets: tuple[Samples, ...] | dict[str, Samples] = args or kwargs
        lengths = [dataset_length(d) for d in self._parts()]
        if len(set(lengths)) > 1:
            raise ShapeError(
                "StackDataset: size mismatch between datasets",
                expected="as many samples in each",
                got=f"lengths {', '.join(map(str, lengths))}",
                fix="take the same Subset of each",
            )
        self._length = lengths[0]

    def _parts(self) -> list[Samples]:
        return list(self.datasets.values() if isinstance(self.datasets, dict) else self.datasets)

    def _sample(self, values: Iterable[Tree]) -> Tree:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, values))
        return tuple(values)

    def __getitem__(self, index: int) -> Tree:
        return self._sample(d[index] for d in self._parts())

    def __getitems__(self, indices: Sequence[int]) -> list[Tree]:
        """Return a list of samples, fetched at once from the datasets that can.

        Raises
        ------
        ShapeError
            If one returns another number of them.
        """
        columns = [fetch(d, indices) for d in self._parts()]
        for d, column in zip(self._parts(), columns):
            if len(column) != len(indices):
                raise ShapeError(
                    f"StackDataset: __getitems__ of {type(d).__name__}",
                    expected=f"{len(indices)} samples",
                    got=str(len(column)),
                    fix="let it return one sample for each index",
                )
        return [self._sample(row) for row in zip(*columns)]

    def __len__(self) -> int:
        return self._length


class ChainDataset(IterableDataset):
    """Streams one after the other, as one.

    Parameters
    ----------
    datasets : iterable of IterableDataset
    """

    def __init__(self, datasets: Iterable[Samples]) -> None:
        self.datasets: list[Any] = list(datasets)
        for d in self.datasets:
            if not isinstance(d, IterableDataset):
                raise DTypeError(
                    "ChainDataset only supports IterableDataset",
                    expected="streams",
                    got=type(d).__name__,
                    fix="use ConcatDataset for datasets with numbered samples",
                )

    def __iter__(self) -> Iterator[Tree]:
        return itertools.chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        return sum(dataset_length(d) for d in self.datasets)


def random_split(
    dataset: Samples, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset]:
    """Deal the samples of a dataset at random into parts that do not overlap.

    Parameters
    ----------
    dataset : Dataset
    lengths : sequence of int, or of float
        Sizes of the parts, which add up to the whole; or fractions, which add up to 1 (what
        rounding leaves over goes to the first parts, one sample each).
    generator : Generator, optional
        The default generator if None.

    Returns
    -------
    list of Subset

    Raises
    ------
    ArgumentError
        If the lengths do not add up.

    Examples
    --------
    >>> from probtorch import arange
    >>> [len(part) for part in random_split(TensorDataset(arange(10)), [0.75, 0.25])]
    [8, 2]
    """
    count = dataset_length(dataset)
    sizes: list[Any] = list(lengths)
    if any(isinstance(size, float) for size in sizes):
        # isclose, because 0.7 + 0.2 + 0.1 is not 1.
        if min(sizes) < 0 or not math.isclose(sum(sizes), 1.0, rel_tol=1e-9):
            raise _bad_lengths("fractions >= 0 that add up to 1", sizes)
        floors = [math.floor(count * size) for size in sizes]
        for i in range(count - sum(floors)):
            floors[i % len(floors)] += 1
        sizes = floors
    if min(sizes, default=-1) < 0 or sum(sizes) != count:
        raise _bad_lengths(f"sizes >= 0 that add up to {count}, the length of the dataset", sizes)
    order = randperm(count, generator=generator).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends)]


def _bad_lengths(expected: str, sizes: Sequence[float]) -> ArgumentError:
    return ArgumentError(
        "random_split: sum of input lengths does not equal the length of the input dataset",
        expected=expected,
        got=f"{sizes}, which add up to {sum(sizes)}",
        fix="give fractions, or len(dataset) minus the others as the last size",
    )


def dataset_length(dataset: Any) -> int:
    """Return ``len(dataset)``, or an error that names the class of the dataset."""
    try:
        return len(dataset)
    except ProbtorchError:
        raise  # of what it is made of
    except TypeError as error:
        raise DTypeError(
            f"len() of {type(dataset).__name__}",
            expected="a method __len__(self) that returns a number",
            got=str(error),
            fix=f"define {type(dataset).__name__}.__len__ with no argument but self",
        ) from error


def fetch(dataset: Samples, indices: Sequence[int]) -> list[Tree]:
    """Return the samples at `indices`, at once where the dataset can."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[i] for i in indices]


def takes_batches(dataset: Samples) -> bool:
    """Whether `take` gives what collating single samples would: nobody has redefined a sample."""
    kind: Any = type(dataset)
    if isinstance(dataset, Subset):
        unchanged = kind.__getitem__ is Subset.__getitem__
        unchanged = unchanged and kind.__getitems__ is Subset.__getitems__
        return unchanged and takes_batches(dataset.dataset)
    return any(
        isinstance(dataset, base) and kind.__getitem__ is base.__getitem__
        for base in (TensorDataset, StoredRows)
    )


explain_calls(globals())
