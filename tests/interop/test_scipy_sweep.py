"""Functions of `scipy.special` on tensors: SciPy's values, and mpmath's slopes, at every point that
is singular for one of them: 0 of both signs, whole numbers, ends of domains, infinities and nan.
"""

import itertools
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import special

from probtorch.array_functions.composed import COMPOSED
from probtorch.array_functions.elements import operation_of
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.errors import NotDifferentiableError
from probtorch.tensor import tensor

mp = pytest.importorskip("mpmath")

INF = float("inf")
LINE = [-INF, -200.5, -200.0, -172.0, -171.0, -170.5, -30.0]
LINE += [-3.0, -2.5, -2.0, -1.5, -1.0, -0.5, -1e-9, -0.0]
LINE += [
    0.0,
    1e-300,
    1e-9,
    1e-3,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    30.0,
    200.5,
    1e5,
    1e300,
    INF,
    float("nan"),
]
GRID = [-INF, -13.2, -3.0, -2.5, -1.0, -0.5, -1e-9, 0.0, 1e-9, 0.3, 1.0, 2.0, 13.2, 30.5, 300.0]
GRID += [INF, float("nan")]


def derivative_of_rgamma(x):
    if x <= 0 and x == mp.floor(x):
        return (-1) ** int(-x) * mp.factorial(-x)
    return -mp.rgamma(x) * mp.psi(0, x)


def derivative_of_exprel(x):
    return (
        mp.nsum(lambda k: x**k * (k + 1) / mp.factorial(k + 2), [0, mp.inf])
        if abs(x) < 1
        else (mp.e**x * (x - 1) + 1) / x**2
    )


# Slopes where the function is finite, and in ENDS at -inf and inf and where it is not.
SLOPES = {
    "expit": lambda x: 1 / (2 + mp.e**x + mp.e**-x),
    "logit": lambda x: 1 / (x * (1 - x)),
    "gammaln": lambda x: mp.psi(0, x),
    "psi": lambda x: mp.psi(1, x),
    "erf": lambda x: 2 / mp.sqrt(mp.pi) * mp.e ** (-x * x),
    "erfc": lambda x: -2 / mp.sqrt(mp.pi) * mp.e ** (-x * x),
    "erfinv": lambda x: mp.sqrt(mp.pi) / 2 * mp.e ** (mp.erfinv(x) ** 2),
    "expm1": lambda x: mp.e**x,
    "log1p": lambda x: 1 / (1 + x),
    "exp2": lambda x: mp.log(2) * mp.mpf(2) ** x,
    "exp10": lambda x: mp.log(10) * mp.mpf(10) ** x,
    "cbrt": lambda x: 1 / (3 * mp.cbrt(x * x)) if x else mp.inf,
    "log_expit": lambda x: 1 / (1 + mp.e**x),
    "ndtr": lambda x: mp.npdf(x),
    "i0": lambda x: mp.besseli(1, x),
    "i1": lambda x: (mp.besseli(0, x) + mp.besseli(2, x)) / 2,
    "j0": lambda x: -mp.besselj(1, x),
    "j1": lambda x: (mp.besselj(0, x) - mp.besselj(2, x)) / 2,
    "y0": lambda x: -mp.bessely(1, x),
    "y1": lambda x: (mp.bessely(0, x) - mp.bessely(2, x)) / 2,
    "k0": lambda x: -mp.besselk(1, x),
    "k1": lambda x: -(mp.besselk(0, x) + mp.besselk(2, x)) / 2,
    "k0e": lambda x: mp.e**x * (mp.besselk(0, x) - mp.besselk(1, x)),
    "k1e": lambda x: mp.e**x * (mp.besselk(1, x) - (mp.besselk(0, x) + mp.besselk(2, x)) / 2),
    "entr": lambda x: -mp.log(x) - 1 if x else mp.inf,
    "gamma": lambda x: mp.gamma(x) * mp.psi(0, x),
    "rgamma": derivative_of_rgamma,
    "exprel": derivative_of_exprel,
    "cosm1": lambda x: -mp.sin(x),
}
ENDS = {
    "expit": {-INF: 0.0, INF: 0.0},
    "logit": {0.0: INF, 1.0: INF},
    "gammaln": {0.0: -INF, INF: INF},
    "psi": {0.0: INF, INF: 0.0},
    "erf": {-INF: 0.0, INF: 0.0},
    "erfc": {-INF: 0.0, INF: 0.0},
    "erfinv": {-1.0: INF, 1.0: INF},
    "expm1": {-INF: 0.0, INF: INF, 1e5: INF},
    "log1p": {-1.0: INF, INF: 0.0},
    "exp2": {-INF: 0.0, INF: INF, 1e5: INF},
    "exp10": {-INF: 0.0, INF: INF, 1e5: INF},
    "cbrt": {-INF: 0.0, 0.0: INF, INF: 0.0},
    "log_expit": {-INF: 1.0, INF: 0.0},
    "ndtr": {-INF: 0.0, INF: 0.0},
    "k0": {0.0: -INF, INF: 0.0},
    "k1": {0.0: -INF, INF: 0.0},
    "k0e": {0.0: -INF, INF: 0.0},
    "k1e": {0.0: -INF, INF: 0.0},
    "y0": {0.0: INF},
    "y1": {0.0: INF},
    "entr": {0.0: INF, INF: -INF},
    "gamma": {0.0: -INF, 200.5: INF, INF: INF},
    "rgamma": {INF: 0.0, 1e5: 0.0},
    "exprel": {-INF: 0.0, 1e5: INF, INF: INF},
}
# SciPy has -inf as gammaln(-inf) and no gamma function tends there; ours is the limit of the poles.
OTHER_VALUES = {("gammaln", -INF)}


