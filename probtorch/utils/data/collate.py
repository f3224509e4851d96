"""Many samples into one batch.

Numbers, arrays and tensors become one tensor with a new first dim; containers are kept and their
entries collated one by one; strings and bytes stay a list. The rules are PyTorch's: Python floats
become float64, integers int64, and a batch of tuples a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import DTypeError, ShapeError
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = ["default_collate", "default_convert"]


def default_collate(batch: Sequence[Tree]) -> Tree:
    """Return one batch made of a list of samples of one structure.

    Parameters
    ----------
    batch : list
        Tensors, arrays, numbers, strings, or mappings, named tuples, tuples and lists of such.

    Returns
    -------
    Tensor, list or container of the samples' kind

    Raises
    ------
    ShapeError
        If tensors differ in shape, or containers in length.
    DTypeError
        For samples of any other type.

    Examples
    --------
    >>> default_collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': tensor([1, 2]), 'name': ['a', 'b']}
    """
    first = batch[0]
    if isinstance(first, TensorBase):
        return _stacked(batch)
    if isinstance(first, (np.ndarray, np.generic)) and first.dtype.kind in "biufc":
        return _stacked([as_tensor(np.asarray(x), "default_collate") for x in batch])
    if isinstance(first, bool):
        return wrap(np.array(batch, np.bool_))
    if isinstance(first, int):
        return wrap(np.array(batch, np.int64))
    if isinstance(first, float):
        return wrap(np.array(batch, np.float64))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        columns = {key: default_collate([x[key] for x in batch]) for key in first}
        return _like_mapping(first, columns)
    if isinstance(first, Sequence):
        _check_lengths(batch)
        parts = [default_collate(column) for column in zip(*batch)]
        return type(first)(*parts) if hasattr(first, "_fields") else _like_sequence(first, parts)
    raise DTypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists",
        expected="such samples",
        got=f"a sample of type {type(first).__name__}",
        fix="pass a collate_fn that knows the type",
    )


def default_convert(data: Tree) -> Tree:
    """Return one sample with its arrays and NumPy numbers as tensors, all else as it is."""
    if isinstance(data, TensorBase) or isinstance(data, (str, bytes)):
        return data
    if isinstance(data, (np.ndarray, np.generic)):
        return as_tensor(data, "default_convert") if data.dtype.kind in "biufc" else data
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: default_convert(data[key]) for key in data})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(x) for x in data))
    if isinstance(data, tuple):
        return [default_convert(x) for x in data]
    if isinstance(data, Sequence):
        return _like_sequence(data, [default_convert(x) for x in data])
    return data


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors; off the tape it is one array call."""
    taped = recorder() is not None or any(t.requires_grad for t in tensors)
    shape, dtype = tensors[0].array.shape, tensors[0].array.dtype
    other = next((t.array.shape for t in tensors if t.array.shape != shape), None)
    if other is not None:
        raise ShapeError(
            "default_collate: stack expects each tensor to be equal size",
            expected=f"samples of the shape of the first, {shape}",
            got=str(other),
            fix="pass a collate_fn, for sequences one that calls nn.utils.rnn.pad_sequence; or "
            "bring all samples to one size",
        )
    if taped or any(t.array.shape != shape or t.array.dtype != dtype for t in tensors):
        return stack(tensors)
    return wrap(array_module(tensors[0].array).stack([t.array for t in tensors]))


def _check_lengths(batch: Sequence[Sequence[object]]) -> None:
    size = len(batch[0])
    for i, x in enumerate(batch):
        if len(x) != size:
            raise ShapeError(
                "default_collate: each element in list of batch should be of equal size",
                expected=f"{size} entries, as in the first sample",
                got=f"{len(x)} in sample {i}",
                fix="pad the samples, or pass a collate_fn",
            )


def _like_mapping(first: Mapping[object, object], columns: dict[object, object]) -> object:
    """Return `columns` as a mapping of the kind of `first`, or a dict if it cannot be built."""
    kind: Callable[..., object] = type(first)
    try:
        return kind(columns)
    except TypeError:
        return columns


def _like_sequence(first: Sequence[object], parts: list[object]) -> object:
    """Return `parts` as a sequence of the kind of `first`; tuples become lists, as in PyTorch."""
    if isinstance(first, tuple):
        return parts
    kind: Callable[..., object] = type(first)
    try:
        return kind(parts)
    except TypeError:
        return parts


explain_calls(globals())
