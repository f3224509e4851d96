"""`profile`: how long a program takes, and each of its loop nests and calls.

The program is rendered and compiled once more with clocks (`render/timed.py`) and run on memory of
its own, over and over, as is the program itself. Given are means of the faster half of readings:
the machine has other things to do, and a clock may tick every ten nanoseconds only. Nothing outside
changes: results go to arrays that are thrown away, updates are not written back, random draws use
the numbers of the last run again.
"""

import ctypes
import math
import time
import weakref
from dataclasses import dataclass

import numpy as np

from probtorch.compiler.machine import engine
from probtorch.compiler.machine.repeat import run_many
from probtorch.compiler.native import host
from probtorch.compiler.nests.loops import Call, address
from probtorch.compiler.render.timed import render_timed, timed

__all__ = ["Kept", "Profile", "profile"]

# A program is timed until one of these is reached, first without and then with clocks.
_SECONDS, _READINGS = 0.2, 400
# Seconds of one reading without clocks: many runs, if they are short.
_READING = 1e-4
# Bytes of arguments that are kept for a later profile; of larger ones only others keep hold.
_MAX_KEPT = 2**20


@dataclass(frozen=True)
class Profile:
    """Means of the faster half of readings, or the reason why there are none.

    Attributes
    ----------
    seconds : float
        One run of the program as it is used.
    steps : tuple of (float, int)
        For each statement of `timed`: seconds in one run of the program, and how often it ran.
    readings : int
        How many runs with clocks there were.
    refused : str
        Why nothing was measured; empty if it was.
    """

    seconds: float = 0.0
    steps: tuple[tuple[float, int], ...] = ()
    readings: int = 0
    refused: str = ""


class Kept:
    """The arguments that a program last met: small ones, and large ones while others keep them.

    Parameters
    ----------
    graph : Graph
        Of the program.
    """

    def __init__(self, graph):
        sizes = (math.prod(v.shape) * v.dtype.itemsize for v in graph.inputs)
        self._small = sum(sizes) <= _MAX_KEPT
        self._arrays = None

    def keep(self, arrays):
        """Remember `arrays` instead of what was kept before."""
        self._arrays = tuple(arrays) if self._small else tuple(map(weakref.ref, arrays))

    def arrays(self):
        """Return the arrays, or None where they are gone or never were."""
        if self._arrays is None or self._small:
            return self._arrays
        found = tuple(array() for array in self._arrays)
        return None if any(x is None for x in found) else found


def profile(program):
    """Time an executable on the inputs that it last met, if they are still there.

    Parameters
    ----------
    program : Executable

    Returns
    -------
    Profile
    """
    inputs = program.kept.arrays()
    reason = _refusal(program, inputs)
    if reason:
        return Profile(refused=reason)
    statements = list(timed(program.lowering.block))
    clocks = np.zeros((1 + len(statements), 2), np.int64)
    native = engine.compile_module(render_timed(program.lowering, program.plan))
    frame = program.bind()
    frame.table[program.plan.table] = address(clocks)
    outputs = frame.new_outputs()
    frame.attach(inputs, outputs)
    # Copies: some are updated in place.
    refs = [t.array.copy(order="C") for t in program.refs]
    frame.point(program.plan.start["ref"], refs)
    table = address(frame.table)
    seconds = _plain(program.address, table)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(native.address("run"))
    readings = _clocked(run, table, clocks)
    if not seconds or not readings:
        return Profile(refused="a guard or check failed on the arguments that were kept")
    nanoseconds, counts = _typical(readings).T
    spent = np.maximum(nanoseconds[1:] - counts[1:] * nanoseconds[0], 0.0)
    steps = tuple((1e-9 * s, n) for s, n in zip(spent.tolist(), map(int, counts[1:]), strict=True))
    return Profile(float(_typical(seconds)), steps, len(readings))


def _typical(readings):
    """Return the mean of the lower half, elementwise."""
    return np.sort(readings, axis=0)[: (len(readings) + 1) // 2].mean(axis=0)


def _refusal(program, inputs):
    """Why a program cannot be timed, or ""."""
    if program.untimed:
        return program.untimed
    if not hasattr(time, "CLOCK_MONOTONIC") or host.process_symbol("clock_gettime") is None:
        return "this system has no clock_gettime"
    calls = (s for s in timed(program.lowering.block) if isinstance(s, Call))
    if any(s.name == "density" for s in calls):
        return "it calls a density by its address; profile that one"
    if not program.is_unchanged():
        return "arrays that are constants of it have been overwritten since it was compiled"
    if inputs is None:
        return "the arguments of the last call are gone; keep them and call again"
    return ""


def _plain(run, table):
    """Return seconds per run of the program as it is, one for each reading; [] if a run fails."""

    def read(runs):
        start = time.perf_counter()
        done = run_many(run, table, runs)
        return (time.perf_counter() - start) / runs if done == runs else None

    end = time.perf_counter() + _SECONDS
    first = read(1)  # warms the caches
    if first is None:
        return []
    if time.perf_counter() > end:
        return [first]
    runs = max(1, min(1000, int(_READING / read(10))))
    seconds = []
    while len(seconds) < _READINGS and (not seconds or time.perf_counter() < end):
        seconds.append(read(runs))
    return seconds


def _clocked(run, table, clocks):
    """Return what the clocks said, run by run; [] if a run fails."""
    readings = []
    end = time.perf_counter() + _SECONDS
    while len(readings) <= _READINGS and (not readings or time.perf_counter() < end):
        clocks[:] = 0
        if run(table):
            return []
        readings.append(clocks.copy())
    return readings[1:] or readings  # the first one warms the caches
