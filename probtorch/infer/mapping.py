"""`DrawMap`: a Tensor function of one draw, applied to all draws in native code.

What inference does once per draw after the fact (leave the unconstrained space, evaluate log
likelihoods) is a small function, and in Python its cost is the interpreter's, draw after draw. Here
the function becomes the body of a `while_loop` over a block of draws, so a thousand draws are a
handful of native calls. Nothing is asked of the function: it need not be written for batches. One
that cannot be compiled, because Python branches on its values, runs draw by draw.

Used by `potential.py` and `predictive.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.compiler.program import NativeProgram
from probtorch.config import settings
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import CompileError
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put

__all__ = ["DrawMap"]

# Draws per native call, and the memory one call may take for inputs and results: a quarter of those
# that are first asked for, since a call costs 20 to 100 us in Python, but no fewer and no more than
# these. 32 MiB keep large deterministic sites from filling the memory.
BLOCK, LARGE_BLOCK = 256, 2048
BLOCK_BYTES = 2**25
# Fewer draws than this are not worth the tens of milliseconds that compiling takes.
FEW = 16


class DrawMap:
    """Apply ``fn(inputs) -> outputs`` to every draw.

    Parameters
    ----------
    fn : callable
        Pure function from a dict of tensors, one draw, to a dict of tensors. Names, shapes and
        dtypes of the result are the same for every draw.

    Notes
    -----
    The compiled program is kept, and used again for inputs of the same shapes. Results carry no
    gradient.
    """

    def __init__(
        self, fn: Callable[[dict[str, TensorBase]], dict[str, TensorBase]], few: int = FEW
    ) -> None:
        self.fn, self.few = fn, few
        self._signature: object = None
        self._program: NativeProgram | None = None
        self._block = 0
        self._outputs: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._eager_only = False

    def __getstate__(self) -> dict[str, object]:
        return {
            "fn": self.fn,
            "few": self.few,
        }  # compiled programs are addresses: they mean nothing elsewhere

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # nothing compiled was kept

    def __call__(self, inputs: dict[str, np.ndarray], lead: int = 1) -> dict[str, np.ndarray]:
        """Return the function's results for all draws.

        Parameters
        ----------
        inputs : dict of ndarray, each (*lead dims, ...)
        lead : int
            Number of leading dims that count draws, for example 2 for chain and draw.

        Returns
        -------
        dict of ndarray, each (*lead dims, ...)
            Empty if there are no draws.
        """
        sizes = next(iter(inputs.values())).shape[:lead]
        count = math.prod(sizes)
        if not count:
            return {}
        flat = {
            k: np.ascontiguousarray(x.reshape(count, *x.shape[lead:])) for k, x in inputs.items()
        }
        before = set_grad_enabled(False)
        try:
            out = self._natively(flat, count) if self._worth_compiling(flat, count) else None
            if out is None:
                out = self._one_by_one(flat, count)
        finally:
            set_grad_enabled(before)
        return {k: x.reshape((*sizes, *x.shape[1:])) for k, x in out.items()}

    def _worth_compiling(self, flat: dict[str, np.ndarray], count: int) -> bool:
        if self._eager_only or not settings.jit:
            return False
        return self._program is not None or count >= self.few

    def _one_by_one(self, flat: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
        out = {}
        for i in range(count):
            found = self.fn({k: wrap(x[i, ...]) for k, x in flat.items()})
            for name, value in found.items():
                array = as_tensor(value).array
                if name not in out:
                    out[name] = np.empty((count, *array.shape), array.dtype)
                out[name][i] = array
        return out

    # --------------------------------------------------------------------------------------- native

    def _natively(self, flat: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray] | None:
        """Results by the compiled loop, or None if it cannot be compiled, or gave up."""
        signature = tuple((k, x.shape[1:], x.dtype) for k, x in flat.items())
        if signature != self._signature:
            self._program = None
        program = self._program
        if program is None:
            try:
                program = self._program = self._compile(flat, count)
            except CompileError:
                self._eager_only = True
                return None
            self._signature = signature
        block = self._block
        out = {k: np.empty((count, *s), dtype) for k, (s, dtype) in self._outputs.items()}
        for start in range(0, count, block):
            part = {k: _padded(x[start : start + block], block) for k, x in flat.items()}
            n = min(block, count - start)
            places = [x[start : start + n] for x in out.values()]
            # The program writes whole blocks.
            whole = (
                places if n == block else [np.empty((block, *x.shape[1:]), x.dtype) for x in places]
            )
            try:
                program.into((part, np.array(n)), whole)
            except CompileError:
                # A draw at which eager execution raises: it says of which, and why.
                return None
            if n < block:
                for place, x in zip(places, whole):
                    place[...] = x[:n]
        return out

    def _compile(self, flat: dict[str, np.ndarray], count: int) -> NativeProgram:
        first = {k: wrap(x[0, ...]) for k, x in flat.items()}
        found = {k: as_tensor(x).array for k, x in self.fn(first).items()}
        size = sum(x.nbytes for x in found.values()) + sum(x.array.nbytes for x in first.values())
        most = max(BLOCK, min(LARGE_BLOCK, -(-count // 4)))
        block = max(1, min(most, BLOCK_BYTES // max(size, 1)))
        zeros = {k: np.zeros((block, *x.shape), x.dtype) for k, x in found.items()}

        def run(tree: Tree) -> Tree:
            draws, count = tree

            def body(
                state: tuple[TensorBase, dict[str, TensorBase]],
            ) -> tuple[TensorBase, dict[str, TensorBase]]:
                i, out = state
                values = self.fn({k: x[i] for k, x in draws.items()})
                return i + 1, {k: index_put(out[k], (i,), as_tensor(values[k])) for k in out}

            start = (wrap(np.array(0)), {k: wrap(x) for k, x in zeros.items()})
            return while_loop(lambda state: state[0] < count, body, start)[1]

        example = {k: _padded(x[:block], block) for k, x in flat.items()}
        self._block = block
        self._outputs = {k: (x.shape, x.dtype) for k, x in found.items()}
        return NativeProgram(run, (example, np.array(block)), name="the map over draws")


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """`rows` with zero rows added up to `size`; the loop never reads them."""
    if len(rows) == size:
        return rows
    out = np.zeros((size, *rows.shape[1:]), rows.dtype)
    out[: len(rows)] = rows
    return out
