"""`vmap`: a function of one slice, run on all slices of a batch at once.

The function runs once, on the first slice, under a `Batch` listener (batch.py). It hears of every
operation, and carries it out on the whole batch as well (`batching.py` has a rule per op), so each
tensor that depends on the batch has a *whole* beside it; tensors that do not are computed once. As
the wholes are made by ordinary Tensor ops under the recorder that was active before, vmap nests in
itself, in forward and reverse mode and in compiled functions. Gradients taken inside the function
are operations like any other; gradients of the result flow through the wholes.

What Python sees of a tensor is its first slice, so a branch, a number or an array taken from one
that differs between slices is refused. `while_loop` and `cond` are the way to write such branches:
a loop runs until all slices are done, and finished ones keep their state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from probtorch.autograd.batch import RANDOMNESS, Batch, first_slice, whole_batch
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import movedim, slice_
from probtorch.ops.pieces import cat

__all__ = ["vmap"]

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    func: Callable[P, R],
    in_dims: Tree = 0,
    out_dims: Tree = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[P, R]:
    """Return a function that applies `func` to each slice of its arguments, all at once.

    Parameters
    ----------
    func : callable
        From slices to a tensor or a tree of tensors.
    in_dims : int, None, or tree of them
        Which dim of the arguments to map over, None for arguments that all slices share. A tree has
        one entry per argument, and may go on into it. Keyword arguments are mapped over dim 0.
    out_dims : int or tree of int
        Where the batch dim goes in the results.
    randomness : {"error", "different", "same"}
        Whether a random draw in `func` is refused, made anew for each slice, or shared by all.
    chunk_size : int, optional
        Work on so many slices at a time, to save memory.

    Returns
    -------
    callable
        Returns what `func` does, with a batch dim in each tensor.

    Raises
    ------
    ArgumentError, ShapeError
        If `in_dims` or `out_dims` do not fit, or batches differ in size.
    AutogradError
        If `func` branches in Python on a tensor that differs between slices, takes a number or an
        array from it, or writes it into a tensor from outside.

    Notes
    -----
    `func` runs once, on the first slice. Where slices differ, both branches of a `cond` are
    computed, and in a `while_loop` those that are done are computed too, at the state of one that
    is not. The signature is torch.func.vmap's. A custom `Function` through which a gradient of the
    result flows is evaluated slice by slice.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> vmap(lambda row: row.dot(row))(x)
    tensor([ 5., 25.])

    Gradients of each example's loss:

    >>> from probtorch.func import grad
    >>> w = probtorch.tensor([1.0, -1.0])
    >>> vmap(grad(lambda w, row: (w * row).sum() ** 2), in_dims=(None, 0))(w, x)
    tensor([[-2., -4.],
            [-6., -8.]])
    """
    if randomness not in RANDOMNESS:
        raise ArgumentError(
            "vmap",
            expected='randomness="error", "different" or "same"',
            got=repr(randomness),
            fix="see the documentation of vmap",
        )
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ArgumentError(
            "vmap",
            expected="a positive chunk_size",
            got=repr(chunk_size),
            fix="leave it out to work on all slices at once",
        )

    @functools.wraps(func)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        items, structure = flatten((args, kwargs))
        dims = _dims_of(in_dims, args) + [0] * (len(items) - len(flatten(args)[0]))
        items = [_moved(x, d) for x, d in zip(items, dims, strict=True)]
        flags = [d is not None for d in dims]
        size = _size(items, flags)
        step = size if chunk_size is None else min(chunk_size, size)
        parts, common = [], []
        for start in range(0, max(size, 1), max(step, 1)):
            stop = min(start + step, size)
            whole = (start, stop) == (0, size)
            part = [
                _rows(x, start, stop) if f and not whole else x
                for x, f in zip(items, flags, strict=True)
            ]
            batch = Batch(stop - start, randomness, common)
            outs, out_structure = _mapped(func, part, flags, structure, batch)
            common = batch.common
            parts.append(outs)
        outs = parts[0] if len(parts) == 1 else [cat(list(c)) for c in zip(*parts, strict=True)]
        places = _out_dims(out_dims, out_structure, len(outs))
        outs = [movedim(x, 0, d) if d else x for x, d in zip(outs, places, strict=True)]
        return unflatten(out_structure, outs)

    return wrapped


def _mapped(
    func: Callable[..., Tree],
    items: list[TensorBase],
    flags: list[bool],
    structure: Structure,
    batch: Batch,
) -> tuple[list[TensorBase], Structure]:
    """Run `func` on all slices; returns the batches of its results and their structure."""
    own = [first_slice(batch, x) if f else x for x, f in zip(items, flags, strict=True)]
    with batch:
        args, kwargs = unflatten(structure, own)
        outs, out_structure = flatten(func(*args, **kwargs))
        outs = [as_tensor(x, "vmap") for x in outs]
    return [whole_batch(batch, x) for x in outs], out_structure


def _rows(x: TensorBase, start: int, stop: int) -> TensorBase:
    spec = ((start, 1, stop - start), *((0, 1, n) for n in x.array.shape[1:]))
    return slice_(x, spec)


def _moved(x: TensorBase, dim: int | None) -> TensorBase:
    """Return a mapped argument with its batch in front."""
    if dim is None:
        return x
    if not isinstance(x, TensorBase):
        if not hasattr(x, "__array__"):
            raise ArgumentError(
                "vmap",
                expected="tensors to map over",
                got=f"{type(x).__name__} {x!r:.40} with in_dims {dim}",
                fix="give it in_dims None, so that all slices share it",
            )
        x = as_tensor(x, "vmap")
    rank = x.array.ndim
    if not -rank <= dim < rank:
        raise ShapeError(
            "vmap",
            expected=f"in_dims {dim} within the dims of each argument",
            got=f"a tensor of shape {x.array.shape}",
            fix="give it in_dims None, so that all slices share it",
        )
    return movedim(x, dim, 0) if dim % rank else x


def _size(items: list[TensorBase], flags: list[bool]) -> int:
    sizes = [x.array.shape[0] for x, f in zip(items, flags, strict=True) if f]
    if not sizes:
        raise ArgumentError(
            "vmap",
            expected="an argument to map over",
            got="none: there are no tensors, or in_dims is None for all",
            fix="call the function itself",
        )
    if len(set(sizes)) > 1:
        raise ShapeError(
            "vmap",
            expected="one batch size in all mapped arguments",
            got=", ".join(map(str, sizes)),
            fix="check in_dims; arguments that all slices share have None",
        )
    return sizes[0]


def _dims_of(dims: Tree, tree: Tree) -> list[int | None]:
    """Return the dim of each leaf of `tree`, for `dims` a tree that may end above the leaves."""
    if dims is None or (isinstance(dims, int) and not isinstance(dims, bool)):
        return [dims] * len(flatten(tree)[0])
    if type(dims) is dict and type(tree) is dict and set(dims) == set(tree):
        return [d for key in tree for d in _dims_of(dims[key], tree[key])]
    sequences = isinstance(dims, (tuple, list)) and isinstance(tree, (tuple, list))
    if sequences and len(dims) == len(tree):
        return [d for below, x in zip(dims, tree, strict=True) for d in _dims_of(below, x)]
    raise ArgumentError(
        "vmap",
        expected="in_dims: an int, None, or a tree of them like the arguments",
        got=f"{dims!r} for {len(tree) if hasattr(tree, '__len__') else 1} "
        f"entries of a {type(tree).__name__}",
        fix="give a tuple with one entry per argument",
    )


def _out_dims(dims: int, structure: Structure, count: int) -> list[int]:
    if isinstance(dims, int) and not isinstance(dims, bool):
        return [dims] * count
    found = _dims_of(dims, unflatten(structure, range(count)))
    places = [d for d in found if d is not None]
    if len(places) < len(found):
        raise ArgumentError(
            "vmap",
            expected="an int for every result, where its batch dim goes",
            got=f"out_dims={dims!r}",
            fix="write 0 for it, and take [0] of a result that all slices share",
        )
    return places


explain_calls(globals())
