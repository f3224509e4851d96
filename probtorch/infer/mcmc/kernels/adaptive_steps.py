"""Steps that are refined where the energy asks for it: the integrator of WALNUTS.

A step of size h, the macro step, is one leapfrog step where that is accurate. Where it is not, it
is taken as 2, 4, 8, ... leapfrog steps of h / 2, h / 4, h / 8, ... until the energies met on the
way, both ends included, lie within a tolerance of each other. So a trajectory goes at the pace of
the wide parts of a density, and through its narrow ones all the same, where a fixed step size would
have to be that of the narrowest.

The number of halvings is a function of where the step begins, and that is what reversibility is
lost by: going back from the end, fewer might do. Then the step back is another one, and the point
must not be reached at all: the trajectory ends before it, as it ends before a doubling that turns.
That leaves the posterior invariant, since the trajectories that remain are built alike from each of
their points. To know, the coarser steps are tried backwards from the end; all have to fail. Going
back with as many halvings needs no trial: it retraces the way there, through the same energies.

The condition is on all energies of a step, not on those of its two ends, as in the paper. So a
trial is over where it first leaves the tolerance: one far beyond the limit of stability costs a
gradient or two.

References
----------
N. Bou-Rabee, B. Carpenter, T. Kleppe, S. Liu, "The within-orbit adaptive leapfrog no-U-turn
sampler", arXiv:2506.18746 (2025), with the number of halvings chosen deterministically.
"""

from __future__ import annotations

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.infer.mcmc.integrators import Density, IntegratorStep, PhasePoint, leapfrog
from probtorch.infer.mcmc.metrics import Metric, kinetic_energy
from probtorch.ops.arithmetic import neg, where
from probtorch.ops.comparisons import isfinite, shift_left
from probtorch.ops.control import while_loop

__all__ = ["ENERGY_TOLERANCE", "MAX_HALVINGS", "AdaptiveSteps"]

# The paper and its authors' program have 0.3 to 0.5. A step whose error is about the tolerance is
# where the way back may need another number of halvings, so a small one, which is about the usual
# error of a step at an acceptance of 0.8, ends trajectories early (decisions/mcmc.md has numbers).
ENERGY_TOLERANCE = 2.0
# Down to a thousandth of the step size, as in the paper's experiments.
MAX_HALVINGS = 10


@record
class StepTrial:
    """A macro step with one number of halvings, up to where it failed.

    `low` and `high` are the smallest and the largest energy so far.
    """

    taken: TensorBase
    point: PhasePoint
    energy: TensorBase
    low: TensorBase
    high: TensorBase
    accurate: TensorBase


@record
class AdaptiveSteps:
    """Steps of a given size, made of as many leapfrog steps as the energy asks for.

    Parameters
    ----------
    tolerance : float
        Greatest difference between two energies within a step.
    max_halvings : int
        A step is made of ``2 ** max_halvings`` leapfrog steps at most; one that needs more is not
        `accurate`.
    """

    tolerance: float = static(default=ENERGY_TOLERANCE)
    max_halvings: int = static(default=MAX_HALVINGS)

    def __call__(
        self, density: Density, metric: Metric, point: PhasePoint, step_size: TensorBase
    ) -> IntegratorStep:
        """Return the `IntegratorStep` from a point; a negative step size goes back in time."""

        def trial(start: PhasePoint, step_size: TensorBase, halvings: TensorBase) -> StepTrial:
            return self._trial(density, metric, start, step_size, halvings)

        def refine(
            state: tuple[TensorBase, TensorBase, StepTrial],
        ) -> tuple[TensorBase, TensorBase, StepTrial]:
            halvings, gradients, last = state
            last = trial(point, step_size, halvings + 1)
            return halvings + 1, gradients + last.taken, last

        first = trial(point, step_size, _int(0))
        halvings, gradients, last = while_loop(
            lambda state: (state[0] < self.max_halvings) & ~state[2].accurate,
            refine,
            (_int(0), first.taken, first),
        )

        def coarsen(
            state: tuple[TensorBase, TensorBase, TensorBase],
        ) -> tuple[TensorBase, TensorBase, TensorBase]:
            halvings, gradients, _ = state
            back = trial(last.point, neg(step_size), halvings - 1)
            return halvings - 1, gradients + back.taken, back.accurate

        # From the finest down: the one that is most likely to do comes first.
        _, gradients, coarser_does = while_loop(
            lambda state: (state[0] > 0) & ~state[2],
            coarsen,
            (where(last.accurate, halvings, 0), gradients, wrap(np.asarray(False))),
        )
        return IntegratorStep(
            point=last.point,
            energy=last.energy,
            tried_energy=first.energy,
            gradients=gradients,
            accurate=last.accurate,
            reversible=~coarser_does,
        )

    def _trial(
        self,
        density: Density,
        metric: Metric,
        start: PhasePoint,
        step_size: TensorBase,
        halvings: TensorBase,
    ) -> StepTrial:
        steps = shift_left(_int(1), halvings)
        step_size = step_size / steps.double()
        energy = kinetic_energy(start.momentum) - start.logdensity

        def advance(trial: StepTrial) -> StepTrial:
            point = leapfrog(density, metric, trial.point, step_size)
            energy = kinetic_energy(point.momentum) - point.logdensity
            low = where(energy < trial.low, energy, trial.low)
            high = where(energy > trial.high, energy, trial.high)
            accurate = isfinite(energy) & (high - low <= self.tolerance)
            return StepTrial(trial.taken + 1, point, energy, low, high, accurate)

        return while_loop(
            lambda trial: (trial.taken < steps) & trial.accurate,
            advance,
            StepTrial(_int(0), start, energy, energy, energy, wrap(np.asarray(True))),
        )


def _int(x: int) -> TensorBase:
    return wrap(np.asarray(x, np.int64))
