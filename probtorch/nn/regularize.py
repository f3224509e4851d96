"""Penalties on the weights of single layers: `L1` and `L2` around a module add their gradient.

The loss stays as it is; in the backward pass every parameter of the wrapped module gets the
gradient of its penalty on top. So layers of one network can have different penalties, whatever the
optimizer.
"""

from __future__ import annotations

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.func.stateless import functional_call
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import sign
from probtorch.tensor import Tensor

__all__ = ["L1", "L2"]


class _Penalised(Function):
    """The identity, whose gradient has that of a penalty added."""

    @staticmethod
    def forward(ctx: FunctionCtx, w: Tensor, factor: float, power: int) -> Tensor:
        ctx.save_for_backward(w)
        ctx.factor, ctx.power = factor, power
        return w * 1.0

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor, None, None]:
        (w,) = ctx.saved_tensors
        return g + (w if ctx.power == 2 else sign(w)) * ctx.factor, None, None

    # The base says None for "no rule": forward mode differentiates the loss without the penalty.
    @staticmethod
    def jvp(ctx: FunctionCtx, t: Tensor, factor: None, power: None) -> Tensor:  # type: ignore[override]
        return t


class _Penalty(Module):
    """A module whose parameters get the gradient of a penalty.

    Parameters
    ----------
    module : Module
        Kept under this name.
    weight_decay : float
        Factor of the penalty.
    name : str, optional
        Penalise only parameters in whose names this occurs, for example "weight".

    Raises
    ------
    ArgumentError
        If the factor is negative.
    """

    power: int

    def __init__(self, module: Module, weight_decay: float, name: str | None = None) -> None:
        super().__init__()
        if not weight_decay >= 0.0:
            raise ArgumentError(
                type(self).__name__,
                expected="weight_decay >= 0",
                got=str(weight_decay),
                fix="it multiplies the penalty",
            )
        self.module, self.weight_decay, self.name = module, float(weight_decay), name

    def forward(self, *args: Tree, **kwargs: Tree) -> Tree:
        """Return what the wrapped module returns; each call that is differentiated counts."""
        if not self.training or not self.weight_decay:
            return self.module(*args, **kwargs)
        values = {
            key: _Penalised.apply(p, self.weight_decay, self.power)
            for key, p in self.module.named_parameters()
            if p.requires_grad and (self.name is None or self.name in key)
        }
        return functional_call(self.module, values, args, kwargs)

    def extra_repr(self) -> str:
        text = f"weight_decay={self.weight_decay}"
        return text if self.name is None else f"{text}, name={self.name!r}"


class L1(_Penalty):
    """Add ``weight_decay * sign(w)`` to the gradients of a module's parameters, in training.

    That is the gradient of ``weight_decay * sum(abs(w))``, which makes weights sparse.

    Parameters
    ----------
    module : Module
        Kept under this name.
    weight_decay : float
        Factor of the penalty.
    name : str, optional
        Penalise only parameters in whose names this occurs, for example "weight".

    Examples
    --------
    >>> import probtorch
    >>> from probtorch import nn
    >>> layer = nn.regularize.L1(nn.Linear(2, 1, bias=False), 0.1)
    >>> layer(probtorch.zeros(1, 2)).sum().backward()
    >>> layer.module.weight.grad.abs()
    tensor([[0.1000, 0.1000]])
    """

    power = 1


class L2(_Penalty):
    """Add ``weight_decay * w`` to the gradients of a module's parameters, in training.

    That is the gradient of ``weight_decay / 2 * sum(w ** 2)``; arguments as for `L1`.
    """

    power = 2
