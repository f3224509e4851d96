"""The vector runtime against mpmath, at its corners, and against itself in other widths."""

import ctypes
import math

import mpmath
import numpy as np
import pytest
from scipy import special

from probtorch.compiler.machine.engine import compile_module
from probtorch.compiler.native import host, library
from probtorch.compiler.render import mathlib
from probtorch.core.philox import philox_bits
from probtorch.ops.exact import normal_quantile, of_uniforms

FUNCTIONS = tuple(mathlib.FUNCTIONS)
DTYPES = (np.float64, np.float32)
# Functions that are another one on a part of its range.
PARTS = {"log1p_unit": "log1p"}
INF, NAN = math.inf, math.nan


def suffix(dtype):
    return "f64" if dtype == np.float64 else "f32"


def loop_ir(name, scalar_type, call):
    """A loop over n elements of x into y that the vectoriser may turn into vector calls."""
    return f"""define void @{name}(ptr noalias %x, ptr noalias %y, i64 %n) {{
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %p = getelementptr {scalar_type}, ptr %x, i64 %i
  %q = getelementptr {scalar_type}, ptr %y, i64 %i
  %v = load {scalar_type}, ptr %p
  %r = {call}
  store {scalar_type} %r, ptr %q
  %next = add nuw nsw i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %exit, label %body
exit:
  ret void
}}
"""


def loops_ir():
    text = [mathlib.declarations([f"pt_{f}_{s}" for f in FUNCTIONS for s in ("f64", "f32")])]
    for f in FUNCTIONS:
        for s, t in (("f64", "double"), ("f32", "float")):
            text.append(loop_ir(f"loop_{f}_{s}", t, f"call {t} @pt_{f}_{s}({t} %v)"))
    return "\n".join(text)


class Runtime:
    """The loops above, linked to the runtime with or without fused multiply-add."""

    def __init__(self, fused):
        names = mathlib.names()
        lines = [t for name in names for t in mathlib.function_ir(name, fused=fused).splitlines()]
        declared = dict.fromkeys(t for t in lines if t.startswith("declare"))
        text = "\n".join([*declared, *(t for t in lines if t not in declared)])
        symbols = [symbol for name in names for symbol in mathlib.symbols(name)]
        routines = library.require(mathlib.calls(text))
        self.runtime = host.load_object(host.emit_object(text), symbols, routines)
        names = [f"loop_{f}_{suffix(d)}" for f in FUNCTIONS for d in DTYPES]
        self.loops = host.load_object(host.emit_object(loops_ir()), names, self.runtime.addresses)

    def __call__(self, name, x):
        loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        y = np.empty_like(x)
        address = self.loops.addresses[f"loop_{name}_{suffix(x.dtype)}"]
        loop(address)(x.ctypes.data, y.ctypes.data, x.size)
        return y

    def single(self, name, x):
        """Call the scalar function itself."""
        c = ctypes.c_double if x.dtype == np.float64 else ctypes.c_float
        function = ctypes.CFUNCTYPE(c, c)(self.runtime.addresses[f"pt_{name}_{suffix(x.dtype)}"])
        return np.array([function(v) for v in x], dtype=x.dtype)


@pytest.fixture(scope="module", params=["plain"] + ["fused"] * host.target().has_fma)
def run(request):
    return Runtime(request.param == "fused")


def arguments(name, dtype, count, rng):
    """Arguments over the whole range of a function, and more where it is delicate."""
    info = np.finfo(dtype)
    tiny, largest = float(info.tiny), float(info.max)
    top = math.log(largest)
    small = np.exp(rng.uniform(-60, 0, count)) * rng.choice([-1, 1], count)
    ranges = {
        "exp": [rng.uniform(math.log(tiny) - 20, top, count), rng.normal(size=count)],
        "expm1": [rng.uniform(-38, top, count), rng.uniform(-0.4, 0.4, count), small],
        "tanh": [rng.uniform(-19, 19, count), rng.uniform(0.5, 0.6, count), small],
        "log": [
            np.exp(rng.uniform(math.log(tiny), top, count)),
            rng.uniform(0.6, 1.6, count),
            rng.uniform(0, tiny, count),
        ],
        "log1p": [
            np.exp(rng.uniform(-40, top, count)),
            rng.uniform(-1, 1, count),
            rng.uniform(-0.5, -0.2, count),
            small,
        ],
        "log1p_unit": [rng.uniform(0, 1, count), rng.uniform(0.4, 0.6, count), abs(small)],
    }
    x = np.concatenate(ranges[name]).astype(dtype)
    return x[(x > -1) | (name not in ("log", "log1p"))]


