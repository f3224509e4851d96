"""What tunes by more, or by something else, than the acceptance of one chain, in the program.

`EnergyTuner` keeps the error of the energy of a sampler without accept and reject at a value that
is asked for. `LengthTuner` has an acceptance, of many chains, and climbs beside it a criterion of
how long their trajectories should be. The rest of what a tuner is, and the usual one, are in
adaptation.py.

References
----------
J. Robnik, G. B. De Luca, E. Silverstein, U. Seljak, "Microcanonical Hamiltonian Monte Carlo",
Journal of Machine Learning Research 24 (2023). J. Robnik, U. Seljak, "Fluctuation without
dissipation: microcanonical Langevin Monte Carlo", AABI (2024), for the weights. M. D. Hoffman,
A. Radul, P. Sountsov, "An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo", AISTATS (2021), for the ascent. D. P. Kingma, J. Ba, "Adam: a method for stochastic
optimization", ICLR (2015).
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import map_tree, record, replace, static
from probtorch.infer.mcmc.warm_up.adaptation import (
    DualAveraging,
    dual_averaging_start,
    dual_averaging_update,
    mean_restarted,
)
from probtorch.ops.arithmetic import clamp, minimum, sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.exponentials import exp, log
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total

__all__ = ["EnergyTuner", "LengthTuner"]

# Variances this many times too large or small, as powers of e^6, count for e^-1/2 of what others
# do: far from what is asked for the sixth power of the step size is no good guide.
TRUST = 1.5
# So many transitions are remembered; and this share of it once the metric is as it will be.
MEMORY, REFOCUSED = 50.0, 0.1
# A transition in which the energy was lost has a step size smaller by this.
AFTER_LOSS = 0.8
# Of the ascent: its rate, and how much of the mean square of slopes is kept [hoffman2021, section
# 4, with a longer memory of squares than it has of slopes, none].
RATE, SQUARES_KEPT = 0.025, 0.95
# An acceptance of nothing counts as this much in harmonic means.
LEAST_ACCEPTANCE = 1e-10


@record
class EnergyTuner:
    """Tunes a step size so that the energy varies as asked for, per step and dimension.

    The variance of a second order integrator's error grows with the sixth power of the step size,
    so that each transition says which step size would have been right; their weighted mean is.

    Parameters
    ----------
    step_size : Tensor, 0-d
        To go on with.
    inverse, weight : Tensor, 0-d
        Sums over transitions, the older the less: of what the step size to the power -6 should be,
        and of its weights.
    target : Tensor, 0-d
        The variance to aim at.
    tunes, follows : str
    searches : bool
    """

    step_size: TensorBase
    inverse: TensorBase
    weight: TensorBase
    target: TensorBase
    tunes: str = static(default="step_size")
    follows: str = static(default="energy_variance")
    searches: bool = static(default=True)

    @classmethod
    def around(cls, value: float, target: float) -> EnergyTuner:
        """Return the tuner of a step size that has this value to begin with."""
        zero = wrap(np.zeros(()))
        return cls(wrap(np.asarray(value)), zero, zero, wrap(np.asarray(target)))

    @property
    def fields(self) -> tuple[str, ...]:
        """The one that it tunes."""
        return (self.tunes,)

    def restarted(self, value: TensorBase) -> EnergyTuner:
        """Return it as it is around another value, a Tensor."""
        return replace(self, step_size=value, inverse=0.0 * value, weight=0.0 * value)

    def updated(
        self, info: object, wanted: TensorBase
    ) -> tuple[EnergyTuner, dict[str, TensorBase]]:
        """Return the tuner after a transition, and the step size to go on with."""
        variance = getattr(info, self.follows)
        fine = isfinite(variance)
        # Never nothing: an energy kept to the last bit asks for a larger step, not an infinite one.
        ratio = where(fine, variance, self.target) / self.target + 1e-8
        off = log(ratio) / (6.0 * TRUST)
        weight = where(fine, exp(-0.5 * off * off), 0.0)
        kept = (MEMORY - 1.0) / (MEMORY + 1.0)
        inverse = kept * self.inverse + weight * ratio * exp(-6.0 * log(self.step_size))
        total = kept * self.weight + weight
        found = exp(-log(where(fine, inverse / total, 1.0)) / 6.0)
        step_size = where(fine, found, AFTER_LOSS * self.step_size)
        new = replace(
            self,
            step_size=where(wanted, step_size, self.step_size),
            inverse=where(wanted, inverse, self.inverse),
            weight=where(wanted, total, self.weight),
        )
        return new, {self.tunes: step_size}

    def refocused(self) -> EnergyTuner:
        """Return it with less memory of what went before."""
        return replace(self, inverse=REFOCUSED * self.inverse, weight=REFOCUSED * self.weight)

    def settled(self) -> dict[str, TensorBase]:
        """Return the step size, a mean already."""
        return {self.tunes: self.step_size}

    def aimed_at(self) -> TensorBase:
        """Return the variance that it was given."""
        return self.target


@record
class LengthTuner:
    """Tunes the step size and the mean length of the trajectories of many chains.

    The step size by the harmonic mean of their acceptances, which a chain that is stuck pulls down,
    with dual averaging; the logarithm of the length by steps along the slope of a criterion, which
    the kernel tells as `length_slope` for each chain, with Adam's scale and no momentum.

    Parameters
    ----------
    averaging : DualAveraging
        Of the step size.
    length : Tensor, 0-d
        Logarithm of the length to go on with.
    length_mean : Tensor, 0-d
        Its weighted mean, to be kept.
    square, count : Tensor, 0-d
        Mean square of slopes, and how many there were.
    mean_count : Tensor, 0-d
        Updates that the mean is taken over.
    target : Tensor, 0-d
        The acceptance to aim at.
    most_steps : int
        That a trajectory may have.
    tunes, follows, climbs : str
        The last is the field of the info that has the slopes.
    searches : bool
    """

    averaging: DualAveraging
    length: TensorBase
    length_mean: TensorBase
    square: TensorBase
    count: TensorBase
    mean_count: TensorBase
    target: TensorBase
    most_steps: int = static(default=1024)
    tunes: str = static(default="step_size")
    follows: str = static(default="accept_prob")
    climbs: str = static(default="length_slope")
    searches: bool = static(default=True)

    @classmethod
    def around(cls, step_size: float, length: float, target: float, most_steps: int) -> LengthTuner:
        """Return the tuner that begins with a step size and a length."""
        averaging = dual_averaging_start(wrap(np.asarray(step_size)))
        zero, at = wrap(np.zeros(())), wrap(np.log(np.asarray(length)))
        return cls(
            averaging, at, at, zero, zero, zero, wrap(np.asarray(target)), most_steps=most_steps
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """Step size and length."""
        return (self.tunes, "trajectory_length")

    def restarted(self, value: TensorBase) -> LengthTuner:
        """Return it as it is around another step size, a Tensor."""
        return replace(self, averaging=dual_averaging_start(value))

    def updated(
        self, info: object, wanted: TensorBase
    ) -> tuple[LengthTuner, dict[str, TensorBase]]:
        """Return the tuner after a transition, and step size and length to go on with."""
        accept = getattr(info, self.follows)
        harmonic = 1.0 / mean(1.0 / clamp(accept, min=LEAST_ACCEPTANCE))
        averaging = dual_averaging_update(self.averaging, harmonic, self.target)

        slopes: TensorBase = getattr(info, self.climbs)
        # What is never accepted says nothing, and must not: the ascent looks at signs at first.
        counts = isfinite(slopes) & (accept > LEAST_ACCEPTANCE)
        weights = where(counts, accept, 0.0)
        slope = total(weights * where(counts, slopes, 0.0)) / (total(weights) + 1e-300)
        count = self.count + 1.0
        square = SQUARES_KEPT * self.square + (1.0 - SQUARES_KEPT) * slope * slope
        scale = sqrt(square / (1.0 - exp(np.log(SQUARES_KEPT) * count)))
        length = self.length + RATE * slope / (scale + 1e-300)
        # No more steps than there may be, half of that, as it is the mean. Not by the step size in
        # use, which jumps at first, and would take the length along to where the slope is flat.
        length = minimum(length, averaging.log_step_mean + float(np.log(0.5 * self.most_steps)))
        mean_count = self.mean_count + 1.0
        weight = 1.0 / sqrt(mean_count)
        length_mean = weight * length + (1.0 - weight) * self.length_mean
        new = replace(
            self,
            averaging=averaging,
            length=length,
            length_mean=length_mean,
            square=square,
            count=count,
            mean_count=mean_count,
        )
        kept = map_tree(lambda new, old: where(wanted, new, old), new, self)
        return kept, {self.tunes: exp(averaging.log_step), "trajectory_length": exp(length)}

    def refocused(self) -> LengthTuner:
        """Return it with means that begin anew."""
        zero = wrap(np.zeros(()))
        return replace(self, averaging=mean_restarted(self.averaging), mean_count=zero)

    def settled(self) -> dict[str, TensorBase]:
        """Return the means."""
        return {
            self.tunes: wrap(np.exp(self.averaging.log_step_mean.array)),
            "trajectory_length": wrap(np.exp(self.length_mean.array)),
        }

    def aimed_at(self) -> TensorBase:
        """Return the acceptance that it was given."""
        return self.target
