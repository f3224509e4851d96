"""Microcanonical dynamics: a momentum that changes its direction and never its length.

The position moves on at constant speed; the gradient turns the direction of motion, the more the
larger it is. Over time positions have the target's law, although one level of the energy is walked
only. Of the momentum just the direction is kept, a unit vector u, whitened as in metrics.py. Time
is measured such that the speed is sqrt(dim), the usual length of a whitened momentum: step sizes
and lengths of trajectories then mean what they mean for HMC.

References
----------
G. V. Ver Steeg, A. Galstyan, "Hamiltonian dynamics with non-Newtonian momentum for rapid sampling",
NeurIPS (2021). J. Robnik, G. B. De Luca, E. Silverstein, U. Seljak, "Microcanonical Hamiltonian
Monte Carlo", Journal of Machine Learning Research 24 (2023). R. I. McLachlan, "On the numerical
integration of ordinary differential equations by symmetric composition methods", SIAM Journal on
Scientific Computing 16 (1995), for the minimal-norm splitting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from probtorch.core.arguments import choice_of
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import Density, PhasePoint
from probtorch.infer.mcmc.metrics import Metric
from probtorch.ops.arithmetic import clamp, sqrt
from probtorch.ops.exponentials import exp, log
from probtorch.ops.reduction import sum as total

__all__ = ["SPLITTINGS", "checked_splitting", "isokinetic_step", "needs_two_dims", "refreshed"]

# Lengths of the kicks that a step is made of, with drifts of equal lengths between them. The second
# costs two gradients, and its steps may be about twice as long or, in many dimensions, longer
# [mclachlan1995, robnik2023]: 1.5 times in 2 dimensions, 2.3 times in 50, where both are even.
_LAMBDA = 0.19318332750378364
SPLITTINGS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "leapfrog": (0.5, 0.5),
        "mclachlan": (_LAMBDA, 1.0 - 2.0 * _LAMBDA, _LAMBDA),
    }
)


def checked_splitting(owner: str, name: str) -> None:
    """Raise unless `name` is among `SPLITTINGS`.

    Raises
    ------
    ArgumentError
    """
    choice_of(owner, "integrator", name, SPLITTINGS)


def needs_two_dims(owner: str, dim: int) -> None:
    """Raise for a posterior with one coordinate, where there are no directions to turn to.

    Raises
    ------
    ArgumentError
    """
    if dim < 2:
        raise ArgumentError(
            f"{owner}(model)",
            expected="a posterior with 2 coordinates or more",
            got=f"{dim}",
            fix="use NUTS: with one coordinate the direction of motion cannot turn",
        )


def kick(
    direction: TensorBase, force: TensorBase, time: TensorBase
) -> tuple[TensorBase, TensorBase]:
    """Return the direction after the force has turned it for a while, and the change of energy."""
    dim = direction.shape[0]
    size = sqrt(total(force * force))
    towards = force / clamp(size, min=1e-300)
    along = total(towards * direction)
    turn = time * size * (math.sqrt(dim) / (dim - 1))
    shrunk = exp(-turn)
    new = towards * ((1.0 - shrunk) * (1.0 + shrunk + along * (1.0 - shrunk)))
    new = new + 2.0 * shrunk * direction
    # Twice cosh(turn) + along sinh(turn), less what would overflow.
    grown = 1.0 + along + (1.0 - along) * shrunk * shrunk
    return new / sqrt(total(new * new)), (dim - 1) * (turn + log(0.5 * grown))


def isokinetic_step(
    density: Density, metric: Metric, point: PhasePoint, step_size: TensorBase, splitting: str
) -> tuple[PhasePoint, TensorBase]:
    """Return the point one step further, and by how much the energy has changed.

    Parameters
    ----------
    density, metric
        As for `leapfrog`.
    point : PhasePoint
        Whose momentum is a unit vector.
    step_size : Tensor, 0-d
    splitting : str

    Notes
    -----
    Reversible; ``exp(-change)`` is the ratio of the target's densities times that of volumes, so
    trajectories can be accepted by it. A step has ``len(SPLITTINGS[splitting]) - 1`` gradients.
    """
    first, *others = SPLITTINGS[splitting]
    position, grad = point.position, point.grad
    logdensity = point.logdensity
    drift = step_size * (math.sqrt(position.shape[0]) / len(others))
    direction, gained = kick(point.momentum, metric.force(grad), first * step_size)
    for length in others:
        position = position + drift * metric.velocity(direction)
        logdensity, grad = density(position)
        direction, change = kick(direction, metric.force(grad), length * step_size)
        gained = gained + change
    return PhasePoint(position, direction, logdensity, grad), gained - (
        logdensity - point.logdensity
    )


def refreshed(direction: TensorBase, noise: TensorBase, share: TensorBase) -> TensorBase:
    """Return a direction that has forgotten a part of itself.

    Parameters
    ----------
    direction : Tensor, shape (dim,)
        A unit vector, or zero for one that is yet to be drawn.
    noise : Tensor, shape (dim,)
        Standard normal.
    share : Tensor, 0-d
        The time since the last call by the time in which e of it is left.
    """
    new = direction + sqrt((exp(2.0 * share) - 1.0) / direction.shape[0]) * noise
    return new / sqrt(total(new * new))
