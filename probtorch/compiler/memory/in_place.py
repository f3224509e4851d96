"""Updates in place: new elements go straight to the tensor whose contents they are.

A program that changes outside tensors has their new contents as outputs, which are copied over the
tensors after a run whose guards held (`repeat.Commit`). Where a loop nest computes each new element
from the old one at the same index and nothing reads old ones later, it can write to the tensor
itself: that saves the copy, and memory that would go through the caches. The output then gets the
old elements instead. With these a run that ends at a guard is undone (`render.llvm.Driver`), and
whoever wants a step back has what was there before.
"""

from collections import Counter
from dataclasses import dataclass

from probtorch.compiler.memory.overwriting import (
    only_reads,
    only_writer,
    reads_at_index,
    redirect,
    write_last,
)
from probtorch.compiler.nests.loops import MemoryBuffer

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
        writer = only_writer(statements[g], new)
        if (
            writer is not None
            and touched.get(target, [g])[-1] <= g  # only views without elements may have been read
            and reads_at_index(statements[g], target)
            and all(only_reads(statements[i], new) for i in later)
        ):
            write_last(statements[g], writer, target, kept=new)
            for i in later:
                redirect(statements[i], new, target)
            lowering.in_place.append(InPlace(k, g, target, new))
