"""Reverse-mode transforms: `grad`, `value_and_grad`, `vjp`.

Each runs the function on stand-ins of its arguments and pulls cotangents back to them. A stand-in
is a new leaf on the same memory or, where the argument is on somebody else's tape, a copy connected
to it: so transforms nest, and gradients flow to outer variables as well. The pass is taped
(`create_graph`) only if somebody could ask for its derivative: the result depends on a leaf that is
not a stand-in, or forward mode is on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from probtorch.autograd import tape
from probtorch.backends.registry import array_module
from probtorch.core.dispatch import grad_enabled, recorder, set_grad_enabled, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import alias
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.arithmetic import clone

__all__ = [
    "foreign",
    "grad",
    "grad_and_value",
    "pull_back",
    "release",
    "same",
    "select",
    "split_aux",
    "stand_ins",
    "untracked",
    "value_and_grad",
    "vjp",
]

First = TypeVar("First")
P = ParamSpec("P")
R = TypeVar("R")
Aux = TypeVar("Aux")


# Identities of the stand-ins of transforms that have not returned yet.
_at_work: set[int] = set()


def stand_ins(items: list[TensorBase], op: str) -> list[TensorBase]:
    """Return a differentiable stand-in for each tensor of `items`; call it with the tape on."""
    out = []
    for x in items:
        x = as_tensor(x, op)
        if x.array.dtype.kind not in "fc":
            raise DTypeError(
                op,
                expected="floating arguments to differentiate with respect to",
                got=f"a tensor of dtype {x.array.dtype}",
                fix="convert it with .float(), or choose other arguments with argnums=",
            )
        if x.requires_grad:
            out.append(clone(x))
            continue
        y = same(x)
        y.requires_grad = True
        y._extra = {**(y._extra or {}), "stand_in": True}
        _at_work.add(id(y))
        out.append(y)
    return out


def release(own: list[TensorBase]) -> None:
    """Note that the transform which made these stand-ins is over."""
    _at_work.difference_update(map(id, own))


def same(t: TensorBase) -> TensorBase:
    """Return `t` under a new name and off the tape, with its tangent if forward mode is on."""
    out = wrap(t.array)
    out._base = t if t._base is None else t._base
    out._extra = {"root": None}
    alias(t, out, taped=True)
    return out


def untracked(t: TensorBase) -> TensorBase:
    """Return `t`, or the same under a new name if it is on the tape."""
    return same(t) if t.requires_grad else t


def foreign(outputs: Sequence[TensorBase], own: Sequence[TensorBase]) -> bool:
    """Whether `outputs` depend on a leaf of the tape that is not among `own`.

    Stand-ins of transforms that are over do not count: nobody can ask for their gradient.
    """
    mine = {id(t) for t in own}
    stack = [t for t in outputs if t.requires_grad]
    seen = set()
    while stack:
        t = stack.pop()
        if t.grad_fn is None:
            over = t._extra and "stand_in" in t._extra and id(t) not in _at_work
            if id(t) not in mine and not over:
                return True
        elif t.grad_fn not in seen and id(t) not in mine:
            seen.add(t.grad_fn)
            inputs = t.grad_fn.inputs or ()
            stack += [x for x in inputs if isinstance(x, TensorBase) and x.requires_grad]
        elif id(t) in mine:
            # A connected stand-in: what it copies is somebody else's.
            return True
    return False


def select(
    args: tuple[object, ...], argnums: int | Sequence[int], op: str
) -> tuple[Tree, Callable[[Tree], list[Any]]]:
    """Return the arguments at `argnums`, and a function that puts others in their place."""
    several = not isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise ArgumentError(
                op,
                expected=f"argnums below {len(args)}, the number of positional arguments",
                got=str(n),
                fix="pass the argument by position, or change argnums",
            )
    chosen = tuple(args[n] for n in numbers)

    def put(values: Sequence[object]) -> list[Any]:
        out = list(args)
        for n, v in zip(numbers, values, strict=True):
            out[n] = v
        return out

    return (chosen if several else chosen[0]), (put if several else lambda v: put((v,)))


def pull_back(
    outputs: TensorBase | Sequence[TensorBase],
    gs: list[TensorBase],
    own: list[TensorBase],
    create_graph: bool,
    keep: bool = False,
) -> list[TensorBase]:
    """Return the cotangents of `own`, zeros where `outputs` do not depend on them.

    Parameters
    ----------
    outputs, gs : lists of Tensor
        Outputs and their cotangents.
    own : list of Tensor
        Stand-ins.
    create_graph : bool
        Whether the cotangents are to stay connected to leaves other than the stand-ins.
    keep : bool
        Whether the graph is pulled back through again.
    """
    pairs = [(o, g) for o, g in zip(outputs, gs) if o.requires_grad]
    if not pairs:
        return [_filled(x, 0) for x in own]
    active = recorder()
    taped = create_graph or (active is not None and active.pushes_tangents)
    grads = tape.grad(
        [o for o, _ in pairs],
        own,
        [g for _, g in pairs],
        create_graph=taped,
        retain_graph=taped or keep,
        materialize_grads=True,
    )
    return list(grads) if create_graph else [untracked(g) for g in grads]


@overload
def value_and_grad(
    func: Callable[Concatenate[First, P], Tree],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
) -> Callable[Concatenate[First, P], tuple[TensorBase, First]]: ...
@overload
def value_and_grad(
    func: Callable[P, Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[Tree, Tree]]: ...
def value_and_grad(
    func: Callable[..., Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Tree]:
    """Return a function that computes the value of `func` and its gradient.

    Parameters
    ----------
    func : callable
        Returns a tensor with one element; with `has_aux` a pair of it and anything else.
    argnums : int or tuple of int
        Positional arguments to differentiate: tensors, or trees of them.
    has_aux : bool

    Returns
    -------
    callable
        Returns ``(value, gradient)``, the gradient being structured like the argument (a tuple of
        them for several `argnums`); with `has_aux` ``((value, aux), gradient)``.

    Examples
    --------
    >>> import probtorch
    >>> value_and_grad(lambda x: (x * x).sum())(probtorch.tensor([1.0, 2.0]))
    (tensor(5.), tensor([2., 4.]))
    """

    @functools.wraps(func)
    def wrapped(
        *args: object, **kwargs: object
    ) -> tuple[
        TensorBase | tuple[TensorBase, dict[str, TensorBase]],
        TensorBase | dict[str, object] | tuple[TensorBase, ...],
    ]:
        chosen, put = select(args, argnums, "grad")
        items, structure = flatten(chosen)
        before, own = set_grad_enabled(True), []
        try:
            own = stand_ins(items, "grad")
            out = func(*put(unflatten(structure, own)), **kwargs)
            out, aux = split_aux(out, has_aux, "grad")
            if not isinstance(out, TensorBase) or out.array.size != 1:
                got = f"shape {out.array.shape}" if isinstance(out, TensorBase) else repr(out)
                raise ShapeError(
                    "grad",
                    expected="a function that returns a tensor with one element",
                    got=f"{got:.80}",
                    fix="sum the result, or use jacrev for the derivatives of all elements",
                )
            create_graph = before and foreign([out], own)
            seed = _filled(out, 1)
            grads = pull_back([out], [seed], own, create_graph)
            value = out if create_graph else untracked(out)
            if has_aux and not create_graph:
                aux = _map_tensors(untracked, aux)
        finally:
            set_grad_enabled(before)
            release(own)
        return ((value, aux) if has_aux else value), unflatten(structure, grads)

    return wrapped


@overload
def grad(
    func: Callable[Concatenate[First, P], Tree],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
) -> Callable[Concatenate[First, P], First]: ...
@overload
def grad(
    func: Callable[P, Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, Tree]: ...
def grad(
    func: Callable[..., Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Tree]:
    """Return a function that computes the gradient of `func`; arguments as for `value_and_grad`.

    Examples
    --------
    >>> import probtorch
    >>> grad(grad(lambda x: x**3))(probtorch.tensor(2.0))
    tensor(12.)
    """
    both = value_and_grad(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(
        *args: object, **kwargs: object
    ) -> TensorBase | dict[str, object] | tuple[TensorBase, TensorBase | dict[str, TensorBase]]:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapped


@overload
def grad_and_value(
    func: Callable[Concatenate[First, P], Tree],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
) -> Callable[Concatenate[First, P], tuple[First, TensorBase]]: ...
@overload
def grad_and_value(
    func: Callable[P, Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[Tree, Tree]]: ...
def grad_and_value(
    func: Callable[..., Tree], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Tree]:
    """Return a function that computes ``(gradient, value)``, torch.func's order."""
    both = value_and_grad(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args: object, **kwargs: object) -> tuple[TensorBase, TensorBase]:
        value, found = both(*args, **kwargs)
        return found, value

    return wrapped


