"""What a loop needs to know of the function it repeats: `captured`, `cut_off`, `stand_in`.

`scan` and the solvers of `ode` run a user's function many times inside native loops and pull
gradients back through it step by step. What the function closes over is found by watching one call
(`captured`); when a step is run again for its gradient, those tensors are leaves (`cut_off`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from probtorch.autograd.listener import Listener
from probtorch.autograd.modes import enable_grad
from probtorch.core.dispatch import set_recorder
from probtorch.core.history import refresh
from probtorch.core.interpreter import NUMBERS
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import unflatten
from probtorch.errors import user_location
from probtorch.ops.control import cond, while_loop

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op, Operand, Output
    from probtorch.core.rng import Generator
    from probtorch.core.tree import Structure
    from probtorch.core.typed import Tree

__all__ = ["captured", "cut_off", "is_float", "stand_in"]

T = TypeVar("T")


def captured(
    fn: Callable[[], object],
    own: list[TensorBase],
    branches: bool = False,
    others: list[TensorBase] | None = None,
    refusals: list[str] | None = None,
) -> list[TensorBase] | None:
    """Call ``fn()`` off the record, and return what it closes over that needs a gradient.

    Parameters
    ----------
    fn : callable
    own : list of Tensor
        What it is called with in fact: stand-ins of states and slices.
    branches : bool
        Whether Python may branch on tensors in it; then the call always comes to its end.
    others : list, optional
        Gets the other tensors that it closes over.
    refusals : list, optional
        Gets what it does that may not happen twice, or is no part of a result: in words, and where.

    Returns
    -------
    list of Tensor, or None
        None if it cannot be recorded once for all steps: it branches on a tensor, draws, or
        changes a tensor from outside.
    """
    probe = _Probe(own, branches)
    before = set_recorder(None)
    try:
        with probe, enable_grad():
            fn()
    except _Unrolled:
        return None
    finally:
        set_recorder(before)
    if refusals is not None:
        refusals += probe.refusals
    if probe.refused:
        return None
    if others is not None:
        needed = {id(t) for t in probe.captured}
        others += [t for t in probe.outside.values() if id(t) not in needed]
    return probe.captured


def stand_in(x: TensorBase) -> TensorBase:
    """A leaf on the same memory, for the tape of one step."""
    t = x.detach()
    if is_float(t):
        t.requires_grad_()
    return t


@contextlib.contextmanager
def cut_off(tensors: Iterable[TensorBase]) -> Iterator[None]:
    """Context manager: tensors are leaves, so that a gradient stops at each of them.

    A step closes over them, so nothing can be put in their place; and one may depend on another,
    whose gradient would else count twice.
    """
    for t in tensors:
        refresh(t)
    before = [(t.grad_fn, t._index) for t in tensors]
    # Whoever asked for the gradient runs the hooks.
    hooks = [t._extra.pop("hooks", None) if t._extra else None for t in tensors]
    try:
        for t in tensors:
            t.grad_fn = None
        yield
    finally:
        for t, (grad_fn, index), table in zip(tensors, before, hooks, strict=True):
            t.grad_fn, t._index = grad_fn, index
            if table is not None:
                assert t._extra is not None  # they were taken out of it
                t._extra["hooks"] = table


def is_float(x: TensorBase) -> bool:
    """Whether a tensor may have a gradient."""
    return x.array.dtype.kind in "fc"


class _Unrolled(Exception):
    """A step did what cannot be recorded once for all steps."""


class _Probe(Listener):
    """Watches a step: which tensors from outside need a gradient, and whether it can be rolled."""

    reruns = True

    def __init__(self, own: Iterable[TensorBase], branches: bool) -> None:
        super().__init__()
        self.branches = branches
        self.depth = 0  # of loops and branches within the step
        self.own = {id(t): t for t in own}
        self.captured = []
        self.outside = {}
        self.refused = False
        self.refusals = []

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Note inputs that no earlier operation of the step made."""
        for x in inputs:
            if isinstance(x, TensorBase) and id(x) not in self.own and id(x) not in self.outside:
                self.outside[id(x)] = x
                if x.requires_grad and is_float(x):
                    self.captured.append(x)
        self._made(*(out if type(out) is tuple else (out,)))

    def _made(self, *tensors: TensorBase) -> None:
        self.own.update((id(t), t) for t in tensors)

    def fresh(self, t: TensorBase) -> None:
        """Note a new tensor."""
        self._made(t)

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Note another name."""
        self._made(t)

    def read(self, what: str, t: TensorBase | None, value: T) -> T:
        """Refuse Python branches on tensors, but those of inner loops, and other reads."""
        test = self.depth and isinstance(value, NUMBERS)
        if t is not None and not (test or self.branches):
            raise _Unrolled
        return value

    def drawn(self, what: str, generator: Generator, count: int) -> None:
        """Refuse a random draw."""
        self._refuse(f"{what}: a draw in a call whose result needs a gradient")

    def gradient_read(self, t: TensorBase) -> None:
        """Refuse to look at what an earlier backward pass left."""
        self._from_outside(t, "a read of .grad")

    def gradient_kept(self, leaf: TensorBase) -> None:
        """Refuse to leave a gradient with a tensor from outside."""
        if self._is_outside(leaf):
            self._refuse(
                "a result that needs a gradient, where backward() in the call leaves gradients "
                "with tensors outside: return loss.detach(), or leave out retain_graph=True"
            )

    def place_changed(self, t: TensorBase, what: str) -> None:
        """Refuse to change what a tensor from outside is on the tape."""
        self._from_outside(t, what)

    def differentiated(self, leaf: TensorBase) -> None:
        """Let gradients be taken; hooks are looked for before each call."""

    def _from_outside(self, t: TensorBase, what: str) -> None:
        if self._is_outside(t):
            self._refuse(f"{what} of an argument or of a tensor made outside")

    def _is_outside(self, t: TensorBase) -> bool:
        return id(t) not in self.own or (t._extra is not None and "stands_for" in t._extra)

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """Refuse a change of a tensor from outside."""
        if id(target) not in self.own:
            self._refuse("a change of a tensor outside, in a call whose result needs a gradient")

    def _refuse(self, what: str) -> None:
        self.refusals.append((what, user_location(2)))
        self.refused = True
        if not self.branches:
            raise _Unrolled

    def is_constant(self, t: TensorBase) -> bool:
        """Nothing is: all steps have to be the same."""
        return False

    @property
    def records_loops(self) -> bool:
        """Loops and branches of the step itself are; within them Python's own run."""
        return not self.depth

    def while_loop(
        self,
        cond_fn: Callable[..., TensorBase],
        body_fn: Callable[..., Tree],
        items: Sequence[TensorBase],
        structure: Structure,
    ) -> Tree:
        """Run a loop within the step."""
        return self._inner(while_loop, cond_fn, body_fn, unflatten(structure, items))

    def cond(
        self,
        pred: TensorBase,
        true_fn: Callable[..., Tree],
        false_fn: Callable[..., Tree],
        items: Sequence[TensorBase],
        structure: Structure,
    ) -> Tree:
        """Run a branch within the step."""
        return self._inner(cond, pred, true_fn, false_fn, *unflatten(structure, items))

    def _inner(self, run: Callable[..., Tree], *arguments: object) -> Tree:
        # As Python's own, whose tests are no guards.
        self.depth += 1
        try:
            return run(*arguments)
        finally:
            self.depth -= 1
