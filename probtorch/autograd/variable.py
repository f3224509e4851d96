"""`Variable`, which once wrapped tensors so that they had gradients: now each tensor has them."""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import AutogradError

__all__ = ["Variable"]


class _Variables(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TensorBase)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, TensorBase)

    @explained("Variable")
    def __call__(
        cls, data: TensorLike = (), requires_grad: bool = False, volatile: bool | None = None
    ) -> TensorBase:
        if volatile:
            raise AutogradError(
                "Variable(volatile=True)",
                expected="a block in which nothing is recorded",
                got="the switch that PyTorch took out in 0.4",
                fix="write with probtorch.no_grad(): around the evaluation",
            )
        found = as_tensor(data, "Variable").detach()
        return found.requires_grad_() if requires_grad else found


class Variable(metaclass=_Variables):
    """PyTorch's name, up to 0.3, for a tensor that may have a gradient; kept for programs of then.

    ``Variable(x)`` is a tensor that shares its memory with `x`, ``Variable(x, requires_grad=True)``
    a leaf; every tensor is an instance.

    Parameters
    ----------
    data : Tensor, array or numbers
    requires_grad : bool
    volatile : None
        True is refused: see `no_grad`.
    """
