"""Passes: pure functions from graph to graph, run in the order of `optimise`."""

from probtorch.compiler.passes.accumulate import merge_slices
from probtorch.compiler.passes.simplify import drop_dead, simplify
from probtorch.compiler.passes.sums_of_products import make_products
from probtorch.compiler.passes.turned import turn_products

__all__ = ["optimise"]


def optimise(graph):
    """Run all passes on `graph` and its subgraphs, in place."""
    simplify(graph)
    make_products(graph)
    turn_products(graph)
    merge_slices(graph)
    drop_dead(graph)
    return graph
