"""First passages of walks, processes at points, and normal vectors on grids."""

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.effects import sample
from probtorch.errors import DomainError, ShapeError
from probtorch.infer import MCMC, NUTS
from probtorch.tensor import tensor
from probtorch.testing import assert_close

R = np.random.default_rng(4)
BOUNDARY, DELAY = np.exp(0.5 * R.normal(size=8)), 0.3 * R.random(8)
BIAS, DRIFT = R.uniform(0.05, 0.95, 8), 2 * R.normal(size=8)


def log_first_passage(x, a, delay, bias, drift):
    """The sum of waves alone, which converges at any time with enough terms (Feller 1968)."""
    with mpmath.workdps(60):
        t = mpmath.mpf(abs(x)) - delay
        w, v = (1 - mpmath.mpf(bias), -drift) if x > 0 else (mpmath.mpf(bias), drift)
        u = t / mpmath.mpf(a) ** 2
        count = int(25 / math.sqrt(u)) + 5
        waves = (
            k * mpmath.exp(-k * k * mpmath.pi**2 * u / 2) * mpmath.sin(k * mpmath.pi * w)
            for k in range(1, count)
        )
        size = mpmath.log(sum(waves) * mpmath.pi) - 2 * mpmath.log(a)
        return float(size - v * a * w - mpmath.mpf(v) ** 2 * t / 2)


def test_a_first_passage_has_the_density_of_its_waves():
    d = dist.Wiener(BOUNDARY, DELAY, BIAS, DRIFT)
    x = d.sample((2,), Generator(1))
    assert d.support.check(x).numpy().all()
    rows = (BOUNDARY, DELAY, BIAS, DRIFT)
    exact = [
        [log_first_passage(*case) for case in zip(row, *rows, strict=True)] for row in x.numpy()
    ]
    assert_close(d.log_prob(x), exact, rtol=1e-12, atol=1e-12)
    assert_close(d.icdf(d.cdf(x)), x, rtol=1e-9)
    assert_close(d.cdf(x) + d.survival(x), np.ones((2, 8)))
    leaves = [tensor(v, requires_grad=True) for v in rows]
    native = compile(lambda *p: (lp := dist.Wiener(*p).log_prob(x).sum(), *grad(lp, list(p))))
    eager = dist.Wiener(*leaves).log_prob(x).sum()
    for _ in range(2):
        value, *slopes = native(*leaves)
        assert_close(value.detach(), eager.detach())
        for ours, theirs in zip(slopes, grad(eager, leaves, retain_graph=True), strict=True):
            assert_close(ours, theirs, rtol=1e-9)
    assert native.reason is None
    moved = [v + 1e-6 * (i == 3) for i, v in enumerate(rows)]
    numeric = (dist.Wiener(*moved).log_prob(x) - d.log_prob(x)).numpy().sum(0) / 1e-6
    assert_close(grad(eager, leaves)[3], numeric, rtol=1e-3, atol=1e-4)


def test_both_responses_together_have_probability_1():
    d = dist.Wiener(tensor(np.array(1.4)), 0.2, 0.35, 0.8)
    density = lambda t: d.log_prob(tensor(np.array(t))).exp().item()
    below = integrate.quad(density, -40, -0.2 - 1e-12, points=[-0.3, -1], limit=200)[0]
    above = integrate.quad(density, 0.2 + 1e-12, 40, points=[0.3, 1], limit=200)[0]
    assert_close(below + above, 1.0, rtol=1e-9)
    # The walk is a martingale through exp(-2 v x).
    start, whole = math.exp(-2 * 0.8 * 1.4 * 0.35), math.exp(-2 * 0.8 * 1.4)
    assert_close(below, (start - whole) / (1 - whole), rtol=1e-9)
    assert_close(d.cdf(0.0), below, rtol=1e-9)
    draws = d.sample((2000,), Generator(2))
    assert stats.kstest(d.cdf(draws).numpy(), "uniform").pvalue > 1e-7
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(0.1)


@pytest.mark.slow
def test_nuts_recovers_the_drift_of_decisions():
    x = dist.Wiener(1.5, 0.25, 0.5, 1.0).sample((80,), Generator(3)).double()

    def model():
        drift = sample("drift", dist.Normal(0.0, 2.0))
        boundary = sample("boundary", dist.LogNormal(0.0, 1.0))
        sample("x", dist.Wiener(boundary, 0.25, 0.5, drift).expand((80,)).to_event(1), obs=x)

    mcmc = MCMC(NUTS(model), num_samples=400, warmup_steps=300, seed=1, progress_bar=False)
    mcmc.run()
    found = mcmc.summary()
    # Standard deviations of the posterior are about 0.15 and 0.08.
    assert abs(found["drift"]["mean"] - 1.0) < 0.6
    assert abs(found["boundary"]["mean"] - 1.5) < 0.4


