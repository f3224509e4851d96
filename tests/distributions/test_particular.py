"""Distributions of PyMC, Stan and TFP: what the sweep of laws does not ask for by day."""

import itertools
import math
import warnings

import numpy as np
import pytest
from scipy import integrate, special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.effects import sample
from probtorch.errors import ArgumentError, DomainError
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.distributions.rarest_cases import RAREST

R = np.random.default_rng(5)


def radius(n):
    """Dvoretzky, Kiefer and Wolfowitz: exceeded once in 1e7 runs."""
    return np.sqrt(np.log(2 / 1e-7) / (2 * n))


SUMS = {
    "NoncentralChi2": (np.exp(R.normal(size=(2, 6))), stats.ncx2),
    "NoncentralT": ([np.exp(R.normal(size=6)), 2 * R.normal(size=6)], stats.nct),
    "NormalInverseGaussian": (
        [R.normal(size=6), np.exp(R.normal(size=6)), np.full(6, 2.0), R.uniform(-1.9, 1.9, 6)],
        lambda m, s, a, b: stats.norminvgauss(a * s, b * s, m, s),
    ),
    "Skellam": (np.exp(R.normal(size=(2, 6))) * [1, 1, 1, 30, 30, 1e4], stats.skellam),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "NoncentralT" else n for n in SUMS]
)
def test_a_density_that_is_a_sum_has_the_values_of_scipy(name):
    arguments, reference = SUMS[name]
    d, reference = getattr(dist, name)(*arguments), reference(*arguments)
    x = d.sample((4,), Generator(1))
    log = getattr(reference, "logpmf", None) or reference.logpdf
    assert_close(d.log_prob(x), log(x.numpy()), rtol=1e-11, atol=1e-11)
    # SciPy integrates that of the inverse Gaussian mixture to eight digits.
    near = {"rtol": 1e-6} if name == "NormalInverseGaussian" else {"rtol": 1e-10, "atol": 1e-13}
    assert_close(d.cdf(x), reference.cdf(x.numpy()), **near)
    assert_close(d.survival(x), reference.sf(x.numpy()), **near)
    single = getattr(dist, name)(*(tensor(a).float() for a in arguments))
    assert_close(single.log_prob(x.float()), log(x.numpy()), rtol=1e-4, atol=1e-4)
    leaves = [tensor(a) for a in arguments]
    native = compile(lambda *given: getattr(dist, name)(*given).log_prob(x))
    for _ in range(2):
        assert_close(native(*leaves), d.log_prob(x))
    assert native.reason is None


def test_a_difference_of_counts_goes_below_0():
    d, reference = dist.Skellam(3.0, 2.0), stats.skellam(3.0, 2.0)
    k = np.arange(-40.0, 41.0)
    assert_close(d.log_prob(tensor(k)).exp().sum(), 1.0)
    for name, expected in zip(
        ("mean", "variance", "skewness", "kurtosis"), reference.stats("mvsk")
    ):
        assert_close(getattr(d, name), expected, rtol=1e-6)
    x = d.sample((20_000,), Generator(3)).numpy()
    shares = (x <= k[:, None]).mean(1)
    assert np.abs(shares - reference.cdf(k)).max() < radius(20_000)
    assert_close(d.icdf(d.cdf(tensor(k[30:50]))), k[30:50])


URNS = np.array([[50.0, 20.0, 15.0], [7.0, 7.0, 3.0], [30.0, 2.0, 29.0], [1e6, 4e5, 900.0]]).T


def test_an_urn_gives_the_counts_of_scipy():
    d, reference = dist.HyperGeometric(*URNS), stats.hypergeom(*URNS.astype(int))
    x = d.sample((3000,), Generator(2))
    assert d.support.check(x).numpy().all()
    assert_close(d.log_prob(x[:50]), reference.logpmf(x[:50].numpy()), rtol=1e-9, atol=1e-10)
    at = x[:50].numpy()
    assert_close(d.cdf(x[:50]), reference.cdf(at), rtol=1e-9, atol=1e-12)
    assert_close(d.survival(x[:50]), reference.sf(at), rtol=1e-9, atol=1e-12)
    with np.errstate(all="ignore"):
        assert_close(d.mean, reference.mean())
        assert_close(d.variance, reference.var())
    for i in range(4):
        values = np.unique(x[:, i].numpy())
        shares = (x[:, i].numpy() <= values[:, None]).mean(1)
        exact = stats.hypergeom(*URNS[:, i].astype(int)).cdf(values)
        assert np.abs(shares - exact).max() < radius(3000)
    with pytest.raises(DomainError, match="parameter draws"):
        dist.HyperGeometric(10.0, 3.0, 11.0)
    with pytest.raises(DomainError, match="outside the support"):
        dist.HyperGeometric(10.0, 9.0, 5.0).log_prob(3.0)


