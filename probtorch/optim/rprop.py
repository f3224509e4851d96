"""Rprop: steps whose sizes are learned from the signs of the gradient alone."""

from __future__ import annotations

from types import ModuleType

from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["Rprop"]


class Rprop(ElementwiseOptimizer):
    """Steps against the sign of the gradient, longer while it stays and shorter when it turns.

    Parameters
    ----------
    params, capturable, foreach, maximize, differentiable
        See `Adam`.
    lr : float or 0-d Tensor
        Size of the first step; what a schedule makes of it later does not matter.
    etas : (float, float)
        What the size of a step is multiplied by when the gradient has turned, below 1, and when it
        has not, above 1. An element whose gradient has turned rests for a step.
    step_sizes : (float, float)
        The smallest and the largest step.

    Notes
    -----
    For gradients of all data: those of batches change their signs by chance.

    References
    ----------
    M. Riedmiller, H. Braun, "A direct adaptive method for faster backpropagation learning: the
    RPROP algorithm", ICNN 1993.
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        shorter, longer = etas
        check_option(
            "eta values", etas, 0.0 < shorter < 1.0 < longer, "with 0 < first < 1 < second"
        )
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float | Tensor]:
        """Return the names of the gradient before and the sizes of steps."""
        return {"prev": 0.0, "step_size": group["lr"]}

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count: it does not."""
        return False

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter, the gradient to compare the next one with, and the sizes."""
        before, size = slots
        shorter, longer = group["etas"]
        least, most = group["step_sizes"]
        sign = s.sign(g * before)
        stayed, turned = s.maximum(sign, 0.0), s.maximum(-sign, 0.0)
        size = size * (stayed * longer + turned * shorter + (1.0 - stayed - turned))
        size = s.minimum(s.maximum(size, least), most)
        g = g * (1.0 - turned)
        return p - s.sign(g) * size, g, size
