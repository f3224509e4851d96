"""Algebra, common subexpressions, dead code, and one special thing: work on uniform values.

A value is uniform when it is one number expanded to a shape. Elementwise work on uniform values is
done once on the number, and a sum of them is a product. Constants were folded while recording. No
rule changes nan, infinities or the sign of zero.
"""

import math

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.compiler.graph import GraphValue, Node
from probtorch.core.op import REGISTRY

__all__ = ["drop_dead", "simplify"]


def simplify(graph):
    """Rewrite the nodes of `graph` and of its subgraphs in place."""
    new, seen, swap = [], {}, {}

    def final(x):
        while type(x) is GraphValue and x.id in swap:
            x = swap[x.id]
        return x

    def add(node):
        """Append a node unless an equal one is there; returns its outputs."""
        key = _key(node)
        if key is not None:
            old = seen.get(key)
            if old is not None:
                return old.outs
            seen[key] = node
        new.append(node)
        return node.outs

    for node in graph.nodes:
        node.inputs = tuple(final(x) for x in node.inputs)
        if node.name == "demand" and node.inputs[0] is node.inputs[1]:
            node = _demand_of_source(node)
        for inner in node.subgraphs():
            simplify(inner)
            drop_dead(inner)
        same = _identity(node)
        if same is None:
            same = _uniform_work(node, add)
        if same is not None:
            swap[node.outs[0].id] = same
            continue
        for old, kept in zip(node.outs, add(node), strict=True):
            if old is not kept:
                swap[old.id] = kept
    graph.nodes[:] = new
    graph.outputs = [final(v) for v in graph.outputs]


def drop_dead(graph):
    """Remove nodes whose outputs nothing reads; guards and demands stay."""
    alive = {v.id for v in graph.outputs}
    kept = []
    for node in reversed(graph.nodes):
        if _tests(node) or any(v.id in alive for v in node.outs):
            alive.update(v.id for v in node.values())
            kept.append(node)
    graph.nodes[:] = reversed(kept)


def _tests(node):
    """Whether a run may end at the node, or in it."""
    if node.name in ("guard", "demand"):
        return True
    return any(_tests(inner) for part in node.subgraphs() for inner in part.nodes)


def _demand_of_source(node):
    """Return a test of a value, whose result nothing reads, as one of what the value repeats."""
    x = node.inputs[0]
    while x.kind == "node" and x.node.name in ("expand", "reshape", "permute") and 0 not in x.shape:
        x = x.node.inputs[0]
    out = GraphValue(x.shape, x.dtype, "node")
    return Node(node.op, "demand", (x, x), node.attrs, (out,), node.location)


def _freeze(x):
    if isinstance(x, np.dtype):
        return x.str
    if isinstance(x, (list, tuple)):
        return tuple(map(_freeze, x))
    return x


def _key(node):
    if node.op is None:
        return None
    parts = [node.name]
    for x in node.inputs:
        if type(x) is not GraphValue:
            parts.append((type(x).__name__, repr(x)))
        elif x.kind == "const" and x.array.size <= 8:
            parts.append((x.dtype.str, x.shape, to_host(x.array).tobytes()))
        else:
            parts.append(x.id)
    parts.append(tuple((k, _freeze(v)) for k, v in node.attrs.items()))
    return tuple(parts)


def _number(x):
    """Return the Python number that `x` is everywhere, or None."""
    if type(x) is not GraphValue:
        return x
    if (
        x.static
        and x.array is not None
        and x.array.size
        and (x.array.size == 1 or not any(x.array.strides))
    ):
        return to_host(x.array).flat[0].item()
    return None


def _identity(node):
    """Return the input that the node's result equals, or None."""
    name, inputs = node.name, node.inputs
    if name in ("mul", "div", "sub", "pow"):
        x, y = inputs
        out = node.outs[0]
        unit = 0 if name == "sub" else 1
        if _same(x, out) and _number(y) == unit and not isinstance(_number(y), bool):
            # -0.0 - -0.0 is 0.0.
            return None if str(_number(y)) == "-0.0" else x
        if name == "mul" and _same(y, out) and _number(x) == 1 and not isinstance(_number(x), bool):
            return y
    elif (
        name == "neg"
        and type(inputs[0]) is GraphValue
        and inputs[0].node is not None
        and inputs[0].node.name == "neg"
    ):
        return inputs[0].node.inputs[0]
    elif name in ("clone", "contiguous"):
        return inputs[0]
    return None


def _same(x, out):
    return type(x) is GraphValue and x.shape == out.shape and x.dtype == out.dtype


def _source(x):
    """Return the 0-d value or Python number that `x` repeats, or None."""
    if type(x) is not GraphValue:
        return x
    if x.shape == ():
        return x
    if x.static and x.array is not None and x.array.size and not any(x.array.strides):
        return GraphValue((), x.dtype, "const", array=x.array[(0,) * x.array.ndim].reshape(()))
    node = x.node
    if node is not None and node.name == "expand" and math.prod(node.inputs[0].shape) == 1:
        inner = node.inputs[0]
        return inner if inner.shape == () else ("reshape", inner)
    return None


def _uniform_work(node, add):
    """Do an elementwise op or a full sum of uniform values on the number; returns the new value, or
    None.
    """
    if node.op is None or not node.inputs or (node.outs[0].shape == () and node.name != "sum"):
        return None
    elementwise = node.op.family == "elementwise" or node.name == "cast"
    out = node.outs[0]
    if node.name == "sum":
        (x,) = node.inputs
        if (
            x.shape == ()
            or node.attrs["keepdim"]
            or len(node.attrs["dims"]) != len(x.shape)
            or out.dtype.kind != "f"
            or 0 in x.shape  # 0 * inf is not the sum of nothing
        ):
            return None
    elif not elementwise or math.prod(out.shape) <= 1:
        return None
    sources = [_source(x) for x in node.inputs]
    if any(s is None for s in sources):
        return None

    def made(op, name, inputs, attrs, shape=(), dtype=out.dtype):
        value = GraphValue(shape, dtype, "node")
        return add(Node(op, name, inputs, attrs, (value,), node.location))[0]

    small = []
    for s in sources:
        if isinstance(s, tuple):
            s = made(REGISTRY["reshape"], "reshape", s[1:], {"shape": ()}, dtype=s[1].dtype)
        small.append(s)
    if node.name == "sum":
        count = float(math.prod(node.inputs[0].shape))
        return made(REGISTRY["mul"], "mul", (small[0], count), {})
    result = made(node.op, node.name, tuple(small), node.attrs)
    return made(REGISTRY["expand"], "expand", (result,), {"shape": out.shape}, out.shape)
