"""`profiler.profile`: what ran, from which line, and how long; tables, traces, schedules."""

import cProfile
import gzip
import inspect
import json
import sys
import time
import types

import numpy as np
import pytest

import probtorch
from probtorch import nn, optim, profiler
from probtorch.backends import cupy_
from probtorch.errors import ArgumentError, DeviceError
from probtorch.profiler import ProfilerAction, profile, record_function, schedule


def next_line():
    """The line behind that of the caller, as tables name it."""
    frame = inspect.currentframe().f_back
    return f"test_profiler.py:{frame.f_lineno + 1}"


def names(prof):
    return {e.key: e.count for e in prof.key_averages()}


def test_operations_are_counted_with_their_memory_and_shapes():
    x, y = probtorch.ones(10, 20), probtorch.ones(20, 30)
    with profile(record_shapes=True, profile_memory=True) as prof:
        for _ in range(3):
            (x @ y).exp()
        x.sum()
        _ = x.T
    assert names(prof) == {"matmul": 3, "exp": 3, "sum": 1, "permute": 1}
    found = {e.key: e for e in prof.key_averages(group_by_input_shape=True)}
    assert found["matmul"].input_shapes == ((10, 20), (20, 30))
    assert found["exp"].self_cpu_memory_usage == 3 * 10 * 30 * 4
    assert found["permute"].self_cpu_memory_usage == 0  # a view
    x.exp()
    assert names(prof)["exp"] == 3  # over


def test_events_nest_and_their_own_times_add_up_to_no_more_than_the_whole():
    x = probtorch.ones(50, 50, requires_grad=True)
    begin = time.perf_counter_ns()
    with profile() as prof:
        with record_function("outer"):
            with record_function("inner"):
                loss = (x @ x).softmax(-1).sum()
            loss.backward()
    wall = (time.perf_counter_ns() - begin) / 1e3
    for e in prof.events():
        assert e.start <= e.end and 0 <= e.inner <= e.duration
    found = {e.key: e for e in prof.key_averages()}
    assert found["outer"].cpu_time_total >= found["inner"].cpu_time_total
    assert found["inner"].cpu_time_total >= found["softmax"].cpu_time_total
    assert found["matmul"].count == 3  # of which two in the backward pass
    assert prof.key_averages().total_average().self_cpu_time_total <= wall


def test_time_between_operations_is_nobodys():
    x = probtorch.ones(3)
    begin = time.perf_counter_ns()
    with profile() as prof:
        x.exp()
        time.sleep(0.05)
        x.exp()
    wall = (time.perf_counter_ns() - begin) / 1e3
    assert prof.line_averages().total_average().self_cpu_time_total < wall - 45_000


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.line = None

    def forward(self, x):
        self.line = next_line()
        x = self.inner(x)
        return x


def test_lines_of_a_module_are_told_from_the_line_that_calls_it():
    net, x = Net(), probtorch.ones(4, 3)
    with profile() as prof:
        outer = next_line()
        y = net(x)
        again = next_line()
        _ = y.exp(), y.exp()
    found = {e.key.rpartition("/")[2]: e for e in prof.line_averages()}
    assert found[net.line].cpu_time_total <= found[outer].cpu_time_total
    assert found[outer].self_cpu_time_total < found[outer].cpu_time_total
    assert found[again].count == 2
    by_op = {(e.key, e.stack[0].rpartition("/")[2]) for e in prof.key_averages(group_by_stack_n=1)}
    assert ("affine", net.line) in by_op and ("exp", again) in by_op


def test_an_optimizer_is_seen():
    net = nn.Linear(3, 1)
    adam = optim.Adam(net.parameters())
    net(probtorch.ones(2, 3)).sum().backward()
    with profile() as prof:
        stepped = next_line()
        adam.step()
    assert any(e.key.endswith(stepped) for e in prof.line_averages())


def test_compiled_functions_run_compiled():
    @probtorch.compile
    def density(x):
        return x.exp().sum()

    x = probtorch.ones(3)
    with probtorch.configure(verify=False):
        density(x), density(x)
        with profile() as prof:
            found = density(x)
    assert found.item() == pytest.approx(3 * np.e)
    assert names(prof) == {"compile(density)": 1}


@pytest.mark.filterwarnings("ignore:fn runs eagerly")
def test_what_a_recording_must_hear_is_heard_while_it_is_profiled():
    @probtorch.compile
    def fn(x):
        return x * time.perf_counter()

    x = probtorch.ones(1, dtype=probtorch.float64)
    with probtorch.configure(verify=False), profile():
        found = [fn(x).item() for _ in range(3)]
    assert found[0] < found[1] < found[2]


