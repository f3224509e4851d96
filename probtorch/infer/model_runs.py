"""How inference runs a model: in float64, and under what held where inference was set up.

Read effects/runtime.py first: `RunSurroundings` keeps a copy of its state.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np

from probtorch.compiler.record.record import OUTSIDE
from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.dtype import default_dtype_as, float64
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tensor_base import TensorBase, is_tensor
from probtorch.core.tree import map_tree
from probtorch.effects.handlers import block, seed, trace
from probtorch.effects.row_blocks import RowBlocks
from probtorch.effects.runtime import STATE, Handler, generator_in_force
from probtorch.effects.trace import Trace
from probtorch.errors import DomainError

__all__ = [
    "OUTSIDE",
    "RunSurroundings",
    "check_densities",
    "in_float64",
    "leave_no_garbage",
    "lifted",
    "out_of_sight",
    "untraced",
]

# Bytes of observed data from which on memory is worth the time to look for it.
LARGE = 2**25


def in_float64() -> default_dtype_as:
    """Return a context in which Python numbers and 0-d tensors are no narrower than float64."""
    return default_dtype_as(float64, strong_scalars=True)


T = TypeVar("T")


def lifted(tree: T) -> T:
    """Return `tree` with floating tensors and arrays as float64, everything else as it is."""

    def lift(x: TensorBase | np.ndarray) -> TensorBase | np.ndarray:
        if is_tensor(x):
            return cast(x, float64) if x.array.dtype.kind == "f" else x
        # By the type: a proxy may have nothing to say of its class.
        if issubclass(type(x), np.ndarray) and x.dtype.kind == "f":
            return x.astype(float64, copy=False)  # type: ignore[union-attr]  # an array, as asked
        return x

    return map_tree(lift, tree)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Context manager: traces around see nothing, and other handlers go on."""
    before = STATE.handlers
    STATE.handlers = tuple(h for h in before if not isinstance(h, trace))
    try:
        yield
    finally:
        STATE.handlers = before


@contextlib.contextmanager
def out_of_sight(*others: AbstractContextManager[object], precise: bool = False) -> Iterator[Trace]:
    """Context manager for a run to look at a model: nobody around notices, and nothing is drawn
    that would have been drawn later. Yields its trace.

    Parameters
    ----------
    *others : context managers
        Further ones, from the outermost of handlers to the innermost.
    precise : bool
        Whether Python numbers are float64.
    """
    in_force = generator_in_force() or default_generator
    with contextlib.ExitStack() as stack:
        if precise:
            stack.enter_context(in_float64())
        stack.enter_context(block())
        seen = stack.enter_context(trace())
        stack.enter_context(seed(None, Generator(*in_force.get_state())))
        for other in others:
            stack.enter_context(other)
        yield seen


class RunSurroundings:
    """The handlers, plates and parameters in force here, for runs in other threads and later.

    Traces are left out: they would see every site again at every run. Loaders give all their rows.

    Attributes
    ----------
    handlers : tuple of Handler
    rows : RowBlocks
        Where plates with loaders get their rows from.
    """

    def __init__(self) -> None:
        with untraced():
            self.handlers = STATE.handlers
        self.rows = RowBlocks(lifted)
        self._rest = STATE.plates, STATE.params, self.rows

    @contextlib.contextmanager
    def under(self, *handlers: Handler) -> Iterator[None]:
        """Return a context in which they hold again, under further handlers, outermost first."""
        before = STATE.handlers, STATE.plates, STATE.params, STATE.rows
        STATE.handlers = handlers + self.handlers
        STATE.plates, STATE.params, STATE.rows = self._rest
        try:
            with in_float64():
                yield
        finally:
            STATE.handlers, STATE.plates, STATE.params, STATE.rows = before


def check_densities(first: Trace) -> None:
    """Check shapes and plates of a first run, off the tape, which would keep all it computes.

    Data outside the support are told of by `initial`: a support may depend on latent sites, and
    hold the data elsewhere.
    """
    before = set_grad_enabled(False)
    try:
        for site in first.values():
            if site.has_density:
                with contextlib.suppress(DomainError):
                    site.compute_log_prob()
    finally:
        set_grad_enabled(before)


def leave_no_garbage(observed: Iterable[np.ndarray]) -> None:
    """Look for what a first run of many rows left on its tape: else it waits for its turn."""
    if any(array.nbytes >= LARGE for array in observed):
        gc.collect()
