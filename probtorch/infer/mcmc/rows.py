"""`ChainRows`: chains as the rows of arrays, in which one native call moves many of them on.

What `ChunkRunner` is for a chain (chunk.py), for chains of one kind: the same program runs for one
row after the other (compiler/machine/lanes.py), so that draws are those of single chains, bit for
bit, and what goes into a call and comes out of it is copied for all of them at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.machine.lanes import LaneRoom, ProgramLanes
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.tree import flatten
from probtorch.infer.mcmc.chunk import (
    Chain,
    ChunkPlan,
    Task,
    capacity_for,
    empty_trace,
    program_for,
)
from probtorch.infer.mcmc.stacked import ChainStack

if TYPE_CHECKING:
    from probtorch.compiler.density import DensityContext
    from probtorch.infer.mcmc.chunk import ChunkRunner

__all__ = ["ChainRows", "RowTrace", "as_slice"]

# Rows that one call runs at most: their results are still in the cache when they are looked at.
TOGETHER = 32

# Memory that no thread uses, of the latest programs.
_rooms: dict[NativeProgram, list[LaneRoom]] = {}
_lock = threading.Lock()
MOST_PROGRAMS, MOST_ROOMS, MOST_BYTES = 8, 4, 2**22


def as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """Return rows, numbers in order, as a slice where none is left out: of it there are views."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


class RowTrace:
    """What one call has drawn, valid until the next one.

    Attributes
    ----------
    statuses : ndarray, shape (rows,)
        What native code returned, 0 where it went well.
    errors : dict of int to BaseException
        What the density raised, by row.
    positions : ndarray, shape (rows, count, dim)
    grads : ndarray or None
        As positions.
    info : record of arrays
        The kernel's, each (rows, count).
    """

    def __init__(
        self,
        statuses: np.ndarray,
        errors: dict[int, BaseException],
        positions: np.ndarray,
        grads: np.ndarray | None,
        info: object,
    ) -> None:
        self.statuses, self.errors = statuses, errors
        self.positions, self.grads, self.info = positions, grads, info


class ChainRows(ChainStack):
    """Chains of one kind that go together, in this order; `of` makes it.

    Parameters
    ----------
    chain : Chain
        The first of them.
    leaves : list of ndarray
        Of all of them; kept, not copied.
    context : DensityContext or None
        In which they evaluate their density; None to leave each its own.
    learns : str or None

    Attributes
    ----------
    capacity : int
        Most transitions per call.
    program : NativeProgram
    work : int
        Transitions of a chain, times chains, that the next call may have.
    """

    def __init__(
        self,
        chain: Chain,
        leaves: list[np.ndarray],
        context: DensityContext | None,
        learns: str | None,
    ) -> None:
        super().__init__(chain, leaves, context, learns)
        self.context = context
        if context is not None:
            self.put("density", [np.asarray(x) for x in (context.function, context.address)])
        self.capacity = capacity_for(chain.state.position.array.size)
        plan = ChunkPlan(*map(wrap, (np.array(0), np.array(False), np.array(False))))
        self.program = program_for(Task(chain, plan), self.capacity)
        plans = [np.repeat(x.array[None], len(leaves[0]), axis=0) for x in flatten(plan)[0]]
        self._inputs = [*leaves, *plans]
        trace = empty_trace(chain, self.capacity)
        self._has_grads, self._info = trace.grads is not None, type(trace.info)
        # Of the kernel the program itself changes only what is tuned.
        tuned = () if chain.tuner is None else chain.tuner.fields
        self._changing = [i for name in tuned for i in self._fields[name][1]]
        self._changing += range(self.of_kernel, len(leaves))
        self._lanes: ProgramLanes | None = None
        self._room: LaneRoom | None = None
        self.work = 1

    @classmethod
    def of(cls, runners: Sequence[ChunkRunner], learns: str | None) -> ChainRows | None:
        """Return the rows of some chains, which they are in from now on; None if they differ."""
        stack = runners[0].row[0] if runners[0].row is not None else None
        numbers = [r.row[1] if r.row is not None and r.row[0] is stack else -1 for r in runners]
        if isinstance(stack, ChainRows) and numbers == list(range(len(stack))):
            return stack
        if stack is not None and min(numbers) >= 0:
            chain, leaves = stack.chain(numbers[0]), [x[numbers] for x in stack.leaves]
        else:
            chains = [runner.chain for runner in runners]
            chain, items, kinds = chains[0], [], []
            for one in chains:
                parts, structure = flatten(one)
                items.append([x.array for x in parts])
                kinds.append((structure, [(x.shape, x.dtype) for x in items[-1]]))
            if any(kind != kinds[0] for kind in kinds):
                return None
            leaves = [np.array(leaf) for leaf in zip(*items)]
        made = cls(chain, leaves, runners[0].own_context(), learns)
        if not made.sit_down():
            return None
        for i, runner in enumerate(runners):
            runner.stand_in(made, i)
        return made

    # ------------------------------------------------------------------------------------- a thread

    def sit_down(self) -> bool:
        """Take memory to run in; False where the program cannot be run on rows."""
        if self._lanes is not None:
            return True
        with _lock:
            free = _rooms.get(self.program, [])
            # Results of a row are found by its number in its block: there may be more.
            fits = [i for i, room in enumerate(free) if room.rows >= min(len(self), TOGETHER)]
            room = free.pop(fits[0]) if fits else None
        if room is None:
            room = LaneRoom(self.program, min(len(self), TOGETHER))
        if not room.serves(self._inputs):
            return False
        self._room, self._lanes = room, ProgramLanes(self.program, self._inputs, room)
        return True

    def stand_up(self) -> None:
        """Give the memory back."""
        room, self._room, self._lanes = self._room, None, None
        if room is None:
            return
        with _lock:
            free = _rooms.pop(self.program, [])
            if len(free) < MOST_ROOMS and sum(x.nbytes for x in room.outputs) <= MOST_BYTES:
                free.append(room)
            _rooms[self.program] = free
            while len(_rooms) > MOST_PROGRAMS:
                del _rooms[next(iter(_rooms))]

    def run(self, rows: np.ndarray, count: int, *, search: bool, adapt: bool) -> RowTrace:
        """Run `count` transitions of some rows, all of one block of `TOGETHER`, in order."""
        assert self._lanes is not None, "rows that sit"
        at, there = as_slice(rows), as_slice(rows % TOGETHER)
        inputs, outputs = self._inputs, self._lanes.outputs
        for place, value in zip(inputs[len(self.leaves) :], (count, search, adapt)):
            place[at] = value
        statuses, error = self._lanes.run(rows), self._error()
        errors = {} if error is None else dict.fromkeys(range(len(rows)), error)
        if len(errors) > 1 and isinstance(error, Exception):
            # Whose it was is not known: once more, one by one.
            for i in range(len(rows)):
                statuses[i], error = self._lanes.run(rows[i : i + 1])[0], self._error()
                if error is None:
                    del errors[i]
                else:
                    errors[i] = error
        for i in self._changing:
            inputs[i][at] = outputs[i][there]
        positions, *trace = [x[there, :count] for x in outputs[len(self.leaves) :]]
        grads = trace.pop(0) if self._has_grads else None
        return RowTrace(statuses, errors, positions, grads, self._info(*trace))

    def _error(self) -> BaseException | None:
        """What the density raised in the last call."""
        try:
            if self.context is not None:
                self.context.raise_error()
        except BaseException as error:
            return error
        return None
