"""Matrix kernels of generated CUDA C, run on the processor, against NumPy and what defines them.

Each runs by 1, 2 and 3 blocks and in either order of threads, and must give the same bits. Products
are of small integers, so they are exact; factors and solutions are measured by their residuals, in
units in the last place of the matrices, as LAPACK's own tests do.
"""

import inspect
import types

import numpy as np
import pytest

import probtorch
from probtorch.compiler.lang.cuda import ROOM, THREADS
from probtorch.compiler.render import cuda_calls
from probtorch.compiler.render.cuda_math import runtime_text
from probtorch.compiler.render.cuda_schedule import HostLoop, Launch, LibraryCall
from probtorch.core.dispatch import wrap
from probtorch.core.op import REGISTRY
from probtorch.ops.control import while_loop
from tests.backends import host_gpu
from tests.compiler.gpu_programs import Job, compiled, put_in_place, run_both_ways
from tests.compiler.test_cuda_source import assert_compiles, needs_nvcc

pytestmark = host_gpu.needs_gxx

TYPES = {np.float64: "double", np.float32: "float"}


def at_night(*values):
    """Values of a parameter for the slow run alone."""
    return pytest.param(*values, marks=pytest.mark.slow)


DTYPES = pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())

WALL = 2000

LETTERS = {"double": "d", "float": "s"}
# Of each function: arrays, numbers, and what it does not look at.
KERNELS = {
    "gemm": "aaannnnnnnnnn",
    "gemm_wide": "aaannnnnnnnnn",
    "cholesky": "annn",
    "cholesky_together": "annn",
    "trsm": "aannnnnn",
    "trsm_wide": "aannnnnn",
    "solve": "aannn0",
    "inv": "aann0n",
    "slogdet": "aaann0",
    "det": "aa0nn0",
}


def kernel(name, ty):
    params, passed = [], []
    for i, kind in enumerate(KERNELS[name]):
        passed.append("0" if kind == "0" else f"x{i}")
        params += [] if kind == "0" else [f"char *x{i}" if kind == "a" else f"i64 x{i}"]
    # Arrays come before numbers.
    params.sort(key=lambda p: "*" not in p)
    return (
        f'extern "C" __global__ void {name}_{ty}(char *M, {", ".join(params)}) {{\n{ROOM}\n'
        f"pt_{name}_{LETTERS[ty]}(M, shared, blockIdx.x, gridDim.x, {', '.join(passed)});\n}}\n"
    )


def source():
    kernels = "".join(kernel(name, ty) for name in KERNELS for ty in TYPES.values())
    return runtime_text(f"pt_{name}_{p}" for name in KERNELS for p in "ds") + kernels


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvcc_takes_every_function_in_either_precision(tmp_path, architecture):
    assert_compiles([source()], tmp_path, architecture)


@pytest.fixture(scope="module")
def run():
    """Return a function that runs a kernel on copies of arrays; it returns the status and them."""
    (module,) = host_gpu.compile_all([source()])

    def once(name, arrays, numbers, blocks):
        status = np.zeros(2, np.int64)  # and the words of `pt_meet`
        # Between walls of nan, which would show where they are read.
        walled = [np.pad(x, WALL, constant_values=np.nan) for x in arrays]
        copies = [x[WALL:-WALL] for x in walled]
        addresses = [host_gpu.address(x) for x in (status, *copies)]
        ty = TYPES[arrays[0].dtype.type]
        passed, together = [*addresses, *map(int, numbers)], name.endswith("_together")
        module.launch(f"{name}_{ty}", blocks, THREADS, passed, together=together)
        for x in walled:
            assert np.isnan(x[:WALL]).all() and np.isnan(x[-WALL:]).all(), "stores out of bounds"
        return int(status[0]), copies

    def run(name, arrays, *numbers):
        found = []
        for blocks, backwards in ((1, False), (1, True), (2, True), (3, False)):
            host_gpu.Module.backwards = backwards
            try:
                found.append(once(name, arrays, numbers, blocks))
            finally:
                host_gpu.Module.backwards = False
        for status, other in found[1:]:
            assert status == found[0][0]
            for a, b in zip(found[0][1], other, strict=True):
                assert a.tobytes() == b.tobytes(), "the result depends on blocks or their order"
        return found[0]

    return run


