"""Windows of draws and gradients that mass matrices are learnt from: those of chains, as rows.

A chain has two windows, one after the other: the older one and the background. Of both there are
moments, and, where a form of matrix wants them, the draws themselves. `Windows` holds them for
chains that go in step; a chain alone is one row of it. What a chain's windows are does not depend
on who else is there. They are written by window_routines.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.compiler.nests.loops import address
from probtorch.core.typed import Tree
from probtorch.infer.mcmc.warm_up.estimates import Moments
from probtorch.infer.mcmc.warm_up.window_routines import (
    BEGIN,
    FRESH,
    KNOWN,
    LATE,
    OLDER,
    SEEN,
    WINDOWS,
    WORDS,
)

__all__ = ["WindowSums", "Window", "Windows"]

# Rows that there is room for at first, and the share by which room grows.
ROOM, GROWTH = 32, 1.5


class Window:
    """Draws and gradients that an estimate sees: their moments, and themselves where wanted.

    Parameters
    ----------
    moments : Moments
    rows : ndarray, shape (2, n, dim), or None
        The draws and the gradients.
    """

    def __init__(self, moments: Moments, rows: np.ndarray | None) -> None:
        self.moments, self.rows = moments, rows

    def pairs(self, last: int = 0) -> np.ndarray:
        """Return draws and gradients, shape (2, n, dim), all of them or so many of the last."""
        assert self.rows is not None
        return self.rows[:, -last:]

    def rows_of(self, last: int) -> int:
        """Return how many there are of so many of the last draws."""
        return 0 if self.rows is None else min(last, self.rows.shape[1])


class WindowSums:
    """`Moments` of several chains: counts (chains, 1), means and squares (2, chains, dim)."""

    def __init__(self, count: np.ndarray, mean: np.ndarray, squares: np.ndarray) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    def at(self, chosen: np.ndarray) -> WindowSums:
        """Return those of some chains."""
        return WindowSums(self.count[chosen], self.mean[:, chosen], self.squares[:, chosen])

    def of(self, row: int) -> Moments:
        """Return those of one chain."""
        return Moments(int(self.count[row, 0]), self.mean[:, row], self.squares[:, row])


class Windows:
    """The windows of several chains.

    Parameters
    ----------
    chains, dim : int
    keeps_rows : bool
        Whether draws are kept, beside their moments.

    Attributes
    ----------
    whole : ndarray of int, shape (chains, WORDS)
        See window_routines.py.
    last : ndarray, shape (chains, dim)
        Where each chain stood when a segment ended last.
    moments : ndarray, shape (2, 2, 2, chains, dim)
        Of the older window and the background: means and sums of squared deviations, of draws and
        of gradients.
    rows : ndarray, shape (chains, 2, room, dim)
    """

    def __init__(self, chains: int, dim: int, *, keeps_rows: bool) -> None:
        self.whole = np.zeros((chains, WORDS), np.int64)
        self.last, self.moments = np.zeros((chains, dim)), np.zeros((2, 2, 2, chains, dim))
        self.keeps_rows = keeps_rows
        self.rows = np.empty((chains, 2, 0, dim))
        # No chain's rows end behind this one.
        self._end = 0

    def begin(self, positions: np.ndarray) -> None:
        """Let chains stand at these positions, (chains, dim), to begin with."""
        self.whole[:, KNOWN], self.last[...] = 1, positions

    @classmethod
    def together(cls, parts: Sequence[tuple[Windows, int]]) -> Windows:
        """Return those of chains that were rows of others, copied."""
        first, _ = parts[0]
        made = cls(len(parts), first.last.shape[1], keeps_rows=first.keeps_rows)
        for i, (windows, row) in enumerate(parts):
            made.whole[i], made.last[i] = windows.whole[row], windows.last[row]
            made.moments[..., i, :] = windows.moments[..., row, :]
        made._make_room(0)
        for i, (windows, row) in enumerate(parts):
            made._put_rows(i, windows.rows_at(row))
        return made

    def __len__(self) -> int:
        return len(self.whole)

    # --------------------------------------------------------------------------------- what goes in

    def take_up(self, chosen: np.ndarray, pairs: np.ndarray) -> None:
        """Add what some chains drew to their backgrounds, less what was repeated or overflows.

        Parameters
        ----------
        chosen : ndarray of int64
            Their numbers.
        pairs : ndarray, shape (chains, 2, n, dim)
            Draws and gradients of all chains.
        """
        n, dim = pairs.shape[2:]
        if self.keeps_rows:
            self._make_room(n)
            rows, room = self.rows, self.rows.shape[2]
        else:
            rows, room = np.empty((2, n, dim)), 0
        chosen, pairs = np.ascontiguousarray(chosen, np.int64), np.ascontiguousarray(pairs)
        WINDOWS.function("pt_take_up")(
            *(address(chosen), len(chosen), address(pairs), n, dim, len(self)),
            *(address(self.whole), address(self.last), address(self.moments)),
            *(address(rows), room),
        )

    def _make_room(self, more: int) -> None:
        """Have room for so many more rows of each chain."""
        if not self.keeps_rows:
            return
        chains, _, room, dim = self.rows.shape
        self._end += more
        if room and self._end <= room:
            return
        held = self.whole[:, OLDER] + self.whole[:, LATE]
        self._end = int((self.whole[:, BEGIN] + held).max(initial=0)) + more
        if room and self._end <= room:
            return
        begun = self.whole[:, BEGIN]
        first = int(begun.min()) if room else 0
        span, most = int((begun + held).max(initial=0)) - first, int(held.max(initial=0))
        # Where all begin at about one row, all are copied at once.
        together = room and span <= most + ROOM
        wanted = self._end = (span if together else most) + more
        rows = np.empty((chains, 2, max(ROOM, int(GROWTH * wanted)), dim))
        if together:
            kept = self.rows[:, :, first : first + span]
            rows[:, :, : kept.shape[2]] = kept
            begun -= first
        else:
            for i in range(chains if room else 0):
                own = self.rows_at(i)
                rows[i, :, : own.shape[1]] = own
            begun[:] = 0
        self.rows = rows

    def _put_rows(self, row: int, rows: np.ndarray) -> None:
        if self.keeps_rows:
            self.rows[row, :, : rows.shape[1]] = rows

    def put(
        self, row: int, last: np.ndarray | None, windows: Sequence[Tree], fresh: int, seen: int
    ) -> None:
        """Let the windows of a chain be these: for each its moments and, where kept, its rows."""
        words = self.whole[row]
        words[:] = 0
        self.moments[..., row, :] = 0.0
        parts = []
        for k, window in enumerate(windows):
            words[OLDER + k] = window["moments"]["count"]
            self.moments[k, 0, :, row] = window["moments"]["mean"]
            self.moments[k, 1, :, row] = window["moments"]["squares"]
            parts += window["parts"]
        words[KNOWN], words[FRESH], words[SEEN] = last is not None, fresh, seen
        if last is not None:
            self.last[row] = last
        self._end = self.rows.shape[2] + 1  # which is to be found
        self._make_room(0)
        if parts:
            self._put_rows(row, np.concatenate(parts, axis=1))

    # ------------------------------------------------------------------------------- what goes away

    def drop_older(self, chosen: np.ndarray | int) -> None:
        """Forget what is older than the backgrounds of some chains, which take its place."""
        self.whole[chosen, BEGIN] += self.whole[chosen, OLDER]
        self.whole[chosen, OLDER] = self.whole[chosen, LATE]
        self.whole[chosen, LATE] = 0
        self.moments[0][:, :, chosen] = self.moments[1][:, :, chosen]
        self.moments[1][:, :, chosen] = 0.0

    def settled(
        self, chosen: np.ndarray, *, fewest: int, enough: int, arrived: float, ramp: float
    ) -> WindowSums:
        """Return the moments of both windows of some chains, less what was drawn on the way.

        Where the draws of the older window are `arrived` standard deviations of the background's
        from these, in any coordinate, or their gradients so many times as large, only what came
        after counts, from now on. Where gradients are one number, as far out in a tail of the log
        of a scale, their squares are to say how wide the ramp is, ``1 / |g|``: how little they vary
        is rounding, and would say that the coordinate is wide beyond measure, or nothing.

        Parameters
        ----------
        chosen : ndarray of int64
        fewest, enough : int
            Draws of the two windows without which they are not compared.
        arrived : float
        ramp : float
            Gradients whose standard deviation is below this share of them are one number.
        """
        chosen, dim = np.ascontiguousarray(chosen, np.int64), self.last.shape[1]
        counts = np.empty(len(chosen), np.int64)
        mean, squares = np.empty((2, len(chosen), 2, dim))
        WINDOWS.function("pt_weigh")(
            *(address(chosen), len(chosen), dim, len(self), address(self.whole)),
            *(address(self.moments), fewest, enough, arrived, ramp**2),
            *(address(counts), address(mean), address(squares)),
        )
        return WindowSums(counts[:, None], mean.swapaxes(0, 1), squares.swapaxes(0, 1))

    def forget(self, row: int) -> None:
        """Begin anew with a chain."""
        self.whole[row] = 0
        self.moments[..., row, :] = 0.0

    def let_go(self) -> None:
        """Forget the draws of all chains, but for what they say together: none will be asked for.

        The chains may only be made to `forget` now.
        """
        self.whole[:, BEGIN] = 0
        self.rows = np.empty((len(self), 2, 0, self.last.shape[1]))

    # -------------------------------------------------------------------------------- what is there

    def sums(self, window: int, chosen: np.ndarray) -> WindowSums:
        """Return the moments of the older window, 0, or of the background, 1."""
        count = self.whole[chosen, OLDER + window].astype(float)[:, None]
        mean, squares = self.moments[window]
        return WindowSums(count, mean[:, chosen], squares[:, chosen])

    def rows_at(self, row: int) -> np.ndarray:
        """Return draws and gradients of a chain, shape (2, n, dim), where they are kept."""
        begin, count = self.whole[row, BEGIN], self.whole[row, OLDER] + self.whole[row, LATE]
        return self.rows[row, :, begin : begin + count]

    def window(self, row: int, moments: Moments) -> Window:
        """Return both windows of a chain as one, given the moments of both."""
        return Window(moments, self.rows_at(row) if self.keeps_rows else None)
