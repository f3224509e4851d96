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

from probtorch.compiler.lang.builder import Builder
from probtorch.compiler.lang.llvm import LLVM, in_memory, literal
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import Branch, Group, Loop, buffers_of
from probtorch.compiler.render import mathlib, runtime
from probtorch.compiler.render.blocked import write_nest
from probtorch.compiler.render.calls import HELPERS, helper_text
from probtorch.compiler.render.guards import holds
from probtorch.compiler.render.parts import plan_parts
from probtorch.compiler.render.region import write_join, write_region
from probtorch.compiler.render.runtime import interrupts

__all__ = ["NestPlan", "render"]

# Beyond this many loop nests nothing is inlined into the driver: LLVM's time would stop being
# linear.
_INLINE_GROUPS = 24


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
        for b in buffers_of(statement):
            b.first = i if b.first is None else min(b.first, i)
            b.last = i if b.last is None else max(b.last, i)


class NestModule:
    """The text being written: functions, declarations, and which runtime functions they call."""

    def __init__(self, lowering, plan=None):
        self.lowering = lowering
        if plan is None:
            plan_parts(lowering)
        self.plan = plan or NestPlan(lowering)
        self.functions = []
        self.declarations = {}
        self.runtime = set()
        self.helpers = set()
        self.tables = {}
        self.groups = 0
        self.loops = 0
        self.inline = _count_groups(lowering.block) <= _INLINE_GROUPS

    def declare(self, line):
        """Add a declaration once."""
        self.declarations[line] = None

    def text(self, driver=None):
        """Return the module's IR, with the driver of a class other than `Driver` if given."""
        driver = (driver or Driver)(self)
        driver.run(self.lowering.block)
        body = driver.finish()
        helpers = [helper_text(name, self) for name in sorted(self.helpers)]
        head = mathlib.declarations(sorted(self.runtime)) if self.runtime else ""
        return "\n".join([*self.declarations, head, *helpers, *self.functions, body, ""])


def _count_groups(block):
    n = 0
    for s in block.statements:
        if isinstance(s, Group):
            n += 1
        elif isinstance(s, Loop):
            n += _count_groups(s.test) + _count_groups(s.body)
        elif isinstance(s, Branch):
            n += _count_groups(s.yes) + _count_groups(s.no)
    return n


