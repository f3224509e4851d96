"""The functions that generated CUDA C calls, run on the processor, against mpmath and SciPy."""

import mpmath
import numpy as np
import pytest
import scipy.special

from probtorch.compiler.lang.routines.incomplete import INCOMPLETE
from probtorch.compiler.render.cuda_math import NUMBERS, runtime_text
from probtorch.core.philox import philox_bits
from probtorch.ops.exact import normal_quantile, of_uniforms
from tests.backends import host_gpu

pytestmark = host_gpu.needs_gxx


def _lower_gamma(a, x):
    """The regularised incomplete gamma function by its series, at more digits than cancel."""
    with mpmath.workdps(250):
        term = total = 1 / mpmath.mpf(a)
        k = 0
        while term > total * mpmath.mpf(10) ** -240:
            k += 1
            term *= x / (a + k)
            total += term
        return total * mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a))


# Name, number of arguments, reference at high precision, and the largest relative error allowed.
ACCURACY = {
    "pt_lgamma": (1, lambda x: mpmath.loggamma(x).real, 1e-15),
    "pt_digamma": (1, mpmath.digamma, 1e-14),
    "pt_log_ndtr": (1, lambda x: mpmath.log(mpmath.ncdf(x)), 1e-14),
    "pt_betaln": (2, lambda a, b: mpmath.log(mpmath.beta(a, b)), 1e-14),
    "pt_gammainc": (2, _lower_gamma, 2e-13),
    "pt_gammaincc": (2, lambda a, x: 1 - _lower_gamma(a, x), 2e-13),
    "pt_betainc": (3, lambda a, b, x: mpmath.betainc(a, b, 0, x, regularized=True), 1e-13),
    "pt_zeta": (2, mpmath.zeta, 5e-14),
    "pt_i0e": (1, lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), 2e-15),
    "pt_i1e": (1, lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), 2e-15),
}


def points(name):
    """Arguments inside the domain of a function, small and large ones."""
    rng = np.random.default_rng(5)
    positive = np.exp(rng.uniform(-6.0, 6.0, 120))
    if name == "pt_log_ndtr":
        return [np.concatenate([rng.uniform(-40.0, 8.0, 120), [-1.0, 0.0]])]
    if name in ("pt_i0e", "pt_i1e"):
        return [np.concatenate([positive, -positive[:20], [19.999, 20.0, 20.001, 1e-8]])]
    if name == "pt_digamma":
        return [np.concatenate([positive, -positive[:30] - 0.25, [1.0, 10.0, 1e-9, 1e12]])]
    if name == "pt_lgamma":
        return [positive[np.abs(positive - 1.5) > 0.6]]
    if name == "pt_zeta":
        s, q = 1.0 + positive, np.exp(rng.uniform(-4.0, 6.0, positive.size))
        keep = np.abs(s * np.log(q)) < 500.0
        return [s[keep], q[keep]]
    second = np.exp(rng.uniform(-6.0, 6.0, 120))
    if name == "pt_betaln":
        # Away from B = 1, where the logarithm vanishes.
        keep = np.abs(scipy.special.betaln(positive, second)) > 0.1
        return [positive[keep], second[keep]]
    if name == "pt_betainc":
        x = rng.uniform(0.0, 1.0, 120)
        keep = scipy.special.betainc(positive, second, x) > 1e-200
        return [positive[keep], second[keep], x[keep]]
    # Near the middle, where both tails count, and one very large shape.
    x = positive * np.exp(rng.uniform(-2.0, 2.0, 120))
    a, x = np.append(positive, [3e5, 3e5]), np.append(x, [3e5, 3.01e5])
    tail = scipy.special.gammainc if name == "pt_gammainc" else scipy.special.gammaincc
    keep = tail(a, x) > 1e-200
    return [a[keep], x[keep]]


def kernel(name, arity):
    arguments = ", ".join(f"((double *)x{i + 1})[i]" for i in range(arity))
    params = ", ".join(f"char *x{i}" for i in range(arity + 1))
    return (
        runtime_text([name])
        + f'extern "C" __global__ void k1(char *M, {params}) {{'
        + "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
        + f"((double *)x0)[i] = {name}({arguments}); }}"
    )


@pytest.fixture(scope="module")
def modules():
    built = host_gpu.compile_all([kernel(name, row[0]) for name, row in ACCURACY.items()])
    return dict(zip(ACCURACY, built, strict=True))


