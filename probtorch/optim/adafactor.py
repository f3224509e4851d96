"""Adafactor: the running mean of squared gradients kept as its rows' and columns' means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from probtorch.ops import arithmetic
from probtorch.ops.contraction import matmul
from probtorch.ops.reduction import sum as total
from probtorch.optim.elementwise import V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.optim.whole import WholeOptimizer
from probtorch.tensor import Tensor

__all__ = ["Adafactor"]


class Adafactor(WholeOptimizer):
    """Steps as RMSprop's, with memory for rows and columns of a parameter instead of its elements.

    Parameters
    ----------
    params, weight_decay, maximize
        See `Adam`; decay shrinks the parameters directly, by ``lr * weight_decay``.
    lr : float or 0-d Tensor
        The largest relative step: step t changes a parameter by ``min(lr, 1 / sqrt(t))`` of its
        root mean square.
    beta2_decay : float, <= 0
        At step t the newest squares have the weight ``t**beta2_decay`` in their running mean.
    eps : (float or None, float)
        The least root mean square of the gradient that is divided by (None: the distance from 1 to
        the next number of the dtype), and of a parameter that a step is measured by.
    d : float, >= 1
        Steps of a larger root mean square are shortened to it.
    foreach : bool, optional
        Accepted for PyTorch's sake.

    Notes
    -----
    For parameters of two or more dims the mean of g^2 is taken to be the product of its means over
    the last dim and over the one before, divided by the mean of all; a matrix of n by m elements
    costs n + m numbers. Those of fewer dims keep it whole.

    References
    ----------
    N. Shazeer, M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost", ICML
    2018.

    Examples
    --------
    >>> from probtorch import ones
    >>> p = ones(4, 3).requires_grad_()
    >>> optimizer = Adafactor([p])
    >>> (p * p).sum().backward()
    >>> optimizer.step()
    >>> [tuple(optimizer.state[p][name].shape) for name in ("row_var", "col_var")]
    [(4, 1), (1, 3)]
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_option("beta2_decay", beta2_decay, beta2_decay <= 0.0, "<= 0")
        check_option("epsilon1", eps[0], eps[0] is None or eps[0] >= 0.0, ">= 0, or None")
        check_option("epsilon2", eps[1], eps[1] >= 0.0, ">= 0")
        check_option("clipping threshold d", d, d >= 1.0, ">= 1")
        check_option("weight_decay value", weight_decay, weight_decay >= 0.0, ">= 0")
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def shapes(self, group: Group, p: Tensor) -> Mapping[str, tuple[int, ...]]:
        """Return the names and shapes of the running means."""
        shape = p.array.shape
        if len(shape) < 2:
            return {"variance": shape}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the relative step, the weight of the newest squares, and what decay leaves."""
        assert step is not None  # `uses_step`
        relative = arithmetic.minimum(group["lr"], 1.0 / arithmetic.sqrt(step))
        return relative, step ** group["beta2_decay"], 1.0 - group["lr"] * group["weight_decay"]

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and the running means after one step."""
        relative, newest, kept = numbers
        least, least_size = group["eps"]
        least = float(np.finfo(p.dtype).eps) if least is None else least
        size = s.maximum(_rms(p, s), least_size) * relative
        if group["weight_decay"]:
            p = p * kept
        squares = g * g
        if len(slots) == 1:
            v = slots[0] + (squares - slots[0]) * newest
            new: tuple[V, ...] = (v,)
        else:
            rows, columns = slots
            rows = rows + (_mean(squares, -1) - rows) * newest
            columns = columns + (_mean(squares, -2) - columns) * newest
            v = matmul(rows, columns) / s.maximum(_mean(rows, -2), least)
            new = rows, columns
        update = g / s.sqrt(s.maximum(v, least * least))
        return p - update / s.maximum(_rms(update, s) / group["d"], 1.0) * size, *new


def _rms(x: V, s: ModuleType) -> V:
    return s.sqrt(total(x * x) / max(math.prod(x.shape), 1))


def _mean(x: V, dim: int) -> V:
    """The mean over one dim, which stays; 0 where it is empty."""
    return total(x, dim, keepdim=True) / max(x.shape[dim], 1)
