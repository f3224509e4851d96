"""Which tensors are alive, and how much memory they hold: for whoever looks for a leak."""

from __future__ import annotations

import gc
from collections import Counter

from probtorch.backends.registry import device_of
from probtorch.core.tensor_base import TensorBase

__all__ = ["live_tensors", "summary"]


def live_tensors(device: str | None = None) -> list[TensorBase]:
    """Return all tensors that this process holds, oldest first as Python's collector has them.

    Parameters
    ----------
    device : str, optional
        Only those on this device, "cpu" or "cuda:0".

    Returns
    -------
    list of Tensor
        Also such as only a reference cycle still holds; call ``gc.collect()`` before to be rid of
        these. The list keeps them alive: do not keep it.

    Notes
    -----
    Gradients, parameters, and what the tape saves are tensors too. Memory that a compiled function
    keeps for itself, and arrays of NumPy, are not.

    Examples
    --------
    >>> import probtorch
    >>> before = len(live_tensors())
    >>> kept = [probtorch.zeros(3) for _ in range(10)]
    >>> len(live_tensors()) - before
    10
    """
    # By `type`, since `isinstance` asks objects, and some that are half made answer with an error.
    found = [x for x in gc.get_objects() if issubclass(type(x), TensorBase) and hasattr(x, "array")]
    return found if device is None else [x for x in found if device_of(x.array) == device]


def summary(row_limit: int = 20) -> str:
    """Return a table of the tensors that are alive, by type, dtype and shape, largest first.

    Parameters
    ----------
    row_limit : int
        How many rows are shown.

    Returns
    -------
    str
        Memory that several tensors share is counted once in the last line, and in each row that
        has a tensor of it.
    """
    counts: Counter[tuple[str, str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str, str]] = Counter()
    owners: dict[int, int] = {}
    tensors = live_tensors()
    for t in tensors:
        array = t.array
        key = type(t).__name__, str(array.dtype), str(tuple(array.shape)), device_of(array)
        counts[key] += 1
        sizes[key] += array.nbytes
        owner = array
        while isinstance(owner.base, type(array)):
            owner = owner.base
        owners[id(owner)] = owner.nbytes
    rows = [("type", "dtype", "shape", "device", "tensors", "bytes")]
    for key, size in sizes.most_common(row_limit):
        rows.append((*key, str(counts[key]), str(size)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths)).rstrip() for row in rows]
    if len(sizes) > row_limit:
        lines.append(f"... {len(sizes) - row_limit} more rows")
    lines.append(f"{len(tensors)} tensors, {sum(owners.values())} bytes of memory")
    return "\n".join(lines)
