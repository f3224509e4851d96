"""Running compiled programs on a GPU: one block of memory, kernels, captured graphs.

`GpuProgram` and `GpuFrame` are what `CpuProgram` and `CpuFrame` are on the CPU: shared code, and
one caller's memory for it. A run goes through the steps of the `Schedule` that `render/cuda.py`
made and waits for nothing: results are arrays that the GPU has yet to fill. It waits in two cases,
which `explain` names: at the end, if there is a guard or a check, for one number; and in loops
around library calls, once per iteration.

Kernels and matrix products that follow each other are captured as a CUDA graph when a run meets the
same addresses for the second time, and later runs start the graph. Memory of a program stays where
it is; the addresses of arguments and results are CuPy's, whose pool gives the same ones again in a
loop of steps. Graphs of the last few sets of addresses are kept. Other library calls stand between
two graphs: CuPy does not let them be captured. Where CUDA refuses to capture, kernels are started
one by one, and `explain` says so. All runs on CuPy's current stream; where that is another one than
in the run before, the host waits for the device once, since the memory is the same.

Numbers that live on the host (the counters of random draws) are arguments of one small kernel, so
that no copy has to wait. New elements of outside tensors that are contiguous and on the device go
there by the last kernel, if no guard failed; those of others are copied when it has run. Everything
that touches CuPy is in `backends/cupy_.py`.
"""

import functools
import math
import time
from collections import Counter, OrderedDict

import numpy as np

from probtorch.backends import cupy_
from probtorch.backends.cublas import CublasMatrices
from probtorch.backends.registry import (
    array_module,
    copy_into,
    device_of,
    shares_memory,
    to_device,
)
from probtorch.compiler import lower  # noqa: F401  fills the table of rules
from probtorch.compiler.graph import Graph
from probtorch.compiler.nests.loops import in_words
from probtorch.compiler.nests.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.render.cuda_schedule import Launch
from probtorch.compiler.run.executable import CallFrame, Executable, arrays_of
from probtorch.errors import DeviceError

__all__ = ["GpuFrame", "GpuProgram"]

# Sets of addresses whose graphs are kept, and remembered as met once.
_GRAPHS, _REMEMBERED = 8, 64
# Kernels from which on a graph is captured: starting a graph costs as much as starting two.
_WORTH_CAPTURING = 3
# Bytes up to which a result is computed in memory of the frame's own and copied: where all results
# are kept, a list of losses say, their addresses never come back, and no graph would.
_COPIED = 2**16


