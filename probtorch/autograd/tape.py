"""The tape read backwards: `backward` and `grad`.

Nodes carry the clock tick of their making, so the sweep pops them newest first from a heap: iterative (a chain of 100 000
nodes is nothing special), in a fixed order, and freeing each node's inputs as it goes unless the graph is kept.
Rules (`Op.vjp`) are written in Tensor ops: with `create_graph` they are taped too, and under a recorder they are recorded.
"""

from heapq import heappop, heappush

from probtorch.backends.registry import array_module
from probtorch.core import dispatch
from probtorch.core.dispatch import saved_output, set_grad_enabled, stale, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError, ShapeError
from probtorch.ops.elementwise import add
from probtorch.ops.families import unbroadcast

__all__ = ["backward", "grad"]


def backward(outputs, gradients=None, *, inputs=None, retain_graph=None, create_graph=False):
    """Accumulate the gradients of `outputs` into the `.grad` of the leaves (or only of `inputs`).

    Raises
    ------
    AutogradError
        If an output does not require grad, is not a scalar and has no gradient given, or its graph was freed.
    """
    seeds = _seeds(outputs, gradients)
    targets = None if inputs is None else _targets(inputs)
    keep = create_graph if retain_graph is None else retain_graph
    found, leaves = _sweep(seeds, targets, keep, create_graph)
    for leaf, g in leaves.values():
        _accumulate(leaf, g, create_graph)
    if inputs is not None:
        for t in inputs:
            g = found.get(_place(t))
            if g is not None and t.grad_fn is not None:
                _accumulate(t, g, create_graph)


def grad(
    outputs, inputs, grad_outputs=None, *, retain_graph=None, create_graph=False, allow_unused=None
):
    """Return the gradients of the sum of `outputs` with respect to `inputs`, without touching any `.grad`.

    Parameters
    ----------
    outputs, inputs : Tensor or sequence of Tensor
    grad_outputs : Tensor or sequence, optional
        Cotangents; 1 for scalar outputs.
    allow_unused : bool, optional
        Return None for inputs that the outputs do not depend on, instead of raising.

    Returns
    -------
    tuple of Tensor
    """
    inputs = [inputs] if isinstance(inputs, TensorBase) else list(inputs)
    seeds = _seeds(outputs, grad_outputs)
    keep = create_graph if retain_graph is None else retain_graph
    found, leaves = _sweep(seeds, _targets(inputs), keep, create_graph)
    out = []
    for i, t in enumerate(inputs):
        g = leaves[id(t)][1] if id(t) in leaves else found.get(_place(t))
        if g is None and not allow_unused:
            raise AutogradError(
                f"grad: input {i} is not part of the graph of the outputs",
                expected="inputs with requires_grad=True that the outputs were computed from",
                got=f"an input of shape {t._data.shape} with requires_grad={t.requires_grad}",
                fix="pass allow_unused=True to get None for it",
            )
        out.append(g)
    return tuple(out)


def _place(t):
    return (id(t.grad_fn), t._index) if t.grad_fn is not None else ("leaf", id(t))


def _targets(inputs):
    for i, t in enumerate(inputs):
        if not t.requires_grad:
            raise AutogradError(
                f"grad: input {i} does not require grad", expected="tensors with requires_grad=True",
                got=f"a tensor of shape {t._data.shape} with requires_grad=False",
                fix="create it with requires_grad=True, or call requires_grad_() before computing with it",
            )  # fmt: skip
    return {_place(t) for t in inputs}


def _seeds(outputs, gradients):
    outputs = [outputs] if isinstance(outputs, TensorBase) else list(outputs)
    if gradients is None or isinstance(gradients, TensorBase):
        gradients = [gradients] * len(outputs)
    seeds = []
    for out, g in zip(outputs, gradients, strict=True):
        if not out.requires_grad:
            raise AutogradError(
                "backward: the output does not require grad",
                expected="an output computed from a tensor with requires_grad=True, outside no_grad()",
                got=f"a tensor of shape {out._data.shape} with requires_grad=False" + _why_not(out),
                fix="create the parameters with requires_grad=True",
            )
        if g is None:
            if out._data.size != 1:
                raise AutogradError(
                    "backward: the output is not a scalar", expected="an output with one element, or a gradient for each element",
                    got=f"shape {out._data.shape}", fix="use .sum() or .mean() first, or backward(gradient=...)",
                )  # fmt: skip
            g = wrap(array_module(out._data).ones(out._data.shape, out._data.dtype))
        elif g._data.shape != out._data.shape:
            raise ShapeError(
                "backward", expected=f"a gradient of shape {out._data.shape}, that of the output", got=str(g._data.shape),
                fix="give one number per element of the output",
            )  # fmt: skip
        seeds.append((out, g))
    return seeds


