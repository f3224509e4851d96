"""Control flow as ops: `while_loop` and `cond`.

Run eagerly they are Python's own loop and branch, so models can be stepped through in a debugger
and differentiate by the tape. Under a recorder they become one node each, with the recorded bodies
as subgraphs, which the compiler renders as native loops and branches; where a gradient flows
through the carried values they are instead unrolled, each test a guard. Under `vmap`, where tests
differ between slices, both branches are evaluated, and a loop goes on until all slices are done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import numpy as np

from probtorch.core.dispatch import grad_enabled, recorder
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone, where
from probtorch.ops.comparisons import logical_not
from probtorch.ops.movement import reshape

if TYPE_CHECKING:
    from probtorch.core.interpreter import Interpreter

__all__ = ["cond", "while_loop"]


State = TypeVar("State")
Result = TypeVar("Result")
Operands = TypeVarTuple("Operands")


def while_loop(
    cond_fn: Callable[[State], TensorBase], body_fn: Callable[[State], State], init: State
) -> State:
    """Repeat ``state = body_fn(state)`` while ``cond_fn(state)`` is true.

    Parameters
    ----------
    cond_fn : callable
        From the state to a boolean tensor with one element.
    body_fn : callable
        From the state to the next state: same structure, shapes and dtypes.
    init : tree of tensors and numbers
        Initial state.

    Returns
    -------
    tree of Tensor
        The first state for which `cond_fn` is false.

    Notes
    -----
    Both functions must be pure: when recorded they are called once, not once per iteration. They
    may change their own state in place; the initial state is copied.
    """
    items, structure = flatten(init)
    items = [as_tensor(x, "while_loop") for x in items]
    active = recorder()
    if active is not None and active.records_loops and not _differentiated(items):
        whole = active.while_loop(cond_fn, body_fn, items, structure)
        if whole is not NotImplemented:
            return whole
    items = [clone(x) for x in items]
    state = unflatten(structure, items)
    while True:
        going = cond_fn(state)
        batch = _batch_of(going)
        if not (bool(going) if batch is None else batch.holds_somewhere(going)):
            return state
        before = items
        given = state
        if batch is not None:
            # Slices that are done take the state of one that is not: theirs may be where the body
            # cannot be evaluated, such as past the end of a series.
            others = [batch.of_one_where(going, x) for x in items]
            given = unflatten(structure, _chosen(going, items, others))
        items, after = flatten(body_fn(given))
        items = [as_tensor(x, "while_loop") for x in items]
        arrays = [x.array for x in before], [x.array for x in items]
        check_same_state("while_loop", *arrays, structure == after)
        if batch is not None:
            items = _chosen(going, items, before)
        state = unflatten(structure, items)


def cond(
    pred: TensorBase | bool,
    true_fn: Callable[[*Operands], Result],
    false_fn: Callable[[*Operands], Result],
    *given: *Operands,
    operands: Sequence[object] | None = None,
) -> Result:
    """Return ``true_fn(*operands)`` if `pred` is true, else ``false_fn(*operands)``.

    Parameters
    ----------
    pred : Tensor with one element, or bool
    true_fn, false_fn : callable
        Pure functions that return trees of one structure, with equal shapes and dtypes. They may
        change the operands in place, which are copies.
    *given : trees of tensors and numbers
        The operands, one by one: ``cond(pred, f, g, x, y)``.
    operands : sequence of them, optional
        PyTorch's spelling, ``cond(pred, f, g, operands=(x, y))``. The name may be left out where
        `true_fn` tells that it takes what is in the sequence, and not the sequence itself.

    Returns
    -------
    tree of Tensor

    Raises
    ------
    ArgumentError
        If a sequence could be the one operand as well as the sequence of operands.
    """
    items, structure = flatten(_operands(true_fn, given, operands))
    items = [as_tensor(x, "cond") for x in items]
    active = recorder()
    if active is not None and active.records_loops:
        if isinstance(pred, TensorBase) and not _differentiated(items):
            whole = active.cond(pred, true_fn, false_fn, items, structure)
            if whole is not NotImplemented:
                return whole
    batch = _batch_of(pred)
    if batch is not None:
        return _both(batch, reshape(pred, ()), true_fn, false_fn, items, structure)
    branch = true_fn if bool(pred) else false_fn
    return branch(*unflatten(structure, [clone(x) for x in items]))


def _operands(
    fn: Callable[..., object], given: tuple[object, ...], named: Sequence[object] | None
) -> tuple[object, ...]:
    """The operands of `cond`, given one by one or as PyTorch has them."""
    if named is not None:
        if given or type(named) not in (tuple, list):
            got = f"{len(given)} operands and operands=" if given else type(named).__name__
            raise ArgumentError(
                "cond",
                expected="operands one by one, or operands= a tuple of them",
                got=got,
                fix="write cond(pred, true_fn, false_fn, operands=(x, y))",
            )
        return tuple(named)
    if len(given) != 1 or type(given[0]) not in (tuple, list):
        return given
    (sequence,) = given
    assert isinstance(sequence, (tuple, list))
    whole, taken_apart = _takes(fn, 1), _takes(fn, len(sequence))
    if whole and taken_apart:
        raise ArgumentError(
            "cond",
            expected="operands that can be told from a single one that is a sequence",
            got=f"a {type(sequence).__name__} of {len(sequence)}, and a true_fn that takes either",
            fix="write operands=(x,) if true_fn takes x, operands=((x,),) if it takes (x,)",
        )
    return tuple(sequence) if taken_apart else given


def _takes(fn: Callable[..., object], count: int) -> bool:
    """Whether a function can be called with so many arguments, as far as it says."""
    try:
        inspect.signature(fn).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say
        return count == 1
    return True


def _batch_of(test: object) -> Interpreter | None:
    """Who listens, where a test differs between the slices of a `vmap`; else None."""
    active = recorder()
    if active is None or not isinstance(test, TensorBase) or not active.batched(test):
        return None
    return active


def _both(
    batch: Interpreter,
    pred: TensorBase,
    true_fn: Callable[..., Result],
    false_fn: Callable[..., Result],
    items: list[TensorBase],
    structure: Structure,
) -> Result:
    """Evaluate the branches that any slice takes, and choose slice by slice.

    Slices that do not take a branch are given the operands of one that does: theirs may be where
    it has no value, and a nan would reach their gradient.
    """
    sides = []
    for test, fn in ((pred, true_fn), (logical_not(pred), false_fn)):
        if batch.holds_somewhere(test):
            given = _chosen(test, items, [batch.of_one_where(test, x) for x in items])
            out, found = flatten(fn(*unflatten(structure, given)))
            sides.append(([as_tensor(x, "cond") for x in out], found))
    (yes, one), (no, other) = sides[0], sides[-1]
    check_same_state("cond", [x.array for x in yes], [x.array for x in no], one == other)
    return unflatten(one, yes if len(sides) == 1 else _chosen(pred, yes, no))


def _chosen(test: TensorBase, yes: list[TensorBase], no: list[TensorBase]) -> list[TensorBase]:
    """Return the leaves of `yes` where the test holds, else those of `no`."""
    test = reshape(test, ())
    return [where(test, a, b) for a, b in zip(yes, no, strict=True)]


def _differentiated(items: list[TensorBase]) -> bool:
    return grad_enabled() and any(isinstance(x, TensorBase) and x.requires_grad for x in items)


def check_same_state(
    op: str, before: list[np.ndarray], after: list[np.ndarray], same_structure: bool = True
) -> None:
    """Raise ShapeError unless two lists of arrays (or graph values) agree in number, shapes and
    dtypes.
    """
    if not same_structure or len(before) != len(after):
        raise ShapeError(
            op,
            expected="results of one structure",
            got=f"{len(before)} and {len(after)} leaves, or different containers",
            fix="return the same tuple, dict or record from every branch and iteration",
        )
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
            raise ShapeError(
                op,
                expected=f"leaf {i} of shape {tuple(a.shape)} and dtype {a.dtype} throughout",
                got=f"shape {tuple(b.shape)} and dtype {b.dtype}",
                fix="expand or cast the leaf so that it keeps its shape and dtype",
            )
