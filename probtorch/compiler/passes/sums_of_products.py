"""Sums of products that are products of matrices: ``(x * b).sum(-1)`` is ``x @ b``.

A linear predictor may be written either way, and the gradient of the first is again such a sum,
``(g[:, None] * x).sum(0)``. As products of a matrix and a vector both share one nest with the work
between them, and rows of few numbers are read in vectors (`render/short_rows.py`). That pays for
long matrices of few columns, or rows, that lie in memory; what is computed element by element stays
a loop over elements, which need not be stored.
"""

from probtorch.compiler.graph import GraphValue, Node
from probtorch.core.op import REGISTRY

__all__ = ["make_products"]

# Few columns, and many rows, or the other way round: as in `lower/products.py`.
_FEW, _MANY = range(2, 33), 128
_VIEWS = ("permute", "reshape", "slice")


def make_products(graph):
    """Make sums over one dim of ``x * v`` products of matrices, where v is the same along the
    other.
    """
    uses, nodes = graph.uses(), []
    for node in graph.nodes:
        for inner in node.subgraphs():
            make_products(inner)
        found = _operands(node, uses)
        if found is not None:
            matrix, summed, vector = found
            _write(node, matrix, summed, vector, nodes)
        nodes.append(node)
    graph.nodes[:] = nodes


def _operands(node, uses):
    """Return the matrix, its summed dim and the vector, as a value of its elements, or None."""
    x = node.inputs[0] if node.name == "sum" else None
    if type(x) is not GraphValue or x.node is None or x.node.name != "mul" or uses[x.id] != 1:
        return None
    if len(x.shape) != 2 or x.dtype != "float64" or len(node.attrs["dims"]) != 1:
        return None
    few, many = sorted(x.shape)
    if few not in _FEW or many < _MANY:
        return None
    summed = node.attrs["dims"][0] % 2
    factors = x.node.inputs
    for matrix, other in (factors, factors[::-1]):
        if not all(type(v) is GraphValue and v.dtype == x.dtype for v in (matrix, other)):
            return None
        vector = _repeated(other, x.shape, 1 - summed)
        if vector is not None and matrix.shape == x.shape and _is_stored(matrix):
            return matrix, summed, vector
    return None


def _repeated(x, shape, dim):
    """Return the value that is repeated along a dim of a matrix of a shape, or None."""
    if x.node is not None and x.node.name == "expand" and x.shape == shape:
        x = x.node.inputs[0]
    once = tuple(1 if d == dim else n for d, n in enumerate(shape))
    return x if x.shape in (once, once[1:] if dim == 0 else once) else None


def _is_stored(x):
    """Whether a value lies in memory, and is not computed by the program."""
    while x.node is not None and x.node.name in _VIEWS:
        x = x.node.inputs[0]
    return x.node is None


def _write(node, matrix, summed, vector, nodes):
    """Make the sum a view of a product, whose nodes are added."""

    def made(name, inputs, shape, attrs):
        out = GraphValue(shape, matrix.dtype, "node")
        nodes.append(Node(REGISTRY[name], name, inputs, attrs, (out,), node.location))
        return out

    if summed == 0:
        matrix = made("permute", (matrix,), matrix.shape[::-1], {"dims": (1, 0)})
    results, terms = matrix.shape
    if vector.shape != (terms, 1):
        vector = made("reshape", (vector,), (terms, 1), {"shape": (terms, 1)})
    product = made("matmul", (matrix, vector), (results, 1), {})
    node.op, node.name, node.inputs = REGISTRY["reshape"], "reshape", (product,)
    node.attrs = {"shape": node.outs[0].shape}
