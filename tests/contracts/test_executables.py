"""Executables, their frames and the paths made of them: one protocol on every device.

The GPU is the stand-in of tests/backends, whose kernels run on the processor.
"""

import ast
import gc
import warnings
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.backends.registry import device_of, to_host
from probtorch.compiler import paths as paths_module
from probtorch.compiler.batching import BatchedDensity
from probtorch.compiler.compiled_function import CompiledFunction
from probtorch.compiler.data_density import DataDensity
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.paths import Compiled, CompileWarning, Paths
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.record.record import record
from probtorch.compiler.run.executable import CallFrame, Executable, arrays_of
from probtorch.compiler.run.executor import CpuFrame, CpuProgram
from probtorch.compiler.run.gpu import GpuFrame, GpuProgram
from probtorch.compiler.run.prepare import prepare
from probtorch.core.dispatch import wrap
from tests.compiler.gpu_programs import put_in_place

PACKAGE = Path(probtorch.__file__).parent
FRONT_ENDS = {CompiledFunction, NativeDensity, DataDensity, NativeProgram, BatchedDensity}


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request, monkeypatch):
    if request.param != "cpu":
        put_in_place("fake", monkeypatch)
    return request.param


def on(device, array):
    return probtorch.tensor(np.array(array, np.float64)).to(device)


def executable_of(fn, *tensors):
    """Record `fn` and prepare it, updates of outside tensors included, as a compiled function."""
    rec, results = record(fn, [wrap(t.array) for t in tensors], frozen=False)
    assert not rec.unsupported
    rec.shared_updates()
    first = len(rec.graph.outputs)
    rec.graph.outputs += [rec.value_of(t) for t in rec.updates.values()]
    rec.graph.updates = dict(enumerate(rec.updates.values(), first))
    places = [device_of(t.array) for t in results]
    return prepare(rec.graph, [device_of(t.array) for t in tensors], places)


class Step:
    """A step with a guard, results large and small, one of them on the host, and an update."""

    def __init__(self, device, *, strided=False):
        self.w = on(device, [[1.0, 2.0], [3.0, 4.0]])
        if strided:
            self.w = wrap(self.w.array.T)

        def step(x):
            if x.sum() > 0:
                self.w.mul_(2.0).add_(x)
            return self.w * 3.0, (x * x).sum(), (x + 1.0).cpu()

        self.x = on(device, np.ones((2, 2)))
        self.executable = executable_of(step, self.x)

    def expected(self, before, x):
        after = before * 2.0 + x
        return after, [after * 3.0, (x * x).sum(), x + 1.0]

    def check(self, frame, x, *, fits=True):
        """Run on `x` and compare: results, what is written, or nothing where a guard fails."""
        before = to_host(self.w.array).copy()
        outputs = frame.new_outputs()
        status = frame.run([on(self.w.device, x).array], outputs)
        after, results = self.expected(before, x)
        assert (status == 0) == fits
        np.testing.assert_array_equal(to_host(self.w.array), after if fits else before)
        if fits:
            for got, wanted in zip(outputs, results, strict=True):
                np.testing.assert_array_equal(to_host(got), wanted)
        return before, outputs


X, Y = np.full((2, 2), 0.5), np.array([[1.0, -2.0], [3.0, 4.0]])


# ------------------------------------------------------------------------------------ the protocol


def test_there_is_one_executable_and_one_frame_per_device():
    assert {*Executable.__subclasses__()} == {CpuProgram, GpuProgram}
    assert {*CallFrame.__subclasses__()} == {CpuFrame, GpuFrame}
    own = {name for name in vars(Executable) if not name.startswith("_")}
    assert own >= {"bind", "explain", "kind", "keep", "refs", "tensors"}


def test_a_run_fills_outputs_where_they_are_to_lie_and_writes_updates(device):
    step = Step(device)
    frame = step.executable.bind()
    assert step.executable.device == device
    _, outputs = step.check(frame, X)
    step.check(frame, Y)
    assert [device_of(x) for x in outputs] == [step.w.device, step.w.device, "cpu"]


