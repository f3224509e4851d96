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
from probtorch.infer.mcmc import estimates
from probtorch.infer.mcmc.estimates import Fits, Moments, Rows, Spectrum
from probtorch.infer.mcmc.metrics import (
    BlockMetric,
    DenseMetric,
    DiagonalMetric,
    LowRankMetric,
    Metric,
)

M = TypeVar("M", bound=Metric)

# Draws and gradients, arrays (n, dim).
Arrays = tuple[np.ndarray, np.ndarray]

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
# made at each update.
SMALL, OFTEN = 32, 60
# What is further from the newer draws than so many of their standard deviations was drawn on the
# way, and is forgotten.
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
    """Draws and gradients that an estimate sees: their moments, and the rows where wanted."""

    def __init__(self, dim: int, keeps_rows: bool) -> None:
        self.moments = Moments.empty(dim)
        self.parts: list[tuple[np.ndarray, np.ndarray]] | None = [] if keeps_rows else None

    def add(self, draws: np.ndarray, grads: np.ndarray, moments: Moments) -> None:
        """Take up some rows, shape (n, dim), which have these moments."""
        self.moments += moments
        if self.parts is not None:
            self.parts.append((draws, grads))

    def rows(self, last: int = 0) -> Arrays:
        """Return all draws and all gradients, arrays (n, dim), or those of the last parts."""
        assert self.parts is not None
        draws, grads = zip(*self.parts[-last:])
        return np.concatenate(draws), np.concatenate(grads)

    def snapshot(self) -> Tree:
        """Return what is there, as a tree for `probtorch.save`."""
        return {"moments": dict(vars(self.moments)), "parts": list(self.parts or [])}

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self.moments = Moments(**saved["moments"])
        if self.parts is not None:
            self.parts = [(draws, grads) for draws, grads in saved["parts"]]


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

    def fitted(self, window: Window, metric: M, fresh: Arrays | None, choose: bool) -> M:
        """Return the metric that a window asks for, or the present one where it says too little.

        `fresh` are the rows that were drawn with the present one, which can judge it: draws and
        gradients; None where there are none, or rows are not kept.
        `choose` allows for what takes longer, to decompose matrices.
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
        self, window: Window, metric: DiagonalMetric, fresh: Arrays | None, choose: bool
    ) -> DiagonalMetric:
        return self.of_variance(estimates.diagonal(window.moments, metric.variance()))


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
        self, window: Window, metric: LowRankMetric, fresh: Arrays | None, choose: bool
    ) -> LowRankMetric:
        count = window.moments.count
        choose = choose or (self.dim <= SMALL and count <= OFTEN)
        variance = estimates.diagonal(window.moments, metric.variance())
        kept = self._worth(metric, variance, fresh)
        if count < TO_CHOOSE or not choose:
            return metric if kept > 0.0 else self.of_variance(variance)
        squares = window.moments.squares / variance + window.moments.grad_squares * variance
        if squares.sum() / count - 2.0 * self.dim < self.least_gain:
            return self.of_variance(variance)
        draws, grads = window.rows()
        gains = self._gains(draws, grads)
        ridge = max(gains, key=gains.__getitem__)
        # What the start knew, or an earlier window, may be better than what few draws say.
        if count < ENOUGH and kept > max(gains[ridge], self.least_gain):
            return metric
        if gains[ridge] < self.least_gain:
            return self.of_variance(variance)
        return self.of_spectrum(self._fit(Rows.of(draws, grads), variance, ridge).spectrum())

    def _fit(self, rows: Rows, variance: np.ndarray, ridge: float | np.ndarray) -> Fits:
        return estimates.low_rank(rows, variance, rank=self.rank, cut=self.cut, ridge=ridge)

    def _worth(self, metric: LowRankMetric, variance: np.ndarray, fresh: Arrays | None) -> float:
        """What the directions of a metric gain over a diagonal, on rows it was not made from."""
        if metric.name == "diag":
            return -np.inf
        if fresh is None or len(fresh[0]) < FEWEST:
            return np.inf
        rows = Rows.of(*fresh)
        fit = estimates.misfit(rows, _spectrum_of(metric))
        return 2.0 * self.dim * float(rows.plain_misfit(variance) - fit)

    def _gains(self, draws: np.ndarray, grads: np.ndarray) -> dict[float, float]:
        """What directions from one half of the draws gain on the other, by the ridge they take.

        Summed over both ways, and over all dimensions.
        """
        ridges = [estimates.RIDGE]
        noisy = estimates.noisy_ridge(len(draws), self.dim)
        if noisy > ALIKE * estimates.RIDGE:
            ridges.append(noisy)
        halves = Rows.halves(draws, grads)
        variance, judges = halves.diagonal(), halves.swapped()
        fits = self._fit(halves, variance, np.array(ridges)[:, None])
        gains = self.dim * (judges.plain_misfit(variance) - fits.misfit(judges)).sum(axis=1)
        return dict(zip(ridges, gains.tolist()))


def _spectrum_of(metric: LowRankMetric) -> Spectrum:
    count = int(metric.count.array)
    variances = (1.0 + metric.stretch.array[:count]) ** 2
    return Spectrum(metric.scale.array, metric.directions.array[:count], variances)


class Auto(LowRank):
    """Low rank where the draws say that it pays, else diagonal.

    One half of a window is fitted either way, and the other half says which fits better: directions
    that are noise, or differ from place to place, do worse than none.
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
        self, window: Window, metric: DenseMetric, fresh: Arrays | None, choose: bool
    ) -> DenseMetric:
        variance = estimates.diagonal(window.moments, metric.variance())
        if window.moments.count < TO_CHOOSE:
            return self.of_variance(variance)
        draws, grads = window.rows()
        return DenseMetric.from_inverse_mass(estimates.dense(draws, grads, variance))


