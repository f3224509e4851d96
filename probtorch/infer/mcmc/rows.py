"""`ChainRows`: chains as the rows of arrays, in which one native call moves many of them on.

What `ChunkRunner` is for a chain (chunk.py), for chains of one kind: the same program runs for one
row after the other (compiler/lanes.py), so that draws are those of single chains, bit for bit, and
what goes into a call and comes out of it is copied for all of them at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.lanes import LaneRoom, ProgramLanes
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.tree import flatten, unflatten
from probtorch.infer.mcmc.chunk import (
    Chain,
    ChunkPlan,
    Task,
    capacity_for,
    empty_trace,
    program_for,
)
from probtorch.infer.mcmc.warm_up.windows import Stacked

if TYPE_CHECKING:
    from probtorch.infer.mcmc.chunk import ChunkRunner
    from probtorch.infer.mcmc.warm_up.adaptation import Tuner

__all__ = ["ChainRows", "RowTrace"]

# Rows that one call runs at most: their results are still in the cache when they are looked at.
TOGETHER = 16

# Memory that no thread uses, of the latest programs.
_rooms: dict[NativeProgram, list[LaneRoom]] = {}
_lock = threading.Lock()
MOST_PROGRAMS, MOST_ROOMS, MOST_BYTES = 8, 4, 2**22


class RowTrace:
    """What one call has drawn, valid until the next one.

    Attributes
    ----------
    statuses : ndarray, shape (rows,)
        What native code returned, 0 where it went well.
    positions : ndarray, shape (rows, count, dim)
    grads : ndarray or None
        As positions.
    info : record of arrays
        The kernel's, each (rows, count).
    """

    def __init__(
        self, statuses: np.ndarray, positions: np.ndarray, grads: np.ndarray | None, info: object
    ) -> None:
        self.statuses, self.positions, self.grads, self.info = statuses, positions, grads, info


class ChainRows:
    """Chains of one kind, in this order; `of` makes it.

    Parameters
    ----------
    items : list of list of ndarray
        The leaves of each chain.
    chain : Chain
        The first of them.
    learns : str or None
        The field of the kernel that their learners set.

    Attributes
    ----------
    capacity : int
        Most transitions per call.
    program : NativeProgram
    learns : str or None
    work : int
        Transitions of a chain, times chains, that the next call may have.
    """

    def __init__(
        self, items: Sequence[Sequence[np.ndarray]], chain: Chain, learns: str | None
    ) -> None:
        self.capacity = capacity_for(chain.state.position.array.size)
        plan = ChunkPlan(*map(wrap, (np.array(0), np.array(False), np.array(False))))
        task = Task(chain, plan)
        self.program = program_for(task, self.capacity)
        self._structure = flatten(chain)[1]
        self._leaves = len(items[0])
        self._inputs = [np.array(leaf) for leaf in zip(*items)]
        self._inputs += [np.repeat(x.array[None], len(items), axis=0) for x in flatten(plan)[0]]
        trace = empty_trace(chain, self.capacity)
        self._has_grads, self._info = trace.grads is not None, type(trace.info)
        # Where the leaves of a field of the kernel are.
        self._places: dict[str, range] = {}
        self._changing: list[int] = []
        at = 0
        for name in chain.kernel.__tree_fields__:
            places = range(at, at := at + len(flatten(getattr(chain.kernel, name))[0]))
            self._places[name] = places
            # Of the kernel the program itself changes only what is tuned.
            if chain.tuner is not None and name in chain.tuner.fields:
                self._changing += places
        self._changing += range(at, self._leaves)
        self._at = unflatten(self._structure, range(self._leaves))
        self._lanes: ProgramLanes | None = None
        self._room: LaneRoom | None = None
        self._kernel, self.learns = chain.kernel, learns
        self.work = 1

    @classmethod
    def of(cls, runners: Sequence[ChunkRunner], learns: str | None) -> ChainRows | None:
        """Return the rows of some chains, which they are in from now on; None if they differ."""
        rows = runners[0].row[0] if runners[0].row is not None else None
        if rows is not None and [r.row for r in runners] == [(rows, i) for i in range(len(rows))]:
            return rows
        chains = [runner.chain for runner in runners]
        items, kinds = [], []
        for chain in chains:
            leaves, structure = flatten(chain)
            items.append([x.array for x in leaves])
            kinds.append((structure, [(x.shape, x.dtype) for x in items[-1]]))
        if any(kind != kinds[0] for kind in kinds):
            return None
        made = cls(items, chains[0], learns)
        if not made.sit_down():
            return None
        for i, runner in enumerate(runners):
            runner.stand_in(made, i)
        return made

    def __len__(self) -> int:
        return len(self._inputs[0])

    # ------------------------------------------------------------------------------------- a thread

    def sit_down(self) -> bool:
        """Take memory to run in; False where the program cannot be run on rows."""
        if self._lanes is not None:
            return True
        with _lock:
            free = _rooms.get(self.program)
            room = free.pop() if free else None
        if room is None:
            room = LaneRoom(self.program, TOGETHER)
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
        first, last = int(rows[0]), int(rows[-1])
        at: slice | np.ndarray = rows
        there: slice | np.ndarray = rows % TOGETHER
        if last - first + 1 == len(rows):
            at = slice(first, last + 1)
            there = slice(first % TOGETHER, last % TOGETHER + 1)
        inputs, outputs = self._inputs, self._lanes.outputs
        for place, value in zip(inputs[self._leaves :], (count, search, adapt)):
            place[at] = value
        statuses = self._lanes.run(rows)
        for i in self._changing:
            inputs[i][at] = outputs[i][there]
        positions, *trace = [x[there, :count] for x in outputs[self._leaves :]]
        grads = trace.pop(0) if self._has_grads else None
        return RowTrace(statuses, positions, grads, self._info(*trace))

    # ---------------------------------------------------------------------------------- what is set

    def set(self, name: str, value: float) -> None:
        """Set a field of all kernels to a number."""
        (place,) = self._places[name]
        self._inputs[place][...] = value

    @property
    def learnt(self) -> Stacked:
        """What learners set, of all chains, as it stands."""
        assert self.learns is not None
        structure = flatten(getattr(self._kernel, self.learns))[1]
        return Stacked(structure, [self._inputs[i] for i in self._places[self.learns]])

    def set_learnt(self, rows: np.ndarray, leaves: Sequence[np.ndarray]) -> None:
        """Set what the learners of some chains have found, the leaves of records, stacked."""
        assert self.learns is not None
        if len(rows):
            for place, column in zip(self._places[self.learns], leaves, strict=True):
                self._inputs[place][rows] = column

    def refocus(self) -> None:
        """Have all tuners begin to settle; see `Tuner.refocused`."""
        tuner = self._stacked().tuner
        if tuner is not None:
            for place, leaf in zip(flatten(self._at.tuner)[0], flatten(tuner.refocused())[0]):
                self._inputs[place][...] = leaf.array

    def settle(self) -> None:
        """Have all kernels keep what their tuners came to."""
        tuner = self._stacked().tuner
        if tuner is not None:
            for name, value in tuner.settled().items():
                (place,) = self._places[name]
                self._inputs[place][...] = value.array

    # ------------------------------------------------------------------------------------ as chains

    def _stacked(self) -> Chain:
        """The chains as one, whose leaves are stacked."""
        return unflatten(self._structure, [wrap(x) for x in self._inputs[: self._leaves]])

    def tuner(self, row: int) -> Tuner | None:
        """Return the tuner of a chain as it stands, a copy."""
        places, structure = flatten(self._at.tuner)
        return unflatten(structure, [wrap(np.array(self._inputs[i][row])) for i in places])

    def chain(self, row: int) -> Chain:
        """Return a chain as it stands, a copy."""
        own = [wrap(np.array(x[row])) for x in self._inputs[: self._leaves]]
        return unflatten(self._structure, own)
