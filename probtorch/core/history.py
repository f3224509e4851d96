"""Places on the tape: those that tensors had, those that views have since their root changed.

A tensor's place is `(grad_fn, index, requires_grad)`. A change in place gives it another from that
tick of the clock on and notes the one before in its history, so a node finds its inputs where they
were when it was made (`edge`). Views are not told of changes of their root: who asks where one is
gets a node that reads it from the root (`place_at`). Hooks belong to places, a retained gradient
to the tensor. Read `assign` in in_place.py next.
"""

from __future__ import annotations

import math
import operator
import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

from probtorch.core.dispatch import TapeNode, know_view, tick
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError

__all__ = [
    "ViewOps",
    "change_root",
    "edge",
    "expect_whole",
    "hooked",
    "hooks_changed",
    "leave_tape",
    "place_at",
    "refresh",
    "retain",
    "root_of",
    "take_over",
]

_HOOKS = 0  # how often hooks of leaves changed
_FIRST = operator.itemgetter(0)


# The node that made a tensor, which of its outputs it is, and whether a gradient is wanted.
Place: TypeAlias = tuple[TapeNode | None, int, bool]


class ViewOps(NamedTuple):
    """What the tape needs of views that change: ``write(view, root, value, op)`` carries a change
    out, ``read(view, root)`` makes the node that reads a view from its root.
    """

    write: Callable[[TensorBase, TensorBase, TensorBase, str], TensorBase]
    read: Callable[[TensorBase, TensorBase], TapeNode]


_views = cast("ViewOps", None)  # ops/view_places.py fills the door


def root_of(t: TensorBase) -> TensorBase | None:
    """Return the tensor of whose elements `t` is a view on the tape, None if it is no view.

    Mostly that is the owner of the memory. Detached tensors share memory with their source, but
    take no part in its gradients: they and their views have the detached tensor as their root.
    """
    extra = t._extra
    if extra is not None and "root" in extra:
        return extra["root"]
    return t._base


def place_at(t: TensorBase, epoch: float) -> Place:
    """Return the `(grad_fn, index, requires_grad)` of `t` at tick `epoch`.

    A view that was taken before its root changed on the tape has other elements since: then its
    place is a reading of the root as it was at that tick. So no view is ever out of date, and
    nothing needs to be done about views when their root changes.
    """
    extra = t._extra
    found = t.grad_fn, t._index, t.requires_grad
    if extra is None and t._base is None:
        return found
    since = t._version
    history = extra.get("history") if extra else None
    if history:
        i = bisect_right(history, epoch, key=_FIRST)
        if i < len(history):
            found, since = history[i][1:4], history[i][4]
    root = root_of(t)
    if root is None or not found[2] or not root._extra:
        return found
    changes = root._extra.get("history")
    if not changes:
        return found
    i = bisect_right(changes, epoch, key=_FIRST)
    if i == 0 or changes[i - 1][0] <= since:
        return found
    wanted = changes[i][3] if i < len(changes) else root.requires_grad
    if not wanted:
        return None, 0, False
    if "custom" in extra if extra else False:
        raise AutogradError(
            "a view that a custom Function returned was used after its base was modified in place",
            expected="a view taken after the in-place operation",
            got=f"a view of shape {t.array.shape} taken before it",
            fix="clone() what the Function returns",
        )
    return _read_at(t, root, changes[i - 1][0]), 0, True


def _read_at(view: TensorBase, root: TensorBase, changed: float) -> TapeNode:
    """Return the node that reads `view` from `root` as it was after tick `changed`."""
    if view._extra is None:
        view._extra = {}
    known = view._extra.setdefault("read", {})
    node = known.get(changed)
    if node is None:
        node = known[changed] = _views.read(view, root)
        # After the change, and before whatever came next.
        node.tick, node.epoch = node.epoch, changed + 0.5
        if "retained" in view._extra:
            refresh(view)
    return node


