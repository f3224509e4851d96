"""The tape read backwards: `backward` and `grad`.

Nodes carry the clock tick of their making, so the sweep pops them newest first from a heap:
iterative (a chain of 100 000 nodes is nothing special), in a fixed order, and freeing each node's
inputs as it goes unless the graph is kept. Rules (`Op.vjp`) are written in Tensor ops: with
`create_graph` they are taped too, and under a recorder they are recorded. Nodes that no wanted
input hangs on are left out.

Of complex numbers a gradient is the direction in which the output grows, as in PyTorch: of w = f(z)
it is conj(f'(z)) times that of w. Inside the sweep cotangents are the conjugates of gradients,
which are multiplied by f'(z) itself: so the rules of holomorphic ops are those of real ones, in
reverse and in forward mode, and real graphs pay nothing. Conjugated is where numbers go in and come
out: outputs, leaves and targets, hooks, custom functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from sys import getprofile
from typing import Any, Literal, TypeAlias, TypeVar, overload
from weakref import ref

from numpy import ndarray, ones

from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import array_module
from probtorch.core import dispatch
from probtorch.core.casting import cast
from probtorch.core.dispatch import TapeNode, around, recorder, set_grad_enabled, wrap
from probtorch.core.dtype import float16, float32, float64
from probtorch.core.history import edge, expect_whole, refresh
from probtorch.core.making import as_tensor
from probtorch.core.saved import changed_since, saved_output, stale
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, AutogradError, ShapeError
from probtorch.ops.arithmetic import add, clone
from probtorch.ops.complex_numbers import conj, real
from probtorch.ops.families import partial_in_single, unbroadcast, unbroadcast_array

__all__ = ["backward", "grad"]

# Where on the tape a tensor is: which output of the node of an id, or a leaf by its own.
Place: TypeAlias = tuple[int, int] | tuple[str, int]
# What a node is sent: one cotangent, or a list with one (or None) for each of several outputs.
Cotangent = TypeVar("Cotangent", TensorBase, list[TensorBase | None])
# The user's, of a cotangent; or a weak reference to the tensor that keeps it.
Hook: TypeAlias = Callable[..., TensorBase | None]

_NUMBERS = frozenset((bool, int, float, complex))
_EPOCH = itemgetter(0)
_NONE: dict[int, Callable[..., ndarray]] = {}
_NOWHERE: set[Place] = set()
_ONE = {dtype: ones((), dtype) for dtype in (float64, float32)}


def backward(
    tensors: TensorBase | Sequence[TensorBase],
    grad_tensors: TensorBase | Sequence[TensorBase | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    inputs: TensorBase | Sequence[TensorBase] | None = None,
) -> None:
    """Accumulate the gradients of `tensors` into the `.grad` of the leaves they were computed from.

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
    grad_tensors : Tensor or sequence of (Tensor or None), optional
        Cotangents, one per output and of its shape; 1 for outputs with one element.
    retain_graph : bool, optional
        Keep what another backward pass over the same graph needs (default: `create_graph`).
    create_graph : bool
        Put the pass itself on the tape, for derivatives of derivatives.
    inputs : sequence of Tensor, optional
        Accumulate into these only; they need not be leaves.

    Raises
    ------
    AutogradError
        If a tensor does not require grad, is not a scalar and has no gradient given, or its graph
        was freed.
    """
    seeds = _seeds(tensors, grad_tensors)
    if inputs is not None:
        inputs = [inputs] if isinstance(inputs, TensorBase) else list(inputs)
    targets = None if inputs is None else _targets(inputs, "backward")
    keep = create_graph if retain_graph is None else retain_graph
    found, leaves = _sweep(seeds, targets, keep, create_graph)
    for leaf, g in leaves.values():
        _accumulate(leaf, g, create_graph)
        if leaf._extra is not None and "after_grad" in leaf._extra:
            for hook in list(leaf._extra["after_grad"].values()):
                hook(leaf)
    for t in {id(t): t for t in inputs or ()}.values():
        inner = found.get(_place(t))
        if inner is not None and t.grad_fn is not None:
            _accumulate(t, inner, create_graph)


@overload
def grad(
    outputs: TensorBase | Sequence[TensorBase],
    inputs: TensorBase | Sequence[TensorBase],
    grad_outputs: TensorBase | Sequence[TensorBase | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Literal[False] | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[TensorBase, ...]: ...
@overload
def grad(
    outputs: TensorBase | Sequence[TensorBase],
    inputs: TensorBase | Sequence[TensorBase],
    grad_outputs: TensorBase | Sequence[TensorBase | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    *,
    materialize_grads: Literal[True],
) -> tuple[TensorBase, ...]: ...
@overload
def grad(
    outputs: TensorBase | Sequence[TensorBase],
    inputs: TensorBase | Sequence[TensorBase],
    grad_outputs: TensorBase | Sequence[TensorBase | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[TensorBase | None, ...]: ...
def grad(
    outputs: TensorBase | Sequence[TensorBase],
    inputs: TensorBase | Sequence[TensorBase],
    grad_outputs: TensorBase | Sequence[TensorBase | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[TensorBase | None, ...]:
    """Return the gradients of the sum of `outputs` with respect to `inputs`, leaving every `.grad`.

    Parameters
    ----------
    outputs, inputs : Tensor or sequence of Tensor
    grad_outputs : Tensor or sequence of (Tensor or None), optional
        Cotangents, one per output and of its shape; 1 for outputs with one element.
    retain_graph, create_graph : bool
        See `backward`.
    only_inputs : bool
        As in PyTorch there is no other way.
    allow_unused : bool, optional
        Return None for inputs that the outputs do not depend on, instead of raising.
    is_grads_batched : bool
        Each cotangent has a batch of them in its first dim, and so has each gradient: as one pass
        for each, but the operations are carried out on the whole batch (`vmap`).
    materialize_grads : bool
        Return zeros for such inputs.

    Returns
    -------
    tuple of Tensor
        One per input, each of the input's shape and dtype.

    Raises
    ------
    AutogradError
        As `backward`; also if an input does not require grad or, unless allowed, is unused.
    """
    inputs = [inputs] if isinstance(inputs, TensorBase) else list(inputs)
    if is_grads_batched:
        return _batched(
            outputs,
            inputs,
            grad_outputs,
            retain_graph,
            create_graph,
            allow_unused,
            materialize_grads,
        )
    seeds = _seeds(outputs, grad_outputs)
    keep = create_graph if retain_graph is None else retain_graph
    found, leaves = _sweep(seeds, _targets(inputs, "grad"), keep, create_graph)
    out = []
    for i, t in enumerate(inputs):
        g = leaves[id(t)][1] if id(t) in leaves else found.get(_place(t))
        if g is None and materialize_grads:
            g = wrap(array_module(t.array).zeros(t.array.shape, t.array.dtype))
        elif g is None and not allow_unused:
            raise AutogradError(
                f"grad: input {i} is not part of the graph of the outputs",
                expected="inputs with requires_grad=True that the outputs were computed from",
                got=f"an input of shape {t.array.shape} with requires_grad={t.requires_grad}",
                fix="pass allow_unused=True to get None for it",
            )
        out.append(g)
    return tuple(out)


def _batched(
    outputs: TensorBase | Sequence[TensorBase],
    inputs: Sequence[TensorBase],
    grad_outputs: TensorBase | Sequence[TensorBase | None] | None,
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool | None,
    materialize_grads: bool,
) -> tuple[TensorBase | None, ...]:
    """Return gradients for a batch of cotangents."""
    given: list[TensorBase | None]
    if grad_outputs is None or isinstance(grad_outputs, TensorBase):
        given = [grad_outputs]
    else:
        given = list(grad_outputs)
    batches = [g for g in given if g is not None]
    if len(batches) < len(given):
        raise ArgumentError(
            "grad: is_grads_batched",
            expected="a batch of cotangents for each output",
            got="None",
            fix="pass grad_outputs, with the batch in the first dim",
        )
    used: list[bool] = []

    def pull(*gs: TensorBase) -> tuple[TensorBase, ...]:
        found = grad(
            outputs,
            inputs,
            gs,
            retain_graph,
            create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )
        used[:] = [g is not None for g in found]
        return tuple(g for g in found if g is not None)

    found = iter(vmap(pull)(*batches))
    return tuple(next(found) if known else None for known in used)


def _place(t: TensorBase) -> Place:
    return (id(t.grad_fn), t._index) if t.grad_fn is not None else ("leaf", id(t))


def _targets(inputs: Sequence[TensorBase], op: str) -> set[Place]:
    for t in inputs:
        refresh(t)
        expect_whole(t, op)
    if not inputs:
        raise ArgumentError(
            f"{op}: inputs is empty",
            expected="at least one tensor",
            got="none",
            fix="leave `inputs` out to differentiate with respect to every leaf",
        )
    for i, t in enumerate(inputs):
        if not t.requires_grad:
            raise AutogradError(
                f"{op}: input {i} does not require grad",
                expected="tensors with requires_grad=True",
                got=f"a tensor of shape {t.array.shape} with requires_grad=False",
                fix="create it with requires_grad=True, or call requires_grad_() before using it",
            )
    return {_place(t) for t in inputs}


def _seeds(
    outputs: TensorBase | Sequence[TensorBase],
    gradients: TensorBase | Sequence[TensorBase | None] | None,
) -> list[tuple[TensorBase, TensorBase]]:
    outputs = [outputs] if isinstance(outputs, TensorBase) else list(outputs)
    given: Sequence[object]
    if gradients is None:
        given = [None] * len(outputs)
    elif isinstance(gradients, (list, tuple)):
        given = gradients
    else:
        given = [gradients]
    if len(given) != len(outputs):
        raise ArgumentError(
            "backward: gradients do not match the outputs",
            expected=f"one gradient (or None) per output, {len(outputs)} of them",
            got=str(len(given)),
            fix="pass a sequence of the same length",
        )
    seeds = []
    for out, g in zip(outputs, given):
        refresh(out)
        shape = out.array.shape
        if not out.requires_grad:
            raise AutogradError(
                "backward: the output does not require grad",
                expected="an output computed, outside no_grad(), from a tensor with "
                "requires_grad=True",
                got=f"a tensor of shape {shape} with requires_grad=False" + _why_not(out),
                fix="create the parameters with requires_grad=True, and compute outside of "
                "no_grad() and detach(); gradients have a gradient with create_graph=True",
            )
        if g is None:
            if out.array.size != 1:
                raise AutogradError(
                    "backward: grad can be implicitly created only for scalar outputs",
                    expected="an output with one element, or a gradient for each element",
                    got=f"shape {shape}",
                    fix="use .sum() or .mean() first, or backward(gradient=...)",
                )
            if out.array.dtype.kind == "c":
                raise AutogradError(
                    "backward: the output is complex",
                    expected="a real output, or a gradient for it",
                    got=str(out.array.dtype),
                    fix="use .abs(), .real or .imag first, or backward(gradient=...)",
                )
            one = _ONE.get(out.array.dtype) if type(out.array) is ndarray and not shape else None
            if one is None:
                g = wrap(array_module(out.array).ones(shape, out.array.dtype))
            else:
                g = wrap(one.copy())
        else:
            g = as_tensor(g, "backward")
            if g.array.shape != shape:
                raise ShapeError(
                    "backward",
                    expected=f"a gradient of shape {shape}, that of the output",
                    got=str(g.array.shape),
                    fix="give one number per element of the output",
                )
            # The rules make gradients of the cotangent's dtype, and they are to be the output's.
            g = cast(g, out.array.dtype)
        seeds.append((out, g))
    return seeds


def _why_not(out: TensorBase) -> str:
    return " (its dtype is not floating)" if out.array.dtype.kind not in "fc" else ""


def _accumulate(leaf: TensorBase, g: TensorBase, create_graph: bool) -> None:
    active = recorder()
    if active is not None:
        active.gradient_read(leaf)
        active.gradient_kept(leaf)
    elif leaf._grad is None and not create_graph:
        # A copy, as g may be shared with another leaf or with the caller.
        leaf._grad = wrap(g.array.copy())
        return
    before = set_grad_enabled(create_graph)
    try:
        if leaf._grad is not None:
            leaf._grad = add(leaf._grad, g)
        else:
            leaf._grad = clone(g)
    finally:
        set_grad_enabled(before)


def _freed(node: TapeNode) -> AutogradError:
    return AutogradError(
        f"backward: the graph of {node.op.name} was already freed",
        expected="one backward pass per forward pass",
        got="a second one",
        fix="pass retain_graph=True to the first, or run the forward pass again; a state that is "
        "carried from step to step (of an LSTM, say) is to be detached: state.detach()",
    )


def _edges(node: TapeNode) -> list[tuple[TensorBase | None, TapeNode | None, int, bool]]:
    """Return ``(tensor, grad_fn, index, wanted)`` per input, as it was when `node` was made."""
    edges: list[tuple[TensorBase | None, TapeNode | None, int, bool]] = []
    for t in node.inputs:
        if not isinstance(t, TensorBase):
            edges.append((None, None, 0, False))
        elif t._extra is None and t._base is None:  # as `edge` has it, without a call
            edges.append((t, t.grad_fn, t._index, t.requires_grad))
        else:
            edges.append((t, *edge(t, node)))
    return edges


def _needed(seeds: list[tuple[TensorBase, TensorBase]], targets: set[Place]) -> set[TapeNode]:
    """Return the nodes below the seeds from which a target can be reached."""
    seen, stack, nodes = set(), [t.grad_fn for t, _ in seeds if t.grad_fn is not None], []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if node.inputs is None:
            raise _freed(node)
        seen.add(node)
        edges = []
        for t in node.inputs:
            if not isinstance(t, TensorBase):
                continue
            if t._extra is None and t._base is None:  # as `edge` has it, without a call
                fn, index, wanted = t.grad_fn, t._index, t.requires_grad
            else:
                fn, index, wanted = edge(t, node)
            if wanted:
                edges.append((t, fn, index))
                if fn is not None:
                    stack.append(fn)
        nodes.append((node.epoch, node, edges))
    nodes.sort(key=_EPOCH)
    needed = set()
    for _, node, edges in nodes:
        for t, fn, index in edges:
            if fn in needed or (("leaf", id(t)) if fn is None else (id(fn), index)) in targets:
                needed.add(node)
                break
    return needed


def _sweep(
    seeds: list[tuple[TensorBase, TensorBase]],
    targets: set[Place] | None,
    keep: bool,
    create_graph: bool,
) -> tuple[dict[Place, TensorBase | None], dict[int, tuple[TensorBase, TensorBase]]]:
    """Run the tape backwards.

    Returns the cotangents of `targets` that are not leaves, by place, and ``(leaf, cotangent)`` of
    the leaves (those among the targets, if given), by id. `pending` maps a node to its cotangent (a
    list for nodes with several outputs).
    """
    pending: dict[TapeNode, Any] = {}
    heap = []
    leaves: dict[int, tuple[TensorBase, TensorBase]] = {}
    found: dict[Place, TensorBase | None] = {}
    gx: TensorBase | None
    needed: Any
    if targets is None:
        needed, places = None, _NOWHERE
    else:
        needed, places = _needed(seeds, targets), targets
    active = recorder()
    # Rules of arithmetic alone may then work on arrays.
    unwatched = active is None and not create_graph and getprofile() is None

    def send(t: TensorBase, grad_fn: TapeNode | None, index: int, g: TensorBase) -> None:
        if grad_fn is None:
            old = leaves.get(id(t))
            leaves[id(t)] = (t, g if old is None else add(old[1], g))
        elif grad_fn.op.num_outputs > 1:
            parts: list[TensorBase | None] | None = pending.get(grad_fn)
            if parts is None:
                pending[grad_fn] = parts = [None] * grad_fn.op.num_outputs
                heappush(heap, (-grad_fn.epoch, grad_fn))
            had = parts[index]
            parts[index] = g if had is None else add(had, g)
        elif grad_fn in pending:
            pending[grad_fn] = add(pending[grad_fn], g)
        else:
            pending[grad_fn] = g
            heappush(heap, (-grad_fn.epoch, grad_fn))

    def wanted_by_target(t: object, grad_fn: TapeNode | None, index: int) -> bool:
        if grad_fn in needed:
            return True
        return (("leaf", id(t)) if grad_fn is None else (id(grad_fn), index)) in places

    before = set_grad_enabled(create_graph)
    try:
        for end, seed in seeds:
            if needed is None or wanted_by_target(end, end.grad_fn, end._index):
                send(end, end.grad_fn, end._index, conj(seed))
        while heap:
            gx = made = None  # of many rows these are worth having back
            node = heappop(heap)[1]
            g = pending.pop(node)
            op, inputs = node.op, node.inputs
            if node.hooks is not None:
                g = _run_hooks(node.hooks, g)
            if needed is not None:
                for i, part in enumerate(g if op.num_outputs > 1 else (g,)):
                    if (id(node), i) in places:
                        found[id(node), i] = part if part is None else conj(part)
                if node not in needed:
                    continue
            if inputs is None:
                raise _freed(node)
            epoch = node.epoch
            # Without an in-place change since the node was made there is nothing to check.
            careful = epoch < dispatch._CHANGED
            if careful:
                _check_shapes(node, inputs)
            if op.rules:
                out, array = None, g.array
                half = array.dtype is float16
                quick = unwatched and not careful and type(array) is ndarray and not half
                plain = op.plain if quick else _NONE
                for i, partial, reads, reads_output in op.rules:
                    t = inputs[i]
                    if t.__class__ in _NUMBERS:
                        continue
                    if careful or t._base is not None:
                        fn, index, wanted = edge(t, node)
                    else:
                        fn, index, wanted = t.grad_fn, t._index, t.requires_grad
                    if not wanted or (needed is not None and not wanted_by_target(t, fn, index)):
                        continue
                    shape = t.array.shape
                    if i in plain and (not reads_output or type(node.saved) is ndarray):
                        made = plain[i](array, node.saved, inputs)
                        if made.shape != shape:
                            made = unbroadcast_array(made, shape)
                        gx = g if made is array else around(made)
                    else:
                        if careful:
                            _check_fresh(node, inputs, reads)
                        if reads_output and out is None:
                            out = saved_output(node)
                        if half:
                            gx = partial_in_single(partial, g, out, inputs)
                        else:
                            gx = partial(g, out, inputs)
                        if gx.array.shape != shape:
                            gx = unbroadcast(gx, shape)
                    if active is not None:
                        active.cotangent(node, i, gx)
                    if fn is None or fn in pending or fn.op.num_outputs > 1:
                        send(t, fn, index, gx)
                    else:
                        pending[fn] = gx
                        heappush(heap, (-fn.epoch, fn))
            else:
                edges = _edges(node)
                out = saved_output(node) if op.reads_output else None
                if careful and op.saves:
                    _check_fresh(node, inputs, op.saved_inputs(len(inputs)))
                needs = [
                    wanted and (needed is None or wanted_by_target(t, fn, index))
                    for t, fn, index, wanted in edges
                ]
                grads = op.vjp(g, out, inputs, node.attrs, needs)
                for i, ((_, fn, index, _), need, gx) in enumerate(zip(edges, needs, grads)):
                    if need and gx is not None:
                        if active is not None:
                            active.cotangent(node, i, gx)
                        if fn is None or fn in pending or fn.op.num_outputs > 1:
                            send(inputs[i], fn, index, gx)
                        else:
                            pending[fn] = gx
                            heappush(heap, (-fn.epoch, fn))
            if not keep:
                node.inputs = node.saved = None
        if active is not None:
            for leaf, _ in leaves.values():
                active.differentiated(leaf)
        for key, (leaf, g) in leaves.items():
            if g.array.dtype.kind == "c":
                g = conj(g) if leaf.array.dtype.kind == "c" else real(g)
                leaves[key] = (leaf, g)
            if leaf._extra is not None and "hooks" in leaf._extra:
                for hook in list(leaf._extra["hooks"].values()):
                    replaced = hook(g)
                    g = g if replaced is None else replaced
                leaves[key] = (leaf, g)
    finally:
        set_grad_enabled(before)
    return found, leaves


def _check_fresh(node: TapeNode, inputs: tuple[TensorBase, ...], positions: Iterable[int]) -> None:
    for i in positions:
        t = inputs[i]
        if isinstance(t, TensorBase) and changed_since(t, node.epoch):
            raise stale(node, f"input {i}", t)


def _check_shapes(node: TapeNode, inputs: tuple[object, ...]) -> None:
    """Refuse inputs that were given another shape in place since: rules look at shapes, too."""
    for i, t in enumerate(inputs):
        if not isinstance(t, TensorBase) or t._extra is None:
            continue
        if t._extra.get("shaped", 0) > node.epoch:
            raise stale(node, f"the shape of input {i}", t)


def _run_hooks(hooks: Mapping[int, tuple[int, Hook]], g: Cotangent) -> Cotangent:
    # Tensors that keep their gradient come last, with keys below 0, and keep what hooks made of it.
    for _, (index, hook) in sorted(hooks.items(), key=_last_if_kept):
        part = g[index] if isinstance(g, list) else g
        if part is None:
            continue
        if type(hook) is ref:
            t = hook()
            if t is not None:
                part = conj(part)
                t._grad = part.detach() if t._grad is None else t._grad + part
            continue
        replaced = hook(conj(part))
        if replaced is not None:
            replaced = conj(replaced)
            if isinstance(g, list):
                g[index] = replaced
            else:
                g = replaced
    return g


def _last_if_kept(entry: tuple[int, tuple[int, Hook]]) -> bool:
    return entry[0] < 0


explain_calls(globals())
