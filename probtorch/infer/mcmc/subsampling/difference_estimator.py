"""A log likelihood from some rows, with little noise: the differences to a proxy for each row.

A proxy of a row's log likelihood is its Taylor polynomial around a reference near the mode. The sum
of the proxies of all rows is a polynomial, known once and for all; of the differences only those of
the rows at hand are evaluated. The estimate ``proxies + N mean(differences)`` is unbiased; minus
half its variance, as the same rows have it, its exponential nearly is [dang2019]_.

References
----------
K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran, M. Villani, "Hamiltonian Monte Carlo with energy
conserving subsampling", JMLR 20 (2019), sections 2.2 and 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from probtorch.compiler.density import NativeDensity
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.mcmc.subsampling.subsampled import SubsampledTarget
from probtorch.infer.mcmc.warm_up.modes import mode_of
from probtorch.infer.starts.path_starts import init_to_typical_set
from probtorch.ops.contraction import matmul
from probtorch.ops.reduction import sum as total

__all__ = ["DifferenceTarget", "TaylorProxy"]

# The gradient of a row is differenced over this share of a coordinate's standard deviation.
APART = 1e-2


@dataclass(frozen=True)
class TaylorProxy:
    """Which polynomials stand for the rows; see `HMCECS.taylor_proxy`.

    Parameters
    ----------
    reference_params : dict of array_like by site, or None
        Constrained values; near the mode, which is found if None.
    degree : {1, 2}
    """

    reference_params: Mapping[str, TensorLike] | None = None
    degree: int = 2

    def __post_init__(self) -> None:
        if self.degree not in (1, 2):
            raise ArgumentError(
                "HMCECS.taylor_proxy(degree=...)",
                expected="1 or 2",
                got=repr(self.degree),
                fix="leave it out for 2",
            )


@dataclass(frozen=True)
class _Table:
    """The polynomials of all rows, and their sums."""

    reference: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    curvatures: np.ndarray | None


class DifferenceTarget(SubsampledTarget):
    """A target whose `row_density` estimates the log likelihood by differences to proxies.

    Raises
    ------
    InferenceError
        If no plate of the model draws subsamples, of two rows at least.
    """

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        proxy: TaylorProxy,
    ) -> None:
        super().__init__(model, args, kwargs)
        self.proxy = proxy
        if self.batch < 2:
            raise InferenceError(
                f"HMCECS: the rows of {self.name}",
                expected="a plate that draws subsamples of two rows or more",
                got="all rows" if self.plate is None else "one row",
                fix='write plate("data", size, subsample_size=100) in the model, or use NUTS',
            )

    @cached_property
    def row_density(self) -> NativeDensity:
        """The density at a vector of `dim` coordinates and `batch` numbers of rows."""
        table = self._table()
        reference, values, slopes = (wrap(x) for x in (table.reference, table.values, table.slopes))
        whole, slope = wrap(np.array(table.values.sum())), wrap(table.slopes.sum(axis=0))
        bends = None if table.curvatures is None else wrap(table.curvatures)
        bend = None if table.curvatures is None else wrap(table.curvatures.sum(axis=0))
        batch, rows_there_are = float(self.batch), float(self.rows)

        def of_both(x: TensorBase) -> TensorBase:
            q, rows = x[: self.dim], x[self.dim :].long()
            rest, terms = self.row_terms(q, rows)
            way = q - reference
            proxies = values[rows] + matmul(slopes[rows], way)
            known = whole + total(slope * way)
            if bends is not None and bend is not None:
                proxies = proxies + 0.5 * matmul(matmul(bends[rows], way), way)
                known = known + 0.5 * total(matmul(bend, way) * way)
            differences = terms - proxies
            mean = total(differences) / batch
            off = differences - mean
            variance = rows_there_are**2 * total(off * off) / (batch * (batch - 1.0))
            return rest + known + rows_there_are * mean - 0.5 * variance

        name = f"the log density of {self.batch} rows of {self.name}"
        return NativeDensity(of_both, self.dim + self.batch, name=name)

    def _table(self) -> _Table:
        if self.proxy.reference_params is None:
            start = self.initial(1, Generator(0), init_to_typical_set)[0]
        else:
            start = self.unconstrain(self.proxy.reference_params)
        mode = mode_of(self, start)
        reference = mode.position if self.proxy.reference_params is None else start

        def of_row(x: TensorBase) -> TensorBase:
            return self.row_terms(x[: self.dim], x[self.dim :].long())[1].sum()

        # The density of one row, at the reference and around it: a native call for each.
        one = NativeDensity(of_row, self.dim + 1, name=f"a row of {self.name}")
        numbers = np.arange(float(self.rows))[:, None]

        def at(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            points = np.broadcast_to(point, (self.rows, self.dim))
            found, grads = one.value_and_grad_many(np.concatenate([points, numbers], axis=1))
            return found, grads[:, : self.dim]

        values, slopes = at(reference)
        if self.proxy.degree == 1:
            return _Table(reference, values, slopes, None)
        curvatures = np.empty((self.rows, self.dim, self.dim))
        for i, length in enumerate(APART * np.sqrt(np.diag(mode.covariance))):
            ahead, behind = reference.copy(), reference.copy()
            ahead[i] += length
            behind[i] -= length
            curvatures[:, i] = (at(ahead)[1] - at(behind)[1]) / (ahead[i] - behind[i])
        curvatures = 0.5 * (curvatures + np.swapaxes(curvatures, 1, 2))
        return _Table(reference, values, slopes, curvatures)
