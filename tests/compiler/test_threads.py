"""Large loops on several threads: the same bits for any number of them, and nothing hangs.

The oracle for values is NumPy or eager execution; for bits, the same program on one thread. That a
nest was cut at all is read from `explain`, or a test would pass for want of parts.
"""

import ctypes
import itertools
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probtorch
from probtorch.autograd.tape import grad
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.machine import engine
from probtorch.compiler.native import threads
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.render import parts
from probtorch.compiler.render.runtime import pool
from probtorch.core.dispatch import wrap
from probtorch.distributions.normal import Normal
from probtorch.errors import ArgumentError, CompileError
from tests.compiler.program_strategy import programs
from tests.compiler.test_random_programs import QUICK, arrays, check_compiled, quiet, tensors

pytestmark = pytest.mark.skipif(not pool.supported(), reason="one thread on this system")

RNG = np.random.default_rng(0)
LARGE = 400_000
X = RNG.normal(size=LARGE)
ROWS = RNG.normal(size=(20_000, 20))
COUNTS = (1, 2, 3, 8)
PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture(autouse=True)
def _count_as_before():
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


@pytest.fixture
def everything_is_cut(monkeypatch):
    """Nests of any size are cut into up to five parts."""
    monkeypatch.setenv("PROBTORCH_CACHE", "0")
    for name, value in (("LEAST", -1.0), ("PART", 1e-9), ("MOST", 5), ("LEAST_INNER", 1)):
        monkeypatch.setattr(parts, name, value)
    monkeypatch.setattr(parts, "JOINING", math.inf)
    threads.set_num_threads(3)


def results(fn, *given):
    """Results of a compiled function on one thread, the same bits as on others; and how many of
    its nests are cut.
    """
    program = NativeProgram(lambda xs: fn(*xs), tuple(map(wrap, given)))
    resident = program.resident(tuple(map(wrap, given)))
    found = []
    for count in (*COUNTS, *COUNTS):
        threads.set_num_threads(count)
        for out in resident.outputs:
            out.fill(7)
        resident.run()
        found.append([out.tobytes() for out in resident.outputs])
    assert all(f == found[0] for f in found)
    if "pt_parallel" in program.program.ir:
        status, outs = backwards(program.program, resident.inputs)
        assert status == 0 and [out.tobytes() for out in outs] == found[0]
    return resident.outputs, str(program.explain()).count("parts for threads")


# A pool that takes the parts from the last to the first: what a part reads of another, or writes
# where another does, shows at once, however threads would have met.
BACKWARDS = """
define i64 @backwards(ptr %body, ptr %context, i64 %parts) {
entry:
  br label %next
next:
  %left = phi i64 [ %parts, %entry ], [ %k, %next ]
  %status = phi i64 [ 0, %entry ], [ %both, %next ]
  %k = sub i64 %left, 1
  %one = call i64 %body(ptr %context, i64 %k)
  %both = or i64 %status, %one
  %more = icmp ugt i64 %k, 0
  br i1 %more, label %next, label %out
out:
  ret i64 %both
}
"""


def backwards(program, inputs):
    """Status and results of a `CpuProgram` whose parts run in the opposite order."""
    pool_of_one = engine.compile_module(BACKWARDS)
    symbols = {"pt_parallel": pool_of_one.address("backwards")}
    native = engine.compile_module(program.ir, symbols=symbols, keep=[pool_of_one])
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(native.address("run"))
    frame = program.bind()
    outputs = frame.new_outputs()
    frame.attach(inputs, outputs)
    return run(frame.address), outputs


# ---------------------------------------------------------------------------- the same, in any case


def test_elementwise_loop():
    (got,), cut = results(lambda x: (x.exp() + 1.0).log() * 2.0, X)
    assert cut == 1
    np.testing.assert_allclose(got, 2.0 * np.logaddexp(0.0, X), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "bool"])
