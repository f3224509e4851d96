"""Jacobians and Hessians: rows many at a time (`vmap` of a pull-back), or column by column."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec

import numpy as np

from probtorch.autograd.forward import jvp
from probtorch.autograd.transforms import select, split_aux, vjp
from probtorch.autograd.vmap import vmap
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import AutogradError, NotDifferentiableError
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat, stack

__all__ = ["hessian", "jacfwd", "jacrev"]

# Rows pulled back together: enough to hide Python's part, few enough for the caches.
CHUNK = 64
# For fewer rows, one pass for each costs less than hearing of every operation.
FEWEST_ROWS = 4

P = ParamSpec("P")


def _basis(t: TensorBase) -> Iterator[TensorBase]:
    """Yield the unit vectors of the space that `t` lives in."""
    size, dtype = t.array.size, t.array.dtype
    for k in range(size):
        one = np.zeros(size, dtype)
        one[k] = 1
        yield wrap(one.reshape(t.array.shape)).to(t.device)


def _zeros(t: TensorBase) -> TensorBase:
    return t.new_zeros(t.array.shape)


def jacrev(
    func: Callable[P, Tree],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[P, Tree]:
    """Return a function that computes the Jacobian of `func` by reverse mode, many rows per pass.

    Parameters
    ----------
    func : callable
        Returns a tensor or a tree of them; with `has_aux` a pair of that and anything else.
    argnums : int or tuple of int
        Positional arguments to differentiate: tensors, or trees of them.
    has_aux : bool
    chunk_size : int, optional
        Rows (elements of an output) per backward pass; 64 if None. Memory grows with it.

    Returns
    -------
    callable
        Returns, for each output and within it for each argument, a tensor of shape
        ``(*output.shape, *argument.shape)``; with `has_aux` a pair of that and the rest.

    Notes
    -----
    Rows share a pass by `vmap`. Where that is refused, as by a custom backward that branches on its
    cotangent, each row has a pass of its own.
    """
    chunk = CHUNK if chunk_size is None else chunk_size

    @functools.wraps(func)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tree:
        chosen, put = select(args, argnums, "jacrev")
        found = vjp(lambda x: func(*put(x), **kwargs), chosen, has_aux=has_aux)
        value, pull = found[:2]
        outs, out_structure = flatten(value)
        jacobian = []
        for k, o in enumerate(outs):

            def row(unit: TensorBase, k: int = k) -> list[TensorBase]:
                gs = [unit if j == k else _zeros(other) for j, other in enumerate(outs)]
                (pulled,) = pull(unflatten(out_structure, gs))
                return flatten(pulled)[0]

            jacobian.append(_stacked(_rows(row, list(_basis(o)), chunk), o, chosen))
        jacobian = unflatten(out_structure, jacobian)
        return (jacobian, found[2]) if has_aux else jacobian

    return wrapped


def _rows(
    row: Callable[[TensorBase], list[TensorBase]], units: Sequence[TensorBase], chunk: int
) -> list[TensorBase] | None:
    """Return the leaves of ``row(unit)`` for all unit vectors, stacked; None if there are none."""
    if not units:
        return None
    if min(len(units), chunk) >= FEWEST_ROWS:
        try:
            parts = [vmap(row)(stack(units[i : i + chunk])) for i in range(0, len(units), chunk)]
            return [cat(list(leaf)) if len(leaf) > 1 else leaf[0] for leaf in zip(*parts)]
        except NotDifferentiableError:
            raise
        except AutogradError:
            pass  # refused by vmap, see the notes of jacrev; any other error comes again below
    return [stack(list(leaf)) for leaf in zip(*map(row, units), strict=True)]


def _stacked(rows: list[TensorBase] | None, o: TensorBase, chosen: TensorBase) -> TensorBase:
    """Give stacked rows the shape of output and argument."""
    items, structure = flatten(chosen)
    out = []
    for i, x in enumerate(items):
        shape = (*o.array.shape, *as_tensor(x).array.shape)
        out.append(o.new_zeros(shape) if rows is None else reshape(rows[i], shape))
    return unflatten(structure, out)


def jacfwd(
    func: Callable[P, Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, Tree]:
    """Return a function that computes the Jacobian of `func` by forward mode, one run per input.

    Parameters and result are those of `jacrev`. Prefer it for few inputs and many outputs.
    """

    @functools.wraps(func)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tree:
        chosen, put = select(args, argnums, "jacfwd")
        items, structure = flatten(chosen)
        items = [as_tensor(x, "jacfwd") for x in items]
        outs: list[TensorBase] | None = None
        out_structure: Structure = ()
        aux, columns = None, []
        for i, x in enumerate(items):
            columns.append([])
            for unit in _basis(x):
                ts = [unit if j == i else _zeros(other) for j, other in enumerate(items)]
                value, pushed, aux = jvp(
                    lambda y: split_aux(func(*put(y), **kwargs), has_aux, "jacfwd"),
                    (unflatten(structure, items),),
                    (unflatten(structure, ts),),
                    has_aux=True,
                )
                outs, out_structure = flatten(value)
                columns[-1].append(flatten(pushed)[0])
        if outs is None:  # nothing to differentiate: all arguments are empty
            value, aux = split_aux(func(*args, **kwargs), has_aux, "jacfwd")
            outs, out_structure = flatten(value)
        jacobian = []
        for k, o in enumerate(outs):
            entries = []
            for x, runs in zip(items, columns):
                shape = (*o.array.shape, *x.array.shape)
                parts = [leaves[k] for leaves in runs]
                entries.append(reshape(stack(parts, -1), shape) if parts else o.new_zeros(shape))
            jacobian.append(unflatten(structure, entries))
        jacobian = unflatten(out_structure, jacobian)
        return (jacobian, aux) if has_aux else jacobian

    return wrapped


def hessian(func: Callable[P, Tree], argnums: int | Sequence[int] = 0) -> Callable[P, Tree]:
    """Return a function that computes the second derivatives of `func`.

    Parameters
    ----------
    func : callable
        Returns a tensor, of one element as a rule.
    argnums : int or tuple of int

    Returns
    -------
    callable
        Returns a tensor of shape ``(*output.shape, *argument.shape, *argument.shape)``, in nested
        structures where the argument is a tree or there are several.

    Notes
    -----
    Reverse over reverse: `func` is evaluated once, and each row is one more backward pass.
    """
    return jacrev(jacrev(func, argnums), argnums)


explain_calls(globals())
