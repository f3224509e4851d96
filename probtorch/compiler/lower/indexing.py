"""Indexing: gathers, scattered stores, and updates in place of values that nothing reads again."""

import math

import numpy as np

from probtorch.compiler.nests.layout import contiguous
from probtorch.compiler.nests.loops import MAX_IN_NEST, Mem, Root, squeeze, squeezed
from probtorch.compiler.nests.lowering import lowers
from probtorch.errors import CompileError


def target(low, node, block):
    """Return where `node` may write its update, and from which statement on.

    That is the memory of its first input if nobody reads that later. What is written must not lie
    there itself: ``x[1:] = x[:-1]`` would overwrite what it has yet to read.
    """
    x, *rest = node.inputs
    memory = low.place(x)[0]
    overlap = any(low.place(v)[0] is memory for v in rest)
    return low.owned_copy(x, block, overlap or not low.dies_here(x, node))


@lowers("slice_put")
def lower_slice_put(low, node, block):
    v = node.inputs[1]
    (out,) = node.outs
    root, after = target(low, node, block)
    layout = contiguous(out.shape).view("slice", {"spec": node.attrs["spec"]})
    g = low.store(v, root.buffer, layout, block, "set", after)
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=root.buffer))


@lowers("put")
def lower_put(low, node, block):
    v, *index = node.inputs[1:]
    (out,) = node.outs
    root, after = target(low, node, block)
    dims, accumulate = node.attrs["dims"], node.attrs["accumulate"]
    g = scatter(low, v, index, dims, out.shape, root.buffer, block, after, accumulate)
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=root.buffer))


@lowers("untake")
def lower_untake(low, node, block):
    v, *index = node.inputs
    (out,) = node.outs
    buffer = low.temporary(out.dtype, math.prod(out.shape))
    g = scatter(low, v, index, node.attrs["dims"], out.shape, buffer, block, 0, True)
    block.statements[g].fills.append((buffer, 0))
    low.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))


@lowers("take")
def lower_take(low, node, block):
    x, *index = node.inputs
    (out,) = node.outs
    root, layout = low.place(x)
    bound = max([low.after(low.place(v)[0], block) for v in [x, *index]])
    g = block.group_at(squeeze(out.shape), bound)
    base, operands, wraps = address(low, layout, node.attrs["dims"], index, block, g)
    source = low.reading(root, layout.offset, base, block, g)
    made = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
    block.add(g, "gather", made, [source, *operands], node, wraps=wraps)
    low.define(out, made)


def index_plan(shape, dims, index):
    """Shape of the indexed result, which source dim each of its axes walks ("index" for none),
    where the index axes begin.
    """
    core = np.broadcast_shapes(*(i.shape for i in index))
    adjacent = list(dims) == list(range(dims[0], dims[0] + len(dims)))
    before = list(range(dims[0])) if adjacent else []
    after = [d for d in range(len(shape)) if d not in dims and d not in before]
    axes = [*before, *["index"] * len(core), *after]
    result = tuple([shape[d] for d in before] + list(core) + [shape[d] for d in after])
    return result, axes, len(before), len(core)


def address(low, layout, dims, index, block, group):
    """How to index into `layout`: strides over the domain, one operand per index tensor, and
    per index dim its size, stride, whether it must be checked at run time and whether it may be
    negative.
    """
    shape = layout.shape
    result, axes, lead, count = index_plan(shape, dims, index)
    base = squeezed([0 if d == "index" else layout.strides[d] for d in axes], result)
    operands, wraps = [], []
    for d, v in zip(dims, index, strict=True):
        root, own = low.place(v)
        operands.append(memory_aligned(low, root, own, result, lead, count, block, group))
        known = v.array if v.static else None
        if (
            known is not None
            and known.size
            and not (-shape[d] <= known.min() and known.max() < shape[d])
        ):
            raise CompileError(
                "index",
                expected=f"indices in [{-shape[d]}, {shape[d] - 1}]",
                got=f"{int(known.min())} to {int(known.max())}",
                fix="check the index tensor",
            )
        negative = known is None or bool(known.size and known.min() < 0)
        wraps.append((shape[d], layout.strides[d], known is None, negative))
    return base, operands, wraps


def memory_aligned(low, root, layout, result, lead, core_ndim, block, group):
    """Memory operand for an index tensor whose dims stand at axes lead .. lead + core_ndim of
    the result.
    """
    core = result[lead : lead + core_ndim]
    strides = (0,) * lead + layout.broadcast(core) + (0,) * (len(result) - lead - core_ndim)
    return low.reading(root, layout.offset, squeezed(strides, result), block, group)


def scatter(low, v, index, dims, shape, buffer, block, after, accumulate):
    """Write or add `v` at integer indices of a contiguous buffer; returns the statement."""
    result = index_plan(shape, dims, index)[0]
    read = (low.after(low.place(i)[0], block) for i in index)
    bound = max(after, low.bound([v], result, block), *read)
    g = beside_reader(low, v, result, block, bound)
    base, operands, wraps = address(low, contiguous(shape), dims, index, block, g)
    mode, value = "add" if accumulate else "set", low.operand(v, result, block, g)
    at = {"wraps": wraps, "buffer": buffer, "strides": base}
    block.add(g, "scatter", None, [value, *operands], **at, mode=mode)
    return g


def beside_reader(low, v, shape, block, bound):
    """Return the statement, from `bound` on, for a nest that only passes `v` on: that of a nest
    which reads it anyway, if there is one.
    """
    root, layout = low.place(v)
    first, domain = block.group_at(squeeze(shape), bound), squeeze(shape)
    strides = squeezed(layout.broadcast(shape), shape)
    for g in block.by_domain[domain]:
        if g >= first and len(block.statements[g].items) < MAX_IN_NEST:
            for item in block.statements[g].items:
                for x in item.operands:
                    if (
                        isinstance(x, Mem)
                        and x.buffer is root.buffer
                        and (x.offset, x.strides) == (layout.offset, strides)
                    ):
                        return g
    return first
