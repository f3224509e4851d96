"""Hooks of a module: functions called around its passes forward and backward, and its state.

A module without hooks holds None and pays one comparison per call. The backward hooks stand on two
identity nodes on the tape: one behind the outputs, where the cotangents come in, and one before the
inputs, where they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Self, TypeAlias

from probtorch.autograd.function import Function, FunctionCtx
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.nn.module import Module

__all__ = ["Entry", "Hook", "Hooks", "RemovableHandle"]


# Called as ``hook(module, ...)``; what it returns, if anything, replaces what it was shown.
Hook: TypeAlias = Callable[..., object]
Entry: TypeAlias = tuple[Hook, dict[str, bool]]
Arguments: TypeAlias = tuple[object, ...]
Gradients: TypeAlias = tuple[Tensor | None, ...]


class RemovableHandle:
    """Takes a hook off again: by `remove()`, or at the end of a ``with`` block."""

    def __init__(
        self,
        table: dict[object, Entry],
        hook: Hook,
        extra: dict[str, bool],
        prepend: bool,
    ) -> None:
        self._table = table
        self._key = object()
        entries = list(table.items())
        table.clear()
        table.update([(self._key, (hook, extra)), *entries] if prepend else entries)
        table[self._key] = (hook, extra)

    def remove(self) -> None:
        """Take the hook off; a second call does nothing."""
        self._table.pop(self._key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one module, by kind, each with its options, in the order of calling."""

    KINDS = (
        *("forward_pre", "forward", "backward_pre", "backward"),
        *("state_pre", "state", "load_pre", "load_post"),  # called by state.py
    )

    def __init__(self) -> None:
        self.tables: dict[str, dict[object, Entry]] = {kind: {} for kind in self.KINDS}
        self.compiled: Callable[..., object] | None = None  # what calls go through, see `compile`

    def add(
        self, kind: str, hook: Hook, *, prepend: bool = False, **options: bool
    ) -> RemovableHandle:
        """Register `hook` under `kind` and return its handle."""
        if not callable(hook):
            raise ArgumentError(
                f"register_{kind}_hook",
                expected="a function",
                got=f"{type(hook).__name__} {hook!r:.40}",
                fix="pass the function itself, without calling it",
            )
        return RemovableHandle(self.tables[kind], hook, options, prepend)

    def __deepcopy__(self, memo: dict[int, object]) -> Hooks:
        # Functions are shared, methods of the module become those of the copy, and the tables are
        # its own: a copy can lose a hook.
        out = Hooks()
        for kind, table in self.tables.items():
            out.tables[kind].update((object(), deepcopy(e, memo)) for e in table.values())
        return out

    def __getstate__(self) -> dict[str, object]:
        # What was compiled stays behind.
        return {**self.__dict__, "compiled": None}

    def compile(self, module: Module, options: Mapping[str, object]) -> None:
        """Have calls of `module` compiled from now on, its hooks among them."""
        # Here, as the compiler takes long to import and most networks do without.
        from probtorch.compiler.compile import compile

        def run(*args: object, **kwargs: object) -> object:
            return self._call(module, args, kwargs)

        self.compiled = compile(run, **options)

    def call(self, module: Module, args: Arguments, kwargs: dict[str, object]) -> object:
        """Run the forward pass of `module` with its hooks, compiled if that was asked for."""
        if self.compiled is not None:
            return self.compiled(*args, **kwargs)
        return self._call(module, args, kwargs)

    def _call(self, module: Module, args: Arguments, kwargs: dict[str, object]) -> object:
        failed, done = True, set()
        result = None
        try:
            result = self._forward(module, args, kwargs, done)
            failed = False
        finally:
            if failed:
                for key, (hook, options) in list(self.tables["forward"].items()):
                    if options["always_call"] and key not in done:
                        _call_forward(hook, options, module, args, kwargs, result)
        return result

    def _forward(
        self, module: Module, args: Arguments, kwargs: dict[str, object], done: set[object]
    ) -> object:
        for hook, options in list(self.tables["forward_pre"].values()):
            args, kwargs = _changed_arguments(hook, options, module, args, kwargs)
        watch = None
        if self.tables["backward"] or self.tables["backward_pre"]:
            watch = _Watch(self, module)
            args = watch.behind_inputs(args)
        result = module.forward(*args, **kwargs)
        for key, (hook, options) in list(self.tables["forward"].items()):
            done.add(key)
            replaced = _call_forward(hook, options, module, args, kwargs, result)
            result = result if replaced is None else replaced
        return result if watch is None else watch.before_outputs(result)