def test_a_table_shows_what_it_is_asked_for():
    x = probtorch.ones(3)
    with profile(profile_memory=True) as prof:
        x.exp(), x.exp(), x.sin()
    table = prof.key_averages().table(sort_by="count", row_limit=1, header="Mine")
    lines = table.splitlines()
    assert lines[0] == "Mine" and "Self CPU Mem" in lines[2]
    assert lines[4].split()[0] == "exp" and lines[4].split()[-3] == "2" and "24 b" in lines[4]
    assert "sin" not in table and "Self CPU time total" in lines[-1]
    assert "sin" in str(prof.key_averages())
    with pytest.raises(ArgumentError, match="self_cpu_time_total"):
        prof.key_averages().table(sort_by="cuda_time")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_one_that_chrome_reads(tmp_path, name):
    x = probtorch.ones(3)
    with profile(record_shapes=True) as prof, record_function("range", "x"):
        x.exp()
    prof.export_chrome_trace(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    trace = json.loads(gzip.decompress(data) if name.endswith("gz") else data)
    rows = {row["name"]: row for row in trace["traceEvents"] if row["ph"] == "X"}
    exp, outer = rows["exp"], rows["range(x)"]
    assert exp["cat"] == "cpu_op" and outer["cat"] == "user_annotation"
    assert outer["ts"] <= exp["ts"] and exp["ts"] + exp["dur"] <= outer["ts"] + outer["dur"]
    assert exp["args"]["shapes"] == [[3]] and "test_profiler.py" in exp["args"]["line"]


def test_a_schedule_watches_the_steps_it_names():
    seen = []
    x = probtorch.ones(3)
    plan = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    actions = [plan(step) for step in range(10)]
    none, warm, record, save = ProfilerAction
    assert actions == [none, none, warm, record, save, none, warm, record, save, none]
    with profile(schedule=plan, on_trace_ready=lambda p: seen.append(names(p))) as prof:
        for step in range(10):
            (x + step).exp() if step < 5 else x.sin()
            prof.step()
    assert seen == [{"add": 2, "exp": 2}, {"sin": 2}]
    assert sys.getprofile() is None
    with pytest.raises(ArgumentError, match="at least one active step"):
        schedule(wait=0, warmup=0, active=0)


def test_a_decorated_function_is_a_range():
    @record_function("part")
    def part(x):
        return x.exp()

    assert part(probtorch.ones(1)).shape == (1,)
    with profile() as prof:
        part(probtorch.ones(1)), part(probtorch.ones(1))
    assert names(prof) == {"part": 2, "exp": 2}


def test_it_ends_with_its_block_also_by_an_error():
    def fails():
        probtorch.linalg.cholesky(-probtorch.eye(2))

    raises = pytest.raises(ValueError, match="positive definite")
    with raises, profile() as prof, record_function("outer"):
        fails()
    assert sys.getprofile() is None and names(prof)["outer"] == names(prof)["cholesky"] == 1


def test_one_profiler_at_a_time():
    with profile(), pytest.raises(ArgumentError, match="one profile at a time"):
        profile().start()
    assert profiler.profile is profile


def test_beside_cprofile_it_hears_all_or_is_refused():
    other = cProfile.Profile()
    other.enable()
    try:
        if sys.getprofile() is not None:
            with pytest.raises(ArgumentError, match="run without cProfile"):
                profile().start()
            return
        # After Python 3.11 cProfile holds no hook.
        with profile() as prof:
            probtorch.ones(2).exp()
    finally:
        other.disable()
    assert names(prof)["exp"] == 1
    assert any(getattr(x.code, "co_name", "") == "ones" for x in other.getstats())


def test_operations_are_marked_for_the_profiler_of_a_gpu(monkeypatch):
    marks = []
    nvtx = types.SimpleNamespace(RangePush=marks.append, RangePop=lambda: marks.append("end"))
    library = types.SimpleNamespace(cuda=types.SimpleNamespace(nvtx=nvtx))
    monkeypatch.setattr(cupy_, "library", lambda: library)
    monkeypatch.setattr(cupy_, "unavailable_reason", lambda index: None)
    x = probtorch.ones(2, 3)
    with probtorch.autograd.profiler.emit_nvtx(record_shapes=True), record_function("training"):
        _ = x @ x.T
    assert marks.count("end") == len(marks) // 2
    told = [mark for mark in marks if mark != "end"]
    assert "training" in told and "matmul, sizes = [[2, 3], [3, 2]]" in told
    marks.clear()
    _ = x @ x.T
    assert marks == []


def test_without_a_gpu_nothing_is_marked():
    x = probtorch.ones(2)
    with profiler.emit_nvtx(enabled=False):
        _ = x * 2
    if not probtorch.cuda.is_available():
        with pytest.raises(DeviceError, match="emit_nvtx"), profiler.emit_nvtx():
            pass
