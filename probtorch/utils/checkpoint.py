"""Activation checkpointing: memory for time in the backward pass.

`checkpoint` runs a function and keeps none of what its gradient needs; the backward pass runs it
again, with the random draws of the first run, and goes backwards from there. Gradients are the
same, bit for bit. In a compiled function all is recorded as if it were not there: the compiler
decides itself what is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from probtorch.autograd import tape
from probtorch.autograd.closures import cut_off
from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.listener import Listener
from probtorch.autograd.modes import enable_grad
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, AutogradError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np

    from probtorch.core.op import Attrs, Op, Operand
    from probtorch.core.rng import Generator
    from probtorch.nn.module import Module

__all__ = ["checkpoint", "checkpoint_sequential"]

R = TypeVar("R")


class _Watch(Listener):
    """Hears one run: what it reads from outside, which generators it draws from, what it changes.

    Attributes
    ----------
    outside : dict
        Tensors that need a gradient and that the function did not make, by their ids.
    generators : list of (Generator, state)
        Those that were drawn from, as they were before.
    changed : list of (Tensor, array)
        Tensors from outside that were changed in place, and what they held before.
    names : list of str
        The operations, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outside: dict[int, TensorBase] = {}
        self.generators: list[tuple[Generator, tuple[int, int, int]]] = []
        self.changed: list[tuple[TensorBase, np.ndarray]] = []
        self.names: list[str] = []
        self._made: dict[int, TensorBase] = {}

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: object) -> None:
        """Note what the operation reads and makes."""
        super().applied(op, inputs, attrs, cast(TensorBase, out))
        self.names.append(op.name)
        for x in inputs:
            if isinstance(x, TensorBase) and x.requires_grad and id(x) not in self._made:
                self.outside[id(x)] = x
        for t in out if isinstance(out, tuple) else (out,):
            self._make(cast(TensorBase, t))

    def _make(self, t: TensorBase) -> None:
        self._made[id(t)] = t

    def fresh(self, t: TensorBase) -> None:
        """Note a new tensor."""
        super().fresh(t)
        self._make(t)

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Note another name of a tensor, which is read by it."""
        super().alias(source, t, taped)
        if taped and source.requires_grad and id(source) not in self._made:
            self.outside[id(source)] = source
        self._make(t)

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """Keep what a tensor from outside holds, before it changes."""
        root = target if target._base is None else target._base
        if root.requires_grad and grad_enabled() and id(root) not in self._made:
            raise AutogradError(
                "checkpoint",
                expected="in-place changes, on the tape, of what the function made itself",
                got=f"one of a tensor from outside, of shape {root.array.shape}",
                fix="clone() it in the function, and return the result",
            )
        if id(root) not in self._made and all(root is not t for t, _ in self.changed):
            self.changed.append((root, root.array.copy()))
        super().in_place(target, value)

    def drawn(
        self, what: str, generator: Generator, count: int
    ) -> tuple[TensorBase, TensorBase, TensorBase] | None:
        """Note the state that a generator has before its first draw."""
        if all(generator is not g for g, _ in self.generators):
            self.generators.append((generator, generator.get_state()))
        return super().drawn(what, generator, count)


class _Run:
    """A call that can be repeated as it was."""

    def __init__(
        self,
        call: Callable[[], Tree],
        contexts: Callable[[], tuple[AbstractContextManager, AbstractContextManager]] | None,
        check: bool,
        debug: bool,
        preserve: bool,
    ) -> None:
        self.call, self.check, self.debug, self.preserve = call, check, debug, preserve
        first, self.again = (_nothing(), _nothing()) if contexts is None else contexts()
        self.watch = _Watch()
        with first, self.watch:
            self.found, self.structure = flatten(call())
        self.forms = [_form(x) for x in self.found]
        self.names, self.watch.names = self.watch.names if debug else [], []

    def repeat(self) -> list[TensorBase]:
        """Run again, from the same state; all that this changes is put back."""
        generators = [g for g, _ in self.watch.generators] if self.preserve else []
        states = [g.get_state() for g in generators]
        now = [(t, t.array.copy(), t._version) for t, _ in self.watch.changed]
        heard = _Watch()
        try:
            for g, state in self.watch.generators if self.preserve else ():
                g.set_state(state)
            for t, before in self.watch.changed:
                t.array[...] = before
            with self.again, heard if self.debug else _nothing():
                found, structure = flatten(self.call())
        finally:
            for g, state in zip(generators, states, strict=True):
                g.set_state(state)
            for t, array, version in now:
                t.array[...] = array
                t._version = version
        forms = [_form(x) for x in found]
        if self.check and (structure != self.structure or forms != self.forms):
            details = ""
            if self.debug:
                details = f"; operations {self.names} and then {heard.names}"
            raise AutogradError(
                "checkpoint: the function did otherwise when it was run again",
                expected=f"results {self.forms}, as in the forward pass",
                got=f"{forms}{details}",
                fix="keep what it depends on, besides its arguments, the same until backward()",
            )
        return [cast(TensorBase, x) for x in found]


def _nothing() -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def _apart(x: TensorBase) -> TensorBase:
    return wrap(x.array if x._base is None else x.array.copy())


def _form(x: object) -> object:
    """What has to be the same of a result when it is computed again."""
    return (x.array.shape, str(x.array.dtype)) if isinstance(x, TensorBase) else type(x).__name__


class _Again(Function):
    """A run on the tape: one node, whose gradient runs it again."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, run: _Run, flows: list[int], *sources: TensorBase
    ) -> tuple[TensorBase, ...]:
        ctx.run, ctx.flows = run, flows
        ctx.save_for_backward(*sources)
        # Under new names: the old ones hold the tape of the first run.
        return tuple(_apart(cast(TensorBase, run.found[i])) for i in flows)

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: TensorBase) -> tuple[TensorBase | None, ...]:
        sources, create_graph = ctx.saved_tensors, grad_enabled()
        with enable_grad(), cut_off(sources):
            found = ctx.run.repeat()
            outs = [found[i] for i in ctx.flows]
            gs = tape.grad(outs, sources, cotangents, create_graph=create_graph, allow_unused=True)
        return (None, None, *gs)


