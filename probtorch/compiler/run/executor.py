"""Running compiled programs on the CPU: pointer tables, memory, and the way back to arrays.

A `CpuProgram` is a graph turned into machine code: by passes, lowering and renderer or, where the
disk cache knows the recorded graph, without them. A `CpuFrame` is one caller's memory for it:
pointer table, arena, scalars. Running releases the interpreter lock.
"""

import contextlib
import ctypes
import threading
import time
from dataclasses import dataclass

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.compiler import lower  # noqa: F401  fills the table of rules
from probtorch.compiler.machine import engine
from probtorch.compiler.machine.plans import layout_of, load_plan, store_plan
from probtorch.compiler.machine.repeat import Commit
from probtorch.compiler.memory.carried import write_to_carried
from probtorch.compiler.memory.in_place import write_in_place
from probtorch.compiler.native import cache
from probtorch.compiler.native.keys import key_of_graph
from probtorch.compiler.nests.loops import address, in_words
from probtorch.compiler.nests.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.render.llvm import NestPlan, render
from probtorch.compiler.run.executable import CallFrame, Executable, arrays_of, owner_of

__all__ = ["CpuFrame", "CpuProgram"]

_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class CpuProgram(Executable):
    """Machine code of one recorded graph; attributes are those of `Executable`.

    Where the disk cache knows the graph (`keys`, `plans`), no pass and no renderer runs. `graph`,
    `lowering` and `ir` are made when somebody asks for them, and not kept from compiling: they are
    most of what a program would hold in memory.
    """

    def __init__(self, graph):
        super().__init__(graph, "cpu")
        self._recorded, self._text, self._optimised = graph, None, False
        seconds = self.seconds
        with _timed(seconds, "key"):
            key = key_of_graph(graph) if cache.directory() is not None else None
        with _timed(seconds, "native"):
            stored = None if key is None else load_plan(key)
        if stored is not None:
            self.plan, self.native = stored
        else:
            self.plan = plan = self._render(seconds).plan
            with _timed(seconds, "native"):
                self.native = engine.compile_module(self.ir)
            if key is not None:
                store_plan(key, self.lowering, plan, self.native)
            self._text = None
        self.from_cache = self.native.from_cache
        self.address = self.native.address("run")
        self.call = _RUN(self.address)
        plan = self.plan
        self.packed = in_words(plan.packed_values)
        self.consts = [np.asarray(a, order="C") for a in plan.consts]

    def _render(self, seconds=None):
        """Return the text and what it was made from, the first time by passes and renderer."""
        seconds = {} if seconds is None else seconds
        with _rendering:
            if self._text is None:
                if not self._optimised:
                    with _timed(seconds, "passes"):
                        optimise(self._recorded)
                    self._optimised = True
                with _timed(seconds, "render"):
                    lowering = Lowering(self._recorded, by_rows=True)
                    write_to_carried(lowering)
                    write_in_place(lowering)
                    self._text = _Text(lowering, *render(lowering))
            return self._text

    @property
    def graph(self):
        """The graph after the passes."""
        return self._render().lowering.graph

    @property
    def lowering(self):
        """The loop nests that the text was written from."""
        return self._render().lowering

    @property
    def ir(self):
        """The LLVM IR text."""
        return self._render().ir

    def is_unchanged(self):
        """Whether the text, if it was written only now, is that of the code: small constants might
        have been overwritten since.
        """
        plan = self._render().plan
        return plan is self.plan or layout_of(plan) == layout_of(self.plan)

    def kind(self, array):
        """Return shape, dtype and device."""
        return array.shape, array.dtype, device_of(array)

    def bind(self, arrays=None, *, saving=False, old=None):
        """Return a frame, the old one if only what is read has changed; see `Executable.bind`."""
        if old is not None and arrays is not None and old.take(arrays):
            return old
        return CpuFrame(self, arrays_of(self.tensors) if arrays is None else arrays, saving)


@dataclass(frozen=True)
class _Text:
    """What the long way makes of a graph."""

    lowering: Lowering
    ir: str
    plan: NestPlan


@contextlib.contextmanager
def _timed(seconds, what):
    start = time.perf_counter()
    yield
    seconds[what] = seconds.get(what, 0.0) + time.perf_counter() - start


# Passes change graphs in place: one thread at a time.
_rendering = threading.Lock()


