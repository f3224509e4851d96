"""Adam and its family: steps scaled by running moments of the gradient.

`Adam` (Kingma and Ba 2015), `AdamW` (Loshchilov and Hutter 2019), `Adamax` (Kingma and Ba, sec. 7)
and Pyro's `ClippedAdam`. Each is a formula for one element; `optim/elementwise.py` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from probtorch.ops import arithmetic
from probtorch.optim.elementwise import ElementwiseOptimizer, V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.tensor import Tensor

__all__ = ["Adam", "AdamW", "Adamax", "ClippedAdam", "check_moments", "decayed", "with_moments"]


def check_moments(betas: Sequence[float], eps: float, weight_decay: float) -> None:
    """Raise unless the options that Adam and its kin share are in range."""
    for i, beta in enumerate(betas):
        check_option(f"beta parameter at index {i}", beta, 0.0 <= beta < 1.0, "in [0, 1)")
    check_option("epsilon value", eps, eps >= 0.0, ">= 0")
    check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")


def decayed(group: Group) -> float | Tensor:
    """Return what decay that is decoupled from the gradient leaves of a parameter."""
    return 1 - group["lr"] * group["weight_decay"]


def with_moments(group: Group, kept: V | float, p: V, g: V, m: V, v: V) -> tuple[V, V, V, V]:
    """Return parameter and gradient after decay, and the moments with that gradient."""
    b1, b2 = group["betas"]
    if group["decoupled_weight_decay"]:
        p = p * kept
    elif group["weight_decay"]:
        g = g + p * group["weight_decay"]
    return p, g, m + (g - m) * (1 - b1), v * b2 + g * (1 - b2) * g


class Adam(ElementwiseOptimizer):
    """Steps along the running mean of the gradient, divided by its running root mean square.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        See `Optimizer`.
    lr : float or 0-d Tensor
        Size of a step, in units of the parameters.
    betas : (float, float), in [0, 1)
        How much of the running means of g and g^2 is kept at each step.
    eps : float
        Added to the root mean square.
    weight_decay : float
        Adds ``weight_decay * p`` to the gradient, or with `decoupled_weight_decay` shrinks p by
        ``lr * weight_decay`` instead.
    amsgrad : bool
        Divide by the largest root mean square so far (Reddi et al. 2018).
    foreach : bool, optional
        False updates one parameter at a time; the same numbers.
    maximize : bool
        Climb instead of descend.
    capturable : bool
        Accepted for PyTorch's sake: a step can always be recorded.
    differentiable : bool
        Put the update on the tape. The parameters must then be no leaves; as they change in place,
        compute the loss from their clones.
    fused : bool, optional
        True is what happens by itself where possible.
    decoupled_weight_decay : bool
        See `weight_decay`.

    Notes
    -----
    At step t, with both means starting from 0::

        m = b1 m + (1 - b1) g,    v = b2 v + (1 - b2) g^2
        p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    References
    ----------
    D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    Examples
    --------
    >>> from probtorch import tensor
    >>> p = tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = Adam([p], lr=0.1)
    >>> (p * p).sum().backward()
    >>> optimizer.step()
    >>> p
    tensor([ 0.9000, -1.9000], requires_grad=True)
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_moments(betas, eps, weight_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of the running moments; both start from 0."""
        names = ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))
        return dict.fromkeys(names, 0.0)

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the step size, 1 / sqrt(1 - b2^t), and what decay leaves of a parameter."""
        assert step is not None  # `uses_step`
        lr, (b1, b2) = group["lr"], group["betas"]
        kept = decayed(group) if group["decoupled_weight_decay"] else 1.0
        return lr / (1 - b1**step), 1.0 / arithmetic.sqrt(1 - b2**step), kept

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its moments after one step."""
        m, v, *largest = slots
        size, correction, kept = numbers
        p, g, m, v = with_moments(group, kept, p, g, m, v)
        largest = [s.maximum(largest[0], v)] if largest else []
        root = s.sqrt(largest[0] if largest else v) * correction + group["eps"]
        return p - m / root * size, m, v, *largest

    def native_step(
        self, group: Group, numbers: tuple[float, ...]
    ) -> tuple[str, tuple[float, ...]]:
        """Return the native code of the rule, unless decay changes the gradient or largest moments
        are kept.
        """
        if group["amsgrad"] or (group["weight_decay"] and not group["decoupled_weight_decay"]):
            return "", ()
        b1, b2 = group["betas"]
        return "adam_step", (*numbers, 1 - b1, b2, 1 - b2, group["eps"])


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly, not through the gradient.

    Parameters
    ----------
    params, lr, betas, eps, amsgrad, maximize, foreach, capturable, differentiable, fused
        See `Adam`.
    weight_decay : float
        Each step first multiplies the parameters by ``1 - lr * weight_decay``.

    References
    ----------
    I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


class Adamax(ElementwiseOptimizer):
    """Adam with the largest recent gradient in place of the root mean square.

    Parameters
    ----------
    params, lr, betas, weight_decay, foreach, maximize, differentiable, capturable
        See `Adam`; `betas[1]` is how much of the largest gradient is kept at each step.
    eps : float
        Added to each gradient's size.

    Notes
    -----
    ::

        m = b1 m + (1 - b1) g,    u = max(b2 u, |g| + eps)
        p = p - lr / (1 - b1^t) * m / u
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_moments(betas, eps, weight_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of mean and largest gradient; both start from 0."""
        return {"exp_avg": 0.0, "exp_inf": 0.0}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the step size, corrected for the mean's start from 0."""
        assert step is not None  # `uses_step`
        return (group["lr"] / (1 - group["betas"][0] ** step),)

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter, mean and largest gradient after one step."""
        m, u = slots
        b1, b2 = group["betas"]
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        m = m + (g - m) * (1 - b1)
        u = s.maximum(u * b2, s.abs(g) + group["eps"])
        return p - m / u * numbers[0], m, u


class ClippedAdam(ElementwiseOptimizer):
    """Pyro's Adam: each element of the gradient is clipped, and the step size decays.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay
        See `Adam`.
    clip_norm : float
        Elements of the gradient are brought into [-clip_norm, clip_norm].
    lrd : float
        The step size at step t (from 1) is ``lr * lrd**t``. The option "lr" itself stays what it
        was, so that a recorded step decays too.
    centered_variance : bool
        Average ``(g - m)^2`` instead of ``g^2``.

    Examples
    --------
    >>> from probtorch import tensor
    >>> optimizer = ClippedAdam([tensor([0.0], requires_grad=True)], lr=0.01, lrd=0.999)
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        clip_norm: float = 10.0,
        lrd: float = 1.0,
        centered_variance: bool = False,
    ) -> None:
        check_moments(betas, eps, weight_decay)
        check_option("clip_norm", clip_norm, clip_norm > 0.0, "> 0")
        check_option("lrd", lrd, lrd > 0.0, "> 0")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "clip_norm": clip_norm,
            "lrd": lrd,
            "centered_variance": centered_variance,
        }
        super().__init__(params, defaults)

    def slots(self, group: Group) -> dict[str, float]:
        """Return the names of the running moments; both start from 0."""
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the step size, decayed and corrected for the moments' start from 0."""
        assert step is not None  # `uses_step`
        b1, b2 = group["betas"]
        lr = group["lr"] * group["lrd"] ** step
        return (lr * arithmetic.sqrt(1 - b2**step) / (1 - b1**step),)

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its moments after one step."""
        m, v = slots
        b1, b2 = group["betas"]
        g = s.minimum(s.maximum(g, -group["clip_norm"]), group["clip_norm"])
        if group["weight_decay"]:
            g = g + p * group["weight_decay"]
        m = m * b1 + g * (1 - b1)
        spread = g - m if group["centered_variance"] else g
        v = v * b2 + spread * (1 - b2) * spread
        return p - m / (s.sqrt(v) + group["eps"]) * numbers[0], m, v
