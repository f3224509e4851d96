"""Loops, branches, guards and calls of a density."""

import math

from probtorch.compiler.nests.layout import contiguous
from probtorch.compiler.nests.loops import Block, Branch, Call, Guard, Loop, Root
from probtorch.compiler.nests.lowering import lowers


@lowers("native_density")
def lower_native_density(low, node, block):
    q, function, context = node.inputs
    logp, grad = node.outs
    root = low.whole(q, q.shape, block)
    parts = [root.buffer]
    for v in (function, context):
        handle, _ = low.place(v)
        parts.append(low.materialise(handle))
    values = [low.temporary(logp.dtype, 1)]
    if low.is_read(grad):  # else the density is asked for its value alone
        values.append(low.temporary(grad.dtype, math.prod(grad.shape)))
    g = block.append(Call("density", parts + values, node, keeps=3))
    root.read_by(block, g)
    for v, buffer in zip((logp, grad), values):
        low.define(v, Root(v.shape, v.dtype, block, g, buffer=buffer))


@lowers("guard")
def lower_guard(low, node, block):
    (v,) = node.inputs
    root, layout = low.place(v)
    if not layout.is_whole():
        root = low.copy_layout(root, layout, block)
    buffer = low.materialise(root)
    root.read_by(block, block.append(Guard(buffer, node.attrs["value"], node.attrs["index"])))


@lowers("room")
def lower_room(low, node, block):
    (out,) = node.outs
    buffer = low.temporary(out.dtype, math.prod(out.shape))
    low.define(out, Root(out.shape, out.dtype, block, -1, buffer=buffer))


def lower_subgraph(low, graph, roots, inner):
    """Lower a subgraph whose inputs lie at `roots` into a block of its own; returns that."""
    for v, root in zip(graph.inputs, roots, strict=True):
        low.places[v.id] = (root, contiguous(v.shape))
    outer, low.graph, uses, low.uses = low.graph, graph, low.uses, None
    low.lower(graph, inner)
    low.graph, low.uses = outer, uses
    return inner


def scalar(low, v, block):
    """Return the buffer of a flag or other 0-d value."""
    root, layout = low.place(v)
    if not layout.is_whole():
        root = low.copy_layout(root, layout, block)
    return low.materialise(root)


def inside(root):
    """A root of an outer block as seen in an inner one: memory that only an explicit owner may
    overwrite.
    """
    return Root(root.shape, root.dtype, None, -1, buffer=root.buffer)


def bring_in(low, values, block):
    """Return roots through which an inner block reads values of this one."""
    out = []
    for v in values:
        root = low.whole(v, v.shape, block)
        out.append(inside(root))
    return out


@lowers("while")
def lower_while(low, node, block):
    test, body = node.attrs["cond"], node.attrs["body"]
    in_test, in_body = node.attrs["counts"]
    n = len(node.outs)
    captured = bring_in(low, node.inputs[n:], block)
    assert len(captured) == in_test + in_body
    carries = carried(low, node, n, captured, block)
    test_block = lower_subgraph(
        low, test, [inside(c) for c in carries] + captured[:in_test], Block(block)
    )
    flag = scalar(low, test.outputs[0], test_block)
    inner = Block(block)
    owned = [Root(c.shape, c.dtype, inner, -1, buffer=c.buffer) for c in carries]
    lower_subgraph(low, body, owned + captured[in_test:], inner)
    write_back(low, body.outputs, owned, inner)
    g = block.append(Loop(test_block, flag, inner))
    low.touch(node, block, g)
    for out, c in zip(node.outs, carries, strict=True):
        low.define(out, Root(c.shape, c.dtype, block, g, buffer=c.buffer))


def carried(low, node, n, captured, block):
    """Return roots of the first `n` inputs of a loop, in memory that the loop may overwrite.

    A value that nothing reads after the loop gives up its own memory, so loops within loops pass
    large states on without copying them.
    """
    carries, taken = [], {id(root.buffer) for root in captured}
    for v in node.inputs[:n]:
        root = own_memory(low, v, node, block)
        if root is None or id(root.buffer) in taken:
            root = low.copy(v, block)
        taken.add(id(root.buffer))
        carries.append(root)
    return carries


