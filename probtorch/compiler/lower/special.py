"""Scalar functions of render/runtime, as items of a loop nest: special functions and draws."""

from probtorch.compiler.loops import Item, Root, squeeze
from probtorch.compiler.lowering import lowers


def native(low, node, block, symbol):
    """Lower an elementwise call of a runtime function."""
    (out,) = node.outs
    g = block.group_at(squeeze(out.shape), low.bound(node.inputs, out.shape, block))
    operands = [low.operand(v, out.shape, block, g) for v in node.inputs]
    root = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
    block.statements[g].items.append(Item("native", root, operands, node, symbol=symbol))
    low.define(out, root)


@lowers("gamma_log_implicit", "gammainc_grad_a")
def lower_gamma(low, node, block):
    native(low, node, block, f"pt_{node.name}_{node.attrs['order']}")


@lowers("betainc_grad")
def lower_beta(low, node, block):
    i, j = node.attrs["order"]
    native(low, node, block, f"pt_betainc_grad_{i}{j}")