def test_full_reductions(dtype):
    x = (RNG.normal(size=2_000_000) * 3.0).astype(dtype)
    outs, cut = results(lambda x: (x.sum(), x.amax(), x.amin()), x)
    assert cut == 1
    expected = x.astype("float64").sum(), x.max(), x.min()
    for got, want, bound in zip(outs, expected, (np.abs(x.astype("f8")).sum(), 0, 0), strict=True):
        eps = np.finfo(x.dtype).eps if x.dtype.kind == "f" else 0.0
        assert abs(float(got) - float(want)) <= 4 * eps * bound


def test_nan_and_infinity_pass_through_reductions():
    x = X.copy()
    x[123_456], x[7] = math.nan, math.inf
    outs, cut = results(lambda x: (x.exp().sum(), x.amax(), x.amin(), (x - x).abs().amax()), x)
    assert cut >= 1
    assert all(np.isnan(out) for out in outs)


def test_product_of_all_elements():
    x = 1.0 + 1e-6 * X
    (got,), cut = results(lambda x: (x.exp() / 2.718281828459045).prod(), x)
    assert cut == 1
    np.testing.assert_allclose(got, np.exp((x - 1.0).sum()), rtol=1e-8)


@pytest.mark.parametrize(
    "shape", [(4, 100_000), (100_000, 4), (700, 30, 20), (3, 3, 50_000)], ids=str
)
@pytest.mark.parametrize("dims", [(0,), (1,), (-1,), (0, -1), (0, 1)], ids=str)
def test_sums_over_any_dims(shape, dims):
    x = RNG.normal(size=shape)
    (got,), cut = results(lambda x: x.exp().sum(dims), x)
    assert cut == 1
    np.testing.assert_allclose(got, np.exp(x).sum(dims), rtol=1e-11)


def test_positions_of_extremes_in_rows():
    x = RNG.normal(size=(3000, 100))
    x[5, 50] = math.nan
    (got, least), cut = results(lambda x: (x.argmax(1), x.argmin(1)), x)
    assert cut >= 1
    np.testing.assert_array_equal(got, x.argmax(1))
    np.testing.assert_array_equal(least, x.argmin(1))


def test_position_of_the_extreme_of_all_stays_in_one_piece():
    (got,), cut = results(lambda x: x.exp().argmax(0), X)
    assert cut == 0
    assert got == X.argmax()


def test_pieces_put_together():
    def fn(x, y):
        joined = probtorch.cat((x.exp(), y.tanh(), x + y))
        return joined, probtorch.stack((x.exp(), y.tanh()), dim=1), probtorch.stack((x, y.exp()))

    y = X[::-1].copy()
    (joined, inner, outer), cut = results(fn, X, y)
    assert cut >= 1
    np.testing.assert_allclose(joined, np.concatenate((np.exp(X), np.tanh(y), X + y)), rtol=1e-14)
    np.testing.assert_allclose(inner, np.stack((np.exp(X), np.tanh(y)), 1), rtol=1e-14)
    np.testing.assert_allclose(outer, np.stack((X, np.exp(y))), rtol=1e-14)


def test_transposed_and_sliced_operands():
    x = RNG.normal(size=(500, 900))
    (got,), cut = results(lambda x: x.T.exp()[::2, 1:] * x[1:, ::2].T, x)
    assert cut >= 1
    np.testing.assert_allclose(got, np.exp(x.T)[::2, 1:] * x[1:, ::2].T, rtol=1e-14)


def test_running_sums_of_rows():
    x = RNG.normal(size=(1500, 200))
    (got,), cut = results(lambda x: x.cumsum(1), x)
    assert cut == 1
    np.testing.assert_allclose(got, x.cumsum(1), atol=1e-12)


def test_small_factors():
    a = RNG.normal(size=(30_000, 3, 3))
    a = a @ a.transpose(0, 2, 1) + 3.0 * np.eye(3)
    (got,), cut = results(lambda a: probtorch.linalg.cholesky(a), a)
    assert cut >= 1
    np.testing.assert_allclose(got, np.linalg.cholesky(a), rtol=1e-12, atol=1e-12)


def test_draws_belong_to_their_counters():
    def fn(counter):
        return probtorch.ops.random_numbers.philox(1, 2, counter) >> 11

    counter = np.arange(LARGE)
    (got,), cut = results(fn, counter)
    assert cut == 1
    few = fn(wrap(counter[:10]))
    np.testing.assert_array_equal(got[:10], np.asarray(few.array))


