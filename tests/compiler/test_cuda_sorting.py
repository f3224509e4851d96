"""Sorting and searching as CUDA C, run on the processor, against NumPy and Python's `sorted`."""

import numpy as np
import pytest

import probtorch
from probtorch.compiler.lang.cuda import ROOM, THREADS
from probtorch.compiler.lang.routines import sorting
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.render import cuda_calls
from probtorch.compiler.render.cuda_math import runtime_text
from probtorch.compiler.render.cuda_schedule import HostLoop, LibraryCall
from probtorch.core.dispatch import wrap
from probtorch.ops.control import while_loop
from tests.backends import host_gpu
from tests.backends.host_gpu import Module
from tests.compiler.gpu_programs import SEAMS, Job, put_in_place

DTYPES = "float64 float32 int64 int32 int16 int8 uint8 bool".split()

pytestmark = host_gpu.needs_gxx

# Name: what a kernel of the test passes on.
KERNELS = {
    "argsort": "char *x, i64 rows, i64 n, i64 descending, char *out",
    "order_statistic": "char *x, i64 rows, i64 n, i64 k, char *out",
    "searchsorted": "char *x, char *v, i64 rows, i64 n, i64 count, i64 right, char *out",
}


def instantiations(names=KERNELS):
    """Return a source with functions for every type."""
    symbols, texts = [], []
    for name in names:
        parameters = KERNELS[name]
        passed = [p.split()[-1].lstrip("*") for p in parameters.split(", ")]
        passed += ["0"] * (name != "searchsorted")
        for dtype in DTYPES:
            symbols.append(f"pt_{name}_{ir_type(dtype)}")
            texts.append(
                f'extern "C" __global__ void {name}_{dtype}({parameters}) {{\n{ROOM}\n'
                f"{symbols[-1]}(0, shared, blockIdx.x, gridDim.x, {', '.join(passed)});\n}}"
            )
    return "\n".join([runtime_text(symbols), *texts])


@pytest.fixture(scope="module")
def module():
    return host_gpu.compile_all([instantiations()])[0]


