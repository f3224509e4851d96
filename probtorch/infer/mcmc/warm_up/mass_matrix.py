"""The mass matrix during warm-up: what it may look like (forms), and the windows it is learnt from.

A `MassMatrix` holds two windows of draws with their gradients. Estimates use the foreground, which
contains the background; now and then (`adaptation.schedule`) the background becomes the foreground
and a new one begins, so that what was drawn far from the typical set is forgotten. What a run is
cut into makes no difference: draws are taken up at the ends of segments, whose lengths are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from probtorch.core.typed import Tree
from probtorch.errors import DomainError
from probtorch.infer.mcmc.metrics import (
    BlockMetric,
    DenseMetric,
    DiagonalMetric,
    LowRankMetric,
    Metric,
)
from probtorch.infer.mcmc.warm_up import estimates
from probtorch.infer.mcmc.warm_up.estimates import Moments, Rows, Spectrum

M = TypeVar("M", bound=Metric)

__all__ = [
    "Auto",
    "Blocks",
    "Covariances",
    "Dense",
    "Diagonal",
    "Form",
    "LowRank",
    "MassMatrix",
    "Variances",
]

# Draws that an estimate needs; and those that a choice between forms needs, half of which say how
# good the estimates from the other half are.
FEWEST, TO_CHOOSE = 4, 10
# With fewer draws the matrix in use is weighed against what they say.
ENOUGH = 30
# Decompositions of matrices of so few dimensions take little time: up to so many draws they are
# made at each update. In more dimensions fewer draws say nothing of directions.
SMALL, OFTEN = 32, 20
# What is further from the newer draws than so many of their standard deviations was drawn on the
# way, and is forgotten; and where gradients were so many times as large, in a neck: few draws of
# there would decide on the scale.
ARRIVED = 5.0
# Ridges within this factor make no difference.
ALIKE = 20.0
# Most directions of a low-rank matrix.
RANK = 32
# More dimensions than these are given a diagonal by `Auto`: their draws are not even kept.
WIDEST = 2000
# What the low-rank matrix has to gain before it is taken: the sum, over directions, of variance and
# inverse variance less 2. One direction that is 3 times too wide makes 1.3, a correlation of 0.4
# makes 0.2.
WORTH_IT = 0.2
# Directions whose variance is within this factor of the others' are left out: in few dimensions
# they cost nothing, in many to learn them costs more than they do.
CUT, CUT_IF_SMALL = 2.0, 1.25


# -------------------------------------------------------------------------------------- the windows


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

    def __add__(self, other: Window) -> Window:
        """Return both as one."""
        parts = None if self.parts is None else [*self.parts, *(other.parts or [])]
        return Window(self.moments + other.moments, parts)

    def add(self, pairs: np.ndarray) -> None:
        """Take up draws and gradients, shape (2, n, dim)."""
        self.moments += Moments.of(pairs)
        if self.parts is not None:
            self.parts.append(pairs)

    def pairs(self, last: int = 0) -> np.ndarray:
        """Return draws and gradients, shape (2, n, dim), all of them or those of the last parts."""
        assert self.parts is not None
        return np.concatenate(self.parts[-last:], axis=1)

    def snapshot(self) -> Tree:
        """Return what is there, as a tree for `probtorch.save`."""
        return {"moments": dict(vars(self.moments)), "parts": list(self.parts or [])}

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self.moments = Moments(**saved["moments"])
        if self.parts is not None:
            self.parts = list(saved["parts"])


# ---------------------------------------------------------------------------------------- the forms


class Form(Generic[M]):
    """What an inverse mass matrix may look like, for a target of `dim` coordinates.

    A form makes metrics of one kind, so that one program serves a run: the `identity`, one from a
    diagonal, and one from a window (`fitted`).
    """

    keeps_rows = True

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def identity(self) -> M:
        """Return the identity."""
        raise NotImplementedError(type(self).__name__)

    def of_variance(self, variance: np.ndarray) -> M:
        """Return the metric with this diagonal, an array (dim,)."""
        raise NotImplementedError(type(self).__name__)

    def of_gradient(self, grad: np.ndarray) -> M:
        """Return the metric that a gradient at the start asks for, where nothing else is known."""
        return self.of_variance(estimates.first_diagonal(grad))

    def of_spectrum(self, spectrum: Spectrum) -> M:
        """Return the metric nearest to a covariance."""
        return self.of_variance(spectrum.diagonal())

    def fitted(
        self,
        window: Window,
        metric: M,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> M:
        """Return the metric that a window asks for, or the present one where it says too little.

        `fresh` are the draws and gradients, (2, n, dim), that came with the present one and can
        judge it; None where there are none, or they are not kept.
        `choose` allows for what takes longer, to decompose matrices, and `last` for what takes
        longer still: all draws after the warm-up are made with this one.
        """
        raise NotImplementedError(type(self).__name__)


class Diagonal(Form[DiagonalMetric]):
    """Variances only."""

    keeps_rows = False

    def identity(self) -> DiagonalMetric:
        return DiagonalMetric.unit(self.dim)

    def of_variance(self, variance: np.ndarray) -> DiagonalMetric:
        return DiagonalMetric.from_inverse_mass(variance)

    def fitted(
        self,
        window: Window,
        metric: DiagonalMetric,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> DiagonalMetric:
        return self.of_variance(estimates.diagonal(window.moments.squares, metric.variance()))


class LowRank(Form[LowRankMetric]):
    """Variances, and a few directions."""

    # The gain below which directions are not worth having.
    least_gain = -np.inf

    def __init__(self, dim: int, rank: int = RANK) -> None:
        super().__init__(dim)
        self.rank = min(dim, rank)
        self.cut = CUT_IF_SMALL if dim <= SMALL else CUT

    def identity(self) -> LowRankMetric:
        return LowRankMetric.unit(self.dim, self.rank)

    def of_variance(self, variance: np.ndarray) -> LowRankMetric:
        scale = np.sqrt(DiagonalMetric.from_inverse_mass(variance).inverse_mass())
        return LowRankMetric.of(scale, np.zeros((0, self.dim)), np.zeros(0), self.rank)

    def of_spectrum(self, spectrum: Spectrum) -> LowRankMetric:
        found = spectrum.clipped(self.rank, self.cut)
        return LowRankMetric.of(found.scale, found.directions, found.variances, self.rank)

    def fitted(
        self,
        window: Window,
        metric: LowRankMetric,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> LowRankMetric:
        count = window.moments.count
        choose = choose or count <= OFTEN if self.dim <= SMALL else choose and count >= OFTEN
        variance = estimates.diagonal(window.moments.squares, metric.variance())
        kept = self._worth(metric, variance, fresh)
        if count < TO_CHOOSE or not choose:
            return metric if kept > 0.0 else self.of_variance(variance)
        gain = 2.0 * self.dim * (estimates.plain_misfit(window.moments, variance) - 1.0)
        if gain < self.least_gain:
            return self.of_variance(variance)
        rows = Rows(window.pairs())
        gains = self._gains(rows, both_ways=last)
        ridge = max(gains, key=gains.__getitem__)
        # What the start knew, or an earlier window, may be better than what few draws say.
        if count < ENOUGH and kept > max(gains[ridge], self.least_gain):
            return metric
        if gains[ridge] < self.least_gain:
            return self.of_variance(variance)
        (fit,) = self._fits(rows, variance, [ridge], principal=not last)
        return self.of_spectrum(fit)

    def _fits(
        self, rows: Rows, variance: np.ndarray, ridges: Sequence[float], principal: bool = True
    ) -> list[Spectrum]:
        return estimates.low_rank(
            rows, variance, rank=self.rank, cut=self.cut, ridges=ridges, principal=principal
        )

    def _worth(
        self, metric: LowRankMetric, variance: np.ndarray, fresh: np.ndarray | None
    ) -> float:
        """What the directions of a metric gain over a diagonal, on rows it was not made from."""
        if metric.name == "diag":
            return -np.inf
        if fresh is None or fresh.shape[1] < FEWEST:
            return np.inf
        rows = Rows(fresh)
        present = Spectrum(metric.scale.array, *metric.in_use())
        gain = estimates.plain_misfit(rows, variance) - estimates.misfit(rows, present)
        return 2.0 * self.dim * gain

    def _gains(self, rows: Rows, both_ways: bool) -> dict[float, float]:
        """What directions from the earlier half of the draws gain on the later, by their ridge.

        Summed over all dimensions; the mean of that and the other way round where asked for.
        """
        ridges = [estimates.RIDGE]
        noisy = estimates.noisy_ridge(rows.count, self.dim)
        if noisy > ALIKE * estimates.RIDGE:
            ridges.append(noisy)
        early, late = rows.halves()
        gains = np.zeros(len(ridges))
        for sample, judge in [(early, late), (late, early)][: 1 + both_ways]:
            variance = estimates.diagonal(sample.squares, 1.0)
            plain = estimates.plain_misfit(judge, variance)
            fits = self._fits(sample, variance, ridges)
            gains += [plain - estimates.misfit(judge, fit) for fit in fits]
        return dict(zip(ridges, (2.0 * self.dim / (1 + both_ways) * gains).tolist()))


class Auto(LowRank):
    """Low rank where the draws say that it pays, else diagonal.

    The earlier half of a window is fitted either way, and the later half says which fits better:
    directions that are noise, or differ from place to place, do worse than none.
    """

    least_gain = WORTH_IT


class Dense(Form[DenseMetric]):
    """All covariances."""

    def of_spectrum(self, spectrum: Spectrum) -> DenseMetric:
        return DenseMetric.from_inverse_mass(spectrum.covariance())

    def identity(self) -> DenseMetric:
        return DenseMetric.unit(self.dim)

    def of_variance(self, variance: np.ndarray) -> DenseMetric:
        return DenseMetric.from_inverse_mass(np.diag(variance))

    def fitted(
        self,
        window: Window,
        metric: DenseMetric,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> DenseMetric:
        variance = estimates.diagonal(window.moments.squares, metric.variance())
        if window.moments.count < TO_CHOOSE:
            return self.of_variance(variance)
        return DenseMetric.from_inverse_mass(estimates.dense(window.pairs(), variance))


class Covariances(Dense):
    """All covariances, of draws alone: for kernels without gradients.

    With n draws, off the diagonal they are shrunk by ``n / (n + dim)``.
    """

    def fitted(
        self,
        window: Window,
        metric: DenseMetric,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> DenseMetric:
        count = window.moments.count
        if count < TO_CHOOSE or not choose:
            return metric
        covariance = np.cov(window.pairs()[0].T).reshape(self.dim, self.dim)
        share = count / (count + self.dim)
        return DenseMetric.from_inverse_mass(
            share * covariance + (1.0 - share) * np.diag(np.diag(covariance))
        )


class Variances(Diagonal):
    """Variances of draws alone."""

    def fitted(
        self,
        window: Window,
        metric: DiagonalMetric,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> DiagonalMetric:
        count = window.moments.count
        if count < TO_CHOOSE or not choose:
            return metric
        return self.of_variance(window.moments.squares[0] / count)


class Blocks(Form[BlockMetric]):
    """Covariances inside blocks of coordinates, variances elsewhere."""

    def __init__(self, dim: int, places: Sequence[np.ndarray]) -> None:
        super().__init__(dim)
        self.places = [np.asarray(at, np.int64) for at in places]

    def identity(self) -> BlockMetric:
        return BlockMetric.unit(self.dim, self.places)

    def of_variance(self, variance: np.ndarray) -> BlockMetric:
        blocks = [np.diag(variance[at]) for at in self.places]
        return BlockMetric.from_inverse_mass(variance, self.places, blocks)

    def fitted(
        self,
        window: Window,
        metric: BlockMetric,
        fresh: np.ndarray | None,
        choose: bool,
        last: bool = False,
    ) -> BlockMetric:
        variance = estimates.diagonal(window.moments.squares, metric.variance())
        if window.moments.count < TO_CHOOSE:
            return self.of_variance(variance)
        pairs = window.pairs()
        blocks = [estimates.dense(pairs[..., at], variance[at]) for at in self.places]
        return BlockMetric.from_inverse_mass(variance, self.places, blocks)


# -------------------------------------------------------------------------------------- one warm-up


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
    """

    learns = "metric"

    def __init__(self, form: Form, position: np.ndarray | None = None) -> None:
        self.form = form
        # The foreground is both: what is older than the background, and the background.
        self._older, self._background = self._window(), self._window()
        # Draws and gradients of the segment that is being run, and the position before them.
        self._pending: list[np.ndarray] = []
        # Parts of the windows that were drawn with the present metric.
        self._fresh = 0
        self._last = None if position is None else np.array(position)

    def _window(self) -> Window:
        return Window(Moments.empty(self.form.dim), [] if self.form.keeps_rows else None)

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down what was drawn; it counts from the end of the segment on."""
        pairs = np.zeros((2, *positions.shape))
        pairs[0] = positions
        if grads is not None:
            pairs[1] = grads
        self._pending.append(pairs)

    def end_segment(self, *, switch: bool) -> None:
        """Let what was added count; `switch` forgets what is older than the background."""
        if self._pending:
            pairs = np.concatenate(self._pending, axis=1)
            self._pending = []
            draws, grads = pairs
            fine = np.isfinite(grads).all(axis=1)
            fine[1:] &= (draws[1:] != draws[:-1]).any(axis=1)
            fine[0] &= self._last is not None and (draws[0] != self._last).any()
            self._last = draws[-1].copy()
            if not fine.all():
                pairs = pairs[:, fine]
            if pairs.shape[1]:
                self._fresh += 1
                self._background.add(pairs)
        if switch:
            self._older, self._background = self._background, self._window()

    def learnt(self, metric: Metric, *, choose: bool, last: bool = False) -> Metric:
        """Return the metric to go on with, given the present one."""
        if (self.shift() or 0.0) > ARRIVED or self._steepness() > ARRIVED:
            # The chain was still on its way: only what came after counts.
            self._older, self._background = self._background, self._window()
        foreground = self._older + self._background
        if foreground.moments.count < FEWEST:
            return metric
        keeps = self.form.keeps_rows and self._fresh > 0
        fresh = foreground.pairs(self._fresh) if keeps else None
        try:
            found = self.form.fitted(foreground, metric, fresh, choose, last)
        except (np.linalg.LinAlgError, DomainError):
            # Draws that overflow: a later window will do better.
            return metric
        if found is not metric:
            self._fresh = 0
        return found

    def shift(self) -> float | None:
        """Return how far what was before the background is from it, in its standard deviations.

        The largest over all coordinates; None where one of the two has too few draws.
        """
        older, late = self._older.moments, self._background.moments
        if older.count < FEWEST or late.count < TO_CHOOSE:
            return None
        apart = older.mean[0] - late.mean[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = apart**2 / (late.squares[0] / late.count)
        return float(np.sqrt(np.nanmax(share, initial=0.0)))

    def _steepness(self) -> float:
        """How many times as large gradients were before the background, in any one coordinate."""
        older, late = self._older.moments, self._background.moments
        if older.count < FEWEST or late.count < TO_CHOOSE:
            return 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (older.squares[1] / older.count) / (late.squares[1] / late.count)
        return float(np.sqrt(np.nanmax(ratio, initial=0.0)))

    def forget(self) -> None:
        """Begin anew: the chain was moved, or what it drew so far is not to be trusted."""
        self._older, self._background = self._window(), self._window()
        self._pending, self._fresh, self._last = [], 0, None

    def snapshot(self) -> Tree:
        """Return all of it, as a tree for `probtorch.save`."""
        return {
            "older": self._older.snapshot(),
            "background": self._background.snapshot(),
            "pending": list(self._pending),
            "fresh": self._fresh,
            "last": self._last,
        }

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self._older.restore(saved["older"])
        self._background.restore(saved["background"])
        self._pending = list(saved["pending"])
        self._fresh, self._last = saved["fresh"], saved["last"]
