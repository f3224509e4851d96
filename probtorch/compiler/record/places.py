"""Slices that begin elsewhere in each turn of a loop: those of `rolling`.

A regular series reads ``y[t]``; one that is indexed by data, ``log_b[:, w[t]]`` with `w` an array
or a list, begins anywhere. What all turns read of a tensor made before the loop is gathered once,
one row per turn. What they read of, or write to, a tensor that the loop itself makes is read or
written at positions that each turn gets as a slice of its own.
"""

import numpy as np

from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import movedim, reshape, slice_, unslice

__all__ = ["PLACED", "at_places", "begins", "form", "gathered", "moving", "positions"]

# Ops that read or write at slices.
PLACED = frozenset({"slice", "slice_put", "unslice"})
# Elements that one tensor per turn may have in all turns together.
LARGEST = 1 << 24


def form(name, attrs):
    """Return what of the attributes of an op must be the same in all turns of a loop: of one in
    `PLACED` all but where its slices begin.
    """
    if name in PLACED:
        return tuple((step, n) for _, step, n in attrs["spec"]), attrs.get("shape")
    return repr(attrs) if attrs else None


def begins(column):
    """Return where the slices of one position of a loop begin, shape (turns, dims), and the dims
    in which that differs from turn to turn.
    """
    starts = np.array([[begin for begin, _, _ in node.attrs["spec"]] for node in column], np.int64)
    return moving(starts.reshape(len(column), -1))


def moving(starts):
    """Return where slices begin, as it is, and the dims in which that differs from turn to turn."""
    return starts, [int(d) for d in np.flatnonzero((starts != starts[0]).any(0))]


def gathered(whole, spec, starts, dims):
    """Return the slices that all turns read of `whole`, shape (turns, sizes of one slice).

    Parameters
    ----------
    whole : Tensor
    spec : tuple
        That of the first turn.
    starts, dims
        See `begins`.
    """
    turns, shape = len(starts), whole.array.shape
    if len(dims) > 1:
        at = np.zeros((turns,) + (1,) * len(spec), np.int64)
        for d, (_, step, n) in enumerate(spec):
            row = (starts[:, d, None] + step * np.arange(n)) * int(np.prod(shape[d + 1 :]))
            at = at + row.reshape([turns] + [n if k == d else 1 for k in range(len(spec))])
        flat = index_select(reshape(whole, -1), 0, wrap(at.reshape(-1)))
        return reshape(flat, at.shape)
    (dim,) = dims
    for d, (begin, step, n) in enumerate(spec):
        if d != dim and (begin, step, n) != (0, 1, shape[d]):
            whole = index_select(whole, d, wrap(np.arange(n) * step + begin))
    _, step, size = spec[dim]
    between = np.diff(starts[:, dim])
    if size == 1 and between[0] > 0 and (between == between[0]).all():
        # At even distances: a view, which costs nothing.
        row = [(0, 1, n) for n in whole.array.shape]
        row[dim] = int(starts[0, dim]), int(between[0]), turns
        picked = movedim(slice_(whole, tuple(row)), dim, 0)
        sizes = [1 if d == dim else n for d, n in enumerate(whole.array.shape)]
        return reshape(picked, (turns, *sizes))
    at = starts[:, dim, None] + step * np.arange(size)
    picked = index_select(whole, dim, wrap(at.reshape(-1)))
    shape = picked.array.shape
    return movedim(reshape(picked, (*shape[:dim], turns, size, *shape[dim + 1 :])), dim, 0)


def positions(node, starts, dims):
    """Return, for each of `dims`, the positions that the turns read or write along it, shape
    (turns, size); None where a loop could not do what the op does.
    """
    spec = node.attrs["spec"]
    if node.name == "slice_put":
        shape = node.inputs[0].shape
        rest = [i for d, i in enumerate(spec) if d not in dims]
        whole = [(0, 1, n) for d, n in enumerate(shape) if d not in dims]
        # The tensor is kept once per turn for the backward pass.
        if len(dims) > 1 or rest != whole or len(starts) * int(np.prod(shape)) > LARGEST:
            return None
    return [starts[:, d, None] + spec[d][1] * np.arange(spec[d][2]) for d in dims]


def at_places(node, operands, dims):
    """Carry out an op in `PLACED` with the positions along `dims` as further operands."""
    count = len(node.inputs)
    x, at = operands[0], operands[count:]
    spec = list(node.attrs["spec"])
    shape = node.attrs.get("shape", x.array.shape)
    for d in dims:
        spec[d] = (0, 1, x.array.shape[d])
    if node.name == "slice":
        x = slice_(x, tuple(spec))
        for d, i in zip(dims, at, strict=True):
            x = index_select(x, d, i)
        return x
    if node.name == "unslice":
        sizes = [n if d not in dims else spec[d][2] for d, n in enumerate(shape)]
        x = unslice(x, tuple(spec), tuple(sizes))
        for d, i in zip(dims, at, strict=True):
            sizes[d] = shape[d]
            x = apply(REGISTRY["untake"], (x, i), {"dims": (d,), "shape": tuple(sizes)})
        return x
    value = operands[1]
    attrs = {"dims": tuple(dims), "accumulate": False}
    return apply(REGISTRY["put"], (x, value, *at), attrs)
