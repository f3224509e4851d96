"""Orders of NumPy's arrays: the places of their elements, from the least on or from the largest."""

from __future__ import annotations

import numpy as np

__all__ = ["FEW", "first_of_order", "order"]

# Fewer elements are sorted before it is found out how to do without.
FEW = 512


def order(x: np.ndarray, dim: int, descending: bool) -> np.ndarray:
    """Return the indices that sort along one dim; equal elements keep their order."""
    if descending:
        # Reversing twice keeps equal elements in their order.
        last, back = x.shape[dim] - 1, (*[slice(None)] * dim, slice(None, None, -1))
        return last - order(x[back], dim, False)[back]
    if not isinstance(x, np.ndarray):
        return x.argsort(axis=dim)
    if x.dtype.kind == "f" and x.size >= FEW:
        # Where no elements are equal there is one order, and no need of the slower way to it.
        places = x.argsort(axis=dim)
        found = x[places] if x.ndim == 1 else np.take_along_axis(x, places, dim)
        found = np.moveaxis(found, dim, -1)
        if (found[..., :-1] < found[..., 1:]).all():
            return places
    return x.argsort(axis=dim, kind="stable")


def first_of_order(x: np.ndarray, k: int, dim: int, descending: bool) -> np.ndarray | None:
    """Return the first `k` of what `order` returns, without sorting the rest; None where it
    takes more than to ask who is beyond the k-th: nan, or equal elements at the border.
    """
    if x.ndim == 1 and x.size >= _BLOCKS * k:
        return _largest_of_blocks(x, k, descending)
    moved = np.moveaxis(x, dim, -1)
    at = moved.shape[-1] - k if descending else k - 1
    border = np.take(np.partition(moved, at, axis=-1), [at], axis=-1)
    mask = moved >= border if descending else moved <= border
    if (mask.sum(-1) != k).any():
        return None
    places = np.nonzero(mask)[-1].reshape(*moved.shape[:-1], k)
    among = order(np.take_along_axis(moved, places, -1), moved.ndim - 1, descending)
    return np.moveaxis(np.take_along_axis(places, among, -1), -1, dim)


# Blocks per element wanted: the more, the fewer elements are left over to be sorted.
_BLOCKS = 16


def _largest_of_blocks(x: np.ndarray, k: int, descending: bool) -> np.ndarray | None:
    """`first_of_order` of one row: the k-th largest of the largest elements of blocks is a bound
    that at least k elements, and few more, reach. Two fast passes, and equal ones are all there.
    """
    size = x.size // (_BLOCKS * k)
    whole = x.size // size * size
    blocks, rest = x[:whole].reshape(-1, size), x[whole:]
    most = blocks.max(1) if descending else blocks.min(1)
    bound = (
        np.partition(most, most.size - k)[-k] if descending else np.partition(most, k - 1)[k - 1]
    )
    if np.isnan(most).any() or np.isnan(rest).any():
        return None
    places = np.flatnonzero(x >= bound if descending else x <= bound)
    return places[order(x[places], 0, descending)[:k]]
