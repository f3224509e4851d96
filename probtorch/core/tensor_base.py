"""`TensorBase`: the storage and autograd fields of a tensor, without any method that is an op.

`probtorch.tensor.Tensor` adds the table of methods; the floors between see only these slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    import numpy as np

    from probtorch.core.dispatch import TapeNode

__all__ = ["TensorBase", "is_tensor"]


class TensorBase:
    """Slots of a tensor.

    `array` holds the elements, an array of NumPy, or of CuPy on a GPU: the inner face that every
    room reads, and that knows nothing of the tape. `grad_fn` is the `Node` that made the tensor
    (None for a leaf); `_grad` the accumulated gradient, which users know as `grad`; `_base` the
    tensor whose memory this one views; `_version` the clock tick of the last in-place change of
    that memory, which the base keeps, and in a view the tick since which its place on the tape is
    what it is; `_index` which output of `grad_fn` this is; `_extra` a dict for what most tensors
    lack (hooks, history of grad_fns before in-place changes, retain_grad).
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_extra",
        "_grad",
        "_index",
        "_version",
        "array",
        "grad_fn",
        "requires_grad",
    )

    _base: TensorBase | None
    array: np.ndarray
    _extra: dict[str, object] | None
    _grad: TensorBase | None
    _index: int
    _version: int
    grad_fn: TapeNode | None
    requires_grad: bool
    # Methods of Tensor that are called below it.
    detach: Callable[..., TensorBase]
    to: Callable[..., TensorBase]


def is_tensor(x: object) -> TypeGuard[TensorBase]:
    """Whether `x` is a tensor by its type: `isinstance` asks an object of another class what its
    class is, and a proxy answers for what it stands for, or raises an error.
    """
    return issubclass(type(x), TensorBase)
