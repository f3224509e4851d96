"""Kernels: functions that are started, and run several statements in order.

One block runs them, with a barrier between them; or, if the cluster is `wide`, as many blocks as
the device holds at once, with barriers across all of these. In a wide one, statements that are
small are block 0's alone, and what follows them up to the next large one too: a barrier of the
block takes a fraction of the time of one across blocks.

`while` loops and branches become those of C. Their flags are read by all threads between two
barriers, so that all go the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.cuda import CUDA, THREADS
from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import (
    Block,
    Branch,
    Call,
    Group,
    Guard,
    Loop,
    MemoryBuffer,
    Statement,
)
from probtorch.compiler.render.cuda_calls import kernel_of
from probtorch.compiler.render.cuda_nest import KernelModule, Piece
from probtorch.compiler.render.cuda_own import OwnKernel
from probtorch.compiler.render.cuda_schedule import Launch
from probtorch.compiler.render.guards import holds
from probtorch.errors import CompileError

__all__ = ["Cluster"]

# What device functions take: the number of this block among those that run it, and their number.
_EVERY_BLOCK, _ONE_BLOCK = ("blockIdx.x", "gridDim.x"), ("0", "1")
_MOST_BLOCKS = 4096
# CUDA's limit on arguments, 32 764 bytes.
_MOST_OUTSIDE = 4000


class Cluster(KernelFunction):
    """Writes a kernel.

    Parameters
    ----------
    module : renderer of the program
    gate : Buffer, optional
        The flag without which it does nothing.
    wide : bool
        Whether statements that are not small run on all blocks.

    Attributes
    ----------
    outside : dict of Buffer to Value
        Arrays outside of the program's memory: arguments of the kernel.
    calls : int
        Of device functions, so far.
    """

    module: KernelModule

    def __init__(
        self, module: KernelModule, gate: MemoryBuffer | None = None, *, wide: bool = False
    ):
        super().__init__(module, CUDA, "", "void", ())
        self.together, self.calls, self.wanted = wide, 0, 1
        self.outside: dict[MemoryBuffer, Value] = {}
        # The branch for block 0 alone that what is written now is inside of.
        self.alone: nodes.If | None = None
        self.memory = Value("M", "ptr", self)
        if gate is not None:
            self.leave_if(self.logical_not(self.flag(gate)))

    def launch(self) -> Launch:
        """Close the kernel; returns its launch."""
        if self.alone is not None:
            self.put(nodes.End(self.alone))
        if len(self.outside) > _MOST_OUTSIDE:
            raise CompileError(
                "a loop nest",
                expected=f"at most {_MOST_OUTSIDE} arrays from outside in one nest",
                got=f"{len(self.outside)}",
                fix="the function runs eagerly; pass parameters as one vector to have it compiled",
            )
        self.name = self.name or f"k{len(self.module.kernels) + 1}"
        self.module.kernels.append(CUDA.kernel(self, shares=self.calls > 0))
        return Launch(self.name, tuple(self.outside), self.wanted, self.together)

    # --------------------------------------------------------------------------------------- memory

    def base(self, b: MemoryBuffer) -> Value:
        """Return where a buffer begins."""
        at = self.module.offset(b)
        if at is not None:
            return self.offset(self.memory, at, "i8")
        if b not in self.outside:
            self.outside[b] = self.parameter("ptr")
        return self.outside[b]

    def flag(self, b: MemoryBuffer) -> Value:
        """Return the number in a buffer."""
        return self.load_at(self.base(b), ir_type(b.dtype))

    def succeeds(self) -> Value:
        """Return whether nothing has failed so far."""
        return self.load(self.memory, 0, "i64") == 0

    # ------------------------------------------------------------------------------------ functions

    def run(
        self, name: str, arguments: Iterable[Value], blocks: int, *, everyone: bool = True
    ) -> None:
        """Write the call of a device function that has work for so many blocks."""
        team = _EVERY_BLOCK if everyone else _ONE_BLOCK
        own = [Value(x, "ptr", self) for x in ("M", "shared", *team)]
        self.call(name, "void", *own, *arguments)
        self.calls += 1
        if everyone:
            self.wanted = max(self.wanted, blocks)

    def run_own(self, own: OwnKernel, *, everyone: bool = True) -> None:
        """Write the call of a device function of ours."""
        self.module.runtime.add(own.function)
        self.module.out.checked |= own.fails
        passed = []
        for x in own.arguments:
            if isinstance(x, int):
                passed.append(self.whole(x))
            else:
                buffer, offset = x if isinstance(x, tuple) else (x, 0)
                place = self.base(buffer)
                passed.append(
                    self.offset(place, offset, ir_type(buffer.dtype)) if offset else place
                )
        blocks = max(1, min(_MOST_BLOCKS, -(-own.threads // THREADS)))
        self.run(own.function, passed, blocks, everyone=everyone)

    def run_piece(self, piece: Piece, *, everyone: bool = True) -> None:
        """Write the call of a function of a nest."""
        self.run(piece.name, map(self.base, piece.outside), piece.blocks, everyone=everyone)

    # ----------------------------------------------------------------------------------- statements

    def write(self, s: Statement) -> None:
        """Write a statement; it ends with a barrier, or in the part that is block 0's alone."""
        if not self.together:
            self._statement(s, everyone=False)
        elif self.module.small(s):
            if self.alone is None:
                self.alone = nodes.If(Value("blockIdx.x", "i64", self) == 0, False)
                self.put(self.alone)
            self._statement(s, everyone=False)
        else:
            self._join()
            self._statement(s, everyone=True)

    def _join(self) -> None:
        """End the part that is block 0's alone."""
        if self.alone is not None:
            self.put(nodes.End(self.alone))
            self.alone = None
            self.barrier(everyone=True)

    def _block(self, block: Block, *, everyone: bool) -> None:
        for s in block.statements:
            if everyone:
                self.write(s)
            else:
                self._statement(s, everyone=False)
        if everyone:
            self._join()

    def _statement(self, s: Statement, *, everyone: bool) -> None:
        """Write a statement for one block, or for all of them."""
        if isinstance(s, Group):
            for piece in self.module.pieces(s):
                self.run_piece(piece, everyone=everyone)
                self.barrier(everyone=everyone)
        elif isinstance(s, Call):
            self.run_own(kernel_of(s, large=everyone), everyone=everyone)
            self.barrier(everyone=everyone)
        elif isinstance(s, Guard):
            self._guard(s)
        elif isinstance(s, Loop):

            def going() -> Value:
                self._block(s.test, everyone=everyone)
                go = self.logical_and(self.flag(s.flag), self.succeeds())
                return self._uniform(go, everyone=everyone)

            with self.repeat_while(going):
                self._block(s.body, everyone=everyone)
        elif isinstance(s, Branch):
            go = self._uniform(self.truth(self.flag(s.flag)), everyone=everyone)
            yes, no = self.branch(go)
            with yes:
                self._block(s.yes, everyone=everyone)
            with no:
                self._block(s.no, everyone=everyone)

    def _uniform(self, flag: Value, *, everyone: bool) -> Value:
        """Let all threads read what they must agree on, before any goes on to change it."""
        self.barrier(everyone=everyone)
        return flag

    def _guard(self, guard: Guard) -> None:
        """Write a guard, for one block."""
        with self.when(self.thread == 0):
            ok = holds(self, self.flag(guard.buffer), guard.value)
            self.put(nodes.Fail(self.logical_not(ok), guard.index + 1))
        self.barrier()
