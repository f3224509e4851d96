"""Directions and angles against quadrature, series and mpmath."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.dtype import float32
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(3)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def assert_slopes(fn, *given, rtol=1e-6):
    """Gradients against finite differences, and compiled values against eager ones."""
    leaves = [tensor(v, requires_grad=True) for v in given]
    for k, slope in enumerate(grad(fn(*leaves), leaves)):
        for at in np.ndindex(given[k].shape):
            ends = []
            for h in (1e-5, -1e-5):
                moved = [v.copy() for v in given]
                moved[k][at] += h
                ends.append(fn(*map(tensor, moved)).item())
            assert_close(slope[at], (ends[0] - ends[1]) / 2e-5, rtol=rtol, atol=1e-8)
    native = compile(fn)
    native(*map(tensor, given))
    assert_close(native(*map(tensor, given)), fn(*map(tensor, given)), rtol=1e-11)
    assert native.reason is None


@pytest.mark.parametrize("length", [0.0, 1e-9, 0.19, 0.21, 3.0, 500.0])
def test_von_mises_in_space_is_its_closed_form(length):
    loc = unit(np.array([0.3, -0.5, 0.8]))
    d = dist.VonMises3D(length * loc)
    x = unit(RNG.normal(size=(6, 3)))
    with mpmath.workdps(40):
        k = mpmath.mpf(length)
        size = mpmath.log(mpmath.sinh(k) / k) - k if length else mpmath.mpf(0)
        size = float(size + mpmath.log(4 * mpmath.pi))
        mean = float(mpmath.coth(k) - 1 / k) if length else 0.0
    expected = -length * 0.5 * ((x - loc) ** 2).sum(-1) - size
    assert_close(d.log_prob(x), expected, rtol=1e-12)
    assert_close(d.entropy(), length * (1 - mean) + size, rtol=1e-12)
    y = d.sample((20_000,), Generator(1))
    assert d.support.check(y).numpy().all()
    # By the cdf of the cosine: 1e-7 false alarms.
    if length:
        cosine = np.sort(y.numpy() @ loc)
        below = np.expm1(-length * (1 - cosine)) / np.expm1(-2 * length)
        assert stats.kstest(1 - below, "uniform").pvalue > 1e-7


@pytest.mark.slow
def test_slopes_of_directions():
    x = tensor(unit(RNG.normal(size=(4, 3))))
    for c in ([0.01, 0.02, -0.1], [1.0, -2.0, 0.5]):
        for cls in (dist.VonMises3D, dist.ProjectedNormal):
            assert_slopes(lambda v, cls=cls: cls(v).log_prob(x).sum(), np.array(c))
            assert cls(tensor(c)).sample((2,)).dtype == float32
            assert cls(tensor(c)).log_prob(x.float()).dtype == float32
    weights = tensor(np.array([0.4, -1.0, 0.7]))
    for cls in (dist.VonMises3D, dist.ProjectedNormal):
        # Paths and scores agree on average: z below 5.2 in all but 2e-7 of runs.
        leaf = tensor(np.broadcast_to([1.0, -0.5, 0.3], (4000, 3)).copy(), requires_grad=True)
        y = cls(leaf).rsample((), Generator(2))
        path = grad((y @ weights).tanh().sum(), [leaf], retain_graph=True)[0].numpy()
        at = y.detach()
        score = grad(cls(leaf).log_prob_inside(at).sum(), [leaf])[0].numpy()
        gap = path - score * np.tanh(at.numpy() @ weights.numpy())[:, None]
        assert (np.abs(gap.mean(0)) / (gap.std(0) / math.sqrt(4000)) < 5.2).all()


def projected(c, x):
    with mpmath.workdps(30):
        t, n = mpmath.mpf(float(c @ x)), len(c)
        integral = mpmath.quad(
            lambda r: r ** (n - 1) * mpmath.exp(r * t - r * r / 2),
            [0, 0.2, 0.6, 2.0, *(max(t, 0) + v for v in (3, 7, 14, 40))],
        )
        rest = mpmath.mpf(float(c @ c))
        return float(mpmath.log(integral) - rest / 2 - n * mpmath.log(2 * mpmath.pi) / 2)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=SLOW), pytest.param(6, marks=SLOW)])
def test_a_projected_normal_has_its_density(n):
    for length in (0.0, 0.7, 4.0, 12.0):
        c = length * unit(RNG.normal(size=n))
        x = np.stack([unit(c + 1e-9), *unit(RNG.normal(size=(3, n))), unit(-c + 1e-3)])
        expected = [projected(c, v) for v in x]
        assert_close(dist.ProjectedNormal(c).log_prob(x), np.array(expected), rtol=1e-11)
    with pytest.raises(ShapeError, match="concentration"):
        dist.ProjectedNormal(c[:1])
    y = dist.ProjectedNormal(c).sample((5,), Generator(0))
    assert_close((y * y).sum(-1), np.ones(5))


PAIRS = [(1.0, 2.0, 0.5), (4.0, 0.3, -3.0), (30.0, 50.0, 20.0), (5.0, 8.0, 30.0)]


def grid_kernel(k, other, c, n=600):
    a = 2 * np.pi * (np.arange(n) + 0.5) / n - np.pi
    a, b = a[:, None], a[None]
    return k * np.cos(a) + other * np.cos(b) + c * np.sin(a) * np.sin(b)


@pytest.mark.parametrize(("k", "other", "c"), PAIRS)
def test_pairs_of_angles_are_normalised_and_drawn_exactly(k, other, c):
    d = dist.SineBivariateVonMises(0.7, -2.0, np.array(k), np.array(other), np.array(c))
    kernel = grid_kernel(k, other, c)
    # The trapezium rule is exact to rounding for periodic functions.
    size = special.logsumexp(kernel) + 2 * math.log(2 * np.pi / 600)
    x = RNG.uniform(-3, 3, (5, 2))
    a, b = x[:, 0] - 0.7, x[:, 1] + 2.0
    expected = k * np.cos(a) + other * np.cos(b) + c * np.sin(a) * np.sin(b) - size
    assert_close(d.log_prob(x), expected, rtol=1e-11)
    y = d.sample((20_000,), Generator(5)).numpy()
    assert (np.abs(y) <= np.pi).all()
    cell = np.floor(((y - [0.7, -2.0] + np.pi) % (2 * np.pi)) / (2 * np.pi) * 12).astype(int)
    seen = np.bincount(cell @ [12, 1], minlength=144)
    p = np.exp(kernel - special.logsumexp(kernel)).reshape(12, 50, 12, 50).sum((1, 3)).ravel()
    order = np.argsort(p)
    rare = np.searchsorted(p[order] * 20_000, 5.0)
    pooled = [np.add.reduceat(v[order], [0, *range(rare + 1, 144)]) for v in (seen, p * 20_000)]
    assert stats.chisquare(*pooled).pvalue > 1e-7


@pytest.mark.slow
def test_concentrated_pairs_are_nearly_normal_and_have_slopes():
    # Precision [[k, -c], [-c, l]]; the next term of the expansion is of order 1 / k.
    k, other, c = 1e7, 2e7, 5e6
    d = dist.SineBivariateVonMises(0.0, 0.0, np.array(k), np.array(other), np.array(c))
    normal = 0.5 * math.log(k * other - c * c) - math.log(2 * math.pi)
    assert_close(d.log_prob(np.zeros(2)), normal, rtol=1e-8)
    x = tensor(RNG.uniform(-3, 3, (5, 2)))
    fn = lambda k, other, c: dist.SineBivariateVonMises(0.1, 0.2, k, other, c).log_prob(x).sum()
    assert_slopes(fn, np.array(2.0), np.array(3.0), np.array(1.5), rtol=1e-5)
    weighted = dist.SineBivariateVonMises(0.1, 0.2, 2.0, 8.0, weighted_correlation=0.5)
    plain = dist.SineBivariateVonMises(0.1, 0.2, 2.0, 8.0, 2.0)
    assert_close(weighted.log_prob(x), plain.log_prob(x))
    assert_close(plain.weighted_correlation, 0.5)
    with pytest.raises(ArgumentError, match="exactly one"):
        dist.SineBivariateVonMises(0.1, 0.2, 2.0, 8.0)


def test_skewed_angles_have_the_density_of_their_draws():
    base = dist.VonMises(np.array([0.4]), np.array([1.5])).to_event(1)
    d = dist.SineSkewed(base, np.array([0.8]))
    grid = np.linspace(-np.pi, np.pi, 1001)[:-1, None]
    density = d.log_prob(grid).exp().numpy()
    assert_close(density.sum() * 2 * np.pi / 1000, 1.0, rtol=1e-12)
    circle = stats.vonmises(1.5, 0.4).pdf(grid[:, 0])
    assert_close(density, circle * (1 + 0.8 * np.sin(grid[:, 0] - 0.4)), rtol=1e-11)
    y = np.sort(d.sample((20_000,), Generator(6)).numpy()[:, 0])
    below = np.interp(
        y, np.append(grid[:, 0], np.pi), np.append(0, density.cumsum()) * 2e-3 * np.pi
    )
    # The straight lines are off by 2e-3 at most.
    assert np.abs(below - np.arange(20_000) / 20_000).max() < 0.0205 + 2e-3
    pair = dist.SineBivariateVonMises(0.3, -0.2, 2.0, 3.0, 1.0)
    both = dist.SineSkewed(pair, np.array([0.3, -0.7]))
    assert both.event_shape == (2,) and both.sample((4,), Generator(1)).shape == (4, 2)
    assert dist.SineSkewed(pair, np.array([[0.3, -0.7], [0.1, 0.0]])).batch_shape == (2,)
    with pytest.raises(DomainError, match="skewness"):
        dist.SineSkewed(pair, np.array([0.6, -0.7]))
    with pytest.raises(ShapeError, match="SineSkewed"):
        dist.SineSkewed(dist.VonMises(0.0, 1.0), np.array([0.6]))