@pytest.mark.parametrize("shape", [(LARGE,), (LARGE // 50, 50), (3, LARGE // 8)], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_gradient_of_differences_between_neighbours(shape, dim):
    # Every element gets a term from the step before it and one from the step after it.
    def fn(x):
        with probtorch.enable_grad():
            x = x.detach().requires_grad_()
            x_first = x.movedim(dim, 0)
            steps = x_first[1:] - x_first[:-1]
            return grad(steps.square().sum() + steps.exp().sum(), [x])[0]

    x = RNG.normal(size=shape)
    (got,), cut = results(fn, x)
    assert cut >= 1
    steps = np.diff(x, axis=dim)
    slopes = np.moveaxis(2.0 * steps + np.exp(steps), dim, 0)
    expected = np.zeros_like(np.moveaxis(x, dim, 0))
    expected[1:] += slopes
    expected[:-1] -= slopes
    np.testing.assert_allclose(got, np.moveaxis(expected, 0, dim), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [20_000, 20_017, 19_968 + 1])
def test_regression_and_its_gradient_in_blocks(rows):
    design, y = RNG.normal(size=(rows, 20)), RNG.normal(size=rows)

    def fn(b, design, y):
        with probtorch.enable_grad():
            b = b.detach().requires_grad_()
            value = (design @ b - y).tanh().square().sum()
            return value.detach(), grad(value, [b])[0]

    b = RNG.normal(size=20) / 5.0
    (value, gradient), cut = results(fn, b, design, y)
    assert cut >= 1
    t = np.tanh(design @ b - y)
    np.testing.assert_allclose(value, (t**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(gradient, design.T @ (2 * t * (1 - t**2)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("groups", [10, 3000])
def test_density_of_many_rows_in_groups(groups):
    group = RNG.integers(0, groups, LARGE)
    where, y = wrap(group), wrap(X)

    def log_density(q):
        z, spread = q[:groups], q[groups].exp()
        return Normal(z[where], spread, validate_args=False).log_prob(y).sum()

    density = NativeDensity(log_density, groups + 1)
    q = RNG.normal(size=groups + 1) / 3.0
    found = []
    for count in (*COUNTS, 2):
        threads.set_num_threads(count)
        value, gradient = density.value_and_grad(q)
        found.append((value, gradient.copy()))
    # The first evaluation was the recording, which is eager.
    assert len({(v, g.tobytes()) for v, g in found[1:]}) == 1
    assert "parts for threads" in str(density.explain())
    value, gradient = found[-1]
    rest, scale = X - q[group], math.exp(q[groups])
    logs = -0.5 * (rest / scale) ** 2 - q[groups] - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(value, logs.sum(), rtol=1e-11)
    np.testing.assert_allclose(
        gradient[:groups], np.bincount(group, rest / scale**2, groups), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(gradient[groups], ((rest / scale) ** 2 - 1).sum(), rtol=1e-9)


def test_indexed_additions_keep_the_sign_of_zero():
    start = np.array([-0.0, -0.0, 1.0])
    at = np.full(LARGE, 2)

    def fn(start, at, x):
        return probtorch.index_put(start, (at,), x, accumulate=True)

    (got,), cut = results(fn, start, at, X)
    assert cut == 1
    np.testing.assert_allclose(got[2], 1.0 + X.sum(), rtol=1e-11)
    assert np.signbit(got[:2]).all()


def test_indexed_stores_stay_in_one_piece():
    # Which of several values stays is decided by their order.
    def fn(start, at, x):
        return probtorch.index_put(start, (at,), x)

    at = RNG.integers(0, 50, LARGE)
    (got,), cut = results(fn, np.zeros(50), at, X)
    expected = np.zeros(50)
    expected[at] = X
    assert cut == 0
    np.testing.assert_array_equal(got, expected)


def test_small_loops_have_no_parts():
    program = NativeProgram(lambda x: (x.exp().sum(), x.sin()), wrap(X[:1000]))
    assert "pt_parallel" not in program.program.ir
    assert "parts for threads" not in str(program.explain())


# --------------------------------------------------------------------------------- random programs


def same_bits(program):
    captured = tensors(program.captured)

    def run(xs, captured):
        with probtorch.enable_grad():
            return program.with_gradients(xs, captured)

    try:
        native = NativeProgram(lambda xs: run(xs, captured), tuple(tensors(program.inputs[0])))
    except CompileError:
        return 0
    found = []
    for count in COUNTS:
        threads.set_num_threads(count)
        outs = arrays(native(tuple(tensors(program.inputs[0]))))
        found.append([(a.shape, a.tobytes()) for a in outs])
    assert all(f == found[0] for f in found), program
    if "pt_parallel" in native.program.ir:
        inputs = [np.ascontiguousarray(a).copy() for a in arrays(tensors(program.inputs[0]))]
        status, outs = backwards(native.program, inputs)
        assert status == 0 and [(a.shape, a.tobytes()) for a in outs] == found[0], program
    return str(native.explain()).count("parts for threads")


def test_random_programs_do_not_depend_on_the_number_of_threads(everything_is_cut):
    cut = []

    @settings(QUICK, max_examples=25)
    @given(programs(max_steps=12))
    def check(program):
        with quiet():
            cut.append(same_bits(program))

    check()
    assert sum(c > 0 for c in cut) > len(cut) / 2


def test_random_programs_in_parts_agree_with_eager(everything_is_cut):
    @settings(QUICK, max_examples=25)
    @given(programs(max_steps=8), st.booleans())
    def check(program, gradients):
        with quiet():
            check_compiled(program, gradients)

    check()


@pytest.mark.slow
def test_many_random_programs_in_parts(everything_is_cut):
    @settings(QUICK, max_examples=1500)
    @given(programs(max_steps=20), st.booleans())
    def check(program, gradients):
        with quiet():
            check_compiled(program, gradients)
        with quiet():
            same_bits(program)

    check()


# ------------------------------------------------------------------------------- what may be shared


def test_writes_that_are_called_apart_are():
    """Brute force over small writes: no element is reached from two indices of the cut dim."""
    rng = np.random.default_rng(1)
    yes = no = near = 0
    for _ in range(4000):
        sizes = rng.integers(2, 4, 3)
        strides = [rng.choice([0, 1, 2, 3, 4, 6, 8, 9, 12, 18], 3) for _ in range(2)]
        if rng.random() < 0.7:
            strides[1] = strides[0]
        count = int(rng.integers(1, 3))
        accesses, reached = set(), {}
        for offset, steps in zip(rng.integers(0, 40, count), strides[:count], strict=True):
            moves = tuple((int(s), int(n), d == 1) for d, (s, n) in enumerate(zip(steps, sizes)))
            accesses.add(parts._Access(int(offset), moves, True))
            for index in itertools.product(*map(range, sizes)):
                at = int(offset + np.dot(index, steps))
                reached.setdefault(at, set()).add(index[1])
        furthest = max(max(indices) - min(indices) for indices in reached.values())
        collide = furthest > 0
        apart, reach = parts._is_exclusive(accesses), parts._reach(accesses)
        assert reach is None or reach > furthest, accesses
        near += reach is not None and reach <= 2 and not apart
        assert not (apart and collide), accesses
        yes, no = yes + apart, no + (not collide and not apart)
    assert yes > 200 and near > 100 and no < yes  # it is not refused out of mere caution too often


# ----------------------------------------------------------------------------------- errors, guards


def test_index_out_of_bounds_in_one_part_is_the_eager_error():
    @probtorch.compile
    def gathered(x, at):
        return x[at].exp()

    x, at = wrap(X[:1000]), RNG.integers(0, 1000, LARGE)
    gathered(x, wrap(at))
    threads.set_num_threads(3)
    np.testing.assert_allclose(gathered(x, wrap(at)).array, np.exp(X[at]), rtol=1e-14)
    assert "parts for threads" in str(gathered.explain())
    at[LARGE - 5] = 1000
    with pytest.raises(IndexError, match="1000"):
        gathered(x, wrap(at))
    at[LARGE - 5] = 0
    np.testing.assert_allclose(gathered(x, wrap(at)).array, np.exp(X[at]), rtol=1e-14)


def test_loops_inside_native_loops():
    def fn(x):
        def step(state):
            k, x = state
            return k + 1, (x * 0.5).tanh()

        return probtorch.while_loop(lambda state: state[0] < 5, step, (wrap(np.array(0)), x))[1]

    (got,), cut = results(fn, X)
    assert cut >= 1
    expected = X
    for _ in range(5):
        expected = np.tanh(0.5 * expected)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


# ---------------------------------------------------------------------- threads, processes, the end


def test_user_threads_at_once_get_their_own_results():
    program = NativeProgram(lambda x: (x.exp().sum(), x.tanh()), wrap(X))
    given = [X + k for k in range(4)]
    expected = [[np.asarray(t.array).tobytes() for t in program(wrap(x))] for x in given]
    threads.set_num_threads(3)
    wrong = []

    def work(k):
        bound = program.bind()
        for _ in range(12):
            got = [np.asarray(t.array).tobytes() for t in bound(wrap(given[k]))]
            if got != expected[k]:
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert not wrong and not any(w.is_alive() for w in workers)


def python(code, **environment):
    """Run a script in a process of its own; returns what it printed."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREPARED) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.split()


PREPARED = """
    import os, signal, sys, threading, time
    import numpy as np
    from probtorch.compiler.native import threads
    from probtorch.compiler.program import NativeProgram
    from probtorch.core.dispatch import wrap
    x = np.linspace(-1.0, 1.0, 400_000)
    program = NativeProgram(lambda x: x.exp().sum(), wrap(x))
    assert "parts for threads" in str(program.explain())
    threads.set_num_threads(4)
    def total():
        return float(program.bind()(wrap(x)).array)
    first = total()
    def helpers():
        masks = []
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/status") as f:
                fields = dict(line.split(":", 1) for line in f)
            masks.append(int(fields["SigBlk"], 16))
        return [m for m in masks if m >> (signal.SIGINT - 1) & 1]
"""


def test_helpers_block_signals_and_are_as_many_as_needed():
    assert python("print(len(helpers()))") == ["3"]


def test_forked_child_works_with_helpers_of_its_own():
    code = """
        import warnings
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
        def fork():
            child = os.fork()
            if child == 0:
                none = len(helpers())
                same = total() == first
                os._exit(0 if same and none == 0 and len(helpers()) == 3 else 1)
            return os.waitpid(child, 0)[1]
        print(fork(), fork(), total() == first)
        # A fork while another thread is in the middle of a region.
        go = True
        def work():
            while go:
                assert total() == first
        worker = threading.Thread(target=work)
        worker.start()
        print(*[fork() for _ in range(5)])
        go = False
        worker.join()
    """
    assert python(code) == ["0", "0", "True", *["0"] * 5]


def test_workers_of_a_data_loader_run_compiled_programs():
    code = """
        from probtorch.utils.data import DataLoader
        class Items:
            def __len__(self):
                return 8
            def __getitem__(self, i):
                assert threads.get_num_threads() == 1
                return np.array([total() == first])
        loader = DataLoader(Items(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        print(sum(int(batch.sum()) for batch in loader))
    """
    assert python(code, PYTHONWARNINGS="ignore") == ["8"]


def test_process_ends_while_a_daemon_is_at_work():
    code = """
        def work():
            bound = program.bind()
            while True:
                bound(wrap(x))
        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        print("done")
    """
    assert python(code) == ["done"]


def test_interrupt_reaches_python():
    code = """
        def interrupt():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        start = time.monotonic()
        try:
            bound = program.bind()
            while time.monotonic() < start + 20:
                bound(wrap(x))
        except KeyboardInterrupt:
            print("interrupted", total() == first)
    """
    assert python(code) == ["interrupted", "True"]


# ------------------------------------------------------------------------------ how many there are


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PROBTORCH_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"PROBTORCH_NUM_THREADS": "", "OMP_NUM_THREADS": "5,2"}, 5),
        ({"OMP_NUM_THREADS": "0"}, PROCESSORS),
        ({"OMP_NUM_THREADS": "many"}, PROCESSORS),
    ],
    ids=str,
)
def test_first_number_is_from_the_environment(monkeypatch, tmp_path, environment, expected):
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "none")
    for name in ("PROBTORCH_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(threads._state, "count", None)
    assert probtorch.get_num_threads() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", 64), ("150000 100000", 2), ("1000 100000", 1), ("nonsense", 64), (None, 64)],
)
def test_quota_of_a_container_bounds_the_first_number(tmp_path, monkeypatch, text, expected):
    for name in ("PROBTORCH_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    if text is not None:
        (tmp_path / "cpu.max").write_text(text + "\n")
    monkeypatch.setattr(threads._state, "count", None)
    assert probtorch.get_num_threads() == expected


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None], ids=repr)
def test_number_that_is_none_is_refused(count):
    with pytest.raises(ArgumentError) as caught:
        probtorch.set_num_threads(count)
    text = str(caught.value)
    assert "1 or more" in text and repr(count) in text and "give 1" in text


def test_busy_threads_are_taken_off(monkeypatch):
    told = []
    monkeypatch.setattr(threads._state, "pool", {"limit": told.append})
    probtorch.set_num_threads(4)
    with threads.occupied():
        assert told[-1] == 4  # one busy thread is the caller
        with threads.occupied(), threads.occupied():
            assert told[-1] == 2
            with threads.occupied(), threads.occupied(), threads.occupied():
                assert told[-1] == 1
        assert told[-1] == 4
    with pytest.raises(RuntimeError), threads.occupied(), threads.occupied():
        raise RuntimeError
    assert told[-1] == 4


def test_chains_in_threads_leave_fewer_for_loops(monkeypatch):
    told = []
    monkeypatch.setattr(threads._state, "pool", {"limit": told.append})
    probtorch.set_num_threads(3)

    def model():
        probtorch.sample("z", Normal(0.0, 1.0))

    kernel = probtorch.infer.NUTS(model)
    probtorch.infer.MCMC(
        kernel, num_samples=500, warmup_steps=500, num_chains=2, progress_bar=False, seed=1
    ).run()
    # Each chain says when its warm-up and its draws begin and end; then it may be alone.
    assert len(told) == 9 and set(told) <= {2, 3} and told[-1] == 3
    assert threads._state.busy == 0


def test_blocks_of_points_are_shared_out_with_the_same_bits():
    density = NativeDensity(lambda q: -(q.exp() + q * q).sum(), 3)
    points = RNG.normal(size=(700, 3))
    found = []
    for count in (1, 3):
        probtorch.set_num_threads(count)
        values, gradients = density.value_and_grad_many(points)
        found.append((values.tobytes(), gradients.tobytes()))
    assert found[0] == found[1]
    np.testing.assert_allclose(values, -(np.exp(points) + points**2).sum(1), rtol=1e-13)
    np.testing.assert_allclose(gradients, -np.exp(points) - 2 * points, rtol=1e-13)
    assert threads._state.busy == 0


@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.findings.ConvergenceWarning")
def test_draws_of_a_sampler_do_not_depend_on_threads():
    y = wrap(X[:100_000] + 0.5)

    def model():
        loc = probtorch.sample("loc", Normal(0.0, 1.0))
        with probtorch.plate("rows", len(y)):
            probtorch.sample("y", Normal(loc, loc.exp(), validate_args=False), obs=y)

    found = []
    for count in (1, 4):
        probtorch.set_num_threads(count)
        mcmc = probtorch.infer.MCMC(
            probtorch.infer.NUTS(model),
            num_samples=120,
            warmup_steps=40,
            num_chains=2,
            progress_bar=False,
            seed=3,
        )
        mcmc.run()
        found.append(np.asarray(mcmc.get_samples()["loc"]).tobytes())
    assert "parts for threads" in str(mcmc.target.explain())
    assert found[0] == found[1]


def test_signals_of_the_calling_thread_stay_as_they_were():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    threads.set_num_threads(2)
    NativeProgram(lambda x: x.exp(), wrap(X))(wrap(X))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
