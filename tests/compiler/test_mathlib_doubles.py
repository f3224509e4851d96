"""sin, cos, pow, erf, erfc, lgamma and digamma of the vector runtime: against mpmath, at corners
against the C library and SciPy, and in vectors against single calls.
"""

import ctypes
import ctypes.util
import math

import mpmath
import numpy as np
import pytest
from scipy import special

from probtorch.compiler.machine.engine import compile_module
from probtorch.compiler.native import host, library
from probtorch.compiler.render import mathlib
from tests.compiler.test_mathlib import loop_ir, ulps

INF, NAN = math.inf, math.nan
# Errors allowed, in ulp: about half as much again as was met among 10,000 arguments of each kind.
LARGEST = {"sin": 1, "cos": 1, "pow": 1, "erf": 3, "erfc": 4, "lgamma": 4, "digamma": 20}
ONE = tuple(name for name in LARGEST if name != "pow")
EXACT = {
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "erf", "erfc")},
    "lgamma": mpmath.loggamma,
    "digamma": mpmath.digamma,
}
OTHERS = {
    "sin": np.sin,
    "cos": np.cos,
    "erf": special.erf,
    "erfc": special.erfc,
    "lgamma": special.gammaln,
    "digamma": special.psi,
}
CORNERS = (
    *(0.0, 1.0, 2.0, 3.7, 28.0, 40.0, 1e6, 1e22, 1e300, 1e308, INF, NAN),
    *(5e-324, 1e-310, 1e-300, 1e-20, 1.4616321449683623, 1.5, 2.5, 10.0, 10.5),
)


@pytest.fixture(scope="module", params=["plain"] + ["fused"] * host.target().has_fma)
def single(request):
    """A function from a name to the scalar function of that name."""
    found = {}
    for name in LARGEST:
        text = mathlib.function_ir(f"pt_{name}_f64", fused=request.param == "fused")
        symbols = mathlib.symbols(f"pt_{name}_f64")
        routines = library.require(mathlib.calls(text))
        loaded = host.load_object(host.emit_object(text), symbols, routines)
        types = [ctypes.c_double] * (3 if name == "pow" else 2)
        found[name] = ctypes.CFUNCTYPE(*types)(loaded.addresses[symbols[0]]), loaded
    return lambda name: found[name][0]


def arguments(name, rng, count):
    small = np.exp(rng.uniform(-40, 0, count)) * rng.choice([-1, 1], count)
    turns = np.round(rng.uniform(0, 3e5, count)) * (math.pi / 2)
    waves = [rng.uniform(-10, 10, count), rng.uniform(-1e6, 1e6, count), turns, small]
    errors = [rng.uniform(-7, 7, count), rng.uniform(0.4, 0.6, count), small]
    gammas = [rng.uniform(0, 13, count), np.exp(rng.uniform(-100, 600, count))]
    zero = 1.4616321449683623 + rng.normal(0.0, 0.1, count)
    near = [rng.uniform(0.95, 1.05, count), rng.uniform(1.95, 2.05, count)]
    parts = {
        "sin": waves,
        "cos": waves,
        "erf": errors,
        "digamma": [*gammas, zero],
        "erfc": [*errors, rng.uniform(0, 26, count)],
        "lgamma": [*gammas, *near],
    }
    return np.concatenate(parts[name])


@pytest.mark.parametrize("name", ONE)
def test_functions_of_doubles_are_exact_to_a_few_ulp(single, name):
    x = arguments(name, np.random.default_rng(8), 60)
    with mpmath.workprec(200):
        errors = [ulps(single(name)(v), EXACT[name](mpmath.mpf(float(v))), np.float64) for v in x]
    worst = int(np.argmax(errors))
    assert errors[worst] <= LARGEST[name], (x[worst], errors[worst])


def test_powers_are_exact_to_an_ulp(single):
    rng = np.random.default_rng(9)
    pairs = [
        (np.exp(rng.uniform(-5, 5, 60)), rng.uniform(-10, 10, 60)),
        (np.exp(rng.uniform(-600, 600, 60)), rng.uniform(-1.1, 1.1, 60)),
        (rng.uniform(0.9, 1.1, 60), rng.uniform(-6000, 6000, 60)),
        (-np.exp(rng.uniform(-3, 3, 60)), np.round(rng.uniform(-9, 9, 60))),
    ]
    with mpmath.workprec(200):
        for x, y in np.concatenate([np.stack(p, 1) for p in pairs]).tolist():
            exact = mpmath.power(mpmath.mpf(x), mpmath.mpf(y))
            assert ulps(single("pow")(x, y), exact, np.float64) <= LARGEST["pow"], (x, y)


def assert_same(got, expected, what):
    if math.isnan(expected):
        assert math.isnan(got), what
        return
    assert got == expected or abs(got - expected) <= 4e-15 * abs(expected), what
    assert math.copysign(1.0, got) == math.copysign(1.0, expected), what


@pytest.mark.parametrize("name", ONE)
def test_corners_are_those_of_numpy_and_scipy(single, name):
    with np.errstate(all="ignore"):
        for x in (*CORNERS, *(-c for c in CORNERS)):
            assert_same(single(name)(x), float(OTHERS[name](x)), x)


def test_corners_of_powers_are_those_of_the_c_library(single):
    # Of Python, which asks that and raises where there is a flag.
    numbers = (0.0, 0.5, 1.0, 2.0, 3.0, 2.5, 700.0, 1e15, 1e300, 5e-324, INF)
    numbers = (*numbers, *(-x for x in numbers), NAN)
    for x in numbers:
        for y in numbers:
            try:
                expected = math.pow(x, y)
            except OverflowError:
                expected = -INF if x < 0 and y % 2 == 1 else INF
            except ValueError:
                expected = NAN if x else math.copysign(INF, x) if y % 2 == 1 else INF
            assert_same(single("pow")(x, y), expected, (x, y))


@pytest.mark.parametrize("name", ONE)
def test_vectors_and_their_remainders_are_single_calls_bit_for_bit(name):
    symbol = f"pt_{name}_f64"
    ir = mathlib.declarations([symbol]) + loop_ir(
        "go", "double", f"call double @{symbol}(double %v)"
    )
    module = compile_module(ir)
    loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    # Numbers that take the other way stand beside ordinary ones.
    rng = np.random.default_rng(10)
    x = rng.permutation(np.concatenate([arguments(name, rng, 40), CORNERS, -np.array(CORNERS)]))
    y, one = np.empty_like(x), ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    loop(module.address("go"))(x.ctypes.data, y.ctypes.data, x.size)
    function = one(mathlib.address(symbol))
    np.testing.assert_array_equal(y, [function(v) for v in x])
    _, *variants = mathlib.symbols(symbol)
    assert any(f"{variant}\0".encode() in module.object_bytes for variant in variants)
