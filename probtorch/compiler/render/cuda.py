"""CUDA C for a lowered program, and the order in which its kernels run.

The same loop nests that `llvm.py` renders, for a GPU. Each nest becomes device functions
(`cuda_phases.py`, `cuda_nest.py`). A large one is a kernel of its own, with as many blocks as it
has work for. Small ones that follow each other are one kernel of one block, with a barrier between
them: starting a kernel takes longer than they do. Guards are part of such kernels, and so are
`while` loops and branches whose bodies are small enough. Other branches become gates, a flag that
each kernel reads first. Other loops are one kernel of as many blocks as the device holds at once,
with barriers across all of them (`cuda_cluster.py`). In all of these the host hears nothing of the
loop; only one around a call that no kernel of ours does has its flag read by the host, which waits
for the GPU once per iteration.

`render` returns a `Schedule`: the source, and steps for the executor. Where memory lies is the
`NestPlan` of `llvm.py`, in one block: a status word, packed constants, scalars, arena. The status
is 0, or 1 + the index of the first guard that failed, or -1 where eager execution would raise an
error. All that follows a failure still runs, and does no harm; loops end.

The text depends on nothing but the graph: no name or number of the user's reaches it, except
numbers as hexadecimal literals.
"""

import numpy as np

from probtorch.compiler.lang.cuda import THREADS
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import Branch, Call, Group, Loop
from probtorch.compiler.render.cuda_calls import LIBRARY, kernel_of, library_of
from probtorch.compiler.render.cuda_cluster import Cluster
from probtorch.compiler.render.cuda_math import runtime_text
from probtorch.compiler.render.cuda_nest import write_phase
from probtorch.compiler.render.cuda_own import OwnKernel
from probtorch.compiler.render.cuda_phases import split
from probtorch.compiler.render.cuda_schedule import ALIGN, HostLoop, LibraryCall, Schedule
from probtorch.compiler.render.llvm import NestPlan

__all__ = ["render"]

# Steps of a nest up to which it shares a kernel of one block; and in the body of a loop.
_SMALL, _SMALL_IN_LOOP = 2**14, 2**15
# Device functions and outside arrays of one kernel, so that compiling it stays quick.
_MAX_CALLS, _MAX_OUTSIDE, _MAX_WORDS, _MAX_UPDATES = 200, 400, 64, 200


def render(low):
    """Return the `Schedule` of a lowered program."""
    return _Renderer(low).run()


