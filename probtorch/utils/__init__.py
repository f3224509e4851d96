"""What training scripts need around a model; `data` feeds it, `dlpack` hands memory to others."""

from probtorch.utils import data, dlpack

__all__ = ["data", "dlpack"]
