"""What the turns of a rolled loop take one slice each of.

In a loop whose turns hold loops of their own, operands of one form become one table: the slice of a
turn has a row for each. That is how a loop inside finds what its turns read in one place.
"""

from dataclasses import dataclass, field

import numpy as np

from probtorch.compiler.record.places import gathered, moving
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import reshape

__all__ = ["SliceTable", "Slices"]


@dataclass
class SliceTable:
    """Operands whose slices come from one tensor, the one of this `number`."""

    number: int
    members: list = field(default_factory=list)
    places: dict = field(default_factory=dict)  # of rows, by what they are

    def row(self, xs, k):
        """Return what operand `k` is in the turn whose slices are `xs`."""
        return xs[self.number] if len(self.members) == 1 else xs[self.number][k]

    def whole(self, turns, run):
        """Return the slices of all turns, shape (turns, ...), of a table (turns, members, ...).

        `run` gives the tensor of a value, and of the rows that a loop put out.
        """
        first, several = self.members[0], len(self.members) > 1
        if first.kind in ("stacked", "places"):
            arrays = [x.value for x in self.members]
            return wrap(np.stack(arrays, 1) if several else arrays[0])
        if first.kind == "rows":
            keys = [x.value for x in self.members]
            found = run.stacks_of(keys) if several else run.stack(first.value)
            begin, step = first.attrs
            at = np.arange(turns) * step + begin
            if turns != found.array.shape[0] or (at != np.arange(turns)).any():
                found = index_select(found, 0, wrap(at))
            return found
        spec, starts, dims = first.attrs
        if several:
            starts = np.stack([x.attrs[1] for x in self.members], 1)
            starts, dims = moving(starts.reshape(-1, len(spec)))
        found = gathered(run.value(first.value), spec, starts, dims)
        if not several:
            return found
        return reshape(found, (turns, len(self.members), *found.array.shape[1:]))


class Slices:
    """The slices of a loop, as its operands are met.

    Parameters
    ----------
    tables : bool
        Whether operands of one form become a table.
    """

    def __init__(self, tables: bool):
        self.tables = tables
        self.by_form: dict[object, SliceTable] = {}

    def add(self, operand, loops):
        """Return a function from the slices of a turn to the operand's; `loops` came before."""
        key = _form(operand, loops) if self.tables else len(self.by_form)
        table = self.by_form.setdefault(key, SliceTable(len(self.by_form)))
        value = operand.value if operand.kind == "rows" else len(table.members)
        k = table.places.setdefault(value, len(table.members))
        if k == len(table.members):
            table.members.append(operand)
        return lambda xs: table.row(xs, k)

    def tensors(self, turns, run) -> list[TensorBase]:
        """Return the tensors that turns take slices of; see `SliceTable.whole`."""
        return [table.whole(turns, run) for table in self.by_form.values()]


def _form(operand, loops):
    kind, value = operand.kind, operand.value
    if kind == "rows":
        made, position, output = value
        like = loops[made].body[position].outs[output]
        where = (like.shape, like.dtype) if loops[made].nests else value
        return kind, made, operand.attrs, where
    if kind == "moving":
        return kind, value.id, tuple(i[1:] for i in operand.attrs[0])
    return kind, value.shape[1:], value.dtype
