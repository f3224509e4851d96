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
one by one, and `explain` says so.

Numbers that live on the host (the counters of random draws) are arguments of one small kernel, so
that no copy has to wait. Everything that touches CuPy is in `backends/cupy_.py`.
"""

import contextlib
import threading
import time
from collections import Counter, OrderedDict

import numpy as np

from probtorch.backends import cupy_
from probtorch.backends.registry import array_module, device_of, shares_memory, to_device
from probtorch.compiler import lower  # noqa: F401  fills the table of rules
from probtorch.compiler.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.render.cuda_schedule import Launch
from probtorch.core.dispatch import grad_enabled, mark_changed, wrap
from probtorch.errors import DeviceError

__all__ = ["GpuBinding", "GpuPath", "GpuProgram"]

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
        self._flat = {}
        self._graphs = OrderedDict()
        self._met = OrderedDict()

    def run(self, inputs, refs=(), outputs=None):
        """Run on arrays of the device; returns ``(status, outputs)``.

        Parameters
        ----------
        inputs, refs : sequence of array
            Contiguous ones of the device, or host arrays, which are copied there.
        outputs : list of array, optional
            Room for results; new memory without it.

        Returns
        -------
        status : int
            0 where every guard held; not known, and 0, where there is nothing to check.
        """
        program = self.program
        with cupy_.on_device(program.device):
            if outputs is None:
                outputs = self.new_outputs()
            words = {slot for _, slots in program.schedule.words for slot in slots}
            self._outside = {
                "input": [self._there(x) for x in inputs],
                "ref": [None if i in words else self._there(x) for i, x in enumerate(refs)],
                "output": outputs,
                "const": program.consts,
            }
            self._send_words(refs)
            addresses = tuple(
                0 if x is None else cupy_.address(x)
                for kind in ("input", "ref", "output")
                for x in self._outside[kind]
            )
            self._run(program.parts, self._graphs_of(addresses))
            # Held no longer: the pool may give these addresses to the next results.
            self._outside = {}
            status = 0
            if program.schedule.checked:
                status = int(self.memory[:8].view(np.int64)[0].item())
            return status, outputs

    def _send_words(self, refs):
        """Hand numbers of the host to the device."""
        for kernel, slots in self.program.schedule.words:
            words = [cupy_.address(self.memory)]
            for slot in slots:
                raw = np.zeros(8, np.uint8)
                data = np.frombuffer(refs[slot].tobytes(), np.uint8)
                raw[: data.size] = data
                words.append(int(raw.view(np.uint64)[0]))
            cupy_.launch(self.program.kernels[kernel], 1, 1, words)

    def _there(self, x):
        return cupy_.contiguous(to_device(x, self.program.device))

    def new_outputs(self):
        """Return uninitialised arrays for the results."""
        xp = array_module(self.memory)
        return [xp.empty(v.shape, v.dtype) for v in self.program.graph.outputs]

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
        """Make a matrix product by cuBLAS."""
        at = step.attrs
        *sides, out = map(self._array, step.buffers)
        first, second = (
            (cupy_.address(x) + offset * x.dtype.itemsize, ld, turned)
            for x, offset, ld, turned in zip(
                sides, at["offsets"], at["ld"], at["transposed"], strict=True
            )
        )
        sizes = at["m"], at["n"], at["k"]
        cupy_.multiply(out.dtype, sizes, first, second, cupy_.address(out), self.space)

    def _array(self, buffer):
        """Return a buffer as a flat array."""
        kind = buffer.kind
        if kind in ("input", "ref", "output", "const"):
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


class GpuPath:
    """One compiled path of a function on a GPU; what `paths.Path` is on the CPU.

    Parameters
    ----------
    program : GpuProgram
    rebuild : callable
        From the tensors among the results to the result.
    rec : Recorder
    environment : Environment
    devices : list of str
        Where each result lies.
    lock : Lock
        That of the function: its paths change the same tensors.
    saving : bool
        Keep what updated tensors held before the last run, in `previous`.
    """

    def __init__(self, program, rebuild, rec, environment, devices, lock, saving=False):
        self.program, self.rebuild, self.environment = program, rebuild, environment
        self.devices = devices
        self.refs = program.plan.refs
        self.signature = [_signature(t) for t in self.refs]
        self.updates = list(rec.updates.values())
        self.draws = rec.draws
        copied = sum(device_of(t._data) == "cpu" for t in self.updates) + devices.count("cpu")
        if copied:
            program.schedule.notes.append(f"copies {copied} results to the host, and waits for it")
        self.saving = saving
        self.previous = rec.originals
        self.local = threading.local()
        self.lock = lock if self.updates or self.draws else contextlib.nullcontext()

    def run(self, arrays):
        """Return ``(result,)``, or None where the path does not fit or a guard fails."""
        grads = grad_enabled()
        for t, (shape, dtype, device, wanted) in zip(self.refs, self.signature, strict=True):
            now = _signature(t)
            if now[:3] != (shape, dtype, device) or (grads and now[3] != wanted):
                return None
        if any(shares_memory(t._data, x) for t in self.updates for x in arrays):
            return None
        if self.environment.changed() is not None:
            return None
        binding = getattr(self.local, "binding", None)
        if binding is None:
            binding = self.local.binding = self.program.bind()
        with self.lock:
            before = self._draw()
            status, out = binding.run(arrays, [t._data for t in self.refs])
            if status:
                for generator, state in before:
                    generator.set_state(state)
                return None
            kept = len(out) - len(self.updates)
            if self.updates:
                if self.saving:
                    self.previous = [t._data.copy() for t in self.updates]
                for t, x in zip(self.updates, out[kept:], strict=True):
                    t._data[...] = to_device(x, device_of(t._data))
                mark_changed(*self.updates)
        results = zip(out[:kept], self.devices, strict=True)
        return (self.rebuild([wrap(to_device(x, device)) for x, device in results]),)

    def example(self):
        """Return None: kernels are not profiled one by one."""

    def repeat(self, arrays, steps):
        """Return no results: steps on a GPU are started one by one."""
        first = self.program.graph.outputs[0]
        return np.empty((0, *first.shape), first.dtype), []

    def restore(self):
        """Put what the last run changed back to what it was before."""
        with self.lock:
            for t, before in zip(self.updates, self.previous, strict=True):
                t._data[...] = before
            mark_changed(*self.updates)

    def _draw(self):
        """Reserve this run's draws; returns the generators and the states they had before."""
        before = []
        for generator, count, seed, stream, first in self.draws:
            before.insert(0, (generator, generator.get_state()))
            words = (generator.initial_seed(), generator.stream, generator.advance(count))
            for t, word in zip((seed, stream, first), words, strict=True):
                t._data[...] = np.array(word, np.uint64).view(np.int64)
        return before


def _can_be_captured(step):
    """Whether a step can be part of a CUDA graph: all but library calls other than products."""
    if isinstance(step, Launch):
        return True
    if not step.product:
        return False
    at = step.attrs
    return cupy_.multiplies((at["m"], at["n"], at["k"], *at["ld"]), step.buffers[2].dtype)


def _signature(t):
    x = t._data
    return x.shape, x.dtype, device_of(x), t.requires_grad
