"""Searching in sorted rows: a call of lang/routines/sorting.py."""

import math

from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.lower.routines import call, define_moved, operand
from probtorch.compiler.nests.lowering import lowers


@lowers("searchsorted")
def lower_searchsorted(low, node, block):
    sequence, values = node.inputs
    (out,) = node.outs
    if 0 in out.shape or 0 in sequence.shape:
        low.filled(out, 0, block)
        return
    n = sequence.shape[-1]
    rows = math.prod(sequence.shape[:-1])
    per_row = math.prod(values.shape) // rows
    found = low.temporary(out.dtype, math.prod(out.shape))
    g = call(
        block,
        node,
        f"pt_searchsorted_{ir_type(values.dtype)}",
        [
            operand(low, sequence, block),
            operand(low, values, block),
            rows,
            n,
            per_row,
            int(node.attrs["right"]),
            found,
        ],
    )
    define_moved(low, out, found, range(len(out.shape)), block, g)
