"""R-hat and effective sizes of chains that are still running, in bounded memory.

A chain keeps the means and the spread of up to 64 batches of its draws; when there are 64, batches
are joined in pairs. From these follow the split R-hat, by the batches of the two halves, and the
effective size by replicated batch means: the variance of batch means around the mean of all chains
[gupta2020]_, so that chains that disagree have few effective draws [vats2019]_: about as many as
there are batches, while R-hat says how far apart they are. Both are the plain statistics, not those
of ranks, which need all draws; `diagnose` has these when the run is over.
"""

from __future__ import annotations

import copy
import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Self

import numpy as np

from probtorch.core.typed import Tree

__all__ = ["BatchMoments", "RunningTrace", "convergence"]

# Batches of a chain at most; twice as many as make a batch mean's variance known to 25 %.
BATCHES = 64
# In draws of more numbers than this, a quarter of it: some kilobytes a number are too many then.
LARGE, FEW = 2**14, 16
# Fewer batches than this in a chain say nothing.
FEWEST = 8

_taking_in = threading.Lock()


class BatchMoments:
    """Means and sums of squares of one chain's draws, by batches.

    Parameters
    ----------
    size : int
        Numbers in a draw.

    Attributes
    ----------
    length : int
        Draws in a batch.
    count : int
        Batches that are full.
    means, squares : ndarray, shape (64, size), or (16, size) of many numbers
        Of the batches; squares are those of differences from the mean of their batch.
    """

    def __init__(self, size: int) -> None:
        self.length, self.count = 1, 0
        self._room = FEW if size > LARGE else BATCHES
        self.means = np.zeros((self._room, size))
        self.squares = np.zeros((self._room, size))
        # The batch that is being filled is the one after those that are full.
        self._begun = 0

    def add(self, rows: np.ndarray) -> None:
        """Take in more draws.

        Parameters
        ----------
        rows : ndarray, shape (draws, size)
        """
        while len(rows):
            if self.count == self._room:
                self._join()
            if not self._begun and len(rows) >= self.length:
                # Whole batches, in one go.
                new = min(len(rows) // self.length, self._room - self.count)
                whole = rows[: new * self.length].reshape(new, self.length, -1)
                self._put(self.count, whole.mean(axis=1), whole)
                self.count += new
                rows = rows[new * self.length :]
                continue
            part = rows[: self.length - self._begun]
            rows = rows[len(part) :]
            self._merge(part)

    def _put(self, at: int, means: np.ndarray, whole: np.ndarray) -> None:
        self.means[at : at + len(means)] = means
        self.squares[at : at + len(means)] = np.square(whole - means[:, None]).sum(axis=1)

    def _merge(self, part: np.ndarray) -> None:
        """Add draws to the batch that is being filled."""
        mean = part.mean(axis=0)
        squares = np.square(part - mean).sum(axis=0)
        before, added = self._begun, len(part)
        if before:
            step = mean - self.means[self.count]
            mean = self.means[self.count] + step * (added / (before + added))
            squares += self.squares[self.count] + step**2 * (before * added / (before + added))
        self.means[self.count], self.squares[self.count] = mean, squares
        self._begun = before + added
        if self._begun == self.length:
            self.count, self._begun = self.count + 1, 0

    def _join(self) -> None:
        """Join batches in pairs."""
        self.means, self.squares = _paired(self.means, self.squares, self.length)
        rest = np.zeros_like(self.means)
        self.means = np.concatenate([self.means, rest])
        self.squares = np.concatenate([self.squares, rest])
        self.length, self.count = 2 * self.length, self.count // 2

    def followed_by(self, later: BatchMoments) -> BatchMoments:
        """Return the moments of these draws and of later ones, but for what fills no batch."""
        made = self.copy()
        length, parts = max(self.length, later.length), []
        for x in (self, later):
            means, squares, size = *x.full(), x.length
            while size < length:
                means, squares = _paired(means, squares, size)
                size *= 2
            parts.append((means, squares))
        means, squares = map(np.concatenate, zip(*parts))
        while len(means) > self._room:
            means, squares = _paired(means, squares, length)
            length *= 2
        made.length, made.count, made._begun = length, len(means), 0
        made.means[: len(means)], made.squares[: len(means)] = means, squares
        return made

    def full(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means and squares of the batches that are full, each (count, size)."""
        return self.means[: self.count], self.squares[: self.count]

    def copy(self) -> Self:
        """Return one that changes no more with this one."""
        made = copy.copy(self)
        made.means, made.squares = self.means.copy(), self.squares.copy()
        return made

    def snapshot(self) -> Tree:
        """Return all of it as a tree for `probtorch.save`."""
        counts = {"length": self.length, "count": self.count, "begun": self._begun}
        return {**counts, "means": self.means.copy(), "squares": self.squares.copy()}

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self.length, self.count, self._begun = saved["length"], saved["count"], saved["begun"]
        self.means, self.squares = saved["means"].copy(), saved["squares"].copy()


class RunningTrace:
    """A number that is told again and again, as at most 64 means of equally many values."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._each = 1
        self._sum, self._seen = 0.0, 0
        # What was told and not looked at: mostly nobody asks.
        self._told: deque[float] = deque()

    def add(self, value: float) -> None:
        """Take in one more; what is not finite is left out."""
        self._told.append(value)
        if len(self._told) > BATCHES:
            self._take_in()

    @property
    def values(self) -> list[float]:
        """The means."""
        self._take_in()
        return self._values

    def _take_in(self) -> None:
        # Others may be reading, and the chain go on.
        with _taking_in:
            values = [*self._values]
            for _ in range(len(self._told)):
                value = self._told.popleft()  # one by one: none is lost that comes meanwhile
                if not math.isfinite(value):
                    continue
                self._sum, self._seen = self._sum + value, self._seen + 1
                if self._seen < self._each:
                    continue
                values.append(self._sum / self._each)
                self._sum, self._seen = 0.0, 0
                if len(values) == BATCHES:
                    values = [(a + b) / 2.0 for a, b in zip(values[::2], values[1::2])]
                    self._each *= 2
            self._values = values


def _paired(means: np.ndarray, squares: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and squares of batches twice as long; a last one without a partner is left out."""
    whole = len(means) // 2 * 2
    a, b = means[0:whole:2], means[1:whole:2]
    joined = squares[0:whole:2] + squares[1:whole:2] + (a - b) ** 2 * (length / 2.0)
    return (a + b) / 2.0, joined


def convergence(chains: Sequence[BatchMoments], members: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return split R-hat and effective size, over all chains, of each entry.

    Parameters
    ----------
    chains : sequence of BatchMoments
        They need not be equally long.
    members : int
        Draws of a chain are those of so many chains, one after the other.

    Returns
    -------
    rhat, ess : ndarray, shape (size / members,)
        Nan where a chain has too few draws, and where nothing varies.

    References
    ----------
    [gupta2020]_, [vats2019]_, [gelman1992]_
    """
    entries = chains[0].means.shape[1] // members
    nothing = np.full(entries, np.nan)
    if min(chain.count for chain in chains) < FEWEST:
        return nothing, nothing.copy()
    length = max(chain.length for chain in chains)
    # Batches about as long as the square root of the draws, and equally long in all chains.
    draws = max(chain.count * chain.length for chain in chains)
    while length**2 < draws:
        length *= 2
    means, halves, inside, sizes = [], [], [], []
    total = 0
    squares_of_all = np.zeros(entries)
    for chain in chains:
        m, s = chain.full()
        size = chain.length
        half = len(m) // 2
        for part in (slice(half), slice(len(m) - half, None)):
            center = m[part].mean(axis=0)
            spread = s[part].sum(axis=0) + size * np.square(m[part] - center).sum(axis=0)
            halves.append(center.reshape(members, entries))
            inside.append((spread / (half * size - 1)).reshape(members, entries))
        sizes.append(half * size)
        while size < length:
            m, s = _paired(m, s, size)
            size *= 2
        total += len(m) * size * members
        means.append(m.reshape(-1, members, entries))
        squares_of_all += s.reshape(-1, entries).sum(axis=0)
    batches = np.concatenate([m.reshape(-1, entries) for m in means])
    if len(batches) < FEWEST:
        return nothing, nothing.copy()
    with np.errstate(all="ignore"):
        within = np.concatenate(inside).mean(axis=0)
        between = np.concatenate(halves).var(axis=0, ddof=1)
        n = float(np.mean(sizes))
        rhat = np.sqrt((within * (n - 1.0) / n + between) / within)
        around = np.square(batches - batches.mean(axis=0)).sum(axis=0)
        variance = (squares_of_all + length * around) / (total - 1)
        ess = total * variance / (length * around / (len(batches) - 1))
    varies = variance > 0.0
    return np.where(varies, rhat, np.nan), np.where(varies, ess, np.nan)
