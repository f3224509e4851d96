"""Datasets that test_loader.py loads, in a module where spawned workers find them."""

import os
import random
import signal
import time

import numpy as np

import probtorch
from probtorch.utils.data import Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    """Samples (i, i^2)."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index, index * index


class Noisy(Squares):
    """Samples with a draw from each of the global generators."""

    def __getitem__(self, index):
        return index, np.random.rand(), random.random(), probtorch.rand(2)


class Sharded(IterableDataset):
    """0 .. count - 1, each from one worker, with a draw."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return ((i, np.random.rand()) for i in range(first, self.count, step))

    def __len__(self):
        return self.count


class Unsharded(IterableDataset):
    """0 .. 4, in every worker."""

    def __iter__(self):
        return iter(range(5))


class Wrong(Squares):
    """A dataset that goes wrong at index 5, in a way of choice."""

    def __init__(self, count, how):
        super().__init__(count)
        self.how = how

    def __getitem__(self, index):
        if index == 5:
            WAYS[self.how]()
        return index


class Secretive(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, first, second):
        super().__init__(first + second)


def _key_error():
    raise KeyError("no such picture")


def _secretive():
    raise Secretive("half ", "and half")


def _stop_iteration():
    raise StopIteration


WAYS = {
    "key": _key_error,
    "secretive": _secretive,
    "stop": _stop_iteration,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(1000),
}


class Unsendable(Squares):
    """Samples that pickle refuses."""

    def __getitem__(self, index):
        return lambda: index


class Large(Squares):
    """Samples of 4 MB: more than a pipe holds."""

    def __getitem__(self, index):
        return np.full(500_000, float(index))


class WhoAmI(Squares):
    """What a worker knows about itself."""

    def __getitem__(self, index):
        info = get_worker_info()
        return info.id, info.num_workers, info.seed, info.dataset is self, os.getpid()


def first_of(samples):
    """Collate by keeping the first sample as it is."""
    return samples[0]
