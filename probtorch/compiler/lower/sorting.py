"""Sorting, order statistics and searching: calls of render/runtime/sorting.py."""

import math

from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.lower.routines import call, define_moved, moved_operand, operand, workspace
from probtorch.compiler.lowering import lowers


def rows_along(low, v, dim, block):
    """Return `v` as rows along `dim`: root, order of the dims, number of rows, their length."""
    order = (*(d for d in range(len(v.shape)) if d != dim), dim)
    n = v.shape[dim]
    root = moved_operand(low, v, order, v.shape, block)
    return root, order, math.prod(v.shape) // n, n


def sorting_space(low, v, n):
    """Return working space for sorting rows of `n`: keys and indices, twice."""
    return workspace(low, 2 * n * (8 + v.dtype.itemsize))


@lowers("argsort")
def lower_argsort(low, node, block):
    (v,), (out,) = node.inputs, node.outs
    if 0 in out.shape:
        low.filled(out, 0, block)
        return
    root, order, rows, n = rows_along(low, v, node.attrs["dim"], block)
    buffer = low.temporary(out.dtype, math.prod(out.shape))
    backwards = int(node.attrs["descending"])
    space = sorting_space(low, v, n)
    symbol = f"pt_argsort_{ir_type(v.dtype)}"
    g = call(low, block, node, symbol, [root, rows, n, backwards, buffer, space])
    define_moved(low, out, buffer, order, block, g)


@lowers("order_statistic")
def lower_order_statistic(low, node, block):
    (v,), (out,) = node.inputs, node.outs
    if 0 in v.shape:
        low.filled(out, 0, block)
        return
    (dim,) = node.attrs["dims"]
    root, _, rows, n = rows_along(low, v, dim, block)
    buffer = low.temporary(out.dtype, math.prod(out.shape))
    space = sorting_space(low, v, n)
    symbol = f"pt_order_statistic_{ir_type(v.dtype)}"
    g = call(low, block, node, symbol, [root, rows, n, node.attrs["k"], buffer, space])
    define_moved(low, out, buffer, range(len(out.shape)), block, g)


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
        low,
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
