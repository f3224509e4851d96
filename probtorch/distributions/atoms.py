"""Facts of distributions that are partly points: censored, hurdle, inflated at ends.

Such a distribution is a point with some probability, else a draw of a continuous one. Moments are
those of the mixture; the entropy is that of the density with respect to counts at the points and
lengths elsewhere, which is what `log_prob` is.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass

from probtorch.distributions.distribution import Distribution
from probtorch.ops.arithmetic import where
from probtorch.ops.special import xlogy
from probtorch.tensor import Tensor

__all__ = ["Mixed", "WithAtoms"]


@dataclass(frozen=True)
class Mixed:
    """What a distribution with points is made of.

    Attributes
    ----------
    points : tuple of (Tensor, Tensor or float)
        Probabilities and where they are.
    weight : Tensor
        The probability of the rest.
    rest : Distribution
        Continuous.
    """

    points: tuple[tuple[Tensor, Tensor | float], ...]
    weight: Tensor
    rest: Distribution


class WithAtoms(Distribution):
    """A distribution that states `_mixed`; where it is None there are no points."""

    _mass_on_ends = True

    @abc.abstractmethod
    def _mixed(self) -> Mixed | None:
        """What it is made of."""

    def _fact(self, method: str, what: str) -> Tensor:
        own = {
            "_mean": self._mixed_mean,
            "_variance": self._mixed_variance,
            "_skewness": self._mixed_skewness,
            "_kurtosis": self._mixed_kurtosis,
            "_entropy": self._mixed_entropy,
        }
        mixed = self._mixed() if method in own else None
        return super()._fact(method, what) if mixed is None else own[method](mixed)

    def _mixed_mean(self, m: Mixed) -> Tensor:
        return _expected(m, m.rest.mean, lambda at: at)

    def _central(self, m: Mixed, order: int) -> Tensor:
        """The central moment of order 2, 3 or 4."""
        mean = self._mixed_mean(m)
        inner, v = m.rest.mean, m.rest.variance
        gap = inner - mean
        if order == 2:
            moment = v + gap * gap
        else:
            third = m.rest.skewness * v * v**0.5
            moment = third + 3.0 * gap * v + gap**3
            if order == 4:
                fourth = (m.rest.kurtosis + 3.0) * v * v
                moment = fourth + 4.0 * gap * third + 6.0 * gap * gap * v + gap**4
        return _expected(m, moment, lambda at: (at - mean) ** order)

    def _mixed_variance(self, m: Mixed) -> Tensor:
        return self._central(m, 2)

    def _mixed_skewness(self, m: Mixed) -> Tensor:
        return self._central(m, 3) / self._central(m, 2) ** 1.5

    def _mixed_kurtosis(self, m: Mixed) -> Tensor:
        return self._central(m, 4) / self._central(m, 2) ** 2 - 3.0

    def _mixed_entropy(self, m: Mixed) -> Tensor:
        value = where(m.weight > 0.0, m.weight * m.rest.entropy(), 0.0) - xlogy(m.weight, m.weight)
        for probability, _ in m.points:
            value = value - xlogy(probability, probability)
        return value


def _expected(m: Mixed, inner: Tensor, of: Callable[[Tensor | float], Tensor | float]) -> Tensor:
    """Mean of ``of(x)`` over the points, and of what `inner` is over the rest."""
    value = where(m.weight > 0.0, m.weight * inner, 0.0)
    for probability, at in m.points:
        value = value + probability * of(at)
    return value
