"""PyTorch's older home of `functional_call`, which `probtorch.func` has."""

from probtorch.func.stateless import functional_call

__all__ = ["functional_call"]
