"""Small process pools for tests: forked, so that they start at once and know the tests' modules."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

# Python 3.12 warns of threads in a process that forks; ours start anew in the child.
quiet = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def forked_pool(workers=2):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))
