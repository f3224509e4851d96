"""The driver with a clock: the same program, with the time of each loop nest and call.

`explain(profile=True)` compiles a program a second time with this driver; the code that computes
never reads a clock. Nests are functions that are not inlined here, so that nothing moves across the
two readings around each. The pointer table has one entry more, an array of pairs (nanoseconds,
runs): first the cost of reading the clock, then the statements in the order of `timed`.
"""

import time

from probtorch.compiler.nests.loops import Call, Group
from probtorch.compiler.render.llvm import Driver, NestModule

__all__ = ["render_timed", "timed"]


def timed(block):
    """Yield the statements that are timed, in order: nests and calls, those inside loops and
    branches too.
    """
    return filter(_has_clock, block.walk())


def _has_clock(statement):
    if isinstance(statement, Group):
        return bool(statement.items or statement.fills)
    return isinstance(statement, Call)


def render_timed(lowering, plan):
    """Return the IR text of a lowered program with clocks; `plan` is the program's own."""
    module = NestModule(lowering, plan)
    module.inlined = module.inlined_often = -1
    return module.program(TimedDriver)


class TimedDriver(Driver):
    """Writes `run` with a reading of the clock before and after each statement."""

    def __init__(self, module):
        super().__init__(module)
        with self.at_head():
            self.clocks = self.word(self.plan.table)
        self.time = self.on_stack(2, "i64")
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
        """Return the time in nanoseconds."""
        self.call("clock_gettime", "i32", self.value(time.CLOCK_MONOTONIC, "i32"), self.time)
        return self.load(self.time, 0, "i64") * 1_000_000_000 + self.load(self.time, 1, "i64")

    def _note(self, start):
        """Add the time since `start` and one run to the next pair."""
        for i, more in enumerate((self._now() - start, 1)):
            slot = 2 * self.pairs + i
            self.store(self.clocks, slot, self.load(self.clocks, slot, "i64") + more, "i64")
        self.pairs += 1
