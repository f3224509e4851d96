"""What a file may cost whoever reads it: memory, and the time that keys of dicts take.

A small file could be made to fill the memory, or to keep Python busy for hours. Readers count what
they take before they take it, and writers refuse what they would not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from probtorch.serialization.header import Header, Pieces

__all__ = ["COSTS", "MAX_KEY", "ReadingBudget", "entries_of", "refuse_collisions"]

# Entries of a key that is a tuple, those of tuples in it included. Python hashes them by recursion,
# without a limit to its depth or to how often it comes by.
MAX_KEY = 1000
# Keys of one dict that may have the same hash. -1 and -2 have, and few others that anybody means.
MAX_COLLISIONS = 100
# What a file may take in memory: so many times its length, and something beside that. A list of
# empty lists takes 6 times its text, of empty dicts as much, of ordered ones 10.
GROWTH, ALLOWANCE = 12, 2**24

# Bytes that a node of each kind takes, without what it holds.
COSTS: defaultdict[str, int] = defaultdict(
    lambda: 72,
    {
        "ordered_dict": 250,
        "array": 250,
        "scalar": 250,
        "set": 250,
        "object": 400,
        "tensor": 700,
    },
)


class ReadingBudget:
    """The bytes that reading a file may take."""

    def __init__(self, header: Header, blobs: Sequence[np.ndarray]) -> None:
        nodes = header["nodes"]
        text = len(nodes.text) if isinstance(nodes, Pieces) else 0
        self.left = ALLOWANCE + GROWTH * (text + sum(b.size for b in blobs))

    def spend(self, size: int) -> None:
        """Count bytes of memory before they are taken."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"more than {GROWTH} times its length in memory")


def entries_of(key: object) -> int:
    """Return how many entries a key has, or a number above `MAX_KEY`."""
    parts, size = [key], 0
    while parts and size <= MAX_KEY:
        part = parts.pop()
        size += 1
        parts += part if isinstance(part, tuple) else ()
    return size


def refuse_collisions(keys: Sequence[object]) -> None:
    """Refuse keys of a dict that were made to have the same hash.

    Python knows keys by their hashes, and looks through all that have the same one. Those of
    numbers and tuples can be made to be.
    """
    hashes = np.sort(np.fromiter(map(hash, keys), np.int64))
    if (hashes[MAX_COLLISIONS:] == hashes[:-MAX_COLLISIONS]).any():
        raise ValueError("keys that were made to collide")