def refresh(t: TensorBase) -> None:
    """Give a view whose root changed on the tape its place of today."""
    if t._extra is None and t._base is None:
        return
    node, index, wanted = place_at(t, math.inf)
    if (node, index, wanted) != (t.grad_fn, t._index, t.requires_grad):
        root: Any = root_of(t)
        _move(t, node, index, wanted, root._extra["history"][-1][0])


def expect_whole(t: TensorBase, op: str) -> None:
    """Refuse where the tape knows a part of the gradient of `t` alone: of a result of a compiled
    function of which another result is made (compiler/calls/ties.py), and which cannot be run
    again for the rest.
    """
    node = t.grad_fn
    if t._extra is not None and "asked" in t._extra:
        t._extra.pop("asked")()
    if node is not None and t._index in node.attrs.get("inner", ()):
        if node.attrs["inner"][t._index]():  # it knows all of it by now
            return
        raise AutogradError(
            f"{op} of a result of a compiled function, of which another result of that call, or "
            "a gradient with create_graph=True, is made",
            expected="a tensor whose place on the tape is between what it is made of and what is "
            "made of it",
            got=f"result {t._index}, of shape {t.array.shape}",
            fix="call the function again, which is eager from now on; or take the gradient in it, "
            "or compute outside what is made of this result",
        )


def edge(t: TensorBase, node: TapeNode) -> Place:
    """Return the `(grad_fn, index, requires_grad)` that `t` had when `node` was made."""
    return place_at(t, node.epoch)


def take_over(target: TensorBase, value: TensorBase, changed: int) -> None:
    """Put `target`, changed at tick `changed`, in the place of `value` on the tape."""
    node = value.grad_fn
    _move(target, node, value._index, value.requires_grad, changed)
    if node is not None and type(node.out) is weakref.ref and node.out() is value:
        node.out = weakref.ref(target)
        node.saved = target.array
        node.tick = changed


def leave_tape(t: TensorBase) -> None:
    """Take `t` off the tape; what was computed from it before keeps its gradient."""
    _move(t, None, 0, False, tick())


def _move(t: TensorBase, node: TapeNode | None, index: int, wanted: bool, changed: int) -> None:
    """Give `t` another place on the tape from tick `changed` on, and note the one before."""
    if t._extra is None:
        t._extra = {}
    extra, learned = t._extra, wanted and not t.requires_grad
    root = root_of(t)
    since = 0 if root is None else t._version
    extra.setdefault("history", []).append((changed, t.grad_fn, t._index, t.requires_grad, since))
    t.requires_grad, t.grad_fn, t._index = wanted, node, index
    if root is not None:
        t._version = changed
        if not wanted and not root.requires_grad:
            know_view(root, t)
    if "retained" in extra:
        retain(t)
    if learned and "views" in extra:
        for ref in extra.pop("views"):
            view = ref()
            if view is not None and not view.requires_grad and root_of(view) is t:
                _move(view, _read_at(view, t, changed), 0, True, changed)


def retain(t: TensorBase) -> None:
    """Let `t` as it is now keep its gradient: what is left of it after all hooks."""
    key = -2 - id(t)  # hooks have the keys from 0 on
    extra: Any = t._extra
    before = extra.get("retained")
    if before is not None and before.hooks is not None:
        before.hooks.pop(key, None)
    extra["retained"] = node = t.grad_fn
    if node is not None:
        if node.hooks is None:
            node.hooks = {}
        node.hooks[key] = t._index, weakref.ref(t)


def hooked(t: TensorBase) -> bool:
    """Whether a leaf has gradient hooks."""
    return t._extra is not None and any(map(t._extra.get, ("hooks", "after_grad")))


def hooks_changed(by: int = 0) -> int:
    """Return how often a gradient hook of a leaf was put on or taken off, after `by` more."""
    global _HOOKS
    _HOOKS += by
    return _HOOKS


def change_root(target: TensorBase, root: TensorBase, value: TensorBase, op: str) -> TensorBase:
    """Write `value` into the view `target` on the tape, as a change of its `root`; `target`."""
    return _views.write(target, root, value, op)
