"""`Lowering`: a graph becomes blocks of loop nests.

It knows where every value is (`place`: a root and a layout), from which statement on it can be read
(`bound`), and how an item reads it (`operand`: a register of the same nest, or memory). Elementwise
ops are handled here; the rules for all other ops are in `lower/`, registered by name.
"""

import math

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.compiler.graph import GraphValue
from probtorch.compiler.nests.layout import Layout, contiguous
from probtorch.compiler.nests.loops import (
    Block,
    Group,
    Mem,
    MemoryBuffer,
    Reg,
    Root,
    address,
    squeeze,
    squeezed,
)
from probtorch.errors import CompileError

__all__ = ["SMALL", "Lowering", "arranged", "is_view", "lowers", "rule_of"]

RULES = {}

# Constants of so many elements or fewer are one if their elements are the same; larger ones, if
# their memory is.
SMALL = 64


def lowers(*names):
    """Decorator: the function is the lowering rule of the ops of these names, or of all ops that
    declare this as their native form (`Op.native`).
    """

    def register(rule):
        for name in names:
            RULES[name] = rule
        return rule

    return register


def rule_of(name, op):
    """Return the lowering rule for what an op declares as its native form, else for its name."""
    native = None if op is None else op.native
    return RULES.get(name if native is None else getattr(native, "kind", native))


def arranged(array):
    """Return the memory that a constant needs, contiguous, and the order of the dims in it.

    An expanded array has strides of 0: one element per such dim is kept. A transposed one keeps its
    memory too.
    """
    cut = [slice(0, 1) if s == 0 else slice(None) for s in array.strides]
    small = array[tuple(cut)] if array.size else array
    order = sorted(range(small.ndim), key=lambda d: -small.strides[d])
    moved = small.transpose(order)
    if not moved.flags.c_contiguous:
        order, moved = list(range(small.ndim)), np.asarray(small, order="C")
    return moved, order


