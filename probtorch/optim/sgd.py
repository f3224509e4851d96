"""Gradient descent, with or without momentum."""

from __future__ import annotations

from types import ModuleType

from probtorch.errors import ArgumentError
from probtorch.ops import arithmetic
from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["SGD"]


class SGD(ElementwiseOptimizer):
    """Steps against the gradient, or against a running sum of gradients.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        See `Optimizer`.
    lr : float or 0-d Tensor
        Size of a step per unit of gradient.
    momentum : float
        How much of the running sum is kept at each step; 0 for none.
    dampening : float
        How much of each gradient but the first is left out of the sum.
    weight_decay : float
        Adds ``weight_decay * p`` to the gradient.
    nesterov : bool
        Look ahead: use ``g + momentum * sum`` instead of the sum.
    maximize : bool
        Climb instead of descend.
    foreach : bool, optional
        False updates one parameter at a time; the same numbers.
    differentiable : bool
        Put the update on the tape. The parameters must then be no leaves; as they change in place,
        compute the loss from their clones.
    fused : bool, optional
        True is what happens by itself where possible.

    Notes
    -----
    With ``b = g`` at the first step, as in PyTorch::

        b = momentum * b + (1 - dampening) * g
        p = p - lr * b

    Examples
    --------
    >>> from probtorch import tensor
    >>> p = tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = SGD([p], lr=0.25)
    >>> (p * p).sum().backward()
    >>> optimizer.step()
    >>> p
    tensor([ 0.5, -1. ], requires_grad=True)
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_option("momentum value", momentum, momentum >= 0.0, ">= 0")
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError(
                "Nesterov momentum requires a momentum and zero dampening",
                expected="momentum > 0 and dampening = 0",
                got=f"momentum={momentum}, dampening={dampening}",
                fix="set momentum=0.9, or drop nesterov",
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the name of the running sum, if there is one; it starts from 0."""
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def uses_step(self, group: Group) -> bool:
        """Whether the first step differs from the others."""
        return bool(group["momentum"] and group["dampening"])

    def scalars(self, group: Group, step: Tensor | None) -> tuple[float | Tensor, ...]:
        """Return the step size and the weight of a new gradient in the running sum."""
        if step is None:
            return group["lr"], 1.0
        # 1 at the first step, 1 - dampening later; a branch would be frozen by a recording.
        return group["lr"], 1.0 - arithmetic.minimum(step - 1.0, 1.0) * group["dampening"]

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its running sum after one step."""
        lr, weight = numbers
        momentum = group["momentum"]
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        if not momentum:
            return (p - g * lr,)
        b = slots[0] * momentum + (g * weight if group["dampening"] else g)
        return p - (g + b * momentum if group["nesterov"] else b) * lr, b
