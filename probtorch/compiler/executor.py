"""Running compiled programs: pointer tables, memory, and the way back to arrays.

A `Program` is a graph turned into machine code. A `Binding` is one caller's memory for it: pointer
table, arena, scalars. Two threads share a program and each have a binding; calling `run` releases
the interpreter lock.
"""

import ctypes
import time

import numpy as np

from probtorch.compiler import (
    eager_draws,  # noqa: F401  makes eager draws native too
    engine,
    lower,  # noqa: F401  fills the table of rules
)
from probtorch.compiler.loops import address as address_of
from probtorch.compiler.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.render.llvm import render

__all__ = ["Binding", "Program", "address_of"]

_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class Program:
    """Machine code of one recorded graph.

    Attributes
    ----------
    graph : Graph
        After the passes.
    plan : Plan
        Where each buffer lies.
    seconds : dict of str to float
        Time spent in "passes", "render" and "native" (compiling or loading from the cache).
    from_cache : bool
    """

    def __init__(self, graph):
        times = [time.perf_counter()]
        self.graph = optimise(graph)
        times.append(time.perf_counter())
        self.lowering = Lowering(graph)
        self.ir, self.plan = render(self.lowering)
        times.append(time.perf_counter())
        self.native = engine.compile_module(self.ir)
        times.append(time.perf_counter())
        self.from_cache = self.native.from_cache
        self.seconds = dict(
            zip(("passes", "render", "native"), np.diff(times).tolist(), strict=True)
        )
        self.address = self.native.address("run")
        self.call = _RUN(self.address)
        plan = self.plan
        self.packed = np.zeros(max(len(plan.packed_values), 1), np.float64)
        raw = self.packed.view(np.uint8)
        for i, value in enumerate(plan.packed_values):
            data = np.frombuffer(value.tobytes(), np.uint8)
            raw[i * 8 : i * 8 + data.size] = data
        self.consts = [np.asarray(a, order="C") for a in plan.consts]

    def bind(self):
        """Return fresh memory to run this program in."""
        return Binding(self)


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
        return self.program.call(self.address), outputs

    def new_outputs(self):
        """Return uninitialised arrays for the results."""
        return [np.empty(v.shape, v.dtype) for v in self.program.graph.outputs]
