"""`scan`: a loop over time steps that carries a state, with a gradient that is a loop too.

Eagerly it is Python's own loop and the tape sees every step. Under a recorder it becomes two native
loops: the forward one keeps the state before each step, the backward one walks from the end, runs a
step again on the tape and pulls the gradient through it. So neither the compiled code nor the time
to compile it grows with the number of steps. Memory: one state per step, as for any reverse pass
over a loop (checkpoint longer ones by scanning over chunks), and what is cheaper to keep than to
compute again (kept_results.py).

A step with Python branches on tensors or with random draws cannot be recorded once for all steps;
the loop is then unrolled on the tape.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

from probtorch.autograd.closures import captured, cut_off, is_float, stand_in
from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.kept_results import Heard, KeptResult
from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.autograd.python_state import PythonState
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.core.typed import DType, Shape, Tree
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clone
from probtorch.ops.control import check_same_state, while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import another
from probtorch.ops.pieces import stack
from probtorch.ops.rooms import room

__all__ = ["scan"]

_Rows: TypeAlias = list[TensorBase]


def scan(
    f: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Tree, Tree]:
    """Run ``carry, y = f(carry, x)`` over the slices of `xs` along dim 0; stack what it puts out.

    Parameters
    ----------
    f : callable
        From the carried state and one slice to the next state (same structure, shapes and dtypes)
        and a tree of outputs, or None for no outputs. Pure: when recorded it is not called once per
        step.
    init : tree of tensors and numbers
        The state before the first step.
    xs : tree of Tensor, shapes (length, ...), or None
        What the steps take one slice each of.
    length : int, optional
        Number of steps; needed without `xs`.
    reverse : bool
        From the last slice to the first. Outputs keep the place of their slice.

    Returns
    -------
    carry : tree of Tensor
        The state after the last step.
    ys : tree of Tensor, shapes (length, ...)
        The outputs of all steps.

    Raises
    ------
    ArgumentError
        If the number of steps is not known.
    ShapeError
        If slices disagree in number, or a step changes the form of the state.

    Notes
    -----
    The signature is JAX's. Differentiable in `init`, `xs` and everything `f` closes over.

    Examples
    --------
    >>> from probtorch import scan, tensor
    >>> total, sums = scan(lambda s, x: (s + x, s + x), 0.0, tensor([1.0, 2.0, 3.0]))
    >>> sums
    tensor([1., 3., 6.])
    """
    loop = _Loop(f, init, xs, length, reverse)
    active = recorder()
    if loop.n > 1 and active is not None and active.records_loops:
        closed_over = loop.probe()
        if closed_over is not None:
            return loop.rolled(closed_over)
    return loop.unrolled()


class _Loop:
    """One call of `scan`, on flat lists of tensors."""

    def __init__(
        self,
        f: Callable[[Tree, Tree], tuple[Tree, Tree]],
        init: Tree,
        xs: Tree,
        length: int | None,
        reverse: bool,
    ) -> None:
        self.f, self.reverse = f, bool(reverse)
        items, self.carry_structure = flatten(init)
        self.carry = [as_tensor(x, "scan") for x in items]
        items, self.xs_structure = flatten(xs)
        self.xs = [as_tensor(x, "scan") for x in items]
        self.n = _steps(self.xs, length)
        # Known after a step: the structure of the outputs, and the shapes and dtypes they have.
        self.y_structure: Structure = ()
        self.y_form = []
        # What steps keep besides states; known after a step, too. Whether the forward loop does.
        self.kept: list[KeptResult] = []
        self.keeps = True

    def step(
        self, carry: list[TensorBase], slices: list[TensorBase]
    ) -> tuple[list[TensorBase], ...]:
        """Run `f` on flat lists; returns flat lists."""
        result = self.f(
            unflatten(self.carry_structure, carry), unflatten(self.xs_structure, slices)
        )
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(
                "scan",
                expected="a step that returns (carry, y)",
                got=f"{type(result).__name__}",
                fix="return carry, None where there is nothing to put out",
            )
        after, structure = flatten(result[0])
        after = [as_tensor(x, "scan") for x in after]
        same = structure == self.carry_structure
        check_same_state("scan", [x.array for x in carry], [x.array for x in after], same)
        ys, self.y_structure = flatten(result[1])
        ys = [as_tensor(y, "scan") for y in ys]
        self.y_form = [(y.array.shape, y.array.dtype) for y in ys]
        return after, ys

    def result(
        self, carry: list[TensorBase], ys: list[TensorBase]
    ) -> tuple[TensorBase, TensorBase]:
        return unflatten(self.carry_structure, carry), unflatten(self.y_structure, ys)

    # ------------------------------------------------------------------------------------- unrolled

    def unrolled(self) -> tuple[Tree, Tree]:
        carry = [clone(x) for x in self.carry]
        if not self.n:
            return self._nothing()
        rows = []
        for t in reversed(range(self.n)) if self.reverse else range(self.n):
            carry, ys = self.step(carry, [x[t] for x in self.xs])
            rows.append(ys)
        if self.reverse:
            rows.reverse()
        return self.result(carry, [stack(list(column)) for column in zip(*rows, strict=True)])

    def _nothing(self) -> tuple[Tree, Tree]:
        """No steps: outputs of length 0, whose form one step on zeros tells."""
        with no_grad():
            slices = [x.new_zeros(x.shape[1:]) for x in self.xs]
            self.step([clone(x) for x in self.carry], slices)
        first = (self.carry or self.xs)[0]
        ys = [first.new_zeros((0, *shape)).to(dtype) for shape, dtype in self.y_form]
        return self.result([clone(x) for x in self.carry], ys)

    # --------------------------------------------------------------------------------------- rolled

    def probe(self) -> list[TensorBase] | None:
        """Run a step off the record, to learn its form and what it closes over.

        Returns
        -------
        list of Tensor, or None
            What needs a gradient besides states and slices; None if the loop has to be unrolled.
            Python values that the step changes are put back, and then it has to be.
        """
        carry = [stand_in(x) for x in self.carry]
        slices = [stand_in(wrap(x.array[0])) for x in self.xs]
        heard = Heard()

        def step() -> None:
            with heard:
                self.step(carry, slices)

        around, closed_over = PythonState(self.f), None
        try:
            closed_over = captured(step, [*carry, *slices])
        except Exception:
            pass  # which the first step meets again
        finally:
            changed = around.put_back()
        self.kept = [result for result, _ in heard.results]
        return None if changed else closed_over

    def rolled(
        self, closed_over: list[TensorBase]
    ) -> tuple[
        TensorBase | dict[str, TensorBase],
        TensorBase | tuple[TensorBase, dict[str, TensorBase]] | None,
    ]:
        wanted = any(x.requires_grad for x in (*self.carry, *self.xs, *closed_over))
        if not (grad_enabled() and wanted):
            carry, ys, *_ = self.forward(self.carry, self.xs, keep=False)
            return self.result(carry, ys)
        outs = _Scan.apply(self, closed_over, *self.carry, *self.xs, *closed_over)
        outs = list(outs) if isinstance(outs, tuple) else [outs]
        count = len(self.carry)
        return self.result(outs[:count], outs[count:])

    def forward(
        self, carry: list[TensorBase], xs: Tree, keep: bool
    ) -> tuple[_Rows, _Rows, _Rows, _Rows]:
        """Run all steps; returns the last state, the outputs and, if asked for, all states and what
        else steps keep.
        """
        rooms = _Rooms([*carry, *xs])
        ys = [rooms.of((self.n, *shape), dtype) for shape, dtype in self.y_form]
        states = [rooms.of((self.n, *x.array.shape), x.array.dtype) for x in carry]
        kept = [rooms.of((self.n, *x.shape), x.dtype) for x in self.kept]

        def body(
            state: tuple[TensorBase, _Rows, _Rows, _Rows, _Rows],
        ) -> tuple[TensorBase, _Rows, _Rows, _Rows, _Rows]:
            t, now, ys, states, kept = state
            slices = [x[t] for x in xs]
            with Heard() as heard:
                after, row = self.step(now, slices)
            states = [index_put(s, (t,), x) for s, x in zip(states, now, strict=False)]
            ys = [index_put(y, (t,), x) for y, x in zip(ys, row, strict=True)]
            if kept:
                kept = self._keep(kept, t, heard)
            return t + (-1 if self.reverse else 1), after, ys, states, kept

        def more(state: tuple[TensorBase, _Rows, _Rows, _Rows, _Rows]) -> TensorBase:
            return state[0] >= 0 if self.reverse else state[0] < self.n

        first = (
            _number(self.n - 1 if self.reverse else 0),
            list(carry),
            ys,
            states if keep else [],
            kept if keep else [],
        )
        _, last, ys, states, kept = while_loop(more, body, first)
        return last, ys, states, kept

    def _keep(self, rows: _Rows, t: TensorBase, heard: Heard) -> _Rows:
        """Note what a step computed that is worth keeping."""
        found = dict(heard.results)
        if any(result not in found for result in self.kept):
            # With the tape off it does something else: nothing is to stand for what it does.
            self.keeps = False
            return rows
        return [
            index_put(row, (t,), found[result]) for row, result in zip(rows, self.kept, strict=True)
        ]

    def backward(
        self,
        states: list[TensorBase],
        xs: list[TensorBase],
        kept: list[TensorBase],
        closed_over: list[TensorBase],
        g_carry: Sequence[TensorBase],
        g_ys: Sequence[TensorBase],
    ) -> list[TensorBase | None]:
        """Pull gradients of the last state and of all outputs back through all steps.

        Returns
        -------
        list of Tensor
            Gradients of the first state, the slices and `closed_over`.
        """
        floating = [i for i, x in enumerate(states) if is_float(x)]
        sliced = [i for i, x in enumerate(xs) if is_float(x)]
        put_out = [i for i, (_, dtype) in enumerate(self.y_form) if dtype.kind in "fc"]
        start = 0 if self.reverse else self.n - 1

        def body(
            state: tuple[TensorBase, list[TensorBase], list[TensorBase], list[TensorBase]],
        ) -> tuple[TensorBase, list[TensorBase], list[TensorBase], list[TensorBase]]:
            t, g_now, g_xs, g_captured = state
            now = [stand_in(s[t]) for s in states]
            slices = [stand_in(x[t]) for x in xs]
            with enable_grad(), cut_off(closed_over):
                before = [rows[t] for rows in kept] if self.keeps else []
                with Heard(list(zip(self.kept, before, strict=False))):
                    after, row = self.step(now, slices)
                ends = [after[i] for i in floating] + [row[i] for i in put_out]
                given = [*g_now, *(g_ys[i][t] for i in put_out)]
                # What depends on nothing has no gradient to give.
                pairs = [(e, g) for e, g in zip(ends, given, strict=True) if e.requires_grad]
                sources = [now[i] for i in floating] + [slices[i] for i in sliced] + closed_over
                pulled: Sequence[TensorBase | None] = [None] * len(sources)
                if pairs:
                    ends, given = [e for e, _ in pairs], [g for _, g in pairs]
                    pulled = grad(ends, sources, given, allow_unused=True)
            found = [
                s.new_zeros(s.shape) if g is None else g
                for s, g in zip(sources, pulled, strict=True)
            ]
            a, b = len(floating), len(floating) + len(sliced)
            g_xs = [index_put(g, (t,), x) for g, x in zip(g_xs, found[a:b], strict=True)]
            g_captured = [g + x for g, x in zip(g_captured, found[b:], strict=True)]
            return t + (1 if self.reverse else -1), found[:a], g_xs, g_captured

        def more(
            state: tuple[TensorBase, list[TensorBase], list[TensorBase], list[TensorBase]],
        ) -> TensorBase:
            return state[0] < self.n if self.reverse else state[0] >= 0

        rooms = _Rooms([*states, *xs])
        first = (
            _number(start),
            [g_carry[i] for i in floating],
            [rooms.of(xs[i].array.shape, xs[i].array.dtype) for i in sliced],
            [x.new_zeros(x.shape) for x in closed_over],
        )
        _, g_first, g_xs, g_captured = while_loop(more, body, first)
        found: list[TensorBase | None] = [None] * (len(states) + len(xs))
        for i, g in zip(floating, g_first, strict=True):
            found[i] = g
        for i, g in zip(sliced, g_xs, strict=True):
            found[len(states) + i] = g
        return [*found, *g_captured]

    def backward_on_tape(
        self, closed_over: list[TensorBase], gradients: Sequence[TensorBase]
    ) -> list[TensorBase | None]:
        """Do the same with every step on the tape, for derivatives of the gradient."""
        # The step may close over a state or what it takes slices of, too.
        loop = copy.copy(self)
        loop.carry, loop.xs = [another(x) for x in self.carry], [another(x) for x in self.xs]
        sources = [*loop.carry, *loop.xs, *closed_over]
        with cut_off(sources):
            last, ys = loop.unrolled()
            ends = [*flatten(last)[0], *flatten(ys)[0]]
            pairs = [(e, g) for e, g in zip(ends, gradients, strict=True) if e.requires_grad]
            wanted = [x for x in sources if x.requires_grad]
            found = iter(
                grad(
                    [e for e, _ in pairs],
                    wanted,
                    [g for _, g in pairs],
                    create_graph=True,
                    allow_unused=True,
                )
            )
            return [next(found) if x.requires_grad else None for x in sources]


class _Scan(Function):
    """All steps as one operation on the tape."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, loop: _Loop, closed_over: list[TensorBase], *items: TensorBase
    ) -> tuple[TensorBase, ...]:
        count = len(loop.carry)
        carry, xs = list(items[:count]), list(items[count : count + len(loop.xs)])
        last, ys, states, kept = loop.forward(carry, xs, keep=True)
        ctx.loop, ctx.closed_over = loop, closed_over
        ctx.save_for_backward(*states, *xs, *kept)
        for x in (*last, *ys):
            if not is_float(x):
                ctx.mark_non_differentiable(x)
        return (*last, *ys)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: TensorBase) -> tuple[TensorBase | None, ...]:
        loop = ctx.loop
        if grad_enabled():
            return (None, None, *loop.backward_on_tape(ctx.closed_over, gradients))
        count, rest = len(loop.carry), len(loop.carry) + len(loop.xs)
        saved = list(ctx.saved_tensors)
        found = loop.backward(
            saved[:count],
            saved[count:rest],
            saved[rest:],
            ctx.closed_over,
            gradients[:count],
            gradients[count:],
        )
        return (None, None, *found)