class Lowering:
    """Lowers one graph; `block` is the result, `buffers` all buffers by kind.

    `consts` and `refs` are the arrays and tensors that the program reads besides its inputs,
    `const_values` and `ref_values` the values of the graph that they stand for. `in_place` lists
    the updates that loop nests write to their tensors themselves (`in_place.py`).

    Parameters
    ----------
    graph : Graph
    by_rows : bool
        Whether rows of matrices whose columns lie side by side are read as fast as others, which
        code for processors does (`render/short_rows.py`).
    """

    def __init__(self, graph, *, by_rows=False):
        self.graph, self.by_rows = graph, by_rows
        self.block = Block()
        self.buffers = []
        self.consts, self.const_values = [], []
        self.refs, self.ref_values = [], []
        self.packed_values = []
        self.in_place = []
        self._const_of = {}
        self.places = {}
        self.uses = None
        for k, v in enumerate(graph.inputs):
            buffer = self.buffer("input", v.dtype, math.prod(v.shape), k)
            self.places[v.id] = (
                Root(v.shape, v.dtype, None, -1, buffer=buffer),
                contiguous(v.shape),
            )
        self.lower(graph, self.block)
        self.outputs = [self._output(k, v) for k, v in enumerate(graph.outputs)]

    def buffer(self, kind, dtype, numel, slot=None):
        buffer = MemoryBuffer(kind, dtype, numel, slot)
        self.buffers.append(buffer)
        return buffer

    def temporary(self, dtype, numel):
        return self.buffer("scalar" if numel == 1 else "arena", dtype, numel)

    def place(self, v):
        """Return ``(root, layout)`` of a value."""
        found = self.places.get(v.id)
        if found is None:
            found = self.places[v.id] = self._constant(v)
        return found

    def _constant(self, v):
        if v.kind == "ref":
            self.refs.append(v.array)
            self.ref_values.append(v)
            buffer = self.buffer("ref", v.dtype, math.prod(v.shape), len(self.refs) - 1)
            return Root(v.shape, v.dtype, None, -1, buffer=buffer), contiguous(v.shape)
        if v.array is None:
            raise CompileError(
                f"value {v!r} has no producer",
                expected="a value recorded in this graph",
                got=f"one of kind {v.kind}",
                fix="record every op of the function in one recording",
            )
        array = to_host(v.array)
        moved, order = arranged(array)
        root = self._constant_root(moved, v)
        back = tuple(order.index(d) for d in range(array.ndim))
        layout = contiguous(moved.shape).view("permute", {"dims": back})
        return root, Layout(array.shape, layout.broadcast(array.shape), 0)

    def _constant_root(self, array, v):
        place = array.tobytes() if array.size <= SMALL else address(array)
        key = (array.dtype.str, array.shape, place)
        root = self._const_of.get(key)
        if root is None:
            if array.size == 1:
                slot = len(self.packed_values)
                self.packed_values.append(array.reshape(()))
                buffer = self.buffer("packed", array.dtype, 1, slot)
            else:
                self.consts.append(array)
                self.const_values.append(v)
                buffer = self.buffer("const", array.dtype, array.size, len(self.consts) - 1)
            root = self._const_of[key] = Root(array.shape, array.dtype, None, -1, buffer=buffer)
        return root

    def materialise(self, root):
        """Give `root` memory; its group will store it there."""
        if root.buffer is None:
            root.buffer = self.temporary(root.dtype, math.prod(root.shape))
        return root.buffer

    def after(self, root, block):
        """Statement index from which `root` can be read from memory inside `block`."""
        return root.group + 1 if root.block is block else 0

    def reads_register(self, root, layout, shape, block):
        domain = squeeze(shape)
        return (
            root.block is block
            and root.in_register
            and squeeze(root.shape) == domain
            and squeeze(layout.shape) == domain
            and layout.is_whole()
        )

    def bound(self, operands, shape, block):
        """Earliest statement for an item of `shape` that reads `operands` elementwise."""
        bound = 0
        for v in operands:
            if type(v) is GraphValue:
                root, layout = self.place(v)
                if self.reads_register(root, layout, shape, block):
                    bound = max(bound, root.group)
                else:
                    bound = max(bound, self.after(root, block))
        return bound

    def operand(self, v, shape, block, group):
        """Return how an item of `shape` in statement `group` reads `v`."""
        if type(v) is not GraphValue:
            return v
        root, layout = self.place(v)
        if (
            root.block is block
            and root.group == group
            and self.reads_register(root, layout, shape, block)
        ):
            return Reg(root)
        return self.memory(root, layout, shape, block, group)

    def memory(self, root, layout, shape, block, group):
        strides = squeezed(layout.broadcast(shape), shape)
        return self.reading(root, layout.offset, strides, block, group)

    def reading(self, root, offset, strides, block, group):
        """Return how an item of a statement reads memory, with strides over the domain of that."""
        root.read_by(block, group)
        return Mem(self.materialise(root), offset, strides)

    def define(self, v, root):
        self.places[v.id] = (root, contiguous(root.shape))

    def lower(self, graph, block):
        """Lower every node of `graph` into `block`."""
        for node in graph.nodes:
            op = node.op
            values = [v for v in (*node.outs, *node.inputs) if type(v) is GraphValue]
            if any(v.dtype.kind == "c" for v in values):
                raise CompileError(
                    f"op {node.name}",
                    expected="real numbers",
                    got="complex numbers, which are computed eagerly",
                    fix="the function runs eagerly instead",
                    at=node.place,
                )
            if op is not None and (op.family == "elementwise" or op.name == "cast"):
                self.elementwise(node, block)
                continue
            rule = rule_of(node.name, op)
            if rule is None:
                raise CompileError(
                    f"op {node.name}",
                    expected="an op that the compiler can render",
                    got="no lowering rule for it yet",
                    fix="the function runs eagerly instead",
                    at=node.place,
                )
            rule(self, node, block)

    def elementwise(self, node, block):
        """Lower an elementwise op or a cast."""
        (out,) = node.outs
        shape = out.shape
        g = block.group_at(squeeze(shape), self.bound(node.inputs, shape, block))
        operands = [self.operand(v, shape, block, g) for v in node.inputs]
        root = Root(shape, out.dtype, block, g, in_register=True, value=out)
        block.add(g, "compute", root, operands, node)
        self.define(out, root)

    def copy(self, v, block, buffer=None):
        """Return a root that holds a contiguous copy of `v`, written to `buffer` if given."""
        root, layout = self.place(v)
        return self.copy_layout(root, layout, block, buffer)

    def copy_layout(self, root, layout, block, buffer=None, after=0):
        shape = layout.shape
        register = self.reads_register(root, layout, shape, block)
        bound = root.group if register else self.after(root, block)
        g = block.group_at(squeeze(shape), max(bound, after))
        source = (
            Reg(root)
            if register and root.group == g
            else self.memory(root, layout, shape, block, g)
        )
        out = Root(shape, root.dtype, block, g)
        out.buffer = buffer or self.temporary(root.dtype, math.prod(shape))
        strides = squeezed(contiguous(shape).strides, shape)
        block.add(
            g, "store", None, [source], mode="set", buffer=out.buffer, offset=0, strides=strides
        )
        return out

    def store(self, v, buffer, layout, block, mode, after):
        """Write `v` (broadcast to the layout's shape) into a layout of `buffer`, at or after a
        statement; returns its index.
        """
        shape = layout.shape
        g = block.group_at(squeeze(shape), max(after, self.bound([v], shape, block)))
        at = {"offset": layout.offset, "strides": squeezed(layout.strides, shape)}
        value = self.operand(v, shape, block, g)
        block.add(g, "store", None, [value], mode=mode, buffer=buffer, **at)
        return g

    def assemble(self, out, pieces, block, *, fill=None, mode="set"):
        """Build `out` in memory from `pieces`, pairs of (value, layout in the buffer); `fill`
        first, if given.
        """
        buffer = self.temporary(out.dtype, math.prod(out.shape))
        stores = [self.store(v, buffer, layout, block, mode, 0) for v, layout in pieces]
        if not stores:
            stores.append(block.append(Group(())))
        if fill is not None:
            block.statements[min(stores)].fills.append((buffer, fill))
        self.define(out, Root(out.shape, out.dtype, block, max(stores), buffer=buffer))

    def filled(self, out, value, block):
        """Define `out` as a constant: sums and products over nothing."""
        buffer = self.temporary(out.dtype, math.prod(out.shape))
        g = block.append(Group(()))
        block.statements[g].fills.append((buffer, value))
        self.define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))

    def whole(self, v, shape, block, fresh=False):
        """Return a root that holds `v`, broadcast to `shape`, contiguously; `fresh` for one that
        may be overwritten.
        """
        root, layout = self.place(v)
        if (
            not fresh
            and tuple(v.shape) == tuple(shape)
            and layout.is_whole()
            and layout.shape == root.shape
        ):
            self.materialise(root)
            return root
        return self.copy_layout(root, layout.view("expand", {"shape": tuple(shape)}), block)

    def dies_here(self, v, node):
        """Whether nothing after `node` reads the memory of `v`, under whatever name."""
        if self.uses is None:
            self.uses = last_uses(self.graph)
        while v.kind == "node" and is_view(v.node):
            v = v.node.inputs[0]
        return self.uses.get(v.id) is node

    def is_read(self, v):
        """Whether anything reads `v`, a result of a node of the graph at hand."""
        if self.uses is None:
            self.uses = last_uses(self.graph)
        return v.id in self.uses

    def owned_copy(self, v, block, later):
        """Return a root with the contents of `v` that may be overwritten: `v` itself if nothing
        reads it later.
        """
        root, layout = self.place(v)
        mine = (
            root.buffer is not None
            and root.buffer.kind in ("arena", "scalar")
            and root.block is block
            and layout.is_whole()
        )
        if mine and not later and layout.shape == root.shape:
            return root, root.last_read + 1
        copied = self.copy(v, block)
        return copied, copied.group + 1

    def touch(self, node, block, g):
        """Note that statement `g` reads all inputs of `node`."""
        for v in node.values():
            root, _ = self.place(v)
            root.read_by(block, g)

    def _output(self, k, v):
        """Return the buffer of output `k`: the root's own memory where it can be the output, else a
        copy.
        """
        root, layout = self.place(v)
        free = root.buffer is None or root.buffer.kind in ("arena", "scalar")
        taken = root.buffer is not None and root.buffer.kind == "output"
        if (
            free
            and not taken
            and root.block is self.block
            and layout.is_whole()
            and root.shape == layout.shape
        ):
            buffer = root.buffer or self.temporary(root.dtype, math.prod(root.shape))
            buffer.kind, buffer.slot = "output", k
            root.buffer = buffer
            return buffer
        buffer = self.buffer("output", v.dtype, math.prod(v.shape), k)
        self.copy_layout(root, layout, self.block, buffer=buffer)
        return buffer


def is_view(node):
    """Whether a node only says how the memory of its input is read."""
    return node.op is not None and node.op.native == "view"


def last_uses(graph):
    """Map each value of `graph` to the last node that reads it or a view of it; None for what is an
    output.
    """
    order = {id(node): i for i, node in enumerate(graph.nodes)}
    last = {}
    for node in graph.nodes:
        for v in node.values():
            last[v.id] = order[id(node)]
    end = len(graph.nodes)
    for v in graph.outputs:
        last[v.id] = end
    for node in reversed(graph.nodes):
        if is_view(node) and type(node.inputs[0]) is GraphValue:
            source = node.inputs[0].id
            last[source] = max(last[source], last.get(node.outs[0].id, -1))
    return {k: None if i == end else graph.nodes[i] for k, i in last.items()}
