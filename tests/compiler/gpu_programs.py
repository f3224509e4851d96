"""Programs for a GPU, run on the processor and compared with eager execution.

`compiled` records a function and makes a `GpuProgram` of it, whose kernels the fake CuPy
(tests/backends) compiles by g++ when the first one runs: all that wait are compiled together, so a
test that makes many programs before it runs them is quick. `compare` runs one in rising and in
falling order of threads, which must agree to the last bit, and compares it with eager execution as
tests/compiler/agreement.py does.
"""

import numpy as np
import pytest

from probtorch.backends.registry import to_host
from probtorch.compiler.record.record import record
from probtorch.compiler.run.gpu import GpuProgram
from probtorch.core.dispatch import wrap
from tests.backends import fake_cupy, host_gpu
from tests.backends.host_gpu import Module
from tests.compiler.agreement import differences, spread

__all__ = ["SEAMS", "Job", "compiled", "put_in_place", "run_both_ways"]

# Where kernels run: on the processor, or on a GPU where there is one.
SEAMS = ["fake", pytest.param("real", marks=pytest.mark.gpu)]


def put_in_place(seam, monkeypatch):
    """Make the fake the process's CuPy, or leave the real one; returns the counter of copies."""
    if seam == "real":
        return None
    if host_gpu.GXX is None:
        pytest.skip("there is no g++ to run kernels with")
    return fake_cupy.install(monkeypatch)


def run_both_ways(program, inputs):
    """Return ``(status, host arrays)``; threads in either order must give the same bits."""
    frame, found = program.bind(), []
    for backwards in (False, True):
        Module.backwards = backwards
        try:
            out = frame.new_outputs()
            status = frame.run([x.copy() for x in inputs], out)
        finally:
            Module.backwards = False
        found.append((status, [to_host(x) for x in out]))
    (status, out), (other, turned) = found
    assert status == other
    for a, b in zip(out, turned, strict=True):
        assert a.tobytes() == b.tobytes(), "the result depends on the order of threads"
    return status, out


def compiled(fn, inputs, *, frozen=False):
    """Record `fn` on arrays and return its `GpuProgram`."""
    recorder, _ = record(fn, [wrap(x.copy()) for x in inputs], frozen=frozen)
    assert not recorder.unsupported, recorder.unsupported
    return GpuProgram(recorder.graph, "cuda:0")


class Job:
    """A function, its program, and the lists of arrays to compare it on."""

    def __init__(self, fn, *calls, frozen=False):
        self.fn, self.calls = fn, calls
        self.program = compiled(fn, calls[0], frozen=frozen)

    def compare(self):
        """Return what is wrong, as a list; the runs that eager execution would refuse aside."""
        wrong = []
        for inputs in self.calls:
            status, got = run_both_ways(self.program, inputs)
            if status:
                continue
            expected = spread(
                lambda inputs=inputs: [
                    np.asarray(t.array) for t in self.fn(*(wrap(x.copy()) for x in inputs))
                ]
            )
            wrong += differences(got, expected)
        return wrong