FACTORS = [np.linalg.cholesky(np.cov(R.normal(size=(n, 9)))) for n in (2, 3, 4)]


def test_a_grid_of_normals_is_a_normal_vector():
    loc = R.normal(size=(2, 24))
    cov = np.ones((1, 1))
    for f in FACTORS:
        cov = np.kron(cov, f @ f.T)
    d = dist.KroneckerNormal(tensor(loc), [tensor(f) for f in FACTORS])
    x = d.sample((3,), Generator(4))
    exact = [stats.multivariate_normal(m, cov).logpdf(x.numpy()[:, i]) for i, m in enumerate(loc)]
    assert_close(d.log_prob(x), np.array(exact).T)
    assert_close(d.variance, np.broadcast_to(np.diag(cov), (2, 24)))
    noise = tensor(np.eye(24))
    shifted = dist.KroneckerNormal(np.zeros(24), [tensor(f) for f in FACTORS])
    square = shifted._each(noise, lambda tril, v: tril @ v).numpy()
    assert_close(square.T @ square, cov, atol=1e-12)
    copy = unflatten(flatten(d)[1], flatten(d)[0])
    assert_close(copy.expand((4, 2)).log_prob(x[0]), np.broadcast_to(d.log_prob(x[0]), (4, 2)))
    native = compile(lambda m, *f: dist.KroneckerNormal(m, f).log_prob(x))
    for _ in range(2):
        assert_close(native(tensor(loc), *map(tensor, FACTORS)), d.log_prob(x))
    with pytest.raises(ShapeError, match="product of their sizes"):
        dist.KroneckerNormal(np.zeros(5), FACTORS[:2])


def kernel(x, y):
    return (-0.5 * (x[:, None] - y[None]).square().sum(-1)).exp()


def covariance(x, y):
    return np.exp(-0.5 * (x[:, None, 0] - y[None, :, 0]) ** 2)


def test_a_process_at_points_is_normal_and_conditions_on_values():
    old, new, y = R.normal(size=(5, 1)), R.normal(size=(3, 1)), R.normal(size=5)
    whole = covariance(old, old) + (0.1 + 1e-6) * np.eye(5)
    d = dist.GaussianProcess(kernel, old, lambda x: 2.0 * x[:, 0], 0.1)
    assert_close(d.log_prob(tensor(y)), stats.multivariate_normal(2.0 * old[:, 0], whole).logpdf(y))
    cross = covariance(new, old)
    mean = 2.0 * new[:, 0] + cross @ np.linalg.solve(whole, y - 2.0 * old[:, 0])
    rest = covariance(new, new) - cross @ np.linalg.solve(whole, cross.T) + (0.2 + 1e-6) * np.eye(3)
    after = dist.GaussianProcessRegressionModel(
        kernel, new, old, y, 0.1, 0.2, lambda x: 2.0 * x[:, 0]
    )
    assert_close(after.mean, mean)
    assert_close(after.covariance_matrix, rest)
    many = dist.GaussianProcessRegressionModel(kernel, new, old, np.stack([y, -y]), 0.1, 0.2)
    assert many.batch_shape == (2,) and many.event_shape == (3,)
    heavy = dist.StudentTProcess(5.0, kernel, old, observation_noise_variance=0.1)
    assert_close(heavy.log_prob(tensor(y)), stats.multivariate_t(None, whole * 0.6, 5).logpdf(y))
    assert_close(heavy.variance, np.diag(whole))
    with pytest.raises(DomainError, match="StudentTProcess: parameter df"):
        dist.StudentTProcess(1.5, kernel, old)
    with pytest.raises(ShapeError, match=r"\(points, dims\)"):
        dist.GaussianProcess(kernel, old[:, 0])


def test_the_moments_of_a_first_passage_are_integrals_of_its_density():
    drift = np.concatenate([DRIFT[:5], [0.0, 1e-4, 25.0]])
    d = dist.Wiener(BOUNDARY, DELAY, BIAS, drift)
    # Of the log of the time beyond the delay, by the trapezium rule.
    s, step = np.linspace(-14.0, 5.0, 900, retstep=True)
    raw = np.zeros((3, 8))
    for side in (-1.0, 1.0):
        x = side * (DELAY + np.exp(s)[:, None])
        mass = step * np.exp(s[:, None] + d.log_prob(tensor(x)).numpy())
        raw += [(x**n * mass).sum(0) for n in (0, 1, 2)]
    assert_close(raw[0], np.ones(8), rtol=1e-8)
    assert_close(d.mean, raw[1], rtol=1e-7, atol=1e-9)
    assert_close(d.variance, raw[2] - raw[1] ** 2, rtol=1e-6)