def ulps(value, exact, dtype):
    """Distance in units of the last place of the exact value."""
    info = np.finfo(dtype)
    exponent = max(int(mpmath.floor(mpmath.log(abs(exact), 2))), info.minexp)
    return float(abs(mpmath.mpf(float(value)) - exact) / mpmath.mpf(2) ** (exponent - info.nmant))


@pytest.mark.parametrize("dtype", DTYPES, ids=suffix)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_at_most_one_ulp(run, name, dtype):
    x = arguments(name, dtype, 250, np.random.default_rng(17))
    y = run(name, x)
    with mpmath.workprec(160):
        exact = [getattr(mpmath, PARTS.get(name, name))(mpmath.mpf(float(v))) for v in x]
        errors = [ulps(a, b, dtype) for a, b in zip(y, exact) if b != 0]
    worst = int(np.argmax(errors))
    assert errors[worst] <= 1.0, (name, x[worst], errors[worst])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_many_floats_are_within_one_ulp_of_double_arithmetic(run, name):
    # float64 NumPy is exact enough (2**-29 ulp) to judge float32, so many more arguments fit.
    x = arguments(name, np.float32, 50_000, np.random.default_rng(3))
    with np.errstate(all="ignore"):
        exact = getattr(np, PARTS.get(name, name))(x.astype(np.float64))
        kept = np.isfinite(exact.astype(np.float32)) & (exact != 0)
    y, exact = run(name, x)[kept], exact[kept]
    exponent = np.maximum(np.frexp(exact)[1] - 1, np.finfo(np.float32).minexp)
    assert np.max(np.abs(y - exact) / np.ldexp(1.0, exponent - 23)) <= 1.0


CORNERS = {
    "exp": [(NAN, NAN), (INF, INF), (-INF, 0.0), (0.0, 1.0), (-0.0, 1.0), (1e4, INF), (-1e4, 0.0)],
    "expm1": [
        *[(NAN, NAN), (INF, INF), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0)],
        *[(1e4, INF), (-1e4, -1.0), (1e-40, 1e-40), (-1e-40, -1e-40)],
    ],
    "log": [
        *[(NAN, NAN), (INF, INF), (-INF, NAN), (0.0, -INF), (-0.0, -INF)],
        *[(-1.0, NAN), (-1e-40, NAN), (1.0, 0.0)],
    ],
    "log1p": [
        *[(NAN, NAN), (INF, INF), (-INF, NAN), (-1.0, -INF), (-1.5, NAN)],
        *[(0.0, 0.0), (-0.0, -0.0), (1e-40, 1e-40), (-1e-40, -1e-40)],
    ],
    "log1p_unit": [(NAN, NAN), (0.0, 0.0), (1.0, math.log(2.0)), (1e-40, 1e-40)],
    "tanh": [
        *[(NAN, NAN), (INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0)],
        *[(1e4, 1.0), (-1e4, -1.0), (1e-40, 1e-40), (-1e-40, -1e-40)],
    ],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=suffix)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_corners_have_their_ieee_values_and_signs(run, name, dtype):
    x, expected = np.array(CORNERS[name]).T.astype(dtype)
    # Repeated, so that the vector body meets every corner too.
    for got in (run.single(name, x), *run(name, np.tile(x, 16)).reshape(16, -1)):
        np.testing.assert_array_equal(got, expected)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("dtype", DTYPES, ids=suffix)
def test_exp_overflows_and_underflows_where_it_should(run, dtype):
    info = np.finfo(dtype)
    least = float(info.smallest_subnormal)
    x = np.array([math.log(float(info.max)), math.log(least) - math.log(2)])
    below, above = (
        (x * (1 - 4 * float(info.eps))).astype(dtype),
        (x * (1 + 4 * float(info.eps))).astype(dtype),
    )
    assert np.isfinite(run("exp", below)[0])
    assert run("exp", below)[1] == least
    assert run("exp", above).tolist() == [INF, 0.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=suffix)
