"""What a mass matrix may look like: forms, each of which makes metrics of one kind.

A form says what the windows of draws and gradients (windows.py) ask for: variances, variances
with a few directions where they pay, all covariances, or blocks of them. The estimates themselves
are in estimates.py, those of few dimensions, in native code, in small_fits.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.errors import DomainError
from probtorch.infer.mcmc.metrics import (
    BlockMetric,
    DenseMetric,
    DiagonalMetric,
    LowRankMetric,
    Metric,
)
from probtorch.infer.mcmc.stacked import Stacked
from probtorch.infer.mcmc.warm_up import estimates
from probtorch.infer.mcmc.warm_up.estimates import Rows, Spectrum
from probtorch.infer.mcmc.warm_up.small_fits import SmallFits
from probtorch.infer.mcmc.warm_up.spectrum_routines import (
    ASKED,
    DECIDES,
    STAYS,
    WAYS,
    WEIGHS,
)
from probtorch.infer.mcmc.warm_up.window_routines import BEGIN, FRESH

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.windows import Window, Windows, WindowSums

M = TypeVar("M", bound=Metric)

__all__ = [
    "FEWEST",
    "TO_CHOOSE",
    "Auto",
    "Blocks",
    "Covariances",
    "Dense",
    "Diagonal",
    "Form",
    "LowRank",
    "Variances",
]

# Draws that an estimate needs; and those that a choice between forms needs, half of which say how
# good the estimates from the other half are.
FEWEST, TO_CHOOSE = 4, 10
# With fewer draws the matrix in use is weighed against what they say.
ENOUGH = 30
# Decompositions of matrices of so few dimensions take little time: up to so many draws they are
# made at each update. In more dimensions fewer draws say nothing of directions.
SMALL, OFTEN = 40, 20
# Of so many dimensions that matrices are not small, a choice looks at so many draws at most: of 500
# draws in 89 dimensions it takes 2.5 times as long, and says the same. The last fit has them all.
LOOKED_AT = 160
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
# they cost nothing, in many to learn them costs more than they do, unless there are so many draws
# per dimension, and the later ones say that directions are known well enough.
CUT, CUT_IF_SMALL, CUT_IF_KNOWN, KNOWN = 2.0, 1.25, 1.5, 2


class Form(Generic[M]):
    """What an inverse mass matrix may look like, for a target of `dim` coordinates.

    A form makes metrics of one kind, so that one program serves a run: the `identity`, one from a
    diagonal, and one from a window (`fitted`).
    """

    keeps_rows = True
    # Whether fits are products and decompositions by BLAS.
    by_blas = True

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

    def of_spectra(self, spectra: Spectrum) -> list[np.ndarray]:
        """Return the leaves, stacked, of `of_spectrum` of several, given as one."""
        parts = zip(spectra.scale, spectra.directions, spectra.variances)
        return Stacked.of([self.of_spectrum(Spectrum(*part)) for part in parts]).leaves

    def fitted(
        self,
        window: Window,
        metric: M,
        fresh: int,
        choose: bool,
        last: bool = False,
    ) -> M:
        """Return the metric that a window asks for, or the present one where it says too little.

        `fresh` is how many of the window's draws, the last ones, came with the present one and can
        judge it; 0 where there are none, or they are not kept.
        `choose` allows for what takes longer, to decompose matrices, and `last` for what takes
        longer still: all draws after the warm-up are made with this one.
        """
        raise NotImplementedError(type(self).__name__)

    def fitted_together(
        self,
        windows: Windows,
        chosen: np.ndarray,
        sums: WindowSums,
        now: Stacked,
        choose: bool,
        last: bool = False,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return which of some chains are to have another metric, and the leaves of these.

        As `fitted` of each; where numbers overflow, the present metric stays. What one is given
        does not depend on the others.

        Parameters
        ----------
        windows : Windows
        chosen : ndarray of int64
            Numbers of chains.
        sums : WindowSums
            Moments of both windows of these.
        now : Stacked
            The present metrics, of all chains.
        choose, last : bool
        """
        changed, found = [], []
        for k, i in enumerate(chosen.tolist()):
            metric, window = now[i], windows.window(i, sums.of(k))
            with contextlib.suppress(np.linalg.LinAlgError, DomainError):
                # Draws that overflow: a later window will do better.
                new = self.fitted(window, metric, int(windows.whole[i, FRESH]), choose, last)
                if new is not metric:
                    changed.append(i)
                    found.append(new)
        return np.array(changed, np.int64), Stacked.of(found).leaves if found else []


