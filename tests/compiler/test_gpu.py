"""Loop nests as CUDA C: kernels run on the processor give what eager execution gives.

The source is the one that a GPU gets; see tests/backends/host_gpu.py for how it runs without one,
and test_cuda_source.py for what NVIDIA's compiler says to it. Where there is a GPU, the same tests
run on it, marked `gpu`.
"""

import re

import numpy as np
import pytest

import probtorch
from probtorch.backends import cupy_
from probtorch.compiler.render import cuda_calls, cuda_nest
from probtorch.compiler.render.cuda_schedule import HostLoop, Launch, LibraryCall
from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY
from probtorch.core.rng import Generator
from probtorch.errors import CompileError
from probtorch.ops import indexing
from probtorch.ops.control import cond, while_loop
from tests.compiler.gpu_programs import SEAMS, Job, compiled, put_in_place, run_both_ways
from tests.compiler.random_gpu_programs import (
    MAGNIFIED,
    attempt,
    check_random,
    give_nests_many_kernels,
)
from tests.contracts import test_compiled_ops as ops

rng = np.random.default_rng(11)


@pytest.fixture(autouse=True, params=SEAMS)
def copies(request, monkeypatch):
    return put_in_place(request.param, monkeypatch)


@pytest.fixture
def many_kernels(monkeypatch):
    give_nests_many_kernels(monkeypatch)


def check(*jobs):
    with np.errstate(all="ignore"):
        for job in jobs:
            assert not job.compare()


# ------------------------------------------------------------------------------------------- nests


def softmaxes(x):
    z = x - x.amax(1, keepdim=True)
    return z.exp() / z.exp().sum(1, keepdim=True), x.argmax(1), x.argmin(0), x.argmax()


def sums(x):
    y = (x * 0.5).tanh()
    return y.sum(), y.sum(0), y.sum(1), y.amax(), y.prod(1), (y * y).mean(0), x.long().sum(1)


