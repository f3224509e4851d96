"""Stable distributions against inverted characteristic functions, and the cases in closed form."""

import math

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.dtype import float32
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

# Stability and skew: both sides of 1, near it, at both ends, and one-sided ones.
SHAPES = [
    (1.5, 0.3), (1.2, -1.0), (1.9, 1.0), (2.0, 0.3), (0.9, -0.6),
    (1.0, 0.5), (1.0 + 1e-6, 0.4), (1.001, 0.0), (0.8, 1.0), (0.7, -0.2),
]  # fmt: skip
AT = np.array([-2.0, -0.5, 0.1, 1.0, 4.0])
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def characteristic(alpha, beta, t):
    """Log of the characteristic function in S0 at positive t (Nolan 1997, eq. 2)."""
    if alpha == 1.0:
        return -t - 1j * beta * (2 / math.pi) * t * np.log(t)
    return -(t**alpha) - 1j * beta * math.tan(math.pi * alpha / 2) * (t - t**alpha)


def inverted(alpha, beta, x):
    """Density and cdf by Fourier integrals, on panels that shorten towards 0."""
    top = 36.0 ** (1 / alpha)
    edges = np.concatenate([np.geomspace(1e-13, 0.5, 120), np.linspace(0.5, top, int(6 * top))[1:]])
    half = 0.5 * np.diff(edges)
    t = (edges[:-1] + half + half * NODES[:, None]).ravel()
    w = (half * WEIGHTS[:, None]).ravel()
    phase = np.exp(characteristic(alpha, beta, t) - 1j * t * x[:, None])
    # Below the first edge the phase changes by less than the rounding of the rest.
    start = np.imag(phase[:, 0] / t[0]) * edges[0]
    level = 0.5 - ((np.imag(phase) / t * w).sum(-1) + start) / math.pi
    return (np.real(phase) * w).sum(-1) / math.pi, level


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_density_and_cdf_are_those_of_the_characteristic_function(alpha, beta):
    d = dist.Stable(np.array(alpha), np.array(beta))
    density, level = inverted(alpha, beta, AT)
    # Digits are lost next to a stability of 1.
    near = {"rtol": 1e-9 if abs(alpha - 1) > 1e-5 else 1e-7, "atol": 1e-11}
    assert_close(d.log_prob(AT).exp(), density, **near)
    assert_close(d.cdf(AT), level, **near)
    assert_close(d.survival(AT), 1 - level, **near)


def test_known_members_are_found_far_into_their_tails():
    x = np.array([-40.0, -3.0, 0.2, 9.0, 1e4])
    normal = dist.Stable(np.array(2.0), np.array(0.4), 1.5)
    assert_close(normal.log_prob(x[:4]), stats.norm(0, 1.5 * 2**0.5).logpdf(x[:4]), rtol=1e-11)
    assert_close(normal.log_cdf(x[:4]), stats.norm(0, 1.5 * 2**0.5).logcdf(x[:4]), rtol=1e-10)
    # Without skew a stability of 1 is reached to 1e-8 times the log of the value.
    cauchy = dist.Stable(np.array(1.0), np.array(0.0), 2.0, 0.3)
    assert_close(cauchy.log_prob(x), stats.cauchy(0.3, 2.0).logpdf(x), rtol=1e-7)
    assert_close(cauchy.survival(x), stats.cauchy(0.3, 2.0).sf(x), rtol=1e-6)
    levy = dist.Stable(np.array(0.5), np.array(1.0), 2.0, 0.3, coords="S")
    y = np.array([0.31, 0.4, 1.0, 30.0, 1e12])
    assert_close(levy.log_prob(y), stats.levy(0.3, 2.0).logpdf(y), rtol=1e-9)
    assert_close(levy.survival(y), stats.levy(0.3, 2.0).sf(y), rtol=1e-10)
    assert_close(levy.log_cdf(y), stats.levy(0.3, 2.0).logcdf(y), rtol=1e-9, atol=1e-12)
    assert levy.log_prob(0.2).item() == -math.inf and levy.cdf(0.2).item() == 0.0


def test_a_tail_falls_with_a_power():
    alpha, beta, x = 1.4, 0.5, 1e9
    d = dist.Stable(np.array(alpha), np.array(beta))
    size = math.gamma(alpha) * math.sin(math.pi * alpha / 2) / math.pi
    # Nolan (2020), theorem 1.2: the next term of the series is x^-1.4 of it.
    assert_close(d.survival(x), size * (1 + beta) * x**-alpha, rtol=1e-8)
    assert_close(d.cdf(-x), size * (1 - beta) * x**-alpha, rtol=1e-8)


