"""The body of a kernel that runs several statements in order.

One block runs them, with a barrier between them; or, if the cluster is `wide`, as many blocks as
the device holds at once, with barriers across all of these (`pt_meet`). In a wide one, statements
that are small are block 0's alone, and what follows them up to the next large one too: a barrier
of the block takes a fraction of the time of one across blocks.

`while` loops and branches become those of C. Their flags are read by all threads between two
barriers, so that all go the same way.
"""

from probtorch.compiler.lang.builder import Builder
from probtorch.compiler.lang.cuda import C_TYPES, CUDA, THREADS
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.nests.loops import Branch, Call, Group, Guard, Loop
from probtorch.compiler.render.cuda_calls import kernel_of
from probtorch.compiler.render.cuda_own import OwnKernel
from probtorch.compiler.render.guards import holds

__all__ = ["EVERY_BLOCK", "Cluster"]

# Arguments of device functions: the number of this block among those that run it, and their number.
EVERY_BLOCK, _ONE_BLOCK = "blockIdx.x, gridDim.x", "0, 1"
_MOST_BLOCKS = 4096


class Cluster:
    """Writes the body of a kernel.

    Parameters
    ----------
    module : renderer of the program
    wide : bool
        Whether statements that are not small run on all blocks.

    Attributes
    ----------
    outside : dict of int to Buffer
        Arrays outside of the program's memory, by id: arguments of the kernel.
    calls : int
        Of device functions, so far.
    """

    def __init__(self, module, *, wide=False):
        self.module, self.wide = module, wide
        self.lines, self.outside, self.calls = [], {}, 0
        self.blocks = 1
        # Whether what is written now is inside of `if (blockIdx.x == 0)`.
        self.alone = False

    def kernel(self, gate, *, shared=True):
        """Make what was written a kernel; returns its launch."""
        if self.alone:
            self.lines.append("}")
        outside, body = tuple(self.outside.values()), "\n".join(self.lines)
        return self.module.kernel(
            body, self.blocks, gate, outside, shared=shared, together=self.wide
        )

    def base(self, b):
        """Return an expression for the address of a buffer."""
        at = self.module.offset(b)
        if at is not None:
            return f"(M + {at})"
        names = list(self.outside)
        if id(b) not in self.outside:
            self.outside[id(b)] = b
            names.append(id(b))
        return f"x{names.index(id(b))}"

    # ----------------------------------------------------------------------------------- statements

    def write(self, s):
        """Write a statement; it ends with a barrier, or in the part that is block 0's alone."""
        if not self.wide:
            self._statement(s, everyone=False)
        elif self.module.small(s):
            if not self.alone:
                self.lines.append("if (blockIdx.x == 0) {")
                self.alone = True
            self._statement(s, everyone=False)
        else:
            self._join()
            self._statement(s, everyone=True)

    def call(self, call):
        """Write a call that is a kernel of its own."""
        own = kernel_of(call)
        self.blocks = _blocks(own)
        self.lines.append(self._own(own, EVERY_BLOCK))

    def exchange(self, one, other):
        """Write an exchange of two arrays of the same type, by all blocks."""
        passed = [one, other, one.numel]
        own = OwnKernel(f"pt_exchange_{ir_type(one.dtype)}", passed, one.numel, one.numel)
        self.lines.append(self._own(own, EVERY_BLOCK))
        self.blocks = max(self.blocks, _blocks(own))

    def _made(self, blocks, *, everyone):
        self.calls += 1
        if everyone:
            self.blocks = max(self.blocks, blocks)

    def _join(self):
        """End the part that is block 0's alone."""
        if self.alone:
            self.lines.append("}")
            self.alone = False
            self._barrier(everyone=True)

    def _barrier(self, *, everyone):
        self.lines.append("pt_meet(M);" if everyone else "__syncthreads();")

    def _block(self, block, *, everyone):
        for s in block.statements:
            if everyone:
                self.write(s)
            else:
                self._statement(s, everyone=False)
        if everyone:
            self._join()

    def _statement(self, s, *, everyone):
        """Write a statement for one block, or for all of them."""
        team = EVERY_BLOCK if everyone else _ONE_BLOCK
        if isinstance(s, Group):
            for piece in self.module.pieces(s):
                names = "".join(f", {self.base(b)}" for b in piece.outside)
                self.lines.append(f"{piece.name}(M, shared, {team}{names});")
                self._barrier(everyone=everyone)
                self._made(piece.blocks, everyone=everyone)
        elif isinstance(s, Call):
            own = kernel_of(s, large=everyone)
            self.lines.append(self._own(own, team))
            self._barrier(everyone=everyone)
            self._made(_blocks(own), everyone=everyone)
        elif isinstance(s, Guard):
            self._guard(s)
        elif isinstance(s, Loop):
            self.lines.append("for (;;) {")
            self._block(s.test, everyone=everyone)
            flag = f"*(const bool *){self.base(s.flag)} && *(i64 *)M == 0"
            self._uniform("go", flag, everyone=everyone)
            self.lines.append("if (!go) break;")
            self._block(s.body, everyone=everyone)
            self.lines.append("}")
        elif isinstance(s, Branch):
            ty = C_TYPES[ir_type(s.flag.dtype)]
            self.lines.append("{")
            self._uniform("go", f"*({ty} *){self.base(s.flag)} != 0", everyone=everyone)
            self.lines.append("if (go) {")
            self._block(s.yes, everyone=everyone)
            self.lines.append("} else {")
            self._block(s.no, everyone=everyone)
            self.lines += ["}", "}"]

    def _uniform(self, name, text, *, everyone):
        """Read what all threads must agree on, before any goes on to change it."""
        self.lines.append(f"const bool {name} = {text};")
        self._barrier(everyone=everyone)

    def _own(self, own, team):
        """Return the call of a device function of ours."""
        self.module.runtime.add(own.function)
        self.module.out.checked |= own.fails
        texts = []
        for x in own.arguments:
            if isinstance(x, int):
                texts.append(f"{x}LL")
            else:
                buffer, offset = x if isinstance(x, tuple) else (x, 0)
                texts.append(f"{self.base(buffer)} + {offset * buffer.dtype.itemsize}")
        return f"{own.function}(M, shared, {', '.join([team, *texts])});"

    def _guard(self, guard):
        """Write a guard, for one block."""
        s = Builder(self.module, CUDA)
        ty = ir_type(guard.buffer.dtype)
        v = Value(f"(*({C_TYPES[ty]} *){self.base(guard.buffer)})", ty, s)
        ok = holds(s, v, guard.value)
        fail = f"if (!{ok.name}) pt_fail((i64 *)M, {guard.index + 1});"
        self.lines += ["if (threadIdx.x == 0) {", *s.lines, fail, "}"]
        self._barrier(everyone=False)


def _blocks(own):
    return max(1, min(_MOST_BLOCKS, -(-own.threads // THREADS)))
