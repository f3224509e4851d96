"""The mass matrix during warm-up: the windows of draws and gradients that it is learnt from.

A `MassMatrix` holds two windows of draws with their gradients. Estimates use the foreground, which
contains the background; now and then (`adaptation.schedule`) the background becomes the foreground
and a new one begins, so that what was drawn far from the typical set is forgotten. What a run is
cut into makes no difference: draws are taken up at the ends of segments, whose lengths are given.
What the matrix may look like is in forms.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from probtorch.core.typed import Tree
from probtorch.infer.blas_threads import without_blas_threads
from probtorch.infer.mcmc.metrics import Metric
from probtorch.infer.mcmc.warm_up.estimates import Moments
from probtorch.infer.mcmc.warm_up.forms import FEWEST, TO_CHOOSE, Form

__all__ = ["MassMatrix", "Window", "end_segments", "learnt_together", "shifts", "take_up_together"]

# What is further from the newer draws than so many of their standard deviations was drawn on the
# way, and is forgotten; and where gradients were so many times as large, in a neck: few draws of
# there would decide on the scale.
ARRIVED = 5.0
# Gradients whose standard deviation is below this share of them do not vary but for rounding.
RAMP = 1e-10


class Window:
    """Draws and gradients that an estimate sees: their moments, and themselves where wanted.

    Parameters
    ----------
    moments : Moments
    parts : list of ndarray, or None
        Each (2, n, dim), the draws and the gradients of a segment.
    """

    def __init__(self, moments: Moments, parts: list[np.ndarray] | None) -> None:
        self.moments, self.parts = moments, parts

    def joined(self, other: Window, moments: Moments) -> Window:
        """Return both as one, given the moments of both."""
        parts = None if self.parts is None else [*self.parts, *(other.parts or [])]
        return Window(moments, parts)

    def take(self, moments: Moments, pairs: np.ndarray) -> None:
        """Take up draws and gradients, given the moments with these."""
        self.moments = moments
        if self.parts is not None:
            self.parts.append(pairs)

    def add(self, pairs: np.ndarray) -> None:
        """Take up draws and gradients, shape (2, n, dim)."""
        self.take(self.moments + Moments.of(pairs), pairs)

    def pairs(self, last: int = 0) -> np.ndarray:
        """Return draws and gradients, shape (2, n, dim), all of them or those of the last parts."""
        assert self.parts is not None
        return np.concatenate(self.parts[-last:], axis=1)

    def rows_of(self, last: int) -> int:
        """Return how many draws there are in so many of the last parts."""
        return sum(x.shape[1] for x in self.parts[-last:]) if self.parts and last else 0

    def snapshot(self) -> Tree:
        """Return what is there, as a tree for `probtorch.save`."""
        return {"moments": dict(vars(self.moments)), "parts": list(self.parts or [])}

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self.moments = Moments(**saved["moments"])
        if self.parts is not None:
            self.parts = list(saved["parts"])


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
    older, background : Window
        The foreground is both.
    fresh : int
        Parts of the windows that were drawn with the present metric.
    last : ndarray or None
        The position before those that wait to be taken up.
    """

    learns = "metric"

    def __init__(self, form: Form, position: np.ndarray | None = None) -> None:
        self.form = form
        self.older, self.background = self._window(), self._window()
        # Draws and gradients of the segment that is being run.
        self._pending: list[np.ndarray] = []
        self.fresh = 0
        self.last = None if position is None else np.array(position)

    def _window(self) -> Window:
        return Window(Moments.empty(self.form.dim), [] if self.form.keeps_rows else None)

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down what was drawn; it counts from the end of the segment on."""
        pairs = np.empty((2, *positions.shape))
        pairs[0] = positions
        pairs[1] = 0.0 if grads is None else grads
        self._pending.append(pairs)

    def end_segment(self, *, switch: bool) -> None:
        """Let what was added count; `switch` forgets what is older than the background."""
        end_segments([self], switch=switch)

    def learnt(self, metric: Metric, *, choose: bool, last: bool = False) -> Metric:
        """Return the metric to go on with, given the present one."""
        return learnt_together([self], [metric], choose=choose, last=last)[0]

    def taken_up(self) -> np.ndarray | None:
        """Return what was added, shape (2, n, dim), which is then no longer waiting."""
        pending, self._pending = self._pending, []
        if not pending:
            return None
        return pending[0] if len(pending) == 1 else np.concatenate(pending, axis=1)

    def shift(self) -> float | None:
        """Return how far what was before the background is from it, in its standard deviations.

        The largest over all coordinates; None where one of the two has too few draws.
        """
        return shifts([self])[0]

    def drop_older(self) -> None:
        """Forget what is older than the background, which takes its place."""
        self.older, self.background = self.background, self._window()

    def forget(self) -> None:
        """Begin anew: the chain was moved, or what it drew so far is not to be trusted."""
        self.older, self.background = self._window(), self._window()
        self._pending, self.fresh, self.last = [], 0, None

    def snapshot(self) -> Tree:
        """Return all of it, as a tree for `probtorch.save`."""
        return {
            "older": self.older.snapshot(),
            "background": self.background.snapshot(),
            "pending": list(self._pending),
            "fresh": self.fresh,
            "last": self.last,
        }

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self.older.restore(saved["older"])
        self.background.restore(saved["background"])
        self._pending = list(saved["pending"])
        self.fresh, self.last = saved["fresh"], saved["last"]


# ------------------------------------------------------------------------------- of several chains


class _Sums:
    """`Moments` of several chains: counts (chains, 1), means and squares (2, chains, dim)."""

    def __init__(self, count: np.ndarray, mean: np.ndarray, squares: np.ndarray) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    @classmethod
    def of(cls, moments: Sequence[Moments]) -> _Sums:
        """Return those of some windows."""
        return cls(
            np.array([[float(m.count)] for m in moments]),
            np.stack([m.mean for m in moments], axis=1),
            np.stack([m.squares for m in moments], axis=1),
        )

    def __add__(self, other: _Sums) -> _Sums:
        """Return the moments of both, as `Moments` does."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + (self.count * share) * apart**2
        return _Sums(count, self.mean + share * apart, squares)

    def each(self) -> list[Moments]:
        """Return those of each chain."""
        counts = self.count[:, 0].astype(int).tolist()
        rows = zip(counts, self.mean.swapaxes(0, 1), self.squares.swapaxes(0, 1))
        return [Moments(*row) for row in rows]