def by_columns(x):
    """Return what a kernel gets of a batch of matrices."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(-1)


def matrices(flat, *shape):
    """Return a batch of matrices from memory by columns."""
    *batch, m, n = shape
    return flat[: np.prod(shape, dtype=int)].reshape(*batch, n, m).swapaxes(-1, -2)


def norm(x):
    return np.abs(x).sum(-1).max(-1)


# ----------------------------------------------------------------------------------------- products


def integers(rng, shape, dtype):
    return rng.integers(-4, 5, shape).astype(dtype)


def placed(x, turned, offset, extra):
    """Return memory with a matrix in it and the steps along its rows and columns."""
    y = x.T if turned else x
    ld = y.shape[1] + extra
    memory = np.full(offset + y.shape[0] * ld, np.nan, x.dtype)
    memory[offset:].reshape(y.shape[0], ld)[:, : y.shape[1]] = y
    return memory, [1, ld] if turned else [ld, 1]


PRODUCTS = [(1, 1, 1), (2, 3, 5), (64, 64, 16), (65, 131, 37), (3, 70, 300), (130, 7, 1), (5, 4, 0)]


@DTYPES
@pytest.mark.parametrize("name", ["gemm", "gemm_wide"])
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_products_are_exact_in_every_orientation(run, name, dtype, turned):
    rng = np.random.default_rng(1)
    for m, n, k in PRODUCTS:
        a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)
        for offset, extra in ((0, 0), (3, 2)):
            left, down = placed(a, turned[0], offset, extra)
            right, along = placed(b, turned[1], 2 * offset, extra)
            out = np.full(m * n, np.nan, dtype)
            steps = [*down, *along, 0, 0, 1]
            got = run(name, [left[offset:], right[2 * offset :], out], m, n, k, *steps)[1][2]
            np.testing.assert_array_equal(got.reshape(m, n), a @ b, str((m, n, k, offset)))


@DTYPES
@pytest.mark.parametrize("name", ["gemm", "gemm_wide"])
def test_products_of_batches_are_exact(run, name, dtype):
    rng = np.random.default_rng(2)
    a, b = integers(rng, (4, 70, 9), dtype), integers(rng, (4, 9, 66), dtype)
    for shared in (False, True):
        right = b[:1] if shared else b
        arrays = [a.ravel(), right.ravel(), np.full(4 * 70 * 66, np.nan, dtype)]
        steps = 9, 1, 66, 1, 70 * 9, 0 if shared else 9 * 66, 4
        got = run(name, arrays, 70, 66, 9, *steps)[1][2].reshape(4, 70, 66)
        np.testing.assert_array_equal(got, a @ right)


@DTYPES
def test_nan_and_infinities_stay_in_their_rows_and_columns(run, dtype):
    a, b = np.ones((70, 20), dtype), np.ones((20, 66), dtype)
    a[3, 7], a[5, 0], b[2, 65] = np.nan, np.inf, -np.inf
    arrays = [a.ravel(), b.ravel(), np.zeros(70 * 66, dtype)]
    got = run("gemm_wide", arrays, 70, 66, 20, 20, 1, 66, 1, 0, 0, 1)[1][2].reshape(70, 66)
    expected = np.full((70, 66), 20.0)
    expected[5], expected[:, 65], expected[3], expected[5, 65] = np.inf, -np.inf, np.nan, np.nan
    np.testing.assert_array_equal(got, expected)


# ---------------------------------------------------------------------------------------- triangles


def definite(rng, dtype, *shape):
    """Symmetric positive definite matrices, with nan above the diagonal, where nobody may look."""
    x = rng.normal(size=(*shape, shape[-1] + 2))
    a = (x @ x.swapaxes(-1, -2)).astype(dtype)
    return a, a + np.triu(np.full(shape[-1:] * 2, np.nan, dtype), 1)


CHOLESKY = pytest.mark.parametrize("name", ["cholesky", "cholesky_together"])


@DTYPES
@CHOLESKY
@pytest.mark.parametrize(
    "batch, n", [(2, 1), (3, 2), (2, 16), (4, 17), (2, 37), (1, 127), (1, 290)]
)
def test_cholesky_factors_have_residuals_of_rounding(run, dtype, name, batch, n):
    a, given = definite(np.random.default_rng(n), dtype, batch, n)
    status, (got,) = run(name, [np.where(np.isnan(given), 7, given).ravel()], n, batch, 1)
    factor = got.reshape(batch, n, n).astype(np.float64)
    assert status == 0
    assert (np.triu(factor, 1) == 0).all() and (np.diagonal(factor, 0, 1, 2) > 0).all()
    error = norm(factor @ factor.swapaxes(-1, -2) - a)
    assert (error < n * np.finfo(dtype).eps * norm(a)).all()
    np.testing.assert_array_equal(run(name, [given.ravel()], n, batch, 1)[1][0], got)


@DTYPES
@CHOLESKY
@pytest.mark.parametrize("n, at", [(1, 0), at_night(5, 4), at_night(16, 15), (17, 16), (70, 33)])
@pytest.mark.parametrize("value", [at_night(0.0), -1.0, np.nan])
def test_indefinite_matrices_fail_and_spare_the_others(run, dtype, name, n, at, value):
    a = np.stack([np.eye(n, dtype=dtype) * 4] * 3)
    a[1, at, at] = value
    for check in (1, 0):
        status, (got,) = run(name, [a.ravel()], n, 3, check)
        expected = a / 2
        expected[1] = np.nan
        assert status == -check
        np.testing.assert_array_equal(got.reshape(3, n, n), expected)


@DTYPES
@pytest.mark.parametrize("name", ["trsm", "trsm_wide"])
@pytest.mark.parametrize("n, m", [(1, 1), (2, 3), (16, 1), (17, 70), (45, 2), (270, 1), (131, 129)])
def test_triangular_solutions_have_residuals_of_rounding(run, dtype, name, n, m):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(2, n, n)) / n + np.eye(n) * rng.choice([-2.0, 2.0], (2, n, 1))
    a, b = a.astype(dtype), rng.normal(size=(2, n, m)).astype(dtype)
    for upper, unit in np.ndindex(2, 2):
        kept = (np.triu if upper else np.tril)(a.astype(np.float64), (2 * upper - 1) * unit)
        kept = kept + unit * np.eye(n)
        given = np.where((np.triu if upper else np.tril)(np.ones((n, n))) > 0, a, np.nan)
        if unit:
            given[:, range(n), range(n)] = np.nan
        for shared in (False, True):
            arrays = [(given[:1] if shared else given).ravel(), b.ravel()]
            flags = upper, unit, 2, 0 if shared else n * n
            x = run(name, arrays, n, m, *flags)[1][1].reshape(2, n, m).astype(np.float64)
            left = kept[:1] if shared else kept
            size = norm(left) * norm(x) + norm(b)
            assert (norm(left @ x - b) < n * np.finfo(dtype).eps * size).all()


# -------------------------------------------------------------------------------------- elimination

SIZES = [
    (1, 1, 1),
    (2, 3, 2),
    at_night(3, 16, 1),
    (4, 17, 5),
    (2, 37, 40),
    at_night(1, 127, 3),
    at_night(1, 260, 70),
]


@DTYPES
@pytest.mark.parametrize("batch, n, m", SIZES)
def test_solutions_have_residuals_of_rounding(run, dtype, batch, n, m):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(batch, n, n)).astype(dtype)
    b = rng.normal(size=(batch, n, m)).astype(dtype)
    status, (_, x) = run("solve", [by_columns(a), by_columns(b)], n, m, batch)
    x = matrices(x, batch, n, m).astype(np.float64)
    assert status == 0
    size = norm(a.astype(np.float64)) * norm(x) + norm(b)
    assert (norm(a @ x - b) < n * np.finfo(dtype).eps * size).all()
    if dtype == np.float64:
        condition = np.linalg.cond(a, np.inf)
        error = norm(x - np.linalg.solve(a, b)) / norm(x)
        assert (error < 4 * n * np.finfo(dtype).eps * condition).all()


@DTYPES
@pytest.mark.parametrize("batch, n, m", SIZES)
def test_inverses_have_residuals_of_rounding(run, dtype, batch, n, m):
    rng = np.random.default_rng(n + 1)
    a = rng.normal(size=(batch, n, n)).astype(dtype)
    out = np.full(a.size, np.nan, dtype)
    status, (_, x) = run("inv", [by_columns(a), out], n, batch, 1)
    x = matrices(x, batch, n, n).astype(np.float64)
    assert status == 0
    size = norm(a.astype(np.float64)) * norm(x)
    assert (norm(a @ x - np.eye(n)) < n * np.finfo(dtype).eps * size).all()


@DTYPES
@pytest.mark.parametrize("n", [1, 2, at_night(16), 19, at_night(40), at_night(270)])
def test_determinants_are_those_of_exchanged_and_scaled_rows(run, dtype, n):
    """Of P L U with known factors, so the sign is known and zeros lead the first columns."""
    rng = np.random.default_rng(n)
    lower = np.tril(integers(rng, (3, n, n), float), -1) / (4 * n) + np.eye(n)
    upper = np.triu(rng.normal(size=(3, n, n)), 1) / n
    diagonal = np.exp(rng.uniform(-1.0, 1.0, (3, n))) * rng.choice([-1.0, 1.0], (3, n))
    upper[:, range(n), range(n)] = diagonal
    orders = [np.roll(np.arange(n), 1), np.arange(n)[::-1], rng.permutation(n)]
    parity = np.array([np.linalg.det(np.eye(n)[o]) for o in orders]).round()
    a = np.stack([(lo @ up)[o] for lo, up, o in zip(lower, upper, orders, strict=True)])
    a = a.astype(dtype)
    sign, log = parity * np.sign(diagonal).prod(1), np.log(np.abs(diagonal)).sum(1)
    space = [by_columns(a), np.full(3, np.nan, dtype), np.full(3, np.nan, dtype)]
    _, (_, signs, logs) = run("slogdet", space, n, 3)
    _, (_, dets) = run("det", space[:2], n, 3)
    units = 8 * n * np.finfo(dtype).eps
    np.testing.assert_array_equal(signs, sign)
    np.testing.assert_allclose(logs, log, atol=units, rtol=units)
    np.testing.assert_allclose(dets, sign * np.exp(log), rtol=units * max(1.0, np.abs(log).max()))


@DTYPES
@pytest.mark.parametrize("n", [2, 16, 33, 300])
def test_permutations_are_solved_without_rounding(run, dtype, n):
    rng = np.random.default_rng(n)
    order = np.roll(np.arange(n), n - 1)
    a, b = np.eye(n, dtype=dtype)[order], integers(rng, (n, 3), dtype)
    status, (_, x) = run("solve", [by_columns(a), by_columns(b)], n, 3, 1)
    assert status == 0
    np.testing.assert_array_equal(matrices(x, n, 3), a.T @ b)
    out = run("inv", [by_columns(a), np.empty(n * n, dtype)], n, 1, 1)[1][1]
    np.testing.assert_array_equal(matrices(out, n, n), a.T)


def singular(n, dtype):
    """A batch of three, of which the second is singular without rounding."""
    a = np.stack([np.eye(n)] * 3).astype(dtype) * 2
    a[1, n - 1] = a[1, 0]
    return a


@DTYPES
@pytest.mark.parametrize("n", [1, 2, 17, 40])
def test_singular_matrices_fail_and_spare_the_others(run, dtype, n):
    a = singular(n, dtype) if n > 1 else np.array([[[2.0]], [[0.0]], [[2.0]]], dtype)
    b = np.ones((3, n, 2), dtype)
    status, (_, x) = run("solve", [by_columns(a), by_columns(b)], n, 2, 3)
    assert status == -1
    np.testing.assert_array_equal(matrices(x, 3, n, 2)[[0, 2]], 0.5)
    for check in (1, 0):
        status, (_, x) = run("inv", [by_columns(a), np.zeros(a.size, dtype)], n, 3, check)
        assert status == -check
        expected = np.stack([np.eye(n) / 2, np.full((n, n), np.nan), np.eye(n) / 2])
        np.testing.assert_array_equal(matrices(x, 3, n, n), expected)
    space = [by_columns(a), np.ones(3, dtype), np.ones(3, dtype)]
    _, (_, signs, logs) = run("slogdet", space, n, 3)
    np.testing.assert_array_equal(signs, [1.0, 0.0, 1.0])
    np.testing.assert_allclose(logs, [n * np.log(2.0), -np.inf, n * np.log(2.0)], rtol=1e-6)
    np.testing.assert_array_equal(run("det", space[:2], n, 3)[1][1][1], 0.0)


@DTYPES
@pytest.mark.parametrize("n", [1, 5, 20])
def test_nan_comes_out_where_a_matrix_has_it(run, dtype, n):
    rng = np.random.default_rng(n)
    a = (rng.normal(size=(2, n, n)) + 5 * np.eye(n)).astype(dtype)
    a[1, 0, n - 1] = np.nan
    b = np.ones((2, n, 1), dtype)
    status, (_, x) = run("solve", [by_columns(a), by_columns(b)], n, 1, 2)
    x = matrices(x, 2, n, 1)
    assert status == 0
    assert np.isfinite(x[0]).all() and np.isnan(x[1]).any()
    np.testing.assert_array_equal(np.isnan(x[1]), np.isnan(np.linalg.solve(a[1], b[1])))
    _, (_, _, logs) = run("slogdet", [by_columns(a), b[:, 0, 0], b[:, 0, 0]], n, 2)
    assert np.isfinite(logs[0]) and np.isnan(logs[1])


@DTYPES
def test_the_largest_pivot_is_taken_from_every_row(run, dtype):
    """Else the solution would lose all digits; the first of equal ones decides the sign."""
    n, tiny = 270, np.finfo(dtype).eps / 8
    for row in (1, 200, 269):
        a = np.eye(n, dtype=dtype)
        a[0, 0], a[0, row], a[row, 0], a[row, row] = tiny, 1, 1, 1
        b = np.ones((n, 1), dtype)
        b[row] = 2
        x = run("solve", [by_columns(a), by_columns(b)], n, 1, 1)[1][1]
        np.testing.assert_allclose(x, 1.0, rtol=4 * np.finfo(dtype).eps)


@DTYPES
def test_nan_is_a_pivot_where_it_comes_first_only(run, dtype):
    """So one of these is singular, to LAPACK too."""
    first = np.array([[[np.nan, 0.0], [0.0, 1.0]]], dtype)
    status, (_, x) = run("inv", [by_columns(first), np.zeros(4, dtype)], 2, 1, 1)
    assert status == 0
    assert np.isnan(x[0]) and np.isnan(np.linalg.inv(first)[0, 0, 0])
    second = np.array([[[0.0, 1.0], [np.nan, 1.0]]], dtype)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.inv(second)
    assert run("inv", [by_columns(second), np.zeros(4, dtype)], 2, 1, 1)[0] == -1


# ----------------------------------------------------------------------------------------- programs


@pytest.fixture
def programs(monkeypatch):
    put_in_place("fake", monkeypatch)


def library_calls(program):
    return [s for s in program.schedule.steps if isinstance(s, LibraryCall)]


def gradients(fn):
    """Return a function that gives results and the gradients of a sum over them."""

    def both(*xs):
        xs = [x.detach().requires_grad_() for x in xs]
        out = fn(*xs)
        weighted = [(y * y.detach().cos()).sum() for y in out]
        return (*out, *probtorch.autograd.grad(sum(weighted), xs))

    return both


def solved(a, b):
    return probtorch.linalg.solve(a, b), probtorch.linalg.solve(a.mT, b * 2.0, left=True)


def inverses(a):
    return probtorch.linalg.inv(a), probtorch.linalg.slogdet(a)[1], probtorch.linalg.det(a)


def factored(a, b):
    factor = probtorch.linalg.cholesky(a @ a.mT)
    return factor, probtorch.linalg.solve_triangular(factor.mT, b, upper=True)


def orthogonal(a):
    q, r = probtorch.linalg.qr(a)
    return q, r, probtorch.linalg.qr(a[..., :-2])[1]


@pytest.mark.parametrize(
    "batch, n, dtype",
    [
        ((), 1, np.float64),
        ((), 5, np.float32),
        ((3,), 6, np.float64),
        ((2, 1), 19, np.float32),
        ((), 41, np.float64),
    ],
)
def test_programs_agree_with_eager_execution(programs, dtype, batch, n):
    rng = np.random.default_rng(n)
    a = (rng.normal(size=(*batch, n, n)) / (2 * n**0.5) + np.eye(n)).astype(dtype)
    b = rng.normal(size=(*batch, n, 3)).astype(dtype)
    jobs = [
        Job(gradients(solved), [a, b]),
        Job(gradients(factored), [a, b]),
        Job(gradients(lambda a: inverses(a)[:2]), [a]),
        Job(inverses, [a]),
    ]
    with np.errstate(all="ignore"):
        for job in jobs:
            assert not library_calls(job.program)
            assert not job.compare()


def test_factors_by_reflections_are_the_library_s(programs):
    tall = np.random.default_rng(7).normal(size=(2, 9, 7))
    job = Job(gradients(orthogonal), [tall])
    assert len(library_calls(job.program)) == 2
    assert not job.compare()

    def again(a):
        """Two steps of a loop whose flag the host reads."""
        return while_loop(
            lambda s: s[0] < 2,
            lambda s: (s[0] + 1, probtorch.linalg.qr(s[1])[0] + s[1]),
            (wrap(np.array(0)), a * 1.0),
        )

    job = Job(again, [tall])
    assert any(isinstance(s, HostLoop) for s in job.program.schedule.steps)
    assert not job.compare()


def test_loops_on_the_device_hold_factors_and_solves(programs):
    """Newton's iteration for the sign of a matrix."""
    rng = np.random.default_rng(8)
    a = rng.normal(size=(2, 30, 30)) / 20 + np.eye(30)

    def step(state):
        n, x, size = state
        new = 0.5 * (x + probtorch.linalg.inv(x))
        return n + 1, new, size + probtorch.linalg.slogdet(new)[1]

    def fn(a, size):
        n, x, size = while_loop(lambda s: s[0] < 9, step, (wrap(np.array(0)), a * 1.0, size))
        return n, x, size, probtorch.linalg.solve(x, a)

    job = Job(fn, [a, np.zeros(2)])
    launches = [s for s in job.program.schedule.steps if isinstance(s, Launch)]
    assert not library_calls(job.program) and any(s.together for s in launches)
    assert not job.compare()


