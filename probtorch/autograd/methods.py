"""What tensors ask of the tape: gradients, leaves, hooks.

`Tensor` has these functions as methods; tape.py goes backwards, core/history.py keeps the places.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from probtorch.autograd import tape
from probtorch.core.dispatch import mark_changed, recorder, wrap
from probtorch.core.history import expect_whole, hooks_changed, leave_tape, refresh, retain
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import alias, place_changed, read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, AutogradError, DTypeError

__all__ = [
    "backward",
    "detach",
    "detach_",
    "meant",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "retain_grad",
    "set_data",
]

# The method's own call of it fits.
_backward = inspect.unwrap(tape.backward)


def backward(
    t: TensorBase,
    gradient: TensorLike | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: TensorBase | Sequence[TensorBase] | None = None,
) -> None:
    """Accumulate the gradient of this tensor into the `.grad` of the leaves it came from."""
    _backward(t, gradient, inputs=inputs, retain_graph=retain_graph, create_graph=create_graph)


def requires_grad_(t: TensorBase, requires_grad: bool = True) -> TensorBase:
    """Ask for (or stop) the recording of operations on this leaf; returns it."""
    if requires_grad and t.array.dtype.kind not in "fc":
        raise DTypeError(
            "requires_grad_",
            expected="a floating or complex tensor",
            got=str(t.array.dtype),
            fix="convert with .float() or .double()",
        )
    if t.grad_fn is not None and not requires_grad:
        raise AutogradError(
            "requires_grad_(False)",
            expected="a leaf",
            got="the result of an operation",
            fix="use detach()",
        )
    if t.requires_grad is not bool(requires_grad):
        place_changed(t, "requires_grad_()")
    t.requires_grad = bool(requires_grad)
    return t


def detach(t: TensorBase) -> TensorBase:
    """Return the same memory without its place on the tape."""
    try:
        out = wrap(t.array)
    except AttributeError:
        raise ArgumentError(
            "detach", expected="a tensor", got=type(t).__name__, fix="wrap it in probtorch.tensor"
        ) from None
    out._base = t if t._base is None else t._base
    out._extra = {"root": None}
    if recorder() is not None:  # looked at here: users detach much
        alias(t, out, taped=False)
    return out


def detach_(t: TensorBase) -> TensorBase:
    """Take this tensor off the tape in place."""
    place_changed(t, "detach_()")
    leave_tape(t)
    t._extra = {**(t._extra or {}), "root": None}
    return t


def register_hook(t: TensorBase, hook: Callable[[TensorBase], TensorBase | None]) -> HookHandle:
    """Call ``hook(grad)`` when the gradient of this tensor is computed; a result replaces it.

    Returns
    -------
    handle
        Its ``remove()`` takes the hook off again.
    """
    if not t.requires_grad:
        raise AutogradError(
            "register_hook",
            expected="requires_grad=True",
            got="False",
            fix="requires_grad_() it first",
        )
    place_changed(t, "register_hook()")
    refresh(t)
    expect_whole(t, "register_hook()")
    if t.grad_fn is None:
        if t._extra is None:
            t._extra = {}
        entry: object = hook
        table = t._extra.setdefault("hooks", {})
    else:
        if t.grad_fn.hooks is None:
            t.grad_fn.hooks = {}
        table, entry = t.grad_fn.hooks, (t._index, hook)
    return HookHandle(table, entry)


def register_post_accumulate_grad_hook(
    t: TensorBase, hook: Callable[[TensorBase], None]
) -> HookHandle:
    """Call ``hook(t)`` each time a backward pass has added to the `.grad` of this leaf.

    An optimizer's step there, and then ``t.grad = None``, trains with one gradient in memory after
    another.

    Returns
    -------
    handle
        Its ``remove()`` takes the hook off again.
    """
    if not t.requires_grad or t.grad_fn is not None:
        raise AutogradError(
            "register_post_accumulate_grad_hook",
            expected="a leaf that requires grad",
            got="the result of an operation" if t.requires_grad else "requires_grad=False",
            fix="use register_hook for results" if t.requires_grad else "requires_grad_() it first",
        )
    place_changed(t, "register_post_accumulate_grad_hook()")
    if t._extra is None:
        t._extra = {}
    return HookHandle(t._extra.setdefault("after_grad", {}), hook)


def retain_grad(t: TensorBase) -> None:
    """Fill `.grad` of this non-leaf tensor too."""
    if not t.requires_grad:
        raise AutogradError(
            "retain_grad",
            expected="requires_grad=True",
            got="False",
            fix="compute it from a tensor that requires grad",
        )
    own = meant(t)
    if own is not t:
        place_changed(t, "retain_grad() of an argument")
        if not own.requires_grad:  # a mere kind of argument, while a gradient is pulled through
            return
        t = own
    refresh(t)
    expect_whole(t, "retain_grad()")
    if t.grad_fn is not None:
        if t._extra is None:
            t._extra = {}
        retain(t)


class HookHandle:
    """Removes a hook again."""

    def __init__(self, table: dict[int, object], hook: object) -> None:
        self._table, self._key = table, max(table.keys() | {-1}) + 1
        table[self._key] = hook
        hooks_changed(1)

    def remove(self) -> None:
        """Take the hook off."""
        self._table.pop(self._key, None)
        hooks_changed(1)


def meant(t: TensorBase) -> TensorBase:
    """Return the tensor that `t` stands for while a function is watched: mostly `t` itself."""
    extra = t._extra
    return extra["stands_for"] if extra is not None and "stands_for" in extra else t


def set_data(t: TensorBase, value: TensorLike) -> None:
    """Give a tensor other memory, ``x.data = value``, whatever its place on the tape."""
    value = as_tensor(value)
    if value.array is t.array:
        return  # ``x.data -= step`` writes in place, and puts back what it wrote to
    read("an assignment to .data")
    t.array = value.array
    t._base = None if value is t else value if value._base is None else value._base
    # Its gradient is its own, whoever owns the memory.
    t._extra = {**(t._extra or {}), "root": None}
    mark_changed(t)
