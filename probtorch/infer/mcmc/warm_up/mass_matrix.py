"""The mass matrix during warm-up: what is learnt from windows of draws and gradients, and when.

A `MassMatrix` knows a chain's two windows (windows.py). Estimates use the foreground, which is both
of them; now and then (`adaptation.schedule`) the background becomes the foreground and a new one
begins, so that what was drawn far from the typical set is forgotten. What the run is cut into makes
no difference: draws are taken up at the ends of segments, whose lengths are given. Of chains that
go in step there are `MassMatrices`: what they learn is computed for all at once. What the matrix
may look like is in forms.py.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import numpy as np

from probtorch.core.typed import Tree
from probtorch.infer.blas_threads import without_blas_threads
from probtorch.infer.mcmc.metrics import Metric
from probtorch.infer.mcmc.stacked import Stacked
from probtorch.infer.mcmc.warm_up.forms import FEWEST, TO_CHOOSE, Form
from probtorch.infer.mcmc.warm_up.window_routines import FRESH, KNOWN, LATE, OLDER, SEEN
from probtorch.infer.mcmc.warm_up.windows import Windows, WindowSums

__all__ = ["MassMatrices", "MassMatrix", "shifts"]

# What is further from the newer draws than so many of their standard deviations was drawn on the
# way, and is forgotten; and where gradients were so many times as large, in a neck: few draws of
# there would decide on the scale.
ARRIVED = 5.0
# Gradients whose standard deviation is below this share of them do not vary but for rounding.
RAMP = 1e-10
_ONE = np.zeros(1, np.int64)


class MassMatrices:
    """What the warm-ups of chains that go in step know about their mass matrices.

    Parameters
    ----------
    form : Form
    windows : Windows
    """

    def __init__(self, form: Form, windows: Windows) -> None:
        self.form, self.windows = form, windows

    @classmethod
    def of(cls, learners: Sequence[MassMatrix]) -> MassMatrices:
        """Return those of some chains, which are rows of it from now on."""
        form, starts = learners[0].form, [learner.fresh_at for learner in learners]
        known = [start for start in starts if start is not None]
        if len(known) == len(starts):
            windows = Windows(len(starts), form.dim, keeps_rows=form.keeps_rows)
            windows.begin(np.stack(known))
        else:
            parts = [learner.place for learner in learners]
            windows = parts[0][0]
            if parts == [(windows, i) for i in range(len(windows))]:
                return cls(form, windows)
            windows = Windows.together(parts)
        for i, learner in enumerate(learners):
            learner.place = windows, i
        return cls(form, windows)

    def end_segment(self, chosen: np.ndarray, pairs: np.ndarray, *, switch: bool) -> None:
        """Let what some chains drew count; `switch` forgets what is older than the background.

        Parameters
        ----------
        chosen : ndarray of int64
        pairs : ndarray, shape (chains, 2, n, dim)
            Draws and gradients of all chains.
        """
        self.windows.take_up(chosen, pairs)
        if switch:
            self.windows.drop_older(chosen)

    def learnt(
        self, chosen: np.ndarray, now: Stacked, *, choose: bool, last: bool = False
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return which of some chains are to go on with another metric, and these.

        What a chain is given does not depend on the others.

        Parameters
        ----------
        chosen : ndarray of int64
        now : Stacked
            The present metrics, of all chains.

        Returns
        -------
        changed : ndarray of int64
        leaves : list of ndarray, each (changed, *shape)
        """
        windows, form = self.windows, self.form
        both = windows.settled(chosen, fewest=FEWEST, enough=TO_CHOOSE, arrived=ARRIVED, ramp=RAMP)
        enough = both.count[:, 0] >= FEWEST
        if not enough.all():
            chosen, both = chosen[enough], both.at(enough)
            if not chosen.size:
                return chosen, []
        alone = without_blas_threads(form.dim) if form.by_blas else contextlib.nullcontext()
        with np.errstate(all="ignore"), alone:
            changed, leaves = form.fitted_together(windows, chosen, both, now, choose, last)
        windows.whole[changed, FRESH] = 0
        return changed, leaves


