"""A recorded graph whose plan is in the disk cache: no pass, no rendering, the same results."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch import compile as compiled
from probtorch.compiler.explain.profile import profile
from probtorch.compiler.machine import engine, plans
from probtorch.compiler.native import cache, keys
from probtorch.compiler.run import executor
from probtorch.compiler.run.executor import CpuProgram
from tests.compiler import twins
from tests.compiler.cached_programs import COUNTED, PROGRAMS, counted, plain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache directory of this test alone, and sources that nobody edits meanwhile."""
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PROBTORCH_CACHE", raising=False)
    monkeypatch.setattr(keys, "sources", lambda: "the same")
    return tmp_path / "cache"


@pytest.fixture
def counts(monkeypatch):
    return counted(monkeypatch.setattr)


def program_of(fn, *arrays, **how):
    return CpuProgram(twins.graph_of(fn, *arrays, **how))


def run(program, *arrays):
    frame = program.bind()
    out = frame.new_outputs()
    assert frame.run([np.array(a) for a in arrays], out) == 0
    return out


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes()


# --------------------------------------------------------------------------------- other processes


def child(seed):
    found = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.compiler.cached_programs"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two processes that do the same, one after the other, with one cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path_factory.mktemp("two") / "cache"))
        patch.delenv("PROBTORCH_CACHE", raising=False)
        return child("1"), child("2")


def test_a_second_process_runs_no_pass_renders_nothing_and_compiles_nothing(processes):
    (_, cold, _), (_, warm, _) = processes
    assert all(cold[name] > 0 for name in COUNTED)
    assert warm == dict.fromkeys(COUNTED, 0)


@pytest.mark.parametrize("name", [make.__name__ for make in PROGRAMS])
def test_a_second_process_has_the_same_results_bit_for_bit(processes, name):
    (cold, _, _), (warm, _, _) = processes
    assert cold[name] == warm[name]


@pytest.mark.parametrize(
    "name", [make.__name__ for make in PROGRAMS if make.__name__ != "training"]
)
def test_explanations_in_a_second_process_are_the_same(processes, name):
    (_, _, cold), (_, _, warm) = processes
    assert "nest over" in cold[name] or "call" in cold[name]
    assert cold[name] == warm[name]


# ------------------------------------------------------------------------------------ this process


def test_a_plan_is_found_again_and_nothing_is_rendered(counts):
    def fn(x, y):
        return (x * 3.0 + y).sum(0), x.exp()

    x, y = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    first = program_of(fn, x, y)
    assert counts == {
        "optimise": 1,
        "Lowering": 1,
        "render": 1,
        "emit_object": counts["emit_object"],
    }
    second = program_of(fn, x, y)
    assert counts["optimise"] == counts["Lowering"] == counts["render"] == 1
    assert not first.from_cache and second.from_cache
    assert isinstance(second.plan, plans.StoredPlan)
    assert set(second.seconds) == {"key", "native"}
    assert plans.layout_of(second.plan) == plans.layout_of(first.plan)
    assert_same(run(first, x, y), run(second, x, y))


def test_data_and_outside_tensors_are_those_of_the_new_recording(counts):
    def build(k):
        data = np.linspace(0.0, k, 300)
        outside = probtorch.tensor(np.full(300, k))
        still = data.reshape(20, 15).T
        constant = twins.wrap(still)

        def fn(x):
            return (x[:, None] * constant).sum() + (outside * x.sum()).sum()

        return fn, still, outside

    x = np.arange(15.0)
    for k in (1.0, 2.0, 5.0):
        fn, still, outside = build(k)
        program = program_of(fn, x, frozen=False)
        (out,) = run(program, x)
        expected = (x[:, None] * still).sum() + (outside.numpy() * x.sum()).sum()
        np.testing.assert_allclose(out, expected, rtol=1e-13)
    assert counts["render"] == 1


