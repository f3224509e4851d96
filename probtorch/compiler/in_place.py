"""Updates in place: new elements go straight to the tensor whose contents they are.

A program that changes outside tensors has their new contents as outputs, which are copied over the
tensors after a run whose guards held (`repeat.Commit`). Where a loop nest computes each new element
from the old one at the same index and nothing reads old ones later, it can write to the tensor
itself: that saves the copy, and memory that would go through the caches. The output then gets the
old elements instead. With these a run that ends at a guard is undone (`render.llvm.Driver`), and
whoever wants a step back has what was there before.
"""

import math
from collections import Counter
from dataclasses import dataclass

from probtorch.compiler.nests.loops import (
    POINTWISE,
    Group,
    Item,
    Mem,
    MemoryBuffer,
    Reg,
)
from probtorch.compiler.render.blocked import in_blocks
from probtorch.compiler.render.items import kept_strides

__all__ = ["InPlace", "write_in_place"]


@dataclass(frozen=True)
class InPlace:
    """An update that is written in place.

    Attributes
    ----------
    output : int
        Number of the output that gets the old elements.
    statement : int
        Number of the nest that writes, in the outermost block.
    target, before : Buffer
        The tensor's memory, and the output's.
    """

    output: int
    statement: int
    target: MemoryBuffer
    before: MemoryBuffer


def write_in_place(lowering):
    """Rewrite the updates of a lowered program that can be in place; notes them in `in_place`."""
    statements = lowering.block.statements
    touched = {}  # by buffer, the statements that read or write it
    for i, statement in enumerate(statements):
        for b in set(statement.all_buffers()):
            touched.setdefault(b, []).append(i)
    targets = {b.slot: b for b in lowering.buffers if b.kind == "ref"}
    slots = {id(t): slot for slot, t in enumerate(lowering.refs)}
    # A loop may have a reference of its own to a tensor: it reads the memory under another name.
    counts = Counter(map(id, lowering.refs))
    for k, tensor in lowering.graph.updates.items():
        target, new = targets.get(slots.get(id(tensor))), lowering.outputs[k]
        if target is None or counts[id(tensor)] > 1 or new not in touched:
            continue
        g, *later = touched[new]
        writer = _writer(statements[g], new)
        if (
            writer is not None
            and touched.get(target, [g])[-1] <= g  # only views without elements may have been read
            and _reads_at_index(statements[g], target)
            and all(_only_reads(statements[i], new) for i in later)
        ):
            _rewrite(statements[g], writer, target, new)
            for i in later:
                _redirect(statements[i], new, target)
            lowering.in_place.append(InPlace(k, g, target, new))


def _writer(statement, new):
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


def _written_by(item):
    return item.attrs.get("buffer", item.root and item.root.buffer)


def _reads_at_index(group, target):
    """Whether a nest reads elements of `target` at its own index only."""
    here = kept_strides(group.domain)
    return all(
        item.kind in POINTWISE and not x.offset and x.strides == here
        for item in group.items
        for x in item.operands
        if isinstance(x, Mem) and x.buffer is target
    )


def _only_reads(statement, new):
    """Whether a statement reads `new` as an operand of a nest, and does nothing else with it."""
    if not isinstance(statement, Group) or _fills(statement, new):
        return False
    return not any(_written_by(i) is new for i in statement.items)


def _fills(group, new):
    return any(b is new for b, _ in group.fills)


def _rewrite(group, writer, target, before):
    """Let a nest end with the old elements going to `before` and the new ones to `target`."""
    if writer.kind == "store":
        group.items.remove(writer)
        new = writer.operands[0]
    else:
        writer.root.buffer = None
        new = Reg(writer.root)
    strides = kept_strides(group.domain)
    # All other items read what they want of the old elements before that.
    for value, buffer in ((Mem(target, 0, strides), before), (new, target)):
        attrs = {"mode": "set", "buffer": buffer, "offset": 0, "strides": strides}
        group.items.append(Item("store", None, [value], writer.node, **attrs))


def _redirect(group, new, target):
    for item in group.items:
        for x in item.operands:
            if isinstance(x, Mem) and x.buffer is new:
                x.buffer = target