class MassMatrix:
    """What the warm-up of one chain knows about its mass matrix.

    Parameters
    ----------
    form : Form
    position : ndarray, shape (dim,), optional
        Where the chain stands.

    Attributes
    ----------
    learns : str
        The kernel's field.
    place : tuple of Windows and int
        Where its windows are.
    """

    learns = "metric"

    def __init__(self, form: Form, position: np.ndarray | None = None) -> None:
        self.form = form
        # Made when there is something to keep: chains that go in step are rows from the first.
        self._place: tuple[Windows, int] | None = None
        self._start = position
        # Draws and gradients of the segment that is being run.
        self._pending: list[np.ndarray] = []
        # Draws that were seen when a segment ended, and the copies that snapshots have of them.
        self._ends: list[int] = []
        self._copies: dict[tuple[int, int], np.ndarray] = {}

    @property
    def place(self) -> tuple[Windows, int]:
        """Where its windows are."""
        if self._place is None:
            windows = Windows(1, self.form.dim, keeps_rows=self.form.keeps_rows)
            if self._start is not None:
                windows.begin(self._start[None])
            self._place = windows, 0
        return self._place

    @place.setter
    def place(self, place: tuple[Windows, int]) -> None:
        self._place = place

    @property
    def fresh_at(self) -> np.ndarray | None:
        """Where it begins, if nothing was asked of it yet, and that is known."""
        return self._start if self._place is None else None

    @property
    def _words(self) -> np.ndarray:
        windows, row = self.place
        return windows.whole[row]

    def _alone(self) -> MassMatrices:
        """It as the only chain."""
        windows, row = self.place
        if len(windows) > 1:
            self.place = Windows.together([(windows, row)]), 0
        return MassMatrices(self.form, self.place[0])

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down what was drawn; it counts from the end of the segment on."""
        pairs = np.empty((2, *positions.shape))
        pairs[0] = positions
        pairs[1] = 0.0 if grads is None else grads
        self._pending.append(pairs)

    def end_segment(self, *, switch: bool) -> None:
        """Let what was added count; `switch` forgets what is older than the background."""
        alone = self._alone()
        pending, self._pending = self._pending, []
        if pending:
            pairs = pending[0] if len(pending) == 1 else np.concatenate(pending, axis=1)
            alone.end_segment(_ONE, pairs[None], switch=switch)
            self._ends.append(int(self._words[SEEN]))
        elif switch:
            self.drop_older()

    def learnt(self, metric: Metric, *, choose: bool, last: bool = False) -> Metric:
        """Return the metric to go on with, given the present one."""
        now = Stacked.of([metric])
        changed, leaves = self._alone().learnt(_ONE, now, choose=choose, last=last)
        found: Metric = Stacked(now.structure, leaves)[0] if changed.size else metric
        return found

    def shift(self) -> float | None:
        """Return how far what was before the background is from it, in its standard deviations.

        The largest over all coordinates; None where one of the two has too few draws.
        """
        return shifts([self])[0]

    def drop_older(self) -> None:
        """Forget what is older than the background, which takes its place."""
        windows, row = self.place
        windows.drop_older(row)

    def forget(self) -> None:
        """Begin anew: the chain was moved, or what it drew so far is not to be trusted."""
        windows, row = self.place
        windows.forget(row)
        self._pending, self._ends = [], []
        self._copies.clear()

    def snapshot(self) -> Tree:
        """Return all of it, as a tree for `probtorch.save`."""
        windows, row = self.place
        words = self._words
        known, seen = bool(words[KNOWN]), int(words[SEEN])
        middle = seen - int(words[LATE])
        parts = self._parts(middle - int(words[OLDER]), middle, seen)
        told: Tree = {"pending": list(self._pending), "fresh": int(words[FRESH])}
        for k, name in enumerate(("older", "background")):
            mean, squares = windows.moments[k, :, :, row].copy()
            count = int(words[OLDER + k])
            moments = {"count": count, "mean": mean, "squares": squares}
            told[name] = {"moments": moments, "parts": parts[k]}
        return {**told, "last": windows.last[row].copy() if known else None}

    def _parts(self, begin: int, middle: int, end: int) -> tuple[list[np.ndarray], ...]:
        """Rows of the two windows, by segments: those copied before are the same arrays again."""
        windows, row = self.place
        if not windows.keeps_rows:
            return [], []
        rows, before, self._copies = windows.rows_at(row), self._copies, {}
        found = []
        for first, stop in ((begin, middle), (middle, end)):
            cuts = sorted({first, stop, *(x for x in self._ends if first < x < stop)})
            for a, b in itertools.pairwise(cuts):
                part = before.get((a, b))
                copy = rows[:, a - begin : b - begin].copy() if part is None else part
                self._copies[a, b] = copy
            found.append([self._copies[cut] for cut in itertools.pairwise(cuts)])
        return tuple(found)

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        both = saved["older"], saved["background"]
        self._pending = list(saved["pending"])
        self._copies, self._ends, seen = {}, [], 0
        for window in both:
            for part in window["parts"]:
                seen += part.shape[1]
                self._ends.append(seen)
        windows, row = self.place
        count = sum(window["moments"]["count"] for window in both)
        windows.put(row, saved["last"], both, saved["fresh"], count)


def shifts(learners: Sequence[MassMatrix]) -> list[float | None]:
    """Return what `MassMatrix.shift` does of each."""
    places = [learner.place for learner in learners]
    found: list[float | None] = [None] * len(places)
    groups: dict[int, list[int]] = {}
    for i, (windows, _) in enumerate(places):
        groups.setdefault(id(windows), []).append(i)
    for group in groups.values():
        windows, rows = places[group[0]][0], np.array([places[i][1] for i in group])
        older, late = windows.sums(0, rows), windows.sums(1, rows)
        with np.errstate(all="ignore"):
            told = zip(group, _comparable(older, late).tolist(), _shifts(older, late).tolist())
        for i, known, shift in told:
            found[i] = shift if known else None
    return found


def _comparable(older: WindowSums, late: WindowSums) -> np.ndarray:
    return ((older.count >= FEWEST) & (late.count >= TO_CHOOSE))[:, 0]


def _shifts(older: WindowSums, late: WindowSums) -> np.ndarray:
    share = (older.mean[0] - late.mean[0]) ** 2 / (late.squares[0] / late.count)
    return np.sqrt(np.fmax.reduce(share, axis=1, initial=0.0))
