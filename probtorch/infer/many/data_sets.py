"""Data sets as calls of a model: what varies between them, and which of them are alike.

Arrays, tensors and floats among the arguments are data: numbers that are exchanged. Everything else
(whole numbers, text, functions) and the shapes of arrays are what the model is compiled for. Data
sets that agree in these are a `DataGroup`.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from typing import cast as typed

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.sameness import token
from probtorch.core.tensor_base import TensorBase, is_tensor
from probtorch.core.tree import Structure, flatten, map_tree, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, DTypeError
from probtorch.infer.parts import exceeds_float64
from probtorch.ops.movement import reshape

__all__ = ["DataGroup", "ModelCall", "calls_of", "grouped", "padded"]


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
    if issubclass(type(datasets), Mapping):
        items = list(typed(Mapping[object, object], datasets).items())
    elif issubclass(type(datasets), (str, bytes)) or not hasattr(datasets, "__iter__"):
        items = []
    else:
        items = list(enumerate(typed(Iterable[object], datasets)))
    if not items:
        raise ArgumentError(
            "fit_many(model, datasets)",
            expected="a sequence of data sets, or a mapping from their labels",
            got=f"{type(datasets).__name__} {datasets!r:.60}",
            fix="write fit_many(model, [(x1, y1), (x2, y2)]): what the model is called with",
        )
    calls = {label: _call(data) for label, data in items}
    first = next(iter(calls.values()))
    # Names in another order are the same call.
    return {
        label: ModelCall(_in_order(first.args, c.args), _in_order(first.kwargs, c.kwargs))
        for label, c in calls.items()
    }


def _in_order(first: Tree, other: Tree) -> Tree:
    """A tree with its dicts in the order of those of another, as far as these have their keys."""
    if type(other) is dict and type(first) is dict:
        places = {key: i for i, key in enumerate(first)}
        keys = sorted(other, key=lambda key: places.get(key, len(places)))
        return {key: _in_order(first.get(key), other[key]) for key in keys}
    if type(other) in (tuple, list) and type(first) is type(other) and len(first) == len(other):
        return type(other)(map(_in_order, first, other))
    return other


def _call(data: object) -> ModelCall:
    if issubclass(type(data), Mapping):
        return ModelCall(
            (), {str(name): _plain(x) for name, x in typed(Mapping[object, Leaf], data).items()}
        )
    args = typed(tuple[Leaf, ...], data if issubclass(type(data), tuple) else (data,))
    return ModelCall(tuple(_plain(x) for x in args), {})


def _plain(x: Leaf) -> Leaf:
    """An argument with arrays in place of tensors, tables, lists of numbers and floats."""
    if hasattr(x, "to_numpy"):  # of pandas
        x = x.to_numpy()
    if issubclass(type(x), list) and x and all(issubclass(type(e), (int, float)) for e in x):
        x = np.asarray(x)

    def plain(leaf: Leaf) -> Leaf:
        if is_tensor(leaf):
            leaf = to_host(leaf.array)
        if issubclass(type(leaf), (float, np.generic)):
            leaf = np.asarray(leaf)
        if issubclass(type(leaf), np.ndarray) and leaf.dtype.kind == "f":
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
    lengths = {}
    for label, call in calls.items():
        arrays = [x for x in call.leaves if _is_data(x)]
        if not arrays or not arrays[0].ndim or not len(arrays[0]):
            raise ArgumentError(
                f"fit_many(mask={mask!r}): data set {label!r}",
                expected="an array with rows as its first argument",
                got=f"shape {arrays[0].shape}" if arrays else "no array",
                fix="leave mask out, or leave the data set out",
            )
        lengths[label] = len(arrays[0])
    longest = max(lengths.values())
    by_row: dict[Structure, set[int]] = {}  # places of leaves
    for label, call in calls.items():
        rows = {i for i, x in enumerate(call.leaves) if _has_rows(x, lengths[label])}
        by_row[call.structure] = by_row.get(call.structure, rows) & rows

    def made(label: object, call: ModelCall) -> ModelCall:
        leaves = call.leaves
        for i in by_row[call.structure]:
            last = leaves[i][-1:]
            leaves[i] = np.concatenate(
                [leaves[i], np.repeat(last, longest - lengths[label], axis=0)]
            )
        args, kwargs = unflatten(call.structure, leaves)
        return ModelCall(args, {**kwargs, mask: np.arange(longest) < lengths[label]})

    return {label: made(label, call) for label, call in calls.items()}


def _is_data(leaf: Leaf) -> bool:
    return issubclass(type(leaf), np.ndarray) and leaf.dtype.kind in "fiub"


def _has_rows(leaf: Leaf, length: int) -> bool:
    return _is_data(leaf) and leaf.ndim > 0 and len(leaf) == length


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
        """Return the numbers of a call, float64, shape (size,).

        Raises
        ------
        DTypeError
            For integers that float64 rounds.
        """
        leaves = call.leaves
        arrays = [leaves[i] for i in self._shapes]
        if any(map(exceeds_float64, arrays)):
            raise DTypeError(
                "fit_many: the data of a model",
                expected="integers up to 2**53, which float64 has exactly",
                got="larger ones",
                fix="number categories from 0; leave identifiers out of the data",
            )
        return np.concatenate([np.zeros(0), *(np.ravel(x).astype(np.float64) for x in arrays)])

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
            (x.shape, x.dtype.str) if _is_data(x) else _sameness(x) for x in call.leaves
        ]
        groups.setdefault((call.structure, tuple(key)), []).append(label)
    return list(groups.values())


def _sameness(x: Leaf) -> object:
    """What is equal for arguments that a model cannot tell apart: of most, the identity."""
    if type(x) is not np.ndarray:
        return token(x)
    if not x.dtype.hasobject:
        return x.shape, x.dtype, x.tobytes()
    try:
        return x.shape, pickle.dumps(x)
    except Exception:  # picklers raise whatever the elements' own methods raise
        return id(x)
