"""Sequences of different lengths: padded to one tensor, or packed without the padding.

A packed sequence holds, for each time step, the elements of the sequences that still go on, the
longest first: recurrent layers take it and compute nothing for what would be padding. Packing and
padding are gathers by tables that NumPy makes of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import reshape, swapaxes
from probtorch.ops.padding import beside, pad
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]

# Lengths of sequences, one for each.
Lengths: TypeAlias = Tensor | np.ndarray | Sequence[int]


class PackedSequence(NamedTuple):
    """Sequences of different lengths, step by step and without padding.

    Make one with `pack_padded_sequence` or `pack_sequence`.

    Attributes
    ----------
    data : Tensor, shape (sum of lengths, *)
        The elements of the first step of all sequences, then of the second, and so on.
    batch_sizes : integer Tensor, shape (longest length,)
        How many sequences go on at each step.
    sorted_indices : integer Tensor, shape (B,), optional
        Which sequence each one is, the longest first; None if they were given in that order.
    unsorted_indices : integer Tensor, shape (B,), optional
        The inverse: where each given sequence is.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(
        self,
        device: str | DTypeLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Self:
        """Return it with `data` on another device or of another dtype; see `Tensor.to`."""
        data = self.data if device is None else self.data.to(device)
        data = data if dtype is None else data.to(dtype)
        return self._replace(data=data.clone() if copy and data is self.data else data)

    def cpu(self) -> Self:
        """Return it with all tensors in the memory of the processor."""
        return self._replace(data=self.data.cpu())

    def cuda(self, device: str | None = None) -> Self:
        """Return it with its data on the GPU."""
        return self._replace(data=self.data.to("cuda" if device is None else device))

    def double(self) -> Self:
        """Return it in double precision."""
        return self._replace(data=self.data.double())

    def float(self) -> Self:
        """Return it in single precision."""
        return self._replace(data=self.data.float())

    def half(self) -> Self:
        """Return it in half precision."""
        return self._replace(data=self.data.half())

    def long(self) -> Self:
        """Return it with integers of 8 bytes."""
        return self._replace(data=self.data.long())

    def int(self) -> Self:
        """Return it with integers of 4 bytes."""
        return self._replace(data=self.data.int())

    @property
    def is_cuda(self) -> bool:
        """Whether the data lies on a GPU."""
        return self.data.is_cuda


def _lengths(op: str, lengths: Lengths) -> list[int]:
    """Return lengths as Python's integers, checked."""
    found = lengths.tolist() if isinstance(lengths, (TensorBase, np.ndarray)) else lengths
    ok = isinstance(found, (list, tuple)) and all(hasattr(n, "__index__") for n in found)
    out = [n.__index__() for n in found] if ok else []
    if not out or min(out) < 1:
        raise ArgumentError(
            op,
            expected="lengths: at least one integer, each of at least 1",
            got=repr(found),
            fix="leave out sequences without elements",
        )
    return out


def _sizes(lengths: np.ndarray) -> np.ndarray:
    """Return how many of some lengths exceed 0, 1, 2, ... up to the longest."""
    return (lengths[None, :] > np.arange(lengths.max())[:, None]).sum(1)


def _table(sizes: np.ndarray) -> np.ndarray:
    """Return the row of packed data for each step and sequence, -1 where it has ended."""
    place = np.arange(sizes[0])[None, :]
    return np.where(place < sizes[:, None], (np.cumsum(sizes) - sizes)[:, None] + place, -1)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the permutation that takes back a permutation of 0 to n - 1; None for None."""
    if permutation is None:
        return None
    return as_tensor(permutation, "invert_permutation").argsort()


def pack_padded_sequence(
    input: TensorLike, lengths: Lengths, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a batch of sequences that were padded to one length.

    Parameters
    ----------
    input : Tensor, shape (T, B, *), or (B, T, *) with `batch_first`
    lengths : list of int or integer Tensor, shape (B,)
        Number of elements of each sequence, at least 1.
    batch_first : bool
    enforce_sorted : bool
        Whether the longest sequence comes first, and so on; off, any order goes.

    Returns
    -------
    PackedSequence

    Raises
    ------
    ArgumentError
        If a length is less than 1, or the order is not as said.
    ShapeError
        If lengths and input do not go together.
    """
    name = "pack_padded_sequence"
    x, found = as_tensor(input, name), np.asarray(_lengths(name, lengths))
    if x.array.ndim < 2:
        raise ShapeError(
            name,
            expected="an input (T, B, *) or (B, T, *)",
            got=str(x.array.shape),
            fix="stack the sequences, or use pack_sequence",
        )
    x = swapaxes(x, 0, 1) if batch_first else x
    steps, batch = x.array.shape[:2]
    if len(found) != batch or np.max(found) > steps:
        raise ShapeError(
            name,
            expected=f"{batch} lengths of at most {steps}, for an input with {batch} sequences",
            got=str(found.tolist()),
            fix="set batch_first=True if the batch comes first",
        )
    order = None
    if enforce_sorted:
        if np.any(found[1:] > found[:-1]):
            raise ArgumentError(
                name,
                expected="lengths in decreasing order",
                got=str(found.tolist()),
                fix="pass enforce_sorted=False",
            )
    else:
        order = np.argsort(-found, kind="stable")
        found = found[order]
    sizes = _sizes(found)
    step, place = np.nonzero(_table(sizes) >= 0)
    rows = step * batch + (place if order is None else order[place])
    flat = reshape(x, (steps * batch, *x.array.shape[2:]))
    return PackedSequence(
        index_select(flat, 0, beside(x, rows)),
        as_tensor(sizes.astype(np.int64)),
        None if order is None else beside(x, order),
        None if order is None else beside(x, np.argsort(order)),
    )


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Pad packed sequences to one length: the inverse of `pack_padded_sequence`.

    Parameters
    ----------
    sequence : PackedSequence
    batch_first : bool
        Return (B, T, *) instead of (T, B, *).
    padding_value : float
    total_length : int, optional
        T, if it is to be larger than the longest length.

    Returns
    -------
    padded : Tensor, shape (T, B, *)
        In the order in which the sequences were given.
    lengths : int64 Tensor, shape (B,)

    Raises
    ------
    ArgumentError
        If the argument is no `PackedSequence`, or `total_length` is too small.
    """
    name = "pad_packed_sequence"
    if not isinstance(sequence, PackedSequence):
        raise ArgumentError(
            name,
            expected="a PackedSequence",
            got=type(sequence).__name__,
            fix="pass what pack_padded_sequence or a recurrent layer returned",
        )
    data, sizes = sequence.data, np.asarray(_lengths(name, sequence.batch_sizes))
    table = _table(sizes)
    if total_length is not None:
        if total_length < len(sizes):
            raise ArgumentError(
                name,
                expected=f"total_length of at least {len(sizes)}, the longest length",
                got=str(total_length),
                fix="leave the argument out",
            )
        ended = np.full((total_length - len(sizes), table.shape[1]), -1)
        table = np.concatenate([table, ended])
    if sequence.unsorted_indices is not None:
        table = table[:, np.asarray(sequence.unsorted_indices.tolist(), np.int64)]
    lengths = (table >= 0).sum(0)
    table = table.T if batch_first else table
    found = index_select(data, 0, beside(data, np.maximum(table, 0).reshape(-1)))
    found = reshape(found, (*table.shape, *data.array.shape[1:]))
    there = beside(data, (table >= 0).reshape(*table.shape, *[1] * (data.array.ndim - 1)))
    fill = beside(data, np.asarray(padding_value).astype(data.array.dtype))
    return where(there, found, fill), as_tensor(lengths.astype(np.int64))


def _listed(op: str, sequences: Iterable[TensorLike]) -> list[Tensor]:
    if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
        raise ArgumentError(
            op,
            expected="a list of tensors",
            got=type(sequences).__name__,
            fix="put the sequence into a list",
        )
    found = [as_tensor(s, op) for s in sequences]
    if not found or any(not s.array.ndim for s in found):
        raise ArgumentError(
            op,
            expected="at least one tensor, each (length, *)",
            got=str([s.array.shape for s in found]),
            fix="the first dim of each is its length",
        )
    if len({s.array.shape[1:] for s in found}) > 1:
        raise ShapeError(
            op,
            expected="tensors that differ in their first dim only",
            got=str([s.array.shape for s in found]),
            fix="the first dim is the length",
        )
    return found


def pad_sequence(
    sequences: Iterable[TensorLike],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Pad sequences to the length of the longest, and stack them.

    Parameters
    ----------
    sequences : list of Tensor, each (length, *)
    batch_first : bool
        Return (B, T, *) instead of (T, B, *).
    padding_value : float
    padding_side : {"right", "left"}

    Returns
    -------
    Tensor, shape (T, B, *)

    Raises
    ------
    ArgumentError
        If there are no sequences, or for another side.
    ShapeError
        If they differ in more than their lengths.
    """
    found = _listed("pad_sequence", sequences)
    if padding_side not in ("left", "right"):
        raise ArgumentError(
            "pad_sequence",
            expected="padding_side 'right' or 'left'",
            got=repr(padding_side),
            fix="use 'right', the default",
        )
    longest = max(s.array.shape[0] for s in found)
    padded = []
    for s in found:
        missing = longest - s.array.shape[0]
        widths = [0, missing] if padding_side == "right" else [missing, 0]
        padded.append(pad(s, [0] * (2 * (s.array.ndim - 1)) + widths, value=padding_value))
    return stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: TensorLike, lengths: Lengths, batch_first: bool = False
) -> list[Tensor]:
    """Return the sequences of a padded batch as a list, each with its own length."""
    x, found = as_tensor(padded_sequences, "unpad_sequence"), _lengths("unpad_sequence", lengths)
    x = x if batch_first or x.array.ndim < 2 else swapaxes(x, 0, 1)
    if x.array.ndim < 2 or len(found) != x.array.shape[0] or max(found) > x.array.shape[1]:
        raise ShapeError(
            "unpad_sequence",
            expected="an input (T, B, *), or (B, T, *) with batch_first, and B lengths up to T",
            got=f"{x.array.shape} and {found}",
            fix="set batch_first=True if the batch comes first",
        )
    return [x[i, :n] for i, n in enumerate(found)]


def pack_sequence(sequences: Iterable[TensorLike], enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of tensors (length, *); arguments as for `pack_padded_sequence`."""
    found = _listed("pack_sequence", sequences)
    lengths = [s.array.shape[0] for s in found]
    return pack_padded_sequence(pad_sequence(found), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return packed sequences as a list, in the order in which they were given."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


explain_calls(globals())
