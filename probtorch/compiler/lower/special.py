"""Scalar functions of render/runtime, as items of a loop nest: special functions and draws."""

from probtorch.compiler.loops import Item, Root, squeeze
from probtorch.compiler.lowering import lowers
from probtorch.core.op import REGISTRY
from probtorch.ops import variates as variates  # declares the samplers that are registered below


def native(low, node, block, symbol, *, numbers=(), refuses=False):
    """Lower an elementwise call of a runtime function.

    Parameters
    ----------
    numbers : sequence of int
        Further arguments.
    refuses : bool
        Whether the run ends where the function gives nan.
    """
    pointwise(low, node, block, "native", numbers=numbers, symbol=symbol, refuses=refuses)


def pointwise(low, node, block, kind, *, numbers=(), **attrs):
    """Append an item that reads its operands, broadcast, at each index of its result."""
    (out,) = node.outs
    g = block.group_at(squeeze(out.shape), low.bound(node.inputs, out.shape, block))
    operands = [low.operand(v, out.shape, block, g) for v in node.inputs]
    root = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
    block.statements[g].items.append(Item(kind, root, [*operands, *numbers], node, **attrs))
    low.define(out, root)


@lowers("gamma_log_implicit", "gammainc_grad_a")
def lower_gamma(low, node, block):
    native(low, node, block, f"pt_{node.name}_{node.attrs['order']}")


@lowers("betainc_grad")
def lower_beta(low, node, block):
    i, j = node.attrs["order"]
    native(low, node, block, f"pt_betainc_grad_{i}{j}")


@lowers("von_mises_slope")
def lower_von_mises_slope(low, node, block):
    native(low, node, block, "pt_von_mises_slope")


@lowers(*(op.name for op in REGISTRY.values() if "sampler" in op.extra))
def lower_sampler(low, node, block):
    native(low, node, block, f"pt_draw_{node.op.extra['sampler']}", refuses=True)


@lowers("bits_to_integers")
def lower_bits_to_integers(low, node, block):
    # As signed numbers of the same bits.
    numbers = [(n + 2**63) % 2**64 - 2**63 for n in (node.attrs["low"], node.attrs["span"])]
    native(low, node, block, "pt_bits_to_integers", numbers=numbers)


@lowers("demand")
def lower_demand(low, node, block):
    pointwise(low, node, block, "demand")
