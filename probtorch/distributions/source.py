"""`Source`: where `_rsample` and `_sample` get their random numbers from."""

from __future__ import annotations

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.typed import DType, SizeLike, TensorLike
from probtorch.ops.arithmetic import clamp, maximum, neg
from probtorch.ops.exponentials import log
from probtorch.ops.movement import expand
from probtorch.ops.sampling import categorical, rand, randn
from probtorch.ops.variates import (
    binomial,
    poisson,
    polya_gamma,
    standard_gamma,
    standard_log_gamma,
    von_mises,
)
from probtorch.tensor import Tensor

__all__ = ["Source"]


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

    def uniform(self, shape: SizeLike) -> Tensor:
        """Return draws from Uniform(0, 1)."""
        return rand(shape, generator=self.generator, dtype=self.dtype, device=self.device)

    def normal(self, shape: SizeLike) -> Tensor:
        """Return draws from Normal(0, 1)."""
        return randn(shape, generator=self.generator, dtype=self.dtype, device=self.device)

    def exponential(self, shape: SizeLike) -> Tensor:
        """Return draws from Exponential(1), always positive."""
        return neg(log(self.uniform(shape)))

    def _spread(self, x: TensorLike, shape: SizeLike) -> Tensor:
        """Return a parameter in the shape of the draws, on their device."""
        return expand(x if self.device is None else as_tensor(x).to(device=self.device), shape)

    def gamma(self, concentration: TensorLike, shape: SizeLike) -> Tensor:
        """Return draws from Gamma(concentration, 1), not below the smallest normal float."""
        draws = standard_gamma(self._spread(concentration, shape), generator=self.generator)
        return maximum(draws, float(dtypes.finfo(self.dtype).tiny))

    def log_gamma(self, concentration: TensorLike, shape: SizeLike) -> Tensor:
        """Return logarithms of draws from Gamma(concentration, 1), which do not underflow."""
        return standard_log_gamma(self._spread(concentration, shape), generator=self.generator)

    def poisson(self, rate: TensorLike, shape: SizeLike) -> Tensor:
        """Return draws from Poisson(rate)."""
        return cast(poisson(self._spread(rate, shape), generator=self.generator), self.dtype)

    def binomial(self, count: TensorLike, prob: TensorLike, shape: SizeLike) -> Tensor:
        """Return draws from Binomial(count, prob)."""
        count, prob = self._spread(count, shape), self._spread(prob, shape)
        return cast(binomial(count, prob, generator=self.generator), self.dtype)

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
        return clamp(x, float(info.tiny), 0.5 * float(info.max))

    def finite(self, x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
        """Move what has overflowed inside the range of floats, or `scale` times that range."""
        top = scale * (0.5 * float(dtypes.finfo(self.dtype).max))
        return clamp(x, -top, top)

    def inside_unit(self, x: TensorLike) -> Tensor:
        """Move what rounding has put on 0 or 1 to the nearest float inside (0, 1)."""
        info = dtypes.finfo(self.dtype)
        return clamp(x, float(info.tiny), 1.0 - float(info.epsneg))