def made(name, *points):
    leaves = [tensor(x, dtype=np.float64, requires_grad=True) for x in points]
    with np.errstate(all="ignore"):
        value = getattr(special, name)(*leaves)
        slopes = grad(value, leaves, materialize_grads=True, allow_unused=True)
    return value.item(), [g.item() for g in slopes]


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.filterwarnings("ignore")
def test_values_are_scipys_and_slopes_are_mpmaths_along_a_line(name):
    wrong = []
    for x in LINE:
        value, (slope,) = made(name, x)
        expected = float(getattr(special, name)(x))
        if (name, x) not in OTHER_VALUES and not np.isclose(
            value, expected, rtol=2e-12, atol=1e-300, equal_nan=True
        ):
            wrong.append(f"value at {x}: {value} for {expected}")
        if np.isfinite(x) and np.isfinite(expected) and abs(x) < 1e4:
            with mp.workdps(40):
                exact = float(SLOPES[name](mp.mpf(x)))
            # A slope that is a difference, such as exp(x) from expm1(x) + 1, is right to the last
            # digit of the numbers in it.
            if not np.isclose(slope, exact, rtol=1e-9, atol=1e-15):
                wrong.append(f"slope at {x}: {slope} for {exact}")
    for x, exact in ENDS.get(name, {}).items():
        _, (slope,) = made(name, x)
        if not slope == exact:
            wrong.append(f"slope at the end {x}: {slope} for {exact}")
    assert wrong == []


def box_cox(x, power):
    return (x**power - 1) / power if power else mp.log(x)


def unboxed(y, power):
    return (1 + power * y) ** (1 / power) if power else mp.e**y


def entropy(x, y):
    return x * mp.log(x / y)


def huber(delta, r):
    return r * r / 2 if abs(r) <= delta else delta * (abs(r) - delta / 2)


OF_TWO = {
    "beta": mp.beta,
    "betaln": lambda x, y: mp.log(abs(mp.beta(x, y))),
    "boxcox": box_cox,
    "boxcox1p": lambda x, power: box_cox(1 + x, power),
    "inv_boxcox": unboxed,
    "inv_boxcox1p": lambda y, power: unboxed(y, power) - 1,
    "rel_entr": entropy,
    "kl_div": lambda x, y: entropy(x, y) - x + y,
    "huber": huber,
    "pseudo_huber": lambda delta, r: delta * delta * (mp.sqrt(1 + (r / delta) ** 2) - 1),
    "powm1": lambda x, y: x**y - 1,
    "xlogy": lambda x, y: x * mp.log(y),
    "xlog1py": lambda x, y: x * mp.log(1 + y),
}


def left_out(name, x, y):
    """Where SciPy says of a limit something else than C's own functions, or there is none."""
    if name in ("beta", "betaln"):
        return any(v <= 0 and (v == np.floor(v)) for v in (x, y)) or x == -INF or y == -INF
    if name == "powm1":
        return np.isinf(y) or (x == -INF)
    if name in ("boxcox", "boxcox1p"):
        return y == -INF
    return name == "pseudo_huber" and not np.isfinite(x)


