"""`assign`: a result written into the memory of a tensor, which takes over its place on the tape.

All in-place operations come here. The value they write is computed as if out of place, by ops that
know their gradients; what remains is to keep the old elements where a gradient reads them, and to
give the tensor the place of the value. Read history.py first.
"""

from __future__ import annotations

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import CAST, cast
from probtorch.core.dispatch import TapeNode, grad_enabled, mark_changed, recorder, unheard, wrap
from probtorch.core.history import change_root, refresh, root_of, take_over
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import alias
from probtorch.errors import ArgumentError, AutogradError, DTypeError, ShapeError

__all__ = ["assign", "is_plain"]

_ndarray = np.ndarray


def assign(target: TensorBase, value: TensorBase, op: str = "copy_") -> TensorBase:
    """Write `value` into the memory of `target`, which takes over its place on the tape.

    `value` must be the fresh result of an operation, known to nobody else. Where `target` is a view
    of a tensor, that tensor takes part in the change, and with it all other views: see `place_at`.

    Returns
    -------
    Tensor
        `target`.

    Raises
    ------
    AutogradError
        If `target` is a leaf that requires grad or a view of one, or a view that was made off the
        tape of a tensor that is on it.
    ShapeError, DTypeError, ArgumentError
        If `value` does not fit into `target`, or its memory is read-only.
    """
    data, new = target.array, value.array
    if (
        new.shape == data.shape
        and new.dtype is data.dtype
        and type(new) is _ndarray
        and not value.requires_grad
        and is_plain(target)
    ):
        data[...] = new
        mark_changed(target)
        return target
    if new.shape != data.shape:
        raise ShapeError(
            op,
            expected=f"a result of shape {data.shape}, that of the tensor written to",
            got=str(new.shape),
            fix="use the out-of-place form, whose result may have another shape",
        )
    if new.dtype is not data.dtype:
        if dtypes.category(new.dtype) > dtypes.category(data.dtype):
            raise DTypeError(
                op,
                expected=f"a result of dtype {data.dtype}",
                got=str(new.dtype),
                fix="cast the tensor first",
            )
        value = cast(value, data.dtype)
    if not data.flags.writeable:
        raise ArgumentError(
            op, expected="writable memory", got="a read-only array", fix="clone() the tensor first"
        )
    root = root_of(target)
    taped = (
        target.requires_grad or value.requires_grad or (root is not None and root.requires_grad)
    ) and grad_enabled()
    if taped:
        _check_in_place(target, root, op)
        if root is not None:
            refresh(target)
        _keep_old_value(target, value)
        if root is not None:
            return change_root(target, root, value, op)
    active = recorder()
    if active is not None:
        active.in_place(target, value)
    data[...] = value.array
    changed = mark_changed(target)
    if taped:
        take_over(target, value, changed)
    return target


def is_plain(target: TensorBase) -> bool:
    """Whether the memory of `target` may simply be written to: there is nothing to record, to put
    on the tape or to refuse. Who writes calls `mark_changed`.
    """
    array = target.array
    if type(array) is not _ndarray or not array.flags.writeable or not unheard():
        return False
    wanted = target.requires_grad
    if not wanted and (target._base is not None or target._extra is not None):
        root = root_of(target)
        wanted = root is not None and root.requires_grad
    return not (wanted and grad_enabled())


def _check_in_place(target: TensorBase, root: TensorBase | None, op: str) -> None:
    """Refuse the in-place changes that the tape cannot express."""
    base = target if root is None else root
    if base.requires_grad and base.grad_fn is None:
        what = "a leaf" if base is target else "a view of a leaf"
        raise AutogradError(
            f"{op}: in-place change of {what} that requires grad",
            expected="a tensor that is the result of an operation",
            got=f"{what} of shape {base.array.shape} with requires_grad=True",
            fix="wrap the change in probtorch.no_grad(), or use the out-of-place form",
        )
    if base is not target and (
        (base.requires_grad and not target.requires_grad)
        or (target._extra is not None and "custom" in target._extra)
    ):
        raise AutogradError(
            f"{op}: in-place change, on the tape, of a view that was made off it",
            expected="a view taken where operations are recorded",
            got=f"a view of shape {target.array.shape} of a tensor on the tape, taken under "
            "no_grad() or in the forward of a custom Function",
            fix="take the view again, or detach() it if no gradient is meant to follow",
        )


def _keep_old_value(target: TensorBase, value: TensorBase) -> None:
    """Put the old `target` among the inputs of the node of `value`, with its elements if read."""
    node = value.grad_fn
    while node is not None and node.op is CAST:
        node = node.inputs[0].grad_fn
    if node is None or not any(x is target for x in node.inputs):
        return
    old = wrap(target.array.copy() if _reads(node, target) else target.array)
    old.requires_grad, old.grad_fn = target.requires_grad, target.grad_fn
    old._index = target._index
    alias(target, old, taped=True)
    node.inputs = tuple(old if x is target else x for x in node.inputs)


def _reads(node: TapeNode, t: TensorBase) -> bool:
    """Whether a wanted gradient of `node` depends on the elements of its input `t`."""
    inputs = node.inputs
    if node.op.rules:
        return any(
            inputs[j] is t
            for i, _, read, _ in node.op.rules
            if isinstance(inputs[i], TensorBase) and inputs[i].requires_grad
            for j in read
        )
    return any(inputs[i] is t for i in node.op.saved_inputs(len(inputs)))
