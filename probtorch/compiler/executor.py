"""Running compiled programs: pointer tables, memory, and the way back to arrays.

A `Program` is a graph turned into machine code: by passes, lowering and renderer or, where the disk
cache knows the recorded graph, without them. A `Binding` is one caller's memory for it: pointer
table, arena, scalars. Two threads share a program and each have a binding; calling `run` releases
the interpreter lock.
"""

import contextlib
import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from probtorch.compiler import (
    engine,
    lower,  # noqa: F401  fills the table of rules
)
from probtorch.compiler.in_place import write_in_place
from probtorch.compiler.interrupts import raise_pending
from probtorch.compiler.native import cache
from probtorch.compiler.native.keys import key_of_graph
from probtorch.compiler.nests.loops import address as address_of
from probtorch.compiler.nests.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.plans import layout_of, load_plan, store_plan
from probtorch.compiler.render.llvm import render

__all__ = ["Binding", "Program", "address_of"]

_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class Program:
    """Machine code of one recorded graph.

    Where the disk cache knows the graph (`keys`, `plans`), no pass and no renderer runs. `graph`,
    `lowering` and `ir` are made when somebody asks for them, and not kept from compiling: they are
    most of what a program would hold in memory.

    Parameters
    ----------
    graph : Graph
        As recorded; belongs to the program from here on.

    Attributes
    ----------
    inputs, outputs : list of Value
        Of the graph, for their shapes and dtypes.
    plan : Plan or StoredPlan
        Where each buffer lies.
    seconds : dict of str to float
        Time spent in "key" (naming the graph), "passes", "render", "native" (compiling, or loading
        from the cache); the middle two are absent where they were not needed.
    from_cache : bool
        Whether the code was read from the disk cache.
    """

    def __init__(self, graph):
        self.inputs, self.outputs = tuple(graph.inputs), tuple(graph.outputs)
        self._recorded, self._text, self._optimised = graph, None, False
        self.seconds = seconds = {}
        with _timed(seconds, "key"):
            key = key_of_graph(graph) if cache.directory() is not None else None
        with _timed(seconds, "native"):
            stored = None if key is None else load_plan(key)
        if stored is not None:
            self.plan, self.native = stored
        else:
            self.plan = self._render(seconds).plan
            with _timed(seconds, "native"):
                self.native = engine.compile_module(self.ir)
            if key is not None:
                store_plan(key, self.lowering, self.plan, self.native)
            self._text = None
        self.from_cache = self.native.from_cache
        self.address = self.native.address("run")
        self.call = _RUN(self.address)
        plan = self.plan
        self.packed = np.zeros(max(len(plan.packed_values), 1), np.float64)
        raw = self.packed.view(np.uint8)
        for i, value in enumerate(plan.packed_values):
            data = np.frombuffer(value.tobytes(), np.uint8)
            raw[i * 8 : i * 8 + data.size] = data
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
                    lowering = Lowering(self._recorded)
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

    def bind(self):
        """Return fresh memory to run this program in."""
        return Binding(self)


@dataclass(frozen=True)
class _Text:
    """What the long way makes of a graph."""

    lowering: Lowering
    ir: str
    plan: Any


@contextlib.contextmanager
def _timed(seconds, what):
    start = time.perf_counter()
    yield
    seconds[what] = seconds.get(what, 0.0) + time.perf_counter() - start


# Passes change graphs in place: one thread at a time.
_rendering = threading.Lock()


class Binding:
    """Memory of one caller; `table` is the pointer table that `run` reads."""

    def __init__(self, program):
        self.program = program
        plan = program.plan
        self.table = np.zeros(plan.table, np.uintp)
        self.scalars = np.zeros(max(plan.scalars, 1), np.float64)
        # 64 bytes of room to start the arena on a cache line.
        self.arena = np.zeros(plan.arena + 64, np.uint8)
        start = plan.start["const"]
        for i, array in enumerate(program.consts):
            self.table[start + i] = address_of(array)
        self.table[plan.tail] = address_of(program.packed)
        self.table[plan.tail + 1] = address_of(self.scalars)
        self.table[plan.tail + 2] = -(-address_of(self.arena) // 64) * 64
        self.address = address_of(self.table)

    def attach(self, inputs, outputs, refs=()):
        """Point the table at contiguous arrays; the caller keeps them alive as long as it runs."""
        plan, table = self.program.plan, self.table
        for i, array in enumerate(inputs):
            table[i] = address_of(array)
        for i, array in enumerate(outputs):
            table[plan.inputs + i] = address_of(array)
        start = plan.start["ref"]
        for i, array in enumerate(refs):
            table[start + i] = address_of(array)

    def attach_outputs(self, arrays, first):
        """Point the table at the arrays of outputs number `first` and later."""
        start = self.program.plan.inputs + first
        for i, array in enumerate(arrays):
            self.table[start + i] = address_of(array)

    def run(self, inputs, refs=()):
        """Run on contiguous arrays; returns ``(status, outputs)``; status 0 means that every guard
        held.
        """
        outputs = self.new_outputs()
        self.attach(inputs, outputs, refs)
        status = self.program.call(self.address)
        if status:
            raise_pending()
        return status, outputs

    def new_outputs(self):
        """Return uninitialised arrays for the results."""
        return [np.empty(v.shape, v.dtype) for v in self.program.outputs]