def one_sided(name, points, k):
    """Slopes to both sides at a point, or None where one of them is no real number."""
    with mp.workdps(80):
        step = mp.mpf(10) ** -25

        def at(move):
            moved = [mp.mpf(p) for p in points]
            moved[k] += move
            return OF_TWO[name](*moved)

        try:
            here = at(0)
            sides = (at(step) - here) / step, (here - at(-step)) / step
        except (ZeroDivisionError, ValueError):
            return None
        if any(isinstance(s, mp.mpc) or not mp.isfinite(s) for s in sides):
            return None
        return [float(s) for s in sides]


@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.filterwarnings("ignore")
def test_values_are_scipys_and_slopes_are_mpmaths_on_a_grid(name):
    wrong = []
    for x, y in itertools.product(GRID, GRID):
        if left_out(name, x, y):
            continue
        value, slopes = made(name, x, y)
        expected = float(getattr(special, name)(x, y))
        if not np.isclose(value, expected, rtol=1e-11, atol=1e-290, equal_nan=True):
            wrong.append(f"value at {x, y}: {value} for {expected}")
        if not np.isfinite([x, y, expected]).all():
            continue
        for k in (0, 1):
            sides = one_sided(name, (x, y), k)
            if sides is None or abs(sides[0] - sides[1]) > 1e-6 * max(1.0, abs(sides[0])):
                continue
            # Near the poles of beta a small slope is the difference of large ones.
            rtol = 1e-6 if name == "beta" else 1e-8
            if not np.isclose(slopes[k], sides[0], rtol=rtol, atol=1e-12):
                wrong.append(f"slope {k} at {x, y}: {slopes[k]} for {sides[0]}")
    assert wrong == []


@pytest.mark.parametrize("y", [-2.0, -0.3, 0.0, 0.7, 2.0])
def test_slopes_of_box_cox_at_a_power_of_zero(y):
    # By series: (x**p - 1) / p = log(x) + p log(x)**2 / 2, and its inverse.
    x = float(np.exp(y))
    for name, point, first, second in (
        ("boxcox", x, 1.0 / x, y * y / 2.0),
        ("inv_boxcox", y, x, -x * y * y / 2.0),
    ):
        for power in (0.0, -0.0, 1e-18):
            value, slopes = made(name, point, power)
            np.testing.assert_allclose(value, y if name == "boxcox" else x, rtol=1e-15)
            np.testing.assert_allclose(slopes, [first, second], rtol=1e-13)


def test_reciprocal_gamma_in_single_precision_has_numbers_where_gamma_has_none():
    x = np.array([-34.3, -34.7, -34.0, -40.0, -101.0, -40.5, 34.5, 36.5], np.float32)
    with np.errstate(all="ignore"):
        found, expected = special.rgamma(tensor(x)).numpy(), special.rgamma(x)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("order", [0.0, 0.3, 0.5, 1.0, 2.5, 7.0, -1.5])
def test_bessel_functions_that_decay_have_the_slopes_of_mpmath(order):
    slopes = {
        "kv": lambda x: mp.diff(lambda z: mp.besselk(order, z), x),
        "kve": lambda x: mp.diff(lambda z: mp.exp(z) * mp.besselk(order, z), x),
    }
    for name, exact in slopes.items():
        compiled = compile(partial(getattr(special, name), order))
        for x in (1e-3, 0.1, 0.9, 3.0, 25.0, 300.0):
            leaf = tensor(x, dtype=np.float64, requires_grad=True)
            value = getattr(special, name)(order, leaf)
            (slope,) = grad(value, [leaf])
            with mp.workdps(40):
                np.testing.assert_allclose(slope.item(), float(exact(mp.mpf(x))), rtol=1e-11)
            np.testing.assert_allclose(value.item(), getattr(special, name)(order, x), rtol=1e-14)
            assert compiled(leaf.detach()).item() == value.item()
        at_0 = tensor(0.0, dtype=np.float64, requires_grad=True)
        assert grad(getattr(special, name)(order, at_0), [at_0])[0].item() == -INF


def test_orders_have_no_slope_and_say_so():
    for name in ("iv", "ive", "kv", "kve"):
        with pytest.raises(NotDifferentiableError, match="detach"):
            made(name, 1.5, 2.0)


def test_what_is_composed_is_tested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operation_of(special.expit)
    assert set(COMPOSED) <= {*SLOPES, *OF_TWO}