def run(module, columns):
    columns = [np.ascontiguousarray(c, np.float64) for c in columns]
    out = np.empty_like(columns[0])
    addresses = [0, *(host_gpu.address(x) for x in (out, *columns))]
    module.launch("k1", out.size, 1, addresses)
    return out


@pytest.mark.parametrize("name", ACCURACY)
def test_special_function_is_exact_to_rounding(modules, name):
    _, reference, limit = ACCURACY[name]
    columns = points(name)
    got = run(modules[name], columns)
    with mpmath.workdps(60):
        exact = [reference(*map(mpmath.mpf, map(float, row))) for row in zip(*columns, strict=True)]
        error = [abs(mpmath.mpf(float(g)) / e - 1) for g, e in zip(got, exact, strict=True)]
    worst = int(np.argmax([float(e) for e in error]))
    assert error[worst] < limit, ([c[worst] for c in columns], got[worst], float(error[worst]))


EDGES = {
    "pt_lgamma": ([0.0, -1.0, np.inf, -np.inf, np.nan, -0.5],),
    "pt_digamma": ([0.0, -0.0, -1.0, -3.0, np.inf, -np.inf, np.nan, 5e-324],),
    "pt_log_ndtr": ([-np.inf, np.inf, np.nan, 0.0, -1e200],),
    "pt_i0e": ([0.0, -0.0, np.inf, -np.inf, np.nan],),
    "pt_i1e": ([0.0, -0.0, np.inf, -np.inf, np.nan],),
    "pt_gammainc": ([0, 1, 0, np.inf, 1, -1, 1, np.nan, 2], [1, 0, 0, 1, np.inf, 1, -1, 1, np.nan]),
    "pt_gammaincc": (
        [0, 1, 0, np.inf, 1, -1, 1, np.nan, 2],
        [1, 0, 0, 1, np.inf, 1, -1, 1, np.nan],
    ),
    "pt_betaln": ([0, 1, -1, -0.5, np.inf, -2, -1.5], [1, np.inf, 1, 0.5, np.inf, 2, 3]),
    "pt_betainc": (
        [0, 0, 1, 1, np.inf, 2, 2, -1, 1, np.nan, 2],
        [0, 1, 0, np.inf, 1, 3, 3, 1, 1, 1, 3],
        [0.5, 0.5, 0.5, 0.5, 0.5, 0, 1, 0.5, 1.5, 0.5, np.nan],
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_special_function_has_the_limits_of_scipy(modules, name):
    twin = {"pt_lgamma": "gammaln"}.get(name, name.removeprefix("pt_"))
    columns = [np.array(c, float) for c in EDGES[name]]
    got = run(modules[name], columns)
    np.testing.assert_allclose(got, getattr(scipy.special, twin)(*columns), rtol=1e-14)


def test_random_bits_are_those_of_the_generator():
    words = np.array([[7, 3, 0], [-1, 2, 5], [2**62, -9, -1], [0, 0, 2**40]], np.int64)
    source = runtime_text(["pt_philox"]) + (
        'extern "C" __global__ void k1(char *M, char *x0) { i64 *p = (i64 *)x0 + 4 * blockIdx.x;'
        " p[3] = pt_philox(p[0], p[1], p[2]); }"
    )
    (module,) = host_gpu.compile_all([source])
    table = np.concatenate([words, np.zeros((4, 1), np.int64)], axis=1)
    module.launch("k1", 4, 1, [0, host_gpu.address(table)])
    expected = [philox_bits(*(int(w) for w in row)) for row in words]
    np.testing.assert_array_equal(table[:, 3].view(np.uint64), np.array(expected, np.uint64))


def test_normal_numbers_of_uniform_ones_have_the_bits_of_arrays():
    rng = np.random.default_rng(8)
    low = np.exp(rng.uniform(-36.0, -1.0, 60))
    u = np.concatenate([rng.uniform(size=100), low, 1.0 - low, [0.075, 0.925, 2.0**-53]])
    (module,) = host_gpu.compile_all([kernel("pt_normal_of_uniform", 1)])
    np.testing.assert_array_equal(run(module, [u]), of_uniforms(normal_quantile, u))


def test_every_function_is_tested_here_or_in_programs():
    elsewhere = {"pt_bits_to_integers", "pt_gamma_term", "pt_power", "pt_philox", *INCOMPLETE}
    elsewhere.add("pt_normal_of_uniform")
    assert NUMBERS.keys() - elsewhere == ACCURACY.keys()
