"""SM3: Adagrad with memory for the slices of a parameter instead of its elements."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from probtorch.ops.extremes import amax
from probtorch.optim.elementwise import V
from probtorch.optim.optimizer import check_option
from probtorch.optim.typed import Given, Group
from probtorch.optim.whole import WholeOptimizer
from probtorch.tensor import Tensor

__all__ = ["SM3"]


class SM3(WholeOptimizer):
    """Steps as Adagrad's, whose sums of squares are kept for each slice of a parameter only.

    Parameters
    ----------
    params, maximize
        See `Adam`.
    lr : float or 0-d Tensor
    momentum : float, in [0, 1)
        What is kept of the running mean of steps.
    foreach : bool, optional
        Accepted for PyTorch's sake.

    Notes
    -----
    A parameter of shape (n, m) has n + m numbers: those of an element's row and its column are both
    bounds for its sum of squared gradients, and the smaller one is taken. Numbers only grow, so
    that steps shorten as Adagrad's do. The momentum costs as much as the parameter.

    References
    ----------
    R. Anil, V. Gupta, T. Koren, Y. Singer, "Memory-efficient adaptive optimization", NeurIPS 2019,
    algorithm SM3-II.

    Examples
    --------
    >>> from probtorch import ones
    >>> p = ones(4, 3).requires_grad_()
    >>> optimizer = SM3([p])
    >>> (p * p).sum().backward()
    >>> optimizer.step()
    >>> [tuple(optimizer.state[p][f"accumulator_{i}"].shape) for i in range(2)]
    [(4, 1), (1, 3)]
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 0.1,
        momentum: float = 0.9,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_option("momentum value", momentum, 0.0 <= momentum < 1.0, "in [0, 1)")
        defaults = {"lr": lr, "momentum": momentum, "foreach": foreach, "maximize": maximize}
        super().__init__(params, defaults)

    def uses_step(self, group: Group) -> bool:
        """No: the sums say how far it is."""
        return False

    def shapes(self, group: Group, p: Tensor) -> Mapping[str, tuple[int, ...]]:
        """Return the names and shapes of the mean of steps, and of the sums of slices."""
        shape = p.array.shape
        sums = [tuple(n if i == j else 1 for j in range(len(shape))) for i, n in enumerate(shape)]
        return {
            "momentum_buffer": shape,
            **{f"accumulator_{i}": s for i, s in enumerate(sums or [()])},
        }

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return the parameter, the mean of steps and the sums after one step."""
        (lr,) = numbers
        mean, least, *others = slots
        for other in others:
            least = s.minimum(least, other)
        sums = least + g * g
        # Where there never was a gradient there is no step.
        step = g / s.sqrt(s.where(sums > 0.0, sums, 1.0))
        mean = mean * group["momentum"] + step * (1.0 - group["momentum"])
        dims = range(len(p.shape))
        if len(p.shape) < 2:
            new = [sums]
        elif 0 in p.shape:
            # Slices without elements have no largest one, and are no bound for any.
            new = list(slots[1:])
        else:
            new = [amax(sums, tuple(j for j in dims if j != i), keepdim=True) for i in dims]
        return p - mean * lr, mean, *new