SHAPES = [
    (1, 1),
    (7, 50),
    (5, 20000),
    *(pytest.param(s, marks=pytest.mark.slow) for s in ((300, 40), (20000, 3), (40000,))),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_extremes_of_any_shape(shape):
    x = rng.normal(size=shape)
    fns = [sums, softmaxes] if len(shape) == 2 else [lambda x: (x.sum(), x.argmax(), x.cumsum(0))]
    check(*(Job(fn, [x], [x[::-1].copy()]) for fn in fns))


def test_rows_and_columns_of_large_arrays_are_counted_in_64_bits(monkeypatch):
    monkeypatch.setattr(cuda_nest, "_SHORT", 1)  # as if every array were large
    job = Job(lambda x: (x.sum(0), x.sum(1), x @ x[0], x.argmax(1)), [rng.normal(size=(9, 70))])
    counters = re.findall(r"for \((\w+) j\d+ =", job.program.ir)
    assert counters and set(counters) == {"i64"}
    assert "int const" not in job.program.ir
    check(job)


def test_sums_of_integers_booleans_and_single_precision():
    def fn(i, b, f):
        return i.sum(), i.sum(0), i.prod(1), b.sum(1), b.any(), b.all(0), f.sum(0), f.amin(1)

    i = rng.integers(-5, 6, (40, 9))
    check(Job(fn, [i, i > 2, i.astype(np.float32) / 7]))


def test_first_of_equal_extremes_and_nan_before_all():
    x = np.array([[1.0, 3.0, 3.0, 0.0], [2.0, np.nan, 5.0, np.nan], [-np.inf] * 4])
    x = np.tile(x, (1, 200))
    program = compiled(lambda x: (x.argmax(1), x.argmin(1), x.amax(1), x.amin(1)), [x])
    _, out = run_both_ways(program, [x])
    for got, fn in zip(out, (np.argmax, np.argmin, np.max, np.min), strict=True):
        np.testing.assert_array_equal(got, fn(x, axis=1))


def test_products_of_matrices_and_vectors():
    a, b, v = rng.normal(size=(40, 300)), rng.normal(size=(300, 50)), rng.normal(size=300)

    def fn(a, b, v):
        return a @ b, a @ v, v @ b, v @ v, a[:5] @ b[:, :7], b.T @ (b @ b.T @ v).tanh()

    job = Job(fn, [a, b, v])
    assert not any(isinstance(s, LibraryCall) for s in job.program.schedule.steps)
    check(job)


def test_products_of_matrices_in_any_order_of_memory():
    def fn(a, b):
        return (
            *(x @ y for x in (a[1:, 2:], a.T[2:, 1:].T) for y in (b[2:, 1:], b.T[1:, 2:].T)),
            a.T @ a,
            b @ b.T,
        )

    check(Job(fn, [rng.normal(size=(35, 52)), rng.normal(size=(52, 41))]))


def test_large_products_are_left_to_the_library(monkeypatch):
    monkeypatch.setattr(cuda_calls, "_OWN_PRODUCT", 0)
    job = Job(
        lambda a, b: (a @ b, a[1:] @ b[:, 2:], a.T[5:] @ a),
        [rng.normal(size=(35, 52)), rng.normal(size=(52, 41))],
    )
    assert sum(isinstance(s, LibraryCall) for s in job.program.schedule.steps) == 3
    check(job)


def test_factors_and_triangular_solves():
    def fn(a, b):
        spd = a @ a.mT + 3.0 * probtorch.eye(a.shape[-1], dtype=probtorch.float64)
        factor = probtorch.linalg.cholesky(spd)
        left = probtorch.linalg.solve_triangular(factor, b, upper=False)
        return factor, left, probtorch.linalg.solve_triangular(factor.mT, b, upper=True)

    check(
        *(
            Job(fn, [rng.normal(size=(*batch, n, n)), rng.normal(size=(*batch, n, 5))])
            for batch, n in [((), 3), ((4,), 3), ((), 17), ((3,), 12)]
        )
    )


def test_factor_of_an_indefinite_matrix_ends_the_run():
    program = compiled(
        lambda a: (probtorch.linalg.cholesky(a),), [np.eye(9) + 0.1 * np.ones((9, 9))]
    )
    assert run_both_ways(program, [np.eye(9)])[0] == 0
    assert run_both_ways(program, [-np.eye(9)])[0] == -1


# ------------------------------------------------------------------------------- scattered stores


INDEX = np.concatenate([rng.integers(0, 6, 500), [0, 5, -1, -6]])


def scattered(values, index, base):
    added = indexing.index_put(base, [index], values, True)
    return added, indexing.index_put(base, [index], values, False), base[index].sum()


@pytest.mark.parametrize("width", [(), (3,), (2, 5)], ids=str)
def test_scattered_stores_at_known_indices(width):
    index = wrap(INDEX)
    values = rng.normal(size=(INDEX.size, *width))

    def fn(values, base):
        return scattered((values * 2.0).sin(), index, base)

    check(Job(fn, [values, rng.normal(size=(6, *width))], frozen=True))


@pytest.mark.parametrize("width", [(), (3,)], ids=str)
def test_scattered_stores_at_indices_that_change(width):
    values = rng.normal(size=(INDEX.size, *width))
    base = rng.normal(size=(6, *width))
    other = rng.permutation(INDEX)
    check(
        Job(lambda v, i, b: scattered(v.sin(), i, b), [values, INDEX, base], [values, other, base])
    )


def test_index_out_of_bounds_ends_the_run():
    base = rng.normal(size=6)
    program = compiled(lambda b, i: (b[i],), [base, np.array([0, 5])])
    assert run_both_ways(program, [base, np.array([-6, 5])])[0] == 0
    assert run_both_ways(program, [base, np.array([0, 6])])[0] == -1


def test_integer_division_by_zero_ends_the_run():
    program = compiled(lambda i, j: (i // j,), [np.arange(4), np.ones(4, np.int64)])
    assert run_both_ways(program, [np.arange(4), np.array([1, 2, 0, 3])])[0] == -1


def test_long_programs_are_cut_into_several_kernels():
    def fn(x):
        for _ in range(130):
            x = x - x.sum() * 1e-3
        return (x,)

    job = Job(fn, [rng.normal(size=7)])
    assert len(job.program.schedule.steps) > 1
    check(job)


def test_overlapping_pieces_are_added_one_after_the_other():
    def fn(x):
        x = x.detach().requires_grad_()
        y = (x[:300] * x[1:301]).sum() + (x[5:305] ** 3).sum() + x[::2].sum()
        return (probtorch.autograd.grad(y, x)[0],)

    check(Job(fn, [rng.normal(size=400)]))


# ------------------------------------------------------------------------------- loops and branches


def newton(x):
    """Square roots by iteration until all are exact; counts the steps."""

    def going(state):
        step = state[2]
        return (step.abs() > 1e-12).any()

    def body(state):
        n, y, _ = state
        new = 0.5 * (y + x / y)
        return n + 1, new, new - y

    return while_loop(going, body, (wrap(np.array(0)), x * 1.0, x * 1.0))[:2]


def branches(p, x):
    outer = cond(
        p.sum() > 0,
        lambda a: cond((a > 2).any(), lambda b: b.exp(), lambda b: b * 2.0, a),
        lambda a: a.tanh() + a.sum(),
        x,
    )
    return (outer + 1.0,)


@pytest.mark.parametrize("size", [6, 700])
def test_loops_on_the_device(size):
    job = Job(newton, [rng.uniform(0.5, 9.0, size)], [rng.uniform(0.5, 900.0, size)])
    assert not any(isinstance(s, HostLoop) for s in job.program.schedule.steps)
    check(job)


def matrices_in_a_loop(a):
    """Powers of a matrix, whose factors are solved for, until a branch has been taken five times;
    a small loop and a draw of extremes in the loop.
    """

    def body(state):
        taken, x, total = state
        spd = x @ x.mT + probtorch.eye(x.shape[-1], dtype=probtorch.float64)
        factor = probtorch.linalg.cholesky(spd)
        x = x @ probtorch.linalg.solve_triangular(factor, x, upper=False)
        x = x / x.abs().amax()
        i, y = while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x[0, 0]), (wrap(np.array(0)), x[:2])
        )
        return cond(
            total < taken,
            lambda n, x, t: (n + 1, x.tanh(), t + x.abs().sum() + y.sum()),
            lambda n, x, t: (n + i - 2, x * 2.0, t - 0.5),
            taken,
            x,
            total,
        )

    start = wrap(np.array(0)), a * 1.0, a.sum() * 0.0
    return while_loop(lambda s: s[0] < 5, body, start)


@pytest.mark.parametrize("fn, sizes", [(newton, [(50,), (2000,)]), (matrices_in_a_loop, [(9, 9)])])
def test_large_loops_are_one_kernel_of_all_blocks(many_kernels, fn, sizes):
    for size in sizes:
        job = Job(fn, *([x] for x in rng.uniform(0.5, 9.0, (2, *size))))
        steps = job.program.schedule.steps
        assert sum(isinstance(s, Launch) and s.together for s in steps) == 1
        assert not any(isinstance(s, (HostLoop, LibraryCall)) for s in steps)
        check(job)


def test_the_number_of_blocks_changes_no_bit(many_kernels, monkeypatch):
    x, found = rng.uniform(0.5, 9.0, 3000), []
    for room in (1, 2, 3):
        monkeypatch.setattr(cupy_, "room", lambda kernel, threads, room=room: room)
        _, (_, y) = run_both_ways(compiled(newton, [x]), [x])
        found.append(y.tobytes())
    assert len(set(found)) == 1


def test_loops_around_library_calls_have_their_flag_read_by_the_host(many_kernels):
    def body(s):
        values, _ = probtorch.linalg.eigh(s[1] @ s[1].mT)
        return s[0] + 1, s[1] / values.amax()

    def fn(x):
        return while_loop(lambda s: s[0] < 3, body, (wrap(np.array(0)), x * 1.0))

    job = Job(fn, [rng.normal(size=(4, 4))])
    assert any(isinstance(s, HostLoop) for s in job.program.schedule.steps)
    assert any("synchronisation" in note for note in job.program.notes)
    check(job)


CALLS = [[np.array([s]), np.array(x)] for s in (1.0, -1.0) for x in ([0.5, 1.0], [3.0, 1.0])]


def test_branches_on_the_device():
    check(Job(branches, *CALLS))


def test_branches_of_many_kernels(many_kernels):
    check(Job(branches, *CALLS))


def test_loop_after_a_failure_ends(many_kernels):
    """What would never end on wrong data does end once the run has failed."""

    def fn(i, n):
        start = wrap(np.arange(5))[i].sum() * 0 + n
        return while_loop(lambda s: s[0] != 0, lambda s: (s[0] - 1,), (start,))

    program = compiled(fn, [np.array([1, 2]), np.array(3)])
    assert run_both_ways(program, [np.array([1, 2]), np.array(3)])[0] == 0
    assert run_both_ways(program, [np.array([1, 7]), np.array(-1)])[0] == -1


def test_guards_report_the_first_that_fails():
    def fn(x):
        y = x * 2.0 if x[0] > 0 else x
        return (y + 1.0,) if int(y.sum()) == 6 else (y,)

    program = compiled(fn, [np.array([1.0, 2.0])])
    assert run_both_ways(program, [np.array([1.5, 1.6])])[0] == 0
    assert run_both_ways(program, [np.array([-1.0, 4.0])])[0] == 1
    assert run_both_ways(program, [np.array([1.0, 9.0])])[0] == 2


# ---------------------------------------------------------------------------------- random programs


def test_random_programs_agree_with_eager():
    check_random(25, 20)


def test_random_programs_of_many_kernels_agree_with_eager(many_kernels):
    check_random(20, 15)


@pytest.mark.slow
def test_many_random_programs_agree_with_eager():
    check_random(400, 30)


@pytest.mark.slow
def test_many_random_programs_of_many_kernels_agree_with_eager(many_kernels):
    check_random(400, 30)


# ------------------------------------------------------------------------------------- every op


def elementwise_jobs(names):
    for name in names:
        op = ops.FORMULAS[name]
        random = np.random.default_rng(len(name))
        calls = [[ops.draw(d, random, (4, 6)) for d in op.domain] for _ in range(2)]
        yield name, attempt(ops.all_views(op, ops.VIEWS), *calls)


def structured_jobs(names):
    for name in names:
        op = ops.LOWERED[name]
        for dtype in ("float64", "float32"):
            for case in ops.cases(op):
                arrays = ops.as_dtype(case.arrays, dtype, 1)
                if not arrays or not ops.takes(lambda *xs, case=case: case.run(xs), arrays):
                    continue
                yield name, attempt(lambda *xs, case=case: tuple(case.run(xs)), arrays)


def check_all(jobs):
    with np.errstate(all="ignore"):
        made = [(name, job) for name, job in list(jobs) if job is not None]
        wrong = {name: found for name, job in made if (found := job.compare())}
    assert not wrong, wrong


def test_common_elementwise_ops_on_every_layout():
    check_all(elementwise_jobs("add div exp floor_divide where sigmoid lgamma remainder".split()))


@pytest.mark.slow
def test_every_elementwise_op_on_every_layout():
    check_all(elementwise_jobs(sorted(ops.FORMULAS.keys() - MAGNIFIED)))


@pytest.mark.slow
def test_every_structured_op_that_has_a_form():
    check_all(structured_jobs(sorted(ops.LOWERED.keys() - ops.ELSEWHERE.keys())))


def test_op_without_a_form_on_the_gpu_is_named():
    with pytest.raises(CompileError, match=r"(?s)iv.*CPU only.*runs eagerly"):
        compiled(lambda x: (probtorch.special.iv(x, x),), [np.ones(3)])


def test_programs_of_the_same_graph_have_the_same_text():
    x = rng.normal(size=(9, 30))
    texts = {compiled(lambda x: softmaxes(x) + sums(x), [x]).ir for _ in range(3)}
    assert len(texts) == 1


# -------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("name", [op.name for op in REGISTRY.values() if "sampler" in op.extra])
def test_draws_by_rejection_have_the_bits_of_eager_ones(copies, name):
    size = 3000
    rates = np.exp(rng.uniform(-8.0, 12.0, size))
    given = [rates]
    if name == "binomial_draw":
        given = [np.floor(rates) + 2.0, rng.uniform(0.0, 1.0, size)]
    elif name == "progeny_draw":
        given = [rates, rng.uniform(0.0, 1.0, size)]
    elif name == "polya_gamma_draw":
        given = [np.floor(rng.uniform(0.0, 4.0, size)), *rng.uniform(0.1, 0.9, (2, size))]
    inputs = [*given, np.array(3), np.array(5), np.arange(7, 7 + size)]
    program = compiled(lambda *xs: (apply(REGISTRY[name], xs),), inputs)
    status, (got,) = run_both_ways(program, inputs)
    expected = apply(REGISTRY[name], tuple(map(wrap, inputs))).array
    if copies is None:
        # CUDA's normal quantile is not SciPy's: some draws belong to another attempt.
        assert np.mean(np.isclose(got, expected, rtol=1e-12)) > 0.99
    else:
        np.testing.assert_array_equal(got, expected)
    assert status == 0
    inputs[0][5] = -1.0
    assert run_both_ways(program, inputs)[0] == -1


def test_integer_draws_have_the_bits_of_eager_ones():
    def fn(x):
        return (probtorch.randint(-5, 2**40, (50,), generator=Generator(4)) + x,)

    program, x = compiled(fn, [np.zeros(50, np.int64)]), np.zeros(50, np.int64)
    _, (got,) = run_both_ways(program, [x])
    np.testing.assert_array_equal(got, fn(wrap(x))[0].array)
