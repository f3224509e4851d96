"""Divergences of divergences/parts.py against quadrature, sums, enumeration and draws."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.distributions import kl_divergence
from probtorch.tensor import tensor
from probtorch.testing import assert_close

# Those whose rules want some parameters the same on both sides, and the others.
SHARING = {
    *(dist.ExtendedGeneralizedPareto, dist.GammaGamma, dist.JohnsonSU, dist.Levy),
    dist.SkewLogistic,
}
PARTS = SHARING | {
    *(dist.CirculantNormal, dist.DiscreteMarkovChain, dist.DiscreteUniform, dist.KroneckerNormal),
    *(dist.StickBreakingWeights, dist.VonMises3D, dist.ZeroOneInflatedBeta, dist.Zipf),
}


def t(*values):
    return tensor(np.array(values, dtype=float))


def by_quadrature(p, q, ends):
    """The integral over a line of finite ends, of distributions of one number."""

    def term(x):
        a, b = (d.log_prob(tensor(np.array(x))).item() for d in (p, q))
        return math.exp(a) * (a - b)

    return sum(
        integrate.quad(term, *pair, epsabs=1e-12, epsrel=1e-10, limit=200)[0]
        for pair in itertools.pairwise(ends)
    )


def test_logarithms_of_gammas_and_betas_diverge_as_those_do():
    a, b = t(0.4, 3.0), t(2.0, 0.7)
    gammas = kl_divergence(dist.Gamma(a, b), dist.Gamma(b, 1.0))
    for cls in (dist.ExpGamma, dist.ExpInverseGamma):
        assert_close(kl_divergence(cls(a, b), cls(b, 1.0)), gammas)
    with pytest.raises(NotImplementedError, match="their inverses"):
        kl_divergence(dist.ExpGamma(a, b), dist.ExpInverseGamma(a, b))
    betas = kl_divergence(dist.Beta(a, b), dist.Beta(b, t(1.5)))
    assert_close(kl_divergence(dist.SigmoidBeta(a, b), dist.SigmoidBeta(b, t(1.5))), betas)


LINES = {
    "SkewLogistic": (
        lambda a: dist.SkewLogistic(t(0.3)[0], t(2.0)[0], a),
        (t(0.4)[0], t(2.5)[0]),
        (-150.0, -5.0, 5.0, 60.0),
    ),
    "ExtendedGeneralizedPareto": (
        lambda k: dist.ExtendedGeneralizedPareto(t(0.3)[0], t(2.0)[0], t(-0.2)[0], k),
        (t(0.8)[0], t(2.5)[0]),
        (0.3, 0.4, 3.0, 10.3),
    ),
    "JohnsonSU": (
        lambda skew: dist.JohnsonSU(skew, 1.5 + 0.2 * skew, t(0.3)[0], t(2.0)[0]),
        (t(0.4)[0], t(-1.5)[0]),
        (-2e3, -20.0, 0.0, 20.0, 2e3),
    ),
    "GammaGamma": (
        lambda a: dist.GammaGamma(a, 3.0 + a, t(2.0)[0]),
        (t(1.4)[0], t(2.5)[0]),
        (0.0, 1.0, 20.0, 1e5),
    ),
    "Levy": (
        lambda s: dist.Levy(t(0.3)[0], s),
        (t(1.4)[0], t(2.5)[0]),
        (0.3, 1.0, 20.0, 1e3, 1e6, 1e9, 1e13),
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_divergences_through_one_map_are_integrals(name):
    make, (a, b), ends = LINES[name]
    p, q = make(a), make(b)
    with np.errstate(all="ignore"):
        assert_close(kl_divergence(p, q), by_quadrature(p, q, ends), rtol=1e-5)
    assert kl_divergence(p, p).item() == 0.0
    native = compile(lambda a, b: kl_divergence(make(a), make(b)))
    for _ in range(2):
        assert_close(native(a, b), kl_divergence(p, q))


@pytest.mark.parametrize(
    ("p", "q", "said"),
    [
        (dist.SkewLogistic(0.0, 1.0), dist.SkewLogistic(0.0, 2.0), "one loc and scale"),
        (dist.Levy(0.0, 1.0), dist.Levy(0.5, 1.0), "one loc on"),
        (dist.GammaGamma(1.0, 2.0), dist.GammaGamma(1.0, 2.0, 3.0), "one mixing_rate"),
        (dist.JohnsonSU(0.0, 1.0, 0.0), dist.JohnsonSU(0.0, 1.0, 1.0), "one loc and scale"),
        (
            dist.StickBreakingWeights(1.0, K=3),
            dist.StickBreakingWeights(1.0, K=4),
            "one K on both sides",
        ),
        (
            dist.ExtendedGeneralizedPareto(0.0, 1.0, 0.1),
            dist.ExtendedGeneralizedPareto(0.0, 1.0, 0.2),
            "one loc, scale and concentration",
        ),
    ],
    ids=lambda v: getattr(type(v), "__name__", None),
)
def test_what_both_sides_must_share_is_named(p, q, said):
    with pytest.raises(NotImplementedError, match=said):
        kl_divergence(p, q)


def test_uniform_counts_diverge_where_some_are_beyond():
    p, q = dist.DiscreteUniform(t(0.0, 2.0, 0.0), t(3.0, 2.0, 9.0)), dist.DiscreteUniform(0.0, 7.0)
    assert_close(kl_divergence(p, q), [math.log(2.0), math.log(8.0), math.inf])


def test_the_divergence_of_zipf_ranks_is_their_sum():
    p, q = dist.Zipf(t(2.5, 6.0, 60.0)), dist.Zipf(t(3.5, 4.0, 20.0))
    k = np.arange(1.0, 2e6)[:, None]
    a, b = (d.log_prob(tensor(k)).numpy() for d in (p, q))
    expected = (np.exp(a) * (a - b)).sum(0)
    # What lies beyond: a sum as an integral, of x^-2.5 log(x) / zeta.
    n, s = 2e6 - 0.5, 1.5
    slope = (3.5 - 2.5) * n**-s * (math.log(n) / s + 1 / s**2)
    size = (a[0, 0] - b[0, 0]) * n**-s / s
    expected[0] += (slope + size) * math.exp(a[0, 0])
    assert_close(kl_divergence(p, q), expected, rtol=1e-9)
    power = t(2.5, 30.0).requires_grad_()
    value = kl_divergence(dist.Zipf(power), dist.Zipf(3.0))
    slopes = grad(value.sum(), [power])[0].numpy()
    h = 1e-5
    above, below = (kl_divergence(dist.Zipf(t(2.5 + e, 30.0 + e)), dist.Zipf(3.0)) for e in (h, -h))
    assert_close(slopes, (above - below).numpy() / (2 * h), rtol=1e-6, atol=1e-9)


def chain(rng, n, steps, zero=False):
    rows, first = rng.dirichlet(np.ones(n), (2, n)), rng.dirichlet(np.ones(n), 2)
    if zero:
        rows[:, 0] = np.eye(n)[1]
    return dist.DiscreteMarkovChain(tensor(rows), tensor(first), steps)


def test_the_divergence_of_chains_is_that_of_all_their_paths():
    rng = np.random.default_rng(0)
    p, q = chain(rng, 3, 4, zero=True), chain(rng, 3, 4)
    paths = np.array(list(itertools.product(range(3), repeat=5)), float)[:, None]
    with np.errstate(divide="ignore"):
        a, b = (d.log_prob(tensor(paths)).numpy() for d in (p, q))
    expected = np.where(a > -np.inf, np.exp(a) * (np.where(a > -np.inf, a, 0.0) - b), 0.0).sum(0)
    assert_close(kl_divergence(p, q), expected)
    assert (kl_divergence(q, p).numpy() == math.inf).all()
    assert_close(kl_divergence(p, p), np.zeros(2))
    with pytest.raises(NotImplementedError, match="as many steps"):
        kl_divergence(p, chain(rng, 3, 5))


def test_divergences_of_shares_are_means_over_draws():
    p, q = dist.StickBreakingWeights(t(0.7, 3.0), K=4), dist.StickBreakingWeights(t(2.0), K=4)
    x = p.sample((20_000,), Generator(1))
    gaps = (p.log_prob(x) - q.log_prob(x)).numpy()
    error = gaps.std(0) / math.sqrt(20_000)
    assert (np.abs(gaps.mean(0) - kl_divergence(p, q).numpy()) < 5.2 * error).all()


def test_the_divergence_of_inflated_shares_is_that_of_ends_and_inside():
    p, q = (
        dist.ZeroOneInflatedBeta(2.0, 3.0, 0.3, 0.2),
        dist.ZeroOneInflatedBeta(1.0, 4.0, 0.6, 0.5),
    )
    ends = 0.06 * math.log(0.06 / 0.3) + 0.24 * math.log(0.24 / 0.3)
    betas = kl_divergence(dist.Beta(2.0, 3.0), dist.Beta(1.0, 4.0)).item()
    assert_close(kl_divergence(p, q), ends + 0.7 * (math.log(0.7 / 0.4) + betas))
    never = dist.ZeroOneInflatedBeta(1.0, 4.0, 0.0)
    assert kl_divergence(p, never).item() == math.inf
    assert_close(kl_divergence(never, q), math.log(1 / 0.4))


def test_directions_in_space_are_those_of_two_parameters():
    one, two = t(0.5, -2.0, 1.0), t(1.0, 1.0, 3.0)
    p, q = dist.VonMises3D(one), dist.VonMises3D(two)
    x = p.sample((20_000,), Generator(1))
    gaps = (p.log_prob(x) - q.log_prob(x)).numpy()
    value = kl_divergence(p, q).item()
    assert abs(gaps.mean() - value) < 5.2 * gaps.std() / math.sqrt(20_000)
    k = (two * two).sum().sqrt()
    other = dist.VonMisesFisher(two / k, k)
    assert_close(kl_divergence(p, other), value)
    assert_close(kl_divergence(other, p), kl_divergence(q, p))
    uniform = dist.SphericalUniform(3)
    assert_close(kl_divergence(p, uniform), uniform.entropy() - p.entropy())
    nearly = dist.VonMises3D(t(0.0, 0.0, 0.0))
    assert abs(kl_divergence(uniform, nearly).item()) < 1e-6


def test_normal_vectors_of_a_structure_diverge_as_dense_ones():
    rng = np.random.default_rng(3)
    loc, other = (tensor(rng.normal(size=6)) for _ in range(2))
    circles = [
        dist.CirculantNormal(m, covariance_rfft=tensor(np.exp(rng.normal(size=4))))
        for m in (loc, other)
    ]
    grids = []
    for m in (loc, other):
        factors = [np.tril(rng.normal(size=(n, n))) + 3.0 * np.eye(n) for n in (2, 3)]
        grids.append(dist.KroneckerNormal(m, list(map(tensor, factors))))
    dense = [
        *(dist.MultivariateNormal(d.loc, covariance_matrix=d.covariance_matrix) for d in circles),
        *(
            dist.MultivariateNormal(
                d.loc, scale_tril=tensor(np.kron(*(f.numpy() for f in d.scale_trils)))
            )
            for d in grids
        ),
    ]
    given = [*circles, *grids]
    for (i, p), (j, q) in itertools.product(enumerate(given), repeat=2):
        assert_close(kl_divergence(p, q), kl_divergence(dense[i], dense[j]), rtol=1e-9, atol=1e-12)
        assert_close(kl_divergence(p, dense[j]), kl_divergence(dense[i], q), rtol=1e-9, atol=1e-12)