def test_where_a_guard_fails_nothing_outside_has_changed(device):
    step = Step(device)
    frame = step.executable.bind()
    step.check(frame, -X, fits=False)
    step.check(frame, X)
    step.check(frame, -Y, fits=False)


@pytest.mark.parametrize("strided", [False, True])
def test_what_was_there_before_the_last_run_that_fitted_can_be_had(device, strided):
    step = Step(device, strided=strided)
    frame = step.executable.bind(saving=True)
    for x in (X, Y, X):
        step.w.array[...] += 1.0
        frame.refresh()
        before, _ = step.check(frame, x)
        np.testing.assert_array_equal(to_host(frame.previous()[0]), before)
    step.check(frame, -X, fits=False)
    np.testing.assert_array_equal(to_host(frame.previous()[0]), before)


def test_a_frame_for_other_arrays_leaves_alone_what_was_there_before(device):
    step = Step(device)
    frame = step.executable.bind(saving=True)
    before, _ = step.check(frame, X)
    kinds = [*map(step.executable.kind, arrays_of(step.executable.tensors))]
    step.w.array = on(device, -Y).array
    arrays = arrays_of(step.executable.tensors)
    assert [*map(step.executable.kind, arrays)] == kinds
    other = step.executable.bind(arrays, saving=True, old=frame)
    np.testing.assert_array_equal(to_host(frame.previous()[0]), before)
    before, _ = step.check(other, X)
    np.testing.assert_array_equal(to_host(other.previous()[0]), before)


def test_frames_have_nothing_to_do_with_each_other(device):
    executable = executable_of(lambda x: ((x * 2.0).tanh(), x.exp().sum()), on(device, X))
    frames = [executable.bind() for _ in range(2)]
    inputs = [[on(device, x).array] for x in (X, Y)]
    outputs = [frame.new_outputs() for frame in frames]
    for _ in range(2):
        for frame, given, out in zip(frames, inputs, outputs, strict=True):
            assert frame.run(given, out) == 0
    for x, out in zip((X, Y), outputs, strict=True):
        np.testing.assert_allclose(to_host(out[0]), np.tanh(2.0 * x), rtol=1e-14)
        np.testing.assert_allclose(to_host(out[1]), np.exp(x).sum(), rtol=1e-14)


def test_a_call_on_fixed_arrays_needs_nothing_but_itself(device):
    executable = executable_of(lambda x: ((x * 2.0).tanh(),), on(device, X))
    inputs = [on(device, X).array]
    frame = executable.bind()
    outputs = frame.new_outputs()
    again = frame.fixed(inputs, outputs)
    del frame, executable
    gc.collect()
    garbage = [np.full(2**10, 7.0) for _ in range(100)]
    for x in (X, Y):
        inputs[0][...] = on(device, x).array
        assert again() == 0
        np.testing.assert_allclose(to_host(outputs[0]), np.tanh(2.0 * x), rtol=1e-14)
    del garbage


def test_arrays_that_share_memory_with_what_is_written_are_seen(device):
    step = Step(device)
    frame = step.executable.bind()
    other = on(device, X).array
    assert frame.touched_by([other, step.w.array])
    assert frame.touched_by([step.w.array[1:]])
    assert not frame.touched_by([other])


def test_an_executable_explains_itself(device):
    step = Step(device)
    text = step.executable.explain()
    assert "path 0" in text and "guard 0" in text and "loop nests:" in text
    assert ("kernels on cuda:0" in text) == (device != "cpu")
    assert "not profiled" in step.executable.explain(profile=True)  # it was not run yet
    assert ("__global__" in step.executable.ir) == (device != "cpu")


def names_in(text, wanted):
    """The names that a module imports or uses; those in its docstrings do not count."""
    for node in ast.walk(ast.parse(text)) if any(name in text for name in wanted) else ():
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Name):
            yield node.id


def test_only_one_file_knows_which_executables_there_are():
    own = {"CpuProgram": "executor.py", "GpuProgram": "gpu.py"}
    own |= {"CpuFrame": "executor.py", "GpuFrame": "gpu.py"}
    found = {
        (path.name, name)
        for path in PACKAGE.rglob("*.py")
        for name in names_in(path.read_text(), own)
        if name in own and path.name != own[name]
    }
    assert found == {("prepare.py", "CpuProgram"), ("prepare.py", "GpuProgram")}


