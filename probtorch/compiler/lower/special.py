"""Scalar functions of render/runtime, as items of a loop nest: special functions and draws."""

from probtorch.compiler.nests.loops import Root, squeeze
from probtorch.compiler.nests.lowering import lowers


@lowers("function")
def lower_function(low, node, block):
    """Lower an elementwise call of a runtime function."""
    function = node.op.native
    pointwise(
        low,
        node,
        block,
        "native",
        numbers=() if function.numbers is None else function.numbers(**node.attrs),
        symbol="pt_" + function.name.format(**node.attrs),
        refuses=function.refuses,
    )


def pointwise(low, node, block, kind, *, numbers=(), **attrs):
    """Append an item that reads its operands, broadcast, at each index of its result."""
    (out,) = node.outs
    g = block.group_at(squeeze(out.shape), low.bound(node.inputs, out.shape, block))
    operands = [low.operand(v, out.shape, block, g) for v in node.inputs]
    root = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
    block.add(g, kind, root, [*operands, *numbers], node, **attrs)
    low.define(out, root)


@lowers("demand")
def lower_demand(low, node, block):
    pointwise(low, node, block, "demand")
