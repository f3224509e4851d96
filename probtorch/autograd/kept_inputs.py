"""Large operands that no gradient reads: the tape keeps their place, and not their elements.

A node keeps its operands, so that their history can be followed in place. Of a density of many rows
that is every intermediate result, several times the data, and half of them nobody reads again: what
was added, subtracted, negated or summed. `Sparing` puts stand-ins for these on the tape, which have
no memory. It costs a call per operation, so it is for runs on many rows, and not for everybody.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.core.dispatch import around
from probtorch.core.history import place_at
from probtorch.core.tensor_base import TensorBase

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from probtorch.core.dispatch import TapeNode
    from probtorch.core.op import Attrs, Op, Operand, Output

__all__ = ["LARGE", "Sparing", "kept_inputs", "let_go", "sparing"]

# Bytes from which on a tensor is large.
LARGE = 2**20


def kept_inputs(node: TapeNode) -> list[int]:
    """Return the positions of the inputs whose elements a wanted gradient of a node reads."""
    if node.op.rules:
        wanted = [
            reads
            for i, _, reads, _ in node.op.rules
            if isinstance(node.inputs[i], TensorBase) and node.inputs[i].requires_grad
        ]
        return sorted({j for reads in wanted for j in reads})
    return node.op.saved_inputs(len(node.inputs))


def let_go(op: Op, out: Output) -> None:
    """Let the node of a result that `op` just made keep no large operand that nobody will read.

    Leaves stay, since gradients come to them by identity, and so do constants: whoever made one may
    yet ask for its gradient.
    """
    node = (out[0] if isinstance(out, tuple) else out).grad_fn
    if node is None or node.op is not op or not node.inputs:
        return
    large = [
        i
        for i, x in enumerate(node.inputs)
        if isinstance(x, TensorBase)
        and x.grad_fn is not None
        and x.array.nbytes >= LARGE
        and type(x.array) is np.ndarray
    ]
    spared = {*large}.difference(kept_inputs(node)) if large else ()
    if spared:
        node.inputs = tuple(
            _stand_in(x, node) if i in spared else x for i, x in enumerate(node.inputs)
        )


def _stand_in(t: TensorBase, node: TapeNode) -> TensorBase:
    """A tensor of the form of `t`, at its place on the tape, with one element."""
    out = around(np.broadcast_to(np.zeros((), t.array.dtype), t.array.shape))
    out.grad_fn, out._index, out.requires_grad = place_at(t, node.epoch)
    return out


class Sparing(Listener):
    """Context manager: what goes on the tape keeps no large operand that no gradient reads."""

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Let go of what an operation need not keep."""
        super().applied(op, inputs, attrs, out)
        let_go(op, out)


def sparing(large: bool) -> AbstractContextManager[object]:
    """Return a context manager that spares memory where there is a lot to be spared."""
    return Sparing() if large else nullcontext()
