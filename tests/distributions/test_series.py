"""Series over time: against dense Gaussians, sums over all paths of states, and step by step."""

import itertools
import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.density import NativeDensity
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.effects import sample
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.infer import MCMC, NUTS
from probtorch.tensor import tensor
from probtorch.testing import assert_close

STEPS, H, N = 4, 2, 3


def t(values):
    return tensor(np.asarray(values, dtype=float))


def positive(rng, k):
    a = rng.standard_normal((k, k))
    return a @ a.T + np.eye(k)


class Linear:
    """A linear model with parameters of its own at each step, and its joint normal."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.m, self.P = rng.standard_normal(H), positive(rng, H)
        self.F = 0.6 * rng.standard_normal((STEPS, H, H))
        self.c = rng.standard_normal((STEPS, H))
        self.Q = np.stack([positive(rng, H) for _ in range(STEPS)])
        self.O = rng.standard_normal((H, N))
        self.d, self.R = rng.standard_normal((STEPS, N)), positive(rng, N)

    def arguments(self):
        normal = dist.MultivariateNormal
        return (
            normal(t(self.m), t(self.P)),
            t(self.F),
            normal(t(self.c), t(self.Q)),
            t(self.O),
            normal(t(self.d), t(self.R)),
        )

    def dense(self):
        """Mean and covariance of (states, values), both flat over time."""
        loc, means, P = self.m, [], self.P
        cov = np.zeros((STEPS, H, STEPS, H))
        for i in range(STEPS):
            loc = loc @ self.F[i] + self.c[i]
            means.append(loc)
            P = self.F[i].T @ P @ self.F[i] + self.Q[i]
            ahead = cov[i, :, i] = P
            for j in range(i + 1, STEPS):
                ahead = ahead @ self.F[j]
                cov[i, :, j], cov[j, :, i] = ahead, ahead.T
        cov, states = cov.reshape(STEPS * H, STEPS * H), np.concatenate(means)
        B = np.kron(np.eye(STEPS), self.O)
        seen = states @ B + self.d.ravel()
        noise = np.kron(np.eye(STEPS), self.R)
        whole = np.block([[cov, cov @ B], [B.T @ cov, B.T @ cov @ B + noise]])
        return np.concatenate([states, seen]), whole


def conditioned(mean, cov, x):
    """Log density of the numbers in x that are no nan, and the states given those."""
    k = STEPS * H
    seen = np.flatnonzero(np.isfinite(x.ravel())) + k
    v = x.ravel()[seen - k]
    if not len(v):
        return 0.0, mean[:k], cov[:k, :k]
    S = cov[np.ix_(seen, seen)]
    gain = np.linalg.solve(S, cov[seen, :k]).T
    left = cov[:k, :k] - gain @ cov[seen, :k]
    density = stats.multivariate_normal(mean[seen], S).logpdf(v)
    return density, mean[:k] + gain @ (v - mean[seen]), left


def with_gaps(x):
    x = np.array(x)
    x[1, 1, 2] = x[3, 0, 0] = np.nan
    x[2, 2], x[3, 3], x[4] = np.nan, np.nan, np.nan
    return x


def test_a_gaussian_hmm_is_its_dense_normal_with_and_without_missing_values():
    given = Linear()
    d = dist.GaussianHMM(*given.arguments())
    mean, cov = given.dense()
    assert d.event_shape == (STEPS, N) and d.duration == STEPS
    x = with_gaps(d.sample((5,), Generator(1)).numpy())
    found, smooth, last = d.log_prob(x), d.smooth(x), d.filter(x)
    for i, row in enumerate(x):
        density, states, left = conditioned(mean, cov, row)
        assert_close(found[i], density, rtol=1e-11)
        assert_close(smooth.mean[i], states.reshape(STEPS, H), rtol=1e-10)
        blocks = left.reshape(STEPS, H, STEPS, H)
        each = np.stack([blocks[k, :, k] for k in range(STEPS)])
        assert_close(smooth.covariance_matrix[i], each, rtol=1e-10, atol=1e-12)
        assert_close(last.mean[i], states[-H:], rtol=1e-10)
        assert_close(last.covariance_matrix[i], each[-1], rtol=1e-10, atol=1e-12)
    assert_close(d.mean, mean[STEPS * H :].reshape(STEPS, N), rtol=1e-12)
    assert_close(d.variance, np.diag(cov)[STEPS * H :].reshape(STEPS, N), rtol=1e-12)


def random_field(rng, batch, steps):
    """Factors of a random field, with their means and covariances as arrays."""

    def factor(k, *shape):
        loc = rng.standard_normal((*shape, k))
        a = rng.standard_normal((*shape, k, k))
        return loc, a @ np.swapaxes(a, -1, -2) + np.eye(k)

    return factor(H, *batch), factor(2 * H, *batch, steps), factor(H + N, *batch, 1)


def dense_field(factors, steps):
    """Mean and covariance of the values of a field without a batch, flat over time."""
    size = (steps + 1) * H + steps * N
    precision, pull = np.zeros((size, size)), np.zeros(size)

    def put(at, loc, cov):
        inverse = np.linalg.inv(cov)
        precision[np.ix_(at, at)] += inverse
        pull[at] += inverse @ loc

    states = np.arange((steps + 1) * H).reshape(steps + 1, H)
    seen = np.arange((steps + 1) * H, size).reshape(steps, N)
    (first, of_first), (moves, of_moves), (values, of_values) = factors
    put(states[0], first, of_first)
    for i in range(steps):
        one = min(i, len(moves) - 1)
        put(np.concatenate(states[i : i + 2]), moves[one], of_moves[one])
        put(np.concatenate([states[i + 1], seen[i]]), values[0], of_values[0])
    cov = np.linalg.inv(precision)
    at = seen.ravel()
    return (cov @ pull)[at], cov[np.ix_(at, at)]


@pytest.mark.parametrize("shared", [False, True], ids=["by step", "shared"])
def test_a_gaussian_field_is_its_dense_normal(shared):
    factors = random_field(np.random.default_rng(8), (), 1 if shared else STEPS)
    make = [dist.MultivariateNormal(t(loc), t(cov)) for loc, cov in factors]
    d = dist.GaussianMRF(*make, duration=STEPS if shared else None)
    mean, cov = dense_field(factors, STEPS)
    assert d.event_shape == (STEPS, N) and d.hidden_dim == H
    x = d.sample((3,), Generator(1)).numpy()
    expected = stats.multivariate_normal(mean, cov).logpdf(x.reshape(3, -1))
    assert_close(d.log_prob(x), expected, rtol=1e-11)
    assert_close(d.mean, mean.reshape(STEPS, N), rtol=1e-10)
    assert_close(d.variance, np.diag(cov).reshape(STEPS, N), rtol=1e-10)
    x[1, 2, 0] = np.nan
    kept = np.arange(STEPS * N) != 2 * N
    some = stats.multivariate_normal(mean[kept], cov[np.ix_(kept, kept)])
    assert_close(d.log_prob(x[1]), some.logpdf(x[1].ravel()[kept]), rtol=1e-11)
    n = 4000
    white = np.linalg.solve(
        np.linalg.cholesky(cov), (d.sample((n,), Generator(3)).numpy().reshape(n, -1) - mean).T
    )
    # 12 means and 78 products of standard normals: z above 5.5 comes by chance in 4e-6 of seeds.
    assert np.abs(white.mean(1)).max() < 5.5 / np.sqrt(n)
    assert np.abs(white @ white.T / n - np.eye(len(white))).max() < 5.5 * np.sqrt(2 / n)


def test_gaussian_fields_have_batches_and_native_gradients():
    rng = np.random.default_rng(9)
    factors = random_field(rng, (2,), STEPS)
    make = [dist.MultivariateNormal(t(loc), t(cov)) for loc, cov in factors]
    d, x = dist.GaussianMRF(*make), rng.standard_normal((2, STEPS, N))
    assert d.batch_shape == (2,)
    for i, density in enumerate(d.log_prob(x)):
        mean, cov = dense_field([(loc[i], cov[i]) for loc, cov in factors], STEPS)
        assert_close(density, stats.multivariate_normal(mean, cov).logpdf(x[i].ravel()), rtol=1e-11)

    def logp(q):
        first = dist.Normal(q[:H], q[H].exp()).to_event(1)
        return dist.GaussianMRF(first, *make[1:]).log_prob(x).sum()

    density, q = NativeDensity(logp, H + 1), rng.standard_normal(H + 1)
    value, gradient = density.value_and_grad(q)
    expected, slope = density.eager(q)
    assert density.reason is None
    assert value == pytest.approx(expected, rel=1e-11)
    assert_close(gradient, slope, rtol=1e-9)


def test_factors_of_a_gaussian_field_that_do_not_fit_are_refused():
    normal = lambda k: dist.MultivariateNormal(probtorch.zeros(k), probtorch.eye(k))
    with pytest.raises(ShapeError, match=r"\(h,\), \(2 h,\) and \(h \+ n,\)"):
        dist.GaussianMRF(normal(2), normal(3), normal(3))
    with pytest.raises(ArgumentError, match="noise that is MultivariateNormal"):
        dist.GaussianMRF(dist.Gamma(1.0, 1.0).expand([2]).to_event(1), normal(4), normal(3))
    with pytest.raises(ArgumentError, match="duration=10"):
        dist.GaussianMRF(normal(2), normal(4), normal(3)).sample()


def test_draws_of_states_have_the_conditional_moments_of_the_dense_normal():
    given = Linear(2)
    d = dist.GaussianHMM(*given.arguments())
    x = with_gaps(d.sample((5,), Generator(1)).numpy())[3]
    _, states, left = conditioned(*given.dense(), x)
    n = 20_000
    z = d.rsample_posterior(x, (n,), Generator(3)).numpy().reshape(n, -1)
    white = np.linalg.solve(np.linalg.cholesky(left), (z - states).T)
    # 8 means and 36 products of standard normals: z above 5.5 comes by chance in 2e-6 of seeds.
    assert np.abs(white.mean(1)).max() < 5.5 / np.sqrt(n)
    assert np.abs(white @ white.T / n - np.eye(len(white))).max() < 5.5 * np.sqrt(2 / n)


def test_draws_of_a_gaussian_hmm_have_the_covariance_of_the_dense_normal():
    given = Linear(3)
    d = dist.GaussianHMM(*given.arguments())
    mean, cov = (a[..., STEPS * H :] for a in given.dense())
    n = 20_000
    x = d.sample((n,), Generator(4)).numpy().reshape(n, -1)
    white = np.linalg.solve(np.linalg.cholesky(cov[STEPS * H :]), (x - mean).T)
    assert np.abs(white.mean(1)).max() < 5.5 / np.sqrt(n)
    assert np.abs(white @ white.T / n - np.eye(len(white))).max() < 5.5 * np.sqrt(2 / n)


def test_what_comes_after_a_prefix_has_the_rest_of_the_density():
    d = dist.GaussianHMM(*Linear(4).arguments())
    x = d.sample((3,), Generator(5))
    rest = d.prefix_condition(x[:, :2])
    assert rest.event_shape == (2, N)
    gaps = x.numpy().copy()
    gaps[:, 2:] = np.nan
    assert_close(rest.log_prob(x[:, 2:]) + d.log_prob(gaps), d.log_prob(x), rtol=1e-11)


def test_one_unknown_scale_makes_values_student_distributed():
    given, a, b = Linear(5), 1.7, 2.3
    d = dist.GammaGaussianHMM(dist.Gamma(a, b), *given.arguments())
    mean, cov = (v[..., STEPS * H :] for v in given.dense())
    cov = cov[STEPS * H :]
    x = d.sample((5,), Generator(1)).numpy()
    whole = stats.multivariate_t(mean, cov * b / a, df=2 * a)
    assert_close(d.log_prob(x), whole.logpdf(x.reshape(5, -1)), rtol=1e-11)
    gaps = with_gaps(x)
    seen = np.isfinite(gaps[3].ravel())
    part = stats.multivariate_t(mean[seen], cov[np.ix_(seen, seen)] * b / a, df=2 * a)
    assert_close(d.log_prob(gaps)[3], part.logpdf(gaps[3].ravel()[seen]), rtol=1e-11)
    # E[s | x] of the conjugate pair, by quadrature over s.
    s = np.exp(np.linspace(-12, 6, 4001))
    square = np.einsum("i,ij,j", x[0].ravel() - mean, np.linalg.inv(cov), x[0].ravel() - mean)
    w = stats.gamma(a, scale=1 / b).pdf(s) * s ** (STEPS * N / 2) * np.exp(-s * square / 2) * s
    scale, _ = d.filter(x[0])
    assert_close(scale.mean, (w * s).sum() / w.sum(), rtol=1e-6)
    # The distance over the scale is F distributed (Dvoretzky-Kiefer-Wolfowitz: 1e-7 false alarms).
    n = 20_000
    far = d.sample((n,), Generator(7)).numpy().reshape(n, -1) - mean
    ratio = np.einsum("ni,ij,nj->n", far, np.linalg.inv(cov * b / a), far) / (STEPS * N)
    u = np.sort(stats.f(STEPS * N, 2 * a).cdf(ratio))
    assert np.abs(u - np.arange(1, n + 1) / n).max() < np.sqrt(np.log(2e7) / (2 * n)) + 1 / n
    assert_close(d.variance, b / (a - 1) * np.diag(cov).reshape(STEPS, N), rtol=1e-11)


def test_a_linear_hmm_has_the_density_of_normal_noise_and_draws_of_any():
    arguments = Linear(6).arguments()
    normal, linear = dist.GaussianHMM(*arguments), dist.LinearHMM(*arguments)
    x = normal.sample((3,), Generator(1))
    assert_close(linear.log_prob(x), normal.log_prob(x))
    up = dist.transforms.ExpTransform()
    outer = dist.TransformedDistribution(arguments[-1], [up])
    logs = dist.LinearHMM(*arguments[:-1], outer)
    assert_close(logs.log_prob(x.exp()), normal.log_prob(x) - x.sum((-2, -1)), rtol=1e-11)
    assert (logs.sample((2,)).numpy() > 0).all()
    heavy = dist.StudentT(3.0, 0.0, tensor([0.5, 1.0, 2.0])).to_event(1)
    tails = dist.LinearHMM(*arguments[:-1], heavy)
    with pytest.raises(NotImplementedError, match="all noise is MultivariateNormal"):
        tails.log_prob(x)
    n = 20_000
    y = tails.sample((n,), Generator(2)).numpy()
    mean, _ = Linear(6).dense()
    states, B = mean[: STEPS * H], np.kron(np.eye(STEPS), Linear(6).O)
    z = np.sqrt(n) * (y.mean(0).ravel() - states @ B) / y.std(0).ravel()
    assert np.abs(z).max() < 5.5
    assert tails.rsample((2,)).shape == (2, STEPS, N)


def test_series_side_by_side_are_the_series_one_by_one():
    loc = t([[0.1, 0.5], [0.7, -0.2]])
    make = lambda loc, batch: dist.GaussianHMM(
        dist.Normal(0.0, 1.0).expand((*batch, 1)).to_event(1),
        t([[0.8]]),
        dist.Normal(0.0, 0.5).expand((1,)).to_event(1),
        t([[1.0]]),
        dist.Normal(loc[..., None, None], 0.3).to_event(1),
        duration=5,
    )
    d = dist.IndependentHMM(make(loc, (2, 2)))
    assert (d.batch_shape, d.event_shape, d.duration) == ((2,), (5, 2), 5)
    x = d.sample((3,), Generator(0))
    each = [
        [make(loc[i, j], ()).log_prob(x[:, i, :, j : j + 1]) for j in range(2)] for i in range(2)
    ]
    assert_close(d.log_prob(x)[:, 1], each[1][0] + each[1][1], rtol=1e-12)
    assert_close(d.mean, np.broadcast_to(loc.numpy()[:, None], (2, 5, 2)), rtol=1e-12)


# ------------------------------------------------------------------------------ discrete states


@pytest.mark.parametrize("changing", [False, True])
def test_a_discrete_hmm_sums_over_all_paths(changing):
    rng, states = np.random.default_rng(1), 3
    time = (STEPS,) if changing else ()
    moves = rng.standard_normal((*time, states, states))
    seen = dist.Poisson(t(np.exp(rng.standard_normal((*time, states)))))
    d = dist.DiscreteHMM(t(rng.standard_normal(states)), t(moves), seen, duration=STEPS)
    x = d.sample((4,), Generator(1)).numpy()
    first = np.exp(d.initial_logits.numpy())
    move = np.broadcast_to(np.exp(d.transition_logits.numpy()), (STEPS, states, states))
    rate = np.broadcast_to(seen.rate.numpy(), (STEPS, states))
    whole, at = 0.0, np.zeros((4, STEPS, states))
    for path in itertools.product(range(states), repeat=STEPS + 1):
        p = first[path[0]]
        for k in range(STEPS):
            p = p * move[k, path[k], path[k + 1]]
            p = p * stats.poisson(rate[k, path[k + 1]]).pmf(x[:, k])
        whole = whole + p
        for k in range(STEPS):
            at[:, k, path[k + 1]] += p
    assert_close(d.log_prob(x), np.log(whole), rtol=1e-12)
    assert_close(d.smooth(x).probs, at / whole[:, None, None], rtol=1e-10)
    assert_close(d.filter(x).probs, at[:, -1] / whole[:, None], rtol=1e-10)


def test_draws_of_a_discrete_hmm_have_the_frequencies_of_its_mass():
    seen = dist.Bernoulli(t([0.1, 0.6, 0.95]))
    moves = t([[2.0, 0.0, -1.0], [0.0, 1.0, 1.5], [0.5, 0.0, 0.0]])
    d = dist.DiscreteHMM(t([0.3, 0.0, 1.0]), moves, seen, duration=3)
    values = np.array([*itertools.product([0.0, 1.0], repeat=3)])
    mass = np.exp(d.log_prob(values).numpy())
    assert_close(mass.sum(), 1.0)
    x = d.sample((20_000,), Generator(2)).numpy() @ np.array([4, 2, 1])
    # A p below 1e-6 comes by chance as often.
    count = np.bincount(x.astype(int), minlength=8)
    assert stats.chisquare(count, mass * len(x)).pvalue > 1e-6


def test_a_mass_outside_the_support_is_zero_with_gradient_zero():
    moves = t([[0.0, 1.0], [0.5, 0.0]]).requires_grad_()
    d = dist.DiscreteHMM(t([0.0, 0.0]), moves, dist.Poisson(t([1.0, 5.0])), validate_args=False)
    density = d.log_prob(t([1.0, -2.0, 3.0]))
    assert density.item() == -np.inf
    (slope,) = probtorch.autograd.grad(density, [moves])
    assert_close(slope, np.zeros((2, 2)))


# ------------------------------------------------------------------------------ seen as they are


def test_an_autoregression_is_the_product_of_its_steps():
    d = dist.AR(t([0.3, 0.5, -0.2]), 0.7, init_dist=dist.Normal(0.1, 2.0), steps=5, constant=True)
    assert (d.ar_order, d.event_shape) == (2, (7,))
    x = d.sample((4,), Generator(0)).numpy()
    ahead = 0.3 + 0.5 * x[:, 1:-1] - 0.2 * x[:, :-2]
    steps = stats.norm(ahead, 0.7).logpdf(x[:, 2:]).sum(1)
    assert_close(d.log_prob(x), steps + stats.norm(0.1, 2).logpdf(x[:, :2]).sum(1), rtol=1e-12)
    # Steps of draws are the noise.
    x = d.sample((4000,), Generator(1)).numpy()
    noise = (x[:, 2:] - 0.3 - 0.5 * x[:, 1:-1] + 0.2 * x[:, :-2]) / 0.7
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6
    assert stats.kstest(x[:, 1], stats.norm(0.1, 2).cdf).pvalue > 1e-6
    assert_close(dist.AR([0.5], tau=4.0, steps=3).sigma, 0.5)
    assert dist.AR(t([[0.5], [0.2]]), steps=3).batch_shape == (2,)


def test_garch_has_the_variances_of_its_recursion():
    omega = np.array([0.1, 0.2])
    d = dist.GARCH11(t(omega), 0.2, 0.6, 1.5, steps=4)
    x = d.sample((3,), Generator(0)).numpy()
    variance, density = np.full((3, 2), 1.5**2), stats.norm(0, 1.5).logpdf(x[..., 0])
    for k in range(1, 5):
        variance = omega + 0.2 * x[..., k - 1] ** 2 + 0.6 * variance
        density = density + stats.norm(0, np.sqrt(variance)).logpdf(x[..., k])
    assert_close(d.log_prob(x), density, rtol=1e-12)
    expected = [np.full(2, 1.5**2)]
    for _ in range(4):
        expected.append(omega + 0.8 * expected[-1])
    assert_close(d.variance, np.stack(expected, -1), rtol=1e-12)


def test_a_random_walk_of_vectors_is_the_product_of_its_steps():
    normal = dist.MultivariateNormal
    step = normal(t([0.5, 0.0]), t([[1.0, 0.3], [0.3, 0.5]]))
    d = dist.RandomWalk(step, normal(t([0.0, 1.0]), t(4 * np.eye(2))), 3)
    x = d.sample((4,), Generator(0))
    expected = d.init_dist.log_prob(x[:, 0]) + step.log_prob(x[:, 1:] - x[:, :-1]).sum(-1)
    assert d.event_shape == (4, 2)
    assert_close(d.log_prob(x), expected, rtol=1e-12)
    assert_close(d.mean, [[0.5 * k, 1.0] for k in range(4)])
    assert_close(d.variance, [[4.0 + k, 4.0 + 0.5 * k] for k in range(4)])
    moves = np.diff(d.sample((5000,), Generator(1)).numpy(), axis=1)
    assert stats.kstest(moves[..., 1].ravel(), stats.norm(0, np.sqrt(0.5)).cdf).pvalue > 1e-6


@pytest.mark.parametrize("size", [0, 2])
def test_a_diffusion_is_the_product_of_its_steps(size):
    times = np.array([0.0, 0.1, 0.3, 0.6])
    if size:
        turn = lambda y, s: (probtorch.stack([y[1], -y[0]]), 0.3)
        drift = lambda y, s: np.stack([y[:, 1], -y[:, 0]], 1)
        spread = lambda y: 0.3
        first = dist.Normal(t([1.0, 0.0]), 0.1).to_event(1)
    else:
        turn = lambda y, s: (-0.5 * y + s, 0.3 + 0.1 * y * y)
        drift = lambda y, s: -0.5 * y + s
        spread = lambda y: 0.3 + 0.1 * y * y
        first = dist.Normal(t(1.0), 0.1)
    d = dist.EulerMaruyama(t(times), turn, first)
    x = d.sample((4000,), Generator(0)).numpy()
    density = np.array(first.log_prob(x[:, 0]).numpy())
    for k, dt in enumerate(np.diff(times)):
        ahead = x[:, k] + dt * drift(x[:, k], times[k])
        step = stats.norm(ahead, np.sqrt(dt) * spread(x[:, k]))
        density += step.logpdf(x[:, k + 1]).reshape(len(x), -1).sum(1)
        assert stats.kstest(step.cdf(x[:, k + 1]).ravel(), "uniform").pvalue > 1e-6
    assert_close(d.log_prob(x), density, rtol=1e-11)


@pytest.mark.parametrize("kind", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_a_linear_state_space_is_the_product_of_its_steps(kind):
    A, L = np.array([[0.6, -0.3], [0.2, 0.5]]), np.array([[1.0, 0.0], [0.3, 0.5]])
    forms = {"covariance_matrix": L @ L.T, "precision_matrix": np.linalg.inv(L @ L.T)}
    d = dist.GaussianStateSpace(4, t(A), **{kind: t(forms.get(kind, L))})
    x = d.sample((3,), Generator(0)).numpy()
    z = np.concatenate([np.zeros((3, 1, 2)), x], 1)
    noise = stats.multivariate_normal(np.zeros(2), L @ L.T)
    density = sum(noise.logpdf(z[:, k + 1] - z[:, k] @ A.T) for k in range(4))
    assert_close(d.log_prob(x), density, rtol=1e-11)
    P, rows = np.zeros((2, 2)), []
    for _ in range(4):
        P = A @ P @ A.T + L @ L.T
        rows.append(np.diag(P))
    assert_close(d.variance, np.stack(rows), rtol=1e-11)
    x = d.sample((4000,), Generator(1)).numpy()
    assert stats.kstest(x[:, -1, 0] / np.sqrt(rows[-1][0]), "norm").pvalue > 1e-6
    assert_close(d.covariance_matrix, L @ L.T, rtol=1e-11)
    assert_close(d.precision_matrix, np.linalg.inv(L @ L.T), rtol=1e-11)


@pytest.mark.parametrize("start", [[1.0, -2.0], [[1.0, 2.0], [0.0, -1.0], [3.0, 3.0]]])
def test_a_linear_state_space_starts_where_it_is_told(start):
    A, L = np.array([[0.6, -0.3], [0.2, 0.5]]), np.array([[1.0, 0.0], [0.3, 0.5]])
    d = dist.GaussianStateSpace(4, t(A), scale_tril=t(L), initial_value=t(start))
    assert d.batch_shape == np.shape(start)[:-1]
    x = d.sample((3,), Generator(0)).numpy()
    first = np.broadcast_to(start, (*x.shape[:-2], 2))
    z = np.concatenate([first[..., None, :], x], -2)
    noise = stats.multivariate_normal(np.zeros(2), L @ L.T)
    density = sum(
        noise.logpdf(z[..., k + 1, :] - z[..., k, :] @ A.T).reshape(x.shape[:-2]) for k in range(4)
    )
    assert_close(d.log_prob(x), density, rtol=1e-11)
    powers = [np.linalg.matrix_power(A, k + 1).T for k in range(4)]
    assert_close(d.mean, np.stack([np.array(start) @ p for p in powers], -2), rtol=1e-11)
    # From 0 on the spread is the same, in the shape of this one.
    still = dist.GaussianStateSpace(4, t(A), scale_tril=t(L)).variance.numpy()
    assert_close(d.variance, np.broadcast_to(still, d.variance.shape), rtol=1e-11)
    mean = d.sample((20_000,), Generator(1)).numpy().mean(0)
    # Eight to 24 numbers at 5.5 standard errors: 1e-6 of false alarms.
    assert (np.abs(mean - d.mean.numpy()) < 5.5 * np.sqrt(still / 20_000)).all()


# ------------------------------------------------------------------------------ all of them


def level(q=None, dtype=None, steps=None):
    """A level that wanders, seen with noise."""
    q = tensor([0.2, -0.3], dtype=dtype) if q is None else q
    return dist.GaussianHMM(
        dist.Normal(0.0, 1.0).expand((1,)).to_event(1),
        q.new_tensor([[1.0]]),
        dist.Normal(0.0, q[0].exp()).expand((1,)).to_event(1),
        q.new_tensor([[1.0]]),
        dist.Normal(0.0, q[1].exp()).expand((1,)).to_event(1),
        duration=steps,
    )


def decay(y, s):
    return -0.5 * y, 0.3


def examples(dtype=None):
    n = lambda v: tensor(v, dtype=dtype)
    hmm = dist.DiscreteHMM(
        n([0.0, 0.5]), n([[1.0, 0.0], [0.0, 1.0]]), dist.Normal(n([0.0, 3.0]), 1.0), duration=4
    )
    return [
        dist.AR(n([[0.5, 0.1], [0.2, 0.0]]), 0.7, steps=3),
        dist.GARCH11(n(0.1), n([0.2, 0.3]), 0.6, 1.0, steps=3),
        dist.RandomWalk(dist.StudentT(n([4.0, 5.0]), 0.0, 1.0), dist.Normal(0.0, 1.0), 3),
        dist.EulerMaruyama(n([0.0, 0.1, 0.4]), decay, dist.Normal(n([0.0, 1.0]), 1.0)),
        dist.GaussianStateSpace(
            3, n([[0.5, 0.1], [0.0, 0.3]]), n([[1.0, 0.2], [0.2, 1.0]]), initial_value=n([1.0, 0.5])
        ),
        hmm,
        level(dtype=dtype, steps=4),
        dist.GammaGaussianHMM(
            dist.Gamma(n([2.0, 3.0]), 2.0), *(getattr(level(dtype=dtype), p) for p in PARTS),
            duration=3,
        ),
    ]  # fmt: skip


PARTS = dist.LinearHMM._parts
EACH = pytest.mark.parametrize("k", range(8))


@EACH
def test_series_have_the_shapes_dtypes_and_copies_of_other_distributions(k):
    wide, narrow = examples(probtorch.float64)[k], examples(probtorch.float32)[k]
    for shape in [(), (3,), (2, 0)]:
        x = wide.sample(shape, Generator(0))
        assert x.shape == shape + wide.batch_shape + wide.event_shape
        assert wide.support.check(x).numpy().all()
        assert wide.log_prob(x).shape == shape + wide.batch_shape
    x = narrow.sample((2,), Generator(1))
    assert x.dtype == probtorch.float32 == narrow.log_prob(x).dtype
    assert_close(narrow.log_prob(x), wide.log_prob(x.double()).numpy(), rtol=1e-5, atol=1e-5)
    grown = wide.expand((5, *wide.batch_shape))
    y = grown.sample((), Generator(2))
    assert y.shape == (5, *wide.batch_shape, *wide.event_shape)
    assert not (y[0] == y[1]).numpy().any()
    for copy in (
        unflatten(flatten(grown)[1], flatten(grown)[0]),
        pickle.loads(pickle.dumps(grown)),
    ):
        assert copy.batch_shape == grown.batch_shape
        assert_close(copy.log_prob(y), wide.log_prob(y))
    if wide.has_rsample:
        assert_close(wide.rsample((2,), Generator(3)), wide.sample((2,), Generator(3)))


DATA = np.random.default_rng(3).standard_normal(6)
GAPS = np.where(np.arange(6) == 2, np.nan, DATA)[:, None]


def hidden(q):
    return dist.DiscreteHMM(q[:2], q[2:6].reshape(2, 2), dist.Normal(q[6:8], 1.0)).log_prob(t(DATA))


def rough(q):
    p = (q[:4] - 1.0).exp()
    return dist.GARCH11(*(p[i] for i in range(4)), steps=5).log_prob(t(DATA))


def unseen(q):
    d = dist.EulerMaruyama(t(0.1 * np.arange(3.0)), lambda y, s: (q[0] * y, q[1].exp()), FIRST)
    return d.log_prob(q[2:8].reshape(3, 2))


FIRST = dist.Normal(0.0, 1.0).expand((2,)).to_event(1)


def gaps(q):
    return level(q).log_prob(t(GAPS))


@pytest.mark.parametrize("f", [gaps, hidden, rough, unseen])
def test_a_compiled_density_and_its_gradient_are_the_eager_ones(f):
    native = NativeDensity(f, 8)
    q = 0.4 * np.random.default_rng(0).standard_normal(8)
    value, slope = native.value_and_grad(q)
    expected, eager = native.eager(q)
    assert native.reason is None and len(native.paths) == 1
    assert_close(value, expected, rtol=1e-12)
    assert_close(np.array(slope), eager, rtol=1e-10, atol=1e-12)
    move = np.cos(np.arange(8.0))
    numeric = (float(f(t(q + 1e-5 * move))) - float(f(t(q - 1e-5 * move)))) / 2e-5
    assert_close(eager @ move, numeric, rtol=1e-7, atol=1e-8)


# A divergence among thousands of draws comes and goes with the rounding of the processor.
@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.DivergenceWarning")
def test_nuts_finds_the_scales_of_a_level_from_values_with_gaps():
    def model(y):
        q = sample("q", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
        sample("y", level(q), obs=y)

    y = level(t([-0.7, 0.3]), steps=40).sample((), Generator(1)).numpy().copy()
    y[10:14] = np.nan
    mcmc = MCMC(NUTS(model), num_samples=4000, warmup_steps=300, num_chains=2, seed=2)
    mcmc.run(tensor(y))
    # The posterior on a grid, by the dense normal of what is seen.
    axis = np.linspace(-2.2, 1.4, 25)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    seen = np.flatnonzero(np.isfinite(y[:, 0]))
    both = 1.0 + np.minimum(seen, seen[:, None])
    logs = []
    for q in grid:
        cov = 1.0 + np.exp(2 * q[0]) * both + np.exp(2 * q[1]) * np.eye(len(seen))
        logs.append(stats.multivariate_normal(np.zeros(len(seen)), cov).logpdf(y[seen, 0]))
    logs = np.array(logs) - 0.5 * (grid**2).sum(1)
    w = np.exp(logs - logs.max())
    mean = (w[:, None] * grid).sum(0) / w.sum()
    sd = np.sqrt((w[:, None] * (grid - mean) ** 2).sum(0) / w.sum())
    found = mcmc.get_samples()["q"].numpy()
    # With 200 effective draws, below which a warning is raised, a difference of 0.35 sd comes by
    # chance in 2e-6 of seeds.
    assert (np.abs(found.mean(0) - mean) < 0.35 * sd).all()


def test_models_without_a_duration_take_values_of_any_length_and_do_not_draw():
    d = level(t([0.0, 0.0]))
    assert d.duration is None and d.event_shape == (1, 1)
    assert d.log_prob(np.zeros((7, 1))).shape == d.log_prob(np.zeros((2, 1))).shape == ()
    with pytest.raises(ArgumentError, match="duration=10"):
        d.sample()
    with pytest.raises(ShapeError, match="event shape"):
        d.log_prob(np.zeros((7, 2)))
    with pytest.raises(ShapeError, match="for 3 steps"):
        dist.GaussianHMM(*Linear().arguments(), duration=3)
    with pytest.raises(ShapeError, match="t below 4"):
        level(t([0.0, 0.0]), steps=4).prefix_condition(np.zeros((4, 1)))


def test_wrong_parts_are_refused_by_name():
    arguments = Linear().arguments()
    heavy = dist.StudentT(3.0, t(np.zeros(3)), 1.0).to_event(1)
    with pytest.raises(ArgumentError, match="LinearHMM for other noise"):
        dist.GaussianHMM(*arguments[:-1], heavy)
    with pytest.raises(ArgumentError, match="a Gamma as scale_dist"):
        dist.GammaGaussianHMM(dist.HalfNormal(1.0), *arguments)
    with pytest.raises(ShapeError, match="event shapes"):
        dist.LinearHMM(arguments[0], t(np.eye(3)), *arguments[2:])
    with pytest.raises(ShapeError, match="n states"):
        dist.DiscreteHMM(t([0.0, 0.0]), t(np.eye(3)), dist.Normal(t([0.0, 1.0]), 1.0))
    with pytest.raises(ShapeError, match="IndependentHMM"):
        dist.IndependentHMM(level(t([0.0, 0.0])))
    with pytest.raises(ArgumentError, match="one of sigma and tau"):
        dist.AR([0.5], 1.0, 1.0, steps=3)
    with pytest.raises(ArgumentError, match="steps, a whole number"):
        dist.AR([0.5], 1.0)
    with pytest.raises(ShapeError, match="init_dist of 1 values"):
        dist.AR([0.5], init_dist=dist.Normal(t(np.zeros(3)), 1.0).to_event(1), steps=3)
    with pytest.raises(ShapeError, match="at least 1 weights"):
        dist.AR([0.5], steps=3, constant=True)
    with pytest.raises(DomainError, match="sigma"):
        dist.AR([0.5], -1.0, steps=3)
    with pytest.raises(ShapeError, match="init_dist of event shape"):
        dist.RandomWalk(dist.Normal(0.0, 1.0), FIRST, 3)
    with pytest.raises(ArgumentError, match="first states"):
        dist.EulerMaruyama([0.0, 1.0], decay, 0.0)
    with pytest.raises(ShapeError, match="n from 2 on"):
        dist.EulerMaruyama([0.0], decay, FIRST)
    with pytest.raises(DomainError, match="ordered"):
        dist.EulerMaruyama([0.0, 1.0, 0.5], decay, FIRST)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("moving", [False, True], ids=["one matrix", "a matrix for each step"])
def test_decoded_states_are_the_best_of_all_paths(steps, moving):
    rng = np.random.default_rng(steps)
    first = rng.normal(size=3)
    moves = rng.normal(size=(steps, 3, 3) if moving else (3, 3))
    moves[..., 0, 2] = -np.inf  # a step that cannot be taken
    levels = np.array([-1.0, 0.0, 1.0])
    d = dist.DiscreteHMM(tensor(first), tensor(moves), dist.Normal(tensor(levels), 0.7))
    x = rng.normal(size=(4, steps))
    found = d.decode(x)
    assert found.dtype == probtorch.int64 and found.shape == (4, steps)
    start = np.exp(first) / np.exp(first).sum()
    shares = np.exp(moves) / np.exp(moves).sum(-1, keepdims=True)
    shares = np.broadcast_to(shares, (steps, 3, 3))
    for row, states in zip(x, found.numpy()):
        probabilities = {}
        for path in itertools.product(range(3), repeat=steps):
            p = start @ shares[0][:, path[0]]  # of all states before the first step
            for t in range(1, steps):
                p *= shares[t][path[t - 1], path[t]]
            probabilities[path] = p * stats.norm.pdf(row, levels[list(path)], 0.7).prod()
        assert tuple(states) == max(probabilities, key=probabilities.get)


def test_a_batch_of_models_decodes_a_batch_of_series():
    rng = np.random.default_rng(0)
    first, moves = rng.normal(size=(2, 1, 3)), rng.normal(size=(2, 1, 3, 3))
    seen = dist.Poisson(tensor([1.0, 4.0, 9.0]))
    x = rng.poisson(4.0, size=(5, 6)).astype(float)
    found = dist.DiscreteHMM(tensor(first), tensor(moves[..., None, :, :]), seen).decode(x)
    assert found.shape == (2, 5, 6)
    for i, j in itertools.product(range(2), range(5)):
        alone = dist.DiscreteHMM(tensor(first[i, 0]), tensor(moves[i, 0]), seen)
        assert alone.decode(x[j]).tolist() == found[i, j].tolist()
