"""Products with sparse matrices: each number of the result is a sum over one row of the matrix."""

from __future__ import annotations

from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value

__all__ = ["SPARSE"]


def _sparse_product(
    w: KernelFunction,
    starts: Array,
    columns: Array,
    weights: Array,
    x: Array,
    rows: Value,
    width: Value,
    out: Array,
) -> None:
    with w.share(rows, width, everyone=True) as (r, c):
        total = w.variable(x.ty, 0.0)
        with w.loop(starts[r], starts[r + 1]) as at:
            total.value = total.value + weights[at] * x[columns[at] * width + c]
        out[r * width + c] = total.value


SPARSE = {
    f"pt_sparse_product_{ty}": KernelRoutine(
        _sparse_product, f"i64* i64* {ty}* {ty}* i64 i64 {ty}*", "void", grid=True
    )
    for ty in ("float", "double")
}
