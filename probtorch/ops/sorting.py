"""Sorting, and which elements there are.

Indices come from non-differentiable ops, values are gathered with them, so gradients flow to the
elements chosen. nan sorts after everything else. Order statistics are in order_statistics.py,
searching and counting in searching.py.
"""

from __future__ import annotations

from typing import Literal, overload

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.making import as_tensor
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import TensorLike
from probtorch.ops.families import structured
from probtorch.ops.gathering import gather
from probtorch.ops.movement import reshape
from probtorch.ops.named import ValuesIndices
from probtorch.ops.orders import order
from probtorch.ops.workspace import sorting_space

__all__ = ["ARGSORT", "argsort", "sort", "taken_at", "unique", "with_dim"]


def _argsort_reference(x: np.ndarray, dim: int, descending: bool) -> np.ndarray:
    moved = np.moveaxis(x, dim, -1)
    out = np.zeros(moved.shape, np.int64)
    for at in np.ndindex(moved.shape[:-1]):
        out[at] = sorted(
            range(moved.shape[-1]), key=lambda i: -moved[at][i] if descending else moved[at][i]
        )
    return np.moveaxis(out, -1, dim)


ARGSORT = structured(
    "argsort",
    "sorting",
    run=order,
    core="dim",
    native=Routine(
        "argsort_{type}",
        "x count n descending out space",
        outputs="out",
        keeps="x",
        space=sorting_space,
    ),
    samples=lambda rng: [
        ((rng.standard_normal((2, 5)),), {"dim": 1, "descending": False}),
        ((rng.integers(0, 3, (6, 2)) * 1.0,), {"dim": 0, "descending": True}),
    ],
    reference=_argsort_reference,
    doc="Indices that sort along one dim; equal elements keep their order.",
)


def with_dim(name: str, x: TensorLike, dim: int) -> tuple[TensorBase, int, bool]:
    """Return `x` with at least one dim, its normalised dim, and whether a dim was added."""
    x = as_tensor(x, name)
    dim = normalize_dim(dim, x.array.ndim, name)
    return (x, dim, False) if x.array.ndim else (reshape(x, (1,)), 0, True)


def taken_at(x: TensorBase, dim: int, index: TensorBase) -> TensorBase:
    """Return the elements of `x` at places along `dim`, which are known to be there."""
    if not unseen(x):
        return gather(x, dim, index)
    if x.array.ndim == 1:
        return wrap(x.array[index.array])
    return wrap(np.take_along_axis(x.array, index.array, dim))


@takes_out
def argsort(
    input: TensorLike,
    dim: int = -1,
    descending: bool = False,
    stable: bool = True,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the indices that sort `input` along `dim`; ties keep their order, nan comes last.

    Descending order is the ascending one reversed, so nan then comes first. `stable` is accepted
    for PyTorch's sake.
    """
    input, dim, added = with_dim("argsort", input, dim)
    index = apply(ARGSORT, (input,), {"dim": dim, "descending": bool(descending)})
    return reshape(index, ()) if added else index


@takes_out
def sort(
    input: TensorLike,
    dim: int = -1,
    descending: bool = False,
    stable: bool = True,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices:
    """Return ``(values, indices)`` sorted along `dim`, as `argsort`; differentiable."""
    input, dim, added = with_dim("sort", input, dim)
    index = apply(ARGSORT, (input,), {"dim": dim, "descending": bool(descending)})
    values = taken_at(input, dim, index)
    if added:
        values, index = reshape(values, ()), reshape(index, ())
    return ValuesIndices(values, index)


@overload
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    dim: int | None = None,
) -> TensorBase: ...
@overload
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> TensorBase | tuple[TensorBase, ...]: ...
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> TensorBase | tuple[TensorBase, ...]:
    """Return the distinct elements in ascending order, or distinct slices along `dim`.

    With `return_inverse` also, for every element, its place among them; with `return_counts` also
    how often each occurs. No gradient; `sorted` is accepted for PyTorch's sake.
    """
    input = as_tensor(input, "unique")
    read("unique", input)
    if dim is not None:
        dim = normalize_dim(dim, input.array.ndim, "unique")
        dim = dim if input.array.ndim else None
    found = np.unique(to_host(input.array), return_inverse=True, return_counts=True, axis=dim)
    device = device_of(input.array)
    values, inverse, counts = (wrap(to_device(a, device)) for a in found)
    if dim is None:
        inverse = reshape(inverse, input.array.shape)
    out = [values] + [inverse] * bool(return_inverse) + [counts] * bool(return_counts)
    return out[0] if len(out) == 1 else tuple(out)
