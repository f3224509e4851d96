"""Adam for tables of which a step sees a few rows: the others, and their moments, stay."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from probtorch.ops import arithmetic
from probtorch.ops.reduction import sum as total
from probtorch.optim.adam import check_moments
from probtorch.optim.elementwise import V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.optim.whole import WholeOptimizer
from probtorch.tensor import Tensor

__all__ = ["SparseAdam"]


class SparseAdam(WholeOptimizer):
    """Adam that leaves rows alone whose gradient is 0.

    For embeddings, of which each batch looks up a few rows: Adam would go on moving the others
    along their running means, and let these fade.

    Parameters
    ----------
    params, lr, betas, maximize
        See `Adam`.
    eps : float, > 0
        Added to the root mean square.

    Notes
    -----
    Rows are the first dim. Gradients are dense here, and a row belongs to a step where its gradient
    is not 0; in PyTorch where a sparse gradient names it. The count of steps is one for all rows,
    as in PyTorch.

    Examples
    --------
    >>> from probtorch import tensor
    >>> p = tensor([[1.0], [1.0]], requires_grad=True)
    >>> optimizer = SparseAdam([p], lr=0.1)
    >>> (p[0] * 3.0).sum().backward()
    >>> optimizer.step()
    >>> p
    tensor([[0.9000],
            [1.0000]], requires_grad=True)
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        check_moments(betas, eps, 0.0)
        check_option("epsilon value", eps, eps > 0.0, "> 0")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def shapes(self, group: Group, p: Tensor) -> Mapping[str, tuple[int, ...]]:
        """Return the names and shapes of the running moments."""
        return {"exp_avg": p.array.shape, "exp_avg_sq": p.array.shape}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the step size, corrected for the moments' start from 0."""
        assert step is not None  # `uses_step`
        b1, b2 = group["betas"]
        return (group["lr"] * arithmetic.sqrt(1 - b2**step) / (1 - b1**step),)

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter and its moments after one step."""
        m, v = slots
        b1, b2 = group["betas"]
        rest = tuple(range(1, len(g.shape)))
        seen = s.abs(s.sign(g))
        if rest:
            seen = s.minimum(total(seen, rest, keepdim=True), 1.0)
        m = m + (g - m) * (1 - b1) * seen
        v = v + (g * g - v) * (1 - b2) * seen
        return p - m / (s.sqrt(v) + group["eps"]) * seen * numbers[0], m, v
