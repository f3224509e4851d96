"""To type checkers there is one tensor class; see probtorch/tensor.pyi."""

from probtorch.tensor import Tensor as TensorBase

__all__ = ["TensorBase"]
