"""What a node keeps of its outputs for its gradient, and whether memory has changed since.

A node holds its output weakly and the output's array strongly: no reference cycle, and a gradient
that reads the output finds it alive or rebuilds it. A tensor whose memory changed at a later tick
than the node's is stale for it; of changes of an output that is gone the node itself knows.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from probtorch.core.dispatch import TapeNode, recent_changes, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError

__all__ = ["changed_since", "restore", "saved_output", "stale"]


def changed_since(t: TensorBase, epoch: float) -> bool:
    """Whether the memory of `t` changed in place after tick `epoch`."""
    return (t if t._base is None else t._base)._version > epoch


def saved_output(node: TapeNode) -> Any:
    """Return the output tensor(s) of `node`, alive or rebuilt from the saved array.

    Raises
    ------
    AutogradError
        If the output's memory was changed in place after the node was made.
    """
    out: Any = node.out
    saved: Any = node.saved
    if type(out) is tuple:
        return tuple(
            restore(node, ref, data, i)
            for i, (ref, data) in enumerate(zip(out, saved, strict=True))
        )
    return restore(node, out, saved, 0)


def restore(
    node: TapeNode, ref: weakref.ref[TensorBase], data: np.ndarray, index: int
) -> TensorBase:
    """Return output `index` of `node`: what `ref` refers to, else a new tensor on `data`."""
    out = ref()
    if out is not None:
        if changed_since(out, node.epoch) and changed_since(out, getattr(node, "tick", 0)):
            raise stale(node, "its output", out)
        return out
    out = wrap(data)
    changed = getattr(node, "changed", {}).get(index, 0)
    # What hooks packed is apart from the output, whatever became of that.
    if changed > max(node.epoch, getattr(node, "tick", 0)) and not getattr(data, "apart", False):
        out._version = int(changed)
        raise stale(node, "its output", out)
    out.requires_grad = data.dtype.kind in "fc"
    out.grad_fn = node
    out._index = index
    return out


def stale(node: TapeNode, what: str, t: TensorBase) -> AutogradError:
    """Error for a tensor `t` that the vjp of `node` needs and that was changed in place."""
    tick = (t if t._base is None else t._base)._version
    place = next((place for at, place in recent_changes() if at == tick), None)
    at = f" at {place[0]}:{place[1]}" if place else " (a trailing underscore, or x[...] = ...)"
    made = getattr(node, "where", None)
    return AutogradError(
        f"{node.op.name}: a tensor needed for its gradient was modified in place",
        expected=f"{what} unchanged since the forward pass" + (f" at {made}" if made else ""),
        got=f"an in-place operation{at} after it, on shape {t.array.shape}",
        fix="use the out-of-place form, or clone() the tensor before changing it",
    )
