"""Gradient descent, with or without momentum, or with an average of where it has been."""

from __future__ import annotations

from types import ModuleType

from probtorch.errors import ArgumentError
from probtorch.ops import arithmetic
from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["ASGD", "SGD"]


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
    tensor([ 0.5000, -1.0000], requires_grad=True)
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

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
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

    def native_step(
        self, group: Group, numbers: tuple[float, ...]
    ) -> tuple[str, tuple[float, ...]]:
        """Return the native code of the rule without decay, with or without plain momentum."""
        if group["weight_decay"] or group["nesterov"] or group["dampening"]:
            return "", ()
        if not group["momentum"]:
            return "sgd_step", (numbers[0],)
        return "momentum_step", (numbers[0], group["momentum"])


class ASGD(ElementwiseOptimizer):
    """Gradient descent with shrinking steps, which keeps the average of the parameters it passed.

    Parameters
    ----------
    params, weight_decay, foreach, maximize, differentiable
        See `SGD`.
    lr : float or 0-d Tensor
        Size of the first step; step t (from 1) has ``lr / (1 + lambd * lr * (t - 1))^alpha``.
    lambd : float
        Each step first multiplies the parameters by ``1 - lambd`` times the size of the step.
    alpha : float
        How fast the steps shrink.
    t0 : float
        The average, "ax" in the `state`, starts after so many steps; until then it is the
        parameter.
    capturable : bool
        Accepted for PyTorch's sake: a step can always be recorded.

    Notes
    -----
    As in PyTorch, the size of a step is computed with the rate that the step before had: a schedule
    counts one step later. What one evaluates with is ``state[p]["ax"]``.

    References
    ----------
    B. T. Polyak, A. B. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM
    Journal on Control and Optimization 30, 1992.

    Examples
    --------
    >>> from probtorch import tensor
    >>> p = tensor([1.0], requires_grad=True)
    >>> optimizer = ASGD([p], lr=0.25, lambd=0.0, t0=0.0)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     (p * p).sum().backward()
    ...     optimizer.step()
    >>> p, optimizer.state[p]["ax"]
    (tensor([0.2500], requires_grad=True), tensor([0.2500]))
    """

    _counting = frozenset(("step", "eta", "mu"))

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the name of the average; where it starts does not matter."""
        return {"ax": 0.0}

    def carried(self, group: Group) -> dict[str, float | Tensor]:
        """Return the size of the first step, and the weight of its parameter in the average."""
        return {"eta": group["lr"], "mu": 1.0}

    def carry(self, group: Group, step: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        """Return the size of the next step, and the weight of its parameter in the average."""
        lr = group["lr"]
        eta = lr / (1 + group["lambd"] * lr * step) ** group["alpha"]
        return eta, 1.0 / arithmetic.maximum(step - group["t0"], 1.0)

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the size of this step, what decay leaves of a parameter, and its weight.

        Copies, as what is carried changes before they are used.
        """
        eta, mu = carried
        return eta * 1.0, 1.0 - group["lambd"] * eta, mu * 1.0, 1.0 - mu

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and the average after one step."""
        eta, kept, weight, rest = numbers
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        p = p * kept - g * eta
        return p, slots[0] * rest + p * weight