def _aligned(n):
    return -(-n // ALIGN) * ALIGN


def _words(low):
    """Return the references that are single numbers on the host: counters of draws, above all."""
    return [i for i, t in enumerate(low.refs) if type(t.array) is np.ndarray and t.array.size == 1]


def _can_be_exchanged(array):
    """Whether new elements of a tensor can be put in place by a kernel."""
    return type(array) is not np.ndarray and array.flags.c_contiguous


class _Renderer:
    """The text being written, and the steps."""

    def __init__(self, low):
        self.low = low
        self.functions, self.kernels, self.runtime = [], [], set()
        self.phases, self.costs = {}, {}
        self.gates = {}
        self.out = Schedule()

    def run(self):
        self._prepare(self.low.block)
        out = self.out
        plan = out.plan = NestPlan(self.low)
        self.words = {
            i: out.packed + 8 * (len(plan.packed_values) + k)
            for k, i in enumerate(_words(self.low))
        }
        out.scalars = out.packed + _aligned(8 * (len(plan.packed_values) + len(self.words) + 1))
        out.arena = out.scalars + _aligned(8 * max(plan.scalars, 1))
        out.nbytes = out.arena + _aligned(plan.arena)
        out.steps = self._steps(self.low.block, None) + self._updates()
        self._word_kernels()
        body = "\n".join([*self.functions, *self.kernels])
        out.checked |= "pt_fail(" in body
        if out.checked:
            reset = Cluster(self)
            reset.store(reset.memory, 0, 0, "i64")
            out.steps.insert(0, reset.launch())
            body += "\n" + self.kernels[-1]
        out.source = "\n".join([runtime_text(self.runtime), body, ""])
        return out

    # ------------------------------------------------------------------------------ before the plan

    def _prepare(self, block):
        """Cut all groups into phases, which may need memory."""
        for s in block.statements:
            if isinstance(s, Group):
                self.phases[id(s)] = split(self.low, s)
            elif isinstance(s, Loop):
                self._prepare(s.test)
                self._prepare(s.body)
                self.gates[id(s)] = self._flag()
            elif isinstance(s, Branch):
                self._prepare(s.yes)
                self._prepare(s.no)
                self.gates[id(s)] = self._flag(), self._flag()

    def _flag(self):
        return self.low.buffer("scalar", np.dtype(bool), 1)

    def _updates(self):
        """Return launches of kernels that exchange outputs with the tensors that they update."""
        low, launches = self.low, []
        kept = {k: t.array for k, t in low.graph.updates.items() if _can_be_exchanged(t.array)}
        self.out.updates = list(kept)
        for first in range(0, len(kept), _MAX_UPDATES):
            cluster = Cluster(self)
            cluster.leave_if(cluster.logical_not(cluster.succeeds()))
            for k in self.out.updates[first : first + _MAX_UPDATES]:
                new = low.outputs[k]
                target = low.buffer("target", new.dtype, new.numel, k)
                name, size = f"pt_exchange_{ir_type(new.dtype)}", new.numel
                cluster.run_own(OwnKernel(name, [target, new, size], size, size))
            launches.append(cluster.launch())
        return launches

    def _word_kernels(self):
        """Write the kernels that store numbers of the host."""
        places = list(self.words.items())
        for start in range(0, len(places), _MAX_WORDS):
            some = places[start : start + _MAX_WORDS]
            cluster = Cluster(self)
            for _, at in some:
                cluster.store(cluster.memory, at // 8, cluster.parameter("i64"), "i64")
            self.out.words.append((cluster.launch().kernel, [slot for slot, _ in some]))

    # ------------------------------------------------------------------- asked by the phase writers

    def function_name(self):
        return f"f{len(self.functions) + 1}"

    def offset(self, b):
        """Where a buffer lies in the memory; None if it is outside."""
        if b.kind == "ref":
            return self.words.get(b.slot)
        start = {"packed": self.out.packed, "scalar": self.out.scalars}.get(b.kind)
        if start is not None:
            return start + 8 * b.slot
        return self.out.arena + (b.slot or 0) if b.kind == "arena" else None

    # ---------------------------------------------------------------------------------------- steps

    def pieces(self, group):
        """Return the device functions of a group, written on first use."""
        found = self.costs.get(id(group))
        if found is None:
            found = []
            for phase in self.phases[id(group)]:
                found += write_phase(self, group, phase)
            self.costs[id(group)] = found
        return found

    def small(self, s, limit=_SMALL):
        """Whether one block should run a statement."""
        if isinstance(s, Group):
            return all(piece.work <= limit for piece in self.pieces(s))
        if isinstance(s, Call):
            own = kernel_of(s)
            return own is not None and own.threads <= THREADS and own.work <= limit
        limit = _SMALL_IN_LOOP if isinstance(s, Loop) else limit
        return all(self.small(x, limit) for block in s.blocks for x in block.statements)

    def _on_device(self, s):
        """Whether a statement needs nothing but device functions."""
        if isinstance(s, Call):
            return kernel_of(s, large=True) is not None
        return all(self._on_device(x) for block in s.blocks for x in block.statements)

    def _steps(self, block, gate):
        """Return the steps of a block; kernels under a gate run only if it is set."""
        steps, together = [], []

        def flush():
            if together:
                steps.extend(self._together(together, gate))
                together.clear()

        for s in block.statements:
            if self.small(s):
                together.append(s)
                continue
            flush()
            if isinstance(s, Group):
                steps += [self._piece_kernel(piece, gate) for piece in self.pieces(s)]
            elif isinstance(s, Call):
                steps.append(self._call(s, gate))
            elif isinstance(s, Loop) and self._on_device(s):
                cluster = Cluster(self, gate, wide=True)
                cluster.write(s)
                steps.append(cluster.launch())
            elif isinstance(s, Loop):
                steps.append(self._host_loop(s, gate))
            else:
                steps += self._gated(s, gate)
        flush()
        return steps

    def _piece_kernel(self, piece, gate):
        cluster = Cluster(self, gate)
        cluster.run_piece(piece)
        return cluster.launch()

    def _together(self, statements, gate):
        """Return launches of kernels of one block that run small statements in order."""
        launches, cluster = [], None
        for s in statements:
            cluster = cluster or Cluster(self, gate)
            cluster.write(s)
            if cluster.calls >= _MAX_CALLS or len(cluster.outside) >= _MAX_OUTSIDE:
                launches.append(cluster.launch())
                cluster = None
        if cluster is not None:
            launches.append(cluster.launch())
        return launches

    def _call(self, call, gate):
        own = kernel_of(call)
        if own is None:
            fn, buffers, attrs = library_of(call)
            name = call.node.name if call.node is not None else call.name
            return LibraryCall(fn, tuple(buffers), attrs, name, fn is LIBRARY["gemm"])
        cluster = Cluster(self, gate, wide=own.together)
        cluster.run_own(own)
        return cluster.launch()

    def _host_loop(self, loop, gate):
        test = self._steps(loop.test, gate)
        go = self.gates[id(loop)]
        cluster = Cluster(self)
        goes = cluster.logical_and(cluster.flag(loop.flag), cluster.succeeds())
        if gate is not None:
            goes = cluster.logical_and(goes, cluster.flag(gate))
        cluster.store_at(goes, cluster.base(go))
        test.append(cluster.launch())
        self.out.notes.append("a while loop whose flag the host reads: a synchronisation each time")
        return HostLoop(test, self.offset(go), self._steps(loop.body, gate))

    def _gated(self, branch, gate):
        """Return the steps of both branches, each under a gate."""
        yes, no = self.gates[id(branch)]
        cluster = Cluster(self)
        active = True if gate is None else cluster.flag(gate)
        flag = cluster.truth(cluster.flag(branch.flag))
        for where, taken in ((yes, flag), (no, cluster.logical_not(flag))):
            cluster.store_at(cluster.logical_and(active, taken), cluster.base(where))
        return [cluster.launch(), *self._steps(branch.yes, yes), *self._steps(branch.no, no)]