def test_a_family_tree_has_the_masses_of_its_definition():
    d, k = dist.GeneralizedPoisson(tensor(3.0).double(), tensor(0.6).double()), np.arange(1500.0)
    p = d.log_prob(tensor(k)).exp().numpy()
    assert_close(p.sum(), 1.0, rtol=1e-12)
    mean = (p * k).sum()
    central = [(p * (k - mean) ** n).sum() for n in (2, 3, 4)]
    assert_close(d.mean, mean)
    assert_close(d.variance, central[0])
    assert_close(d.skewness, central[1] / central[0] ** 1.5)
    assert_close(d.kurtosis, central[2] / central[0] ** 2 - 3)
    x = d.sample((2000,), Generator(4)).numpy()
    assert np.abs((x <= k[:60, None]).mean(1) - p.cumsum()[:60]).max() < radius(2000)
    assert_close(
        dist.GeneralizedPoisson(2.0).log_prob(tensor(k[:9])), stats.poisson(2.0).logpmf(k[:9])
    )


def test_a_horseshoe_has_its_pole_and_its_tails():
    x = np.array([1e-6, -0.01, 0.7, 1.9, -2.0, 3.0, 60.0])
    d, z = dist.Horseshoe(tensor(2.0).double()), (x / 2) ** 2 / 2
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.exp(z) * special.exp1(z)
    # exp(z) E1(z) = 1 / z - 1 / z^2 + ..., where E1 underflows.
    far = sum((-1) ** k * math.factorial(k) / z ** (k + 1) for k in range(9))
    exact = np.log(np.where(z > 300, far, direct)) - np.log(2) - 0.5 * np.log(2 * np.pi**3)
    assert_close(d.log_prob(tensor(x)), exact, rtol=1e-12)

    def above(v):
        spread = lambda t: special.erfc(v / 2 / np.sqrt(2) / np.tan(t)) / np.pi
        return integrate.quad(spread, 0, np.pi / 2, epsabs=1e-13, limit=200)[0]

    assert_close(d.survival(tensor(x[2:4])), [above(v) for v in x[2:4]], rtol=1e-9)
    assert_close(d.cdf(tensor(-x[2:4])), d.survival(tensor(x[2:4])))
    draws = d.sample((20_000,), Generator(6))
    levels = np.sort(d.cdf(draws[:4000]).numpy())
    assert np.abs(levels - (np.arange(4000) + 0.5) / 4000).max() < radius(4000)