def test_numbers_are_compiled_anew(counts):
    x = np.array([3.0, 4.0])
    for n, value in enumerate((1.0, 0.0, -0.0, np.nan, 2.5), 1):
        constant = np.array(value)
        program = program_of(lambda x, c=constant: x * twins.wrap(c), x)
        assert_same(run(program, x), [x * constant])
        assert counts["render"] == n


@pytest.mark.parametrize("size", [2, 8, 9, 64, 65])
def test_arrays_are_read_anew(size, counts):
    x = np.linspace(3.0, 4.0, size)
    rng = np.random.default_rng(size)
    for _ in range(3):
        # Two equal ones among them: they are merged, in whatever memory they lie.
        one, other = rng.normal(size=size), rng.normal(size=size)
        arrays = one, other, one.copy()
        program = program_of(lambda x, cs=arrays: [x * twins.wrap(c) for c in cs], x)
        assert_same(run(program, x), [x * c for c in arrays])
    assert counts["render"] == 1
    arrays = one, other, other.copy()
    program = program_of(lambda x, cs=arrays: [x * twins.wrap(c) for c in cs], x)
    assert_same(run(program, x), [x * c for c in arrays])


def test_an_index_array_with_other_bounds_is_not_run_unchecked():
    long = np.arange(100) % 3
    x = np.arange(5.0)
    for index in (long, long - 3, long + 2, long):
        program = program_of(lambda x, i=index: x[twins.wrap(i)], x)
        assert_same(run(program, x), [x[index]])
    graph = twins.graph_of(lambda x: x[twins.wrap(long)] * 1.5, x)
    for node in graph.nodes:
        for v in node.values():
            if v.kind == "const":
                v.array = v.array + 90
    with pytest.raises(probtorch.errors.CompileError, match="indices in"):
        CpuProgram(graph)


@pytest.mark.parametrize("what", twins.PAIRS)
def test_twins_are_not_mistaken_for_each_other(what):
    # The second of a pair is compiled with the first in the cache, and then found itself.
    for k, build in enumerate(twins.PAIRS[what]):
        if (what, k) == ("cast", 1):  # to float16
            with pytest.raises(probtorch.errors.CompileError, match="dtype float16"):
                CpuProgram(build())
            continue
        long_way = CpuProgram(build())
        again = CpuProgram(build())
        assert again.ir == long_way.ir
        assert again.native.object_bytes == long_way.native.object_bytes
        assert plans.layout_of(again.plan) == plans.layout_of(long_way.plan)
        assert again.is_unchanged()


def test_what_has_no_name_is_compiled_as_ever(monkeypatch, counts):
    monkeypatch.setattr(keys, "sources", lambda: None)
    x = np.arange(3.0)
    for n in (1, 2):
        assert_same(run(program_of(lambda x: x * 2.0, x), x), [x * 2.0])
        assert counts["render"] == n


def test_without_a_cache_nothing_is_named(monkeypatch):
    monkeypatch.setenv("PROBTORCH_CACHE", "0")
    monkeypatch.setattr(executor, "key_of_graph", lambda graph: pytest.fail("named"))
    x = np.arange(3.0)
    assert_same(run(program_of(lambda x: x * 2.0, x), x), [x * 2.0])


# --------------------------------------------------------------------------------------- explaining


def test_explain_of_a_loaded_program_is_that_of_the_compiled_one():
    def build():
        f = compiled(lambda x: (x * 2.0 if x.sum() > 0 else x - 1.0).exp().sum())
        f(probtorch.ones(3))
        f(probtorch.ones(3))
        return f

    cold, warm = build(), build()
    assert [p.program.from_cache for p in (*cold.paths, *warm.paths)] == [False, True]
    assert "read from the disk cache" in warm.explain()
    assert plain(cold.explain()) == plain(warm.explain())
    assert cold.source() == warm.source()
    assert plain(cold.explain(format="html").split("<h4>")[1]) == plain(
        warm.explain(format="html").split("<h4>")[1]
    )


