"""From a graph to loop nests: which ops share a loop, what lives in registers, what in memory.

A `Block` is a list of statements run in order. Most are `Group`s: one loop nest over a domain (a shape without its sizes of 1)
whose items run for each index. An op joins the first group of its domain that comes late enough: in the group of its operands
when it reads them at the same index (a register), after it when it reads them otherwise (memory). Reductions, dot products
over rows and scattered stores are items too, so a likelihood, its sum, its gradient and the products ``X @ b`` and ``X.T @ r``
around it end up in one pass over the data.

Movement ops make no code: they change the `Layout` by which later items read the same root. Loops, branches, library calls and
guards are statements of their own. Lifetimes are counted in statements of the outermost block; `plan_memory` then packs all
temporaries into one arena.
"""

import bisect
import math

import numpy as np

from probtorch.compiler.graph import Value
from probtorch.compiler.layout import Layout, contiguous
from probtorch.errors import CompileError

__all__ = [
    "Block",
    "Branch",
    "Buffer",
    "Call",
    "Group",
    "Guard",
    "Item",
    "Loop",
    "Lowering",
    "Mem",
    "Reg",
]

# Items per scalar group: one LLVM function each, so that its time stays linear in the program's length.
MAX_ITEMS = 600
# Products larger than this go to BLAS; below, the loop is faster than the call.
GEMM_FROM = 20_000


class Buffer:
    """Memory of one root. `kind`: input, output, const, ref, arena, scalar, packed; `slot`: its number or byte offset."""

    __slots__ = ("dtype", "first", "kind", "last", "numel", "slot")

    def __init__(self, kind, dtype, numel, slot=None):
        self.kind, self.dtype, self.numel, self.slot = kind, dtype, numel, slot
        self.first = self.last = None

    @property
    def nbytes(self):
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


class Root:
    """A value that is computed somewhere: its group (statement index in its block) and its memory, if it has any."""

    __slots__ = ("block", "buffer", "dtype", "group", "in_register", "last_read", "shape", "value")

    def __init__(self, shape, dtype, block, group, *, in_register=False, buffer=None, value=None):
        self.shape, self.dtype, self.block, self.group = tuple(shape), dtype, block, group
        self.in_register = in_register
        self.buffer = buffer
        self.last_read = group
        self.value = value


class Reg:
    """An operand that the same group holds in a register."""

    __slots__ = ("root",)

    def __init__(self, root):
        self.root = root


class Mem:
    """An operand in memory: a buffer read at ``offset + sum(index * stride)`` over the group's domain."""

    __slots__ = ("buffer", "offset", "strides")

    def __init__(self, buffer, offset, strides):
        self.buffer, self.offset, self.strides = buffer, offset, strides


class Item:
    """One line of a loop body.

    `kind`: "compute" (formula), "cast", "gather", "dot", "reduce", "store", "axpy"; `root` is what it defines (None for
    stores), `operands` are Reg, Mem or Python numbers, `attrs` the rest.
    """

    __slots__ = ("attrs", "kind", "node", "operands", "root")

    def __init__(self, kind, root, operands, node=None, **attrs):
        self.kind, self.root, self.operands, self.node, self.attrs = (
            kind,
            root,
            operands,
            node,
            attrs,
        )


class Group:
    """A loop nest over `domain` with `items` in order; `fills` lists (buffer, number) to set before it runs."""

    def __init__(self, domain):
        self.domain = domain
        self.items = []
        self.fills = []


class Call:
    """A library routine on buffers; `name` selects the renderer's template."""

    def __init__(self, name, buffers, node=None, **attrs):
        self.name, self.buffers, self.node, self.attrs = name, buffers, node, attrs


class Guard:
    """Leave with a status unless the scalar in `buffer` equals `value`."""

    def __init__(self, buffer, value, index):
        self.buffer, self.value, self.index = buffer, value, index


class Loop:
    """While the scalar `flag`, computed by `test`, is true: run `body`."""

    def __init__(self, test, flag, body):
        self.test, self.flag, self.body = test, flag, body


class Branch:
    """Run `yes` or `no` by the scalar `flag`."""

    def __init__(self, flag, yes, no):
        self.flag, self.yes, self.no = flag, yes, no


class Block:
    """A list of statements and, for each domain, the indices of its groups."""

    def __init__(self, parent=None):
        self.parent = parent
        self.statements = []
        self.by_domain = {}

    def append(self, statement):
        """Add a statement; returns its index."""
        self.statements.append(statement)
        return len(self.statements) - 1

    def group_at(self, domain, bound):
        """Return the index of a group over `domain` at or after `bound`, new if there is none."""
        known = self.by_domain.setdefault(domain, [])
        for i in known[bisect.bisect_left(known, bound) :]:
            if domain or len(self.statements[i].items) < MAX_ITEMS:
                return i
        known.append(self.append(Group(domain)))
        return known[-1]


