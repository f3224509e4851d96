"""`Heard`: what a step of a loop computes that is cheaper to keep than to compute again.

The backward loop of `scan` runs each step again for its tape. Sums over many numbers and matrix
products take long and have few numbers as their result, so the forward loop keeps these, and when
the step is run again they stand for what it computed: the operation is heard of and is on the tape,
but what follows reads what was kept, and the compiler leaves the operation out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probtorch.autograd.listener import Listener
from probtorch.core import told
from probtorch.core.tensor_base import TensorBase

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op, Operand, Output
    from probtorch.core.tree import Structure
    from probtorch.core.typed import DType, Shape, Tree

__all__ = ["Heard", "KeptResult"]

# Numbers that go into each number of a result that is kept: of reductions, and of products, whose
# terms take less time than to read them again would.
LEAST_REDUCED, LEAST_MULTIPLIED = 8, 16


@dataclass(frozen=True)
class KeptResult:
    """What a kept result is: the shape, the dtype, and the trace of all that was done up to it,
    which tells that another run of the step has come to the same place.
    """

    shape: Shape
    dtype: DType
    trace: int


class Heard(Listener):
    """Hears one run of a step, inside its block.

    Parameters
    ----------
    kept : sequence of (KeptResult, Tensor)
        From an earlier run: these stand for the results of this one.

    Attributes
    ----------
    results : list of (KeptResult, Tensor)
        What is worth keeping, in the order in which it was computed.
    """

    def __init__(self, kept: Sequence[tuple[KeptResult, TensorBase]] = ()) -> None:
        self.results: list[tuple[KeptResult, TensorBase]] = []
        self._kept: Iterator[tuple[KeptResult, TensorBase]] = iter(kept)
        self._trace = 0
        self._inside = 0  # operations, loops and branches that are made of what is heard

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Note an operation of the step itself."""
        self._inside += 1
        try:
            super().applied(op, inputs, attrs, out)
        finally:
            self._inside -= 1
        if self._inside:
            return
        first = out[0] if isinstance(out, tuple) else out
        shape, dtype = first.array.shape, first.array.dtype
        self._trace = hash((self._trace, op.name, shape, dtype.str))
        if first is out and _worth_keeping(op, inputs, out):
            result = KeptResult(shape, dtype, self._trace)
            self.results.append((result, out))
            expected, before = next(self._kept, (None, None))
            if before is not None and expected == result:
                told.alias(before, out, taped=False)

    @property
    def records_loops(self) -> bool:
        """Whether who listens further out takes loops whole."""
        return self.outer is not None and self.outer.records_loops

    def while_loop(
        self,
        cond_fn: Callable[[Tree], TensorBase],
        body_fn: Callable[[Tree], Tree],
        items: Sequence[TensorBase],
        structure: Structure,
    ) -> Tree:
        """Let a loop within the step be taken whole."""
        assert self.outer is not None
        return self._made_of(self.outer.while_loop, cond_fn, body_fn, items, structure)

    def cond(
        self,
        pred: TensorBase,
        true_fn: Callable[..., Tree],
        false_fn: Callable[..., Tree],
        items: Sequence[TensorBase],
        structure: Structure,
    ) -> Tree:
        """Let a branch within the step be taken whole."""
        assert self.outer is not None
        return self._made_of(self.outer.cond, pred, true_fn, false_fn, items, structure)

    def _made_of(self, take: Callable[..., Tree], *arguments: object) -> Tree:
        self._inside += 1
        try:
            return take(*arguments)
        finally:
            self._inside -= 1


def _worth_keeping(op: Op, inputs: tuple[Operand, ...], out: TensorBase) -> bool:
    """Whether a result takes long to compute for the numbers that it has."""
    if out.array.dtype.kind != "f" or not out.array.size or "picks" in op.extra:
        # Elements that are computed again may differ in the last bit from one that was picked.
        return False
    sizes = [x.array.size for x in inputs if isinstance(x, TensorBase)]
    if op.family == "reduction":
        return max(sizes) >= LEAST_REDUCED * out.array.size
    if op.family == "contraction":
        return math.prod(sizes[:2]) >= LEAST_MULTIPLIED**2 * out.array.size
    return False