def test_draws_follow_the_cdf_and_quantiles_invert_it():
    a, b = np.array([1.6, 1.0, 0.6, 1.0 + 1e-7]), np.array([0.5, -0.8, 1.0, 0.0])
    d = dist.Stable(a, b, np.array(2.0), np.array(-1.0))
    n = 20_000
    x = d.sample((n,), Generator(3)).numpy()
    for k in range(4):
        one = dist.Stable(a[k], b[k], 2.0, -1.0)
        # Along the quantiles of draws, since a cdf is an integral: 1e-7 false alarms.
        at = np.sort(x[:, k])[999::1000]
        share = np.arange(1000, n + 1, 1000) / n
        assert np.abs(one.cdf(at).numpy() - share).max() < math.sqrt(math.log(2 / 1e-7) / (2 * n))
    one = dist.Stable(a[0], b[0])
    assert_close(one.cdf(one.icdf(np.array(0.02))), 0.02, rtol=1e-9)


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    given = [np.array(1.3), np.array(-0.4), np.array(1.7), np.array(0.6), np.array(0.9)]

    def density(a, b, s, m, x):
        return dist.Stable(a, b, s, m).log_prob(x)

    def level(a, b, s, m, x):
        return dist.Stable(a, b, s, m).log_cdf(x)

    def draw(a, b, s, m, x):
        return dist.Stable(a, b, s, m).rsample((6,), Generator(4)).tanh().sum() + 0.0 * x

    for fn in (density, level, draw):
        leaves = [tensor(v, requires_grad=True) for v in given]
        slopes = grad(fn(*leaves), leaves)
        for k, slope in enumerate(slopes):
            ends = []
            for h in (1e-5, -1e-5):
                moved = [tensor(v + (h if i == k else 0.0)) for i, v in enumerate(given)]
                ends.append(fn(*moved).item())
            assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=2e-6, atol=1e-9)


@pytest.mark.slow
def test_a_stable_density_is_compiled_and_batched_and_has_single_precision():
    x = tensor(np.array([-1.0, 0.3, 5.0]))

    def value(a, b):
        return dist.Stable(a, b, 1.2).log_prob(x).sum()

    a, b = tensor(np.array(1.4)), tensor(np.array(0.2))
    native = compile(value)
    native(a, b)
    assert_close(native(a, b), value(a, b), rtol=1e-12)
    assert native.reason is None
    narrow = dist.Stable(a.float(), b.float(), 1.2).log_prob(x.float())
    assert narrow.dtype == float32
    assert_close(narrow.double(), dist.Stable(a, b, 1.2).log_prob(x), rtol=1e-5)
    assert dist.Stable(1.5, 0.0).sample((3,)).dtype == float32


def test_moments_and_coordinates():
    assert_close(dist.Stable(1.5, 0.4, 2.0, 1.0).mean, stats.levy_stable(1.5, 0.4).mean() * 2 + 1
                 - 2.0 * 0.4 * math.tan(0.75 * math.pi), rtol=1e-6)  # fmt: skip
    assert dist.Stable(1.5, 0.4, 2.0, 1.0, "S").mean.item() == 1.0
    assert math.isnan(dist.Stable(0.9, 0.0).mean.item())
    assert dist.Stable(1.9, 0.0).variance.item() == math.inf
    assert dist.Stable(2.0, 0.0, 3.0).variance.item() == 18.0
    a, b = np.array(1.7), np.array(0.6)
    shift = 0.6 * math.tan(0.85 * math.pi)
    x = np.array([-1.0, 2.0])
    assert_close(dist.Stable(a, b, 1.0, 0.0, "S").log_prob(x + shift),
                 dist.Stable(a, b).log_prob(x), rtol=1e-9)  # fmt: skip
    assert isinstance(dist.StableWithLogProb(1.5, 0.0), dist.Stable)
    with pytest.raises(ArgumentError, match="coords"):
        dist.Stable(1.5, 0.0, coords="S1")


@pytest.mark.parametrize("skew", [0.0, 1e-304])
@pytest.mark.parametrize("alpha", [0.02, 0.3, 0.7, 0.999, 1.3, 1.7, 1.95])
def test_densities_at_the_mode_of_no_skew(alpha, skew):
    # The inverse of exp(-t ** alpha) at 0 is gamma(1 + 1 / alpha) / pi.
    d = dist.Stable(tensor(np.array(alpha)), tensor(np.array(skew)), 2.0, 3.0)
    expected = math.lgamma(1.0 + 1.0 / alpha) - math.log(2.0 * math.pi)
    at = tensor(np.array(3.0))
    assert_close(d.log_prob(at), tensor(np.array(expected)), rtol=1e-11, atol=1e-12)
    assert_close(d.cdf(at), tensor(np.array(0.5)), rtol=1e-11)
