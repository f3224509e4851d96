"""Names for what functions take and give, in annotations.

What a function computes with is a `TensorLike`; what it returns is a `Tensor`. Text is neither a
number nor a sequence of numbers here, though Python calls it a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from probtorch.core.tensor_base import TensorBase

__all__ = [
    "DType",
    "DTypeLike",
    "Dims",
    "Index",
    "Shape",
    "SizeLike",
    "StateDict",
    "TensorLike",
    "Tree",
]

# The type of `float32` and its kin, and what stands for one.
DType: TypeAlias = np.dtype[Any]
DTypeLike: TypeAlias = np.dtype[Any] | str | type

# What becomes a tensor: also arrays, numbers (complex admits floats too), nested lists.
TensorLike: TypeAlias = TensorBase | np.ndarray | np.generic | complex | list[Any] | tuple[Any, ...]

# Sizes of all dims; what sizes are given as; a dim, several, or all of them.
Shape: TypeAlias = tuple[int, ...]
SizeLike: TypeAlias = int | Sequence[int]
Dims: TypeAlias = int | Sequence[int] | None

# What stands in square brackets.
_OneIndex: TypeAlias = (
    SupportsIndex
    | slice
    | EllipsisType
    | TensorBase
    | np.ndarray
    | Sequence[int]
    | Sequence[Sequence[int]]
    | None
)
Index: TypeAlias = _OneIndex | tuple[_OneIndex, ...]

# Nested tuples, lists, dicts and records: their leaves are whatever the function takes.
Tree: TypeAlias = Any

# What `state_dict` returns, to be saved: names, and under them tensors, numbers, text and None, or
# lists and dicts of those.
StateDict: TypeAlias = dict[str, Any]
