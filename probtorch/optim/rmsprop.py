"""Steps divided by the size of past gradients: their running mean (RMSprop) or sum (Adagrad)."""

from __future__ import annotations

from types import ModuleType

from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["Adagrad", "RMSprop"]


class RMSprop(ElementwiseOptimizer):
    """Steps along the gradient divided by its running root mean square.

    Parameters
    ----------
    params, lr, weight_decay, foreach, maximize, differentiable, capturable
        See `Adam`.
    alpha : float
        How much of the running mean of g^2 is kept at each step.
    eps : float
        Added to the root mean square.
    momentum : float
        How much of the running sum of scaled gradients is kept at each step; 0 for none.
    centered : bool
        Subtract the square of the running mean of g: divide by the standard deviation.

    References
    ----------
    T. Tieleman, G. Hinton, "Lecture 6.5: rmsprop", Coursera, 2012; centered as in A. Graves,
    "Generating sequences with recurrent neural networks", 2013.
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_option("epsilon value", eps, eps >= 0.0, ">= 0")
        check_option("momentum value", momentum, momentum >= 0.0, ">= 0")
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        check_option("alpha value", alpha, alpha >= 0.0, ">= 0")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of the running means and sum in use; all start from 0."""
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] else []
        names += ["grad_avg"] if group["centered"] else []
        return dict.fromkeys(names, 0.0)

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count: it does not."""
        return False

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its running means after one step."""
        v, *rest = slots
        alpha, (lr,) = group["alpha"], numbers
        new = []
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        v = v * alpha + g * (1 - alpha) * g
        if group["centered"]:
            mean = rest[-1] + (g - rest[-1]) * (1 - alpha)
            new = [mean]
            # Rounding may leave the difference of equal numbers below 0; PyTorch then says nan.
            root = s.sqrt(s.maximum(v - mean * mean, 0.0)) + group["eps"]
        else:
            root = s.sqrt(v) + group["eps"]
        if not group["momentum"]:
            return p - g / root * lr, v, *new
        total = rest[0] * group["momentum"] + g / root
        return p - total * lr, v, total, *new


class Adagrad(ElementwiseOptimizer):
    """Steps along the gradient divided by the root of the sum of its squares so far.

    Parameters
    ----------
    params, lr, weight_decay, foreach, maximize, differentiable, fused
        See `Adam`.
    lr_decay : float
        The step size at step t (from 1) is ``lr / (1 + (t - 1) * lr_decay)``.
    initial_accumulator_value : float
        Where the sums of squares start.
    eps : float
        Added to the root.

    References
    ----------
    J. Duchi, E. Hazan, Y. Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", JMLR 12, 2011.
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        start = initial_accumulator_value
        check_option("lr_decay value", lr_decay, lr_decay >= 0.0, ">= 0")
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        check_option("initial_accumulator_value value", start, start >= 0.0, ">= 0")
        check_option("epsilon value", eps, eps >= 0.0, ">= 0")
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the name of the sum of squares and where it starts."""
        return {"sum": group["initial_accumulator_value"]}

    def scalars(self, group: Group, step: Tensor | None) -> tuple[float | Tensor, ...]:
        """Return the step size."""
        assert step is not None  # `uses_step`
        return (group["lr"] / (1 + (step - 1) * group["lr_decay"]),)

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its sum of squares after one step."""
        (total,) = slots
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        total = total + g * g
        return p - g / (s.sqrt(total) + group["eps"]) * numbers[0], total
