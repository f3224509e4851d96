"""What kernels share whose metric follows the curvature of the density: settings, state, warm-up.

The metric is that of softabs.py, another one at each point. All that is asked of a model is one
function, `Target.curved_density`: see curved_space.py. The metric that warm-up learns says in which
units curvatures are small, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.mcmc.kernel import setting, tuned
from probtorch.infer.mcmc.kernels.curved_space import curved
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.warm_up.adaptation import AcceptanceTuner, Tuner

if TYPE_CHECKING:
    from probtorch.compiler.density import NativeDensity
    from probtorch.infer.potential import Target

__all__ = ["CurvedKernel", "CurvedState"]


@record
class CurvedState:
    """What the next transition needs.

    Parameters
    ----------
    position : Tensor, shape (dim,), float64
    logdensity : Tensor, 0-d
    grad : Tensor, shape (dim,)
    hessian : Tensor, shape (dim, dim)
        Of minus the log density.
    counter : Tensor, 0-d int64
        The first random counter not used yet.
    """

    position: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    hessian: TensorBase
    counter: TensorBase


class CurvedKernel(SteppingKernel[CurvedState]):
    """A kernel whose metric is the softened curvature of the place.

    Parameters
    ----------
    alpha : float
        Curvatures below ``1 / alpha``, in units of `metric`, count as that.
    max_dim : int
        Coordinates up to which it runs.
    """

    # They bring densities of their own, without curvature.
    moves_particles = False

    metric: Any = tuned(default="diag")
    alpha: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))
    max_dim: int = setting(default=30)

    def __post_init__(self) -> None:
        if self.find_heuristic_step_size:
            raise ArgumentError(
                f"{self.name}(find_heuristic_step_size=...)",
                expected="False",
                got=repr(self.find_heuristic_step_size),
                fix="leave it out: steps are in units of the curvature, the default is a start",
            )
        self._set(find_heuristic_step_size=False)
        super().__post_init__()
        if self.metric != "diag":
            raise ArgumentError(
                f"{self.name}(metric=...)",
                expected="'diag'",
                got=f"{self.metric!r:.60}",
                fix="leave it out: correlations are in the curvature of each point",
            )
        self._set(max_dim=count_of(self.name, "max_dim", self.max_dim))

    def target(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
    ) -> Target:
        """Return the `Target` for the arguments of a run."""
        target = super().target(args, kwargs, init_params)
        if target.dim > self.max_dim:
            raise InferenceError(
                self.name,
                expected=f"at most {self.max_dim} unconstrained coordinates: the metric takes all "
                "second derivatives",
                got=f"{target.dim} in {target.name}",
                fix="take NUTS(model, adaptive_steps=True), or NUTS(model, reparam='auto') for "
                f"hierarchical sites; or wait, with {self.name}(model, max_dim={target.dim})",
            )
        return target

    def native(self, target: Target) -> NativeDensity:
        """Return the density with its curvature."""
        return target.curved_density

    def evaluated_at(self, position: np.ndarray) -> np.ndarray:
        """Return a position with the identity behind it."""
        return np.concatenate([position, np.eye(position.shape[0]).reshape(-1)])

    def tuner(self) -> Tuner:
        """Return what tunes the step size, as a chain begins with it."""
        return AcceptanceTuner.around(
            np.asarray(self.step_size),
            self.target_accept_prob,
            follows=self.follows,
            searches=False,
        )

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "alpha": self.alpha}

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> CurvedState:
        """Return the state at a position."""
        return CurvedState(position, *curved(self.density, position), as_tensor(counter))

    def resumed(self, state: CurvedState) -> CurvedState:
        """Return a state to go on from, its density taken anew."""
        return self.init(state.position, state.counter)
