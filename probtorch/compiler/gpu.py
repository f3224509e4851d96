"""Running compiled programs on a GPU: one block of memory, kernels, captured graphs.

`GpuProgram` and `GpuBinding` are what `Program` and `Binding` are on the CPU: shared code, and one
caller's memory for it. A run goes through the steps of the `Schedule` that `render/cuda.py` made
and waits for nothing: results are arrays that the GPU has yet to fill. It waits in two cases, which
`explain` names: at the end, if there is a guard or a check, for one number; and in loops around
library calls, once per iteration.

Kernels and matrix products that follow each other are captured as a CUDA graph when a run meets the
same addresses for the second time, and later runs start the graph. Memory of a program stays where
it is; the addresses of arguments and results are CuPy's, whose pool gives the same ones again in a
loop of steps. Graphs of the last few sets of addresses are kept. Other library calls stand between
two graphs: CuPy does not let them be captured. Where CUDA refuses to capture, kernels are started
one by one, and `explain` says so. All runs on CuPy's current stream; where that is another one than
in the run before, the host waits for the device once, since the memory is the same.

Numbers that live on the host (the counters of random draws) are arguments of one small kernel, so
that no copy has to wait. New elements of outside tensors go there by the last kernel, if no guard
failed. Everything that touches CuPy is in `backends/cupy_.py`.
"""

import time
from collections import Counter, OrderedDict

import numpy as np

from probtorch.backends import cupy_
from probtorch.backends.cublas import CublasMatrices
from probtorch.backends.registry import array_module, to_device
from probtorch.compiler import lower  # noqa: F401  fills the table of rules
from probtorch.compiler.nests.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.render.cuda_schedule import Launch
from probtorch.errors import DeviceError

__all__ = ["GpuBinding", "GpuProgram"]

# Sets of addresses whose graphs are kept, and remembered as met once.
_GRAPHS, _REMEMBERED = 8, 64
# Kernels from which on a graph is captured: starting a graph costs as much as starting two.
_WORTH_CAPTURING = 3


class GpuProgram:
    """Kernels of one recorded graph.

    Parameters
    ----------
    graph : Graph
    device : str
        "cuda:N", where it runs.

    Attributes
    ----------
    graph : Graph
        After the passes.
    plan : Plan
    schedule : Schedule
    seconds : dict of str to float
        Time spent in "passes", "render" and "native".
    """

    from_cache = False  # CuPy keeps compiled kernels on disk itself and does not tell

    def __init__(self, graph, device):
        times = [time.perf_counter()]
        self.device = device
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
        self.seconds = dict(
            zip(("passes", "render", "native"), np.diff(times).tolist(), strict=True)
        )
        self.parts = self.schedule.parts(lambda s: id(s) in self.captured)
        self.refused = None  # why CUDA captures no graph, if it does not

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

    def bind(self):
        """Return fresh memory to run this program in."""
        return GpuBinding(self)