def test_explaining_does_not_change_how_it_was_made():
    x = np.arange(3.0)
    program_of(lambda x: x.exp(), x)
    warm = program_of(lambda x: x.exp(), x)
    seconds, plan = dict(warm.seconds), warm.plan
    assert "define i64 @run" in warm.ir
    assert [n.name for n in warm.graph.nodes] == ["exp"]
    assert warm.seconds == seconds and warm.plan is plan


def test_a_loaded_program_is_profiled():
    x = np.arange(1000.0)
    program_of(lambda x: x.exp().sum(), x)
    warm = program_of(lambda x: x.exp().sum(), x)
    warm.keep([x])
    found = profile(warm)
    assert not found.refused and found.seconds > 0 and found.steps


def test_overwritten_constants_are_noticed_before_profiling():
    def build(constant):
        return program_of(lambda x: (x + twins.wrap(constant)) * twins.wrap(constant + 0.0), x)

    x, constant = np.arange(3.0), np.array([1.0, 2.0, 3.0])
    build(constant.copy())
    graph = twins.graph_of(
        lambda x: (x + twins.wrap(constant)) * twins.wrap(np.array([1.0, 2, 3])), x
    )
    warm = CpuProgram(graph)
    assert warm.from_cache
    constant[0] = 9.0  # the two constants are one no longer
    warm.keep([x])
    assert "overwritten" in profile(warm).refused


# --------------------------------------------------------------------------------------- distrust


def plan_file(place, build):
    """Compile a graph and return the file of its plan."""
    CpuProgram(build())
    return place / f"{keys.key_of_graph(build()).name}.entry"


def build_one():
    return twins.graph_of(lambda x: x * 2.0 + 1.0, np.arange(3.0))


def build_other():
    return twins.graph_of(lambda x: x * 2.0 + 1.0, np.arange(300.0))


def is_compiled_anew(counts):
    rendered = counts["render"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = CpuProgram(build_one())
    x = np.arange(3.0)
    assert_same(run(program, x), [x * 2.0 + 1.0])
    assert counts["render"] == rendered + 1
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("part", ["code", "arena", "table", "packed", "consts", "}"])
def test_a_plan_that_was_tampered_with_is_deleted_and_made_again(place, counts, part):
    file = plan_file(place, build_one)
    content = bytearray(file.read_bytes())
    content[content.index(part.encode()) + len(part) + 4] ^= 1
    file.write_bytes(content)
    (warning,) = is_compiled_anew(counts)
    assert "damaged or is not this user's" in warning
    assert file.read_bytes() != bytes(content)
    assert CpuProgram(build_one()).from_cache and counts["render"] == 2


def test_a_plan_of_another_graph_is_refused(place, counts):
    file = plan_file(place, build_one)
    file.write_bytes(plan_file(place, build_other).read_bytes())
    (warning,) = is_compiled_anew(counts)
    assert "damaged" in warning


def test_an_unsigned_plan_is_refused(place, counts):
    file = plan_file(place, build_one)
    line = json.loads(file.read_bytes()[:-32])
    line["meta"]["plan"]["arena"] = 0
    file.write_bytes(json.dumps(line).encode() + b"\n" + bytes(32))
    (warning,) = is_compiled_anew(counts)
    assert "damaged" in warning


def test_a_plan_whose_code_is_gone_is_made_again(place, counts):
    file = plan_file(place, build_one)
    code = json.loads(file.read_bytes().split(b"\n")[0])["meta"]["code"]
    assert engine.load_module(code) is not None
    (place / f"{code}.entry").unlink()
    assert is_compiled_anew(counts) == []
    assert (place / f"{code}.entry").exists()


def test_plans_hold_nothing_but_json(place):
    file = plan_file(place, build_one)
    entry = cache.load(file.stem)
    assert entry.data == b""
    assert json.loads(json.dumps(entry.meta)) == entry.meta
