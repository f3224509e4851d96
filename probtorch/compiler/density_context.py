"""`DensityContext`: one thread's paths through a density, and memory to evaluate it in.

What native code calls is a C function of the runtime, and what it passes is the context's table of
paths, see `render/runtime/replays.py`. Where none fits it calls back, and Python evaluates.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.machine import engine
from probtorch.compiler.native.interrupts import raise_pending
from probtorch.compiler.nests.loops import address
from probtorch.compiler.record.record import OUTSIDE
from probtorch.compiler.render.runtime.replays import CALLBACK, COUNT, FIRST_PATH, LAST, VALUES
from probtorch.compiler.verify import ComparisonCosts, next_due

if TYPE_CHECKING:
    from probtorch.compiler.density import NativeDensity

__all__ = ["DensityContext"]

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_DOUBLES = ctypes.POINTER(ctypes.c_double)


class DensityContext:
    """One thread's paths and memory. `function` and `address` are what native code calls and
    passes; `of_values` is the context for values alone, None of one that is.
    """

    def __init__(self, density: NativeDensity):
        self.density = density
        alone = density._whole is not None
        self.of_values = None if alone else DensityContext(density._values())
        self.error: BaseException | None = None
        self.bound = self._calls = 0
        self._due, self._costs = 2, ComparisonCosts()
        self._frames = []
        self._called = []  # frames without a C function
        self._value = np.zeros(1)
        self.table = np.zeros(FIRST_PATH + 2 * density.paths.limit, np.uintp)
        self._callback = _CALLBACK(self._call_back)
        self.table[CALLBACK] = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.function = engine.runtime_address("pt_density")
        self.address = address(self.table)
        self.table[VALUES] = (self.of_values or self).address
        self._entry = _CALLBACK(self.function)
        self._q = np.zeros(density.dim)
        self._grad = None if alone else np.zeros(density.dim)
        place = None if alone else address(self._grad)
        self._arguments = address(self._q), place, self.address
        self.bind()

    def bind(self):
        """Take over paths that were compiled since the last time."""
        for program in self.density.paths[self.bound :]:
            frame = program.bind()
            self._frames.append(frame)
            if frame.entry is None:
                self._called.append(frame)
            else:
                frame.attach((), [self._value])
                count = int(self.table[COUNT])
                at = FIRST_PATH + 2 * count
                self.table[at : at + 2] = frame.entry
                self.table[COUNT], self.table[LAST] = count + 1, count
        self.bound = len(self._frames)

    def called(self, q):
        """Return ``(log density, gradient)`` by a path without a C function; None if none fits."""
        for frame in self._called:
            value, *g = outputs = frame.new_outputs()
            if frame.run([np.array(q)], outputs) == 0:
                return float(value), g[0] if g else None
        return None

    def forget(self):
        """Use none of the paths any more."""
        self.table[COUNT] = self.bound = 0
        self._frames.clear()
        self._called.clear()
        if self.of_values is not None:
            self.of_values.forget()

    def _call_back(self, q, g, _):
        # Called from native code, so no exception may leave: it is kept for the caller to raise.
        if self.error is not None and not isinstance(self.error, Exception):
            return math.nan  # Ctrl-C: what is still asked for will be thrown away
        try:
            raise_pending()
            dim = self.density.dim
            point = np.ctypeslib.as_array(ctypes.cast(q, _DOUBLES), (dim,))
            # Without a place for a gradient, this is the context for values alone.
            into = g and np.ctypeslib.as_array(ctypes.cast(g, _DOUBLES), (dim,))
            out = self.density.evaluate(point, self)
            if out is None:
                return self._entry(q, g, self.address)
            value, gradient = out
            if into is not None:
                into[:] = gradient
            return value
        except OUTSIDE:
            # The point is outside of where the model can be evaluated: the proposal is rejected.
            if into is not None:
                into[:] = 0.0
            return -math.inf
        except BaseException as e:
            self.error = self.error or e
            return math.nan

    def value_and_grad(self, q):
        """Return ``(log density, gradient)`` at an array."""
        self._calls = calls = self._calls + 1
        if calls == self._due:  # the first call is the one that is recorded
            self._due = 1 + next_due(calls - 1)
            self._verify_if_affordable(q)
        # As `native`, a call of Python's less: this takes a microsecond.
        self._q[...] = q
        value = self._entry(*self._arguments)
        if self.error is not None:
            self.raise_error()
        return value, None if self._grad is None else self._grad.copy()

    def _verify_if_affordable(self, q):
        """Compare with Python, if that takes no longer than it may: see `verify.FREE`."""
        density, costs = self.density, self._costs
        if not self.table[COUNT]:
            return  # all is Python's
        began = time.perf_counter()
        self.native(q)
        costs.native = self._calls * (time.perf_counter() - began)
        costs.eager = costs.eager or density.costs.eager  # of the recording, for a first guess
        if costs.allow_another(self._calls - 1):
            began = time.perf_counter()
            density.verify(q, self)
            costs.eager = time.perf_counter() - began
            costs.compared += costs.eager

    def native(self, q):
        """Return ``(log density, gradient)`` at an array, unverified."""
        self._q[...] = q
        value = self._entry(*self._arguments)
        if self.error is not None:
            self.raise_error()
        return value, None if self._grad is None else self._grad.copy()

    def raise_error(self):
        """Raise the first exception that an evaluation inside native code met, if any."""
        if self.of_values is not None:
            self.of_values.raise_error()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
