"""`Source`: where `_rsample` and `_sample` get their random numbers from."""

from __future__ import annotations

import functools
import math
import operator

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, Shape, SizeLike, TensorLike
from probtorch.ops.arithmetic import clamp, maximum, sqrt, where
from probtorch.ops.categories import categorical
from probtorch.ops.demands import distinct
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import exp, log, sigmoid
from probtorch.ops.extremes import amax as largest
from probtorch.ops.movement import expand
from probtorch.ops.random_numbers import is_plain, scaled
from probtorch.ops.variates import (
    binomial,
    poisson,
    polya_gamma,
    progeny,
    standard_gamma,
    standard_log_gamma,
    von_mises,
)
from probtorch.tensor import Tensor

__all__ = ["Source"]


# Up to so many columns, sums along them are made column by column.
_FEW_COLUMNS = 16


class Source:
    """Random numbers for `_rsample` and `_sample`: a generator, the dtype of the draws, and the
    device of those that no parameter leads to, None for the host.

    Uniforms lie in the open interval (0, 1) and normals are finite, so their logarithms and
    quotients are finite too.
    """

    __slots__ = ("device", "dtype", "generator")

    def __init__(
        self, generator: Generator | None, dtype: DType, device: str | None = None
    ) -> None:
        self.generator, self.dtype, self.device = generator, dtype, device

    def _scaled(
        self, kind: str, shape: Shape, scale: Tensor | None, shift: Tensor | None
    ) -> Tensor:
        return scaled(
            kind, shape, scale, shift,
            generator=self.generator, dtype=self.dtype, device=self.device,
        )  # fmt: skip

    def uniform(
        self, shape: Shape, low: Tensor | None = None, width: Tensor | None = None
    ) -> Tensor:
        """Return ``low + width * u`` with u uniform on (0, 1), by default u."""
        return self._scaled("uniforms", shape, width, low)

    def normal(
        self, shape: Shape, loc: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        """Return draws from Normal(loc, scale), by default standard ones."""
        return self._scaled("normals", shape, scale, loc)

    def exponential(self, shape: Shape, scale: Tensor | None = None) -> Tensor:
        """Return exponential draws of mean `scale`, by default 1; those are always positive."""
        return self._scaled("exponentials", shape, scale, None)

    def _spread(self, x: TensorLike, shape: SizeLike) -> Tensor:
        """Return a parameter in the shape of the draws, on their device."""
        return expand(x if self.device is None else as_tensor(x).to(device=self.device), shape)

    def gamma(self, concentration: TensorLike, shape: SizeLike) -> Tensor:
        """Return draws from Gamma(concentration, 1), not below the smallest normal float."""
        draws = standard_gamma(self._spread(concentration, shape), generator=self.generator)
        return _between(draws, float(dtypes.finfo(self.dtype).tiny), math.inf)

    def log_gamma(self, concentration: TensorLike, shape: SizeLike) -> Tensor:
        """Return logarithms of draws from Gamma(concentration, 1), which do not underflow."""
        return standard_log_gamma(self._spread(concentration, shape), generator=self.generator)

    def _without_logs(self, *concentrations: Tensor) -> bool:
        """Whether gamma draws can be divided as they are: none is near underflow, and nobody asks
        for derivatives, which are better of logarithms.
        """
        return is_plain(*concentrations) and all(
            bool((distinct(c.array) >= 1.0).all()) for c in concentrations
        )

    def beta(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Return draws from Beta(a, b), inside the unit interval."""
        if self._without_logs(a, b):
            x, y = self.gamma(a, shape), self.gamma(b, shape)
            # Nobody else knows these arrays.
            y.array += x.array
            x.array /= y.array
            return self.inside_unit(x)
        return self.inside_unit(sigmoid(self.log_gamma(a, shape) - self.log_gamma(b, shape)))

    def dirichlet(self, concentration: Tensor, shape: Shape) -> Tensor:
        """Return draws from Dirichlet(concentration), all parts of them positive."""
        if self._without_logs(concentration) and 0 < shape[-1] <= _FEW_COLUMNS:
            x = self.gamma(concentration, shape)
            columns = [x.array[..., k] for k in range(shape[-1])]
            # Column by column: rows this short would be a loop each.
            total = functools.reduce(operator.add, columns)
            for column in columns:
                column /= total
        else:
            logs = self.log_gamma(concentration, shape)
            x = softmax(logs - largest(logs, -1, True).detach(), -1)
        # A part that has underflowed would lie on the boundary, where the density is 0 or infinite.
        return self.positive(x)

    def student_t(self, df: Tensor, shape: Shape) -> Tensor:
        """Return draws from the standard t distribution, which may overflow for small `df`."""
        # normal * sqrt(df / chi2); a gamma draw of small shape stays in logs, so that nothing is
        # divided by 0.
        half = df * 0.5
        if self._without_logs(half):
            ratio = sqrt(half / self.gamma(half, shape))
        else:
            ratio = exp((log(half) - self.log_gamma(half, shape)) * 0.5)
        return self.normal(shape, None, ratio)

    def poisson(self, rate: TensorLike, shape: SizeLike) -> Tensor:
        """Return draws from Poisson(rate)."""
        return cast(poisson(self._spread(rate, shape), generator=self.generator), self.dtype)

    def binomial(self, count: TensorLike, prob: TensorLike, shape: SizeLike) -> Tensor:
        """Return draws from Binomial(count, prob)."""
        count, prob = self._spread(count, shape), self._spread(prob, shape)
        return cast(binomial(count, prob, generator=self.generator), self.dtype)

    def progeny(self, rate: Tensor, excess: Tensor, shape: Shape) -> Tensor:
        """Return sizes of family trees of Poisson(rate) founders, in float64."""
        rate, excess = self._spread(rate, shape), self._spread(excess, shape)
        return progeny(rate, excess, generator=self.generator)

    def polya_gamma(self, count: Tensor, tilt: Tensor) -> Tensor:
        """Return sums of `count` draws from PolyaGamma(1, tilt), in float64."""
        return polya_gamma(count, tilt, generator=self.generator)

    def von_mises(self, concentration: TensorLike, shape: SizeLike) -> Tensor:
        """Return angles drawn from VonMises(0, concentration)."""
        return von_mises(self._spread(concentration, shape), generator=self.generator)

    def categorical(self, weights: Tensor, shape: SizeLike) -> Tensor:
        """Return int64 draws of shape `shape` from rows of `weights`, shape (..., categories)."""
        return categorical(weights, shape, generator=self.generator)

    def positive(self, x: TensorLike) -> Tensor:
        """Move what has underflowed to 0, or overflowed, inside the range of normal floats.

        The upper end is half the largest float: a draw divided by its scale may round upwards.
        """
        info = dtypes.finfo(self.dtype)
        return _between(x, float(info.tiny), 0.5 * float(info.max))

    def finite(self, x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
        """Move what has overflowed inside the range of floats, or `scale` times that range."""
        half = 0.5 * float(dtypes.finfo(self.dtype).max)
        if isinstance(scale, TensorBase) and is_plain(x, scale) and type(x.array) is np.ndarray:
            if (np.abs(x.array) <= scale.array * half).all():
                return x
        top = scale * half
        return _between(x, -top, top)

    def inside_unit(self, x: TensorLike) -> Tensor:
        """Move what rounding has put on 0 or 1 to the nearest float inside (0, 1)."""
        info = dtypes.finfo(self.dtype)
        return _between(x, float(info.tiny), 1.0 - float(info.epsneg))

    def below(self, x: Tensor, high: Tensor, otherwise: Tensor) -> Tensor:
        """Return `x`, or `otherwise` where rounding has put it on `high`."""
        if is_plain(x) and bool((x.array < high.array).all()):
            return x
        return where(x < high, x, otherwise)


def _between(x: TensorLike, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Return `x` between bounds, and nan where it is not a number; often nothing is to be done."""
    if isinstance(x, TensorBase) and is_plain(x) and x.array.size:
        a = x.array
        least, most = (a.item(), a.item()) if a.size == 1 else (a.min(), a.max())
        ends = (low, high) if isinstance(low, float) else None
        if ends and ends[0] <= least and most <= ends[1]:
            return x
    return maximum(x, low) if high is math.inf else clamp(x, low, high)
