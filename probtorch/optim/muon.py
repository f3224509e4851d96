"""Muon: steps whose singular values are all about 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.contraction import matmul
from probtorch.ops.movement import transpose
from probtorch.ops.reduction import sum as total
from probtorch.optim.elementwise import V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.optim.whole import WholeOptimizer
from probtorch.tensor import Tensor

__all__ = ["Muon"]

# More of them are of no use: the iteration does not converge but keeps the values around 1.
MOST_STEPS = 100


class Muon(WholeOptimizer):
    """Steps along the running mean of the gradient, with its singular values brought to about 1.

    For the matrices of hidden layers; biases, embeddings and heads go to another optimizer.

    Parameters
    ----------
    params : iterable of Tensor, shape (rows, columns), of (name, Tensor) or of dict
    lr : float or 0-d Tensor
    weight_decay : float
        Each step first multiplies the parameters by ``1 - lr * weight_decay``.
    momentum : float
        How much of the running mean is kept at each step.
    nesterov : bool
        Look ahead: mix the gradient into the mean once more.
    ns_coefficients : (float, float, float)
        a, b and c of the polynomial ``a x + b x^3 + c x^5`` that is applied to the singular values.
    eps : float
        The least norm that the mean is divided by before that.
    ns_steps : int, < 100
        How often it is applied.
    adjust_lr_fn : {None, "original", "match_rms_adamw"}
        Multiplies steps by ``sqrt(max(1, rows / columns))``, or by
        ``0.2 sqrt(max(rows, columns))``, which is the size of AdamW's. None is "original".

    Raises
    ------
    ShapeError
        If a parameter is no matrix.

    Notes
    -----
    Computed in the dtype of the parameter; PyTorch rounds this part to bfloat16.

    References
    ----------
    K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; J. Liu et
    al., "Muon is scalable for LLM training", 2025.

    Examples
    --------
    >>> from probtorch import eye, linalg
    >>> p = eye(3).requires_grad_()
    >>> optimizer = Muon([p], lr=0.1, weight_decay=0.0)
    >>> (p**3).sum().backward()
    >>> optimizer.step()
    >>> bool((abs(p.detach() - 0.9 * eye(3)) < 0.05).all())
    True
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check_option("momentum", momentum, momentum >= 0.0, ">= 0")
        check_option("weight decay", weight_decay, weight_decay >= 0.0, ">= 0")
        check_option("ns_steps", ns_steps, ns_steps < MOST_STEPS, f"< {MOST_STEPS}")
        check_option("ns_coefficients", ns_coefficients, len(ns_coefficients) == 3, "of 3 values")
        if adjust_lr_fn not in _ADJUSTED:
            raise ArgumentError(
                "Muon: adjust_lr_fn",
                expected="None, 'original' or 'match_rms_adamw'",
                got=repr(adjust_lr_fn),
                fix="leave it out",
            )
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)

    def _check_param(self, p: object, known: set[int], group: Group) -> None:
        super()._check_param(p, known, group)
        if len(getattr(p, "shape", ())) != 2:
            raise ShapeError(
                "Muon",
                expected="parameters that are matrices",
                got=f"one of shape {getattr(p, 'shape', None)}",
                fix="give it those with p.ndim == 2, and the others to AdamW",
            )

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count: it does not."""
        return False

    def shapes(self, group: Group, p: Tensor) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of the running mean."""
        return {"momentum_buffer": p.array.shape}

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and the running mean after one step."""
        (b,), (lr,), momentum = slots, numbers, group["momentum"]
        b = b + (g - b) * (1 - momentum)
        x = g + (b - g) * momentum if group["nesterov"] else b
        x = x / s.maximum(s.sqrt(total(x * x)), group["eps"])
        rows, columns = p.shape
        tall = rows > columns
        x = transpose(x, 0, 1) if tall else x
        first, third, fifth = group["ns_coefficients"]
        for _ in range(group["ns_steps"]):
            gram = matmul(x, transpose(x, 0, 1))
            x = x * first + matmul(gram * third + matmul(gram, gram) * fifth, x)
        x = transpose(x, 0, 1) if tall else x
        size = _ADJUSTED[group["adjust_lr_fn"]](rows, columns)
        return p * (1.0 - lr * group["weight_decay"]) - x * (lr * size), b


def _original(rows: int, columns: int) -> float:
    return math.sqrt(max(1.0, rows / columns)) if columns else 1.0


# What a step is multiplied by, so that matrices of all shapes move alike.
_ADJUSTED = {
    None: _original,
    "original": _original,
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}