def test_factors_that_cannot_fail_need_no_check(programs):
    a = np.random.default_rng(6).normal(size=(9, 9))
    assert not compiled(lambda a: probtorch.linalg.slogdet(a), [a]).schedule.checked
    assert compiled(lambda a: (probtorch.linalg.inv(a),), [a]).schedule.checked


def test_gradients_of_determinants_agree_with_eager_execution(programs):
    a = np.random.default_rng(2).normal(size=(2, 5, 5))
    assert not Job(gradients(lambda a: (probtorch.linalg.det(a),)), [a]).compare()


def test_programs_end_where_a_matrix_is_singular(programs):
    a, b = singular(8, np.float64), np.ones((3, 8, 1))
    good = a + np.eye(8)
    program = compiled(lambda a, b: (probtorch.linalg.solve(a, b),), [good, b])
    assert run_both_ways(program, [good, b])[0] == 0
    assert run_both_ways(program, [a, b])[0] == -1
    program = compiled(lambda a: (probtorch.linalg.inv(a), probtorch.linalg.slogdet(a)[0]), [good])
    assert run_both_ways(program, [good])[0] == 0
    assert run_both_ways(program, [a])[0] == -1
    program = compiled(lambda a: probtorch.linalg.slogdet(a), [good])
    status, (signs, _) = run_both_ways(program, [a])
    assert status == 0
    np.testing.assert_array_equal(signs, [1.0, 0.0, 1.0])


