"""`ProgramLanes`: one compiled program on the rows of arrays, one after the other in native code.

For thousands of small runs of one program, where Python's way into each would cost more than the
run. What a program reads and writes is told by a table of addresses; here there is a table for each
row, and a loop over those that are chosen. A row is a run like any other, bit for bit; rows do not
wait for each other, as the points of a batched program would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.machine import engine
from probtorch.compiler.nests.loops import address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probtorch.compiler.program import NativeProgram

__all__ = ["LaneRoom", "ProgramLanes"]


class LaneRoom:
    """Memory of a program for one thread, with results of so many rows.

    Parameters
    ----------
    program : NativeProgram
        Compiled for the CPU.
    rows : int

    Attributes
    ----------
    rows : int
    outputs : list of ndarray, each (rows, *shape)
    """

    def __init__(self, program: NativeProgram, rows: int) -> None:
        assert program.program is not None, "a program that is compiled"
        self.frame = program.program.bind()
        assert self.frame.entry is not None, "a program of the CPU"
        shapes = [(x.shape, x.dtype) for x in self.frame.new_outputs()]
        self.rows = rows
        self.outputs = [np.zeros((rows, *shape), dtype) for shape, dtype in shapes]

    def serves(self, inputs: Sequence[np.ndarray]) -> bool:
        """Whether the program can be run on rows of such arrays: it changes nothing but results."""
        return self.frame.lanes([x[:1] for x in inputs], []) is not None


class ProgramLanes:
    """A program with memory for one thread, and arguments and results that are rows of arrays.

    Parameters
    ----------
    program : NativeProgram
        Compiled for the CPU.
    inputs : sequence of ndarray, each (lanes, *shape)
        What its leaves are; kept, not copied.
    room : LaneRoom, optional
        Memory that others have used before; it may have results of fewer rows: those of lane i are
        then in row i modulo their number.

    Attributes
    ----------
    inputs, outputs : list of ndarray, each (lanes, *shape)
        Write into the former between calls; of the latter a call overwrites its rows.
    """

    def __init__(
        self, program: NativeProgram, inputs: Sequence[np.ndarray], room: LaneRoom | None = None
    ) -> None:
        room = room or LaneRoom(program, len(inputs[0]))
        self._room, self.inputs, self.outputs = room, list(inputs), room.outputs
        assert room.frame.entry is not None
        self._entry = room.frame.entry[0]
        tables = room.frame.lanes(self.inputs, self.outputs)
        assert tables is not None, "a program that changes nothing but its results"
        self._tables = tables
        self._run = engine.runtime_function("pt_lanes")

    def run(self, chosen: np.ndarray) -> np.ndarray:
        """Run for some rows, an int64 array; returns what each run returned, 0 if it went well.

        The interpreter lock is not held.
        """
        chosen = np.ascontiguousarray(chosen, np.int64)
        statuses = np.zeros(len(chosen), np.int64)
        self._run(
            self._entry,
            address(self._tables),
            self._tables.strides[0],
            address(chosen),
            len(chosen),
            address(statuses),
        )
        return statuses
