"""Temperatures of replica exchange: in warm-up they move until all neighbours swap as often.

`PowersTuner` is a `Tuner` around that of the kernel inside. The powers of the density fall from 1
to a lowest one that stays; the ratios between neighbours are what is tuned. After each transition
a ratio grows where its pair would have swapped more often than the mean of all pairs, and shrinks
where less (stochastic approximation with gains t^-0.6); what is kept is a weighted mean of the way.
With equal rates a given number of replicas takes what is in a mode at the lowest power to 1 in the
fewest rounds.

References
----------
S. Syed, A. Bouchard-Cote, G. Deligiannidis, A. Doucet, "Non-reversible parallel tempering: a
scalable highly parallel MCMC scheme", JRSS B 84 (2022), sections 4 and 5, for why rates should be
equal. B. Miasojedow, E. Moulines, M. Vihola, "An adaptive parallel tempering algorithm", Journal of
Computational and Graphical Statistics 22 (2013), for the ratios and their gains; there they are
tuned to a rate that is given, and the lowest power is free.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.infer.mcmc.warm_up.adaptation import Tuner
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import exp, log

__all__ = ["PowersTuner"]

# Gain of the t-th update, and weight of the t-th in the mean: t to minus these.
GAIN, FORGETTING = 0.6, 0.75


@record
class PowersTuner:
    """Tunes the powers of replicas, and what the kernel inside has to be tuned.

    Parameters
    ----------
    inner : Tuner or None
        Of the kernel inside.
    gaps : Tensor, shape (replicas - 1,)
        Logarithms of the ratios of neighbours, the logarithm of each, to go on with.
    mean : Tensor, shape (replicas - 1,)
        Their weighted mean, to be kept.
    span : Tensor, 0-d
        Logarithm of the ratio of the first and the last power.
    count : Tensor, 0-d
        Updates so far.
    pairs : str
        The field of the info with the probabilities that neighbours swap, and 1 behind them.
    """

    inner: Tuner | None
    gaps: TensorBase
    mean: TensorBase
    span: TensorBase
    count: TensorBase
    pairs: str = static(default="pair_probs")

    @classmethod
    def around(cls, powers: np.ndarray, inner: Tuner | None) -> PowersTuner:
        """Return the tuner that begins with these powers."""
        ratios = -np.diff(np.log(powers))
        gaps = wrap(np.log(ratios))
        return cls(inner, gaps, gaps, wrap(ratios.sum()), wrap(np.zeros(())))

    @property
    def target(self) -> TensorBase:
        """What the kernel inside aims at; nothing is missed where it aims at nothing."""
        return wrap(np.zeros(())) if self.inner is None else self.inner.target

    @property
    def tunes(self) -> str:
        """The field that the search of the kernel inside begins with."""
        return "powers" if self.inner is None else self.inner.tunes

    @property
    def follows(self) -> str:
        """The field of the info that the kernel inside compares with its target."""
        return "followed"

    @property
    def searches(self) -> bool:
        """Whether the kernel inside finds a first value."""
        return self.inner is not None and self.inner.searches

    @property
    def fields(self) -> tuple[str, ...]:
        """The powers, and those of the kernel inside."""
        return ("powers", *(() if self.inner is None else self.inner.fields))

    def restarted(self, value: TensorBase) -> PowersTuner:
        """Return it as it is around another value of what the kernel inside tunes."""
        return self if self.inner is None else replace(self, inner=self.inner.restarted(value))

    def updated(
        self, info: object, wanted: TensorBase
    ) -> tuple[PowersTuner, dict[str, TensorBase]]:
        """Return the tuner after a transition, and all values to go on with."""
        inner, values = self.inner, {}
        if inner is not None:
            inner, values = inner.updated(info, wanted)
        rates: TensorBase = getattr(info, self.pairs)[:-1]
        count = self.count + 1.0
        gaps = self._spanning(self.gaps + exp(-GAIN * log(count)) * (rates - rates.mean()))
        weight = exp(-FORGETTING * log(count))
        mean = weight * gaps + (1.0 - weight) * self.mean
        new = replace(
            self,
            inner=inner,
            gaps=where(wanted, gaps, self.gaps),
            mean=where(wanted, mean, self.mean),
            count=where(wanted, count, self.count),
        )
        return new, {**values, "powers": self._powers(gaps)}

    def refocused(self) -> PowersTuner:
        """Return it with that of the kernel inside ready to settle: a metric changes no rates."""
        return self if self.inner is None else replace(self, inner=self.inner.refocused())

    def settled(self) -> dict[str, TensorBase]:
        """Return the values to keep after warm-up."""
        values = {} if self.inner is None else self.inner.settled()
        return {**values, "powers": self._powers(self._spanning(self.mean))}

    def aimed_at(self) -> TensorBase:
        """Return what the kernel inside aims at as it stands."""
        return self.target if self.inner is None else self.inner.aimed_at()

    def _spanning(self, gaps: TensorBase) -> TensorBase:
        """Gaps whose ratios multiply to what they have to."""
        highest = gaps.max()
        return gaps - highest - log(exp(gaps - highest).sum()) + log(self.span)

    def _powers(self, gaps: TensorBase) -> TensorBase:
        """The powers with such gaps, from 1 downwards."""
        size = gaps.array.shape[0]
        below = wrap(np.tri(size + 1, size, -1))
        return exp(-(below * exp(gaps)).sum(-1))