def _comparable(older: _Sums, late: _Sums) -> np.ndarray:
    return ((older.count >= FEWEST) & (late.count >= TO_CHOOSE))[:, 0]


def _shifts(older: _Sums, late: _Sums) -> np.ndarray:
    with np.errstate(all="ignore"):
        share = (older.mean[0] - late.mean[0]) ** 2 / (late.squares[0] / late.count)
    return np.sqrt(np.fmax.reduce(share, axis=1, initial=0.0))


def _steepness(older: _Sums, late: _Sums) -> np.ndarray:
    """How many times as large gradients were before the background, in any one coordinate."""
    with np.errstate(all="ignore"):
        ratio = (older.squares[1] / older.count) / (late.squares[1] / late.count)
    return np.sqrt(np.fmax.reduce(ratio, axis=1, initial=0.0))


def _level_ramps(sums: _Sums) -> None:
    """Where gradients are one number, have their squares say how wide the ramp is: 1 / |g|.

    Far out in a tail of the log of a scale, say: how little they vary is rounding, and would say
    that the coordinate is wide beyond measure, or nothing.
    """
    slope, (x, g) = sums.mean[1] ** 2, sums.squares
    ramps = (g < RAMP**2 * slope * sums.count) & (x > 0.0)
    if ramps.any():
        g[ramps] = (x * slope**2)[ramps]


def shifts(learners: Sequence[MassMatrix]) -> list[float | None]:
    """Return what `MassMatrix.shift` does of each."""
    older = _Sums.of([learner.older.moments for learner in learners])
    late = _Sums.of([learner.background.moments for learner in learners])
    found = zip(_comparable(older, late).tolist(), _shifts(older, late).tolist())
    return [shift if known else None for known, shift in found]