def checkpoint(
    function: Callable[..., R],
    *args: object,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[AbstractContextManager, AbstractContextManager]] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    preserve_rng_state: bool = True,
    early_stop: bool = True,
    **kwargs: object,
) -> R:
    """Call a function, and compute it a second time instead of keeping what its gradient needs.

    Parameters
    ----------
    function : callable
        From anything to a tensor or a tree with tensors in it. It may close over others, draw
        random numbers, and change buffers in place: the second run gets what the first one met.
    *args, **kwargs
    use_reentrant : bool, optional
        Accepted for PyTorch's sake; both are the same here.
    context_fn : callable, optional
        Returns two context managers, for the first run and for the second.
    determinism_check : {"default", "none"}
        Whether the results of the second run are to have the form of the first one's.
    debug : bool
        Name the operations of both runs where they do not.
    preserve_rng_state : bool
        Draw the same random numbers again.
    early_stop : bool
        Accepted for PyTorch's sake: the second run always goes to its end.

    Returns
    -------
    What the function returns.

    Raises
    ------
    AutogradError
        By the backward pass, if the second run does otherwise, or a tensor that it reads has
        changed in place since.

    Notes
    -----
    Only where a gradient is wanted, and nobody else listens (as `vmap`, forward mode and
    `probtorch.compile` do), is there anything to save; else this is a plain call.

    References
    ----------
    T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", 2016.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.utils.checkpoint import checkpoint
    >>> x = probtorch.tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(lambda x: (x * x).exp().sum(), x, use_reentrant=False).backward()
    >>> x.grad
    tensor([  5.4366, 218.3926])
    """
    if determinism_check not in ("default", "none"):
        raise ArgumentError(
            "checkpoint",
            expected='determinism_check="default" or "none"',
            got=repr(determinism_check),
            fix="leave it out",
        )

    def call() -> R:
        return function(*args, **kwargs)

    if not grad_enabled() or recorder() is not None:
        return call()
    checked = determinism_check == "default"
    run = _Run(call, context_fn, checked, debug, preserve_rng_state)
    outside = run.watch.outside
    flows = [
        i
        for i, x in enumerate(run.found)
        if isinstance(x, TensorBase)
        and x.requires_grad
        and x.grad_fn is not None
        # What it only hands on has its place on the tape.
        and id(x) not in outside
    ]
    results = list(run.found)
    if flows:
        for i, x in zip(flows, _Again.apply(run, flows, *outside.values()), strict=True):
            results[i] = x
    # From here on only the forms count: with the results the first run's tape goes.
    run.found, run.watch.outside, run.watch._made = [], {}, {}
    return unflatten(run.structure, results)


def checkpoint_sequential(
    functions: Module | Iterable[Callable[[Tree], Tree]],
    segments: int,
    input: Tree,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
) -> Tree:
    """Call functions one after the other, checkpointed in segments of about the same length.

    Parameters
    ----------
    functions : Sequential, or iterable of callables
        Each from the result of the one before it.
    segments : int
        The last one is called plainly, as its backward pass comes first.
    input : tensor or tree
        For the first of them.
    use_reentrant, preserve_rng_state
        See `checkpoint`.

    Returns
    -------
    The result of the last function.

    Raises
    ------
    ArgumentError
        If there are fewer functions than segments.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.utils.checkpoint import checkpoint_sequential
    >>> layers = [probtorch.nn.Linear(3, 3) for _ in range(4)]
    >>> checkpoint_sequential(layers, 2, probtorch.ones(1, 3)).shape
    Size([1, 3])
    """
    children = getattr(functions, "children", None)
    steps: Sequence[Callable[[Tree], Tree]] = list(functions if children is None else children())
    if not 1 <= segments <= len(steps):
        raise ArgumentError(
            "checkpoint_sequential",
            expected=f"between 1 and {len(steps)} segments, the number of functions",
            got=str(segments),
            fix="use fewer segments",
        )
    size = len(steps) // segments

    def through(part: Sequence[Callable[[Tree], Tree]]) -> Callable[[Tree], Tree]:
        def run(x: Tree) -> Tree:
            for step in part:
                x = step(x)
            return x

        return run

    last = size * (segments - 1)
    for start in range(0, last, size):
        input = checkpoint(
            through(steps[start : start + size]),
            input,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )
    return through(steps[last:])(input)


explain_calls(globals())