class Covariances(Dense):
    """All covariances, of draws alone: for kernels without gradients.

    With n draws, off the diagonal they are shrunk by ``n / (n + dim)``.
    """

    def fitted(
        self, window: Window, metric: DenseMetric, fresh: Arrays | None, choose: bool
    ) -> DenseMetric:
        count = window.moments.count
        if count < TO_CHOOSE or not choose:
            return metric
        draws, _ = window.rows()
        covariance = np.cov(draws.T).reshape(self.dim, self.dim)
        share = count / (count + self.dim)
        return DenseMetric.from_inverse_mass(
            share * covariance + (1.0 - share) * np.diag(np.diag(covariance))
        )


class Variances(Diagonal):
    """Variances of draws alone."""

    def fitted(
        self, window: Window, metric: DiagonalMetric, fresh: Arrays | None, choose: bool
    ) -> DiagonalMetric:
        count = window.moments.count
        if count < TO_CHOOSE or not choose:
            return metric
        return self.of_variance(window.moments.squares / count)


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
        self, window: Window, metric: BlockMetric, fresh: Arrays | None, choose: bool
    ) -> BlockMetric:
        variance = estimates.diagonal(window.moments, metric.variance())
        if window.moments.count < TO_CHOOSE:
            return self.of_variance(variance)
        draws, grads = window.rows()
        blocks = [estimates.dense(draws[:, at], grads[:, at], variance[at]) for at in self.places]
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
        self._foreground, self._background = self._window(), self._window()
        # Rows of the segment that is being run, and the position before them.
        self._pending: list[Arrays] = []
        # Parts of the windows that were drawn with the present metric.
        self._fresh = 0
        self._last = None if position is None else np.array(position)

    def _window(self) -> Window:
        return Window(self.form.dim, self.form.keeps_rows)

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down what was drawn; it counts from the end of the segment on."""
        grads = np.zeros_like(positions) if grads is None else grads.copy()
        self._pending.append((positions.copy(), grads))

    def end_segment(self, *, switch: bool) -> None:
        """Let what was added count; `switch` forgets what is older than the background."""
        if self._pending:
            draws, grads = (np.concatenate(x) for x in zip(*self._pending))
            self._pending = []
            before = draws[:1] if self._last is None else self._last[None]
            moved = (np.concatenate([before, draws[:-1]]) != draws).any(axis=1)
            self._last = draws[-1].copy()
            fine = moved & np.isfinite(grads).all(axis=1)
            if not fine.all():
                draws, grads = draws[fine], grads[fine]
            if len(draws):
                self._fresh += 1
                moments = Moments.of(draws, grads)
                for window in (self._foreground, self._background):
                    window.add(draws, grads, moments)
        if switch:
            self._foreground, self._background = self._background, self._window()

    def learnt(self, metric: Metric, *, choose: bool) -> Metric:
        """Return the metric to go on with, given the present one."""
        if (self.shift() or 0.0) > ARRIVED:
            # The chain was still on its way: only what came after counts.
            self._foreground, self._background = self._background, self._window()
        if self._foreground.moments.count < FEWEST:
            return metric
        keeps = self.form.keeps_rows and self._fresh > 0
        fresh = self._foreground.rows(self._fresh) if keeps else None
        try:
            found = self.form.fitted(self._foreground, metric, fresh, choose)
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
        whole, late = self._foreground.moments, self._background.moments
        before = whole.count - late.count
        if before < FEWEST or late.count < TO_CHOOSE:
            return None
        apart = (whole.count * whole.mean - late.count * late.mean) / before - late.mean
        with np.errstate(divide="ignore", invalid="ignore"):
            share = apart**2 / (late.squares / late.count)
        return float(np.sqrt(np.nanmax(share, initial=0.0)))

    def forget(self) -> None:
        """Begin anew: the chain was moved, or what it drew so far is not to be trusted."""
        self._foreground, self._background = self._window(), self._window()
        self._pending, self._fresh, self._last = [], 0, None

    def snapshot(self) -> Tree:
        """Return all of it, as a tree for `probtorch.save`."""
        return {
            "foreground": self._foreground.snapshot(),
            "background": self._background.snapshot(),
            "pending": list(self._pending),
            "fresh": self._fresh,
            "last": self._last,
        }

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self._foreground.restore(saved["foreground"])
        self._background.restore(saved["background"])
        self._pending = [(draws, grads) for draws, grads in saved["pending"]]
        self._fresh, self._last = saved["fresh"], saved["last"]
