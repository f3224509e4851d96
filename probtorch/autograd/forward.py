"""Forward mode: `jvp`.

A `TangentSweep` listens to every operation of the function and pushes tangents through it at once,
by the op's own rule (`Op.jvp`, which elementwise ops get from the same partials as the reverse
rule). It costs nothing while no `jvp` runs. What it cannot follow (in-place changes of views,
custom functions without a `jvp`) is done by two reverse passes instead: the pull-back is linear in
its cotangent, and its own transpose is the push-forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from probtorch.autograd import tape
from probtorch.autograd.listener import Listener
from probtorch.autograd.transforms import (
    foreign,
    pull_back,
    release,
    same,
    split_aux,
    stand_ins,
    untracked,
)
from probtorch.backends.registry import array_module
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, set_grad_enabled, set_recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone

if TYPE_CHECKING:
    from probtorch.autograd.function import Function, FunctionCtx
    from probtorch.core.op import Attrs, Op, Operand, Output
    from probtorch.core.tree import Structure

__all__ = ["TangentSweep", "jvp"]


class _CannotFollow(Exception):
    """Forward mode met something that only the tape can express."""


class TangentSweep(Listener):
    """A listener that knows the tangent of each tensor on the way; see the module docstring."""

    pushes_tangents = True

    def __init__(self) -> None:
        super().__init__()
        self._tangents = {}
        self._viewed = {}

    def _set(self, t: TensorBase, tangent: TensorBase | None) -> None:
        """Give `t` a tangent (None for none)."""
        # The entry keeps the tensor alive, so that no other one gets its id.
        self._tangents[id(t)] = (t, tangent)

    def _tangent(self, t: TensorBase) -> TensorBase | None:
        """Return the tangent of `t`, or None."""
        entry = self._tangents.get(id(t))
        return None if entry is None else entry[1]

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Push tangents through one operation."""
        super().applied(op, inputs, attrs, out)
        if not grad_enabled():
            return
        tangents = [self._tangent(x) if isinstance(x, TensorBase) else None for x in inputs]
        if all(t is None for t in tangents):
            return
        if "view" in op.extra:
            self._viewed[id(inputs[0])] = inputs[0]
        if op.vjp is None and op.jvp is None:
            return  # piecewise constant: no tangent is a zero one
        if op.jvp is None:
            raise _CannotFollow
        active = set_recorder(self.outer)
        try:
            pushed: Tree = op.jvp(tangents, out, inputs, attrs)
        finally:
            set_recorder(active)
        if isinstance(out, tuple):
            for o, t in zip(out, pushed, strict=True):
                self._set(o, t)
        else:
            self._set(out, pushed)

    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Sequence[object],
        outs: Sequence[TensorBase],
    ) -> None:
        """Push tangents through a custom function, by its own rule."""
        super().function_applied(function, ctx, inputs, outs)
        tangents = [self._tangent(x) if isinstance(x, TensorBase) else None for x in inputs]
        if not grad_enabled() or all(t is None for t in tangents):
            return
        if function.jvp is None:
            raise _CannotFollow
        active = set_recorder(self.outer)
        try:
            pushed = function.jvp(ctx, *tangents)
        finally:
            set_recorder(active)
        pushed = pushed if isinstance(pushed, tuple) else (pushed,)
        for o, t in zip(outs, pushed, strict=True):
            self._set(o, t)

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """Let `target` take the tangent of `value`."""
        super().in_place(target, value)
        new, old = self._tangent(value), self._tangent(target)
        if new is None and old is None:
            return
        if target._base is not None or id(target) in self._viewed:
            raise _CannotFollow
        self._set(target, new if grad_enabled() else None)

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Let `t` have the tangent of `source`, if it has its gradient."""
        super().alias(source, t, taped)
        tangent = self._tangent(source) if taped else None
        if tangent is not None:
            self._set(t, tangent)


def jvp(
    func: Callable[..., Tree], primals: Tree, tangents: Tree, *, has_aux: bool = False
) -> tuple[Tree, ...]:
    """Evaluate `func` and its derivative along a direction, in forward mode.

    Parameters
    ----------
    func : callable
        From trees of tensors to a tree of tensors; with `has_aux` a pair of it and anything else.
    primals, tangents : tuple of trees of tensors
        Where, and in which direction; of one structure, shape by shape.
    has_aux : bool

    Returns
    -------
    value : tree of Tensor
    tangent : tree of Tensor
        Structured like the value; zeros where it does not depend on the primals.
    aux : anything
        Only with `has_aux`.

    Raises
    ------
    ArgumentError, ShapeError
        If tangents and primals do not match.
    NotDifferentiableError
        If an operation on the way has neither rule.

    Notes
    -----
    A second evaluation of `func`, with two reverse passes, is needed where the function changes
    views in place or calls a custom `Function` without a ``jvp``.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.tensor([1.0, 2.0])
    >>> jvp(lambda x: x * x, (x,), (probtorch.tensor([1.0, 0.5]),))
    (tensor([1., 4.]), tensor([2., 2.]))
    """
    items, directions, structure = _matched(primals, tangents)
    before = set_grad_enabled(True)
    try:
        try:
            found = _forward(func, items, directions, structure, has_aux)
        except _CannotFollow:
            found = _by_two_reverse_passes(func, items, directions, structure, has_aux, before)
    finally:
        set_grad_enabled(before)
    return found if has_aux else found[:2]


def _forward(
    func: Callable[..., Tree],
    items: list[TensorBase],
    directions: list[TensorBase],
    structure: Structure,
    has_aux: bool,
) -> tuple[Tree, Tree, Tree]:
    sweep = TangentSweep()
    own = [clone(x) if x.requires_grad else same(x) for x in items]
    for y, direction in zip(own, directions):
        sweep._set(y, direction)
    with sweep:
        out, aux = split_aux(func(*unflatten(structure, own)), has_aux, "jvp")
        outs, out_structure = flatten(out)
        outs = [as_tensor(o, "jvp") for o in outs]
    pushed = [_zeros(o) if (t := sweep._tangent(o)) is None else t for o in outs]
    # Gradients taken inside were taped so that tangents flow through them; that is over now.
    pushed = [t if foreign([t], ()) else untracked(t) for t in pushed]
    return unflatten(out_structure, outs), unflatten(out_structure, pushed), aux


def _by_two_reverse_passes(
    func: Callable[..., Tree],
    items: list[TensorBase],
    directions: list[TensorBase],
    structure: Structure,
    has_aux: bool,
    before: bool,
) -> tuple[Tree, Tree, Tree]:
    own = stand_ins(items, "jvp")
    try:
        out, aux = split_aux(func(*unflatten(structure, own)), has_aux, "jvp")
    finally:
        release(own)
    outs, out_structure = flatten(out)
    outs = [as_tensor(o, "jvp") for o in outs]
    connected = before and foreign(outs, own)
    cotangents = [_zeros(o) for o in outs]
    pushed = {}
    on_tape = [(k, o) for k, o in enumerate(outs) if o.requires_grad]
    if on_tape:
        us = [cotangents[k].requires_grad_() for k, _ in on_tape]
        pulled = tape.grad(
            [o for _, o in on_tape], own, us, create_graph=True, materialize_grads=True
        )
        linear = [(p, t) for p, t in zip(pulled, directions) if p.requires_grad]
        found = pull_back([p for p, _ in linear], [t for _, t in linear], us, connected, keep=True)
        pushed = dict(zip([k for k, _ in on_tape], found))
    tangents = [pushed.get(k, c) for k, c in enumerate(cotangents)]
    values = [o if connected else untracked(o) for o in outs]
    return unflatten(out_structure, values), unflatten(out_structure, tangents), aux


def _zeros(o: TensorBase) -> TensorBase:
    return wrap(array_module(o.array).zeros(o.array.shape, o.array.dtype))


def _matched(primals: Tree, tangents: Tree) -> tuple[list[TensorBase], list[TensorBase], Structure]:
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise ArgumentError(
            "jvp",
            expected="tuples of primals and tangents, one entry per argument",
            got=f"{type(primals).__name__} and {type(tangents).__name__}",
            fix="write jvp(func, (x,), (t,))",
        )
    items, structure = flatten(primals)
    directions, other = flatten(tangents)
    if structure != other:
        raise ArgumentError(
            "jvp",
            expected="tangents structured like the primals",
            got=f"{len(directions)} leaves in another structure, for {len(items)}",
            fix="give one tangent per tensor, in the same tuples, lists and dicts",
        )
    items = [as_tensor(x, "jvp") for x in items]
    directions = [cast(as_tensor(t, "jvp"), x.array.dtype) for t, x in zip(directions, items)]
    for x, t in zip(items, directions):
        if x.array.shape != t.array.shape:
            raise ShapeError(
                "jvp",
                expected=f"a tangent of shape {x.array.shape}, that of the primal",
                got=str(t.array.shape),
                fix="expand the tangent",
            )
    return items, directions, structure


explain_calls(globals())