def test_log_of_subnormals_is_as_exact_as_of_others(run, dtype):
    info = np.finfo(dtype)
    x = np.array([float(info.smallest_subnormal) * k for k in (1, 3, 1000)], dtype=dtype)
    exact = [mpmath.log(mpmath.mpf(float(v))) for v in x]
    assert max(ulps(a, b, dtype) for a, b in zip(run("log", x), exact)) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=suffix)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vector_body_remainder_and_single_calls_agree_bit_for_bit(run, name, dtype):
    x = arguments(name, dtype, 41, np.random.default_rng(5))
    whole = run(name, x)
    assert np.array_equal(whole, run.single(name, x))
    for size in (1, 3, 7, 30):
        assert np.array_equal(run(name, x[:size]), whole[:size])


def native_quantile(p, name="pt_normal_quantile_f64"):
    ir = mathlib.declarations([name]) + loop_ir(
        "quantiles", "double", f"call double @{name}(double %v)"
    )
    loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    module = compile_module(ir)
    x = np.ascontiguousarray(p, np.float64)
    y = np.empty_like(x)
    loop(module.address("quantiles"))(x.ctypes.data, y.ctypes.data, x.size)
    return y


def test_normal_quantiles_are_within_six_ulp():
    rng = np.random.default_rng(29)
    p = np.concatenate(
        [
            rng.uniform(0, 1, 400),
            0.5 + rng.choice([-1, 1], 100) * np.exp(rng.uniform(-35, -1, 100)),
            np.exp(rng.uniform(-740, -1, 300)),
            1.0 - np.exp(rng.uniform(-36, -1, 200)),
            [0.075, 0.925, np.exp(-25.0), 2.0**-53, 1 - 2.0**-53, 5e-324],
        ]
    )
    assert_quantiles(native_quantile(p), p, 6.0)


def assert_quantiles(values, p, most):
    with mpmath.workprec(400):
        for value, at in zip(values, p, strict=True):
            x, at = mpmath.mpf(float(value)), mpmath.mpf(float(at))
            # A Newton step from a value that is right to 15 digits is right to 30.
            tail = mpmath.ncdf(x) - at if at < 0.5 else (1 - at) - mpmath.ncdf(-x)
            exact = x - tail / mpmath.npdf(x)
            assert exact == 0 or ulps(value, exact, np.float64) <= most, (float(at), value)


def test_quantiles_of_draws_are_the_same_from_arrays_numbers_and_vectors():
    rng = np.random.default_rng(30)
    low = np.exp(rng.uniform(-36, -1, 150))
    u = np.concatenate([rng.uniform(0, 1, 300), low, 1.0 - low, [0.075, 0.925, 2.0**-53]])
    arrays = of_uniforms(normal_quantile, u)
    np.testing.assert_array_equal(native_quantile(u, "pt_normal_of_uniform"), arrays)
    few = [of_uniforms(normal_quantile, part) for part in np.array_split(u, 80)]
    np.testing.assert_array_equal(np.concatenate(few), arrays)
    assert_quantiles(arrays, u, 8.0)


def test_normal_quantiles_have_the_corners_of_scipy():
    p = np.array([0.0, -0.0, 1.0, 0.5, -0.1, 1.1, NAN, INF, -INF] * 3)
    np.testing.assert_array_equal(native_quantile(p), special.ndtri(p))


def test_the_loop_vectoriser_finds_the_vector_functions():
    data = compile_module(loops_ir()).object_bytes
    for name in FUNCTIONS:
        # The widest, or half of it, which LLVM prefers on processors that slow down else.
        _, *variants = mathlib.symbols(f"pt_{name}_f64")
        assert any(f"{variant}\0".encode() in data for variant in variants), name


def test_declarations_refuse_a_name_that_is_not_ours():
    with pytest.raises(KeyError, match="pt_sine_f64"):
        mathlib.declarations(["pt_sine_f64"])


