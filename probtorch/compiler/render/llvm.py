"""LLVM IR text for a lowered program.

One internal function per loop nest, and a driver ``i64 run(ptr io)`` that calls them in order and
does what is not a loop nest: native loops, branches, guards and library calls. `io` is a table of
pointers: inputs, outputs, constants, references, then the packed scalar constants, the scalars and
the arena. Buffers come in as ``noalias`` parameters, so loops vectorise without run-time checks.
Large nests are cut into parts that threads share (`parts`, `region`).
`run` returns 0, or 1 + the index of the guard that failed, or -1 for an index out of bounds; what
it had written in place by then (`in_place.py`) it puts back.

Strict IEEE arithmetic plus ``contract``; only sums, products and dot products may be reassociated.
Identifiers are our own numbered ones: no name or number of the user's reaches the text, except
numbers as bit patterns.
"""

import math
import sys

from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.native import host
from probtorch.compiler.nests.loops import Group
from probtorch.compiler.render import mathlib, runtime
from probtorch.compiler.render.blocked import write_nest
from probtorch.compiler.render.calls import CALLS, write_helper
from probtorch.compiler.render.guards import holds
from probtorch.compiler.render.nest import fill
from probtorch.compiler.render.parts import plan_parts
from probtorch.compiler.render.region import write_join, write_region
from probtorch.compiler.render.runtime import interrupts
from probtorch.compiler.render.writer import LibraryModule, Writer

__all__ = ["NestPlan", "render"]

# Beyond this many loop nests not all are inlined into the driver: LLVM's time would stop being
# linear. Up to the second number those are that have few elements, so that a call is a good part of
# what they take, and run often, in loops within loops: a leaf of NUTS is thirty nests.
_INLINE_ALL, _INLINE_OFTEN = 24, 128
_FEW_ELEMENTS, _OFTEN = 256, 2


class NestPlan:
    """Where everything lies: the pointer table of `run` and the sizes of the arena and scalar areas
    (bytes).
    """

    def __init__(self, lowering):
        self.inputs = len(lowering.graph.inputs)
        self.outputs = len(lowering.outputs)
        self.consts = lowering.consts
        self.refs = lowering.refs
        self.in_place = sorted(x.output for x in lowering.in_place)
        self.packed_values = lowering.packed_values
        kinds = ("input", "output", "const", "ref")
        starts = [0, self.inputs, self.inputs + self.outputs]
        starts += [starts[-1] + len(self.consts)]
        self.start = dict(zip(kinds, starts, strict=True))
        self.tail = starts[-1] + len(self.refs)
        self.table = self.tail + 3
        self.scalars = 0
        self.arena = 0
        self._pack(lowering)

    def _pack(self, lowering):
        _lifetimes(lowering)
        for b in lowering.buffers:
            if b.kind == "scalar":
                b.slot = self.scalars
                self.scalars += 1
        free = []  # (offset, size) of memory whose buffer is dead, with the statement of its death
        active = []
        for b in sorted(
            (b for b in lowering.buffers if b.kind == "arena" and b.first is not None),
            key=lambda b: b.first,
        ):
            for other in [a for a in active if a.last < b.first]:
                active.remove(other)
                free.append((other.slot, _rounded(other.nbytes)))
            size = _rounded(b.nbytes)
            fit = min((f for f in free if f[1] >= size), key=lambda f: f[1], default=None)
            if fit is None:
                b.slot, self.arena = self.arena, self.arena + size
            else:
                free.remove(fit)
                b.slot = fit[0]
                if fit[1] > size:
                    free.append((fit[0] + size, fit[1] - size))
            active.append(b)


