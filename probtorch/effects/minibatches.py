"""Which rows the plates of a run work on: minibatches of a loader, step by step, or all rows.

Whoever runs a model says so by a source of rows in force (`runtime.STATE.rows`), beside the handler
stack, so that no handler can hide it. An optimisation has a `Feed`: within one step every run of
guide and model gets the same batch of a loader, and the next step the next one. Samplers and
predictions have `AllRows`. Without a source each run takes the next batch.

Read plates.py first; `utils/data/loader.py` has the loader.
"""

from __future__ import annotations

import abc
import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import recorder, wrap
from probtorch.core.rng import Generator, used
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.tree import leaves
from probtorch.core.typed import StateDict, Tree
from probtorch.distributed.shards import Shard
from probtorch.effects.runtime import STATE
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.pieces import cat
from probtorch.ops.random_integers import randint, randperm
from probtorch.ops.sorting import sort
from probtorch.tensor import Tensor
from probtorch.utils.data.epochs import Epoch
from probtorch.utils.data.loader import DataLoader
from probtorch.utils.data.sampler import (
    DistributedSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "AllRows",
    "Feed",
    "Minibatch",
    "RowSource",
    "StrangeLoader",
    "draw_rows",
    "next_minibatch",
    "rows_there_are",
]

# Up to here a permutation of all rows is as quick: 0.5 ms.
FEW_ROWS = 2000


class StrangeLoader(Exception):
    """A recording met a loader whose batch is none of its inputs; the step has to be eager."""


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """What a loader handed out, and which rows of its dataset that is.

    Attributes
    ----------
    data : tree of Tensor
        As the loader made it.
    rows : Tensor of int64, shape (size,), or None
        None for a stream, whose rows have no numbers.
    size : int
        Number of rows.
    shard : Shard or None
        The part of this process, if these are rows of it and others have the rest.
    """

    data: Tree
    rows: Tensor | None
    size: int
    shard: Shard | None = None


def rows_there_are(name: str, loader: DataLoader, size: int | None) -> int:
    """Return the number of rows that a loader's batches stand for.

    Parameters
    ----------
    name : str
        Of the plate.
    loader : DataLoader
    size : int or None
        What the user said; needed for a stream of unknown length.

    Raises
    ------
    ArgumentError
        If the batches are no uniform subsamples, single samples are loaded, or the number is
        unknown.
    """
    order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    for sampler in (order, getattr(order, "sampler", None)):
        if isinstance(sampler, (SubsetRandomSampler, WeightedRandomSampler)):
            raise ArgumentError(
                f"plate {name!r}: loader with a {type(sampler).__name__}",
                expected="batches in which every row of the dataset is as likely as any other",
                got="an order that leaves out rows or prefers some, so that sums would be biased",
                fix="use Subset(dataset, indices) with shuffle=True"
                if isinstance(sampler, SubsetRandomSampler)
                else "shuffle=True, and weight rows in the model with handlers.scale",
            )
    if loader.batch_sampler is None and loader.batch_size is None:
        raise ArgumentError(
            f"plate {name!r}: loader with batch_size=None",
            expected="a loader of batches",
            got="one of single samples",
            fix="give the loader a batch_size",
        )
    if size is not None:
        return size
    try:
        return len(loader.dataset)
    except TypeError:
        raise ArgumentError(
            f"plate {name!r}: loader",
            expected="a dataset with a length",
            got=f"a {type(loader.dataset).__name__} without one",
            fix=f"say how many rows there are: plate({name!r}, count, loader=loader)",
        ) from None


