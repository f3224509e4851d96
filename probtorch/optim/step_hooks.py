"""Functions called before and after each step of an optimizer.

An optimizer without them pays nothing: the first one that is registered puts a function around
`step` of that object, and the last one that is removed takes it off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeAlias

from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    from probtorch.optim.optimizer import Optimizer

__all__ = ["StepHook", "StepHookHandle", "add_step_hook"]

# Called as ``hook(optimizer, args, kwargs)``, with the arguments of `step`; the first of `args` is
# the optimizer itself, as in PyTorch.
StepHook: TypeAlias = Callable[..., object]


class StepHookHandle:
    """Takes a hook off again: by `remove()`, or at the end of a ``with`` block."""

    def __init__(self, optimizer: Optimizer, table: dict[object, StepHook], hook: StepHook) -> None:
        self._optimizer, self._table, self._key = optimizer, table, object()
        table[self._key] = hook

    def remove(self) -> None:
        """Take the hook off; a second call does nothing."""
        self._table.pop(self._key, None)
        around = vars(self._optimizer).get("step")
        if isinstance(around, _Around) and not (around.before or around.after):
            del self._optimizer.step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class _Around:
    """`step` of one optimizer with what is called around it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.before: dict[object, StepHook] = {}
        self.after: dict[object, StepHook] = {}

    def __call__(self, *args: object, **kwargs: object) -> object:
        for hook in list(self.before.values()):
            found = hook(self.optimizer, (self.optimizer, *args), kwargs)
            if found is None:
                continue
            if not (isinstance(found, tuple) and len(found) == 2):
                raise ArgumentError(
                    "optimizer step pre-hook",
                    expected="None, or a pair (args, kwargs)",
                    got=type(found).__name__,
                    fix="return the arguments of step and its keyword arguments",
                )
            args, kwargs = found
            args = args[1:] if args and args[0] is self.optimizer else args
        result = type(self.optimizer).step(self.optimizer, *args, **kwargs)  # type: ignore[call-overload]
        for hook in list(self.after.values()):
            hook(self.optimizer, (self.optimizer, *args), kwargs)
        return result


def add_step_hook(optimizer: Optimizer, hook: StepHook, *, before: bool) -> StepHookHandle:
    """Have `hook` called at each step of `optimizer`, and return its handle."""
    if not callable(hook):
        raise ArgumentError(
            "optimizer step hook",
            expected="a function",
            got=f"{type(hook).__name__} {hook!r:.40}",
            fix="pass the function itself, without calling it",
        )
    around = vars(optimizer).get("step")
    if not isinstance(around, _Around):
        around = _Around(optimizer)
        optimizer.step = around  # type: ignore[assignment, method-assign]  # of this object alone
    return StepHookHandle(optimizer, around.before if before else around.after, hook)