class CpuFrame(CallFrame):
    """Memory of one caller; `table` is the pointer table that the code reads."""

    def __init__(self, program, arrays, saving):
        self.program, self.arrays = program, arrays
        plan = program.plan
        # A word more than programs read: where one that is timed finds its clocks.
        self.table = np.zeros(plan.table + 1, np.uintp)
        self.scalars = np.zeros(max(plan.scalars, 1), np.float64)
        # 64 bytes of room to start the arena on a cache line.
        self.arena = np.zeros(plan.arena + 64, np.uint8)
        self.point(plan.start["const"], program.consts)
        self.point(plan.tail, (program.packed, self.scalars))
        self.table[plan.tail + 2] = -(-address(self.arena) // 64) * 64
        self.address = address(self.table)
        # The same words, quicker to write to; outputs begin at `_first`.
        self._at = (ctypes.c_size_t * len(self.table)).from_address(self.address)
        self._first = plan.inputs
        self.entry, self._call = (program.address, self.address), program.call
        self._shapes = [(v.shape, v.dtype) for v in program.results]
        # A tensor may be a reference more than once: in a loop, and outside of it.
        places = {id(t): x for t, x in zip(program.tensors, arrays, strict=True)}
        self._refs = [places[id(t)] for t in program.refs]
        # Contiguous copies where a tensor is none; made anew at each run.
        self._copied = [i for i, x in enumerate(self._refs) if not x.flags.c_contiguous]
        self._read = self._refs
        self.point(plan.start["ref"], self._contiguous())
        self._commit: Commit | None = None  # what updates outside tensors, if there are any
        self._written, self._owners = [], set()
        if program.updates:
            self._write_to([places[id(t)] for t in program.updates], saving)

    def _write_to(self, targets, saving):
        program = self.program
        first = len(program.results)
        self._commit = Commit(self, first, targets, saving)
        self.repeats = self._commit.repeats
        # In place a program writes to a copy where it could not be given the tensor's memory.
        numbers = {id(t): i for i, t in enumerate(program.refs)}
        placed = (numbers[id(program.updates[k - first])] for k in program.plan.in_place)
        self._written = [i for i in placed if i in self._copied]
        self._owners = {id(owner_of(x)) for x in targets}

    def take(self, arrays):
        """Read other arrays, of the same kinds; returns whether it can: not where it is to write to
        other ones.
        """
        program = self.program
        given = list(zip(program.tensors, self.arrays, arrays, strict=True))
        others = {id(t): new for t, old, new in given if new is not old}
        if any(id(t) in others for t in program.updates):
            return False
        self.arrays = arrays
        self._refs = [others.get(id(t), x) for t, x in zip(program.refs, self._refs, strict=True)]
        self._copied = [i for i, x in enumerate(self._refs) if not x.flags.c_contiguous]
        self._read = self._refs
        self.point(program.plan.start["ref"], self._contiguous())
        return True

    def point(self, start, arrays):
        """Point the table from word `start` on at arrays; the caller keeps them alive."""
        for i, array in enumerate(arrays, start):
            self.table[i] = address(array)

    def _contiguous(self):
        """Return what is read for references: the arrays themselves where they are contiguous."""
        if self._copied:
            self._read = [np.asarray(x, order="C") for x in self._refs]
        return self._read

    def attach(self, inputs, outputs):
        """Point the table at contiguous arrays; the caller keeps them alive as long as it runs."""
        at = self._at
        for i, array in enumerate(inputs):
            at[i] = address(array)
        for i, array in enumerate(outputs, self._first):
            at[i] = address(array)

    def new_outputs(self):
        """Return uninitialised arrays for the results."""
        return [np.empty(shape, dtype) for shape, dtype in self._shapes]

    def _take(self, inputs, outputs):
        """Put arguments and results in place; returns the arrays that are pointed at."""
        inputs = [np.asarray(x, order="C") for x in inputs]
        self.program.kept.keep(inputs)
        self.attach(inputs, outputs)
        if self._copied:
            self.point(self.program.plan.start["ref"], self._contiguous())
        return inputs

    def run(self, inputs, outputs):
        """Run and update; see `CallFrame.run`."""
        held = self._take(inputs, outputs)
        status = self._call(self.address)
        del held
        if status == 0 and self._commit is not None:
            for i in self._written:
                np.copyto(self._refs[i], self._read[i])
            self._commit()
        return status

    def fixed(self, inputs, outputs):
        """Return a function that runs; see `CallFrame.fixed`."""
        if self._commit is not None or self._copied:
            return super().fixed(inputs, outputs)
        held = self, self._take(inputs, outputs), outputs

        def again(call=self.program.call, table=self.address, held=held):
            return call(table)

        return again

    def lanes(self, inputs, outputs):
        """Return tables, one for each row; see `CallFrame.lanes`."""
        if self._commit is not None or self._copied:
            return None
        tables = np.tile(self.table, (len(inputs[0]), 1))
        rows = np.arange(len(tables), dtype=np.uintp)[:, None]
        for first, arrays in ((0, inputs), (self._first, outputs)):
            told = [(address(x), len(x), x.strides[0]) for x in arrays]
            begin, length, step = np.array(told, np.uintp).reshape(-1, 3).T
            tables[:, first : first + len(arrays)] = begin + rows % length * step
        return tables

    def repeat(self, draws, inputs, results):
        """Run and update many times over; see `CallFrame.repeat`."""
        outputs = self.new_outputs()
        held = self._take(inputs, outputs)
        assert self._commit is not None
        done = self._commit.repeat(draws, outputs[0], results)
        del held
        return done

    def touched_by(self, arrays):
        """Whether an array has the same owner as an updated tensor's."""
        return any(id(owner_of(x)) in self._owners for x in arrays)

    def previous(self):
        """Return what updated tensors held before; see `CallFrame.previous`."""
        assert self._commit is not None
        return self._commit.previous()

    def refresh(self):
        """Take in what others have written; see `CallFrame.refresh`."""
        assert self._commit is not None
        self._commit.refresh()
