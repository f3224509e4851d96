"""Copies that need not be made: a value goes straight to the memory that it would be copied to.

At the end of each turn a loop's results are copied to the memory of what it carries, since old
values may be read until then. Mostly they are not: the nest that computes a new value is the last
to read the old one, at the index that it writes. Then it writes there itself (`overwriting.py`),
which saves the copy and the memory for it. The same holds for any copy of a temporary.
"""

from __future__ import annotations

from collections import Counter

from probtorch.compiler.memory.overwriting import (
    only_reads,
    only_writer,
    reads_at_index,
    redirect,
    write_last,
)
from probtorch.compiler.nests.loops import Block, Group, Item, Mem, MemoryBuffer, Statement
from probtorch.compiler.nests.lowering import Lowering
from probtorch.compiler.render.items import kept_strides

__all__ = ["write_to_carried"]


def write_to_carried(lowering: Lowering) -> None:
    """Leave out the copies of a lowered program that need not be made."""
    touches = Counter(b for s in lowering.block.walk() for b in set(s.buffers))
    for block in [lowering.block, *(b for s in lowering.block.walk() for b in s.blocks)]:
        copies = [(i, c) for i, s in enumerate(block.statements) for c in _copies(s)]
        if copies:
            touched = _touched(block)
            for end, copy in copies:
                _leave_out(block, end, copy, touched, touches)
            block.statements = [s for s in block.statements if not _is_empty(s)]


def _copies(statement: Statement) -> list[Item]:
    """Return the items of a nest that copy a whole temporary."""
    if not isinstance(statement, Group):
        return []
    here = kept_strides(statement.domain)
    return [
        item
        for item in statement.items
        if item.kind == "store"
        and item.attrs["mode"] == "set"
        and isinstance(item.operands[0], Mem)
        and item.operands[0].buffer.kind in ("arena", "scalar")
        and not item.operands[0].offset
        and not item.attrs["offset"]
        and item.operands[0].strides == item.attrs["strides"] == here
        and item.operands[0].buffer.numel == item.attrs["buffer"].numel
    ]


def _touched(block: Block) -> dict[MemoryBuffer, list[tuple[int, Statement]]]:
    """By buffer, the statements that touch it, those inside of others too, each with the number of
    the statement of the block that it is or belongs to.
    """
    touched: dict[MemoryBuffer, list[tuple[int, Statement]]] = {}
    for i, outer in enumerate(block.statements):
        for s in (outer, *(s for inner in outer.blocks for s in inner.walk())):
            for b in set(s.buffers):
                touched.setdefault(b, []).append((i, s))
    return touched


def _leave_out(
    block: Block,
    end: int,
    copy: Item,
    touched: dict[MemoryBuffer, list[tuple[int, Statement]]],
    touches: Counter[MemoryBuffer],
) -> None:
    """Leave out a copy in statement `end` if what it copies can be written where it goes."""
    source, target = copy.operands[0].buffer, copy.attrs["buffer"]
    (start, writer), *readers = touched[source]
    item, copying = only_writer(writer, source), block.statements[end]
    assert isinstance(copying, Group)
    if (
        item is None
        # Nobody else knows the source, and nothing changes it.
        or len(touched[source]) != touches[source]
        or writer is not block.statements[start]
        or not start < readers[-1][0] <= end
        or not all(only_reads(s, source) for _, s in readers)
        # The target is the nest's alone until then.
        or any(start < i < end for i, _ in touched[target])
        or any(target in _buffers(other) for other in copying.items if other is not copy)
        or not _only_at_index(writer, target)
    ):
        return
    copying.items.remove(copy)
    # The copy is all of the target: a number that the nest sets first would now come after it.
    copying.fills = [(b, number) for b, number in copying.fills if b is not target]
    write_last(writer, item, target)
    for _, s in readers:
        redirect(s, source, target)
    # Who touches the target now: whoever touched either, without the copy.
    known = {id(s): (i, s) for i, s in (*touched[target], *touched.pop(source))}
    touches[target] -= len(touched[target])
    touched[target] = sorted(
        ((i, s) for i, s in known.values() if target in s.buffers), key=lambda at: at[0]
    )
    touches[target] += len(touched[target])


def _only_at_index(group: Statement, target: MemoryBuffer) -> bool:
    """Whether a nest reads `target` at its own index, if at all, and does nothing else with it."""
    assert isinstance(group, Group)
    return only_reads(group, target) and reads_at_index(group, target)


def _buffers(item: Item) -> list[MemoryBuffer]:
    return [*(x.buffer for x in item.operands if isinstance(x, Mem)), *item.written()]


def _is_empty(statement: Statement) -> bool:
    return isinstance(statement, Group) and not statement.items and not statement.fills