def test_large_matrices_are_left_to_the_library(programs, monkeypatch):
    monkeypatch.setattr(cuda_calls, "_OWN_MATRIX", 8)
    a = np.random.default_rng(3).normal(size=(9, 9)) + 5 * np.eye(9)

    def fn(a):
        return (*solved(a, a[:, :1]), *inverses(a), *orthogonal(a))

    job = Job(fn, [a])
    assert len(library_calls(job.program)) == 7
    assert not job.compare()


def test_large_matrices_are_factored_by_all_blocks(programs, monkeypatch):
    monkeypatch.setattr(cuda_calls, "_OWN_MATRIX", 8)
    rng = np.random.default_rng(6)
    a = rng.normal(size=(100, 100)) / 30 + np.eye(100)

    def again(a):
        """Three steps of a loop on the device around it."""
        return while_loop(
            lambda s: s[0] < 3,
            lambda s: (s[0] + 1, probtorch.linalg.cholesky(s[1] @ s[1].mT)),
            (wrap(np.array(0)), a * 1.0),
        )

    for fn in (gradients(lambda a: factored(a, a[:, :2])), again):
        job = Job(fn, [a])
        launches = [s for s in job.program.schedule.every_step() if isinstance(s, Launch)]
        assert any(s.together for s in launches)
        assert not library_calls(job.program) and job.program.schedule.checked
        assert not job.compare()
    program = compiled(lambda a: (probtorch.linalg.cholesky(a),), [np.eye(100)])
    assert run_both_ways(program, [np.eye(100) - 2.0 * np.eye(100)[70]])[0] == -1


