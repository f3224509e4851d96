"""DLPack under PyTorch's names: memory shared with other libraries, without a copy.

Newer code writes ``other.from_dlpack(t)`` and ``probtorch.from_dlpack(array)`` and needs neither.
"""

from __future__ import annotations

from probtorch.core.tensor_base import TensorBase
from probtorch.tensor import Tensor, from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: TensorBase) -> object:
    """Return a tensor's memory as a DLPack capsule, which one library can take over once.

    Raises
    ------
    ExportError
        If the tensor requires grad.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.arange(3)
    >>> y = from_dlpack(to_dlpack(x))
    >>> x[0] = 5
    >>> y
    tensor([5, 1, 2])
    """
    assert isinstance(tensor, Tensor)
    return tensor.__dlpack__()
