"""Factorisations and solves: LAPACK through render/runtime/matrices.py, or inside loop nests.

Cholesky factors and triangular solves of matrices up to `SMALL` are written out in a loop nest over
the batch, which LLVM vectorises; a call of LAPACK costs more than such a factor. All else is copied
into the order by columns that LAPACK wants, and its results are seen through a transposed layout.

Working space is of the sizes that LAPACK asks for, so blocking is as in eager execution.
"""

import functools
import math

import numpy as np

from probtorch.compiler.layout import contiguous
from probtorch.compiler.library import integer_type
from probtorch.compiler.loops import Item, Mem, Root, squeeze
from probtorch.compiler.lower.routines import call, define_moved, moved_operand, workspace
from probtorch.compiler.lowering import lowers

# A factor of four is 10 roots and quotients; from five on LAPACK was as fast.
SMALL = 4


def letter(dtype):
    """Return LAPACK's letter for a dtype."""
    return "d" if dtype == np.float64 else "s"


def integers(low, count):
    """Return a buffer for integers of LAPACK's size."""
    return workspace(low, count * (8 if integer_type() == "i64" else 4))


def by_rows(ndim):
    """The order of the dims of matrices by rows."""
    return tuple(range(ndim))


def by_columns(ndim):
    """The order of the dims of matrices by columns."""
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def columns(low, v, block, *, batch=None):
    """Return a root with the matrices of `v` by columns, expanded to `batch`, to be overwritten."""
    shape = (*(v.shape[:-2] if batch is None else batch), *v.shape[-2:])
    return moved_operand(low, v, by_columns(len(shape)), shape, block, fresh=True)


def result(low, v):
    """Return a buffer for the elements of `v`."""
    return low.temporary(v.dtype, math.prod(v.shape))


def define_columns(low, v, buffer, block, g):
    """Define `v` as matrices that lie by columns in `buffer`."""
    define_moved(low, v, buffer, by_columns(len(v.shape)), block, g)


def define_rows(low, v, buffer, block, g):
    """Define `v` as what lies contiguously in `buffer`."""
    define_moved(low, v, buffer, by_rows(len(v.shape)), block, g)


def filled(low, node, block, *values):
    """Define the outputs of a node on matrices without elements."""
    for out, value in zip(node.outs, values, strict=True):
        low.filled(out, value, block)


# ----------------------------------------------------------------------- Cholesky and triangular


@lowers("cholesky")
def lower_cholesky(low, node, block):
    (v,), (out,) = node.inputs, node.outs
    n = v.shape[-1]
    if 0 in out.shape:
        filled(low, node, block, 0)
        return
    if n <= SMALL:
        small(low, "small_cholesky", node, v.shape[:-2], block)
        return
    root = moved_operand(low, v, by_rows(len(v.shape)), v.shape, block, fresh=True)
    g = call(
        low,
        block,
        node,
        f"pt_cholesky_{letter(v.dtype)}",
        [root, n, math.prod(v.shape[:-2])],
        fails=node.attrs["check"],
    )
    define_rows(low, out, root.buffer, block, g)


@lowers("solve_triangular")
def lower_solve_triangular(low, node, block):
    a, b = node.inputs
    (out,) = node.outs
    *batch, n, m = out.shape
    if 0 in out.shape:
        filled(low, node, block, 0)
        return
    if n <= SMALL:
        small(low, "small_solve", node, (*batch, m), block)
        return
    count = math.prod(batch)
    shared = math.prod(a.shape[:-2]) == 1
    shape = a.shape if shared else (*batch, n, n)
    left = moved_operand(low, a, by_rows(len(shape)), shape, block)
    right = moved_operand(low, b, by_rows(len(out.shape)), out.shape, block, fresh=True)
    flags = [int(node.attrs["upper"]), int(node.attrs["unitriangular"])]
    g = call(
        low,
        block,
        node,
        f"pt_trsm_{letter(out.dtype)}",
        [left, right, n, m, *flags, count, 0 if shared else n * n],
    )
    define_rows(low, out, right.buffer, block, g)


def small(low, kind, node, domain, block):
    """Append an item that handles one small matrix, or a column of one, per index of `domain`.

    `steps` of the item are each operand's strides along rows and columns.
    """
    (out,) = node.outs
    columns_too = len(domain) == len(out.shape) - 1
    places = [low.place(v) for v in node.inputs]
    g = block.group_at(squeeze(domain), max(low.after(root, block) for root, _ in places))
    reads, steps = [], []
    for k, (root, layout) in enumerate(places):
        buffer = low.materialise(root)
        if root.block is block:
            root.last_read = max(root.last_read, g)
        at = spread(layout, domain[:-1] if columns_too else domain)
        if columns_too:
            # The columns belong to the right-hand side, the last operand.
            at = (*at, layout.strides[-1] if k == 1 else 0)
        reads.append(Mem(buffer, layout.offset, squeezed(at, domain)))
        steps.append(layout.strides[-2:])
    buffer = result(low, out)
    own = contiguous(out.shape).strides
    at = (*own[:-2], own[-1]) if columns_too else own[:-2]
    block.statements[g].items.append(
        Item(
            kind,
            None,
            reads,
            node,
            buffer=buffer,
            strides=squeezed(at, domain),
            n=out.shape[-2],
            steps=steps,
            out_steps=own[-2:],
        )
    )
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))


def squeezed(strides, domain):
    """Return the strides along those dims of a domain that are not of size 1."""
    return tuple(s for s, n in zip(strides, domain, strict=True) if n != 1)