class Diagonal(Form[DiagonalMetric]):
    """Variances only."""

    keeps_rows = by_blas = False

    def identity(self) -> DiagonalMetric:
        return DiagonalMetric.unit(self.dim)

    def of_variance(self, variance: np.ndarray) -> DiagonalMetric:
        return DiagonalMetric.from_inverse_mass(variance)

    def fitted(
        self,
        window: Window,
        metric: DiagonalMetric,
        fresh: int,
        choose: bool,
        last: bool = False,
    ) -> DiagonalMetric:
        return self.of_variance(estimates.diagonal(window.moments.squares, metric.variance))


class LowRank(Form[LowRankMetric]):
    """Variances, and a few directions."""

    # The gain below which directions are not worth having.
    least_gain = -np.inf

    def __init__(self, dim: int, rank: int = RANK) -> None:
        super().__init__(dim)
        self.rank = min(dim, rank)
        self.cut = CUT_IF_SMALL if dim <= SMALL else CUT
        self._plain = LowRankMetric.unit(dim, self.rank)
        self.by_blas = dim > SMALL
        self._small = SmallFits(self.rank, self.cut, self.least_gain, FEWEST)

    def identity(self) -> LowRankMetric:
        return LowRankMetric.unit(self.dim, self.rank)

    def of_variance(self, variance: np.ndarray) -> LowRankMetric:
        return self._of_scale(DiagonalMetric.from_inverse_mass(variance).scale.array)

    def of_spectrum(self, spectrum: Spectrum, cut: float | None = None) -> LowRankMetric:
        found = spectrum.clipped(self.rank, self.cut if cut is None else cut)
        return LowRankMetric.of(found.scale, found.directions, found.variances, self.rank)

    def of_spectra(self, spectra: Spectrum) -> list[np.ndarray]:
        plain = Stacked.of([self._plain] * len(spectra.scale)).leaves
        _, directions, stretch, numbers = plain
        order, counts = spectra.leading(self.rank, self.cut)
        taken = np.arange(order.shape[1]) < counts[:, None]
        rows = np.take_along_axis(spectra.directions, order[..., None], axis=1)
        variances = np.take_along_axis(spectra.variances, order, axis=1)
        flat = directions.reshape(len(order), -1, self.dim)
        flat[:, : order.shape[1]] = np.where(taken[..., None], rows, 0.0)
        stretch.reshape(len(order), -1)[:, : order.shape[1]] = np.where(
            taken, np.sqrt(variances) - 1.0, 0.0
        )
        numbers[...] = counts
        return [spectra.scale, directions, stretch, numbers]

    def fitted(
        self,
        window: Window,
        metric: LowRankMetric,
        fresh: int,
        choose: bool,
        last: bool = False,
    ) -> LowRankMetric:
        count = window.moments.count
        if self.dim <= SMALL:
            asked = [[0, 0, count, fresh, self._question(count, choose, last)]]
            (number,), leaves = self._small.fitted(
                window.pairs()[None],
                np.array(asked, np.int64),
                window.moments.squares[None],
                np.array([self._ridges(count)]),
                Stacked.of([metric]).leaves,
            )
            return metric if number == STAYS else LowRankMetric(*(wrap(x[0]) for x in leaves))
        choose = choose and count >= OFTEN
        variance = estimates.diagonal(window.moments.squares, metric.variance)
        if count < TO_CHOOSE or not choose:
            kept = self._worth(metric, variance, window, fresh)
            return metric if kept > 0.0 else self.of_variance(variance)
        gain = 2.0 * self.dim * (estimates.plain_misfit(window.moments, variance) - 1.0)
        if gain < self.least_gain:
            return self.of_variance(variance)
        pairs = window.pairs()
        some = Rows(pairs[:, :: -(-count // LOOKED_AT)])
        finest = min(self.cut, CUT_IF_KNOWN) if count >= KNOWN * self.dim else self.cut
        gain, ridge, cut = self._best(some, finest, both_ways=last)
        # What the start knew, or an earlier window, may be better than what few draws say.
        if count < ENOUGH:
            kept = self._worth(metric, variance, window, fresh)
            if kept > max(gain, self.least_gain):
                return metric
        if gain < self.least_gain:
            return self.of_variance(variance)
        rows = some
        if last and some.count < count:
            rows = Rows(pairs)
            ridge = max(self._ridges(count)) if ridge > estimates.RIDGE else ridge
        # Of fewer draws than dimensions covariances have no say on most directions: there the ridge
        # decides, or noise, and later draws were not asked about these.
        whole = last and count >= self.dim
        (fit,) = self._fits(rows, variance, [ridge], cut, principal=not whole)
        if len(fit.variances) == self.rank:
            # More of them than there is room for: the weaker ones cost more time than they gain.
            cut = self.cut
        return self.of_spectrum(fit, cut)

    def fitted_together(
        self,
        windows: Windows,
        chosen: np.ndarray,
        sums: WindowSums,
        now: Stacked,
        choose: bool,
        last: bool = False,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.dim > SMALL:
            return super().fitted_together(windows, chosen, sums, now, choose, last)
        counts = sums.count[:, 0].astype(np.int64)
        told = counts.tolist()
        of = {n: (self._question(n, choose, last), self._ridges(n)) for n in set(told)}
        asked = np.empty((len(chosen), len(ASKED)), np.int64)
        asked[:, 0], asked[:, 2], asked[:, 4] = chosen, counts, [of[n][0] for n in told]
        asked[:, 1] = windows.whole[chosen, BEGIN]
        np.minimum(windows.whole[chosen, FRESH], counts, out=asked[:, 3])
        ridges = np.array([of[n][1] for n in told])
        numbers, leaves = self._small.fitted(
            windows.rows, asked, sums.squares.swapaxes(0, 1), ridges, now.leaves
        )
        changes = numbers != STAYS
        if changes.all():
            return chosen, leaves
        return chosen[changes], [x[changes] for x in leaves]

    def _question(self, count: int, choose: bool, last: bool) -> int:
        """What is asked of a window of so many draws; see `spectra.py`."""
        decides = count >= TO_CHOOSE and (choose or count <= OFTEN)
        return DECIDES * decides + WAYS * last + WEIGHS * (count < ENOUGH)

    def _of_scale(self, scale: np.ndarray) -> LowRankMetric:
        plain = self._plain
        return LowRankMetric(wrap(scale), plain.directions, plain.stretch, plain.count)

    def _ridges(self, count: int) -> tuple[float, float]:
        """The ridges to choose from; the second one is 0 where it would make no difference."""
        noisy = estimates.noisy_ridge(count, self.dim)
        return estimates.RIDGE, noisy if noisy > ALIKE * estimates.RIDGE else 0.0

    def _fits(
        self,
        rows: Rows,
        variance: np.ndarray,
        ridges: Sequence[float],
        cut: float,
        principal: bool = True,
    ) -> list[Spectrum]:
        return estimates.low_rank(
            rows, variance, rank=self.rank, cut=cut, ridges=ridges, principal=principal
        )

    def _worth(
        self, metric: LowRankMetric, variance: np.ndarray, window: Window, fresh: int
    ) -> float:
        """What the directions of a metric gain over a diagonal, on rows it was not made from."""
        if metric.name == "diag":
            return -np.inf
        if window.rows_of(fresh) < FEWEST:
            return np.inf
        rows = Rows(window.pairs(fresh))
        present = Spectrum(metric.scale.array, *metric.in_use())
        gain = estimates.plain_misfit(rows, variance) - estimates.misfit(rows, present)
        return 2.0 * self.dim * gain

    def _best(self, rows: Rows, finest: float, both_ways: bool) -> tuple[float, float, float]:
        """What directions from the earlier half of the draws gain on the later, at best.

        Summed over all dimensions; the mean of that and the other way round where asked for. With
        it the ridge, and the factor within which directions are left out: `finest`, where that
        gains more.
        """
        ridges = [ridge for ridge in self._ridges(rows.count) if ridge > 0.0]
        early, late = rows.halves()
        gains = np.zeros((2, len(ridges)))
        for sample, judge in [(early, late), (late, early)][: 1 + both_ways]:
            variance = estimates.diagonal(sample.squares, 1.0)
            plain = estimates.plain_misfit(judge, variance)
            for i, fit in enumerate(self._fits(sample, variance, ridges, finest)):
                few = fit.clipped(self.rank, self.cut)
                gain = plain - estimates.misfit(judge, few)
                more = len(few.variances) < len(fit.variances)
                gains[:, i] += gain, plain - estimates.misfit(judge, fit) if more else gain
        gains *= 2.0 * self.dim / (1 + both_ways)
        # Each direction takes time: those within the wider factor have to be worth it, too.
        gains[1] -= WORTH_IT
        kind, i = divmod(int(gains.argmax()), len(ridges))
        return float(gains[kind, i]), ridges[i], finest if kind else self.cut


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
        fresh: int,
        choose: bool,
        last: bool = False,
    ) -> DenseMetric:
        variance = estimates.diagonal(window.moments.squares, metric.variance)
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
        fresh: int,
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
        fresh: int,
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
        fresh: int,
        choose: bool,
        last: bool = False,
    ) -> BlockMetric:
        variance = estimates.diagonal(window.moments.squares, metric.variance)
        if window.moments.count < TO_CHOOSE:
            return self.of_variance(variance)
        pairs = window.pairs()
        blocks = [estimates.dense(pairs[..., at], variance[at]) for at in self.places]
        return BlockMetric.from_inverse_mass(variance, self.places, blocks)