@pytest.mark.parametrize("n", [3, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["VonMisesFisher", "PowerSpherical"])
def test_directions_around_a_mean_have_their_density_moments_and_cosines(name, n):
    loc = R.normal(size=(3, n))
    loc /= np.linalg.norm(loc, axis=-1, keepdims=True)
    k, count = np.array([0.1, 4.0, 90.0]), 4000
    d = getattr(dist, name)(tensor(loc), tensor(k))
    x = d.sample((count,), Generator(8))
    assert d.support.check(x).numpy().all()
    mean, variance = x.numpy().mean(0), x.numpy().var(0)
    z = (mean - d.mean.numpy()) / np.sqrt(d.variance.numpy() / count)
    assert np.abs(z).max() < 5.5
    assert_close(variance, d.variance, rtol=0.2)
    cosine = (x.numpy() * loc).sum(-1)
    half = (n - 1) / 2
    for i in range(3):
        if name == "VonMisesFisher":
            reference = stats.vonmises_fisher(loc[i], k[i])
            assert_close(d.log_prob(x)[:9, i], reference.logpdf(x.numpy()[:9, i]), rtol=1e-11)
            assert_close(d.entropy()[i], reference.entropy(), rtol=1e-11)
            angle = np.linspace(0, np.pi, 20_001)
            share = np.cumsum(np.sin(angle) ** (n - 2) * np.exp(k[i] * (np.cos(angle) - 1)))
            cdf = lambda v: 1 - np.interp(np.arccos(v), angle, share / share[-1])  # noqa: B023
        else:
            beta = stats.beta(k[i] + half, half)
            cdf = lambda v: beta.cdf((1 + v) / 2)  # noqa: B023
            # The density of the cosine, times the area of the sphere of directions across.
            area = np.log(2) + half * np.log(np.pi) - special.gammaln(half)
            c = cosine[:9, i]
            exact = beta.logpdf((1 + c) / 2) - np.log(2) - (half - 1) * np.log1p(-(c**2)) - area
            assert_close(d.log_prob(x)[:9, i], exact, rtol=1e-9)
            z = -d.log_prob(x).numpy()[:, i] - d.entropy().numpy()[i]
            assert abs(z.mean()) < 5.5 * z.std() / np.sqrt(count)
        level = np.sort(cdf(cosine[:, i]))
        assert np.abs(level - (np.arange(count) + 0.5) / count).max() < radius(count)
    native = compile(lambda m, c: getattr(dist, name)(m, c).log_prob(x))
    for _ in range(2):
        assert_close(native(tensor(loc), tensor(k)), d.log_prob(x))
    assert native.reason is None


def test_directions_without_a_mean_are_uniform():
    d = dist.SphericalUniform(4)
    x = d.expand((3,)).sample((1000,), Generator(9))
    assert_close(x.norm(dim=-1), np.ones((1000, 3)), rtol=1e-6)
    assert_close(d.log_prob(x), np.full((1000, 3), -np.log(2 * np.pi**2)), rtol=1e-6)
    assert_close(d.entropy(), np.log(2 * np.pi**2), rtol=1e-6)
    # Each coordinate is 2 b - 1 for b beta with exponents (n - 1) / 2.
    level = np.sort(stats.beta(1.5, 1.5).cdf((x.numpy()[..., 2].ravel() + 1) / 2))
    assert np.abs(level - (np.arange(3000) + 0.5) / 3000).max() < radius(3000)
    with pytest.raises(ArgumentError, match="two elements"):
        dist.SphericalUniform(1)
    with pytest.raises(DomainError, match="parameter loc"):
        dist.PowerSpherical([1.0, 1.0], 2.0)


@pytest.mark.slow
def test_draws_of_the_power_spherical_have_a_gradient():
    loc = tensor([0.6, 0.8], requires_grad=True)
    k = tensor(3.0, requires_grad=True)
    x = dist.PowerSpherical(loc, k).rsample((20_000,), Generator(10))
    weights = tensor([0.3, -1.0])
    path = grad((x * weights).sum(-1).mean(), [loc, k])
    exact = grad((dist.PowerSpherical(loc, k).mean * weights).sum(), [loc, k])
    # Across the direction the mean turns with it; along it the length is not a parameter.
    across = np.array([-0.8, 0.6])
    assert_close(path[0].numpy() @ across, exact[0].numpy() @ across, rtol=0.03)
    assert_close(path[1], exact[1], atol=0.01)


CONTINUOUS = [c for c in RAREST if not c.is_discrete and c.cls is not dist.StickBreakingWeights]


@pytest.mark.slow
@pytest.mark.parametrize("case", CONTINUOUS, ids=lambda c: c.id)
def test_nuts_and_svi_run_on_it(case):
    given = vars(case.arguments(seed=3, batch=()))

    def model():
        sample("x", case.cls(**given))

    d = case.cls(**given)
    mcmc = MCMC(NUTS(model), num_samples=300, warmup_steps=300, seed=1, progress_bar=False)
    with warnings.catch_warnings():
        # A chain this short says that it is.
        warnings.simplefilter("ignore")
        mcmc.run()
    x = mcmc.get_samples()["x"]
    assert d.support.check(x).numpy().all()
    # One chain stays on one of two hills.
    if not d.event_shape and hasattr(d, "_cdf") and case.cls is not dist.DoublesidedMaxwell:
        # The share below the median, of at least 60 effective draws.
        assert abs((d.cdf(x) < 0.5).double().mean().item() - 0.5) < 0.35
    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO())
    losses = [svi.step() for _ in range(20)]
    assert np.isfinite(losses).all()


