"""Functions about which elements occur: `isin`, runs of equal elements, histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from probtorch.backends.registry import array_module, device_of, to_device, to_host
from probtorch.core.casting import to_float
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.movement import reshape

__all__ = ["Histogram", "Histogramdd", "histogram", "histogramdd", "isin", "unique_consecutive"]


@takes_out
def isin(
    elements: TensorLike,
    test_elements: TensorLike,
    *,
    assume_unique: bool = False,
    invert: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return which elements are among `test_elements`, or, with `invert`, which are not.

    `assume_unique` is accepted for PyTorch's sake.
    """
    x, tested = as_tensor(elements, "isin"), as_tensor(test_elements, "isin")
    read("isin", x)
    read("isin", tested)
    device = device_of(x.array)
    among = to_device(tested.array, device)
    return wrap(array_module(x.array).isin(x.array, among, invert=invert))


def unique_consecutive(
    x: TensorLike,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> TensorBase | tuple[TensorBase, ...]:
    """Return `x` with one of each run of equal elements, or of equal slices along `dim`.

    Without `dim` the tensor is flattened. With `return_inverse` also the number of its run for each
    element; with `return_counts` also the lengths of the runs. No gradient.
    """
    x = as_tensor(x, "unique_consecutive")
    read("unique_consecutive", x)
    shape, array = x.array.shape, to_host(x.array)
    dim = None if dim is None else normalize_dim(dim, len(shape), "unique_consecutive")
    rows = array.reshape(-1) if dim is None or not shape else np.moveaxis(array, dim, 0)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    first = np.ones(len(flat), bool)
    first[1:] = (flat[1:] != flat[:-1]).any(1)
    starts = np.flatnonzero(first)
    values = rows[starts] if dim is None or not shape else np.moveaxis(rows[starts], 0, dim)
    device = device_of(x.array)

    def made(a: np.ndarray) -> TensorBase:
        return wrap(to_device(np.ascontiguousarray(a), device))

    out = [made(values)]
    if return_inverse:
        inverse = made(np.cumsum(first) - 1)
        out.append(inverse if dim is not None else reshape(inverse, shape))
    if return_counts:
        out.append(made(np.diff(starts, append=len(flat))))
    return out[0] if len(out) == 1 else tuple(out)


class Histogram(NamedTuple):
    """What `histogram` returns: heights of the bins, and their edges, one more."""

    hist: TensorBase
    bin_edges: TensorBase


@takes_out
def histogram(
    input: TensorLike,
    bins: SizeLike | TensorBase,
    *,
    range: tuple[float, float] | None = None,
    weight: TensorLike | None = None,
    density: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> Histogram:
    """Return how many elements, or how much of their `weight`, fall between edges.

    Parameters
    ----------
    input : Tensor
    bins : int or Tensor, shape (n + 1,)
        How many bins of equal width, or their edges in ascending order.
    range : (float, float), optional
        Where bins of equal width begin and end; left out, at the extremes of `input`.
    weight : Tensor, optional
        In the shape of `input`.
    density : bool
        Whether the area is made 1.

    Returns
    -------
    Histogram
        ``(hist, bin_edges)``, in the dtype of `input`; the last bin includes its upper edge. No
        gradient.
    """
    input = to_float(as_tensor(input, "histogram"))
    read("histogram", input)
    weights = None
    if weight is not None:
        given = as_tensor(weight, "histogram")
        read("histogram", given)
        if given.array.shape != input.array.shape:
            raise ArgumentError(
                "histogram",
                expected=f"a weight for each element, shape {input.array.shape}",
                got=str(given.array.shape),
                fix="expand the weights",
            )
        weights = to_host(given.array).reshape(-1)
    values = to_host(input.array).reshape(-1)
    try:
        if isinstance(bins, int):
            edges = np.histogram_bin_edges(values, bins, range)
        else:
            edged = as_tensor(bins, "histogram")
            read("histogram", edged)
            edges = to_host(edged.array)
        hist, found = np.histogram(values, edges, weights=weights)
        if density:
            hist = hist / (hist.sum() * np.diff(found))
    except ValueError as error:
        raise ArgumentError(
            "histogram",
            expected="a positive number of bins or ascending edges, and a finite range",
            got=f"{error}",
            fix="check bins= and range=",
        ) from None
    device, dtype = device_of(input.array), input.array.dtype
    return Histogram(*(wrap(to_device(a.astype(dtype), device)) for a in (hist, found)))


class Histogramdd(NamedTuple):
    """What `histogramdd` returns: heights of the boxes, and for each dim their edges."""

    hist: TensorBase
    bin_edges: tuple[TensorBase, ...]


@in_our_words
def histogramdd(
    input: TensorLike,
    bins: int | Sequence[int] | Sequence[TensorBase],
    *,
    range: Sequence[float] | None = None,
    weight: TensorLike | None = None,
    density: bool = False,
) -> Histogramdd:
    """Return how many points, or how much of their `weight`, fall into boxes.

    Parameters
    ----------
    input : Tensor, shape (..., d)
        Points of d coordinates.
    bins : int, sequence of int, or sequence of Tensor
        How many bins of equal width each coordinate has, or their edges in ascending order.
    range : sequence of 2 d float, optional
        Where bins of equal width begin and end, one coordinate after the other; left out, at the
        extremes of the points.
    weight : Tensor, shape (...), optional
    density : bool
        Whether the volume is made 1.

    Returns
    -------
    Histogramdd
        ``(hist, bin_edges)`` in the dtype of `input`; last bins include their upper edges. There is
        no gradient.
    """
    input = to_float(as_tensor(input, "histogramdd"))
    read("histogramdd", input)
    host = to_host(input.array)
    if host.ndim < 2:
        raise ArgumentError(
            "histogramdd",
            expected="points in rows, shape (..., d)",
            got=f"shape {host.shape}",
            fix="use histogram for numbers",
        )
    points = host.reshape(math.prod(host.shape[:-1]), host.shape[-1]).astype(np.float64)
    weights = None
    if weight is not None:
        given = as_tensor(weight, "histogramdd")
        read("histogramdd", given)
        weights = to_host(given.array).reshape(-1)
    try:
        limits = None if range is None else list(zip(range[::2], range[1::2], strict=True))
        # Counts and edges side by side, which NumPy takes and its types do not say.
        counts = cast(ArrayLike, bins if isinstance(bins, int) else [_bins_of(b) for b in bins])
        hist, edges = np.histogramdd(
            points,
            counts,
            range=limits,
            weights=weights,
            density=density,
        )
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            "histogramdd",
            expected="bins or ascending edges for each coordinate, and a weight for each point",
            got=f"{error}",
            fix="check bins=, range= and weight=",
        ) from None
    device, dtype = device_of(input.array), input.array.dtype
    made = [wrap(to_device(a.astype(dtype), device)) for a in (hist, *edges)]
    return Histogramdd(made[0], tuple(made[1:]))


def _bins_of(given: int | TensorBase) -> int | np.ndarray:
    if isinstance(given, int):
        return given
    edges = as_tensor(given, "histogramdd")
    read("histogramdd", edges)
    return to_host(edges.array)
