"""Adam that looks ahead (NAdam), and Adam that waits until its second moment is known (RAdam)."""

from __future__ import annotations

from types import ModuleType

from probtorch.ops import arithmetic
from probtorch.optim.adam import check_moments, decayed, with_moments
from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["NAdam", "RAdam"]


class NAdam(ElementwiseOptimizer):
    """Adam with Nesterov's momentum: the step takes the mean as it will be at the next one.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, decoupled_weight_decay
        See `Adam`.
    momentum_decay : float
        How fast the momentum of the first steps, half of ``betas[0]``, grows to ``betas[0]``.
    foreach, maximize, capturable, differentiable
        See `Adam`.

    Notes
    -----
    At step t, with both means starting from 0 and m_t the momentum of step t::

        m_t = b1 (1 - 0.5 * 0.96^(t * momentum_decay)),    M_t = m_1 m_2 ... m_t
        m = b1 m + (1 - b1) g,    v = b2 v + (1 - b2) g^2
        p = p - lr ((1 - m_t) g / (1 - M_t) + m_{t+1} m / (1 - M_{t+1}))
                   / (sqrt(v / (1 - b2^t)) + eps)

    References
    ----------
    T. Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016.
    """

    _counting = frozenset(("step", "mu_product"))

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_moments(betas, eps, weight_decay)
        check_option("momentum_decay value", momentum_decay, momentum_decay >= 0.0, ">= 0")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of the running moments; both start from 0."""
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def carried(self, group: Group) -> dict[str, float]:
        """Return the name of the product of all momenta so far, which starts from 1."""
        return {"mu_product": 1.0}

    @staticmethod
    def _momentum(group: Group, step: Tensor) -> Tensor:
        return (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"])) * group["betas"][0]

    def carry(self, group: Group, step: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        """Return the product of momenta, that of this step included."""
        return (carried[0] * self._momentum(group, step),)

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the weights of gradient and mean, 1 - b2^t, and what decay leaves."""
        assert step is not None  # `uses_step`
        lr = group["lr"]
        now, ahead = self._momentum(group, step), self._momentum(group, step + 1.0)
        product = carried[0] * now
        of_gradient = lr * (1.0 - now) / (1.0 - product)
        of_mean = lr * ahead / (1.0 - product * ahead)
        return of_gradient, of_mean, 1.0 - group["betas"][1] ** step, decayed(group)

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its moments after one step."""
        m, v = slots
        of_gradient, of_mean, correction, kept = numbers
        p, g, m, v = with_moments(group, kept, p, g, m, v)
        root = s.sqrt(v / correction) + group["eps"]
        return p - g / root * of_gradient - m / root * of_mean, m, v


class RAdam(ElementwiseOptimizer):
    """Adam whose first steps go along the mean of the gradient, undivided.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, decoupled_weight_decay
        See `Adam`.
    foreach, maximize, capturable, differentiable
        See `Adam`.

    Notes
    -----
    The root mean square of a few gradients says little: Adam's first steps are as long as they are
    by chance. Here step t divides by it only where the length of its average is above 5, that is
    from the sixth step on with the usual betas, and then less than fully::

        r_inf = 2 / (1 - b2) - 1,    r = r_inf - 2 t b2^t / (1 - b2^t)
        p = p - lr m / (1 - b1^t) * (c sqrt(1 - b2^t) / (sqrt(v) + eps)  if r > 5  else  1)
        c^2 = (r - 4) (r - 2) r_inf / ((r_inf - 4) (r_inf - 2) r)

    References
    ----------
    L. Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR 2020.
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_moments(betas, eps, weight_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of the running moments; both start from 0."""
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the step size, whether it is divided (1 or 0), and what decay leaves."""
        assert step is not None  # `uses_step`
        b1, b2 = group["betas"]
        size = group["lr"] / (1.0 - b1**step)
        longest = 2.0 / (1.0 - b2) - 1.0
        if longest <= 5.0:  # r stays below it
            return size, 0.0, decayed(group)
        left = 1.0 - b2**step
        length = longest - 2.0 * step * (1.0 - left) / left
        divided = arithmetic.where(length > 5.0, 1.0, 0.0)
        length = arithmetic.maximum(length, 5.0)  # where it is not used, the root shall be real
        share = (length - 4.0) * (length - 2.0) * longest
        share = share / ((longest - 4.0) * (longest - 2.0) * length)
        size = size * arithmetic.where(divided > 0.0, arithmetic.sqrt(share * left), 1.0)
        return size, divided, decayed(group)

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its moments after one step."""
        m, v = slots
        size, divided, kept = numbers
        p, g, m, v = with_moments(group, kept, p, g, m, v)
        return p - m / ((s.sqrt(v) + group["eps"]) * divided + (1.0 - divided)) * size, m, v
