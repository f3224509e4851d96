"""Optimizers that NumPyro and Pyro have besides those of PyTorch.

Those of PyTorch take a step size first, too, as NumPyro's do: ``Adam(0.01)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from probtorch.core.signatures import explained
from probtorch.ops import arithmetic
from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.pyro import PyroOptim
from probtorch.optim.sgd import SGD
from probtorch.optim.typed import Given, Group, Schedule
from probtorch.tensor import Tensor

__all__ = ["AdagradRMSProp", "Momentum", "RMSProp", "RMSPropMomentum"]


@explained("Momentum")
def Momentum(step_size: float | Schedule, mass: float) -> PyroOptim:
    """Gradient descent with a running sum of gradients: ``SGD({"lr": ..., "momentum": ...})``.

    Parameters
    ----------
    step_size : float or callable
        Or a function from the number of steps before to it.
    mass : float
        How much of the sum is kept at each step.
    """
    return PyroOptim(SGD, {"lr": step_size, "momentum": mass})


class RMSProp(ElementwiseOptimizer):
    """Steps along the gradient divided by its root mean square so far, as NumPyro writes it.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict, or float
        See `Optimizer`; a number is the step size, for `SVI`.
    lr : float or 0-d Tensor
        Size of a step.
    gamma : float
        How much of the running mean is kept at each step.
    eps : float
        Added under the root, where `RMSprop`, which is PyTorch's, adds it to the root.

    Notes
    -----
    With v starting from 0::

        v = gamma v + (1 - gamma) g^2,    p = p - lr g / sqrt(v + eps)

    References
    ----------
    T. Tieleman, G. Hinton, "Lecture 6.5: rmsprop", Coursera, 2012.
    """

    def __init__(
        self, params: Given, lr: float | Tensor = 1e-2, gamma: float = 0.9, eps: float = 1e-8
    ) -> None:
        super().__init__(params, _checked(lr, gamma, eps))

    def slots(self, group: Group) -> Mapping[str, float | Tensor]:
        """Return the name of the running mean."""
        return {"square_avg": 0.0}

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count: it does not."""
        return False

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and the running mean after one step."""
        v = slots[0] * group["gamma"] + g * g * (1 - group["gamma"])
        return p - g / s.sqrt(v + group["eps"]) * numbers[0], v


class RMSPropMomentum(ElementwiseOptimizer):
    """`RMSProp` with a running sum of its steps.

    Parameters
    ----------
    params, lr, gamma, eps
        See `RMSProp`.
    momentum : float
        How much of the sum of steps is kept.

    Notes
    -----
    With v and m starting from 0::

        v = gamma v + (1 - gamma) g^2,    m = momentum m + lr g / sqrt(v + eps),    p = p - m
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-2,
        gamma: float = 0.9,
        eps: float = 1e-8,
        momentum: float = 0.9,
    ) -> None:
        check_option("momentum value", momentum, momentum >= 0.0, ">= 0")
        super().__init__(params, {**_checked(lr, gamma, eps), "momentum": momentum})

    def slots(self, group: Group) -> Mapping[str, float | Tensor]:
        """Return the names of the running mean and sum."""
        return {"square_avg": 0.0, "momentum_buffer": 0.0}

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count: it does not."""
        return False

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter, the running mean and the sum after one step."""
        v = slots[0] * group["gamma"] + g * g * (1 - group["gamma"])
        m = slots[1] * group["momentum"] + g / s.sqrt(v + group["eps"]) * numbers[0]
        return p - m, v, m


class AdagradRMSProp(ElementwiseOptimizer):
    """The steps of automatic differentiation variational inference, between Adagrad and RMSProp.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        See `Optimizer`.
    eta : float
        Scale of the steps; the option "lr" of the groups.
    delta : float
        Added to the exponent -1/2 of the step count.
    t : float, in [0, 1]
        How much the newest squared gradient counts.

    Notes
    -----
    At step i, from 1, with v = g^2 at the first::

        v = (1 - t) v + t g^2,    p = p - eta i^(-1/2 + delta) g / (1 + sqrt(v))

    References
    ----------
    A. Kucukelbir, D. Tran, R. Ranganath, A. Gelman and D. M. Blei, "Automatic differentiation
    variational inference", JMLR 18, 2017, equations 10 and 11.
    """

    def __init__(
        self, params: Given, eta: float | Tensor = 1.0, delta: float = 1e-16, t: float = 0.1
    ) -> None:
        check_option("t value", t, 0.0 <= t <= 1.0, "in [0, 1]")
        super().__init__(params, {"lr": eta, "delta": delta, "t": t})

    def slots(self, group: Group) -> Mapping[str, float | Tensor]:
        """Return the name of the running mean."""
        return {"sum": 0.0}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the step size, and how much the newest square counts: all of it at step 1."""
        assert step is not None  # `uses_step`
        later = arithmetic.minimum(step - 1.0, 1.0)
        newest = 1.0 - later * (1.0 - group["t"])
        return step ** (group["delta"] - 0.5) * group["lr"], newest

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and the running mean after one step."""
        size, newest = numbers
        v = slots[0] + (g * g - slots[0]) * newest
        return p - g / (s.sqrt(v) + 1.0) * size, v


def _checked(lr: float | Tensor, gamma: float, eps: float) -> Group:
    check_option("gamma value", gamma, 0.0 <= gamma <= 1.0, "in [0, 1]")
    check_option("epsilon value", eps, eps >= 0.0, ">= 0")
    return {"lr": lr, "gamma": gamma, "eps": eps}
