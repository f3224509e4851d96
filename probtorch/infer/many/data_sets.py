"""Data sets as calls of a model: what varies between them, and which of them are alike.

Arrays, tensors and floats among the arguments are data: numbers that are exchanged. Everything else
(whole numbers, text, functions) and the shapes of arrays are what the model is compiled for. Data
sets that agree in these are a `DataGroup`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, map_tree, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.ops.movement import reshape

__all__ = ["ModelCall", "DataGroup", "calls_of", "grouped", "padded"]


# What a user passes: an array once it is known to be data.
Leaf: TypeAlias = np.ndarray


@dataclass(frozen=True)
class ModelCall:
    """What the model is called with for one data set; every datum is an array."""

    args: tuple[object, ...]
    kwargs: dict[str, object]

    @property
    def leaves(self) -> list[Leaf]:
        """All leaves of the arguments, in order."""
        return flatten((self.args, self.kwargs))[0]

    @property
    def structure(self) -> Tree:
        """What the leaves are leaves of."""
        return flatten((self.args, self.kwargs))[1]


def calls_of(datasets: object) -> dict[object, ModelCall]:
    """Return the call of each data set, by its label: its key, or its number.

    A data set is a tuple of positional arguments, a dict of named ones, or the only argument.

    Raises
    ------
    ArgumentError
        If there are none, or they are no sequence and no mapping.
    """
    if isinstance(datasets, Mapping):
        items = list(datasets.items())
    elif isinstance(datasets, (str, bytes)) or not hasattr(datasets, "__iter__"):
        items = []
    else:
        items = list(enumerate(datasets))
    if not items:
        raise ArgumentError(
            "fit_many(model, datasets)",
            expected="a sequence of data sets, or a mapping from their labels",
            got=f"{type(datasets).__name__} {datasets!r:.60}",
            fix="write fit_many(model, [(x1, y1), (x2, y2)]): what the model is called with",
        )
    return {label: _call(data) for label, data in items}


def _call(data: object) -> ModelCall:
    if isinstance(data, Mapping):
        return ModelCall((), {str(name): _plain(x) for name, x in data.items()})
    args = data if isinstance(data, tuple) else (data,)
    return ModelCall(tuple(_plain(x) for x in args), {})


def _plain(x: Leaf) -> Leaf:
    """An argument with arrays in place of tensors, tables, lists of numbers and floats."""
    if hasattr(x, "to_numpy"):  # of pandas
        x = x.to_numpy()
    if isinstance(x, list) and x and all(isinstance(e, (int, float)) for e in x):
        x = np.asarray(x)

    def plain(leaf: Leaf) -> Leaf:
        if isinstance(leaf, TensorBase):
            leaf = to_host(leaf.array)
        if isinstance(leaf, (float, np.generic)):
            leaf = np.asarray(leaf)
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
            return leaf.astype(np.float64)
        return leaf

    return map_tree(plain, x)


def padded(calls: Mapping[object, ModelCall], mask: str) -> dict[object, ModelCall]:
    """Return calls of one length, with a further argument that tells which rows are data.

    Rows are the leading dim of those arrays whose lengths go with that of the first array. The last
    row is repeated, which lies where data may lie.

    Raises
    ------
    ArgumentError
        If a data set has no rows.
    """
    found = {label: [x for x in c.leaves if _is_data(x)] for label, c in calls.items()}
    lengths = {}
    for label, arrays in found.items():
        if not arrays or not arrays[0].ndim or not len(arrays[0]):
            raise ArgumentError(
                f"fit_many(mask={mask!r}): data set {label!r}",
                expected="an array with rows as its first argument",
                got=f"shape {arrays[0].shape}" if arrays else "no array",
                fix="leave mask out, or leave the data set out",
            )
        lengths[label] = len(arrays[0])
    longest = max(lengths.values())
    count = min(map(len, found.values()))
    by_row = {
        i
        for i in range(count)
        if all(x[i].ndim and len(x[i]) == lengths[label] for label, x in found.items())
    }

    def made(label: object, call: ModelCall) -> ModelCall:
        at = iter(range(len(found[label])))

        def longer(leaf: Leaf) -> Leaf:
            if not _is_data(leaf) or next(at) not in by_row:
                return leaf
            return np.concatenate([leaf, np.repeat(leaf[-1:], longest - len(leaf), axis=0)])

        args, kwargs = map_tree(longer, (call.args, call.kwargs))
        return ModelCall(args, {**kwargs, mask: np.arange(longest) < lengths[label]})

    return {label: made(label, call) for label, call in calls.items()}


def _is_data(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub"


class DataGroup:
    """The numbers of calls that are alike, as one vector each.

    Parameters
    ----------
    call : ModelCall
        One of them.

    Attributes
    ----------
    size : int
        Of the vector.
    """

    def __init__(self, call: ModelCall) -> None:
        leaves = call.leaves
        self._structure = call.structure
        self._rest = [None if _is_data(x) else x for x in leaves]
        self._shapes = {i: (x.shape, x.dtype) for i, x in enumerate(leaves) if _is_data(x)}
        self.size = sum(math.prod(shape) for shape, _ in self._shapes.values())

    def packed(self, call: ModelCall) -> np.ndarray:
        """Return the numbers of a call, float64, shape (size,)."""
        leaves = call.leaves
        parts = [np.ravel(leaves[i]).astype(np.float64) for i in self._shapes]
        return np.concatenate([np.zeros(0), *parts])

    def arguments(self, flat: TensorBase) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return args and kwargs whose data are the entries of a vector, a Tensor."""
        leaves: list[object] = [*self._rest]
        at = 0
        for i, (shape, dtype) in self._shapes.items():
            size = math.prod(shape)
            part = flat[at] if shape == () else reshape(flat[at : at + size], shape)
            leaves[i] = part if dtype == np.float64 else cast(part, dtype)
            at += size
        args, kwargs = unflatten(self._structure, leaves)
        return args, kwargs


def with_tensors(call: ModelCall) -> ModelCall:
    """Return a call with tensors in place of its arrays."""
    args, kwargs = map_tree(lambda x: wrap(x) if _is_data(x) else x, (call.args, call.kwargs))
    return ModelCall(args, kwargs)


def grouped(calls: Mapping[object, ModelCall]) -> list[list[object]]:
    """Return the labels of data sets that are alike, group by group."""
    groups: dict[object, list[object]] = {}
    for label, call in calls.items():
        key: Sequence[object] = [
            (x.shape, x.dtype.str) if _is_data(x) else (type(x), repr(x)) for x in call.leaves
        ]
        groups.setdefault((call.structure, tuple(key)), []).append(label)
    return list(groups.values())