def address(array):
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


def squeeze(shape):
    """Return the domain of a shape: without its sizes of 1."""
    return tuple(n for n in shape if n != 1)


class Lowering:
    """Lowers one graph; `block` is the result, `buffers` all buffers by kind.

    Parameters
    ----------
    graph : Graph
    """

    def __init__(self, graph):
        self.graph = graph
        self.block = Block()
        self.buffers = []
        self.consts = []
        self.refs = []
        self.packed = {}
        self.packed_values = []
        self._const_of = {}
        self._place = {}
        self._uses = None
        for k, v in enumerate(graph.inputs):
            buffer = self._buffer("input", v.dtype, math.prod(v.shape), k)
            self._place[v.id] = (
                Root(v.shape, v.dtype, None, -1, buffer=buffer),
                contiguous(v.shape),
            )
        self.lower(graph, self.block)
        self.outputs = [self._output(k, v) for k, v in enumerate(graph.outputs)]

    # ------------------------------------------------------------------------------------------ places

    def _buffer(self, kind, dtype, numel, slot=None):
        buffer = Buffer(kind, dtype, numel, slot)
        self.buffers.append(buffer)
        return buffer

    def _temporary(self, dtype, numel):
        return self._buffer("scalar" if numel == 1 else "arena", dtype, numel)

    def place(self, v):
        """Return ``(root, layout)`` of a value."""
        found = self._place.get(v.id)
        if found is None:
            found = self._place[v.id] = self._constant(v)
        return found

    def _constant(self, v):
        if v.kind == "ref":
            self.refs.append(v.array)
            buffer = self._buffer("ref", v.dtype, math.prod(v.shape), len(self.refs) - 1)
            return Root(v.shape, v.dtype, None, -1, buffer=buffer), contiguous(v.shape)
        if v.array is None:
            raise CompileError(
                f"value {v!r} has no producer", expected="a recorded value", got=v.kind
            )
        array = np.asarray(v.array)
        # An expanded array has strides of 0: keep one element per such dim. A transposed one keeps its memory too.
        cut = [slice(0, 1) if s == 0 else slice(None) for s in array.strides]
        small = array[tuple(cut)] if array.size else array
        order = sorted(range(small.ndim), key=lambda d: -small.strides[d])
        moved = small.transpose(order)
        if not moved.flags.c_contiguous:
            order, moved = list(range(small.ndim)), np.asarray(small, order="C")
        root = self._constant_root(moved)
        back = tuple(order.index(d) for d in range(small.ndim))
        layout = contiguous(moved.shape).view("permute", {"dims": back})
        return root, Layout(array.shape, layout.broadcast(array.shape), 0)

    def _constant_root(self, array):
        place = array.tobytes() if array.size <= 64 else address(array)
        key = (array.dtype.str, array.shape, place)
        root = self._const_of.get(key)
        if root is None:
            if array.size == 1:
                slot = len(self.packed_values)
                self.packed_values.append(array.reshape(()))
                buffer = self._buffer("packed", array.dtype, 1, slot)
            else:
                self.consts.append(array)
                buffer = self._buffer("const", array.dtype, array.size, len(self.consts) - 1)
            root = self._const_of[key] = Root(array.shape, array.dtype, None, -1, buffer=buffer)
        return root

    def materialise(self, root):
        """Give `root` memory; its group will store it there."""
        if root.buffer is None:
            root.buffer = self._temporary(root.dtype, math.prod(root.shape))
        return root.buffer

    def _bound_for_memory(self, root, block):
        """Statement index from which `root` can be read from memory inside `block`."""
        return root.group + 1 if root.block is block else 0

    def _reads_register(self, root, layout, shape, block):
        domain = squeeze(shape)
        return (
            root.block is block
            and root.in_register
            and squeeze(root.shape) == domain
            and squeeze(layout.shape) == domain
            and layout.is_whole()
        )

    def _bound(self, operands, shape, block):
        """Earliest statement for an item of `shape` that reads `operands` elementwise."""
        bound = 0
        for v in operands:
            if type(v) is Value:
                root, layout = self.place(v)
                if self._reads_register(root, layout, shape, block):
                    bound = max(bound, root.group)
                else:
                    bound = max(bound, self._bound_for_memory(root, block))
        return bound

    def _operand(self, v, shape, block, group):
        """Return how an item of `shape` in statement `group` reads `v`."""
        if type(v) is not Value:
            return v
        root, layout = self.place(v)
        if (
            root.block is block
            and root.group == group
            and self._reads_register(root, layout, shape, block)
        ):
            return Reg(root)
        return self._memory(root, layout, shape, block, group)

    def _memory(self, root, layout, shape, block, group):
        buffer = self.materialise(root)
        if root.block is block:
            root.last_read = max(root.last_read, group)
        strides = layout.broadcast(shape)
        return Mem(
            buffer, layout.offset, tuple(s for s, n in zip(strides, shape, strict=True) if n != 1)
        )

    def _define(self, v, root):
        self._place[v.id] = (root, contiguous(root.shape))

    # ------------------------------------------------------------------------------------------ nodes

    def lower(self, graph, block):
        """Lower every node of `graph` into `block`."""
        for node in graph.nodes:
            op = node.op
            if op is not None and (op.family == "elementwise" or op.name == "cast"):
                handler = self._elementwise
            else:
                handler = getattr(self, f"_lower_{node.name}", None)
            if handler is None:
                raise CompileError(
                    f"op {node.name}", expected="an op that the compiler can render",
                    got=f"{node.name}, which it cannot yet", fix="the function runs eagerly instead", at=node.place,
                )  # fmt: skip
            handler(node, block)

    def _elementwise(self, node, block, kind="compute"):
        (out,) = node.outs
        shape = out.shape
        g = block.group_at(squeeze(shape), self._bound(node.inputs, shape, block))
        operands = [self._operand(v, shape, block, g) for v in node.inputs]
        root = Root(shape, out.dtype, block, g, in_register=True, value=out)
        block.statements[g].items.append(Item(kind, root, operands, node))
        self._define(out, root)

    def copy(self, v, block, buffer=None):
        """Return a root that holds a contiguous copy of `v`, written to `buffer` if given."""
        root, layout = self.place(v)
        return self._copy_layout(root, layout, block, buffer)

    def _copy_layout(self, root, layout, block, buffer=None, after=0):
        shape = layout.shape
        register = self._reads_register(root, layout, shape, block)
        bound = root.group if register else self._bound_for_memory(root, block)
        g = block.group_at(squeeze(shape), max(bound, after))
        source = (
            Reg(root)
            if register and root.group == g
            else self._memory(root, layout, shape, block, g)
        )
        out = Root(shape, root.dtype, block, g)
        out.buffer = buffer or self._temporary(root.dtype, math.prod(shape))
        block.statements[g].items.append(
            Item(
                "store",
                None,
                [source],
                mode="set",
                buffer=out.buffer,
                offset=0,
                strides=self._domain_strides(shape),
            )
        )
        return out

    @staticmethod
    def _domain_strides(shape):
        return tuple(s for s, n in zip(contiguous(shape).strides, shape, strict=True) if n != 1)

    def _store(self, v, buffer, layout, block, mode, after):
        """Write `v` (broadcast to the layout's shape) into a layout of `buffer`, at or after a statement; returns its index."""
        shape = layout.shape
        g = block.group_at(squeeze(shape), max(after, self._bound([v], shape, block)))
        strides = tuple(s for s, n in zip(layout.strides, shape, strict=True) if n != 1)
        block.statements[g].items.append(
            Item(
                "store",
                None,
                [self._operand(v, shape, block, g)],
                mode=mode,
                buffer=buffer,
                offset=layout.offset,
                strides=strides,
            )
        )
        return g

    def _view(self, node, block):
        (v,), (out,) = node.inputs, node.outs
        root, layout = self.place(v)
        moved = layout.view(node.name, node.attrs)
        if moved is None:
            root = self._copy_layout(root, layout, block)
            moved = contiguous(v.shape).view(node.name, node.attrs)
        self._place[out.id] = (root, moved)

    _lower_reshape = _lower_permute = _lower_expand = _lower_slice = _lower_diagonal = _view

    # ------------------------------------------------------------------------------------------ stores

    def _assemble(self, out, pieces, block, *, fill=None, mode="set"):
        """Build `out` in memory from `pieces`, pairs of (value, layout in the buffer); `fill` first, if given."""
        buffer = self._temporary(out.dtype, math.prod(out.shape))
        stores = [self._store(v, buffer, layout, block, mode, 0) for v, layout in pieces]
        if not stores:
            stores.append(block.append(Group(())))
        if fill is not None:
            block.statements[min(stores)].fills.append((buffer, fill))
        self._define(out, Root(out.shape, out.dtype, block, max(stores), buffer=buffer))

    def _filled(self, out, value, block):
        """Define `out` as a constant: sums and products over nothing."""
        buffer = self._temporary(out.dtype, math.prod(out.shape))
        g = block.append(Group(()))
        block.statements[g].fills.append((buffer, value))
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))

    def _lower_unslice(self, node, block):
        (out,) = node.outs
        layout = contiguous(out.shape).view("slice", {"spec": node.attrs["spec"]})
        self._assemble(out, [(node.inputs[0], layout)], block, fill=0)

    def _lower_accumulate(self, node, block):
        (out,) = node.outs
        whole = contiguous(out.shape)
        pieces = [
            (v, whole.view("slice", {"spec": spec}))
            for v, spec in zip(node.inputs, node.attrs["specs"], strict=True)
        ]
        covered = np.zeros(out.shape, np.int32)
        for spec in node.attrs["specs"]:
            covered[
                tuple(
                    slice(a, a + st * n if a + st * n >= 0 else None, st) if n else slice(0, 0)
                    for a, st, n in spec
                )
            ] += 1
        once = bool((covered == 1).all())
        self._assemble(out, pieces, block, fill=None if once else 0, mode="set" if once else "add")

    def _lower_diag_embed(self, node, block):
        (out,) = node.outs
        layout = contiguous(out.shape).view("diagonal", {"offset": node.attrs["offset"]})
        n = node.inputs[0].shape[-1]
        layout = Layout((*layout.shape[:-1], n), layout.strides, layout.offset)
        self._assemble(out, [(node.inputs[0], layout)], block, fill=0)

    def _lower_cat(self, node, block):
        (out,), dim = node.outs, node.attrs["dim"]
        pieces, at = [], 0
        for v in node.inputs:
            spec = tuple(
                (at, 1, v.shape[dim]) if i == dim else (0, 1, n) for i, n in enumerate(out.shape)
            )
            pieces.append((v, contiguous(out.shape).view("slice", {"spec": spec})))
            at += v.shape[dim]
        self._assemble(out, [p for p in pieces if 0 not in p[0].shape], block)

    def _owned_copy(self, v, block, later):
        """Return a root with the contents of `v` that may be overwritten: `v` itself if nothing reads it later."""
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

    def _dies_here(self, v, node):
        """Whether nothing after `node` reads the memory of `v`."""
        if self._uses is None:
            self._uses = last_uses(self.graph)
        return self._uses[v.id] is node

    def _lower_slice_put(self, node, block):
        x, v = node.inputs
        (out,) = node.outs
        root, after = self._owned_copy(x, block, not self._dies_here(x, node))
        layout = contiguous(out.shape).view("slice", {"spec": node.attrs["spec"]})
        g = self._store(v, root.buffer, layout, block, "set", after)
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=root.buffer))

    def _lower_put(self, node, block):
        x, v, *index = node.inputs
        (out,) = node.outs
        root, after = self._owned_copy(x, block, not self._dies_here(x, node))
        g = self._scatter(
            v,
            index,
            node.attrs["dims"],
            out.shape,
            root.buffer,
            block,
            after,
            node.attrs["accumulate"],
        )
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=root.buffer))

    def _lower_untake(self, node, block):
        v, *index = node.inputs
        (out,) = node.outs
        buffer = self._temporary(out.dtype, math.prod(out.shape))
        g = self._scatter(v, index, node.attrs["dims"], out.shape, buffer, block, 0, True)
        block.statements[g].fills.append((buffer, 0))
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))

    @staticmethod
    def _index_plan(shape, dims, index):
        """Shape of the indexed result, which source dim each of its axes walks ("index" for none), where the index axes begin."""
        core = np.broadcast_shapes(*(i.shape for i in index))
        adjacent = list(dims) == list(range(dims[0], dims[0] + len(dims)))
        before = [d for d in range(dims[0])] if adjacent else []
        after = [d for d in range(len(shape)) if d not in dims and d not in before]
        axes = [*before, *["index"] * len(core), *after]
        result = tuple([shape[d] for d in before] + list(core) + [shape[d] for d in after])
        return result, axes, len(before), len(core)

    def _address(self, layout, dims, index, block, group):
        """How to index into `layout`: strides over the domain, one operand per index tensor, and per index dim its size, stride,
        whether it must be checked at run time and whether it may be negative."""
        shape = layout.shape
        result, axes, lead, count = self._index_plan(shape, dims, index)
        base = tuple(
            0 if d == "index" else layout.strides[d]
            for d, n in zip(axes, result, strict=True)
            if n != 1
        )
        operands, wraps = [], []
        for d, v in zip(dims, index, strict=True):
            operands.append(self._memory_aligned(*self.place(v), result, lead, count, block, group))
            known = v.array if v.static else None
            if (
                known is not None
                and known.size
                and not (-shape[d] <= known.min() and known.max() < shape[d])
            ):
                raise CompileError(
                    "index", expected=f"indices below {shape[d]}", got=str(int(known.max()))
                )
            negative = known is None or bool(known.size and known.min() < 0)
            wraps.append((shape[d], layout.strides[d], known is None, negative))
        return base, operands, wraps

    def _memory_aligned(self, root, layout, result, lead, core_ndim, block, group):
        """Memory operand for an index tensor whose dims stand at axes lead .. lead + core_ndim of the result."""
        buffer = self.materialise(root)
        if root.block is block:
            root.last_read = max(root.last_read, group)
        core = result[lead : lead + core_ndim]
        strides = (0,) * lead + layout.broadcast(core) + (0,) * (len(result) - lead - core_ndim)
        return Mem(
            buffer, layout.offset, tuple(s for s, n in zip(strides, result, strict=True) if n != 1)
        )

    def _lower_take(self, node, block):
        x, *index = node.inputs
        (out,) = node.outs
        root, layout = self.place(x)
        bound = max([self._bound_for_memory(self.place(v)[0], block) for v in [x, *index]])
        g = block.group_at(squeeze(out.shape), bound)
        base, operands, wraps = self._address(layout, node.attrs["dims"], index, block, g)
        source = Mem(self.materialise(root), layout.offset, base)
        if root.block is block:
            root.last_read = max(root.last_read, g)
        made = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
        block.statements[g].items.append(
            Item("gather", made, [source, *operands], node, wraps=wraps)
        )
        self._define(out, made)

    def _scatter(self, v, index, dims, shape, buffer, block, after, accumulate):
        """Write or add `v` at integer indices of a contiguous buffer; returns the statement."""
        result = self._index_plan(shape, dims, index)[0]
        bound = max(
            [
                after,
                self._bound([v], result, block),
                *(self._bound_for_memory(self.place(i)[0], block) for i in index),
            ]
        )
        g = block.group_at(squeeze(result), bound)
        base, operands, wraps = self._address(contiguous(shape), dims, index, block, g)
        block.statements[g].items.append(
            Item(
                "scatter", None, [self._operand(v, result, block, g), *operands], wraps=wraps, buffer=buffer, strides=base,
                mode="add" if accumulate else "set",
            )
        )  # fmt: skip
        return g

    # ------------------------------------------------------------------------------------------ reductions

    def _reduce(self, node, block):
        (v,), (out,) = node.inputs, node.outs
        shape, dims = v.shape, node.attrs["dims"]
        identity = {"sum": 0, "prod": 1}.get(node.name)
        if 0 in shape and identity is not None:
            self._filled(out, identity, block)
            return
        domain = squeeze(shape)
        kept = tuple(i not in dims for i, n in enumerate(shape) if n != 1)
        count = sum(kept)
        prefix = all(kept[:count])
        bound = self._bound([v], shape, block)
        root = Root(out.shape, out.dtype, block, 0)
        self.materialise(root)
        if not prefix:
            if node.name not in ("sum", "prod"):
                # A leading reduction of another kind: read a moved copy, whose reduced dims come last.
                order = [i for i in range(len(shape)) if i not in dims] + list(dims)
                source, layout = self.place(v)
                moved = self._copy_layout(source, layout.view("permute", {"dims": order}), block)
                inner = tuple(range(len(shape) - len(dims), len(shape)))
                self._reduce_root(node, moved, contiguous(moved.shape), inner, out, block)
                return
        g = block.group_at(domain, bound)
        if not prefix:
            block.statements[g].fills.append((root.buffer, identity))
        root.group = root.last_read = g
        operand = self._operand(v, shape, block, g)
        strides = self._kept_strides(kept, domain)
        block.statements[g].items.append(
            Item(
                "reduce",
                root,
                [operand],
                node,
                reduce=node.name,
                depth=count if prefix else None,
                strides=strides,
            )
        )
        self._define(out, root)

    @staticmethod
    def _kept_strides(kept, domain):
        inner = contiguous(tuple(n for n, k in zip(domain, kept, strict=True) if k)).strides
        walk = iter(inner)
        return tuple(next(walk) if k else 0 for k in kept)

    def _reduce_root(self, node, source, layout, dims, out, block):
        stand_in = Value(layout.shape, source.dtype, "node")
        self._place[stand_in.id] = (source, layout)
        inner = type(node)(node.op, node.name, (stand_in,), {**node.attrs, "dims": dims}, ())
        inner.outs = (out,)
        self._reduce(inner, block)

    _lower_sum = _lower_prod = _lower_amax = _lower_amin = _lower_argmax = _lower_argmin = _reduce

    def _lower_cumsum(self, node, block):
        (v,), (out,) = node.inputs, node.outs
        dim = node.attrs["dim"]
        root, layout = self.place(v)
        buffer = self._temporary(out.dtype, math.prod(out.shape))
        outer = tuple(n for i, n in enumerate(v.shape) if i != dim)
        g = block.group_at(squeeze(outer), self._bound_for_memory(root, block))
        read = self._memory(root, layout, v.shape, block, g)
        full = layout.broadcast(v.shape)
        own = contiguous(out.shape).strides
        keep = [i for i, n in enumerate(v.shape) if i != dim and n != 1]
        block.statements[g].items.append(
            Item(
                "scan", None, [Mem(read.buffer, layout.offset, tuple(full[i] for i in keep))], node, buffer=buffer,
                strides=tuple(own[i] for i in keep), size=v.shape[dim], step=full[dim], out_step=own[dim],
            )
        )  # fmt: skip
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))

    # ------------------------------------------------------------------------------------------ products

    def _lower_matmul(self, node, block):
        x, y = node.inputs
        (out,) = node.outs
        *batch, m, n = out.shape
        k = x.shape[-1]
        if 0 in out.shape or k == 0:
            self._filled(out, 0, block)
            return
        (xr, xl), (yr, yl) = self.place(x), self.place(y)
        plain = not batch and len(x.shape) == 2 and len(y.shape) == 2
        if plain and m > 1 and n > 1 and m * n * k >= GEMM_FROM and out.dtype.kind == "f":
            return self._gemm(node, block)
        if plain and (m == 1 or n == 1) and k > 1 and m * n > 1:
            # (matrix layout with rows along the result and columns along the sum, vector)
            matrix, vector = (
                ((xr, xl), y) if n == 1 else ((yr, yl.view("permute", {"dims": (1, 0)})), x)
            )
            along_result, along_sum = matrix[1].strides
            if abs(along_result) < abs(along_sum):
                return self._axpy(node, matrix, vector, m * n, k, block)
        bound = max(self._bound_for_memory(xr, block), self._bound_for_memory(yr, block))
        shape = (*batch, m, n)
        g = block.group_at(squeeze(shape), bound)
        xs, ys = xl.broadcast((*batch, m, k)), yl.broadcast((*batch, k, n))
        a = self._dot_operand(xr, xl, (*xs[:-1], 0), shape, block, g)
        b = self._dot_operand(yr, yl, (*ys[:-2], 0, ys[-1]), shape, block, g)
        root = Root(out.shape, out.dtype, block, g, in_register=True, value=out)
        block.statements[g].items.append(
            Item("dot", root, [a, b], node, size=k, steps=(xs[-1], ys[-2]))
        )
        self._define(out, root)

    def _dot_operand(self, root, layout, strides, shape, block, g):
        buffer = self.materialise(root)
        if root.block is block:
            root.last_read = max(root.last_read, g)
        return Mem(
            buffer, layout.offset, tuple(s for s, n in zip(strides, shape, strict=True) if n != 1)
        )

    def _axpy(self, node, matrix, vector, m, k, block):
        """out[m] += A[m, k] v[k] for each k: rows of a transposed product, fused with whatever computes v."""
        (out,) = node.outs
        root, layout = matrix
        made = Root(out.shape, out.dtype, block, 0)
        bound = max(self._bound_for_memory(root, block), self._bound([vector], vector.shape, block))
        g = block.group_at((k,), bound)
        block.statements[g].fills.append((self.materialise(made), 0))
        mem = Mem(self.materialise(root), layout.offset, (layout.strides[1],))
        if root.block is block:
            root.last_read = max(root.last_read, g)
        made.group = made.last_read = g
        block.statements[g].items.append(
            Item(
                "axpy",
                made,
                [mem, self._operand(vector, vector.shape, block, g)],
                node,
                size=m,
                step=layout.strides[0],
            )
        )
        self._define(out, made)

    def _gemm(self, node, block):
        (out,) = node.outs
        sides = []
        bound = 0
        for v in node.inputs:
            root, layout = self.place(v)
            a, b = layout.strides
            if not ((b == 1 and a >= layout.shape[1]) or (a == 1 and b >= layout.shape[0])):
                root = self._copy_layout(root, layout, block)
                layout = contiguous(v.shape)
                a, b = layout.strides
            self.materialise(root)
            bound = max(bound, self._bound_for_memory(root, block))
            sides.append((root, layout, b != 1))
        buffer = self._temporary(out.dtype, math.prod(out.shape))
        (xr, xl, xt), (yr, yl, yt) = sides
        g = block.append(
            Call(
                "gemm", [xr.buffer, yr.buffer, buffer], node, m=out.shape[0], n=out.shape[1], k=node.inputs[0].shape[1],
                offsets=(xl.offset, yl.offset), ld=(max(xl.strides), max(yl.strides)), transposed=(xt, yt),
            )
        )  # fmt: skip
        for root in (xr, yr):
            if root.block is block:
                root.last_read = max(root.last_read, g)
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))

    # ------------------------------------------------------------------------------------------ linear algebra

    def _lower_cholesky(self, node, block):
        (v,), (out,) = node.inputs, node.outs
        copied = self.copy(v, block)
        n = v.shape[-1]
        g = block.append(
            Call("cholesky", [copied.buffer], node, n=n, batch=math.prod(v.shape[:-2]))
        )
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=copied.buffer))

    def _lower_solve_triangular(self, node, block):
        a, b = node.inputs
        (out,) = node.outs
        *batch, n, m = out.shape
        left = self._whole(a, (*batch, *a.shape[-2:]), block)
        copied = self._whole(b, out.shape, block, fresh=True)
        g = block.append(
            Call(
                "trsm",
                [left.buffer, copied.buffer],
                node,
                n=n,
                m=m,
                batch=math.prod(batch),
                **node.attrs,
            )
        )
        if left.block is block:
            left.last_read = max(left.last_read, g)
        self._define(out, Root(out.shape, out.dtype, block, g, buffer=copied.buffer))

    def _whole(self, v, shape, block, fresh=False):
        """Return a root that holds `v`, broadcast to `shape`, contiguously; `fresh` for one that may be overwritten."""
        root, layout = self.place(v)
        if (
            not fresh
            and tuple(v.shape) == tuple(shape)
            and layout.is_whole()
            and layout.shape == root.shape
        ):
            self.materialise(root)
            return root
        return self._copy_layout(root, layout.view("expand", {"shape": tuple(shape)}), block)

    def _lower_native_density(self, node, block):
        q, function, context = node.inputs
        logp, grad = node.outs
        root = self._whole(q, q.shape, block)
        parts = [root.buffer]
        for v in (function, context):
            handle, _ = self.place(v)
            parts.append(self.materialise(handle))
        values = [
            self._temporary(logp.dtype, 1),
            self._temporary(grad.dtype, math.prod(grad.shape)),
        ]
        g = block.append(Call("density", parts + values, node))
        if root.block is block:
            root.last_read = max(root.last_read, g)
        self._define(logp, Root(logp.shape, logp.dtype, block, g, buffer=values[0]))
        self._define(grad, Root(grad.shape, grad.dtype, block, g, buffer=values[1]))

    # ------------------------------------------------------------------------------------------ control

    def _lower_guard(self, node, block):
        (v,) = node.inputs
        root, layout = self.place(v)
        if not layout.is_whole():
            root = self._copy_layout(root, layout, block)
        buffer = self.materialise(root)
        g = block.append(Guard(buffer, node.attrs["value"], node.attrs["index"]))
        if root.block is block:
            root.last_read = max(root.last_read, g)

    def _sub(self, graph, roots, block):
        """Lower a subgraph whose inputs lie at `roots`; returns its block."""
        inner = Block(block)
        for v, root in zip(graph.inputs, roots, strict=True):
            self._place[v.id] = (root, contiguous(v.shape))
        outer, self.graph, uses, self._uses = self.graph, graph, self._uses, None
        self.lower(graph, inner)
        self.graph, self._uses = outer, uses
        return inner

    def _flag(self, v, block):
        root, layout = self.place(v)
        if not layout.is_whole():
            root = self._copy_layout(root, layout, block)
        return self.materialise(root)

    def _inside(self, root, block):
        """A root of an outer block as seen in an inner one: memory that only an explicit owner may overwrite."""
        return Root(root.shape, root.dtype, None, -1, buffer=root.buffer)

    def _captured(self, values, block):
        out = []
        for v in values:
            root = self._whole(v, v.shape, block)
            out.append(self._inside(root, block))
        return out

    def _touch(self, node, block, g):
        """Note that statement `g` reads all inputs of `node`."""
        for v in node.values():
            root, _ = self.place(v)
            if root.block is block:
                root.last_read = max(root.last_read, g)

    def _lower_while(self, node, block):
        test, body = node.attrs["cond"], node.attrs["body"]
        in_test, in_body = node.attrs["counts"]
        n = len(node.outs)
        carries = [self.copy(v, block) for v in node.inputs[:n]]
        captured = self._captured(node.inputs[n:], block)
        assert len(captured) == in_test + in_body
        test_block = self._sub(
            test, [self._inside(c, block) for c in carries] + captured[:in_test], block
        )
        flag = self._flag(test.outputs[0], test_block)
        inner = Block(block)
        owned = [Root(c.shape, c.dtype, inner, -1, buffer=c.buffer) for c in carries]
        for v, root in zip(body.inputs, owned + captured[in_test:], strict=True):
            self._place[v.id] = (root, contiguous(v.shape))
        outer, self.graph, uses, self._uses = self.graph, body, self._uses, None
        self.lower(body, inner)
        self.graph, self._uses = outer, uses
        self._write_back(body.outputs, owned, inner)
        g = block.append(Loop(test_block, flag, inner))
        self._touch(node, block, g)
        for out, c in zip(node.outs, carries, strict=True):
            self._define(out, Root(c.shape, c.dtype, block, g, buffer=c.buffer))

    def _write_back(self, outputs, owned, inner):
        """Copy a loop body's results into the carried buffers, first through temporaries where they cross."""
        buffers = {id(c.buffer) for c in owned}
        pending = []
        for v, c in zip(outputs, owned, strict=True):
            root, layout = self.place(v)
            if root.buffer is c.buffer and layout.is_whole():
                continue
            if root.buffer is not None and id(root.buffer) in buffers:
                temp = self._copy_layout(root, layout, inner)
                pending.append((temp, contiguous(v.shape), c))
            else:
                pending.append((root, layout, c))
        # All reads of the old carries stand before this statement, all writes after it.
        barrier = len(inner.statements)
        for root, layout, c in pending:
            self._copy_layout(root, layout, inner, buffer=c.buffer, after=barrier)

    def _lower_cond(self, node, block):
        yes, no = node.attrs["then"], node.attrs["else"]
        in_yes, in_no = node.attrs["counts"]
        count = len(node.inputs) - 1 - in_yes - in_no
        flag = self._flag(node.inputs[0], block)
        operands = node.inputs[1 : 1 + count]
        results, shared = self._branch_results(node, yes, no, operands, block)
        own = []
        for k, v in enumerate(operands):
            own.append(shared.get(k) or self._inside(self._whole(v, v.shape, block), block))
        captured = self._captured(node.inputs[1 + count :], block)
        blocks = []
        for graph, extra in ((yes, captured[:in_yes]), (no, captured[in_yes:])):
            inner = Block(block)
            roots = [
                Root(r.shape, r.dtype, inner if k in shared else None, -1, buffer=r.buffer)
                for k, r in enumerate(own)
            ]
            for v, root in zip(graph.inputs, roots + extra, strict=True):
                self._place[v.id] = (root, contiguous(v.shape))
            outer, self.graph, uses, self._uses = self.graph, graph, self._uses, None
            self.lower(graph, inner)
            self.graph, self._uses = outer, uses
            self._write_back(
                graph.outputs,
                [
                    Root(v.shape, v.dtype, inner, -1, buffer=b)
                    for v, b in zip(graph.outputs, results, strict=True)
                ],
                inner,
            )
            blocks.append(inner)
        g = block.append(Branch(flag, *blocks))
        self._touch(node, block, g)
        for out, buffer in zip(node.outs, results, strict=True):
            self._define(out, Root(out.shape, out.dtype, block, g, buffer=buffer))

    def _branch_results(self, node, yes, no, operands, block):
        """Choose the result buffers; a result that updates a dying operand in place takes over that operand's buffer."""
        results, shared = [], {}
        for out, a, b in zip(node.outs, yes.outputs, no.outputs, strict=True):
            k = self._updated_operand(a, b, yes, no, len(operands))
            if k is not None and k not in shared and self._dies_here(operands[k], node):
                root, layout = self.place(operands[k])
                if (
                    root.block is block
                    and root.buffer is not None
                    and root.buffer.kind in ("arena", "scalar")
                    and layout.is_whole()
                    and root.shape == layout.shape
                ):
                    shared[k] = root
                    results.append(root.buffer)
                    continue
            results.append(self._temporary(out.dtype, math.prod(out.shape)))
        return results, shared

    @staticmethod
    def _updated_operand(a, b, yes, no, count):
        """Index of the operand that both branches return, each as it is or after `put` into it; None if there is none."""

        def origin(v, graph):
            while v.kind == "node" and v.node is not None and v.node.name in ("put", "slice_put"):
                v = v.node.inputs[0]
            heads = [i.id for i in graph.inputs[:count]]
            return heads.index(v.id) if v.id in heads else None

        i, j = origin(a, yes), origin(b, no)
        return i if i is not None and i == j else None

    # ------------------------------------------------------------------------------------------ outputs

    def _output(self, k, v):
        """Return the buffer of output `k`: the root's own memory where it can be the output, else a copy."""
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
            buffer = root.buffer or self._temporary(root.dtype, math.prod(root.shape))
            buffer.kind, buffer.slot = "output", k
            root.buffer = buffer
            return buffer
        buffer = self._buffer("output", v.dtype, math.prod(v.shape), k)
        self._copy_layout(root, layout, self.block, buffer=buffer)
        return buffer


_VIEW_NAMES = frozenset(("reshape", "permute", "expand", "slice", "diagonal"))


def last_uses(graph):
    """Map each value of `graph` to the last node that reads it or a view of it; None for what is an output."""
    order = {id(node): i for i, node in enumerate(graph.nodes)}
    last = {}
    for node in graph.nodes:
        for v in node.values():
            last[v.id] = order[id(node)]
    end = len(graph.nodes)
    for v in graph.outputs:
        last[v.id] = end
    for node in reversed(graph.nodes):
        if node.name in _VIEW_NAMES and type(node.inputs[0]) is Value:
            source = node.inputs[0].id
            last[source] = max(last[source], last.get(node.outs[0].id, -1))
    return {k: None if i == end else graph.nodes[i] for k, i in last.items()}