def _steps(xs: Tree, length: int | None) -> int:
    sizes = {x.array.shape[0] for x in xs if x.array.ndim}
    if len(sizes) > 1 or any(not x.array.ndim for x in xs):
        raise ShapeError(
            "scan",
            expected="xs of one length along dim 0",
            got=", ".join(str(x.array.shape) for x in xs),
            fix="give every tensor in xs one slice per step, or close over what all steps share",
        )
    if length is None and not sizes:
        raise ArgumentError(
            "scan",
            expected="xs, or length=",
            got="neither",
            fix="write scan(f, init, length=100)",
        )
    n = next(iter(sizes)) if length is None else length
    if isinstance(n, bool) or not hasattr(n, "__index__") or n < 0 or sizes - {n.__index__()}:
        raise ArgumentError(
            "scan",
            expected="length, a count that agrees with xs",
            got=f"length={length!r} and xs of length {', '.join(map(str, sizes)) or 'none'}",
            fix="leave length out",
        )
    return n.__index__()


def _number(n: int) -> TensorBase:
    return as_tensor(n, "scan")


class _Rooms:
    """Makes tensors for one row per step, beside others."""

    def __init__(self, others: list[TensorBase]) -> None:
        # Of constants alone the recorder makes a constant, which a loop has to copy.
        self._like = next((x for x in others if not is_constant(x)), others[0])
        self._count = 0

    def of(self, shape: Shape, dtype: DType) -> TensorBase:
        """Return another tensor, each row of which a step writes before it is read."""
        self._count += 1
        return room(self._like, shape, dtype, self._count)


explain_calls(globals())
