"""What kernels have in common that move many chains, walkers, by gradients and learn from them all.

Walkers share a step size and a diagonal metric, learnt from the draws of all. Each makes moves of
its own; only what is tuned depends on where the others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import map_tree, replace, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.inlined import InlinedDensity
from probtorch.infer.mcmc.integrators import Density, PhasePoint
from probtorch.infer.mcmc.kernel import State
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.warm_up.adaptation import find_step_size
from probtorch.infer.mcmc.warm_up.forms import Form
from probtorch.infer.mcmc.warm_up.mass_matrix import MassMatrix
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put

if TYPE_CHECKING:
    from probtorch.infer.mcmc.randomness import Key
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["WalkingKernel", "evaluated", "row_of", "with_row"]

S = TypeVar("S", bound=State)


def evaluated(density: Density, positions: TensorBase) -> tuple[TensorBase, TensorBase]:
    """Return log densities (members,) and gradients (members, dim) at positions (members, dim)."""
    if isinstance(density, InlinedDensity):
        return density(positions)
    members, dim = positions.shape

    def evaluate(
        carry: tuple[TensorBase, TensorBase, TensorBase],
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        k, values, grads = carry
        value, grad = density(positions[k])
        return k + 1, index_put(values, (k,), value), index_put(grads, (k,), grad)

    start = wrap(np.array(0)), wrap(np.zeros(members)), wrap(np.zeros((members, dim)))
    _, values, grads = while_loop(lambda carry: carry[0] < members, evaluate, start)
    return values, grads


def row_of(points: PhasePoint, k: TensorBase) -> PhasePoint:
    """Return the k-th of several points."""
    return map_tree(lambda x: x[k], points)


def with_row(points: PhasePoint, k: TensorBase, row: PhasePoint) -> PhasePoint:
    """Return several points, of which another is the k-th."""
    return map_tree(lambda whole, one: index_put(whole, (k,), one), points, row)


class SharedMassMatrix(MassMatrix):
    """What the walkers' warm-up knows: the draws of all of them are one sample."""

    def __init__(self, form: Form, position: np.ndarray) -> None:
        super().__init__(form, position[-1])

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down draws, shape (n, members, dim)."""
        dim = positions.shape[-1]
        super().add(positions.reshape(-1, dim), None if grads is None else grads.reshape(-1, dim))


class WalkingKernel(SteppingKernel[S]):
    """A kernel whose state has a number of walkers, each of which is a chain of the result.

    Parameters
    ----------
    walkers : int
        Points of an ensemble.
    """

    moves_rows = True

    walkers: int = static(default=16)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.walkers, int) and self.walkers >= 2):
            raise ArgumentError(
                f"{self.name}(walkers=...)",
                expected="an int of at least 2",
                got=f"{self.walkers!r:.60}",
                fix="leave it out; the more walkers, the better what is learnt from them",
            )
        if self.metric not in ("auto", "diag"):
            raise ArgumentError(
                f"{self.name}(metric=...)",
                expected="'diag'",
                got=f"{self.metric!r:.60}",
                fix="leave it out; NUTS and DynamicHMC have other forms",
            )
        self._set(metric="diag")

    @property
    def members(self) -> int:
        """How many points a state holds."""
        return self.walkers

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "walkers": self.walkers}

    def first_values(
        self, target: Target, state: S, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the metric to begin with, where nothing else is known from all gradients.

        Raises
        ------
        ShapeError
            If the inverse mass matrix that was given does not fit the target.
        """
        grads: np.ndarray = cast("HMCState", state).grad.array
        typical = wrap(np.sqrt((grads * grads).mean(axis=0)))
        return super().first_values(target, replace(state, grad=typical), spectrum, warming)

    def first_guess(self, key: Key, state: S) -> tuple[TensorBase, S]:
        """Return a step size at which the first walker's steps are accepted, and the state."""
        start = cast("HMCState", state)
        first = HMCState(start.position[0], start.logdensity[0], start.grad[0], start.counter)
        step_size, counter = find_step_size(
            self.density, self.metric, key, state.counter, first, self.step_size
        )
        return step_size, replace(state, counter=counter)

    def _learner(self, target: Target, position: np.ndarray) -> SharedMassMatrix:
        return SharedMassMatrix(self.form_for(target), position)
