"""The values of a loop that is being recorded: of a long one, most turns run in native code.

A recording needs the numbers that a loop ends with, for what Python reads afterwards and for the
result of the call that is recorded. Python's own turns cost a thousand times what native ones do,
so after `TURNS` of them the loop alone is recorded once more, compiled, and run from where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.compiler.native.interrupts import raise_pending
from probtorch.compiler.run.prepare import prepare
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import CompileError
from probtorch.ops.control import while_loop

if TYPE_CHECKING:
    from probtorch.compiler.record.recording import Recording

__all__ = ["TURNS", "final_state"]

# Turns that Python takes: as long as it takes to compile a small loop, about.
TURNS = 64


def final_state(
    cond_fn: Callable[[Tree], TensorBase],
    body_fn: Callable[[Tree], Tree],
    items: list[TensorBase],
    structure: Structure,
    bodies: Iterable[Recording],
    record: Callable[..., tuple[Recording, Tree]],
) -> tuple[list[TensorBase], float]:
    """Return what the state of a loop, whose parts were recorded as `bodies`, is at its end; and
    the seconds that Python would have taken for what native code did.

    To be called while nobody listens. `record` is that of record.py.
    """
    turns = iter(range(TURNS))

    def more(state: Tree) -> TensorBase:
        return wrap(np.array(False)) if next(turns, None) is None else cond_fn(state)

    began = time.perf_counter()
    state = while_loop(more, body_fn, unflatten(structure, items))
    seconds = time.perf_counter() - began
    if next(turns, None) is not None or not bool(cond_fn(state)):
        return flatten(state)[0], 0.0
    items = flatten(state)[0]
    found = _natively(cond_fn, body_fn, items, structure, list(_closed_over(bodies)), record)
    if found is not None:
        *items, count = found
        return items, seconds / TURNS * int(count.array)
    return flatten(while_loop(cond_fn, body_fn, state))[0], 0.0


def _closed_over(bodies: Iterable[Recording]) -> Iterator[TensorBase]:
    """Yield the tensors that a loop reads besides its state, each once."""
    seen = set()
    for body in bodies:
        own = {id(t) for t in body.given}
        for t in body.met():
            if id(t) not in own | seen:
                seen.add(id(t))
                yield t


def _natively(
    cond_fn: Callable[[Tree], TensorBase],
    body_fn: Callable[[Tree], Tree],
    items: list[TensorBase],
    structure: Structure,
    closed_over: list[TensorBase],
    record: Callable[..., tuple[Recording, Tree]],
) -> list[TensorBase] | None:
    """Run the loop to its end in native code; None where it cannot be, or gives up.

    Behind the state comes the number of turns that it took.
    """
    if any(device_of(t.array) != "cpu" for t in (*items, *closed_over)):
        return None
    own = [wrap(x.array.copy(order="C")) for x in items]
    own.append(wrap(np.array(0)))

    def loop(*leaves: TensorBase) -> Tree:
        *state, count = leaves[: len(own)]
        return while_loop(
            lambda s: cond_fn(s[0]),
            lambda s: (body_fn(s[0]), s[1] + 1),
            (unflatten(structure, state), count),
        )

    try:
        with np.errstate(all="ignore"):
            recorded, _ = record(loop, [*own, *closed_over], abstract=True)
        if recorded.unsupported:
            return None
        frame = prepare(recorded.graph).bind()
    except CompileError:
        return None
    outputs = frame.new_outputs()
    if frame.run([np.ascontiguousarray(t.array) for t in (*own, *closed_over)], outputs):
        raise_pending()
        return None
    return [wrap(x) for x in outputs]