@pytest.fixture(scope="module", params=["counting", "selecting"])
def statistic(request):
    """Order statistics by either way, whatever the length of a row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "SHORT_ROW", 2**40 if request.param == "counting" else 0)
        return host_gpu.compile_all([instantiations(["order_statistic"])])[0]


def run(module, name, arguments, out):
    """Run a kernel by 1, 2 and many blocks in either order; returns the one result."""
    passed = [host_gpu.address(a) if isinstance(a, np.ndarray) else a for a in arguments]
    found = []
    for blocks in (1, 2, 17):
        for Module.backwards in (False, True):
            # What is not written shows: no index and no number is like this.
            out.view(np.uint8)[...] = 0xA5
            try:
                module.launch(name, blocks, THREADS, [*passed, host_gpu.address(out)])
            finally:
                Module.backwards = False
            found.append(out.copy())
    assert len({a.tobytes() for a in found}) == 1, "depends on the number or order of threads"
    return found[0]


def rows_of(dtype, rows, n, seed=0):
    """Rows with many ties, extremes, and, of floats, nan, infinities and zeros of both signs."""
    rng = np.random.default_rng([seed, rows, n])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, (rows, n)) > 0
    if kind in "iu":
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, (rows, n), dtype, endpoint=True)
        few = rng.choice(np.array([info.min, 0, 1, 2, info.max], dtype), (rows, n))
        return np.where(rng.random((rows, n)) < 0.6, few, x)
    x = rng.standard_normal((rows, n)) * np.exp(rng.uniform(-30.0, 30.0, (rows, n)))
    tiny = float(np.finfo(dtype).smallest_subnormal)
    few = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1.0, -1.0]
    return np.where(rng.random((rows, n)) < 0.6, rng.choice(few, (rows, n)), x).astype(dtype)


def sorted_places(x, descending=False):
    """Indices that sort the rows, by `sorted`."""

    def key(v):
        v = v.item()
        above = v != v
        return (above, 0 if above else v)

    out = [sorted(range(x.shape[1]), key=lambda i, r=r: key(r[i]), reverse=descending) for r in x]
    return np.array(out, np.int64).reshape(x.shape)


SIZES = [(3, 1), (40, 2), (5, 7), (2, 8), (300, 9), (7, 64), (3, 257), (1, 509), (3, 2048)]
SIZES += [(2, 2053), (1, 5000)]


def test_numpy_and_sorted_agree_on_the_order():
    x = rows_of("float64", 4, 300)
    np.testing.assert_array_equal(sorted_places(x), np.argsort(x, 1, kind="stable"))


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_argsort_is_stable_with_nan_above_all(module, shape, descending):
    for dtype in ("float64", "float32"):
        x, out = rows_of(dtype, *shape), np.empty(shape, np.int64)
        got = run(module, f"argsort_{dtype}", [x, *shape, int(descending)], out)
        np.testing.assert_array_equal(got, sorted_places(x, descending))


@pytest.mark.parametrize("dtype", DTYPES)
def test_argsort_of_every_type(module, dtype):
    for shape in ((1, 1), (11, 2), (4, 131), (2, 1031)):
        x, out = rows_of(dtype, *shape), np.empty(shape, np.int64)
        for descending in (False, True):
            got = run(module, f"argsort_{dtype}", [x, *shape, int(descending)], out)
            np.testing.assert_array_equal(got, sorted_places(x, descending))


@pytest.mark.parametrize("n", [100, 3000])
@pytest.mark.parametrize("pattern", ["equal", "rising", "falling", "sawtooth"])
def test_argsort_of_rows_with_a_pattern(module, pattern, n):
    i = np.arange(n, dtype=np.float64)
    x = {"equal": i * 0.0, "rising": i, "falling": -i, "sawtooth": i % 7}[pattern][None]
    for descending in (False, True):
        got = run(module, "argsort_float64", [x, 1, n, int(descending)], np.empty((1, n), np.int64))
        np.testing.assert_array_equal(got, sorted_places(x, descending))


@pytest.mark.parametrize(
    "dtype",
    [
        d if d in ("float64", "int32", "bool") else pytest.param(d, marks=pytest.mark.slow)
        for d in DTYPES
    ],
)
def test_order_statistic_has_the_bits_of_the_element_in_stable_order(statistic, dtype):
    for rows, n, ks in ((3, 1, [0]), (5, 2, [0, 1]), (3, 8, [0, 3, 7]), (2, 1031, [515])):
        x = rows_of(dtype, rows, n)
        ordered = np.take_along_axis(x, sorted_places(x), 1)
        for k in ks:
            got = run(statistic, f"order_statistic_{dtype}", [x, rows, n, k], np.empty(rows, dtype))
            assert got.tobytes() == ordered[:, k].tobytes()


def test_every_order_statistic_of_zeros_and_nan_in_a_row(statistic):
    x = np.array([[0.0, np.nan, -0.0, -0.0, -np.nan, 0.0, -1.0, np.inf, -0.0]])
    ordered = np.take_along_axis(x, sorted_places(x), 1)
    for k in range(x.size):
        got = run(statistic, "order_statistic_float64", [x, 1, x.size, k], np.empty(1))
        assert got.tobytes() == ordered[:, k].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_searchsorted_finds_the_places_of_numpy(module, dtype):
    for rows, n, count in ((1, 1, 1), (1, 2, 300), (5, 37, 8), (3, 1031, 200), (300, 4, 3)):
        x = np.sort(rows_of(dtype, rows, n), axis=1)
        values = rows_of(dtype, rows, count, seed=1)
        for right in (False, True):
            arguments = [x, values, rows, n, count, int(right)]
            got = run(module, f"searchsorted_{dtype}", arguments, np.empty((rows, count), np.int64))
            side = "right" if right else "left"
            expected = [np.searchsorted(a, v, side) for a, v in zip(x, values, strict=True)]
            np.testing.assert_array_equal(got, expected)


# -------------------------------------------------------------------------------- whole programs


@pytest.fixture(params=SEAMS)
def seam(request, monkeypatch):
    return put_in_place(request.param, monkeypatch)


def with_ties(*shape):
    x = np.random.default_rng(shape).normal(size=shape)
    return np.where(np.abs(x) < 0.5, np.round(x, 1), x)


def with_gradient(fn):
    """A function that also gives the gradient of a sum over its first result."""

    def run(x, *others):
        x = x.detach().requires_grad_()
        out = fn(x, *others)
        weights = probtorch.arange(out[0].numel(), dtype=x.dtype).reshape(out[0].shape) + 1.0
        (g,) = probtorch.autograd.grad((out[0] * weights).sum(), x)
        return (*(t.detach() for t in out), g)

    return run


PROGRAMS = {
    "sort": lambda x: probtorch.sort(x * 2.0, 1),
    "sort down, dim 0": lambda x: probtorch.sort(x, 0, descending=True),
    "topk": lambda x: probtorch.topk(x.tanh(), 3, 1),
    "median": lambda x: probtorch.median(x, 1),
    "median of all": lambda x: (probtorch.median(x + 1.0), x.mean()),
    "kthvalue": lambda x: probtorch.kthvalue(x, 3, 0, keepdim=True),
    "quantile": lambda x: (probtorch.quantile(x, [0.1, 0.5, 0.93], 1), x.sum()),
    "quantile of all": lambda x: (probtorch.quantile(x.exp(), 0.3),),
}


@pytest.mark.parametrize("shape", [(4, 7), (3, 300), (70, 6)], ids=str)
def test_programs_with_gradients_agree_with_eager(seam, shape):
    spoiled = with_ties(*shape)
    spoiled[1, 2], spoiled[2, 1], spoiled[0, 0] = np.nan, np.inf, -0.0
    jobs = {
        (name, dtype): Job(
            with_gradient(fn), *([y.astype(dtype)] for y in (with_ties(*shape), spoiled))
        )
        for name, fn in PROGRAMS.items()
        for dtype in ("float64", "float32")
    }
    for job in jobs.values():
        assert not any(isinstance(s, LibraryCall) for s in job.program.schedule.steps)
    with np.errstate(all="ignore"):
        wrong = {key: found for key, job in jobs.items() if (found := job.compare())}
    assert not wrong


def test_argsort_of_integers_and_booleans_in_a_program(seam):
    def fn(i, b):
        return (
            *(probtorch.argsort(i, dim, down) for dim in (0, 1) for down in (False, True)),
            probtorch.argsort(b, 1),
            probtorch.median(i, 1)[0],
            probtorch.sort((i % 2 == 0), 0)[0],
        )

    i = np.random.default_rng(4).integers(-3, 4, (17, 40))
    jobs = [Job(fn, [i.astype(t), i > 0]) for t in ("int64", "int32", "int8")]
    for job in jobs:
        assert not job.compare()


def test_searchsorted_in_a_program(seam):
    def fn(edges, x):
        rows = probtorch.sort(edges, 1)[0]
        found = probtorch.searchsorted(rows, x, right=True)
        one = probtorch.searchsorted(rows[0], x)
        y = (x * 2.0).sin()
        return found, one, (rows.gather(1, found.clamp(max=rows.shape[1] - 1)) * y).sum(1)

    rng = np.random.default_rng(5)
    edges, x = with_ties(6, 31), np.round(rng.normal(size=(6, 50)), 1)
    other = x.copy()
    other[0, :3] = np.nan, np.inf, -np.inf
    job = Job(fn, [edges, x], [edges, other])
    assert not any(isinstance(s, LibraryCall) for s in job.program.schedule.steps)
    with np.errstate(all="ignore"):
        assert not job.compare()


@pytest.mark.parametrize("longest", [2**14, 8])
def test_sorting_in_a_loop_is_done_on_the_device(seam, monkeypatch, longest):
    monkeypatch.setattr(cuda_calls, "_LONG_ROW", longest)

    def shrink(x):
        """Pull values to their median until their quartiles are close."""

        def going(state):
            return probtorch.quantile(state[0], 0.75) - probtorch.quantile(state[0], 0.25) > 0.1

        def body(state):
            x, n = state
            return 0.7 * x + 0.3 * probtorch.median(x), n + 1

        return while_loop(going, body, (x * 1.0, wrap(np.array(0))))

    job = Job(shrink, [with_ties(37)], [3.0 * with_ties(37)])
    assert not any(isinstance(s, (HostLoop, LibraryCall)) for s in job.program.schedule.steps)
    assert not job.compare()


def test_long_rows_are_left_to_the_library(seam, monkeypatch):
    monkeypatch.setattr(cuda_calls, "_LONG_ROW", 30)
    fn = with_gradient(lambda x: (*probtorch.sort(x, 1), probtorch.median(x, 1)[0]))
    long, short = Job(fn, [with_ties(5, 31)]), Job(fn, [with_ties(5, 30)])
    for job, calls in ((long, True), (short, False)):
        assert calls == any(isinstance(s, LibraryCall) for s in job.program.schedule.steps)
        assert not job.compare()
