"""To type checkers there is one tensor class; see probtorch/tensor.pyi."""

from typing import TypeGuard

from probtorch.tensor import Tensor as TensorBase

__all__ = ["TensorBase", "is_tensor"]

def is_tensor(x: object) -> TypeGuard[TensorBase]: ...
