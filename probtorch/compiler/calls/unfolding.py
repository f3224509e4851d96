"""`unfold`: what a function does on the tape, in the place of the one entry that a call of it is.

Whoever asks for a gradient between two results of a call asks for what that entry does not know.
Where the function may be run again, it is: its operations come between what went into the call and
what was made of its results, at the tick of the call. A gradient that was taken through the call on
the tape (`create_graph`) is made of what went in, and stays so: from then on nobody can ask for a
gradient in one of the results (`leave_whole`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.compiler.calls.varying import as_they_were, others_by_now
from probtorch.compiler.calls.verified_call import others_at_work
from probtorch.core import dispatch
from probtorch.core.history import edge
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError

if TYPE_CHECKING:
    from probtorch.autograd.function import FunctionCtx
    from probtorch.compiler.calls.differentiable import Differentiable
    from probtorch.core.dispatch import TapeNode

__all__ = ["alike", "leave_whole", "unfold"]

# What a tensor has that had another place on the tape, or of which somebody waits for a gradient.
_TOLD = {"history", "retained", "hooks", "asked"}


def unfold(version: Differentiable, results: Sequence[weakref.ref[TensorBase]]) -> bool:
    """Put the operations of a call in its place on the tape; returns whether that was possible.

    Parameters
    ----------
    version : Differentiable
    results : sequence of weak reference to Tensor
        Of the call, in their order.

    Raises
    ------
    AutogradError
        If a tensor that went into it was changed since.
    """
    there = [(i, t) for i, r in enumerate(results) if (t := r()) is not None and t.requires_grad]
    call = there[0][1].grad_fn
    # Some have another place by now, somebody waits for a gradient of one, or it was freed.
    if any(t.grad_fn is not call or _TOLD & (t._extra or {}).keys() for _, t in there):
        return False
    if call is None or call.hooks or not call.inputs:
        return False
    ctx = cast("FunctionCtx", call.attrs["ctx"])
    tensors = list(ctx.saved_tensors[: ctx.count])
    others = others_by_now(ctx.numbers)
    if version.environment.changed() is not None or (others and others_at_work()):
        return False
    before, changed = dispatch._CLOCK, dispatch.last_change()
    with as_they_were(others) if others else contextlib.nullcontext(), enable_grad():
        outs = version.on_tape(tensors)
    # What was changed in place knows the tick of that, which is not to be another.
    if dispatch.last_change() != changed or not alike(outs, ctx.results):
        return False
    ends = [outs[i].grad_fn for i, _ in there]
    if any(end is None or end.epoch <= before for end in ends):  # an argument that it returns
        return False
    made = sorted(_made_since(before, ends), key=lambda node: node.epoch)
    for k, node in enumerate(made, 1):
        node.epoch = call.epoch + k / (len(made) + 1)
    for i, t in there:
        t.grad_fn, t._index = outs[i].grad_fn, outs[i]._index
    return True


def leave_whole(version: Differentiable, call: TapeNode) -> None:
    """Let nobody ask for a gradient in a result of a call from now on: a gradient on the tape is
    about to be made of what went into the call, where an eager one may be made of results.

    Raises
    ------
    AutogradError
        If somebody waits for such a gradient already.
    """
    asked = version.owner.tied
    if call.hooks:
        asked()
        raise AutogradError(
            f"create_graph=True through {version.owner.name}, which is compiled",
            expected="results without hooks and retain_grad()",
            got=f"{len(call.hooks)} of them",
            fix="call the function again, which is eager from now on; or put them on what is "
            "made of the results",
        )
    # Attributes are for its rule to read; this one is for who asks a result.
    cast("dict[str, object]", call.attrs)["inner"] = dict.fromkeys(
        range(call.op.num_outputs), asked
    )


def alike(now: Sequence[TensorBase], before: Sequence[TensorBase]) -> bool:
    """Whether a function came to the same as before, but for rounding."""
    if len(now) != len(before):
        return False
    for t, u in zip(now, before, strict=True):
        a, b = t.detach().cpu().numpy(), u.detach().cpu().numpy()
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        tolerance = 100 * float(np.finfo(b.dtype).eps) if b.dtype.kind in "fc" else 0.0
        if not np.allclose(a, b, tolerance, tolerance, equal_nan=b.dtype.kind in "fc"):
            return False
    return True


def _made_since(before: float, ends: Iterable[TapeNode | None]) -> set[TapeNode]:
    """The nodes younger than a tick on the way from some of them."""
    found: set[TapeNode] = set()
    todo = list(ends)
    while todo:
        node = todo.pop()
        if node is None or node in found or node.epoch <= before:
            continue
        found.add(node)
        todo += (edge(x, node)[0] for x in node.inputs or () if isinstance(x, TensorBase))
    return found