def end_segments(learners: Sequence[MassMatrix], *, switch: bool) -> None:
    """Do what `MassMatrix.end_segment` does for several chains that are in step."""
    waiting: dict[int, list[tuple[MassMatrix, np.ndarray]]] = {}
    for learner in learners:
        if (pairs := learner.taken_up()) is not None:
            waiting.setdefault(pairs.shape[1], []).append((learner, pairs))
    for some in waiting.values():
        take_up_together(
            [learner for learner, _ in some], np.stack([pairs for _, pairs in some]), switch=False
        )
    if switch:
        for learner in learners:
            learner.drop_older()


def take_up_together(learners: Sequence[MassMatrix], pairs: np.ndarray, *, switch: bool) -> None:
    """End a segment of several chains, given draws and gradients, shape (chains, 2, n, dim)."""
    _take_up(learners, pairs)
    if switch:
        for learner in learners:
            learner.drop_older()


def _take_up(learners: Sequence[MassMatrix], pairs: np.ndarray) -> None:
    """Add draws and gradients (chains, 2, n, dim), less those that were repeated, to windows."""
    draws, grads = pairs[:, 0], pairs[:, 1]
    fine = np.empty(draws.shape[:2], bool)
    (draws[:, 1:] != draws[:, :-1]).any(axis=2, out=fine[:, 1:])
    before = [m.last for m in learners]
    fine[:, 0] = [x is not None and (d[0] != x).any() for x, d in zip(before, draws)]
    if not np.isfinite(grads).all():
        fine &= np.isfinite(grads).all(axis=2)
    whole = np.logical_and.reduce(fine, axis=1).tolist()
    with np.errstate(all="ignore"):
        mean = np.add.reduce(pairs, axis=2) / pairs.shape[2]
        squares = np.add.reduce((pairs - mean[:, :, None]) ** 2, axis=2)
        count = np.full((len(pairs), 1), float(pairs.shape[2]))
        new = _Sums(count, mean.swapaxes(0, 1), squares.swapaxes(0, 1))
        both = (_Sums.of([m.background.moments for m in learners]) + new).each()
    for i, learner in enumerate(learners):
        learner.last = draws[i, -1]
        if whole[i]:
            learner.background.take(both[i], pairs[i])
            learner.fresh += 1
        elif fine[i].any():
            learner.background.add(pairs[i][:, fine[i]])
            learner.fresh += 1


def learnt_together(
    learners: Sequence[MassMatrix], metrics: Sequence[Metric], *, choose: bool, last: bool = False
) -> list[Metric]:
    """Return what `MassMatrix.learnt` does, for several chains of one kind.

    What a chain is given does not depend on the others.
    """
    older = _Sums.of([learner.older.moments for learner in learners])
    late = _Sums.of([learner.background.moments for learner in learners])
    apart = np.maximum(_shifts(older, late), _steepness(older, late)) > ARRIVED
    arrived = np.flatnonzero(apart & _comparable(older, late)).tolist()
    if arrived:
        # These were still on their way: only what came after counts.
        for i in arrived:
            learners[i].drop_older()
        older.count[arrived], older.mean[:, arrived], older.squares[:, arrived] = 0.0, 0.0, 0.0
    with np.errstate(all="ignore"):
        both = older + late
        _level_ramps(both)
        sums = both.each()
    found = list(metrics)
    places = [i for i, moments in enumerate(sums) if moments.count >= FEWEST]
    if not places:
        return found
    form = learners[0].form
    some = [learners[i] for i in places]
    windows = [m.older.joined(m.background, sums[i]) for i, m in zip(places, some)]
    now, fresh = [metrics[i] for i in places], [m.fresh for m in some]
    alone = without_blas_threads(form.dim) if form.by_blas else contextlib.nullcontext()
    with np.errstate(all="ignore"), alone:
        new = form.fitted_together(windows, now, fresh, choose, last)
    for place, metric in zip(places, new):
        if metric is not found[place]:
            learners[place].fresh = 0
            found[place] = metric
    return found
