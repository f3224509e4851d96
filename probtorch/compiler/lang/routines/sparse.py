"""Products with sparse matrices: each number of the result is a sum over one row of the matrix."""

from __future__ import annotations

import functools

from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value

__all__ = ["SPARSE"]


def _sparse_product(w: KernelFunction, *arguments: Value, ty: str) -> None:
    """The product of (starts, columns, weights, x, rows, width of x, out)."""
    *given, rows, width, out = arguments
    starts, columns = (w.array(a, "i64") for a in given[:2])
    weights, x, found = (w.array(a, ty) for a in (*given[2:], out))
    with w.share(rows, width, everyone=True) as (r, c):
        total = w.variable(ty, 0.0)
        with w.loop(starts[r], starts[r + 1]) as at:
            total.value = total.value + weights[at] * x[columns[at] * width + c]
        found[r * width + c] = total.value


SPARSE = {
    f"pt_sparse_product_{ty}": KernelRoutine(
        functools.partial(_sparse_product, ty=ty),
        tuple("ptr ptr ptr ptr i64 i64 ptr".split()),
        "void",
        grid=True,
    )
    for ty in ("float", "double")
}
