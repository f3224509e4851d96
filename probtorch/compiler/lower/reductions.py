"""Reductions and running sums."""

import math

import numpy as np

from probtorch.compiler.graph import GraphValue
from probtorch.compiler.nests.layout import contiguous
from probtorch.compiler.nests.loops import Mem, Root, squeeze
from probtorch.compiler.nests.lowering import lowers

# What a reduction by another name is made of.
_KINDS = {"peak": "amax"}


@lowers("reduce")
def reduce(low, node, block):
    (v,), (out,) = node.inputs, node.outs
    shape, dims = v.shape, node.attrs["dims"]
    kind = _KINDS.get(node.name, node.name)
    start = _start(kind, v.dtype)
    if 0 in shape and kind in ("sum", "prod"):
        low.filled(out, start, block)
        return
    domain = squeeze(shape)
    kept = tuple(i not in dims for i, n in enumerate(shape) if n != 1)
    count = sum(kept)
    prefix = all(kept[:count])
    bound = low.bound([v], shape, block)
    root = Root(out.shape, out.dtype, block, 0)
    low.materialise(root)
    if not prefix:
        if start is None:
            # Who is largest, over leading dims: read a moved copy, whose reduced dims come last.
            order = [i for i in range(len(shape)) if i not in dims] + list(dims)
            source, layout = low.place(v)
            moved = low.copy_layout(source, layout.view("permute", {"dims": order}), block)
            inner = tuple(range(len(shape) - len(dims), len(shape)))
            reduce_root(low, node, moved, contiguous(moved.shape), inner, out, block)
            return
    g = block.group_at(domain, bound)
    if not prefix:
        block.statements[g].fills.append((root.buffer, start))
    root.group = root.last_read = g
    operand = low.operand(v, shape, block, g)
    strides = kept_strides(kept, domain)
    depth = count if prefix else None
    block.add(g, "reduce", root, [operand], node, reduce=kind, depth=depth, strides=strides)
    low.define(out, root)


def _start(kind, dtype):
    """Return the number that changes nothing, where memory can begin with it; else None."""
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if kind in ("amax", "amin") and dtype.kind in "fiu":
        if dtype.kind == "f":
            return -math.inf if kind == "amax" else math.inf
        limits = np.iinfo(dtype)
        return int(limits.min if kind == "amax" else limits.max)
    return None


def kept_strides(kept, domain):
    inner = contiguous(tuple(n for n, k in zip(domain, kept, strict=True) if k)).strides
    walk = iter(inner)
    return tuple(next(walk) if k else 0 for k in kept)


def reduce_root(low, node, source, layout, dims, out, block):
    stand_in = GraphValue(layout.shape, source.dtype, "node")
    low.places[stand_in.id] = (source, layout)
    inner = type(node)(node.op, node.name, (stand_in,), {**node.attrs, "dims": dims}, ())
    inner.outs = (out,)
    reduce(low, inner, block)


@lowers("scan")
def lower_scan(low, node, block):
    (out,) = node.outs
    shape, dim = out.shape, node.attrs["dim"]
    if 0 in shape:
        low.filled(out, 0, block)
        return
    outer = tuple(n for i, n in enumerate(shape) if i != dim)
    places = [low.place(v) for v in node.inputs]
    g = block.group_at(squeeze(outer), max(low.after(root, block) for root, _ in places))
    keep = [i for i, n in enumerate(shape) if i != dim and n != 1]
    operands, steps = [], []
    for root, layout in places:
        buffer = low.memory(root, layout, shape, block, g).buffer
        strides = layout.broadcast(shape)
        operands.append(Mem(buffer, layout.offset, tuple(strides[i] for i in keep)))
        steps.append(strides[dim])
    buffer = low.temporary(out.dtype, math.prod(shape))
    own = contiguous(shape).strides
    where = {"buffer": buffer, "strides": tuple(own[i] for i in keep), "out_step": own[dim]}
    block.add(g, "scan", None, operands, node, **where, size=shape[dim], steps=tuple(steps))
    low.define(out, Root(shape, out.dtype, block, g, buffer=buffer))
