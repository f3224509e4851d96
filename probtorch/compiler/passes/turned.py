"""Products whose transpose is what is wanted.

The gradient of a weight ``w`` in ``x @ w.T`` arrives as ``(x.T @ g).T``. Read as a view, its rows
lie across memory, and everything that works on it afterwards (an optimizer, most of all) reads
element by element what it could read in vectors. `turn_products` makes it ``g.T @ x``: operands may
be turned at no cost.
"""

from probtorch.compiler.graph import GraphValue, Node
from probtorch.core.op import REGISTRY

__all__ = ["turn_products"]

_TURN = (1, 0)


def turn_products(graph):
    """Make ``(a @ b).T``, of matrices, ``b.T @ a.T`` where nothing else reads the product."""
    uses, nodes = graph.uses(), []
    for node in graph.nodes:
        for inner in node.subgraphs():
            turn_products(inner)
        product = _turned(node)
        if product is not None and product.name == "matmul" and uses[product.outs[0].id] == 1:
            a, b = product.inputs
            if len(a.shape) == len(b.shape) == 2:
                node.inputs = tuple(_turn(x, nodes, product.location) for x in (b, a))
                node.name, node.op, node.attrs = product.name, product.op, product.attrs
                node.location = product.location
        nodes.append(node)
    graph.nodes[:] = nodes


def _turned(node):
    """Return the node whose result this one turns, None if it does nothing of the kind."""
    if node.name != "permute" or tuple(node.attrs["dims"]) != _TURN:
        return None
    source = node.inputs[0]
    return source.node if type(source) is GraphValue else None


def _turn(x, nodes, location):
    """Return the transpose of a matrix: what it is the transpose of, or a new view."""
    if x.node is not None and _turned(x.node) is not None:
        return x.node.inputs[0]
    out = GraphValue(x.shape[::-1], x.dtype, "node")
    nodes.append(Node(REGISTRY["permute"], "permute", (x,), {"dims": _TURN}, (out,), location))
    return out
