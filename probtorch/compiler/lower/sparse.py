"""Products with sparse matrices: a call of lang/routines/sparse.py."""

import math

from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.lower.routines import call, define_moved, operand
from probtorch.compiler.nests.lowering import lowers


@lowers("sparse_product")
def lower_sparse_product(low, node, block):
    starts, columns, weights, *_, x = node.inputs
    (out,) = node.outs
    if 0 in out.shape or 0 in weights.shape:
        low.filled(out, 0, block)
        return
    found = low.temporary(out.dtype, math.prod(out.shape))
    rows = [operand(low, v, block) for v in (starts, columns, weights, x)]
    symbol = f"pt_sparse_product_{ir_type(out.dtype)}"
    g = call(block, node, symbol, [*rows, *out.shape, found])
    define_moved(low, out, found, range(2), block, g)
