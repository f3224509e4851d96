"""`DataLoader`: a dataset and an order of its samples, turned into batches.

Without workers batches are made where they are asked for; with workers, processes of
`data/worker.py` make them ahead. Either way batches come in the order of the sampler, and what is
in them depends on the seed of the loader only, not on the number of workers.

Where an epoch stands is a few integers: the state its generators had when it began, and the number
of batches handed out. `state_dict` returns them, and the epoch goes on from there exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from multiprocessing.context import BaseContext
from typing import Any, cast

from probtorch.core.philox import philox_bits
from probtorch.core.rng import Generator, default_generator
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.told import read
from probtorch.core.typed import StateDict, Tree
from probtorch.errors import ArgumentError
from probtorch.utils.data.collate import default_collate, default_convert
from probtorch.utils.data.dataset import IterableDataset, Samples, dataset_length
from probtorch.utils.data.epochs import Ahead, Epoch, WorkerCrew, batches_here
from probtorch.utils.data.fetching import Fetcher
from probtorch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from probtorch.utils.data.worker import start_method

__all__ = ["DataLoader"]


class DataLoader:
    """Batches of a dataset.

    Parameters
    ----------
    dataset : Dataset or IterableDataset
    batch_size : int or None
        Samples per batch; None hands out single samples as they are, arrays made tensors.
    shuffle : bool, optional
        A new random order in each epoch.
    sampler : iterable of int, optional
        The order, instead of `shuffle`.
    batch_sampler : iterable of list of int, optional
        Order and batches in one, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
    num_workers : int
        Processes that load ahead; 0 loads in this process.
    collate_fn : callable, optional
        Makes a batch of a list of samples; `default_collate` if None.
    pin_memory : bool
        Accepted for PyTorch's sake; without effect.
    drop_last : bool
        Leave out the last batch where it is smaller.
    timeout : float
        Seconds to wait for a batch from a worker before raising; 0 for any time.
    worker_init_fn : callable, optional
        Called in each worker with its number before it begins.
    multiprocessing_context : str or context, optional
        "fork", "spawn" or "forkserver". If None, the platform's own; on Linux "fork", with
        "forkserver" where threads of Python run and the dataset can be sent to such a worker.
    generator : Generator, optional
        Where order and seeds come from; the default generator if None.
    prefetch_factor : int, optional
        Batches under way per worker; 2 if None.
    persistent_workers : bool
        Keep the workers from one epoch to the next.
    pin_memory_device : str
        Accepted for PyTorch's sake; without effect.
    in_order : bool
        False hands out batches as they get ready.

    Raises
    ------
    ArgumentError
        For arguments that contradict each other.
    DTypeError
        If the dataset's length is needed and cannot be had; names its class.
    WorkerError
        While iterating: if a worker dies or a batch takes longer than `timeout`. Errors in a
        dataset are raised as they are, with the worker's traceback as their cause.

    Notes
    -----
    While a batch is made, the global generators of probtorch, NumPy and Python are seeded from the
    epoch's seed and the number of the batch, in workers and without them: random augmentation does
    not depend on the number of workers, and a resumed epoch draws the same. A seed set in
    `worker_init_fn` holds no longer than that function.

    Examples
    --------
    >>> from probtorch import arange
    >>> from probtorch.utils.data import TensorDataset
    >>> loader = DataLoader(TensorDataset(arange(5)), batch_size=2)
    >>> for (x,) in loader:
    ...     print(x)
    tensor([0, 1])
    tensor([2, 3])
    tensor([4])
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[..., object] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        self._check(locals())
        self.dataset: Any = dataset  # may have a length
        self.num_workers, self.generator = num_workers, generator
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.persistent_workers, self.in_order = persistent_workers, in_order
        stream = isinstance(dataset, IterableDataset)
        order: Any = sampler
        if sampler is None and not stream:
            sized = cast(Sized, dataset)  # a sampler says so where it is not
            if shuffle:
                order = RandomSampler(sized, generator=generator)
            else:
                order = SequentialSampler(sized)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        elif batch_size is not None and not stream:
            batch_sampler = BatchSampler(order, batch_size, drop_last)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = order, batch_sampler
        batched = batch_size is not None or batch_sampler is not None
        if collate_fn is None:
            collate_fn = default_collate if batched else default_convert
        self.collate_fn = collate_fn
        self._fetcher = Fetcher(dataset, collate_fn, batched, stream, drop_last)
        self._epoch: Epoch | None = None
        self._resume: StateDict | None = None
        self._crew: WorkerCrew | None = None

    def __getstate__(self) -> StateDict:
        # Iterators and processes of an epoch under way stay here; state_dict has its position.
        return {**self.__dict__, "_epoch": None, "_crew": None}

    def __repr__(self) -> str:
        return call_of(self, "sampler", "batch_sampler", "collate_fn", "generator")

    @staticmethod
    def _check(given: Mapping[str, Any]) -> None:
        """Refuse arguments that contradict each other; `given` are those of the constructor."""

        def refuse(wrong: object, subject: str, expected: str, fix: str) -> None:
            if wrong:
                names = [n for n in _CHECKED if given[n] not in (None, False, 0)]
                raise ArgumentError(
                    subject,
                    expected=expected,
                    got=", ".join(f"{n}={given[n]!r:.40}" for n in names) or "the defaults",
                    fix=fix,
                )

        batch_size, sampler = given["batch_size"], given["sampler"]
        refuse(
            given["num_workers"] < 0,
            "num_workers option should be non-negative",
            "num_workers >= 0",
            "use 0 to load in the main process",
        )
        refuse(
            given["timeout"] < 0,
            "timeout option should be non-negative",
            "timeout >= 0",
            "use 0 to wait as long as it takes",
        )
        for name in ("prefetch_factor", "multiprocessing_context"):
            refuse(
                given["num_workers"] == 0 and given[name] is not None,
                f"{name} option could only be specified in multiprocessing",
                "num_workers > 0",
                f"drop {name}, or set num_workers",
            )
        refuse(
            given["num_workers"] == 0 and given["persistent_workers"],
            "persistent_workers option needs num_workers > 0",
            "num_workers > 0",
            "drop persistent_workers, or set num_workers",
        )
        refuse(
            given["prefetch_factor"] is not None and given["prefetch_factor"] < 1,
            "prefetch_factor option should be positive",
            "prefetch_factor >= 1",
            "leave it out for 2",
        )
        if given["multiprocessing_context"] is not None:
            start_method(given["multiprocessing_context"])
        if isinstance(given["dataset"], IterableDataset):
            refuse(
                given["shuffle"] or sampler is not None or given["batch_sampler"] is not None,
                "DataLoader with IterableDataset: no order can be chosen",
                "no shuffle, sampler or batch_sampler",
                "shuffle inside the dataset's __iter__",
            )
        refuse(
            sampler is not None and given["shuffle"],
            "sampler option is mutually exclusive with shuffle",
            "one of them",
            "drop shuffle",
        )
        refuse(
            given["batch_sampler"] is not None
            and (batch_size != 1 or given["shuffle"] or sampler is not None or given["drop_last"]),
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
            "drop_last",
            "batch_sampler alone",
            "give the batch sampler those options",
        )
        refuse(
            batch_size is None and given["drop_last"],
            "batch_size=None option disables auto-batching and is mutually exclusive with "
            "drop_last",
            "a batch_size",
            "drop drop_last",
        )
        refuse(
            batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1),
            "batch_size should be a positive integer value",
            "an integer >= 1, or None",
            "pass an int",
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch; for a stream, by the length it claims."""
        if not self._fetcher.stream:
            return dataset_length(
                self.sampler if self.batch_sampler is None else self.batch_sampler
            )
        count = dataset_length(self.dataset)
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)

    @property
    def is_stream(self) -> bool:
        """Whether the dataset is a stream, whose samples have no numbers."""
        return self._fetcher.stream

    @property
    def epoch(self) -> Epoch | None:
        """Where the epoch begun last stands: its `rows` are those of the batch it handed out last.

        Rows are numbers of samples in the dataset; None for a stream, and before the first batch.
        """
        return self._epoch

    def load(self, rows: Iterable[int]) -> Tree:
        """Return the samples with the given numbers as one batch, made in this process."""
        # Consecutive rows are read as a slice where the dataset can.
        whole = isinstance(rows, range) and self._fetcher.draws_nothing
        return self._fetcher.get(rows if whole else list(rows), None)

    def __environment__(self) -> list[object]:
        """What of the loader a compiled function depends on: not how far an epoch is, as batches
        are made outside of it.
        """
        return [self.dataset, self.batch_size, self.drop_last, self.collate_fn]

    # --------------------------------------------------------------------------------------- epochs

    def __iter__(self) -> Iterator[Tree]:
        """Begin an epoch, or go on with the one that `load_state_dict` brought."""
        read("a pass over a DataLoader")
        epoch = self._epoch = self._begin()
        if not self.num_workers:
            return batches_here(self._fetcher, epoch)
        crew = self._crew
        if crew is None or not crew.workers:
            crew = WorkerCrew(self)
            self._crew = crew if self.persistent_workers else None
        return Ahead(self, crew, epoch)

    def _begin(self) -> Epoch:
        resume, self._resume = self._resume, None
        generators = self._generators()
        now = [g.get_state() for g in generators]
        if resume is not None:
            for g, state in zip(generators, resume["start"], strict=True):
                g.set_state(state)
        start = [list(g.get_state()) for g in generators]
        rng = generators[0]
        seed = philox_bits(rng.initial_seed(), rng.stream, rng.advance(1))
        keys = self._keys()
        done = 0
        if resume is not None:
            done = resume["batches"]
            if not self._fetcher.stream:
                for _ in range(done):
                    next(keys, None)
            for g, state in zip(generators, now):
                g.set_state(state)
        return Epoch(start, seed, keys, done)

    def _keys(self) -> Iterator[Any]:
        """Return an iterator over what each batch is made of."""
        if self._fetcher.stream:
            # A stream has no indices; the length of the key is the size of the batch.
            return iter(lambda: range(self.batch_size or 1), None)
        return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _generators(self) -> list[Generator]:
        """Return the generators that an epoch draws from when it begins, the loader's first."""
        owners = [self, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]
        found = [
            getattr(owner, "generator", None) or default_generator
            for owner in [*owners, self.sampler]
            if owner is not None
        ]
        return list({id(g): g for g in found if isinstance(g, Generator)}.values())

    # -------------------------------------------------------------------------- saving and resuming

    def state_dict(self, epoch: Epoch | None = None) -> StateDict:
        """Return where an epoch stands, as integers and lists of them.

        Parameters
        ----------
        epoch : optional
            From `epoch`; the one begun last by default.

        Returns
        -------
        dict
            "start": states of the generators when the epoch began, None between epochs;
            "batches": how many batches were handed out; "generators": the states now, None in
            place of the process's default generator, whose state is the script's to save.

        Raises
        ------
        ArgumentError
            With ``in_order=False``, where the batches handed out are not the first ones.
        """
        if not self.in_order:
            raise ArgumentError(
                "DataLoader.state_dict",
                expected="in_order=True",
                got="in_order=False, where no number says which batches came",
                fix="load in order, or save between epochs only what the script needs",
            )
        now = [None if g is default_generator else list(g.get_state()) for g in self._generators()]
        if epoch is None and self._resume is not None:
            return {**self._resume, "generators": now}
        epoch = epoch or self._epoch
        if epoch is None or epoch.over:
            return {"start": None, "batches": 0, "generators": now}
        return {"start": epoch.start, "batches": epoch.done, "generators": now}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Let the next epoch be the rest of the one that `state_dict` was taken in.

        The loader must have the same dataset, order and batch size; the number of workers may
        differ, except for streams. A stream is read again from its beginning up to where it was.

        Raises
        ------
        ArgumentError
            If the loader draws from another number of generators.
        """
        generators = self._generators()
        if len(state_dict["generators"]) != len(generators):
            raise ArgumentError(
                "DataLoader.load_state_dict",
                expected=f"states of {len(generators)} generators, those of the loader",
                got=f"{len(state_dict['generators'])}",
                fix="give loader and sampler the generators they had when the state was saved",
            )
        for g, state in zip(generators, state_dict["generators"]):
            if state is not None:
                g.set_state(state)
        self._epoch = None
        started = state_dict["start"] is not None
        self._resume = (
            {"start": state_dict["start"], "batches": state_dict["batches"]} if started else None
        )


_CHECKED = (
    "batch_size shuffle sampler batch_sampler num_workers drop_last timeout "
    "multiprocessing_context prefetch_factor persistent_workers"
).split()


explain_calls(globals())
