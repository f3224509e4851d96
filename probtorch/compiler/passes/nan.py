"""Where a nan goes: from which values of a graph it surely reaches certain numbers.

A parameter that must not be nan needs no test of its own where a nan in it would show in the log
density, which is tested once, whatever the number of parameters.
"""

from probtorch.compiler.graph import GraphValue

__all__ = ["CARRIES", "nan_reaches"]

# Ops whose every element has all that it is made of in it: nan in, nan out. Not among them are
# those that choose (where, maximum) or leave elements out (slice, take).
CARRIES = frozenset(
    """
    add sub mul div clone neg reciprocal square sqrt rsqrt cbrt abs exp exp2 expm1 log log2 log10
    log1p sigmoid softplus log_sigmoid sin cos tanh erf erfc ndtr log_ndtr lgamma digamma xlogy
    xlog1py reshape permute expand sum cumsum matmul cat cast
    """.split()
)


def nan_reaches(graph, roots):
    """Return the ids of the values of which any nan element makes one of `roots` nan.

    Parameters
    ----------
    graph : Graph
    roots : sequence of Value
        Of shape ().

    Notes
    -----
    Turns that were followed are told of it, and note which of their numbers are `unreached`.
    """
    found = {v.id for v in roots}
    if not found:
        return found
    for node in reversed(graph.nodes):
        if node.name == "turns":
            node.attrs["turns"].nan_reaches(found)
        if node.name not in CARRIES:
            continue
        (out,) = node.outs
        if out.id in found and 0 not in out.shape and out.dtype.kind == "f":
            found.update(x.id for x in node.inputs if type(x) is GraphValue and x.dtype.kind == "f")
    return found
