"""Nests that overwrite what they read: which may, and how they are made to.

The law: what is overwritten is read by nobody after the nest that overwrites it, and by that nest
only at the index where it writes, before it does. `in_place.py` (tensors outside) and `carried.py`
(what loops carry) look for such nests; here is what they ask and do.
"""

from __future__ import annotations

import math

from probtorch.compiler.nests.loops import (
    POINTWISE,
    Call,
    Group,
    Item,
    Mem,
    MemoryBuffer,
    Reg,
    Statement,
)
from probtorch.compiler.render.blocked import in_blocks
from probtorch.compiler.render.items import kept_strides

__all__ = ["only_reads", "only_writer", "reads_at_index", "redirect", "write_last"]


def only_writer(statement: Statement, new: MemoryBuffer) -> Item | None:
    """Return the item of a nest that writes each element of `new` once, from a register; None if
    there is no such thing.
    """
    if not isinstance(statement, Group) or in_blocks(statement):
        return None
    if _fills(statement, new) or math.prod(statement.domain) != new.numel:
        return None
    writers = [i for i in statement.items if _written_by(i) is new]
    if len(writers) != 1:
        return None
    (item,) = writers
    if item.kind == "store":
        a = item.attrs
        whole = a["mode"] == "set" and not a["offset"] and isinstance(item.operands[0], Reg)
        return item if whole and a["strides"] == kept_strides(statement.domain) else None
    return item if item.root is not None and item.root.in_register else None


def _written_by(item: Item) -> MemoryBuffer | None:
    return item.attrs.get("buffer", item.root and item.root.buffer)


def reads_at_index(group: Group, target: MemoryBuffer) -> bool:
    """Whether a nest reads elements of `target` at its own index only."""
    here = kept_strides(group.domain)
    return all(
        # Of a scattered store it is the value that is read so, not an index.
        (item.kind in POINTWISE or (item.kind == "scatter" and k == 0))
        and not x.offset
        and x.strides == here
        for item in group.items
        for k, x in enumerate(item.operands)
        if isinstance(x, Mem) and x.buffer is target
    )


def only_reads(statement: Statement, new: MemoryBuffer) -> bool:
    """Whether a statement reads `new`, as an operand of a nest or of a call that leaves it as it
    is, and does nothing else with it.
    """
    if isinstance(statement, Call):
        return not any(b is new for b in statement.buffers[statement.keeps :])
    if not isinstance(statement, Group) or _fills(statement, new):
        return False
    return not any(_written_by(i) is new for i in statement.items)


def _fills(group: Group, new: MemoryBuffer) -> bool:
    return any(b is new for b, _ in group.fills)


def write_last(
    group: Group, writer: Item, target: MemoryBuffer, kept: MemoryBuffer | None = None
) -> None:
    """Let a nest end with what `writer` writes going to `target`; the old elements to `kept`."""
    if writer.kind == "store":
        group.items.remove(writer)
        new = writer.operands[0]
    else:
        assert writer.root is not None
        writer.root.buffer = None
        new = Reg(writer.root)
    strides = kept_strides(group.domain)
    stores = [(new, target)] if kept is None else [(Mem(target, 0, strides), kept), (new, target)]
    # All other items read what they want of the old elements before that.
    for value, buffer in stores:
        attrs = {"mode": "set", "buffer": buffer, "offset": 0, "strides": strides}
        group.items.append(Item("store", None, [value], writer.node, **attrs))


def redirect(statement: Statement, old: MemoryBuffer, new: MemoryBuffer) -> None:
    """Let a statement that only reads `old` read `new` in its place."""
    if isinstance(statement, Call):
        statement.buffers = [new if b is old else b for b in statement.buffers]
        return
    assert isinstance(statement, Group)
    for item in statement.items:
        for x in item.operands:
            if isinstance(x, Mem) and x.buffer is old:
                x.buffer = new
