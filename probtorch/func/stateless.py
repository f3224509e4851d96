"""Modules as functions of their parameters: `functional_call`, `stack_module_state`.

Modules are known here by what they have (tables of parameters and buffers), as their room lies
above this one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.nn.module import Module

__all__ = ["functional_call", "stack_module_state"]


def _places(module: Module) -> dict[str, tuple[dict[str, Tensor | None], str]]:
    """Return the table and the key of each parameter and buffer, by dotted name."""
    found = {}
    for start, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            for key in table:
                found[f"{start}.{key}" if start else key] = table, key
    return found


@contextlib.contextmanager
def _replaced(
    module: Module, values: Mapping[str, Tensor], tie_weights: bool, strict: bool
) -> Iterator[None]:
    """Put tensors in the place of parameters and buffers for a while."""
    places = _places(module)
    tied: dict[object, list[str]] = {}  # the names of each tensor
    for name, (table, key) in places.items():
        known = tie_weights and table[key] is not None
        tied.setdefault(id(table[key]) if known else name, []).append(name)
    unknown = [name for name in values if name not in places]
    chosen, absent = [], []
    for names in tied.values():
        given = [values[name] for name in names if name in values]
        if any(t is not given[0] for t in given):
            raise ArgumentError(
                "functional_call",
                expected=f"one tensor for {', '.join(names)}, which are one parameter",
                got="several",
                fix="pass the same for all of these names, or tie_weights=False",
            )
        chosen += [(*places[name], given[0]) for name in names if given]
        absent += [n for n in names if not given and places[n][0][places[n][1]] is not None]
    if unknown or (strict and absent):
        raise ArgumentError(
            "functional_call",
            expected=f"names of parameters and buffers of {type(module).__name__}"
            + (", all of them" if strict else ""),
            got=", ".join(map(repr, unknown)) if unknown else f"none for {', '.join(absent)}",
            fix="use the names of named_parameters() and named_buffers()",
        )
    before = [(table, key, table[key]) for table, key, _ in chosen]
    try:
        for table, key, value in chosen:
            table[key] = value
        yield
    finally:
        for table, key, old in before:
            table[key] = old


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Tensor | tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Tree:
    """Call a module with other tensors in the place of its parameters and buffers.

    Parameters
    ----------
    module : Module
    parameter_and_buffer_dicts : dict or sequence of dict
        From dotted names to tensors; gradients flow to them. What is not named stays.
    args : tuple, or one tensor, optional
    kwargs : dict, optional
    tie_weights : bool
        What is one parameter by several names takes the tensor of the one that is given.
    strict : bool
        All parameters and buffers have to be given.

    Returns
    -------
    What the module returns.

    Raises
    ------
    ArgumentError
        If a name is unknown, or with `strict` one is missing.

    Examples
    --------
    The gradient of each row's loss:

    >>> import probtorch
    >>> from probtorch.func import functional_call, grad, vmap
    >>> net = probtorch.nn.Linear(2, 1, bias=False)
    >>> def loss(weights, x):
    ...     return functional_call(net, weights, x).sum()
    >>> rows = probtorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> vmap(grad(loss), in_dims=(None, 0))(dict(net.named_parameters()), rows)["weight"]
    tensor([[[1., 2.]],
            [[3., 4.]]])
    """
    given = parameter_and_buffer_dicts
    if hasattr(given, "items"):
        values = dict(cast(Mapping[str, Tensor], given))
    else:
        names = [name for part in given for name in part]
        if len(set(names)) < len(names):
            raise ArgumentError(
                "functional_call",
                expected="each name in one dict only",
                got=f"{next(n for n in names if names.count(n) > 1)!r} more than once",
                fix="take it out of one of them",
            )
        values = {name: t for part in given for name, t in part.items()}
    if args is None:
        args = ()
    args = args if isinstance(args, tuple) else (args,)
    with _replaced(module, values, tie_weights, strict):
        return module(*args, **(kwargs or {}))


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, TensorBase], dict[str, TensorBase]]:
    """Return parameters and buffers of modules of one form, each with all of them in its first dim.

    Parameters
    ----------
    models : sequence of Module
        Of one class, all in training or all in evaluation mode.

    Returns
    -------
    params, buffers : dict
        By name; new leaves, which require a gradient where the modules' own do.

    Raises
    ------
    ArgumentError
        If there are none, or they differ in class or mode.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.func import functional_call, stack_module_state, vmap
    >>> nets = [probtorch.nn.Linear(2, 1) for _ in range(3)]
    >>> params, buffers = stack_module_state(nets)
    >>> x = probtorch.ones(5, 2)
    >>> vmap(lambda p: functional_call(nets[0], p, x))(params).shape
    Size([3, 5, 1])
    """
    kinds = {(type(model), model.training) for model in models}
    if len(kinds) != 1:
        raise ArgumentError(
            "stack_module_state",
            expected="modules of one class, all in the same mode",
            got=", ".join(sorted(f"{c.__name__} ({'train' if t else 'eval'})" for c, t in kinds))
            or "none",
            fix="call train() or eval() on all of them",
        )
    tables = []
    for named in ("named_parameters", "named_buffers"):
        rows = [dict(getattr(model, named)()) for model in models]
        table = {}
        for name, first in rows[0].items():
            table[name] = stack([row[name] for row in rows]).detach()
            table[name].requires_grad = first.requires_grad
        tables.append(table)
    return tables[0], tables[1]


explain_calls(globals())