def test_wide_products_are_made_in_large_tiles(programs, monkeypatch):
    monkeypatch.setattr(cuda_calls, "_WIDE_TILES", 2)
    rng = np.random.default_rng(4)

    def fn(a, b):
        return a @ b, a.T @ a, b[:, 1:] @ b[:, 1:].T, a[:5] @ b[:, :7]

    job = Job(fn, [rng.normal(size=(130, 100)), rng.normal(size=(100, 120))])
    assert job.program.ir.count("pt_gemm_wide_d(M, shared, blockIdx.x") == 3
    assert not library_calls(job.program)
    assert not job.compare()


@pytest.mark.parametrize("tiles", [2, 64])
@pytest.mark.parametrize("limit", [0, 2**23])
def test_products_of_batches_are_ours_or_the_library_s(programs, monkeypatch, tiles, limit):
    """In every order of memory, and with one matrix for all."""
    monkeypatch.setattr(cuda_calls, "_OWN_PRODUCT", limit)
    monkeypatch.setattr(cuda_calls, "_OWN_WIDE_PRODUCT", limit)
    monkeypatch.setattr(cuda_calls, "_WIDE_TILES", tiles)
    rng = np.random.default_rng(5)

    def fn(a, b):
        return a @ b, a.mT @ a, b[0, :, :9].mT @ b, a.mT @ b[0], a[:, ::2] @ b

    job = Job(fn, [rng.normal(size=(3, 50, 50)), rng.normal(size=(3, 50, 60))])
    assert len(library_calls(job.program)) == (5 if limit == 0 else 0)
    assert not job.compare()


