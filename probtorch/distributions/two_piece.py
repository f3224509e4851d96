"""Two halves that meet at `loc`: of different widths, or with a gap of density between them."""

from __future__ import annotations

import abc
import math

from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.heavy_tailed import StudentT
from probtorch.distributions.location_scale import EULER_GAMMA
from probtorch.distributions.noncentral import implicit
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.precision import doubled
from probtorch.distributions.source import Source
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import minimum, sqrt, where
from probtorch.ops.exponentials import exp, log
from probtorch.ops.special import gammainc, gammaincc, lgamma_difference
from probtorch.tensor import Tensor

__all__ = ["DoublesidedMaxwell", "TwoPieceNormal", "TwoPieceStudentT"]


class TwoPiece(Distribution, abc.ABC):
    """A density symmetric around 0, stretched by different factors on both sides of `loc`."""

    loc: Parameter
    scale: Parameter
    asymmetry: Parameter
    support = constraints.real

    @abc.abstractmethod
    def _symmetric(self) -> Distribution:
        """Return the distribution that is stretched."""

    @abc.abstractmethod
    def _size(self) -> Tensor:
        """Return the mean of abs(y) under the distribution that is stretched."""

    def _sides(self) -> tuple[Tensor, Tensor]:
        """Return the widths below and above."""
        return self.scale / self.asymmetry, self.scale * self.asymmetry

    def _below(self) -> Tensor:
        """Return the probability of a value below `loc`."""
        return 1.0 / (1.0 + self.asymmetry * self.asymmetry)

    def _above(self) -> Tensor:
        square = self.asymmetry * self.asymmetry
        return square / (1.0 + square)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        low, high = self._sides()
        y = absolute(self._symmetric()._sample(rng, shape))
        left = rng.uniform(shape) < self._below()
        return self.loc + rng.finite(where(left, -low * y, high * y))

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return implicit(self, self._sample(rng, shape).detach())

    @doubled
    def _log_prob(self, x: Tensor) -> Tensor:
        # In single precision a width may be beyond floats.
        low, high = self._sides()
        z = x - self.loc
        y = z / where(z < 0.0, low, high)
        return self._symmetric()._log_prob(y) + (math.log(2.0) - log(low + high))

    def _cdf(self, x: Tensor) -> Tensor:
        low, high = self._sides()
        z, share = x - self.loc, self._below()
        whole = self._symmetric()
        below = 2.0 * share * whole.cdf(minimum(z, 0.0) / low)
        above = 2.0 * self._above() * whole.cdf(minimum(-z, 0.0) / high)
        return where(z < 0.0, below, 1.0 - above)

    def _survival(self, x: Tensor) -> Tensor:
        low, high = self._sides()
        z, share = x - self.loc, self._below()
        whole = self._symmetric()
        above = 2.0 * self._above() * whole.cdf(minimum(-z, 0.0) / high)
        below = 2.0 * share * whole.cdf(minimum(z, 0.0) / low)
        return where(z > 0.0, above, 1.0 - below)

    def _icdf(self, p: Tensor) -> Tensor:
        low, high = self._sides()
        share, whole = self._below(), self._symmetric()
        left = p < share
        below = low * whole.icdf(where(left, p / (2.0 * share), 0.5))
        above = high * whole.icdf(where(left, 0.5, (1.0 - p) / (2.0 * self._above())))
        return self.loc + where(left, below, -above)

    def _mean(self) -> Tensor:
        low, high = self._sides()
        # The halves weigh as much as they are wide.
        return self.loc + (high - low) * self._size()

    def _mode(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        low, high = self._sides()
        square = (low * low * low + high * high * high) / (low + high)
        shift = (high - low) * self._size()
        return square * self._symmetric().variance - shift * shift


class TwoPieceNormal(TwoPiece):
    """Normal distribution with two standard deviations: also called split normal.

    Density ``f(x) = sqrt(2 / pi) * exp(-z ** 2 / 2) / (scale * (asymmetry + 1 / asymmetry))``
    with ``z = (x - loc) * asymmetry / scale if x < loc else (x - loc) / (scale * asymmetry)``.

    Parameters
    ----------
    loc : Tensor or number
        Mode.
    scale : Tensor or number, positive
        Geometric mean of the standard deviations.
    asymmetry : Tensor or number, positive
        The one above is ``scale * asymmetry``, the one below ``scale / asymmetry``; TFP's
        `skewness`.
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    asymmetry: Parameter = param(constraints.positive)

    def _symmetric(self) -> Distribution:
        return Normal(0.0, 1.0, validate_args=False)

    def _size(self) -> Tensor:
        return self.scale * 0.0 + math.sqrt(2.0 / math.pi)

    def _entropy(self) -> Tensor:
        low, high = self._sides()
        return log(low + high) + (0.5 + HALF_LOG_2PI - math.log(2.0))


class TwoPieceStudentT(TwoPiece):
    """Student's t distribution with two scales.

    Density ``f(x) = 2 * gamma((df + 1) / 2) * (1 + z ** 2 / df) ** (-(df + 1) / 2) / (gamma(df
    / 2) * sqrt(df * pi) * scale * (asymmetry + 1 / asymmetry))`` with ``z = (x - loc) *
    asymmetry / scale if x < loc else (x - loc) / (scale * asymmetry)``.

    Parameters
    ----------
    df : Tensor or number, positive
        Degrees of freedom.
    loc : Tensor or number
        Mode.
    scale : Tensor or number, positive
        Geometric mean of both scales.
    asymmetry : Tensor or number, positive
        The scale above is ``scale * asymmetry``, the one below ``scale / asymmetry``; TFP's
        `skewness`.
    """

    df: Parameter = param(constraints.positive)
    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive)
    asymmetry: Parameter = param(constraints.positive)

    def _symmetric(self) -> Distribution:
        return StudentT(self.df, 0.0, 1.0, validate_args=False)

    def _size(self) -> Tensor:
        finite = self.df > 1.0
        df = where(finite, self.df, 2.0)
        size = 2.0 * exp(lgamma_difference(df * 0.5, 0.5)) / (df - 1.0) * sqrt(df / math.pi)
        return where(finite, size, math.nan)

    def _entropy(self) -> Tensor:
        low, high = self._sides()
        return self._symmetric().entropy() + log(low + high) - math.log(2.0)


class DoublesidedMaxwell(Distribution):
    """Normal density times the squared distance from `loc`, where it is 0: two hills.

    Density ``f(x) = (x - loc) ** 2 / (scale ** 3 * sqrt(2 * pi)) * exp(-(x - loc) ** 2 / (2 *
    scale ** 2))``.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    """

    loc: Parameter = param(constraints.real)
    scale: Parameter = param(constraints.positive, default=1.0)
    support = constraints.real

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        size = sqrt(2.0 * rng.gamma(self.scale * 0.0 + 1.5, shape))
        return self.loc + self.scale * where(rng.uniform(shape) < 0.5, -size, size)

    def _log_prob(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        return 2.0 * log(absolute(z)) - 0.5 * z * z - log(self.scale) - HALF_LOG_2PI

    def _cdf(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        y = 0.5 * z * z
        tail = 0.5 * gammaincc(1.5, y)
        return where(z < 0.0, tail, 0.5 + 0.5 * gammainc(1.5, y))

    def _survival(self, x: Tensor) -> Tensor:
        return self._cdf(2.0 * self.loc - x)

    def _mean(self) -> Tensor:
        return self.loc

    def _variance(self) -> Tensor:
        return 3.0 * self.scale * self.scale

    def _entropy(self) -> Tensor:
        # log z^2 is on average digamma(3 / 2) + log 2, z^2 is 3.
        known = 2.0 - EULER_GAMMA - 2.0 * math.log(2.0) + math.log(2.0)
        return log(self.scale) + (1.5 + HALF_LOG_2PI - known)

    def _mode(self) -> Tensor:
        """The hill above."""
        return self.loc + self.scale * math.sqrt(2.0)

    def _skewness(self) -> Tensor:
        return self.scale * 0.0

    def _kurtosis(self) -> Tensor:
        # E[z^6] / E[z^4] ... = 15 / 9 - 3 for z^2 gamma distributed around 3
        return self.scale * 0.0 - 4.0 / 3.0
