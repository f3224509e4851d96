"""What one index of a loop nest costs, in nanoseconds of one core: a rough number.

It decides whether a nest is worth threads (`parts.py`), where a factor of two is near enough. An
op's formula is written into a throw-away builder and its lines are counted by kind: arithmetic
(which vectorises), functions of our vector runtime, of the C library, of SciPy. Memory costs as
much as an operation or two, and indexed access more. Measured on an AMD EPYC (Zen 4) at 2.6 GHz.
"""

from probtorch.compiler.lang.builder import Builder
from probtorch.compiler.lang.llvm import LLVM, LlvmModule
from probtorch.compiler.lang.routines.doubles import DOUBLES
from probtorch.compiler.lang.types import BYTES, FLOATS, ir_type
from probtorch.compiler.nests.loops import Mem
from probtorch.errors import CompileError

__all__ = ["cost_of", "cost_of_item"]

# The first three are for 8 bytes: half of it for float32.
_LINE = 0.05  # an instruction on vectors of 64 bytes
_MEMORY = 0.12  # an element from the second-level cache
_RUNTIME = 1.5  # exp, log and their kin
_DOUBLES = 4.0  # sin, pow, lgamma and theirs
_LIBM = 12.0
_LIBRARY = 20.0  # SciPy's functions
_NATIVE = 80.0  # draws and incomplete integrals
_GATHER, _SCATTER = 0.6, 1.2
_PRODUCT = 0.14  # a term of a dot product or scaled row
_STEP = 0.5  # a step of a scan: each waits for the one before
_EXTREME = 4.0  # the position of an extreme, which does not vectorise


def cost_of(group):
    """Return nanoseconds per index of a `Group`'s domain."""
    total, seen = 0.0, set()
    for item in group.items:
        for x in item.operands:
            # An element that does not change along the last dim is in a register or nearby.
            if isinstance(x, Mem) and x.strides and x.strides[-1]:
                key = (id(x.buffer), x.offset, x.strides)
                total += 0.0 if key in seen else _MEMORY * x.buffer.dtype.itemsize / 8
                seen.add(key)
        root = item.root
        if root is not None and root.buffer is not None and root.in_register:
            total += _MEMORY * root.dtype.itemsize / 8
        total += cost_of_item(item)
    return total


def cost_of_item(item):
    """Return the nanoseconds that an item takes itself, without what it reads."""
    return _COSTS.get(item.kind, _loop)(item)


def _loop(item):
    return _STEP * item.attrs.get("size", 1)


def _compute(item):
    if item.node is None:
        return _LINE
    s = _Counted()
    try:
        s.evaluate(item.node, [s.operand(x) for x in item.operands])
    except CompileError:
        return _LINE  # rendering it will say what is wrong
    return s.cost


class _Counted(Builder):
    """A builder that adds up what its lines cost."""

    def __init__(self):
        super().__init__(LlvmModule(), LLVM)
        self.cost = 0.0

    def operand(self, x):
        """Stand in for an operand of an item."""
        if isinstance(x, Mem):
            return self._stand_in(x.buffer.dtype)
        root = getattr(x, "root", None)
        return x if root is None else self._stand_in(root.dtype)

    def _stand_in(self, dtype):
        ty = ir_type(dtype)
        return self.value(0.5 if ty in FLOATS else 1, ty)

    def emit(self, text, ty):
        width = BYTES.get(ty, 8) / 8
        if not text.startswith("call"):
            self.cost += _LINE * width
        elif "@llvm." in text:
            self.cost += 2 * _LINE * width
        elif "@pt_" in text:
            # Those of the vector runtime end in their type and have been noted there.
            name = text.partition("@")[2].partition("(")[0]
            if name not in self.module.runtime:
                self.cost += _LIBRARY
            elif name[3:].rpartition("_")[0] in DOUBLES:
                self.cost += _DOUBLES
            else:
                self.cost += _RUNTIME * width
        else:
            self.cost += _LIBM
        return super().emit(text, ty)

    def fail_if(self, bad):
        self.cost += _LINE


def _reduce(item):
    if item.attrs["reduce"] in ("argmax", "argmin"):
        return _EXTREME
    return _LINE if item.attrs["depth"] is not None else _MEMORY


_COSTS = {
    "compute": _compute,
    "native": lambda item: _NATIVE,
    "gather": lambda item: _GATHER,
    "scatter": lambda item: _SCATTER,
    "dot": lambda item: _PRODUCT * item.attrs["size"],
    "axpy": lambda item: _PRODUCT * item.attrs["size"],
    "scan": lambda item: (_STEP + _MEMORY) * item.attrs["size"],
    "store": lambda item: _MEMORY,
    "reduce": _reduce,
    "demand": lambda item: _LINE,
    "small_cholesky": lambda item: 0.5 * item.attrs["n"] ** 3,
    "small_solve": lambda item: 0.5 * item.attrs["n"] ** 2,
}