class GpuProgram(Executable):
    """Kernels of one recorded graph; attributes are those of `Executable`, and `schedule`.

    Parameters
    ----------
    graph : Graph
    device : str
        "cuda:N", where it runs.
    places : sequence of str, optional
        The device on which each result is to lie; without it this one.
    """

    graph: Graph
    lowering: Lowering
    ir: str
    # CuPy keeps compiled kernels on disk itself and does not tell: `from_cache` is not known.
    untimed = "kernels on a GPU are not timed one by one"

    def __init__(self, graph, device, places=None):
        super().__init__(graph, device)
        self.places = [device] * len(self.results) if places is None else list(places)
        times = [time.perf_counter()]
        self.graph = optimise(graph)
        times.append(time.perf_counter())
        # Imported when the first program for a GPU is made: it takes as long as a small one.
        from probtorch.compiler.render.cuda import render

        self.lowering = Lowering(graph)
        self.schedule = render(self.lowering)
        self.plan, self.ir = self.schedule.plan, self.schedule.source
        times.append(time.perf_counter())
        with cupy_.on_device(device):
            self.kernels = cupy_.load_kernels(self.ir, self.schedule.kernels())
            self.consts = [to_device(np.asarray(a, order="C"), device) for a in self.plan.consts]
            self.room = {
                s.kernel: cupy_.room(self.kernels[s.kernel], self.schedule.threads)
                for s in self.schedule.every_step()
                if isinstance(s, Launch) and s.together
            }
            self.captured = {id(s) for s in self.schedule.every_step() if _can_be_captured(s)}
            cupy_.synchronize()  # the constants are there, on whatever stream it will run
        times.append(time.perf_counter())
        parts = zip(("passes", "render", "native"), np.diff(times).tolist(), strict=True)
        self.seconds.update(parts)
        self.parts = self.schedule.parts(lambda s: id(s) in self.captured)
        self.refused = None  # why CUDA captures no graph, if it does not
        there = (*self.places, *(device_of(t.array) for t in self.updates))
        if to_host := there.count("cpu"):
            self.schedule.notes.append(f"copies {to_host} results to the host, and waits for it")

    @property
    def notes(self):
        """What costs a synchronisation or a break in the graph, as sentences."""
        count = sum(isinstance(p, list) and len(p) >= _WORTH_CAPTURING for p in self.parts)
        lines = [f"{len(self.kernels)} kernels on {self.device}, {count} captured graphs"]
        if self.schedule.checked:
            lines.append("waits for the GPU at the end of a run, to see whether guards held")
        if self.refused:
            lines.append(self.refused)
        found = Counter(self.schedule.notes)
        found.update(
            f"{s.name} through CuPy, between two captured graphs"
            for s in self.schedule.every_step()
            if id(s) not in self.captured
        )
        return lines + [f"{text} ({n} times)" if n > 1 else text for text, n in found.items()]

    def kind(self, array):
        """Return shape, dtype, device, and whether it is contiguous."""
        return array.shape, array.dtype, device_of(array), array.flags.c_contiguous

    def bind(self, arrays=None, *, saving=False, old=None):
        """Return a frame, the old one for other arrays: its memory stays, and so do its graphs."""
        frame = GpuFrame(self, saving) if old is None else old
        frame.take(arrays_of(self.tensors) if arrays is None else arrays)
        return frame


