"""`ConstrainedPath`: the prior inside of the points whose likelihood is above a level.

What nested sampling draws from. Prior and likelihood are those of the tempered path: its density at
temperature 0 is the prior's, its slope in the temperature the log likelihood, so one evaluation
tells both. The level is data, as the temperature is, and one program serves all levels.
"""

from __future__ import annotations

import numpy as np

from probtorch.compiler.density_context import DensityContext
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.errors import ArgumentError
from probtorch.infer.sequential.tempering import TemperedHandle, TemperedPath
from probtorch.ops.arithmetic import where

__all__ = ["ConstrainedHandle", "ConstrainedPath"]


@record
class ConstrainedHandle(TemperedHandle):
    """The log density of the prior, -inf where the log likelihood is not above `level`.

    Parameters
    ----------
    function, context, temperature : Tensor
        See `TemperedHandle`; the temperature is 0.
    level : Tensor, 0-d float64
    """

    level: TensorBase

    def __call__(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        value, grad = self._both(position)
        above = grad[position.array.shape[0]] > self.level
        return where(above, value, -np.inf), grad[:-1]


class ConstrainedPath(TemperedPath):
    """The prior of a model, or a reference, above any level of the log likelihood.

    Parameters
    ----------
    target, reference
        See `TemperedPath`.
    """

    engine = "NestedSampler"

    def _check_discrete(self) -> None:
        """Refuse discrete sites: a level that many points have cannot be gone above by shares."""
        for slot in self.target.slots.values():
            if slot.levels is not None:
                raise ArgumentError(
                    f"{self.engine}(kernel)",
                    expected="a kernel of continuous sites: discrete values make likelihoods alike",
                    got=f"one that moves the discrete site {slot.name!r}",
                    fix="use SMC with this kernel, or NUTS(model), which sums finite sites out",
                )

    def handle(self, context: DensityContext, temperature: float) -> ConstrainedHandle:
        """Return the prior above a level, which takes the temperature's place."""
        below = super().handle(context, 0.0)
        level = wrap(np.asarray(temperature, np.float64))
        return ConstrainedHandle(below.function, below.context, below.temperature, level)