def _why_not(out):
    return " (its dtype is not floating)" if out._data.dtype.kind not in "fc" else ""


def _accumulate(leaf, g, create_graph):
    before = set_grad_enabled(create_graph)
    try:
        for hook in (leaf._extra or {}).get("hooks", {}).values():
            replaced = hook(g)
            g = g if replaced is None else replaced
        # A copy when g may be shared with another leaf or with the caller.
        leaf.grad = (
            (g if create_graph else wrap(g._data.copy()))
            if leaf.grad is None
            else add(leaf.grad, g)
        )
    finally:
        set_grad_enabled(before)


def _sweep(seeds, targets, keep, create_graph):
    """Run the tape backwards; returns the cotangents of `targets` that are not leaves, and those of the leaves.

    `pending` maps a node to its cotangent (a list for nodes with several outputs).
    """
    pending, heap, leaves, found = {}, [], {}, {}

    def send(t, grad_fn, index, g):
        if grad_fn is None:
            if targets is None or ("leaf", id(t)) in targets:
                old = leaves.get(id(t))
                leaves[id(t)] = (t, g if old is None else add(old[1], g))
            return
        several = grad_fn.op.num_outputs > 1
        if grad_fn not in pending:
            heappush(heap, (-grad_fn.epoch, grad_fn))
            if several:
                parts = [None] * grad_fn.op.num_outputs
                parts[index] = g
                g = parts
            pending[grad_fn] = g
        elif several:
            parts = pending[grad_fn]
            parts[index] = g if parts[index] is None else add(parts[index], g)
        else:
            pending[grad_fn] = add(pending[grad_fn], g)

    before = set_grad_enabled(create_graph)
    try:
        for out, g in seeds:
            send(out, out.grad_fn, out._index, g)
        while heap:
            node = heappop(heap)[1]
            g = pending.pop(node)
            op, inputs = node.op, node.inputs
            if node.hooks is not None:
                g = _run_hooks(node, g)
            if targets is not None:
                for i, part in enumerate(g if op.num_outputs > 1 else (g,)):
                    if (id(node), i) in targets:
                        found[id(node), i] = part
            if inputs is None:
                raise AutogradError(
                    f"backward: the graph of {op.name} was already freed", expected="one backward pass per forward pass",
                    got="a second one", fix="pass retain_graph=True to the first, or run the forward pass again",
                )  # fmt: skip
            epoch = node.epoch
            out = saved_output(node) if op.reads_output else None
            if op.reads_inputs:
                for i, t in enumerate(inputs):
                    if (
                        isinstance(t, TensorBase)
                        and (t if t._base is None else t._base)._version > epoch
                    ):
                        raise stale(node, f"input {i}")
            if op.partials:
                for partial, t in zip(op.partials, inputs, strict=True):
                    if isinstance(t, TensorBase) and partial is not None:
                        if t._version > epoch:
                            fn, index, wanted = dispatch.edge(t, node)
                        else:
                            fn, index, wanted = t.grad_fn, t._index, t.requires_grad
                        if wanted:
                            gx = partial(g, out, *inputs)
                            if gx._data.shape != t._data.shape:
                                gx = unbroadcast(gx, t._data.shape)
                            send(t, fn, index, gx)
            else:
                edges = [
                    dispatch.edge(t, node) if isinstance(t, TensorBase) else (None, 0, False)
                    for t in inputs
                ]
                grads = op.vjp(g, out, inputs, node.attrs, [e[2] for e in edges])
                for t, (fn, index, wanted), gx in zip(inputs, edges, grads, strict=True):
                    if wanted and gx is not None:
                        send(t, fn, index, gx)
            if not keep:
                node.inputs = node.saved = None
    finally:
        set_grad_enabled(before)
    return found, leaves


def _run_hooks(node, g):
    for index, hook in node.hooks.values():
        part = g[index] if node.op.num_outputs > 1 else g
        if part is None:
            continue
        replaced = hook(part)
        if replaced is not None:
            if node.op.num_outputs > 1:
                g[index] = replaced
            else:
                g = replaced
    return g
