"""Routines on matrices and rows: functions of render/runtime, LAPACK's among them, or loop nests.

What such an op declares (`core` and `native`, a `Routine`) says all that is needed: no op is known
here. Operands are copied into the order that the routine wants, results are seen through a
transposed layout. Matrices of up to `SMALL` rows are written out in a loop nest over the batch,
which LLVM vectorises, if there is an item for it; a call of LAPACK costs more than such a factor.
"""

import math

import numpy as np

from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.lower.routines import call, define_moved, moved_operand, workspace
from probtorch.compiler.native.library import integer_type
from probtorch.compiler.nests.layout import contiguous
from probtorch.compiler.nests.loops import Root, squeeze, squeezed
from probtorch.compiler.nests.lowering import lowers
from probtorch.core.op import core_dims

# A factor of four is 10 roots and quotients; from five on LAPACK was as fast.
SMALL = 4


@lowers("routine")
def lower_routine(low, node, block):
    """Lower an op on matrices or rows to a call of the routine that it declares."""
    op, routine = node.op, node.op.native
    if any(0 in v.shape for v in node.inputs):
        for out, value in zip(node.outs, routine.empty or (0,) * len(node.outs), strict=True):
            low.filled(out, value, block)
        return
    if "->" not in op.core:
        _along_rows(low, node, block)
        return
    inputs, outputs = core_dims(op.core)
    sizes, loops = {}, []
    for v, names in zip(node.inputs, inputs, strict=True):
        sizes.update(zip(names, v.shape[len(v.shape) - len(names) :], strict=True))
        loops.append(v.shape[: len(v.shape) - len(names)])
    batch = np.broadcast_shapes(*loops)
    if routine.small is not None and sizes["n"] <= SMALL:
        domain = (*batch, *(sizes[d] for d in outputs[0] if d != "n"))
        small(low, routine.small, node, domain, block)
        return

    def order(name, rank):
        dims = list(range(rank))
        if name in routine.columns.split():
            dims[-2:] = dims[:-3:-1]
        return tuple(dims)

    given = {}
    for name, v, loop in zip(op.inputs, node.inputs, loops, strict=False):
        core = v.shape[len(loop) :]
        one_for_all = f"step({name})" in routine.arguments and math.prod(loop) == 1
        shape = v.shape if one_for_all else (*batch, *core)
        given[f"step({name})"] = 0 if one_for_all else math.prod(core)
        fresh = name not in routine.keeps.split()
        given[name] = moved_operand(low, v, order(name, len(shape)), shape, block, fresh=fresh)
    orders = [order(name, len(v.shape)) for name, v in zip(routine.outputs.split(), node.outs)]
    sizes["count"] = math.prod(batch)
    call_routine(low, node, block, given, sizes, orders)


def _along_rows(low, node, block):
    """Lower an op along one dim: each row of its input lies contiguously."""
    (v,) = node.inputs
    dim = node.attrs["dim"] if node.op.core == "dim" else node.attrs["dims"][0]
    order = (*(d for d in range(len(v.shape)) if d != dim), dim)
    (name, *_), n = node.op.inputs, v.shape[dim]
    fresh = name not in node.op.native.keeps.split()
    given = {name: moved_operand(low, v, order, v.shape, block, fresh=fresh)}
    sizes = {"n": n, "count": math.prod(v.shape) // n}
    # A result with one element per row has no row to lie along.
    orders = [order if out.shape == v.shape else range(len(out.shape)) for out in node.outs]
    call_routine(low, node, block, given, sizes, orders)


def call_routine(low, node, block, given, sizes, orders):
    """Call a routine on `given` operands, and define the outputs, whose dims lie in `orders`."""
    routine, dtype = node.op.native, node.inputs[0].dtype
    passed, names = {**given, **sizes}, routine.outputs.split()
    for name, out in zip(names, node.outs, strict=True):
        if name not in given:
            passed[name] = low.temporary(out.dtype, math.prod(out.shape))
    for name, space in (routine.space(dtype, **sizes) if routine.space else {}).items():
        each = {"float": dtype.itemsize, "integer": integer_bytes(), "byte": 1}[space.kind]
        passed[name] = workspace(low, space.count * each)
        passed[f"size({name})"] = space.count
    arguments = [
        passed[name] if name in passed else int(node.attrs[name])
        for name in routine.arguments.split()
    ]
    fails = node.attrs[routine.fails] if isinstance(routine.fails, str) else routine.fails
    letter = "d" if dtype == np.float64 else "s"
    symbol = "pt_" + routine.name.format(letter=letter, type=ir_type(dtype))
    g = call(block, node, symbol, arguments, fails=fails)
    for name, out, order in zip(names, node.outs, orders, strict=True):
        made = passed[name]
        define_moved(low, out, made.buffer if isinstance(made, Root) else made, order, block, g)


def integer_bytes():
    """Size of LAPACK's integers."""
    return 8 if integer_type() == "i64" else 4


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
        at = spread(layout, domain[:-1] if columns_too else domain)
        if columns_too:
            # The columns belong to the right-hand side, the last operand.
            at = (*at, layout.strides[-1] if k == 1 else 0)
        reads.append(low.reading(root, layout.offset, squeezed(at, domain), block, g))
        steps.append(layout.strides[-2:])
    buffer = low.temporary(out.dtype, math.prod(out.shape))
    own = contiguous(out.shape).strides
    at = (*own[:-2], own[-1]) if columns_too else own[:-2]
    where = {"buffer": buffer, "strides": squeezed(at, domain), "out_steps": own[-2:]}
    block.add(g, kind, None, reads, node, **where, n=out.shape[-2], steps=steps)
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))


def spread(layout, larger):
    """Return the strides that read matrices at the indices of a larger batch."""
    strides = tuple(
        0 if n == 1 else s for s, n in zip(layout.strides[:-2], layout.shape[:-2], strict=True)
    )
    return (0,) * (len(larger) - len(strides)) + strides
