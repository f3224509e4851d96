"""Small matrices inside loop nests: their factors and solutions written out, element by element.

Functions of the nest and the item; see `small` in lower/linalg.py for what an item holds.
"""

import math

from probtorch.compiler.lang.types import ir_type

__all__ = ["SMALL_MATRICES"]


def _reader(nest, item, k):
    """Return a function that reads entry (i, j) of operand `k` at the current index."""
    x, steps = item.operands[k], item.attrs["steps"][k]
    ty = ir_type(x.buffer.dtype)

    def read(i, j):
        offset = x.offset + i * steps[0] + j * steps[1]
        return nest.load_at(nest.address(x.buffer, offset, x.strides), ty)

    return read


def _write(nest, item, i, j, v):
    a = item.attrs
    offset = i * a["out_steps"][0] + j * a["out_steps"][1]
    nest.store_at(v, nest.address(a["buffer"], offset, a["strides"]))


def _less_products(total, pairs):
    for a, b in pairs:
        total = total - a * b
    return total


def small_cholesky(nest, item):
    """Lower factor; nan, or the end of the run, where a pivot is not positive (nan passes on)."""
    n, check = item.attrs["n"], item.node.attrs["check"]
    read = _reader(nest, item, 0)
    factor, failed = {}, None
    for j in range(n):
        row = [factor[j, k] for k in range(j)]
        pivot = _less_products(read(j, j), [(x, x) for x in row])
        bad = pivot <= 0.0
        failed = bad if failed is None else nest.logical_or(failed, bad)
        factor[j, j] = nest.sqrt(pivot)
        for i in range(j + 1, n):
            rest = _less_products(read(i, j), [(factor[i, k], factor[j, k]) for k in range(j)])
            factor[i, j] = rest / factor[j, j]
    if check:
        nest.fail_if(failed)
    ty = ir_type(item.attrs["buffer"].dtype)
    for i in range(n):
        for j in range(n):
            v = factor.get((i, j), nest.value(0.0, ty))
            _write(nest, item, i, j, v if check else nest.where(failed, math.nan, v))


def small_solve(nest, item):
    """One column of the solution of a triangular system."""
    n, attrs = item.attrs["n"], item.node.attrs
    a, b = _reader(nest, item, 0), _reader(nest, item, 1)
    x = {}
    for i in reversed(range(n)) if attrs["upper"] else range(n):
        rest = _less_products(b(i, 0), [(a(i, k), x[k]) for k in sorted(x)])
        x[i] = rest if attrs["unitriangular"] else rest / a(i, i)
    for i in range(n):
        _write(nest, item, i, 0, x[i])


SMALL_MATRICES = {"small_cholesky": small_cholesky, "small_solve": small_solve}
