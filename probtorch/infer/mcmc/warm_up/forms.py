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
from probtorch.core.tree import flatten
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
    DECIDES,
    STAYS,
    WAYS,
    WEIGHS,
)
from probtorch.infer.mcmc.warm_up.wide_fits import fit_wide, is_native
from probtorch.infer.mcmc.warm_up.wide_routines import ENTIRE, OF_ALL
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
        self._wide = dim > SMALL and is_native()

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
        if self.by_numpy:
            return self._fitted_by_numpy(window, metric, fresh, choose, last)
        asked = np.array([[0, 0, count, min(fresh, count)]])
        (number,), leaves = self._natively(
            window.pairs()[None],
            asked,
            window.moments.squares[None],
            Stacked.of([metric]).leaves,
            choose,
            last,
        )
        return metric if number == STAYS else LowRankMetric(*(wrap(x[0]) for x in leaves))

    def fitted_together(
        self,
        windows: Windows,
        chosen: np.ndarray,
        sums: WindowSums,
        now: Stacked,
        choose: bool,
        last: bool = False,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.by_numpy:
            return super().fitted_together(windows, chosen, sums, now, choose, last)
        counts = sums.count[:, 0].astype(np.int64)
        asked = np.stack([chosen, windows.whole[chosen, BEGIN], counts, counts], axis=1)
        np.minimum(windows.whole[chosen, FRESH], counts, out=asked[:, 3])
        numbers, leaves = self._natively(
            windows.rows, asked, sums.squares.swapaxes(0, 1), now.leaves, choose, last
        )
        changes = numbers != STAYS
        if changes.all():
            return chosen, leaves
        return chosen[changes], [x[changes] for x in leaves]

    @property
    def by_numpy(self) -> bool:
        """Whether fits are made here: SciPy does not export what native code calls."""
        return self.dim > SMALL and not self._wide

    def _natively(
        self,
        rows: np.ndarray,
        asked: np.ndarray,
        squares: np.ndarray,
        now: Sequence[np.ndarray],
        choose: bool,
        last: bool,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """How many directions each window has, or STAYS, and leaves of all, from native code.

        `asked` has the chain, where its rows begin, how many they are and how many are fresh.
        """
        told = asked[:, 2].tolist()
        of = {n: self._asks(n, choose, last) for n in set(told)}
        words = np.concatenate([asked, [of[n][0] for n in told]], axis=1)
        ridges = np.array([of[n][1] for n in told])
        if self.dim <= SMALL:
            return self._small.fitted(rows, words, squares, ridges, now)
        settings = [(self.cut, self._finest(n), self.least_gain, WORTH_IT) for n in told]
        numbers, leaves, choices = fit_wide(
            *(rows, words, squares, ridges, np.array(settings), now),
            rank=self.rank,
            fewest=FEWEST,
            principal=estimates.PRINCIPAL,
            passes=estimates.PASSES,
        )
        for k in np.flatnonzero(numbers == ENTIRE).tolist():
            chain, begin, count, _ = asked[k].tolist()
            ridge, cut = choices[k].tolist()
            these, variance = Rows(rows[chain, :, begin : begin + count]), leaves[0][k] ** 2
            numbers[k] = STAYS
            # Draws that overflow: a later window will do better.
            with contextlib.suppress(np.linalg.LinAlgError, DomainError):
                found = self._of_rows(these, variance, ridge, cut, principal=False)
                for leaf, x in zip(leaves, flatten(found)[0]):
                    leaf[k] = x.array
        return numbers, leaves

    def _asks(self, count: int, choose: bool, last: bool) -> tuple[list[int], tuple[float, ...]]:
        """What is asked of a window of so many draws, and with which ridges."""
        if self.dim <= SMALL:
            return [self._question(count, choose, last)], self._ridges(count)
        step = self._step(count)
        decides, whole = choose and count >= OFTEN, last and count >= self.dim
        question = DECIDES * decides + WAYS * last + WEIGHS * (count < ENOUGH) + OF_ALL * whole
        return [question, step], (*self._ridges(-(-count // step)), max(self._ridges(count)))

    def _step(self, count: int) -> int:
        """How many draws apart those are that a choice in many dimensions looks at."""
        return -(-count // LOOKED_AT)

    def _finest(self, count: int) -> float:
        """The finer factor within which directions may be left out."""
        return min(self.cut, CUT_IF_KNOWN) if count >= KNOWN * self.dim else self.cut

    def _fitted_by_numpy(
        self, window: Window, metric: LowRankMetric, fresh: int, choose: bool, last: bool
    ) -> LowRankMetric:
        """As wide_routines.py says it."""
        count = window.moments.count
        choose = choose and count >= OFTEN
        variance = estimates.diagonal(window.moments.squares, metric.variance)
        if count < TO_CHOOSE or not choose:
            kept = self._worth(metric, variance, window, fresh)
            return metric if kept > 0.0 else self.of_variance(variance)
        gain = 2.0 * self.dim * (estimates.plain_misfit(window.moments, variance) - 1.0)
        if gain < self.least_gain:
            return self.of_variance(variance)
        pairs = window.pairs()
        some = Rows(pairs[:, :: self._step(count)])
        gain, ridge, cut = estimates.best_directions(
            *(some, self._ridges(some.count), self.rank, (self.cut, self._finest(count))),
            worth_it=WORTH_IT,
            both_ways=last,
        )
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
        return self._of_rows(rows, variance, ridge, cut, principal=not whole)

    def _of_rows(
        self, rows: Rows, variance: np.ndarray, ridge: float, cut: float, *, principal: bool
    ) -> LowRankMetric:
        """The metric that rows ask for once all is chosen."""
        (fit,) = estimates.low_rank(
            rows, variance, rank=self.rank, cut=cut, ridges=[ridge], principal=principal
        )
        if len(fit.variances) == self.rank:
            # More of them than there is room for: the weaker ones cost more time than they gain.
            cut = self.cut
        return self.of_spectrum(fit, cut)

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
        return estimates.gain(rows, variance, present)


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
