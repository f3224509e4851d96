"""`NativeProgram`: a pure function of a tree of tensors as one native call.

For programs whose shapes do not depend on values, above all samplers. The function is recorded
once, abstractly (its loops run once, for their shapes); a call then copies nothing but results and
holds no interpreter lock. With an example on a GPU, or a device given, it is kernels there (`gpu`).
"""

import functools
import time

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.compiler.native.interrupts import raise_pending
from probtorch.compiler.paths import SWITCHED_OFF, Compiled, Paths
from probtorch.compiler.record.record import record
from probtorch.compiler.run.prepare import prepare
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import CompileError, ShapeError

__all__ = ["NativeProgram", "Resident"]


class NativeProgram(Compiled):
    """Compile ``fn(tree)`` for the structure, shapes and dtypes of `example`.

    Parameters
    ----------
    fn : callable
        Pure: everything it needs is in its argument (other tensors are constants).
    example : tree of tensors and numbers
        Used for structure, shapes and dtypes; `fn` is run on it once.
    name : str
        Used in messages.
    device : str, optional
        A GPU on which it shall run, recorded on the host: an example there, and all tensors that
        `fn` finds outside, which go along as constants. Results stay on the device.

    Raises
    ------
    CompileError
        If the function cannot be compiled; a sampler with a Python branch on a tensor, for
        instance.

    Notes
    -----
    Calls from several threads run at the same time if each has its own `bind()`. With
    ``PROBTORCH_JIT=0`` the function runs eagerly.
    """

    def __init__(self, fn, example, *, name="the program", device=None):
        start = time.perf_counter()
        self.fn, self.name, self.paths = fn, name, Paths(name)
        self.device = device
        items, self.structure = flatten(example)
        items = [as_tensor(x) for x in items]
        self.signature = [(x.array.shape, x.array.dtype) for x in items]
        self.program = None
        if not settings.jit:
            self.paths.reason = SWITCHED_OFF
        else:
            out_structure = []

            def flat(*leaves):
                found, structure = flatten(fn(unflatten(self.structure, leaves)))
                out_structure.append(structure)
                return tuple(found)

            # Only shapes count here: NumPy need not warn of what the example's values lead to.
            with no_grad(), np.errstate(all="ignore"):
                leaves = [wrap(x.array.copy(order="K")) for x in items]
                rec, _ = record(flat, leaves, abstract=True)
            if rec.unsupported:
                reason, location = rec.unsupported[0]
                raise CompileError(
                    name, expected="a program of tensor ops", got=reason, fix=f"see {location}"
                )
            devices = (device, *(device_of(x.array) for x in items), rec.device())
            self.program = prepare(rec.graph, devices)
            self.paths.add(self.program)
            self.out_structure = out_structure[0]
        self.seconds = time.perf_counter() - start

    def bind(self):
        """Return a callable with memory of its own, for one thread."""
        if self.program is None:
            return self.eager
        return functools.partial(self._run, self.program.bind())

    def resident(self, tree):
        """Return a `Resident`: for one thread, with arguments and results in fixed memory."""
        return Resident(self, tree)

    def __call__(self, tree):
        """Run on a tree like the example; returns the tree of results."""
        bound = getattr(self, "_own", None)
        if bound is None:
            bound = self._own = self.bind()
        return bound(tree)

    def into(self, tree, outputs):
        """Run on a tree like the example, with the leaves of the result in given arrays, which are
        contiguous and on the host. For one thread at a time, as a call without `bind`.
        """
        frame = getattr(self, "_own_frame", None)
        if frame is None:
            assert self.program is not None, "a program that is compiled"
            frame = self._own_frame = self.program.bind()
        made = outputs if frame.entry is not None else frame.new_outputs()
        self.check(frame.run(self._leaves(tree), made))
        if made is not outputs:
            for place, x in zip(outputs, made, strict=True):
                place[...] = to_host(x)

    def _leaves(self, tree):
        items = [as_tensor(x).array for x in flatten(tree)[0]]
        for i, (array, (shape, dtype)) in enumerate(zip(items, self.signature, strict=True)):
            if array.shape != shape or array.dtype != dtype:
                raise ShapeError(
                    self.name,
                    expected=f"leaf {i} of shape {shape} and dtype {dtype}, as compiled",
                    got=f"shape {array.shape} and dtype {array.dtype}",
                    fix="compile a program for the new shapes",
                )
        return items

    def _run(self, frame, tree):
        items, outputs = self._leaves(tree), frame.new_outputs()
        self.check(frame.run(items, outputs))
        return unflatten(self.out_structure, [wrap(x) for x in outputs])

    def check(self, status):
        """Raise where native code gave up."""
        if status:
            raise_pending()
            raise CompileError(
                self.name,
                expected="indices within bounds, divisors other than 0, positive definite matrices",
                got=f"status {status} from native code",
                fix="run .eager(tree) to see where",
            )

    def eager(self, tree):
        """Run without compiled code; as there, what `fn` changes in place are copies."""
        items, structure = flatten(tree)
        copies = [wrap(as_tensor(x).array.copy(order="K")) for x in items]
        with no_grad():
            return self.fn(unflatten(structure, copies))


class Resident:
    """A program with its arguments and results in fixed memory; a call costs a few microseconds.

    Parameters
    ----------
    owner : NativeProgram
    tree : tree of tensors and numbers
        First arguments; copied.

    Attributes
    ----------
    inputs, outputs : list of ndarray
        The leaves of argument and result. Write into the former between calls; the latter are
        overwritten by each.
    """

    def __init__(self, owner, tree):
        self.owner = owner
        self.inputs = [as_tensor(x).array.copy(order="C") for x in flatten(tree)[0]]
        self.outputs, self._run = [], None
        if owner.program is not None:
            if owner.device is not None:
                self.inputs = [to_device(x, owner.device) for x in self.inputs]
            frame = owner.program.bind()
            self.outputs = frame.new_outputs()
            self._run = frame.fixed(self.inputs, self.outputs)

    def run(self):
        """Run on `inputs` into `outputs`; with ``PROBTORCH_JIT=0`` eagerly, into new arrays."""
        if self._run is not None:
            self.owner.check(self._run())
            return
        tree = unflatten(self.owner.structure, [wrap(x.copy()) for x in self.inputs])
        self.outputs = [as_tensor(x).array for x in flatten(self.owner.eager(tree))[0]]