def draw_rows(count: int, size: int, generator: Generator) -> Tensor:
    """Return `size` of `count` row numbers in random order, none twice; can be recorded.

    Where `size` is small, its cost does not depend on `count`: numbers are drawn with replacement,
    a few more than needed, and the first that differ are kept, which are a uniform subset.
    """
    if count <= FEW_ROWS or 8 * size > count:
        return randperm(count, generator=generator)[:size]
    # About size**2 / (2 * count) come twice. 8 times as many, and 16, are enough but for one case
    # in 10**18 (Poisson tail at the worst size, 67 of 2001).
    total = size + 4 * size * size // count + 16
    drawn = randint(0, count, (total,), generator=generator)
    values, place = sort(drawn)
    # Places of first appearances stay, those of others are put behind all of them.
    repeated = where(values[1:] == values[:-1], total, 0)
    place = cat([place[:1], place[1:] + repeated])
    order, at = sort(place)
    if bool(order[size - 1] >= total):
        return randperm(count, generator=generator)[:size]
    return values[at[:size]]


def next_minibatch(name: str, loader: DataLoader, shard: Shard | None) -> Minibatch:
    """Return the next batch of a loader for a run that no inference makes."""
    _check_sampler(name, loader, shard)
    read("the next batch of a loader")
    for _ in range(2):
        if loader not in _LOOSE:
            _LOOSE[loader] = iter(loader), loader.epoch
        iterator, epoch = _LOOSE[loader]
        assert epoch is not None  # the iterator began one
        with contextlib.suppress(StopIteration):
            return _made(name, next(iterator), epoch.rows)
        del _LOOSE[loader]
    raise _no_batches(name)


# Where loaders stand that are used outside of inference.
_LOOSE: weakref.WeakKeyDictionary[DataLoader, tuple[Iterator[Tree], Epoch | None]] = (
    weakref.WeakKeyDictionary()
)


# Data and rows by the id of a loader.
Batch: TypeAlias = tuple[Tree, Tensor | None]


class RowSource(abc.ABC):
    """Base of the sources of rows.

    Attributes
    ----------
    whole : bool
        Whether plates that would draw subsamples work on all their rows.
    joins_shards : bool
        Whether who runs the model puts the parts of plates together that processes share.
    """

    whole = False
    joins_shards = True

    @abc.abstractmethod
    def minibatch(self, name: str, loader: DataLoader, shard: Shard | None) -> Minibatch:
        """Return the rows that plate `name` is to work on, of this process's part if given."""

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Context manager: plates of this thread take their rows from here."""
        before, STATE.rows = STATE.rows, self
        try:
            yield
        finally:
            STATE.rows = before


class AllRows(RowSource):
    """All rows of every plate; datasets are loaded once, and kept.

    Parameters
    ----------
    convert : callable, optional
        Applied to the data.
    """

    whole = True

    def __init__(self, convert: Callable[[Tree], Tree] | None = None) -> None:
        self.convert = convert
        # The loader is kept beside its data, so that its id stays its own.
        self._loaded: dict[tuple[int, range], tuple[DataLoader, Minibatch]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"convert": self.convert, "_loaded": {}}  # elsewhere loaders have other ids

    def minibatch(self, name: str, loader: DataLoader, shard: Shard | None) -> Minibatch:
        """Return the whole dataset of `loader`, in order, or this process's part of it."""
        if loader.is_stream:
            raise ModelError(
                f"plate {name!r}: all rows of a stream",
                expected="a dataset with numbered samples, where a sampler or a prediction "
                "needs all rows",
                got=f"a loader of {type(loader.dataset).__name__}",
                fix="write the plate with arrays, or use SVI",
            )
        rows = range(len(loader.dataset)) if shard is None else range(shard.start, shard.stop)
        key = id(loader), rows
        if key not in self._loaded:
            data = loader.load(rows)
            data = data if self.convert is None else self.convert(data)
            # None for the rows: all of them in order, as without a loader.
            numbers = None if shard is None else wrap(np.arange(rows.start, rows.stop))
            self._loaded[key] = loader, Minibatch(data, numbers, len(rows), shard)
        return self._loaded[key][1]


