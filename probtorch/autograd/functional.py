"""`torch.autograd.functional`'s spellings of the transforms in `probtorch.func`.

There functions return functions; here they take the inputs at once, as one tensor or a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probtorch.autograd import forward, jacobians, tape, transforms
from probtorch.autograd.modes import enable_grad
from probtorch.core.dispatch import grad_enabled
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, AutogradError
from probtorch.ops.reduction import sum

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _call(
    func: Callable[..., Tree], inputs: TensorBase | Sequence[TensorBase]
) -> tuple[tuple[TensorBase, ...], bool]:
    """Return inputs as a tuple, and whether there was only one."""
    if isinstance(inputs, TensorBase):
        return (inputs,), True
    return tuple(inputs), False


def _finished(tree: Tree, create_graph: bool) -> Tree:
    """Return the tree of results, off the tape unless `create_graph`."""
    if create_graph or not grad_enabled():
        return tree
    items, structure = flatten(tree)
    return unflatten(structure, [transforms.untracked(x) for x in items])


def jacobian(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Tree:
    """Return the Jacobian of `func` at `inputs`.

    Parameters
    ----------
    func : callable
        From tensors to a tensor or a tuple of tensors.
    inputs : Tensor or tuple of Tensor
    create_graph : bool
        Keep the result connected to what the inputs were computed from.
    strict : bool
        Refuse a function with an output that does not depend on an input, in place of zeros.
    vectorize : bool
        Taken for PyTorch's sake: rows are always computed together.
    strategy : {"reverse-mode", "forward-mode"}
        Which way derivatives go: reverse for few outputs, forward for few inputs.

    Returns
    -------
    Tensor, or nested tuple
        Shape ``(*output.shape, *input.shape)``; for several outputs and inputs a tuple per output
        of one entry per input.

    Raises
    ------
    AutogradError
        See `strict`.
    """
    xs, one = _call(func, inputs)
    if strict:
        _check_dependence("jacobian", func, xs)
    way = jacobians.jacfwd if _forward("jacobian", strategy) else jacobians.jacrev
    found = way(func, 0 if one else tuple(range(len(xs))))(*xs)
    return _finished(found, create_graph)


def hessian(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Tree:
    """Return the second derivatives of the scalar function `func`; see `jacobian`.

    They are computed reverse over reverse, whatever `outer_jacobian_strategy` says. `strict`
    refuses gradients that do not depend on an input, too.
    """
    xs, one = _call(func, inputs)
    _forward("hessian", outer_jacobian_strategy)
    if strict:
        _check_dependence("hessian", func, xs, twice=True)
    found = jacobians.hessian(_scalar(func, "hessian"), 0 if one else tuple(range(len(xs))))(*xs)
    return _finished(found, create_graph)


def vjp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, v @ jacobian)``; `v` is structured like the value, 1 for scalars."""
    xs, one = _call(func, inputs)
    if strict:
        _check_dependence("vjp", func, xs)
    value, pull = transforms.vjp(func, *xs)
    found = pull(_ones_like(value, "vjp") if v is None else v)
    return _finished((value, found[0] if one else found), create_graph)


def jvp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, jacobian @ v)``; `v` is structured like the inputs, 1 for one element."""
    xs, one = _call(func, inputs)
    if strict:
        _check_dependence("jvp", func, xs)
    v = _ones_like(xs[0] if one else xs, "jvp") if v is None else v
    found = forward.jvp(func, xs, (v,) if one else tuple(v))
    return _finished(found, create_graph)


def hvp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, hessian @ v)`` of the scalar function `func`, forward over reverse."""
    xs, one = _call(func, inputs)
    if strict:
        _check_dependence("hvp", func, xs, twice=True)
    v = _ones_like(xs[0] if one else xs, "hvp") if v is None else v
    both = transforms.value_and_grad(_scalar(func, "hvp"), tuple(range(len(xs))))
    (value, _), (_, found) = forward.jvp(both, xs, (v,) if one else tuple(v))
    return _finished((value, found[0] if one else found), create_graph)


def vhp(
    func: Callable[..., Tree],
    inputs: TensorBase | Sequence[TensorBase],
    v: Tree = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tree, Tree]:
    """Return ``(value, v @ hessian)``, which equals `hvp` as Hessians are symmetric."""
    return hvp(func, inputs, v, create_graph, strict)


def _forward(op: str, strategy: str) -> bool:
    """Whether a strategy is forward mode."""
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ArgumentError(
            op,
            expected='a strategy "reverse-mode" or "forward-mode"',
            got=repr(strategy),
            fix="leave it out, if it does not matter",
        )
    return strategy == "forward-mode"


def _check_dependence(
    op: str, func: Callable[..., Tree], xs: tuple[TensorBase, ...], twice: bool = False
) -> None:
    """Refuse a function with results, or if `twice` with gradients, that miss an input."""
    with enable_grad():
        ys = [as_tensor(x).detach().clone().requires_grad_() for x in xs]
        results = [x for x in flatten(func(*ys))[0] if isinstance(x, TensorBase)]
        if twice:
            _refuse_constants(op, "a result", results, ys)
            results = list(tape.grad(results[0].sum(), ys, create_graph=True))
        _refuse_constants(op, "a gradient" if twice else "a result", results, ys)


def _refuse_constants(op: str, what: str, results: list[TensorBase], ys: list[TensorBase]) -> None:
    for result in results:
        found: tuple[TensorBase | None, ...] = ()
        if result.requires_grad:
            found = tape.grad(result.sum(), ys, retain_graph=True, allow_unused=True)
        for i in range(len(ys)):
            if not found or found[i] is None:
                raise AutogradError(
                    op,
                    expected="results that depend on all inputs, as strict=True says",
                    got=f"{what} that does not depend on input {i}",
                    fix="leave out strict=True: its derivatives are zeros",
                )


def _scalar(func: Callable[..., Tree], op: str) -> Callable[..., TensorBase]:
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
