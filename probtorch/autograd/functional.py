"""`torch.autograd.functional`'s spellings of the transforms in `probtorch.func`.

There functions return functions; here they take the inputs at once, as one tensor or a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probtorch.autograd import forward, jacobians, transforms
from probtorch.core.dispatch import grad_enabled
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.ops.reduction import sum

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _call(func, inputs):
    """Return inputs as a tuple, and whether there was only one."""
    one = isinstance(inputs, TensorBase)
    return ((inputs,) if one else tuple(inputs)), one


def _finished(tree, create_graph):
    """Return the tree of results, off the tape unless `create_graph`."""
    if create_graph or not grad_enabled():
        return tree
    items, structure = flatten(tree)
    return unflatten(structure, [transforms.untracked(x) for x in items])


def jacobian(
    func: Callable[..., Tree], inputs: TensorBase | Sequence[TensorBase], create_graph: bool = False
) -> Tree:
    """Return the Jacobian of `func` at `inputs`.

    Parameters
    ----------
    func : callable
        From tensors to a tensor or a tuple of tensors.
    inputs : Tensor or tuple of Tensor
    create_graph : bool
        Keep the result connected to what the inputs were computed from.

    Returns
    -------
    Tensor, or nested tuple
        Shape ``(*output.shape, *input.shape)``; for several outputs and inputs a tuple per output
        of one entry per input.
    """
    xs, one = _call(func, inputs)
    found = jacobians.jacrev(func, 0 if one else tuple(range(len(xs))))(*xs)
    return _finished(found, create_graph)


def hessian(
    func: Callable[..., Tree], inputs: TensorBase | Sequence[TensorBase], create_graph: bool = False
) -> Tree:
    """Return the second derivatives of the scalar function `func`; see `jacobian`."""
    xs, one = _call(func, inputs)
    found = jacobians.hessian(_scalar(func, "hessian"), 0 if one else tuple(range(len(xs))))(*xs)
    return _finished(found, create_graph)


def vjp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, v @ jacobian)``; `v` is structured like the value, 1 for scalars."""
    xs, one = _call(func, inputs)
    value, pull = transforms.vjp(func, *xs)
    found = pull(_ones_like(value, "vjp") if v is None else v)
    return _finished((value, found[0] if one else found), create_graph)


def jvp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, jacobian @ v)``; `v` is structured like the inputs, 1 for one element."""
    xs, one = _call(func, inputs)
    v = _ones_like(xs[0] if one else xs, "jvp") if v is None else v
    found = forward.jvp(func, xs, (v,) if one else tuple(v))
    return _finished(found, create_graph)


def hvp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, hessian @ v)`` of the scalar function `func`, forward over reverse."""
    xs, one = _call(func, inputs)
    v = _ones_like(xs[0] if one else xs, "hvp") if v is None else v
    both = transforms.value_and_grad(_scalar(func, "hvp"), tuple(range(len(xs))))
    (value, _), (_, found) = forward.jvp(both, xs, (v,) if one else tuple(v))
    return _finished((value, found[0] if one else found), create_graph)


def vhp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, v @ hessian)``, which equals `hvp` as Hessians are symmetric."""
    return hvp(func, inputs, v, create_graph)


def _scalar(func, op: str):
    def checked(*xs: TensorBase) -> TensorBase:
        out = func(*xs)
        if out.numel() != 1:
            raise ArgumentError(
                op,
                expected="a function that returns one element",
                got=f"shape {tuple(out.shape)}",
                fix="sum the result, or use jacobian of its gradient",
            )
        return sum(out)

    return checked


def _ones_like(tree: Tree, op: str) -> TensorBase:
    """Return 1 for a tensor with one element; anything else needs a vector from the caller."""
    if isinstance(tree, TensorBase) and tree.array.size == 1:
        return as_tensor(tree.array * 0 + 1)
    raise ArgumentError(
        op,
        expected="v, unless there is only one element",
        got="no v",
        fix="pass a vector structured like the inputs (jvp, hvp) or the value (vjp)",
    )