def test_declarations_of_nothing_are_empty():
    assert mathlib.declarations([]).strip() == ""


PHILOX_LOOP = """define void @fill(i64 %seed, i64 %stream, i64 %first, ptr noalias %y, i64 %n) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %q = getelementptr i64, ptr %y, i64 %i
  %c = add i64 %first, %i
  %r = call i64 @pt_philox(i64 %seed, i64 %stream, i64 %c)
  store i64 %r, ptr %q
  %next = add nuw nsw i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %exit, label %body
exit:
  ret void
}
"""


def test_native_random_bits_are_those_of_numpy():
    module = compile_module(mathlib.declarations(["pt_philox"]) + PHILOX_LOOP)
    word = ctypes.c_uint64
    fill = ctypes.CFUNCTYPE(None, word, word, word, ctypes.c_void_p, ctypes.c_int64)(
        module.address("fill")
    )
    for seed, stream, first in [(0, 0, 0), (2**64 - 1, 3**39, 2**64 - 500), (2**33 + 1, 7, 2**32)]:
        bits = np.empty(1003, dtype=np.uint64)
        fill(seed, stream, first, bits.ctypes.data, bits.size)
        counters = np.arange(1003, dtype=np.uint64) + np.uint64(first)
        assert np.array_equal(bits, philox_bits(seed, stream, counters))


def native_zeta(s, q):
    pair = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)
    return pair(mathlib.address("pt_zeta_f64"))(s, q)


@pytest.mark.parametrize("s", [1.0001, 1.5, 2.0, 3.0, 7.0, 21.0, 60.0])
def test_zeta_matches_mpmath(s):
    for q in [1e-200, 1e-9, 0.3, 1.0, 2.5, 9.99, 11.0, 60.0, 3e4]:
        # mpmath's precision is absolute, so it must cover the size of the value.
        with mpmath.workprec(60 + int(s * 20)):
            exact = mpmath.zeta(mpmath.mpf(s), mpmath.mpf(q))
        if 1e-290 < exact < 1e290:
            assert native_zeta(s, q) == pytest.approx(float(exact), rel=2e-15)


@pytest.mark.parametrize("s", [1.5, 2.0, 3.0, 21.0])
def test_zeta_of_large_numbers_is_there_until_it_underflows_itself(s):
    for q in [1e12, 1e80, 1e155, 1e250, 1e300, 1e308]:
        exact = mpmath.mpf(q) ** (1 - s) / (s - 1)  # to q / s digits
        found = native_zeta(s, q)
        if exact > np.finfo(float).tiny:
            assert found == pytest.approx(float(exact), rel=1e-11)
        else:
            assert 0.0 <= found <= np.finfo(float).tiny


def test_zeta_gives_polygamma():
    for n in (1, 2, 3, 6):
        for q in (0.01, 0.7, 5.0, 200.0, -0.4, -6.3):
            value = (-1) ** (n + 1) * math.factorial(n) * native_zeta(n + 1.0, q)
            with mpmath.workprec(200):
                exact = float(mpmath.polygamma(n, mpmath.mpf(q)))
            assert value == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize(
    ("s", "q"),
    [(1.0, 3.0), (2.0, 0.0), (2.0, -4.0), (0.5, 1.0), (2.0, INF), (NAN, 1.0), (2.5, -0.5)],
)
def test_zeta_agrees_with_scipy_at_the_corners(s, q):
    np.testing.assert_equal(native_zeta(s, q), special.zeta(s, q))


def test_names_in_the_cache_follow_from_the_texts_where_sources_are_not_known(monkeypatch):
    mathlib._fingerprint.cache_clear()
    try:
        monkeypatch.setattr(mathlib, "sources", lambda: None)
        named = mathlib._key("pt_exp_f64")
        mathlib._fingerprint.cache_clear()
        text = mathlib.function_ir
        monkeypatch.setattr(mathlib, "function_ir", lambda name: text(name) + "; another")
        assert mathlib._key("pt_exp_f64") != named
        mathlib._fingerprint.cache_clear()
        monkeypatch.setattr(mathlib, "function_ir", text)
        assert mathlib._key("pt_exp_f64") == named
    finally:
        mathlib._fingerprint.cache_clear()