class GpuFrame(CallFrame):
    """Memory of one caller."""

    def __init__(self, program, saving):
        self.program, self._saving = program, saving
        schedule, plan = program.schedule, program.plan
        first = len(program.results)
        new = program.outputs[first:]
        with cupy_.on_device(program.device):
            self.memory = cupy_.namespace().zeros(schedule.nbytes, np.uint8)
            if plan.packed_values:
                packed, start = in_words(plan.packed_values).view(np.uint8), schedule.packed
                self.memory[start : start + packed.size] = to_device(packed, program.device)
            products = (s for s in program.schedule.every_step() if not isinstance(s, Launch))
            self.space = None  # of library products
            if any(id(s) in program.captured for s in products):
                self.space = cupy_.product_space()
            # Room for new elements of updated tensors, in which the old ones lie after a run.
            self._rooms = [_empty(new)]
            if saving and schedule.checked:
                # A run that fails leaves its new elements; what was before the last one that did
                # not must be somewhere else.
                self._rooms.append(_empty(new))
            # Results that are computed in memory of its own, by number.
            own = [
                i
                for i, (v, place) in enumerate(zip(program.results, program.places, strict=True))
                if place != program.device or math.prod(v.shape) * v.dtype.itemsize <= _COPIED
            ]
            memory = _empty([program.results[i] for i in own])
            self._own = dict(zip(own, memory, strict=True))
            self._exchanged = {k - first for k in schedule.updates}
            self._others = [i for i in range(len(new)) if i not in self._exchanged]
            self._before = {}  # of these others
            self._flat = {}
            self._graphs = OrderedDict()
            self._met = OrderedDict()
            self._stream = cupy_.stream()

    def take(self, arrays):
        """Read and update these arrays of outside tensors from now on."""
        program, self.arrays = self.program, arrays
        places = {id(t): x for t, x in zip(program.tensors, arrays, strict=True)}
        self._targets = [places[id(t)] for t in program.updates]
        self._read = [places[id(t)] for t in program.refs]
        with cupy_.on_device(program.device):
            words = program.schedule.word_slots()
            # Contiguous arrays of the device; others are copied there at each run.
            given = [None if i in words else self._there(x) for i, x in enumerate(self._read)]
            self._copied = [
                i for i, x in enumerate(given) if x is not None and x is not self._read[i]
            ]
            first = len(program.results)
            targets = {first + i: self._targets[i] for i in self._exchanged}
            self._outside = {"ref": given, "target": targets, "const": program.consts}
            bounds = [cupy_.bounds(self._targets[i]) for i in self._exchanged]
            self._starts, self._ends = np.array(bounds, np.uint64).reshape(-1, 2).T
            self._place()

    def _place(self):
        """Note the addresses that are the same in all runs on these tensors."""
        arrays = (*self._outside["ref"], *self._outside["target"].values(), *self._rooms[-1])
        self._places = tuple(0 if x is None else cupy_.address(x) for x in arrays)

    def new_outputs(self):
        """Return uninitialised arrays for the results, each where it is to lie."""
        made = []
        for v, place in zip(self.program.results, self.program.places, strict=True):
            if place == "cpu":
                made.append(np.empty(v.shape, v.dtype))
            else:
                with cupy_.on_device(place):
                    made.append(cupy_.namespace().empty(v.shape, v.dtype))
        return made

    def run(self, inputs, outputs):
        """Run and update; see `CallFrame.run`. Inputs may be host arrays, which are copied.

        The status is not known, and 0, where there is nothing to check.
        """
        status = self._run_into(inputs, [self._own.get(i, x) for i, x in enumerate(outputs)])
        for i, x in self._own.items():
            copy_into(outputs[i], x)
        return status

    def fixed(self, inputs, outputs):
        """Return a function that runs; see `CallFrame.fixed`."""
        if any(place != self.program.device for place in self.program.places):
            return super().fixed(inputs, outputs)
        return functools.partial(self._run_into, inputs, outputs)

    def _run_into(self, inputs, outputs):
        """Run into arrays of the device, and update."""
        program = self.program
        with cupy_.on_device(program.device):
            self._follow()
            inputs = [self._there(x) for x in inputs]
            self._outside |= {"input": inputs, "output": [*outputs, *self._rooms[-1]]}
            given = self._outside["ref"]
            for i in self._copied:
                given[i] = self._there(self._read[i])
            self._send_words()
            found = (*(given[i] for i in self._copied), *inputs, *outputs)
            addresses = (*self._places, *map(cupy_.address, found))
            self._go_through(program.parts, self._graphs_of(addresses))
            # Held no longer: the pool may give these addresses to the next results.
            self._outside |= {"input": (), "output": ()}
            status = 0
            if program.schedule.checked:
                status = int(self.memory[:8].view(np.int64)[0].item())
            if status == 0 and program.updates:
                self._update()
            return status

    def _update(self):
        """Copy what no kernel has exchanged."""
        for i in self._others:
            if self._saving:
                self._before[i] = self._targets[i].copy()
            copy_into(self._targets[i], self._rooms[-1][i])
        if len(self._rooms) > 1:
            # The next run leaves this room, the first from now on, alone.
            self._rooms.reverse()
            self._place()

    def touched_by(self, arrays):
        """Whether the bytes of an array meet those of an updated tensor."""
        for x in arrays:
            if cupy_.owns(x):
                start, end = cupy_.bounds(x)
                if ((start < self._ends) & (end > self._starts)).any():
                    return True
            if any(shares_memory(self._targets[i], x) for i in self._others):
                return True
        return False

    def previous(self):
        """Return what updated tensors held before; see `CallFrame.previous`."""
        return [self._before.get(i, x) for i, x in enumerate(self._rooms[0])]

    def _follow(self):
        """Wait for what this memory is still used for, if the user has changed the stream."""
        stream = cupy_.stream()
        if stream is not self._stream:
            cupy_.synchronize()
            self._stream = stream

    def _send_words(self):
        """Hand numbers of the host to the device."""
        for kernel, slots in self.program.schedule.words:
            words = in_words([self._read[slot] for slot in slots]).tolist()
            place = cupy_.address(self.memory)
            cupy_.launch(self.program.kernels[kernel], 1, 1, [place, *words])

    def _there(self, x):
        return cupy_.contiguous(to_device(x, self.program.device))

    def _graphs_of(self, addresses):
        """Return the graphs captured for these addresses; None if they are met for the first time,
        when capturing would not pay yet.
        """
        found = self._graphs.get(addresses)
        if found is not None:
            self._graphs.move_to_end(addresses)
            return found
        if addresses not in self._met:
            self._met[addresses] = None
            if len(self._met) > _REMEMBERED:
                self._met.popitem(last=False)
            return None
        found = self._graphs[addresses] = {}
        if len(self._graphs) > _GRAPHS:
            self._graphs.popitem(last=False)
        return found

    def _go_through(self, parts, graphs):
        for i, part in enumerate(parts):
            if isinstance(part, list):
                self._start(part, graphs, (id(parts), i))
            elif isinstance(part, tuple):
                test, flag, body = part
                self._go_through(test, graphs)
                while bool(self.memory[flag : flag + 1].view(np.bool_)[0].item()):
                    self._go_through(body, graphs)
                    self._go_through(test, graphs)
            else:
                arrays = [self._array(b) for b in part.buffers]
                part.fn(array_module(self.memory), arrays, part.attrs)

    def _start(self, launches, graphs, key):
        """Start kernels: one by one, or as a graph."""
        if graphs is None or len(launches) < _WORTH_CAPTURING or self.program.refused:
            self._launch(launches)
            return
        graph = graphs.get(key)
        if graph is None:
            try:
                graph = graphs[key] = cupy_.capture(lambda: self._launch(launches))
            except DeviceError as error:
                self.program.refused = str(error)
                self._launch(launches)
                return
        graph.launch()

    def _launch(self, launches):
        program, base = self.program, cupy_.address(self.memory)
        for step in launches:
            if not isinstance(step, Launch):
                self._multiply(step)
                continue
            arguments = [base, *(cupy_.address(self._array(b)) for b in step.outside)]
            kernel, blocks = program.kernels[step.kernel], step.blocks
            if step.together:
                blocks = min(blocks, program.room[step.kernel])
            cupy_.launch(
                kernel, blocks, program.schedule.threads, arguments, together=step.together
            )

    def _multiply(self, step):
        """Make matrix products by cuBLAS."""
        at = step.attrs
        *sides, out = map(self._array, step.buffers)
        rows = zip(sides, at["offsets"], at["ld"], at["steps"], at["transposed"], strict=True)
        first, second = (
            CublasMatrices(cupy_.address(x) + offset * x.dtype.itemsize, *layout)
            for x, offset, *layout in rows
        )
        sizes = at["m"], at["n"], at["k"], at["batch"]
        cupy_.multiply(out.dtype, sizes, first, second, cupy_.address(out), self.space)

    def _array(self, buffer):
        """Return a buffer as a flat array."""
        kind = buffer.kind
        if kind in ("input", "ref", "output", "const", "target"):
            return self._outside[kind][buffer.slot].reshape(-1)
        found = self._flat.get(id(buffer))
        if found is None:
            start = self._start_of(buffer)
            bytes_ = self.memory[start : start + buffer.nbytes]
            found = self._flat[id(buffer)] = bytes_.view(buffer.dtype)
        return found

    def _start_of(self, buffer):
        schedule = self.program.schedule
        if buffer.kind == "arena":
            return schedule.arena + (buffer.slot or 0)
        return (schedule.packed if buffer.kind == "packed" else schedule.scalars) + 8 * buffer.slot


def _empty(values):
    """Return memory of the current device for some of a program's outputs."""
    empty = cupy_.namespace().empty
    return [empty(v.shape, v.dtype) for v in values]


def _can_be_captured(step):
    """Whether a step can be part of a CUDA graph: all but library calls other than products."""
    if isinstance(step, Launch):
        return True
    if not step.product:
        return False
    at = step.attrs
    sizes = at["m"], at["n"], at["k"], at["batch"], *at["ld"]
    return cupy_.multiplies(sizes, step.buffers[2].dtype)
