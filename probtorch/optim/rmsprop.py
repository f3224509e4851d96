"""Steps divided by the size of past gradients: a mean (RMSprop, Adadelta) or a sum (Adagrad)."""

from __future__ import annotations

from types import ModuleType

from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["Adadelta", "Adagrad", "RMSprop"]


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

    def native_step(
        self, group: Group, numbers: tuple[float, ...]
    ) -> tuple[str, tuple[float, ...]]:
        """Return the native code of the rule without decay and centering."""
        if group["weight_decay"] or group["centered"]:
            return "", ()
        factors = group["alpha"], 1 - group["alpha"], group["eps"]
        if group["momentum"]:
            return "rmsprop_momentum_step", (*factors, group["momentum"], *numbers)
        return "rmsprop_step", (*factors, *numbers)


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

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
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

    def native_step(
        self, group: Group, numbers: tuple[float, ...]
    ) -> tuple[str, tuple[float, ...]]:
        """Return the native code of the rule without decay."""
        return ("", ()) if group["weight_decay"] else ("adagrad_step", (group["eps"], *numbers))


class Adadelta(ElementwiseOptimizer):
    """Steps along the gradient, with the root mean square that steps have had so far.

    Parameters
    ----------
    params, weight_decay, foreach, capturable, maximize, differentiable
        See `Adam`.
    lr : float or 0-d Tensor
        Multiplies the step, whose size comes from the steps before: 1 is what the method means.
    rho : float, in [0, 1]
        How much of the running means of g^2 and of the squared steps is kept.
    eps : float
        Added to both means; sets the size of the first steps.

    Notes
    -----
    With both means starting from 0::

        v = rho v + (1 - rho) g^2,    d = g sqrt(u + eps) / sqrt(v + eps)
        u = rho u + (1 - rho) d^2,    p = p - lr d

    References
    ----------
    M. D. Zeiler, "ADADELTA: an adaptive learning rate method", 2012.
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_option("rho value", rho, 0.0 <= rho <= 1.0, "in [0, 1]")
        check_option("epsilon value", eps, eps >= 0.0, ">= 0")
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of the running means; both start from 0."""
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count: it does not."""
        return False

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and the running means after one step."""
        v, u = slots
        rho, eps = group["rho"], group["eps"]
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        v = v * rho + g * (1 - rho) * g
        d = s.sqrt(u + eps) / s.sqrt(v + eps) * g
        return p - d * numbers[0], v, u * rho + d * (1 - rho) * d

    def native_step(
        self, group: Group, numbers: tuple[float, ...]
    ) -> tuple[str, tuple[float, ...]]:
        """Return the native code of the rule without decay."""
        rho = group["rho"]
        factors = rho, 1 - rho, group["eps"]
        return ("", ()) if group["weight_decay"] else ("adadelta_step", (*factors, *numbers))
