"""The driver with a clock: the same program, with the time of each loop nest and call.

`explain(profile=True)` compiles a program a second time with this driver; the code that computes
never reads a clock. Nests are functions that are not inlined here, so that nothing moves across the
two readings around each. The pointer table has one entry more, an array of pairs (nanoseconds,
runs): first the cost of reading the clock, then the statements in the order of `timed`.
"""

import time

from probtorch.compiler.nests.loops import Branch, Call, Group, Loop
from probtorch.compiler.render.llvm import Driver, NestModule

__all__ = ["render_timed", "timed"]


def timed(block):
    """Yield the statements that are timed, in order: nests and calls, those inside loops and
    branches too.
    """
    for s in block.statements:
        if _has_clock(s):
            yield s
        elif isinstance(s, Loop):
            yield from timed(s.test)
            yield from timed(s.body)
        elif isinstance(s, Branch):
            yield from timed(s.yes)
            yield from timed(s.no)


def _has_clock(statement):
    if isinstance(statement, Group):
        return bool(statement.items or statement.fills)
    return isinstance(statement, Call)


def render_timed(lowering, plan):
    """Return the IR text of a lowered program with clocks; `plan` is the program's own."""
    module = NestModule(lowering, plan)
    module.inline = False
    return module.text(TimedDriver)


class TimedDriver(Driver):
    """Writes `run` with a reading of the clock before and after each statement."""

    def __init__(self, module):
        super().__init__(module)
        self._load_pointer("%clocks", self.plan.table)
        self.entry.append("  %time = alloca [2 x i64]")
        module.declare("declare i32 @clock_gettime(i32, ptr)")
        self.pairs = 0
        self._note(self._now())

    def run(self, block):
        """Write the statements of a block, timed."""
        for statement in block.statements:
            start = self._now() if _has_clock(statement) else None
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)
            if start is not None:
                self._note(start)

    def _now(self):
        """Emit the time in nanoseconds; returns its register."""
        self.s.emit(f"call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)", "i32")
        seconds = self.s.emit("load i64, ptr %time", "i64").name
        rest = self.s.emit("getelementptr i64, ptr %time, i64 1", "ptr").name
        rest = self.s.emit(f"load i64, ptr {rest}", "i64").name
        seconds = self.s.emit(f"mul i64 {seconds}, 1000000000", "i64").name
        return self.s.emit(f"add i64 {seconds}, {rest}", "i64").name

    def _note(self, start):
        """Add the time since `start` and one run to the next pair."""
        spent = self.s.emit(f"sub i64 {self._now()}, {start}", "i64").name
        for i, more in enumerate((spent, "1")):
            slot = 2 * self.pairs + i
            cell = self.s.emit(f"getelementptr i64, ptr %clocks, i64 {slot}", "ptr").name
            before = self.s.emit(f"load i64, ptr {cell}", "i64").name
            after = self.s.emit(f"add i64 {before}, {more}", "i64").name
            self.s.lines.append(f"  store i64 {after}, ptr {cell}")
        self.pairs += 1