def spread(layout, larger):
    """Return the strides that read matrices at the indices of a larger batch."""
    strides = tuple(
        0 if n == 1 else s for s, n in zip(layout.strides[:-2], layout.shape[:-2], strict=True)
    )
    return (0,) * (len(larger) - len(strides)) + strides


# ------------------------------------------------------------------------- solves, determinants


@lowers("solve")
def lower_solve(low, node, block):
    a, b = node.inputs
    (out,) = node.outs
    *batch, n, m = out.shape
    if 0 in out.shape:
        filled(low, node, block, 0)
        return
    left, right = columns(low, a, block, batch=batch), columns(low, b, block, batch=batch)
    g = call(
        low,
        block,
        node,
        f"pt_solve_{letter(out.dtype)}",
        [left, right, n, m, math.prod(batch), integers(low, n)],
        fails=True,
    )
    define_columns(low, out, right.buffer, block, g)


@lowers("inv")
def lower_inv(low, node, block):
    (v,), (out,) = node.inputs, node.outs
    if 0 in out.shape:
        filled(low, node, block, 0)
        return
    n, buffer = v.shape[-1], result(low, out)
    g = call(
        low,
        block,
        node,
        f"pt_inv_{letter(v.dtype)}",
        [columns(low, v, block), buffer, n, math.prod(v.shape[:-2]), integers(low, n)],
        fails=node.attrs["check"],
    )
    define_columns(low, out, buffer, block, g)


@lowers("det", "slogdet")
def lower_determinant(low, node, block):
    (v,) = node.inputs
    n, batch = v.shape[-1], math.prod(v.shape[:-2])
    if 0 in v.shape:
        filled(low, node, block, *((1,) if node.name == "det" else (1, 0)))
        return
    # `det` takes the logarithms as working space.
    out = node.outs[0]
    buffers = [result(low, o) for o in node.outs]
    logs = buffers[1] if node.name == "slogdet" else workspace(low, batch * v.dtype.itemsize)
    g = call(
        low,
        block,
        node,
        f"pt_{node.name}_{letter(out.dtype)}",
        [columns(low, v, block), buffers[0], logs, n, batch, integers(low, n)],
    )
    for o, buffer in zip(node.outs, buffers, strict=True):
        define_rows(low, o, buffer, block, g)


# ------------------------------------------------------------------------ orthogonal factorisations


@functools.cache
def sizes(name, p, m, n):
    """Return the sizes of the working arrays that LAPACK asks for: floats, then integers."""
    from scipy.linalg import lapack

    if name == "eigh":
        # SciPy has no query for these; the blocked reduction wants 64 columns at the most.
        return 1 + 6 * n + 2 * n * n + 64 * n, 3 + 5 * n
    k = min(m, n)
    if name == "svd":
        size, _ = getattr(lapack, f"{p}gesdd_lwork")(m, n, compute_uv=1, full_matrices=0)
        # The query counts in floats of the format: in single precision it may round down.
        return int(size) + 64, 8 * k
    first, _ = getattr(lapack, f"{p}geqrf_lwork")(m, n)
    return max(int(first), 64 * k) + 64, k


@lowers("eigh")
def lower_eigh(low, node, block):
    (v,), (values, vectors) = node.inputs, node.outs
    if 0 in v.shape:
        filled(low, node, block, 0, 0)
        return
    n, p = v.shape[-1], letter(v.dtype)
    floats, count = sizes("eigh", p, n, n)
    root, buffer = columns(low, v, block), result(low, values)
    g = call(
        low,
        block,
        node,
        f"pt_eigh_{p}",
        [
            root,
            buffer,
            n,
            math.prod(v.shape[:-2]),
            workspace(low, floats * v.dtype.itemsize),
            floats,
            integers(low, count),
            count,
        ],
        fails=True,
    )
    define_rows(low, values, buffer, block, g)
    define_columns(low, vectors, root.buffer, block, g)


@lowers("svd")
def lower_svd(low, node, block):
    (v,), (u, s, vh) = node.inputs, node.outs
    if 0 in v.shape:
        filled(low, node, block, 0, 0, 0)
        return
    (m, n), p = v.shape[-2:], letter(v.dtype)
    floats, count = sizes("svd", p, m, n)
    buffers = [result(low, o) for o in node.outs]
    space = [workspace(low, floats * v.dtype.itemsize), floats, integers(low, count)]
    batch = math.prod(v.shape[:-2])
    arguments = [columns(low, v, block), *buffers, m, n, batch, *space]
    g = call(low, block, node, f"pt_svd_{p}", arguments, fails=True)
    define_columns(low, u, buffers[0], block, g)
    define_rows(low, s, buffers[1], block, g)
    define_columns(low, vh, buffers[2], block, g)


@lowers("qr")
def lower_qr(low, node, block):
    (v,), (q, r) = node.inputs, node.outs
    if 0 in v.shape:
        filled(low, node, block, 0, 0)
        return
    (m, n), p = v.shape[-2:], letter(v.dtype)
    floats, count = sizes("qr", p, m, n)
    buffers = [result(low, o) for o in node.outs]
    size = v.dtype.itemsize
    space = [workspace(low, count * size), workspace(low, floats * size), floats]
    batch = math.prod(v.shape[:-2])
    arguments = [columns(low, v, block), *buffers, m, n, batch, *space]
    g = call(low, block, node, f"pt_qr_{p}", arguments, fails=True)
    define_columns(low, q, buffers[0], block, g)
    define_columns(low, r, buffers[1], block, g)