# What goes through CuPy: the numbers of a call, its arrays, and what NumPy makes of the first ones.
THROUGH_CUPY = {
    "solve": ("nmb", ["nn", "nm"], lambda a, b: {1: np.linalg.solve(a, b)}),
    "inv": ("nb", ["nn", "nn"], lambda a, _: {1: np.linalg.inv(a)}),
    "slogdet": ("nb", ["nn", "", ""], lambda a, *_: dict(enumerate(np.linalg.slogdet(a), 1))),
    "det": ("nb", ["nn", ""], lambda a, _: {1: np.linalg.det(a)}),
    "eigh": ("nb", ["nn", "n"], lambda a, _: dict(zip((1, 0), np.linalg.eigh(a), strict=True))),
    "svd": (
        "mnb",
        ["mn", "mk", "k", "kn"],
        lambda a, *_: dict(enumerate(np.linalg.svd(a, full_matrices=False), 1)),
    ),
    "qr": ("mnb", ["mn", "mk", "kn"], lambda a, *_: dict(enumerate(np.linalg.qr(a), 1))),
}


@pytest.mark.parametrize("name", THROUGH_CUPY)
def test_what_goes_through_cupy_is_left_where_the_program_looks_for_it(name):
    numbers, places, truth = THROUGH_CUPY[name]
    size = {"m": 5, "n": 3, "k": 3, "b": 2}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((size["b"], *(size[d] for d in dims))) for dims in places]
    if name == "eigh":
        arrays[0] = arrays[0] + arrays[0].swapaxes(1, 2)
    expected = truth(*arrays)
    flat = [(x.swapaxes(1, 2) if x.ndim == 3 else x).ravel() for x in arrays]
    op = REGISTRY[name]
    attrs = {"check": False} if "check" in inspect.signature(op.run).parameters else {}
    node = types.SimpleNamespace(op=op, attrs=attrs)
    cuda_calls.LIBRARY[name](
        np, flat, {"numbers": [size[letter] for letter in numbers], "node": node}
    )
    for i, x in expected.items():
        found = flat[i].reshape(x.swapaxes(1, 2).shape).swapaxes(1, 2) if x.ndim == 3 else flat[i]
        found = found.reshape(x.shape)
        if x.ndim == 3 and name in ("eigh", "svd", "qr"):
            found, x = abs(found), abs(x)  # the signs of vectors are up to whoever finds them
        np.testing.assert_allclose(found, x, rtol=1e-12, atol=1e-12)