@overload
def vjp(
    func: Callable[..., R], *primals: Tree, has_aux: Literal[False] = False
) -> tuple[R, Callable[[Tree], tuple[Tree, ...]]]: ...
@overload
def vjp(
    func: Callable[..., tuple[R, Aux]], *primals: Tree, has_aux: Literal[True]
) -> tuple[R, Callable[[Tree], tuple[Tree, ...]], Aux]: ...
@overload
def vjp(func: Callable[..., Tree], *primals: Tree, has_aux: bool) -> tuple[Tree, ...]: ...
def vjp(func: Callable[..., Tree], *primals: Tree, has_aux: bool = False) -> tuple[Tree, ...]:
    """Evaluate `func` and return its value and the function that pulls cotangents back.

    Parameters
    ----------
    func : callable
        From trees of tensors to a tree of tensors; with `has_aux` a pair of it and anything else.
    *primals : trees of tensors

    Returns
    -------
    value : tree of Tensor
    pull : callable
        From a cotangent, structured like the value, to a tuple of cotangents, one per primal. It
        may be called again and again.
    aux : anything
        Only with `has_aux`.
    """
    items, structure = flatten(primals)
    before, own = set_grad_enabled(True), []
    try:
        own = stand_ins(items, "vjp")
        out, aux = split_aux(func(*unflatten(structure, own)), has_aux, "vjp")
        outs, out_structure = flatten(out)
        outs = [as_tensor(o, "vjp") for o in outs]
        connected = before and foreign(outs, own)
        value = unflatten(out_structure, [o if connected else untracked(o) for o in outs])
    finally:
        set_grad_enabled(before)
        release(own)

    def pull(cotangent: TensorBase) -> tuple[TensorBase, ...]:
        """Return the cotangents of the primals."""
        gs, got = flatten(cotangent)
        if got != out_structure:
            raise ArgumentError(
                "vjp",
                expected="a cotangent structured like the value",
                got=f"{len(gs)} leaves in another structure, for {len(outs)}",
                fix="pass the same tuple, list or dict that the function returns",
            )
        gs = [as_tensor(g, "vjp") for g in gs]
        create = grad_enabled() and (connected or any(g.requires_grad for g in gs))
        inner = set_grad_enabled(True)
        try:
            return unflatten(structure, pull_back(outs, gs, own, create, keep=True))
        finally:
            set_grad_enabled(inner)

    return (value, pull, aux) if has_aux else (value, pull)


def _filled(t: TensorBase, value: int) -> TensorBase:
    """Return a constant in the form of `t`, whose own elements may be infinite."""
    return wrap(array_module(t.array).full(t.array.shape, value, t.array.dtype))


def split_aux(out: Tree, has_aux: bool, op: str) -> tuple[Tree, Tree]:
    """Return the value and the rest of what a function with `has_aux` returned."""
    if not has_aux:
        return out, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise ArgumentError(
            op,
            expected="a pair (value, aux), as has_aux=True says",
            got=type(out).__name__,
            fix="return two values, or leave has_aux out",
        )
    return out


def _map_tensors(fn: Callable[[TensorBase], TensorBase], tree: Tree) -> Tree:
    items, structure = flatten(tree)
    return unflatten(structure, [fn(x) if isinstance(x, TensorBase) else x for x in items])


explain_calls(globals())