class Driver:
    """Writes `run`."""

    def __init__(self, module):
        self.module = module
        self.plan = module.plan
        self.s = Builder(module, LLVM)
        self.entry = []
        self.labels = 0
        self.pointers = {}
        # Updates in place by the nest that writes them, and those written so far.
        self.in_place = {}
        for x in module.lowering.in_place:
            statement = module.lowering.block.statements[x.statement]
            self.in_place.setdefault(id(statement), []).append(x)
        self.done = []
        self.undone = set()
        self.polls = False
        base = self.plan.tail
        for i, name in enumerate(("packed", "scalars", "arena")):
            self._load_pointer(f"%{name}", base + i)

    def _load_pointer(self, name, k):
        self.entry.append(f"  {name}.p = getelementptr ptr, ptr %io, i64 {k}")
        self.entry.append(f"  {name} = load ptr, ptr {name}.p")

    def label(self, prefix):
        """Return a new label."""
        self.labels += 1
        return f"{prefix}{self.labels}"

    def pointer(self, b):
        """Return the name of a pointer to a buffer's first element."""
        key = id(b)
        if key not in self.pointers:
            name = f"%b{len(self.pointers)}"
            if b.kind == "packed":
                self.entry.append(f"  {name} = getelementptr i8, ptr %packed, i64 {b.slot * 8}")
            elif b.kind == "scalar":
                self.entry.append(f"  {name} = getelementptr i8, ptr %scalars, i64 {b.slot * 8}")
            elif b.kind == "arena":
                self.entry.append(f"  {name} = getelementptr i8, ptr %arena, i64 {b.slot or 0}")
            else:
                self._load_pointer(name, self.plan.start[b.kind] + b.slot)
            self.pointers[key] = name
        return self.pointers[key]

    def load(self, b):
        """Return the scalar in a buffer."""
        return self.s.load_at(self._place(self.pointer(b)), ir_type(b.dtype))

    def _place(self, name):
        return Value(name, "ptr", self.s)

    def run(self, block):
        """Write the statements of a block."""
        for statement in block.statements:
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    def _group(self, group):
        lines = self.s.lines
        for b, value in group.fills:
            self._fill(b, value)
        if not group.items or 0 in group.domain:
            return
        name, params, checked = write_nest(self.module, group)
        arguments = [self._argument(p) for p in params]
        args = ", ".join(f"ptr {a}" for a in arguments)
        status = None
        if group.parts is not None:
            status = write_region(self, group.parts, name, arguments, checked)
        elif checked:
            status = self.s.emit(f"call i64 @{name}({args})", "i64")
        else:
            lines.append(f"  call void @{name}({args})")
        self.done += self.in_place.get(id(group), ())
        if checked:
            self.leave_unless(self.s.compare("eq", status, 0), "-1")
        if group.parts is not None:
            write_join(self, group.parts, name)

    def _argument(self, p):
        return {"S": "%scalars", "P": "%packed"}[p] if isinstance(p, str) else self.pointer(p)

    def _fill(self, b, value):
        ty = ir_type(b.dtype)
        if value == 0:
            self.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            self.s.lines.append(
                f"  call void @llvm.memset.p0.i64("
                f"ptr {self.pointer(b)}, i8 0, i64 {b.nbytes}, i1 false)"
            )
            return
        stored = in_memory(ty)
        self.module.helpers.add(f"pt_fill_{stored}")
        self.s.lines.append(
            f"  call void @pt_fill_{stored}("
            f"ptr {self.pointer(b)}, i64 {b.numel}, {stored} {literal(value, stored)})"
        )

    def leave_unless(self, ok, status):
        """Return `status` from `run` unless `ok` holds."""
        out, on = self.label("leave"), self.label("on")
        ending = [f"  ret i64 {status}"]
        if self.done:
            self.undone.add(len(self.done))
            ending = [f"  store i64 {status}, ptr %left", f"  br label %undo{len(self.done)}"]
        self.s.lines += [
            f"  br i1 {ok.name}, label %{on}, label %{out}",
            f"{out}:",
            *ending,
            f"{on}:",
        ]

    def _undoing(self):
        """Return blocks that put back the first n updates in place and return the status `left`."""
        if not self.undone:
            return []
        self.entry.append("  %left = alloca i64")
        self.module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        lines = []
        for n in range(max(self.undone), 0, -1):
            x = self.done[n - 1]
            copied = f"ptr {self.pointer(x.target)}, ptr {self.pointer(x.before)}"
            lines += [
                f"undo{n}:",
                f"  call void @llvm.memcpy.p0.p0.i64({copied}, i64 {x.target.nbytes}, i1 false)",
                f"  br label %undo{n - 1}",
            ]
        return [*lines, "undo0:", "  %status = load i64, ptr %left", "  ret i64 %status"]

    def _guard(self, guard):
        ok = holds(self.s, self.load(guard.buffer), guard.value)
        self.leave_unless(ok, str(guard.index + 1))

    def _loop(self, loop):
        head, body, out = self.label("test"), self.label("body"), self.label("done")
        self.s.lines += [f"  br label %{head}", f"{head}:"]
        self.run(loop.test)
        flag = self.load(loop.flag)
        self.s.lines += [f"  br i1 {flag.name}, label %{body}, label %{out}", f"{body}:"]
        self._poll()
        self.run(loop.body)
        self.s.lines += [f"  br label %{head}", f"{out}:"]

    def _poll(self):
        """Count a round of a loop, and return from `run` if Ctrl-C was pressed."""
        if not interrupts.supported():
            return
        if not self.polls:
            self.polls = True
            self.module.declare(runtime.declaration("pt_poll"))
            n = interrupts.ROUNDS
            self.entry.append("  %rounds = alloca [3 x i64]")
            self.entry.append(f"  store [3 x i64] [i64 {n}, i64 0, i64 {n}], ptr %rounds")
        ask, on = self.label("ask"), self.label("go")
        rounds = self._place("%rounds")
        left = self.s.load_at(rounds, "i64") - 1
        self.s.store_at(left, rounds)
        self.s.lines += [f"  br i1 {(left > 0).name}, label %{on}, label %{ask}", f"{ask}:"]
        stop = self.s.emit("call i64 @pt_poll(ptr %rounds)", "i64")
        self.leave_unless(self.s.compare("eq", stop, 0), "-1")
        self.s.lines += [f"  br label %{on}", f"{on}:"]

    def _branch(self, branch):
        yes, no, out = self.label("yes"), self.label("no"), self.label("join")
        flag = self.s.truth(self.load(branch.flag))
        self.s.lines += [f"  br i1 {flag.name}, label %{yes}, label %{no}", f"{yes}:"]
        self.run(branch.yes)
        self.s.lines += [f"  br label %{out}", f"{no}:"]
        self.run(branch.no)
        self.s.lines += [f"  br label %{out}", f"{out}:"]

    def _call(self, call):
        self.s.lines += HELPERS[call.name](self, call)

    def finish(self):
        """Return the text of `run`."""
        body = [*self.s.lines, "  ret i64 0", *self._undoing()]
        return "\n".join(["define i64 @run(ptr %io) {", "entry:", *self.entry, *body, "}"])


def render(lowering):
    """Return ``(IR text, Plan)`` of a lowered program."""
    module = NestModule(lowering)
    return module.text(), module.plan
