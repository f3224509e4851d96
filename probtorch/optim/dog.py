"""DoG and DoWG: steps as long as the way so far over the root of squared gradients; no rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.typed import StateDict
from probtorch.ops import arithmetic
from probtorch.ops.reduction import sum as total
from probtorch.optim.elementwise import V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.optim.whole import WholeOptimizer
from probtorch.tensor import Tensor

__all__ = ["DoG", "DoWG", "LDoG"]


class DoG(WholeOptimizer):
    """Distance over gradients: gradient descent that finds its own step size.

    Parameters
    ----------
    params, maximize
        See `Adam`.
    lr : float or 0-d Tensor
        What steps are multiplied by; there is hardly a reason not to leave it at 1.
    reps_rel : float, positive
        The first step is this share of 1 + the norm of the parameters: a guess that may be too
        small by orders of magnitude, as steps grow fast, and should not be too large.
    eps : float, positive
        Added to the sum of squared gradients.
    weight_decay : float
        Times the parameter, added to its gradient.
    foreach : bool, optional
        Accepted for PyTorch's sake.

    Notes
    -----
    Step t is ``lr * r / sqrt(G + eps)`` times the gradient, where G is the sum of the squared norms
    of all gradients so far and r the largest distance from the start that was come to. Distance and
    norms are those of all parameters of a group together; of each alone in `LDoG`. Draw the average
    of the iterates, for example by `swa_utils.AveragedModel`: the last one keeps the noise of steps
    that do not shrink.

    References
    ----------
    M. Ivgi, O. Hinder, Y. Carmon, "DoG is SGD's best friend: a parameter-free dynamic step size
    schedule", ICML 2023.

    Examples
    --------
    >>> from probtorch import tensor
    >>> p = tensor([5.0, -3.0]).requires_grad_()
    >>> optimizer = DoG([p])
    >>> for _ in range(300):
    ...     optimizer.zero_grad()
    ...     ((p - 1.0) ** 2).sum().backward()
    ...     optimizer.step()
    >>> bool((abs(p - 1.0) < 0.01).all())
    True
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1.0,
        reps_rel: float = 1e-6,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_option("reps_rel", reps_rel, 0.0 < reps_rel < math.inf, "> 0")
        check_option("epsilon value", eps, 0.0 < eps < math.inf, "> 0")
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        # Squared distance from the start, squared norms of start and gradient, in the step at hand.
        self._measured: tuple[Tensor, Tensor, Tensor] | None = None
        defaults = {
            "lr": lr,
            "reps_rel": reps_rel,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def shapes(self, group: Group, p: Tensor) -> Mapping[str, tuple[int, ...]]:
        """Return nothing: the start of a parameter does not change."""
        return {}

    def carried(self, group: Group) -> Mapping[str, float | Tensor]:
        """Return what is known of the way so far."""
        return {"farthest": 0.0, "squares": 0.0}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the size of the step."""
        assert step is not None  # `uses_step`
        farthest, squares = self.carry(group, step, *carried)
        return (group["lr"] * farthest / arithmetic.sqrt(squares + group["eps"]),)

    def carry(self, group: Group, step: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        """Return the largest distance, and the sum of squared gradients, with this step's."""
        farthest, squares = carried
        farthest, gradient = self._seen(group, farthest)
        return farthest, squares + gradient

    def _seen(self, group: Group, farthest: Tensor) -> tuple[Tensor, Tensor]:
        """The largest distance, with this step's, and the squared norm of its gradient."""
        assert self._measured is not None  # by `_update`
        away, start, gradient = self._measured
        first = group["reps_rel"] * (1.0 + arithmetic.sqrt(start))
        way = arithmetic.maximum(first, arithmetic.sqrt(away))
        return arithmetic.maximum(farthest, way), gradient

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter after one step."""
        (size,) = numbers
        return (p - _pulled(group, p, g) * size,)

    def _fresh_slots(self, group: Group, p: Tensor) -> StateDict:
        return {"initial": wrap(p.array.copy())}

    def _update(self, group: Group, params: Sequence[Tensor], states: Sequence[StateDict]) -> None:
        self._fill_in(group, params, states)
        away, start, gradient = (wrap(np.zeros(())) for _ in range(3))
        with no_grad():
            for p, state in zip(params, states):
                assert p.grad is not None  # as of all that moves
                away = away + _square(p - state["initial"])
                start = start + _square(state["initial"])
                slope = -p.grad if group["maximize"] else p.grad
                gradient = gradient + _square(_pulled(group, p, slope))
        self._measured = away, start, gradient
        try:
            super()._update(group, params, states)
        finally:
            self._measured = None


class DoWG(DoG):
    """Distance over weighted gradients: `DoG` in which gradients far from the start count most.

    Parameters
    ----------
    params, lr, reps_rel, weight_decay, foreach, maximize
        See `DoG`; the paper begins with a distance of 1e-4, whatever the parameters.
    eps : float, positive
        Added to the weighted mean of squared gradients, times their number.

    Notes
    -----
    Step t is ``lr * r**2 / sqrt(V + eps * r**2)`` times the gradient. V is the sum, over all steps
    so far, of the squared norm of the gradient times the square of what r was then; r is as in
    `DoG`. Without `eps`, which the paper has not, a gradient of 0 at the first step would be 0 / 0.
    Gradients of the first steps, which are made near the start, are soon without weight: steps are
    longer than those of `DoG`, also on smooth functions near their minimum.

    References
    ----------
    A. Khaled, K. Mishchenko, C. Jin, "DoWG unleashed: an efficient universal parameter-free
    gradient descent method", NeurIPS 2023, algorithm 1.

    Examples
    --------
    >>> from probtorch import tensor
    >>> p = tensor([5.0, -3.0]).requires_grad_()
    >>> optimizer = DoWG([p])
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     ((p - 1.0) ** 2).sum().backward()
    ...     optimizer.step()
    >>> bool((abs(p - 1.0) < 0.01).all())
    True
    """

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the size of the step."""
        assert step is not None  # `uses_step`
        farthest, squares = self.carry(group, step, *carried)
        area = farthest * farthest
        return (group["lr"] * area / arithmetic.sqrt(squares + group["eps"] * area),)

    def carry(self, group: Group, step: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        """Return the largest distance, and the weighted sum of squared gradients, with this one."""
        farthest, squares = carried
        farthest, gradient = self._seen(group, farthest)
        return farthest, squares + farthest * farthest * gradient


class LDoG(DoG):
    """`DoG` with a distance and a sum of gradients for each parameter of its own.

    Parameters
    ----------
    params, lr, reps_rel, eps, weight_decay, foreach, maximize
        See `DoG`; for networks whose layers differ in scale.

    References
    ----------
    M. Ivgi, O. Hinder, Y. Carmon, "DoG is SGD's best friend: a parameter-free dynamic step size
    schedule", ICML 2023, section 3.3.

    Examples
    --------
    >>> from probtorch import tensor
    >>> p, q = tensor([5.0]).requires_grad_(), tensor([100.0]).requires_grad_()
    >>> optimizer = LDoG([p, q])
    >>> for _ in range(300):
    ...     optimizer.zero_grad()
    ...     ((p - 1.0) ** 2 + 1e-4 * (q - 1.0) ** 2).sum().backward()
    ...     optimizer.step()
    >>> bool(abs(p - 1.0) < 0.01), bool(abs(q - 1.0) < 0.01)
    (True, True)
    """

    def _fill_in(self, group: Group, params: Sequence[Tensor], states: Sequence[StateDict]) -> None:
        for p, state in zip(params, states):
            super()._fill_in(group, [p], [state])

    def _update(self, group: Group, params: Sequence[Tensor], states: Sequence[StateDict]) -> None:
        for p, state in zip(params, states):
            super()._update(group, [p], [state])


def _pulled(group: Group, p: V, g: V) -> V:
    """The gradient, with that of the decay."""
    return g + p * group["weight_decay"] if group["weight_decay"] else g


def _square(x: Tensor) -> Tensor:
    """The squared norm, in double precision."""
    x = cast(x, float64)
    return total(x * x)