def _rounded(nbytes):
    return max(64, -(-nbytes // 64) * 64)


def _lifetimes(lowering):
    for i, statement in enumerate(lowering.block.statements):
        for b in statement.all_buffers():
            b.first = i if b.first is None else min(b.first, i)
            b.last = i if b.last is None else max(b.last, i)


class NestModule(LibraryModule):
    """The module of a program: its nests, and the driver that calls them."""

    def __init__(self, lowering, plan=None):
        super().__init__()
        self.lowering = lowering
        if plan is None:
            plan_parts(lowering)
        self.plan = plan or NestPlan(lowering)
        self.groups = 0
        self.turning = set()  # functions that turn rows (turned_rows.py), by their names
        groups = sum(isinstance(s, Group) for s in lowering.block.walk())
        # Elements of the largest nests that are inlined, and of those that run often.
        self.inlined = sys.maxsize if groups <= _INLINE_ALL else -1
        self.inlined_often = _FEW_ELEMENTS if groups <= _INLINE_OFTEN else -1
        self.depth = 0  # of loops around what is being written

    def inlines(self, group):
        """Whether a nest, which is written now, is to be part of the code around it."""
        often = self.inlined_often if self.depth >= _OFTEN else -1
        return math.prod(group.domain) <= max(self.inlined, often)

    def program(self, driver=None):
        """Return the module's IR, with the driver of a class other than `Driver` if given."""
        (driver or Driver)(self).write(self.lowering.block)
        for name in sorted(self.helpers):
            write_helper(self, name)
        return self.text(mathlib.declarations(sorted(self.runtime)) if self.runtime else "")


class ProgramFunction(Writer):
    """A function that knows where the buffers of a program are, by its first parameter."""

    def __init__(self, module, name, result, parameters, **options):
        super().__init__(module, name, result, parameters, **options)
        self.attributes += host.halved()  # of the nests that it takes in: see Nest
        self.plan = module.plan
        self.pointers = {}
        with self.at_head():
            areas = ("packed", "scalar", "arena")
            self.areas = {kind: self.word(self.plan.tail + i) for i, kind in enumerate(areas)}

    def word(self, k):
        """Return pointer `k` of the program's table."""
        return self.load(self.arguments[0], k, "ptr")

    def pointer(self, b):
        """Return the place of a buffer's first element."""
        if id(b) not in self.pointers:
            with self.at_head():
                if b.kind in self.areas:
                    shift = (b.slot or 0) * (1 if b.kind == "arena" else 8)
                    place = self.offset(self.areas[b.kind], shift, "i8")
                else:
                    place = self.word(self.plan.start[b.kind] + b.slot)
            self.pointers[id(b)] = place
        return self.pointers[id(b)]

    def set_bytes(self, name, target, source, nbytes):
        """Set bytes by LLVM's memset or memcpy."""
        self.module.declare(f"declare void @llvm.{name}.i64(ptr, {source.ty}, i64, i1)")
        self.call(f"llvm.{name}.i64", "void", target, source, self.whole(nbytes), self.truth(False))


class Driver(ProgramFunction):
    """Writes `run`."""

    module: NestModule

    def __init__(self, module):
        super().__init__(module, "run", "i64", ["ptr"], attributes="")
        # Updates in place by the nest that writes them, and those written so far.
        self.in_place = {}
        for x in module.lowering.in_place:
            statement = module.lowering.block.statements[x.statement]
            self.in_place.setdefault(id(statement), []).append(x)
        self.done, self.undone = [], 0
        self.rounds = None

    def write(self, block):
        """Write the function."""
        self.run(block)
        self.finish(self.whole(0))
        if self.undone:
            self._write_undo()

    def scalar(self, b):
        """Return the scalar in a buffer."""
        return self.load_at(self.pointer(b), ir_type(b.dtype))

    def run(self, block):
        """Write the statements of a block."""
        for statement in block.statements:
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    def _group(self, group):
        for b, value in group.fills:
            if value == 0:
                self.set_bytes("memset.p0", self.pointer(b), self.value(0, "i8"), b.nbytes)
            else:
                fill(self, self.pointer(b), b, value)
        if not group.items or 0 in group.domain:
            return
        name, bases, checked = write_nest(self.module, group)
        arguments = [self.areas.get(b) or self.pointer(b) for b in bases]
        if group.parts is None:
            status = self.call(name, "i64" if checked else "void", *arguments)
        else:
            status = write_region(self, group.parts, name, arguments, checked)
        self.done += self.in_place.get(id(group), ())
        if checked:
            self.stop_if(status != 0, -1)
        if group.parts is not None:
            write_join(self, group.parts, name)

    def stop_if(self, bad, status):
        """Return `status` from `run` if `bad` holds, with nothing updated in place."""
        if self.done:
            self.undone = max(self.undone, len(self.done))
            with self.when(bad):
                self.call("undo", "void", self.arguments[0], self.whole(len(self.done)))
        self.leave_if(bad, status)

    def _write_undo(self):
        """Write the function that puts back the first so many updates in place."""
        # Copies alone, where a run is left: there is nothing to find in 16 ms of LLVM's, not 6.
        w = ProgramFunction(
            self.module, "undo", "void", ["ptr", "i64"],
            linkage="internal", attributes="nounwind cold noinline optnone",
        )  # fmt: skip
        for k, x in reversed(list(enumerate(self.done[: self.undone]))):
            with w.when(w.arguments[1] > k):
                target, before = w.pointer(x.target), w.pointer(x.before)
                w.set_bytes("memcpy.p0.p0", target, before, x.target.nbytes)
        w.finish()

    def _guard(self, guard):
        ok = holds(self, self.scalar(guard.buffer), guard.value)
        self.stop_if(self.logical_not(ok), guard.index + 1)

    def _loop(self, loop):
        def goes_on():
            self.run(loop.test)
            return self.scalar(loop.flag)

        self.module.depth += 1
        with self.repeat_while(goes_on):
            self.run(loop.body)
            # At the end: what a round always does, and does the same each time, LLVM takes out of
            # the loop, but not from behind a way out of it.
            if interrupts.supported():
                self._poll()
        self.module.depth -= 1

    def _poll(self):
        """Count a round of a loop, and return from `run` if Ctrl-C was pressed."""
        if self.rounds is None:
            self.module.declare(f"{runtime.declaration('pt_poll')} {interrupts.MEMORY}")
            self.rounds = self.on_stack(3, "i64")
            with self.at_head():
                for i, n in enumerate((interrupts.ROUNDS, 0, interrupts.ROUNDS)):
                    self.store(self.rounds, i, n, "i64")
        left = self.load(self.rounds, 0, "i64") - 1
        self.store(self.rounds, 0, left, "i64")
        with self.when(left <= 0):
            self.stop_if(self.call("pt_poll", "i64", self.rounds) != 0, -1)

    def _branch(self, branch):
        yes, no = self.branch(self.scalar(branch.flag))
        with yes:
            self.run(branch.yes)
        with no:
            self.run(branch.no)

    def _call(self, call):
        CALLS[call.name](self, call)


def render(lowering):
    """Return ``(IR text, Plan)`` of a lowered program."""
    module = NestModule(lowering)
    return module.program(), module.plan