class GpuBinding:
    """Memory of one caller."""

    def __init__(self, program):
        self.program = program
        schedule, plan = program.schedule, program.plan
        with cupy_.on_device(program.device):
            self.memory = cupy_.namespace().zeros(schedule.nbytes, np.uint8)
            if plan.packed_values:
                packed = np.zeros(8 * len(plan.packed_values), np.uint8)
                for i, value in enumerate(plan.packed_values):
                    data = np.frombuffer(value.tobytes(), np.uint8)
                    packed[8 * i : 8 * i + data.size] = data
                start = schedule.packed
                self.memory[start : start + packed.size] = to_device(packed, program.device)
            products = (s for s in program.schedule.every_step() if not isinstance(s, Launch))
            self.space = None  # of library products
            if any(id(s) in program.captured for s in products):
                self.space = cupy_.product_space()
            self.attach(())
            self._stream = cupy_.stream()
        self._flat = {}
        self._graphs = OrderedDict()
        self._met = OrderedDict()

    def attach(self, refs, targets=None, room=()):
        """Set the arrays of outside tensors, until they are set again.

        Parameters
        ----------
        refs : sequence of array
            What the program reads: contiguous arrays of the device; others are copied at each run.
        targets : dict of int to array, optional
            What it changes, by the number of the output that gets the old elements.
        room : sequence of array, optional
            For the last outputs, in all runs.
        """
        words = self.program.schedule.word_slots()
        self._refs = list(refs)
        given = [None if i in words else self._there(x) for i, x in enumerate(refs)]
        self._copied = [i for i, x in enumerate(refs) if given[i] is not x and given[i] is not None]
        self._outside = {"ref": given, "target": targets or {}, "const": self.program.consts}
        self._room = list(room)
        arrays = (*given, *self._outside["target"].values(), *room)
        self._places = tuple(0 if x is None else cupy_.address(x) for x in arrays)

    def run(self, inputs, refs=None, outputs=None):
        """Run on arrays of the device; returns ``(status, outputs)``.

        Parameters
        ----------
        inputs : sequence of array
            Contiguous ones of the device, or host arrays, which are copied there.
        refs : sequence of array, optional
            As for `attach`, which is called with them first.
        outputs : list of array, optional
            Room for results other than those that `attach` was given room for; new memory without
            it.

        Returns
        -------
        status : int
            0 where every guard held; not known, and 0, where there is nothing to check.
        """
        program = self.program
        with cupy_.on_device(program.device):
            if refs is not None:
                self.attach(refs)
            self._follow()
            if outputs is None:
                outputs = self.new_outputs()
            inputs = [self._there(x) for x in inputs]
            self._outside |= {"input": inputs, "output": [*outputs, *self._room]}
            places = self._places
            if self._copied:
                given = self._outside["ref"]
                for i in self._copied:
                    given[i] = self._there(self._refs[i])
                places = (*places, *(cupy_.address(given[i]) for i in self._copied))
            self._send_words()
            addresses = (*places, *map(cupy_.address, inputs), *map(cupy_.address, outputs))
            self._run(program.parts, self._graphs_of(addresses))
            # Held no longer: the pool may give these addresses to the next results.
            self._outside |= {"input": (), "output": ()}
            status = 0
            if program.schedule.checked:
                status = int(self.memory[:8].view(np.int64)[0].item())
            return status, outputs

    def _follow(self):
        """Wait for what this memory is still used for, if the user has changed the stream."""
        stream = cupy_.stream()
        if stream is not self._stream:
            cupy_.synchronize()
            self._stream = stream

    def _send_words(self):
        """Hand numbers of the host to the device."""
        for kernel, slots in self.program.schedule.words:
            words = [cupy_.address(self.memory)]
            for slot in slots:
                raw = np.zeros(8, np.uint8)
                data = np.frombuffer(self._refs[slot].tobytes(), np.uint8)
                raw[: data.size] = data
                words.append(int(raw.view(np.uint64)[0]))
            cupy_.launch(self.program.kernels[kernel], 1, 1, words)

    def _there(self, x):
        return cupy_.contiguous(to_device(x, self.program.device))

    def new_outputs(self):
        """Return uninitialised arrays for the results that have no room yet."""
        xp, results = array_module(self.memory), self.program.graph.outputs
        return [xp.empty(v.shape, v.dtype) for v in results[: len(results) - len(self._room)]]

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

    def _run(self, parts, graphs):
        for i, part in enumerate(parts):
            if isinstance(part, list):
                self._start(part, graphs, (id(parts), i))
            elif isinstance(part, tuple):
                test, flag, body = part
                self._run(test, graphs)
                while bool(self.memory[flag : flag + 1].view(np.bool_)[0].item()):
                    self._run(body, graphs)
                    self._run(test, graphs)
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


def _can_be_captured(step):
    """Whether a step can be part of a CUDA graph: all but library calls other than products."""
    if isinstance(step, Launch):
        return True
    if not step.product:
        return False
    at = step.attrs
    sizes = at["m"], at["n"], at["k"], at["batch"], *at["ld"]
    return cupy_.multiplies(sizes, step.buffers[2].dtype)
