"""How many bytes a statement of a lowered program reads and writes.

Counted is what a loop nest or call touches, each byte once per statement: what stays in a register
costs nothing, what is read twice by one nest comes from the cache the second time. So a nest's
bytes are the least that memory has to deliver for it, and a nest that is fused into another saves
exactly what it would have written and read back. `explain` shows the numbers.
"""

import math
from dataclasses import dataclass

import numpy as np

from probtorch.compiler.nests.loops import Call, Group, Mem

__all__ = ["Traffic", "traffic_of"]


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written, by the ids of buffers."""

    reads: dict[int, int]
    writes: dict[int, int]

    @property
    def read(self):
        """Bytes read."""
        return sum(self.reads.values())

    @property
    def written(self):
        """Bytes written."""
        return sum(self.writes.values())


def traffic_of(statement, lowering):
    """Return the `Traffic` of one run of a `Group` or `Call` of `lowering`."""
    if isinstance(statement, Group):
        return _group(statement)
    assert isinstance(statement, Call)
    return _call(statement, lowering)


def _add(tally, buffer, elements):
    """Count elements of a buffer, never more than it has."""
    if buffer.kind != "packed":  # those are constants of 8 bytes, in one or two cache lines
        total = tally.get(id(buffer), 0) + elements * buffer.dtype.itemsize
        tally[id(buffer)] = min(buffer.nbytes, total)


def _group(group):
    read, written = {}, {}
    for buffer, _ in group.fills:
        _add(written, buffer, buffer.numel)
    if 0 not in group.domain:
        seen = set()
        for item in group.items:
            _item(item, group.domain, read, written, seen)
    return Traffic(read, written)


def _item(item, domain, read, written, seen):
    a = item.attrs
    for k, x in enumerate(item.operands):
        if not isinstance(x, Mem):
            continue
        # A nest loads an element once, however many of its items want it; where a gather reads, its
        # indices say.
        gathered = item.kind == "gather" and k == 0
        key = (id(x.buffer), x.offset, x.strides, (gathered or item.kind in _LONG) and id(item))
        if key not in seen:
            seen.add(key)
            elements = math.prod(domain) if gathered else _elements(domain, x.strides)
            _add(read, x.buffer, elements * _along(item, k))
    if "buffer" in a:  # a store, a scatter, a scan or a small matrix
        buffer = a["buffer"]
        if item.kind == "scatter":
            elements = math.prod(domain)
        else:
            elements = _elements(domain, a["strides"]) * _along(item, None)
        _add(written, buffer, elements)
        if a.get("mode") == "add":
            _add(read, buffer, elements)
    elif item.root is not None and item.root.buffer is not None:
        _add(written, item.root.buffer, math.prod(item.root.shape))
        sums_in_memory = item.kind == "reduce" and a["depth"] is None
        if item.kind == "axpy" or sums_in_memory:
            _add(read, item.root.buffer, math.prod(item.root.shape))


def _elements(domain, strides):
    """How many different elements strides reach over a domain."""
    return math.prod(n for n, s in zip(domain, strides, strict=False) if s)


# Items with a loop of their own inside the nest.
_LONG = ("dot", "axpy", "scan", "small_cholesky", "small_solve")


def _along(item, k):
    """Elements of operand `k` (None: of the result) that one index of the nest takes."""
    a = item.attrs
    if item.kind == "dot":
        return a["size"] if a["steps"][k] else 1
    if item.kind == "axpy":
        return a["size"] if k == 0 and a["step"] else 1
    if item.kind == "scan":
        return a["size"] if k is None or a["steps"][k] else 1
    if item.kind == "small_cholesky":
        return a["n"] ** 2
    if item.kind == "small_solve":
        return a["n"] ** 2 if k == 0 else a["n"]
    return 1


def _call(call, lowering):
    """A routine reads what it is given and writes its node's outputs; working space is neither."""
    buffers = {id(b): b for b in call.buffers if not _is_workspace(b)}
    outs = call.node.outs if call.node is not None else ()
    places = [lowering.places.get(v.id) for v in outs]
    results = {id(p[0].buffer) for p in places if p is not None} & buffers.keys()
    if not results and buffers:
        results = {list(buffers)[-1]}  # a result that is moved on: functions write to their last
    sizes = {key: b.nbytes for key, b in buffers.items()}
    return Traffic(
        {key: n for key, n in sizes.items() if key not in results},
        {key: n for key, n in sizes.items() if key in results},
    )


def _is_workspace(buffer):
    return buffer.kind == "arena" and buffer.dtype == np.uint8
