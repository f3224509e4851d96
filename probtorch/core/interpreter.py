"""`Interpreter`: all that can be heard of a computation while it runs, and asked of who listens.

Eager execution computes and tapes. Whoever wants more of it installs an interpreter: the compiler's
recorder builds a graph, `vmap` carries out each operation on all slices, forward mode pushes
tangents, others watch for nan or for values that leave the tape. They nest: each has the one that
was there before it as its `outer`.

Every event is defined here, once, with its types. What stands in its body is what holds where
nobody listens, eager execution; an interpreter that does not override it hands it on to the next
one outwards, and one that does calls ``super()`` to hand it on. So code that has an event to tell
tells it, and never asks who listens.

Events come through core/dispatch.py (operations) and core/told.py (what Python reads, random bits,
other names of a tensor). Read autograd/listener.py for how one is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from probtorch.core.printing import shown_at
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, unflatten

if TYPE_CHECKING:
    from probtorch.autograd.function import Function, FunctionCtx
    from probtorch.core.dispatch import TapeNode
    from probtorch.core.op import Attrs, Op, Operand, Output
    from probtorch.core.rng import Generator


__all__ = ["NUMBERS", "Interpreter"]

# What Python reads of a tensor that a replay can compare with what it finds.
NUMBERS = (bool, int, float, complex)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")
I = TypeVar("I", bound="Interpreter")


def event(eager: Callable[Concatenate[I, P], R]) -> Callable[Concatenate[I, P], R]:
    """Hand an event on to the next interpreter outwards; without one, the function itself holds."""
    name = eager.__name__

    @functools.wraps(eager)
    def told(self: I, /, *args: P.args, **kwargs: P.kwargs) -> R:
        outer = self.outer
        if outer is None:
            return eager(self, *args, **kwargs)
        return getattr(outer, name)(*args, **kwargs)

    return told


class Interpreter:
    """Base class of all that hear of a computation; see the module docstring.

    Attributes
    ----------
    outer : Interpreter or None
        The next one outwards.
    """

    outer: Interpreter | None = None

    # ---------------------------------------------------------------------------------- operations

    # Heard at every operation, and so written out: `event` takes a microsecond.
    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """An operation was carried out and put on the tape; `out` is a tensor or a tuple."""
        if self.outer is not None:
            self.outer.applied(op, inputs, attrs, out)

    def fresh(self, t: TensorBase) -> None:
        """The tensor `t` came into being, with memory of its own."""
        if self.outer is not None:
            self.outer.fresh(t)

    @event
    def op_failed(
        self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, error: BaseException
    ) -> None:
        """An operation raised `error`."""

    @event
    def raised(self, error: BaseException) -> None:
        """An error was made that depends on the elements of tensors."""

    @event
    def function_begins(self, function: type) -> None:
        """The forward pass of a custom `Function` begins; its operations are heard one by one."""

    @event
    def function_ends(self, function: type) -> None:
        """It ended, well or not."""

    @event
    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Sequence[object],
        outs: Sequence[TensorBase],
    ) -> None:
        """A custom `Function` was carried out and put on the tape as one node."""

    @event
    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """The tensor `t` has the elements of `source`, and where `taped` its gradient too."""

    @event
    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """The tensor `target` is about to take the elements of `value`."""

    # ------------------------------------------------------------------------------------- Python

    @event
    def read(self, what: str, t: TensorBase | None, value: T) -> T:
        """Python reads `value` out of the tensor `t`; returns what it gets. See `told.read`."""
        return value

    @event
    def not_one(self, what: str, t: TensorBase) -> None:
        """Python asked for the one element of `t`, which has another number of them."""

    @event
    def shown(self, t: TensorBase) -> str:
        """Python reads `t`; returns "value" if only to show it to people, "shape" if its elements
        are not to be shown, "" if they may come back. Of what is shown nothing else is told.
        """
        return "" if shown_at() is None else "value"

    @event
    def entered(self, value: object, t: TensorBase) -> None:
        """Python's `value` became the tensor `t`."""

    @event
    def named(self, t: TensorBase, name: str) -> None:
        """Messages call the tensor `t` by this name."""

    @event
    def layout_read(self) -> None:
        """Python looks at how elements lie in memory."""

    @event
    def who_asked(self, t: TensorBase) -> None:
        """Python asks for the hash of a tensor."""

    @event
    def number(self, table: dict[str, T], key: str) -> T:
        """One of our objects reads a number, or a tuple of them, out of a dict of options; returns
        what it computes with: tensors where a replay reads the numbers anew.
        """
        return table[key]

    @event
    def numbers_shown(self) -> None:
        """Python looks at such numbers by itself."""

    @event
    def act(
        self,
        method: Callable[..., R],
        owner: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> R:
        """Call a method of ours that changes such numbers and nothing else; a replay does, too."""
        return method(owner, *args, **kwargs)

    # ------------------------------------------------------------------------------------ the tape

    @event
    def gradient_kept(self, leaf: TensorBase) -> None:
        """Something is about to be put into the `.grad` of `leaf`, or taken away."""

    @event
    def gradient_read(self, t: TensorBase) -> None:
        """Python looks at the `.grad` of `t`."""

    @event
    def cotangent(self, node: TapeNode, i: int, g: TensorBase) -> None:
        """A backward pass found the cotangent `g` of input `i` of a node."""

    @event
    def differentiated(self, leaf: TensorBase) -> None:
        """A gradient reached a leaf, before its hooks see it."""

    @event
    def place_changed(self, t: TensorBase, what: str) -> None:
        """Python changes what `t` is on the tape."""

    @event
    def attached(self) -> None:
        """A custom `Function` puts what it just computed on the tape, by a rule of its own."""

    # ------------------------------------------------------------------------------- random numbers

    @event
    def drawn(
        self, what: str, generator: Generator, count: int
    ) -> tuple[TensorBase, TensorBase, TensorBase] | None:
        """The function `what` draws; returns seed, stream and first counter as 0-d int64 tensors,
        or None if the caller is to reserve them itself. See `told.drawn`.
        """
        return None

    @event
    def restarted(self, generator: Generator, how: str) -> None:
        """A generator was "made", "seeded", "set" or "looked at", or has "spawned" others."""

    # ---------------------------------------------------------------------- what holds of values

    @event
    def is_constant(self, t: TensorBase) -> bool:
        """Whether the elements of `t` are the same at every replay and for every slice."""
        return True

    @event
    def demand(self, inside: TensorBase, error: Callable[[], Exception]) -> None:
        """Raise ``error()`` unless a boolean tensor is true throughout, here and at each replay."""
        if not inside.array.all():
            raise error()

    @event
    def excuses(self, inside: TensorBase) -> bool:
        """Whether a boolean tensor may be False in places: it is about what need not happen."""
        return False

    @event
    def demanded(self, t: TensorBase, constraint: object) -> bool:
        """Whether `t` was tested for a constraint before; from now on it was, or all is over."""
        return False

    @event
    def without_nan(self, t: TensorBase) -> bool:
        """Whether it is seen to elsewhere that `t` has no nan."""
        return False

    @property
    def reruns(self) -> bool:
        """Whether what happens is carried out again: on other slices, or by a replay."""
        return self.outer is not None and self.outer.reruns

    @property
    def pushes_tangents(self) -> bool:
        """Whether forward mode is on, here or further out."""
        return self.outer is not None and self.outer.pushes_tangents

    # --------------------------------------------------------------------------- loops and branches

    @property
    def records_loops(self) -> bool:
        """Whether loops and branches are taken whole; most hear of their steps one by one."""
        return False

    def while_loop(
        self,
        cond_fn: Callable[[S], TensorBase],
        body_fn: Callable[[S], S],
        items: Sequence[TensorBase],
        structure: Structure,
    ) -> S:
        """Take a loop whole, as ops/control.py states it, from the leaves of its first state;
        NotImplemented where it is to be its steps after all.

        Asked for only where `records_loops`; elsewhere it is its steps.
        """
        state: S = unflatten(structure, items)
        while bool(cond_fn(state)):
            state = body_fn(state)
        return state

    def cond(
        self,
        pred: TensorBase,
        true_fn: Callable[..., R],
        false_fn: Callable[..., R],
        items: Sequence[TensorBase],
        structure: Structure,
    ) -> R:
        """Take a branch whole, or return NotImplemented; asked for only where `records_loops`,
        elsewhere it is one side.
        """
        return (true_fn if bool(pred) else false_fn)(*unflatten(structure, items))

    @event
    def batched(self, t: TensorBase) -> bool:
        """Whether `t` differs between the slices of a `vmap` around this."""
        return False

    @event
    def holds_somewhere(self, t: TensorBase) -> bool:
        """Whether a boolean tensor with one element is true in any slice of the vmaps around."""
        return bool(t)

    @event
    def of_one_where(self, test: TensorBase, t: TensorBase) -> TensorBase:
        """Return `t` of one slice for which a test, which differs between slices, holds."""
        return t
