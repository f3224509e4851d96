"""The steps of annealed, learned dynamics: temperatures, step sizes, and the ratio they cost.

`AutoDAIS` moves all latent numbers as one vector, `AutoSemiDAIS` one vector for each row of a
plate; both take their steps from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.arguments import count_of
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.distributions import constraints
from probtorch.effects.primitives import param
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.model_runs import out_of_sight
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total

__all__ = [
    "AnnealingSchedule",
    "AnnealingSteps",
    "annealed",
    "depth_of",
    "no_closed_form",
    "no_part",
    "run_of_continuous",
]


class AnnealingSteps:
    """How many steps there are and where what they learn starts.

    Parameters
    ----------
    guide : str
        Named in errors.
    K : int
    eta_init, eta_max, gamma_init : float
        See `AutoDAIS`.

    Raises
    ------
    ArgumentError
        If a number is out of its bounds.
    """

    def __init__(
        self, guide: str, K: int, eta_init: float, eta_max: float, gamma_init: float
    ) -> None:
        self.K = count_of(guide, "K", K, expected="a number of annealing steps")
        for name, value, most in (
            ("eta_max", eta_max, math.inf),
            ("eta_init", eta_init, eta_max),
            ("gamma_init", gamma_init, 1.0),
        ):
            if not isinstance(value, (int, float)) or not 0.0 < value < most:
                raise ArgumentError(
                    f"{guide}({name}=...)",
                    expected=f"a number > 0 and < {most:g}",
                    got=repr(value),
                    fix="leave it out for the default",
                )
        self.eta_init, self.eta_max, self.gamma_init = eta_init, eta_max, gamma_init

    def schedule(
        self, prefix: str, size: int, dtype: np.dtype, rows: tuple[int, ...] = ()
    ) -> AnnealingSchedule:
        """Return what the steps are now, from `param` statements.

        Parameters
        ----------
        prefix : str
            Of the names of parameters.
        size : int
            Numbers of a vector.
        dtype : dtype
        rows : tuple of int
            Shape of the rows that have steps of their own; those of plates in force.
        """

        def learned(
            name: str, init: float, constraint: constraints.Constraint, *event: int
        ) -> TensorBase:
            return param(
                f"{prefix}_{name}",
                lambda: np.full((*rows, *event), init, dtype),
                constraint,
                len(event) if rows else None,
            )

        summed = cumsum(learned("beta_increments", 1.0, constraints.softplus_positive, self.K), -1)
        betas = summed / summed[..., -1:]
        eta = learned("eta_0", self.eta_init, constraints.interval(0.0, self.eta_max))
        rise = learned("eta_coeff", 0.0, constraints.real)
        # The rise is added to the logit of the share, so that the bound has a gradient at all
        # sizes: cut off at a largest and a least one, as in NumPyro, they never get away from it.
        share = unsqueeze(eta, -1) / self.eta_max
        rest = (1.0 - share) * exp(-unsqueeze(rise, -1) * betas)
        etas = self.eta_max * share / (share + rest)
        gamma = learned("gamma", self.gamma_init, constraints.unit_interval)
        masses = learned("inv_mass_matrix", 1.0, constraints.softplus_positive, size)
        return AnnealingSchedule(betas, etas, unsqueeze(gamma, -1), sqrt(masses))


@record
class AnnealingSchedule:
    """Steps of vectors of some numbers, in rows or without.

    Attributes
    ----------
    betas, etas : Tensor, shape (*rows, K)
        Inverse temperatures, which end at 1, and step sizes.
    gamma : Tensor, shape (*rows, 1)
        Share of the momentum that is left.
    spread : Tensor, shape (*rows, size)
        Roots of the inverse masses.
    """

    betas: TensorBase
    etas: TensorBase
    gamma: TensorBase
    spread: TensorBase


def annealed(
    z: TensorBase,
    noise: TensorBase,
    schedule: AnnealingSchedule,
    slope: Callable[[TensorBase, TensorBase], TensorBase],
) -> tuple[TensorBase, TensorBase]:
    """Move vectors, and return them with the log ratios that stand for their densities.

    Parameters
    ----------
    z : Tensor, shape (..., size)
        Draws of the base.
    noise : Tensor, shape (..., K + 1, size)
        Standard normal.
    schedule : AnnealingSchedule
    slope : callable
        ``slope(z, beta)``: gradient of the tempered log density, beta of shape (*rows, 1).

    Returns
    -------
    z : Tensor, shape (..., size)
    log_ratio : Tensor, shape (...)
        Of the momenta's densities, reverse over forward.
    """
    gamma = schedule.gamma
    # Momenta divided by their standard deviation, so that all are standard normal.
    p = noise[..., 0, :]
    log_ratio = total(p, -1) * 0.0
    for k in range(noise.array.shape[-2] - 1):
        step = schedule.etas[..., k : k + 1] * schedule.spread
        z = z + 0.5 * step * p
        moved = p + step * slope(z, schedule.betas[..., k : k + 1])
        z = z + 0.5 * step * moved
        log_ratio = log_ratio + 0.5 * total(p * p - moved * moved, -1)
        p = gamma * moved + sqrt(1.0 - gamma * gamma) * noise[..., k + 1, :]
    return z, log_ratio


def run_of_continuous(
    guide: AutoGuide, args: tuple[object, ...], kwargs: dict[str, object]
) -> Trace:
    """Run a guide's model, out of sight; return the trace, or refuse discrete latent sites."""
    with no_grad(), out_of_sight(precise=guide.precise) as seen:
        guide.model(*args, **kwargs)
    for name in seen.stochastic_nodes:
        if getattr(seen[name].fn, "is_discrete", False):
            raise InferenceError(
                f"{guide.__name__}: site {name!r} is discrete",
                expected="a model with a gradient in all of its latent sites",
                got=f"a latent {type(seen[name].fn).__name__}",
                fix="sum it out in the model (MixtureSameFamily, logsumexp), or use AutoNormal "
                "with TraceEnum_ELBO",
                at=seen[name].location,
            )
    return seen


def depth_of(seen: Trace) -> int:
    """Return how many batch dims the plates of a model have."""
    frames = [f for site in seen.nodes.values() for f in site.plates]
    return max((-f.dim for f in frames if f.dim is not None), default=0)


def no_part(guide: str) -> InferenceError:
    """What is said where a list of guides asks for a part."""
    return InferenceError(
        f"{guide}.draw",
        expected="this guide alone, for all sites: its steps need the density of them all",
        got="a part of an AutoGuideList",
        fix="call it with the model's arguments, or put another guide into the list",
    )


def no_closed_form(guide: str) -> InferenceError:
    """What is said where the distribution is asked for."""
    return InferenceError(
        f"{guide}.get_posterior",
        expected="a guide with a density in closed form",
        got="draws that were moved by the model's gradients",
        fix="use sample_posterior(), or result.draws() for draws with importance weights",
    )
