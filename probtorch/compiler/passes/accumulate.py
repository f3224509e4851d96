"""Sums of padded slices become one accumulation.

The gradient of a vector that a model reads slice by slice arrives as a chain of additions of
zero-padded pieces: work in the number of slices times the length. `merge_slices` turns each such
chain into one node that adds (or, where every element is written once, stores) each piece at its
place.
"""

from probtorch.compiler.graph import GraphValue

__all__ = ["merge_slices"]


def merge_slices(graph):
    """Replace trees of `add` over `unslice` nodes by "accumulate" nodes, in place."""
    uses = graph.uses()
    for node in graph.nodes:
        for inner in node.subgraphs():
            merge_slices(inner)

    terms = {}  # value id -> list of (value, spec), for values that are sums of slices
    merged = set()  # ids of values that a later sum took over
    for node in graph.nodes:
        if not node.outs:
            continue
        out = node.outs[0]
        if node.name == "unslice":
            terms[out.id] = [(node.inputs[0], node.attrs["spec"])]
        elif node.name == "add" and all(
            type(x) is GraphValue and x.shape == out.shape for x in node.inputs
        ):
            parts = [
                terms[v.id] if v.id in terms and uses[v.id] == 1 else None for v in node.inputs
            ]
            if parts == [None, None]:
                continue
            whole = tuple((0, 1, n) for n in out.shape)
            total = []
            for v, part in zip(node.inputs, parts, strict=True):
                if part is None:
                    total.append((v, whole))
                    continue
                merged.add(v.id)
                # Grow the longer list, so that a chain of n additions costs n and not n^2.
                if len(part) > len(total):
                    part.extend(total)
                    total = part
                else:
                    total.extend(part)
            terms[out.id] = total
    for node in graph.nodes:
        if not node.outs:
            continue
        out = node.outs[0]
        if node.name == "add" and out.id in terms and out.id not in merged:
            node.name, node.op = "accumulate", None
            node.inputs = tuple(v for v, _ in terms[out.id])
            node.attrs = {"specs": tuple(spec for _, spec in terms[out.id])}