def own_memory(low, v, node, block):
    """Return the root of `v` if its memory is a temporary of this block that nothing else will
    read after `node`, else None.
    """
    root, layout = low.place(v)
    if (
        root.block is block
        and root.buffer is not None
        and root.buffer.kind in ("arena", "scalar")
        and layout.is_whole()
        and root.shape == layout.shape
        and low.dies_here(v, node)
    ):
        return root
    return None


def write_back(low, outputs, owned, inner):
    """Copy a loop body's results into the carried buffers, first through temporaries where they
    cross.
    """
    buffers = {id(c.buffer) for c in owned}
    pending = []
    for v, c in zip(outputs, owned, strict=True):
        root, layout = low.place(v)
        if root.buffer is c.buffer and layout.is_whole():
            continue
        if root.buffer is not None and id(root.buffer) in buffers:
            temp = low.copy_layout(root, layout, inner)
            pending.append((temp, contiguous(v.shape), c))
        else:
            pending.append((root, layout, c))
    # All reads of the old carries stand before this statement, all writes after it.
    barrier = len(inner.statements)
    for root, layout, c in pending:
        low.copy_layout(root, layout, inner, buffer=c.buffer, after=barrier)


@lowers("cond")
def lower_cond(low, node, block):
    yes, no = node.attrs["then"], node.attrs["else"]
    in_yes, in_no = node.attrs["counts"]
    count = len(node.inputs) - 1 - in_yes - in_no
    flag = scalar(low, node.inputs[0], block)
    operands = node.inputs[1 : 1 + count]
    results, shared = branch_results(low, node, yes, no, operands, block)
    own = []
    for k, v in enumerate(operands):
        own.append(shared.get(k) or inside(low.whole(v, v.shape, block)))
    captured = bring_in(low, node.inputs[1 + count :], block)
    blocks = []
    for graph, extra in ((yes, captured[:in_yes]), (no, captured[in_yes:])):
        inner = Block(block)
        roots = [
            Root(r.shape, r.dtype, inner if k in shared else None, -1, buffer=r.buffer)
            for k, r in enumerate(own)
        ]
        lower_subgraph(low, graph, roots + extra, inner)
        write_back(
            low,
            graph.outputs,
            [
                Root(v.shape, v.dtype, inner, -1, buffer=b)
                for v, b in zip(graph.outputs, results, strict=True)
            ],
            inner,
        )
        blocks.append(inner)
    g = block.append(Branch(flag, *blocks))
    low.touch(node, block, g)
    for out, buffer in zip(node.outs, results, strict=True):
        low.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))


def branch_results(low, node, yes, no, operands, block):
    """Choose the result buffers; a result that updates a dying operand in place takes over that
    operand's buffer.
    """
    results, shared = [], {}
    for out, a, b in zip(node.outs, yes.outputs, no.outputs, strict=True):
        k = updated_operand(a, b, yes, no, len(operands))
        root = None if k is None or k in shared else own_memory(low, operands[k], node, block)
        # Another input in the same memory would see what a branch writes.
        if root is not None and [low.place(v)[0] for v in node.values()].count(root) == 1:
            shared[k] = root
            results.append(root.buffer)
        else:
            results.append(low.temporary(out.dtype, math.prod(out.shape)))
    return results, shared


def updated_operand(a, b, yes, no, count):
    """Index of the operand that one of the branches returns, as it is or after `put` into it; None
    if there is none.
    """

    def origin(v, graph):
        while v.kind == "node" and v.node is not None and v.node.name in ("put", "slice_put"):
            v = v.node.inputs[0]
        heads = [i.id for i in graph.inputs[:count]]
        return heads.index(v.id) if v.id in heads else None

    i, j = origin(a, yes), origin(b, no)
    return j if i is None else i