@pytest.mark.slow
def test_nuts_finds_a_direction():
    true = np.array([0.6, 0.0, 0.8])
    data = dist.VonMisesFisher(tensor(true), 5.0).sample((60,), Generator(1)).double()

    def model():
        loc = sample("loc", dist.SphericalUniform(3))
        sample("x", dist.VonMisesFisher(loc, 5.0).expand((60,)).to_event(1), obs=data)

    mcmc = MCMC(NUTS(model), num_samples=300, warmup_steps=300, seed=2, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run()
    mean = mcmc.get_samples()["loc"].numpy().mean(0)
    # About 1 / sqrt(60 * 5 * 0.8) across.
    assert np.linalg.norm(mean - true) < 0.3


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_a_repulsive_subset_has_the_determinant_of_its_kernel(batch):
    features = R.normal(size=(*batch, 3, 4))
    kernel = features @ np.swapaxes(features, -1, -2)
    d = dist.DeterminantalPointProcess(tensor(kernel))
    subsets = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    exact = np.empty((8, *batch))
    for index in np.ndindex(*batch):
        for i, s in enumerate(subsets.astype(bool)):
            exact[(i, *index)] = np.linalg.det(kernel[index][np.ix_(s, s)])
        exact[(slice(None), *index)] /= np.linalg.det(kernel[index] + np.eye(3))
    at = tensor(subsets.reshape(8, *(1,) * len(batch), 3))
    assert_close(d.log_prob(at).exp(), exact)
    assert_close(d.mean, np.einsum("s...,si->...i", exact, subsets))
    n = 4000
    x = d.sample((n,), Generator(11)).numpy()
    found = (x[:, None] == at.numpy()).all(-1).mean(0)
    assert (np.abs(found - exact) <= 5.5 * np.sqrt(exact * (1 - exact) / n) + 1e-12).all()
    native = compile(lambda k: dist.DeterminantalPointProcess(k).log_prob(at))
    for _ in range(2):
        assert_close(native(tensor(kernel)), d.log_prob(at))


@pytest.mark.parametrize("n", [2, 3, 6])
def test_divergences_of_directions_equal_the_mean_of_draws(n):
    rng = np.random.default_rng(n)
    axes = rng.standard_normal((2, n))
    first, second = axes / np.linalg.norm(axes, axis=-1, keepdims=True)
    uniform = dist.SphericalUniform(n)
    vmf = dist.VonMisesFisher(tensor(first), tensor(3.0).double())
    others = [
        (vmf, dist.VonMisesFisher(tensor(second), tensor(0.7).double())),
        (dist.PowerSpherical(tensor(first), tensor(2.0).double()), vmf),
        (dist.PowerSpherical(tensor(first), tensor(2.0).double()), uniform),
        (uniform, vmf),
        (vmf, uniform),
    ]
    for p, q in others:
        x = p.sample((10_000,), generator=Generator(0)).double()
        gap = (p.log_prob(x) - q.log_prob(x)).numpy()
        # z below 5: one false alarm in 10^6; and rounding, where the gap is the same everywhere.
        error = 5.0 * gap.std() / 100 + 1e-9
        assert abs(gap.mean() - dist.kl_divergence(p, q).item()) < error
    assert_close(dist.kl_divergence(vmf, vmf), tensor(0.0).double(), atol=1e-12)
    assert dist.kl_divergence(uniform, uniform).item() == 0.0


@pytest.mark.parametrize(
    ("n", "p"),
    [(7, [0.2, 0.5, 0.3]), (3, [0.25] * 4), (11, [0.9, 0.04, 0.03, 0.03]), (5, [0.0, 0.4, 0.6])],
)
def test_the_mode_of_a_multinomial_is_the_best_of_all_counts(n, p):
    d = dist.Multinomial(n, np.array(p))
    every = [c for c in itertools.product(range(n + 1), repeat=len(p)) if sum(c) == n]
    best = max(d.log_prob(np.array(c, float)).item() for c in every)
    assert d.mode.sum() == n
    assert_close(d.log_prob(d.mode), best)