def _changed_arguments(
    hook: Hook,
    options: Mapping[str, bool],
    module: object,
    args: Arguments,
    kwargs: dict[str, object],
) -> tuple[Arguments, dict[str, object]]:
    if not options["with_kwargs"]:
        found = hook(module, args)
        if found is None:
            return args, kwargs
        return (found if isinstance(found, tuple) else (found,)), kwargs
    found = hook(module, args, kwargs)
    if found is None:
        return args, kwargs
    if not (isinstance(found, tuple) and len(found) == 2):
        raise ArgumentError(
            "forward pre-hook with_kwargs=True",
            expected="None, or a pair (args, kwargs)",
            got=f"{type(found).__name__}",
            fix="return the arguments and the keyword arguments",
        )
    return found


def _call_forward(
    hook: Hook,
    options: Mapping[str, bool],
    module: object,
    args: Arguments,
    kwargs: dict[str, object],
    result: object,
) -> object:
    if options["with_kwargs"]:
        return hook(module, args, kwargs, result)
    return hook(module, args, result)


class _Watch:
    """Carries the cotangents of one call of a module to its backward hooks."""

    def __init__(self, hooks: Hooks, module: object) -> None:
        self.hooks, self.module = hooks, module
        self.grad_outputs: Gradients | None = None
        self.has_inputs = False

    def behind_inputs(self, args: Arguments) -> Arguments:
        positions = [i for i, a in enumerate(args) if isinstance(a, TensorBase)]
        self.has_inputs = any(a.requires_grad for a in args if isinstance(a, TensorBase))
        if not self.has_inputs:
            return args
        same = _Identity.apply(self.leave, *(args[i] for i in positions))
        given = list(args)
        for i, t in zip(positions, same if isinstance(same, tuple) else (same,)):
            given[i] = t
        return tuple(given)

    def before_outputs(self, result: Tree) -> Tree:
        items, structure = flatten(result)
        positions = [i for i, a in enumerate(items) if isinstance(a, TensorBase)]
        if not any(items[i].requires_grad for i in positions):
            return result
        same = _Identity.apply(self.enter, *(items[i] for i in positions))
        for i, t in zip(positions, same if isinstance(same, tuple) else (same,)):
            items[i] = t
        return unflatten(structure, items)

    def enter(self, grads: Gradients) -> Gradients:
        """Take the cotangents of the outputs, which backward pre-hooks may replace."""
        for hook, _ in list(self.hooks.tables["backward_pre"].values()):
            grads = _replaced(hook(self.module, grads), grads, "backward pre-hook")
        self.grad_outputs = grads
        if not self.has_inputs:
            self._tell((None,))
        return grads

    def leave(self, grads: Gradients) -> Gradients:
        """Take the cotangents of the inputs, which backward hooks may replace."""
        return self._tell(grads)

    def _tell(self, grads: Gradients) -> Gradients:
        for hook, _ in list(self.hooks.tables["backward"].values()):
            found = hook(self.module, grads, self.grad_outputs)
            grads = _replaced(found, grads, "full backward hook")
        return grads


def _replaced(found: object, grads: Gradients, what: str) -> Gradients:
    if found is None:
        return grads
    found = found if isinstance(found, (tuple, list)) else (found,)
    if len(found) != len(grads):
        raise ArgumentError(
            what,
            expected=f"None, or {len(grads)} gradients",
            got=str(len(found)),
            fix="return one gradient (or None) per tensor",
        )
    return tuple(found)


class _Identity(Function):
    """Passes tensors through; going back, shows all their cotangents to one function."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, see: Callable[[Gradients], Gradients], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.see = see
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.see(grads)