# ------------------------------------------------------------------------------------------- paths


def density_on(device, fn):
    """A density whose data are on the device."""
    one = on(device, 1.0)
    return NativeDensity(lambda q: fn(q) * one, 2)


FUNCTIONS = {
    "function": lambda fn, device: probtorch.compile(fn),
    "density": lambda fn, device: density_on(device, fn),
}


def call(front, device, numbers):
    if isinstance(front, NativeDensity):
        return front.value_and_grad(np.array(numbers))[0]
    return float(to_host(front(on(device, numbers)).array))


def ways(x):
    """A path for each whole number that x may begin with."""
    return x[1] * int(x[0])


def test_every_front_end_stands_on_paths():
    assert {*Compiled.__subclasses__()} == FRONT_ENDS
    for front in FRONT_ENDS:
        assert front.explain is Compiled.explain and front.reason is Compiled.reason
    x = on("cpu", X)
    density = NativeDensity(lambda q: -(q * q).sum(), 2)
    density.value_and_grad_many(np.ones((20, 2)))
    function, program = probtorch.compile(lambda x: x + 1.0), NativeProgram(lambda x: x + 1.0, x)
    function(x)
    density.value_and_grad(np.ones(2))
    for front in (density, density._many, function, program):
        assert type(front.paths) is Paths and len(front.paths) == 1 and front.reason is None
        (executable,) = front.executables()
        assert isinstance(executable, Executable)
        assert "1 compiled path" in front.explain()


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_beyond_the_limit_there_is_a_reason_and_known_paths_stay(kind, device, monkeypatch):
    monkeypatch.setattr(paths_module, "MAX_PATHS", 2)
    front = FUNCTIONS[kind](ways, device)
    for n in (1, 2):
        assert call(front, device, [n, 3.0]) == 3.0 * n
    assert len(front.paths) == 2 and front.reason is None
    with pytest.warns(CompileWarning, match="more than 2 different paths through it were met"):
        assert call(front, device, [3, 3.0]) == 9.0
    assert front.reason is not None and front.reason[0] in front.explain()
    assert "test_executables.py" in front.reason[1], "the user's line"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (4, 1, 3, 2):
            assert call(front, device, [n, 5.0]) == 5.0 * n
    assert len(front.paths) == 2


def test_the_path_that_fitted_last_is_tried_first(device):
    front = probtorch.compile(ways, verify=False)
    for n in (1, 2, 3):
        call(front, device, [n, 3.0])
    made = list(front.paths)
    for n in (1, 3, 3, 2):
        tried = []
        for path in made:
            path.run = lambda arrays, path=path, tried=tried: (
                tried.append(path),
                type(path).run(path, arrays),
            )[1]
        call(front, device, [n, 3.0])
        first = tried[-1]
        tried.clear()
        call(front, device, [n, 3.0])
        assert tried == [first] and front.paths[0] is first


def test_paths_of_a_version_are_its_own():
    paths = Paths("f", limit=2, quiet=True)
    for version, path, guards in ((1, "a", "x"), (1, "b", "y"), (2, "c", "x")):
        paths.add(path, version, guards)
    assert list(paths) == ["a", "b", "c"] and paths[2] == "c" and len(paths) == 3
    assert paths.are_full(1) and not paths.are_full(2)
    assert paths.know("y", 1) and not paths.know("y", 2)
    tried = paths.of(1)
    paths.promote("b", 1)
    assert list(paths.of(1)) == ["b", "a"] and list(tried) == ["a", "b"]
    paths.forget(1)
    assert paths.versions == [2] and not paths.know("x", 1)
    paths.give_up("first", "file:1")
    paths.give_up("second")
    assert paths.reason == ("first", "file:1") and list(paths) == ["c"]
    paths.give_up_wrong("a sum")
    assert not paths and "a sum" in paths.reason[0]
