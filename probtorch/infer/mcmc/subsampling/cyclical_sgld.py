"""Cyclical stochastic gradient Langevin dynamics: long steps to another mode, short ones in it.

The step size falls from its largest to nothing along a cosine, and begins anew, cycle after cycle.
The first part of a cycle explores: its steps follow the gradient, with little noise or none, and
are no draws. The rest is `SGLD` (sgld.py) with the short steps of the cycle's end. Here an
exploration is part of the transition that the first draw of its cycle takes, so that all that a
chain returns are draws.

A step of `SGLD` of size h has a drift of ``h^2 / 2``; it is this square that falls as the paper's
step size does.

References
----------
R. Zhang, C. Li, J. Zhang, C. Chen, A. G. Wilson, "Cyclical stochastic gradient MCMC for Bayesian
deep learning", ICLR (2020), algorithm 1.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernel import tuned
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.infer.mcmc.subsampling.stochastic_gradients import (
    StochasticGradientKernel,
    StochasticInfo,
)
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import cos

__all__ = ["CyclicalSGLD", "CyclicalState"]


@record
class CyclicalState:
    """A position, its estimated log density, the next step of the cycle, and the next counter."""

    position: TensorBase
    logdensity: TensorBase
    place: TensorBase
    counter: TensorBase


# Steps taken, the first counter not used, position, its log density, the last step's share of
# excess variance, its size, and whether all led to where something is finite.
_Way: TypeAlias = tuple[
    TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase
]


class CyclicalSGLD(StochasticGradientKernel[CyclicalState]):
    """Stochastic gradient Langevin dynamics with a step size that comes and goes [zhang2020]_.

    For posteriors of many rows with several modes, such as those of networks: the long steps at the
    beginning of a cycle leave the mode that the last one ended in. How many draws are in a mode
    says little about its mass.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`; a plate of the model draws subsamples. Without one, gradients are exact.
    step_size : float
        The largest, at the beginning of a cycle, in units of the metric; as of `SGLD`.
    cycle_length : int
        Steps of a cycle.
    exploration : float, in [0, 1)
        Share of a cycle that explores, and of which there are no draws.
    temperature : float, in [0, 1]
        Share of the noise's variance that exploration has: 0 for the gradient alone, 1 for `SGLD`.
    control_variates : bool
        As for `SGLD`. They serve the mode that they are of: by default there are none.
    metric, adapt_mass_matrix, inverse_mass_matrix
        As for `SGLD`.

    Notes
    -----
    A chain makes ``(1 - exploration) * cycle_length`` draws a cycle; the first of each takes the
    exploration's evaluations along (`n_steps`). `step_size` in `sample_stats` is that of a draw's
    own step.

    References
    ----------
    [zhang2020]_.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.infer import MCMC, CyclicalSGLD, Target
    >>> def hills(q):
    ...     return probtorch.logaddexp(-2.0 * (q[0] - 2.0) ** 2, -2.0 * (q[0] + 2.0) ** 2)
    >>> target = Target.from_density(hills, dim=1)
    >>> kernel = CyclicalSGLD(target, step_size=0.95, temperature=1.0, inverse_mass_matrix=[1.0])
    >>> mcmc = MCMC(kernel, num_samples=5000, num_chains=2, seed=1, progress_bar=False)
    >>> mcmc.diagnose = False
    >>> x = mcmc.run()["x"]
    >>> bool((x.min(axis=1) < -1.0).all()), bool((x.max(axis=1) > 1.0).all())
    (True, True)
    """

    step_size: float | TensorBase = tuned(default=0.5, between=(0.0, math.inf))
    cycle_length: int = static(default=50)
    exploration: float = static(default=0.25)
    temperature: float | TensorBase = tuned(default=0.0)
    control_variates: bool = static(default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(cycle_length=count_of(self.name, "cycle_length", self.cycle_length, 2))
        for name, closed in (("exploration", False), ("temperature", True)):
            value = getattr(self, name)
            inside = isinstance(value, (int, float)) and 0.0 <= value <= 1.0
            if not inside or (value == 1.0 and not closed):
                raise ArgumentError(
                    f"{self.name}({name}=...)",
                    expected="a number in [0, 1" + ("]" if closed else ")"),
                    got=f"{value!r:.60}",
                    fix="leave it out for the default",
                )
            self._set(**{name: float(value)})

    @property
    def explored(self) -> int:
        """Steps of a cycle that are no draws; at least one step is a draw."""
        return min(round(self.exploration * self.cycle_length), self.cycle_length - 1)

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        own = {"cycle_length": self.cycle_length, "exploration": self.exploration}
        return {**super().attrs(), **own, "temperature": self.temperature}

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> CyclicalState:
        """Return the state at a position, at the beginning of a cycle."""
        value, _ = self.density_of(position, wrap(np.arange(float(self.batch))))
        return CyclicalState(position, value, wrap(np.zeros((), np.int64)), as_tensor(counter))

    def step(self, key: Key, state: CyclicalState) -> tuple[CyclicalState, StochasticInfo]:
        """Return ``(state, info)`` after one step, before which a cycle that begins explores."""
        (dim,) = state.position.shape
        first = state.place
        count = where(first == 0, 1 + self.explored, 1)

        def advance(carry: _Way) -> _Way:
            taken, counter, position, value, _, _, well = carry
            place = first + taken
            fallen = cos(math.pi / self.cycle_length * cast(place, float64)) + 1.0
            square = 0.5 * fallen * self.step_size * self.step_size
            heat = where(place < self.explored, self.temperature, 1.0)
            new_value, grad, counter = self.estimate(key, counter, position)
            noise = sqrt(heat * square) * normals(key, counter, dim)
            kick = 0.5 * square * self.metric.force(grad) + noise
            new = position + self.metric.velocity(kick)
            fine = isfinite(new_value + total(new))
            return (
                taken + 1,
                counter + dim,
                where(fine, new, position),
                where(fine, new_value, value),
                where(fine, 0.25 * square * self.mean_square(grad), 0.0),
                sqrt(square),
                well & fine,
            )

        zero, none = wrap(np.zeros((), np.int64)), wrap(np.zeros(()))
        begin = zero, state.counter, state.position, state.logdensity, none, none
        taken, counter, position, value, excess, size, well = while_loop(
            lambda carry: carry[0] < count, advance, (*begin, wrap(np.asarray(True)))
        )
        place = first + taken
        place = where(place >= self.cycle_length, 0, place)
        new = CyclicalState(position, value, place, counter)
        return new, StochasticInfo(value, excess, ~well, size, taken * self.evaluations)