class Feed(RowSource):
    """Where the loaders of an optimisation stand: a batch of each per step.

    A loader is asked when a run first enters its plate, and the batch is kept until a step has used
    it. So whatever runs between two steps sees the batch of the step to come.

    Parameters
    ----------
    convert : callable, optional
        Applied to the data.
    """

    joins_shards = False  # unless the steps average their gradients

    def __init__(self, convert: Callable[[Tree], Tree] | None = None) -> None:
        self.convert = convert
        # Loaders that nobody else holds are let go, with their data.
        self._streams: weakref.WeakKeyDictionary[DataLoader, _Stream] = weakref.WeakKeyDictionary()
        # Those of the step before, by the id of the loader, and those met since.
        self._active: dict[int, _Stream] = {}
        self._met: dict[int, _Stream] = {}
        # States of loaders, by plate, that have not been met yet.
        self._waiting: dict[str, StateDict] = {}
        self._lent: dict[int, Batch] | None = None

    def __getstate__(self) -> dict[str, object]:
        # Streams hold on to iterators, of workers even; elsewhere they go on from their positions.
        state = {"convert": self.convert, "_waiting": self.state_dict()}
        return state | {"joins_shards": self.joins_shards}

    def __setstate__(self, state: StateDict) -> None:
        self.__init__(state["convert"])  # type: ignore[misc]  # all else comes from the positions
        self._waiting = state["_waiting"]
        self.joins_shards = state.get("joins_shards", False)

    def __bool__(self) -> bool:
        """Whether steps use loaders."""
        return bool(self._active)

    def minibatch(self, name: str, loader: DataLoader, shard: Shard | None) -> Minibatch:
        """Return the batch of this step."""
        _check_sampler(name, loader, shard)
        stream = self._met[id(loader)] = self._stream(name, loader)
        with used(None):  # the batch stays, and what it took, if this run is made again
            batch = stream.current(self.convert)
        if recorder() is None:
            return batch
        if self._lent is None:
            read("the next batch of a loader")
            return batch
        if id(loader) not in self._lent:
            raise StrangeLoader(f"the loader of plate {name!r} is not that of the step before")
        data, rows = self._lent[id(loader)]
        return Minibatch(data, rows, batch.size)

    def _stream(self, name: str, loader: DataLoader) -> _Stream:
        stream = self._streams.get(loader)
        if stream is None:
            stream = self._streams[loader] = _Stream(name, loader)
            state = self._waiting.pop(name, None)
            if state is not None:
                stream.go_to(state)
                self._active[id(loader)] = stream
        return stream

    # ----------------------------------------------------------------------------------- steps

    def begin(self) -> None:
        """Begin a step: load its batches, so that a new epoch draws its order before all else."""
        self._met = {}
        self._active = {k: s for k, s in self._active.items() if s.loader is not None}
        for stream in self._active.values():
            stream.current(self.convert)

    def batches(self) -> dict[int, Batch]:
        """Return data and rows of this step by loader, for a recording to take as its inputs."""
        self._met.update(self._active)
        made = {key: stream.current(self.convert) for key, stream in self._active.items()}
        return {key: (batch.data, batch.rows) for key, batch in made.items()}

    @contextlib.contextmanager
    def lending(self, batches: dict[int, Batch]) -> Iterator[None]:
        """Context manager: while recording, plates get `batches`, which are inputs."""
        self._lent = batches
        try:
            yield
        finally:
            self._lent = None

    def end(self) -> None:
        """End a step: the batches it used are done with."""
        self._active, self._met = self._met, {}
        for stream in self._active.values():
            stream.finish()

    def looked(self) -> None:
        """End an evaluation between steps: a loader that steps do not use goes on to its next."""
        for key, stream in self._met.items():
            if self._active and key not in self._active:
                stream.finish()
        self._met = {}

    # ------------------------------------------------------------------------ saving, resuming

    def state_dict(self) -> StateDict:
        """Return where the loaders that steps use stand, by plate."""
        used = (self._active or self._met).values()
        return self._waiting | {s.name: s.state() for s in used if s.loader is not None}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from `state`; parts of it wait for loaders that have not been met yet."""
        self._waiting, self._met = dict(state), {}
        # Where a name has several, it is that of the one which steps use.
        known = dict.fromkeys((*self._active.values(), *self._streams.values()))
        self._active = {}
        for stream in known:
            loader = stream.loader
            if loader is not None:
                saved = self._waiting.pop(stream.name, None)
                stream.go_to(saved)
                if saved is not None:
                    self._active[id(loader)] = stream


class _Stream:
    """One loader of a feed."""

    def __init__(self, name: str, loader: DataLoader) -> None:
        self.name, self._loader = name, weakref.ref(loader)
        # Others may iterate over the loader in between: the epoch is the iterator's own.
        self.iterator: Iterator[Tree] | None = None
        self.epoch: Epoch | None = None
        # The batch in use, and where the loader stood before it.
        self.batch: Minibatch | None = None
        self.before: StateDict | None = None

    @property
    def loader(self) -> DataLoader | None:
        """The loader, None if it is gone."""
        return self._loader()

    def _there(self) -> DataLoader:
        loader = self.loader
        assert loader is not None  # who asks for rows holds it
        return loader

    def current(self, convert: Callable[[Tree], Tree] | None) -> Minibatch:
        """The batch of this step, loaded if it is not there yet."""
        if self.batch is None:
            data = self._next()
            assert self.epoch is not None  # `_next` began it
            batch = _made(self.name, data, self.epoch.rows)
            if convert is not None:
                batch = Minibatch(convert(batch.data), batch.rows, batch.size)
            self.batch = batch
        return self.batch

    def _next(self) -> Tree:
        for _ in range(2):
            if self.iterator is None:
                self.iterator, self.epoch = iter(self._there()), self._there().epoch
            self.before = self._position()
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
            self.iterator = None
        raise _no_batches(self.name)

    def _position(self) -> StateDict | None:
        # Out of order there is none; who asks for the state is told.
        loader = self._there()
        return loader.state_dict(self.epoch) if loader.in_order else None

    def finish(self) -> None:
        """The batch in use is done with."""
        self.batch = self.before = None

    def go_to(self, state: StateDict | None) -> None:
        """Go on from `state`, or from a new epoch if there is none."""
        self.iterator = self.epoch = self.batch = self.before = None
        if state is not None:
            self._there().load_state_dict(state)

    def state(self) -> StateDict:
        """Where the loader stood after the last batch that a step is through with."""
        return self.before or self._there().state_dict(self.epoch)


def _check_sampler(name: str, loader: DataLoader, shard: Shard | None) -> None:
    """Refuse minibatches that would be the same in all processes."""
    order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if shard is None or isinstance(getattr(order, "sampler", order), DistributedSampler):
        return
    raise ArgumentError(
        f"plate {name!r}: shard=True with a loader",
        expected="minibatches of its own in each process",
        got=f"a loader with a {type(order).__name__}",
        fix="DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))",
    )


def _no_batches(name: str) -> ArgumentError:
    return ArgumentError(
        f"plate {name!r}: loader",
        expected="at least one batch",
        got="none",
        fix="check the dataset; with drop_last=True it must have batch_size rows",
    )


def _made(name: str, data: Tree, rows: Sequence[int] | None) -> Minibatch:
    """The minibatch of these data."""
    counts = [len(x.array) for x in leaves(data) if isinstance(x, TensorBase) and x.array.ndim]
    if rows is None:
        if not counts:
            raise ShapeError(
                f"plate {name!r}: batch of a stream",
                expected="a tensor with one row per sample, which tells how many there are",
                got="no tensor with dims",
                fix="let the loader's collate_fn stack the samples",
            )
        return Minibatch(data, None, counts[0])
    if counts and len(rows) not in counts:
        raise ShapeError(
            f"plate {name!r}: batch of {len(rows)} rows",
            expected=f"tensors with {len(rows)} rows, one for each that was loaded",
            got=f"{counts[0]} rows",
            fix="let the loader's collate_fn keep every sample; leave rows out of the dataset, or "
            "mask them in the model",
        )
    return Minibatch(data, wrap(np.asarray(rows, np.int64)), len(rows))
