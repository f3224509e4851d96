"""Products of matrices: dot products inside nests, scaled rows, BLAS calls."""

import math
from typing import NamedTuple

from probtorch.compiler.lower.routines import call, moved_operand
from probtorch.compiler.nests.layout import contiguous
from probtorch.compiler.nests.loops import Call, Root, squeeze, squeezed
from probtorch.compiler.nests.lowering import lowers

# Products larger than this go to BLAS; below, the loop is faster than the call.
GEMM_FROM = 20_000
# Many products: at 16^3 each both take 1 us, at 28^3 the loop takes 16 and BLAS 2.
BATCHED_FROM = 4_000
# Results or terms of a matrix times a vector that are few beside many of the other.
FEW, MANY = 32, 128


@lowers("matmul")
def lower_matmul(low, node, block):
    x, y = node.inputs
    (out,) = node.outs
    *batch, m, n = out.shape
    k = x.shape[-1]
    if 0 in out.shape or k == 0:
        low.filled(out, 0, block)
        return
    (xr, xl), (yr, yl) = low.place(x), low.place(y)
    plain = not batch and len(x.shape) == 2 and len(y.shape) == 2
    if m > 1 and n > 1 and out.dtype.kind == "f":
        if plain and m * n * k >= GEMM_FROM:
            return gemm(low, node, block)
        if not plain and m * n * k >= BATCHED_FROM:
            return batched_gemm(low, node, block)
    if plain and (m == 1 or n == 1) and k > 1 and m * n > 1:
        # (matrix layout with rows along the result and columns along the sum, vector)
        matrix, vector = (
            ((xr, xl), y) if n == 1 else ((yr, yl.view("permute", {"dims": (1, 0)})), x)
        )
        if is_sum_of_rows(low, m * n, k, matrix[1].strides):
            return axpy(low, node, matrix, vector, m * n, k, block)
    bound = max(low.after(xr, block), low.after(yr, block))
    shape = (*batch, m, n)
    g = block.group_at(squeeze(shape), bound)
    xs, ys = xl.broadcast((*batch, m, k)), yl.broadcast((*batch, k, n))
    a = low.reading(xr, xl.offset, squeezed((*xs[:-1], 0), shape), block, g)
    b = low.reading(yr, yl.offset, squeezed((*ys[:-2], 0, ys[-1]), shape), block, g)
    root = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
    block.add(g, "dot", root, [a, b], node, size=k, steps=(xs[-1], ys[-2]))
    low.define(out, root)


def is_sum_of_rows(low, results, terms, strides):
    """Whether a matrix times a vector is made as a sum of scaled rows, and not of dot products:
    the nest then is over the terms. It is over what there are many of where there are few of the
    other, so that ``X @ b`` and ``X.T @ r`` share one, and else goes along memory.
    """
    few, many = sorted((results, terms))
    if low.by_rows and few <= FEW and many >= MANY:
        return results < terms
    along_result, along_sum = strides
    return abs(along_result) < abs(along_sum)


def axpy(low, node, matrix, vector, m, k, block):
    """out[m] += A[m, k] v[k] for each k: rows of a transposed product, fused with whatever
    computes v.
    """
    (out,) = node.outs
    root, layout = matrix
    made = Root(out.shape, out.dtype, block, 0)
    bound = max(low.after(root, block), low.bound([vector], vector.shape, block))
    g = block.group_at((k,), bound)
    block.statements[g].fills.append((low.materialise(made), 0))
    mem = low.reading(root, layout.offset, (layout.strides[1],), block, g)
    made.group = made.last_read = g
    scale = low.operand(vector, vector.shape, block, g)
    block.add(g, "axpy", made, [mem, scale], node, size=m, step=layout.strides[0])
    low.define(out, made)


def gemm(low, node, block):
    (out,) = node.outs
    sides = []
    for v in node.inputs:
        root, layout = low.place(v)
        (n, m), (a, b) = layout.shape, layout.strides
        by_rows, by_columns = b == 1 and a >= m, a == 1 and b >= n
        if not (by_rows or by_columns):
            root = low.copy_layout(root, layout, block)
            layout, by_rows = contiguous(v.shape), True
        low.materialise(root)
        turned = not by_rows
        sides.append(Matrices(root, layout.strides[turned], turned, 0, layout.offset))
    sizes = (*out.shape, node.inputs[0].shape[1])
    product(low, node, block, sides, sizes, low.temporary(out.dtype, math.prod(out.shape)))


def product(low, node, block, sides, sizes, buffer):
    """Write the product of two matrices into `buffer`, by a call; sizes m, n and k."""
    (out,) = node.outs
    x, y = sides
    m, n, k = sizes
    g = block.append(
        Call(
            "gemm",
            [x.root.buffer, y.root.buffer, buffer],
            node,
            keeps=2,
            m=m,
            n=n,
            k=k,
            offsets=(x.offset, y.offset),
            ld=(x.leading, y.leading),
            transposed=(x.turned, y.turned),
        )
    )
    for side in sides:
        side.root.read_by(block, g)
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))


def batched_gemm(low, node, block):
    """Products of many matrices; one for all on the right is a single product of longer rows."""
    (out,) = node.outs
    *batch, m, n = out.shape
    k = node.inputs[0].shape[-1]
    x, y = (steps(low, v, batch, block) for v in node.inputs)
    count = math.prod(batch)
    buffer = low.temporary(out.dtype, math.prod(out.shape))
    if y.step == 0 and not x.turned and x.step == m * x.leading:
        return product(low, node, block, (x, y), (m * count, n, k), buffer)
    sizes = [m, n, k, x.leading, y.leading, int(x.turned), int(y.turned), x.step, y.step, count]
    symbol = f"pt_gemm_{'d' if out.dtype == 'float64' else 's'}"
    g = call(block, node, symbol, [x.root, y.root, buffer, *sizes])
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))


class Matrices(NamedTuple):
    """Matrices as BLAS takes them: memory, leading size, whether by columns, step to the next, and
    where the first one begins.
    """

    root: Root
    leading: int
    turned: bool
    step: int
    offset: int = 0


def steps(low, v, batch, block):
    """Return the matrices of `v`, expanded to `batch`, copied if they lie otherwise."""
    root, layout = low.place(v)
    (rows, columns), (a, b) = layout.shape[-2:], layout.strides[-2:]
    shape = (*batch, rows, columns)
    step = common_step(layout.broadcast(shape)[:-2], batch)
    by_rows, by_columns = b == 1 and a >= columns, a == 1 and b >= rows
    if layout.offset or step is None or not (by_rows or by_columns):
        root = moved_operand(low, v, range(len(shape)), shape, block)
        return Matrices(root, columns, False, rows * columns)
    low.materialise(root)
    return Matrices(root, a if by_rows else b, not by_rows, step)


def common_step(strides, sizes):
    """Return the step from each matrix of a batch to the next, None if it varies."""
    step, count = 0, 1
    for stride, size in zip(reversed(strides), reversed(sizes), strict=True):
        if size == 1:
            continue
        if count > 1 and stride != step * count:
            return None
        step, count = (stride if count == 1 else step), count * size
    return step
