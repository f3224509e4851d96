"""What training scripts need around a model; `data` feeds it."""

from probtorch.utils import data

__all__ = ["data"]
