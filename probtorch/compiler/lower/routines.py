"""Calls of the functions in render/runtime: their operands, results and working space.

Such a function takes whole arrays: matrices one after the other, or rows one after the other. What
it takes is copied there if it lies otherwise; what it gives may be seen through a layout, so that
a transposed result costs nothing.
"""

import math

import numpy as np

from probtorch.compiler.nests.layout import contiguous
from probtorch.compiler.nests.loops import Call, MemoryBuffer, Root

__all__ = ["call", "define_moved", "inverse", "moved_operand", "operand", "workspace"]

_BYTES = np.dtype(np.uint8)


def inverse(order):
    """Return the permutation that undoes `order`."""
    return tuple(order.index(d) for d in range(len(order)))


def moved_operand(low, v, order, shape, block, *, fresh=False):
    """Return a root that holds `v`, expanded to `shape`, with its dims in `order`, contiguously.

    `fresh` for memory that may be overwritten.
    """
    root, layout = low.place(v)
    moved = layout.view("expand", {"shape": tuple(shape)}).view("permute", {"dims": tuple(order)})
    whole = moved.is_whole() and math.prod(moved.shape) == math.prod(root.shape)
    if whole and not fresh:
        low.materialise(root)
        return root
    return low.copy_layout(root, moved, block)


def operand(low, v, block):
    """Return a root that holds `v` contiguously."""
    return moved_operand(low, v, range(len(v.shape)), v.shape, block)


def workspace(low, nbytes):
    """Return a buffer of the arena for working space."""
    return low.buffer("arena", _BYTES, max(int(nbytes), 1))


def call(block, node, symbol, arguments, *, fails=False):
    """Append the call of a function; returns its statement.

    Parameters
    ----------
    arguments : sequence of Root, Buffer and int
        Roots are what it reads; buffers what it writes.
    fails : bool
        Whether it returns a flag, on which the run ends.
    """
    passed = [x.buffer if isinstance(x, Root) else x for x in arguments]
    g = block.append(
        Call(
            "routine",
            [x for x in passed if isinstance(x, MemoryBuffer)],
            node,
            symbol=symbol,
            arguments=passed,
            fails=fails,
        )
    )
    for x in arguments:
        if isinstance(x, Root):
            x.read_by(block, g)
    return g


def define_moved(low, v, buffer, order, block, g):
    """Define `v` as what lies in `buffer` with its dims in `order`, written by statement `g`."""
    shape = tuple(v.shape[d] for d in order)
    layout = contiguous(shape).view("permute", {"dims": inverse(tuple(order))})
    low.places[v.id] = (Root(shape, v.dtype, block, g, buffer=buffer), layout)
