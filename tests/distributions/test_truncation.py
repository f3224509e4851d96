"""Truncated, censored, folded, rounded, zero-inflated: any univariate distribution between bounds.

Oracles are SciPy's cdfs: each mass is a difference of them, each density a quotient.
"""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.distributions import biject_to, constraints
from probtorch.effects import sample
from probtorch.errors import ArgumentError, DomainError
from probtorch.func import vmap
from probtorch.infer import MCMC, NUTS
from probtorch.tensor import tensor
from probtorch.testing import assert_close

X = np.array([0.3, 1.1, 2.2])
K = np.array([1.0, 2.0, 4.0])
BASES = {
    "Normal": (dist.Normal(0.5, 1.5), stats.norm(0.5, 1.5)),
    "Gamma": (dist.Gamma(2.5, 1.5), stats.gamma(2.5, scale=1 / 1.5)),
    "StudentT": (dist.StudentT(3.0, 0.2, 0.8), stats.t(3.0, 0.2, 0.8)),
    "Weibull": (dist.Weibull(1.2, 0.8), stats.weibull_min(0.8, scale=1.2)),
    "Gompertz": (dist.Gompertz(0.4, 0.9), stats.gompertz(0.4, scale=1 / 0.9)),
}
BOUNDS = {"both": (0.2, 2.5), "low": (0.2, None), "high": (None, 2.5)}


def ends(low, high):
    return (-math.inf if low is None else low), (math.inf if high is None else high)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_truncated_distribution_is_the_base_renormalised(name, bounds):
    base, ref = BASES[name]
    low, high = ends(*BOUNDS[bounds])
    d = dist.TruncatedDistribution(base, *BOUNDS[bounds])
    mass = ref.cdf(high) - ref.cdf(low)
    assert_close(d.log_prob(tensor(X)), ref.logpdf(X) - np.log(mass), rtol=1e-12)
    assert_close(d.cdf(tensor(X)), (ref.cdf(X) - ref.cdf(low)) / mass, rtol=1e-11)
    assert_close(d.survival(tensor(X)), (ref.cdf(high) - ref.cdf(X)) / mass, rtol=1e-11)
    assert_close(d.icdf(d.cdf(tensor(X))), X, rtol=1e-10)
    x = d.sample((500,), Generator(2)).numpy()
    u = (ref.cdf(x) - ref.cdf(low)) / mass
    # A false alarm once in 10^6 seeds.
    assert stats.kstest(u, "uniform").pvalue > 1e-6
    assert d.support.check(tensor(x)).numpy().all()
    outside = [v for v in (-40.0, 40.0) if not low <= v <= high]
    for value in outside:
        with pytest.raises(DomainError, match="outside the support"):
            d.log_prob(value)
    # Latent in NUTS: the support has its bijection.
    z = biject_to(d.support)(tensor(np.array([-1.0, 0.4, 2.0])))
    assert d.support.check(z).numpy().all()


def test_a_truncated_tail_keeps_its_digits():
    d, exact = dist.Truncated(dist.Normal(0.0, 1.0), 12.0, 13.0), dist.TruncatedNormal(0, 1, 12, 13)
    x = tensor([12.01, 12.3, 12.9]).double()
    assert_close(d.log_prob(x), exact.log_prob(x), rtol=1e-10)
    assert_close(d.cdf(x), exact.cdf(x), rtol=1e-9)
    far = d.sample((300,), Generator(0)).numpy()
    assert stats.kstest(exact.cdf(tensor(far)).numpy(), "uniform").pvalue > 1e-6


def test_truncated_counts_include_both_bounds():
    d, ref = dist.TruncatedDistribution(dist.Poisson(2.5), 1, 4), stats.poisson(2.5)
    k = np.arange(1.0, 5.0)
    mass = ref.cdf(4) - ref.cdf(0)
    assert_close(d.log_prob(tensor(k)), ref.logpmf(k) - np.log(mass))
    assert_close(d.log_prob(tensor(k)).exp().sum(), 1.0)
    assert_close(d.cdf(tensor(k)), (ref.cdf(k) - ref.cdf(0)) / mass)
    x = d.sample((4000,), Generator(1)).numpy()
    share = np.bincount(x.astype(int), minlength=5)[1:]
    assert stats.chisquare(share, ref.pmf(k) / mass * 4000).pvalue > 1e-6


def test_counts_between_bounds_that_are_not_whole_are_the_whole_ones_inside():
    d, whole = dist.Truncated(dist.Poisson(2.5), 0.5, 4.7), dist.Truncated(dist.Poisson(2.5), 1, 4)
    x = d.sample((500,), Generator(1)).numpy()
    assert set(x) == {1.0, 2.0, 3.0, 4.0}
    k = tensor([1.0, 2.0, 4.0])
    for name in ("log_prob", "cdf", "survival"):
        assert_close(getattr(d, name)(k), getattr(whole, name)(k))
    p = stats.poisson(2.5).pmf(np.arange(1, 5))
    p, at = p / p.sum(), np.arange(1, 5)
    assert_close(d.mean, p @ at, rtol=1e-6)
    assert_close(d.variance, p @ at**2 - (p @ at) ** 2, rtol=1e-5)


def test_a_truncated_draw_moves_as_its_quantile_does():
    low = tensor(np.full(6, 0.2), requires_grad=True)
    rate = tensor(np.full(6, 1.5), requires_grad=True)
    d = dist.TruncatedDistribution(dist.Gamma(2.5, rate), low, 2.5)
    slopes = grad(d.rsample((), Generator(3)).sum(), [rate, low])
    u = d.cdf(d.sample((), Generator(3))).detach()
    for i, h in enumerate((1e-5, 1e-5)):
        at = lambda s, i=i, h=h: dist.TruncatedDistribution(
            dist.Gamma(2.5, rate.detach() + (s * h if i == 0 else 0.0)),
            low.detach() + (s * h if i else 0.0),
            2.5,
        ).icdf(u)
        numeric = (at(1.0) - at(-1.0)) / (2 * h)
        assert_close(slopes[i], numeric, rtol=1e-5)


def test_a_censored_distribution_has_masses_at_its_bounds():
    base, ref = BASES["Normal"]
    d = dist.Censored(base, 0.0, 2.0)
    assert_close(d.log_prob(tensor([0.0, 2.0]).double()), [ref.logcdf(0), ref.logsf(2)])
    assert_close(d.log_prob(tensor(X[:2])), ref.logpdf(X[:2]))
    assert_close(d.cdf(tensor([-1.0, 0.0, 1.0, 2.0]).double()), [0, ref.cdf(0), ref.cdf(1), 1])
    x = d.sample((2000,), Generator(0)).numpy()
    assert abs((x == 0.0).mean() - ref.cdf(0)) < 5 * 0.5 / math.sqrt(2000)
    counts = dist.Censored(dist.Poisson(2.5), None, 3)
    total = counts.log_prob(tensor([0.0, 1.0, 2.0, 3.0])).exp().sum()
    assert_close(total, 1.0, rtol=1e-6)


@pytest.mark.parametrize("base", [dist.Normal(0.5, 1.5), dist.Poisson(2.5)])
def test_bounds_that_meet_are_a_certain_point(base):
    low = tensor([1.0, 1.0], requires_grad=True)
    d = dist.Censored(base, low, tensor([1.0, 3.0]))
    assert d.log_prob(1.0)[0].item() == 0.0
    assert_close(d.log_prob(1.0)[1], base.log_cdf(1.0), rtol=1e-6)
    alone = dist.Censored(base, 1.0, 3.0)
    assert d.mean[0].item() == 1.0
    assert d.variance[0].item() == 0.0
    assert_close(d.mean[1], alone.mean, rtol=1e-5)
    assert_close(d.variance[1], alone.variance, rtol=1e-5)
    assert d.entropy()[0].item() == 0.0
    assert_close(d.entropy()[1], alone.entropy(), rtol=1e-5)
    if not d.is_discrete:
        slope = grad(d.mean.sum(), [low])[0]
        # Of a censored mean the slope in a bound is the probability of reaching it.
        assert_close(slope[1], base.cdf(1.0), rtol=1e-4)
        assert slope[0].isfinite().item()


def test_survival_times_may_be_bounds():
    base, ref = BASES["Weibull"]
    censored = np.array([False, True, True])
    right = dist.RightCensoredDistribution(base, censored)
    left = dist.LeftCensoredDistribution(base, censored)
    assert_close(right.log_prob(tensor(X)), np.where(censored, ref.logsf(X), ref.logpdf(X)))
    assert_close(left.log_prob(tensor(X)), np.where(censored, ref.logcdf(X), ref.logpdf(X)))


def test_a_censored_value_takes_no_slope_from_the_other_side():
    scale = tensor(np.full(2, 1.2), requires_grad=True)
    d = dist.RightCensoredDistribution(dist.Gamma(2.0, scale), [True, False])
    # At 0 a gamma has no density; as a bound it says nothing.
    lp = d.log_prob(tensor(np.array([0.0, 1.5])))
    (slope,) = grad(lp.sum(), [scale])
    assert lp[0].item() == 0.0 and np.isfinite(slope.numpy()).all()


def test_intervals_have_the_mass_between_or_beyond_their_ends():
    base, ref = BASES["Gamma"]
    value = np.array([[0.5, 1.5], [math.inf, 1.5], [0.5, math.inf], [0.5, 1.5]])
    left, right = [False, True, False, True], [False, False, True, True]
    d = dist.IntervalCensoredDistribution(base, left, right)
    between = ref.cdf(1.5) - ref.cdf(0.5)
    expected = np.log([between, ref.cdf(1.5), ref.sf(0.5), 1 - between])
    assert d.event_shape == (2,) and d.sample((3,)).shape == (3, 4, 2)
    assert_close(d.log_prob(tensor(value)), expected)


def test_a_folded_distribution_adds_both_sides():
    base, ref = BASES["StudentT"]
    d = dist.FoldedDistribution(base)
    assert_close(d.log_prob(tensor(X)), np.log(ref.pdf(X) + ref.pdf(-X)))
    assert_close(d.cdf(tensor(X)), ref.cdf(X) - ref.cdf(-X))
    assert_close(d.survival(tensor(X)), ref.sf(X) + ref.cdf(-X))
    assert_close(d.icdf(d.cdf(tensor(X))), X)
    assert (d.rsample((50,)).numpy() >= 0).all()
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(-1.0)


def test_a_quantized_distribution_has_the_mass_of_its_unit_intervals():
    base, ref = BASES["Normal"]
    d = dist.QuantizedDistribution(base, 0.0, 3.0)
    k = np.arange(0.0, 4.0)
    masses = [ref.cdf(0), ref.cdf(1) - ref.cdf(0), ref.cdf(2) - ref.cdf(1), ref.sf(2)]
    assert_close(d.log_prob(tensor(k)).exp(), masses)
    assert_close(d.cdf(tensor(k)), np.cumsum(masses))
    x = d.sample((4000,), Generator(5)).numpy()
    assert stats.chisquare(np.bincount(x.astype(int)), np.array(masses) * 4000).pvalue > 1e-6
    free = dist.QuantizedDistribution(base)
    assert_close(free.log_prob(tensor([-3.0]).double()), [np.log(ref.cdf(-3) - ref.cdf(-4))])


@pytest.mark.parametrize("given", ["gate", "gate_logits"])
def test_zero_inflated_counts_have_zeros_of_two_kinds(given):
    g = 0.3
    value = g if given == "gate" else math.log(g / (1 - g))
    ref = stats.poisson(2.5)
    k = np.arange(0.0, 6.0)
    d = dist.ZeroInflatedPoisson(2.5, **{given: value})
    masses = (1 - g) * ref.pmf(k) + g * (k == 0)
    assert_close(d.log_prob(tensor(k)), np.log(masses))
    assert_close(d.cdf(tensor(k)), np.cumsum(masses))
    every = np.arange(60.0)
    p = (1 - g) * ref.pmf(every) + g * (every == 0)
    assert_close(d.mean, (p * every).sum())
    assert_close(d.variance, (p * every**2).sum() - (p * every).sum() ** 2)
    x = d.sample((4000,), Generator(5)).numpy()
    got = np.bincount(np.minimum(x, 5).astype(int), minlength=6)
    p6 = np.append(masses[:5], 1 - masses[:5].sum())
    assert stats.chisquare(got, p6 * 4000).pvalue > 1e-6
    hurdle = dist.HurdleDistribution(dist.Poisson(2.5), **{given: value})
    masses = np.where(k == 0, g, (1 - g) * ref.pmf(k) / ref.sf(0))
    p = np.where(every == 0, g, (1 - g) * ref.pmf(every) / ref.sf(0))
    assert_close(hurdle.log_prob(tensor(k)), np.log(masses))
    assert_close(hurdle.cdf(tensor(k)), np.cumsum(masses))
    assert_close(hurdle.mean, (p * every).sum())
    assert_close(hurdle.variance, (p * every**2).sum() - (p * every).sum() ** 2)
    x = hurdle.sample((4000,), Generator(6)).numpy()
    got = np.bincount(np.minimum(x, 5).astype(int), minlength=6)
    p6 = np.append(masses[:5], 1 - masses[:5].sum())
    assert stats.chisquare(got, p6 * 4000).pvalue > 1e-6


def test_gates_of_0_and_1_have_no_nan():
    for gate, at in ((0.0, 0.0), (0.0, 2.0), (1.0, 0.0)):
        leaf = tensor(np.array(gate), requires_grad=True)
        rate = tensor(np.array(1.5), requires_grad=True)
        lp = dist.ZeroInflatedPoisson(rate, gate=leaf).log_prob(at)
        assert np.isfinite(lp.item())
        assert not any(np.isnan(g.numpy()).any() for g in grad(lp, [leaf, rate]))


NAMES = {
    "ZeroInflatedProbs": (dist.Poisson(2.0), 0.3),
    "ZeroInflatedLogits": (dist.Poisson(2.0), -1.0),
    "HurdleProbs": (dist.Poisson(2.0), 0.3),
    "HurdleLogits": (dist.Poisson(2.0), -1.0),
    "HurdlePoisson": (0.3, 2.0),
    "HurdleNegativeBinomial2": (0.3, 2.0, 3.0),
}


@pytest.mark.parametrize("name", NAMES)
def test_masses_of_other_names_sum_to_one(name):
    d = getattr(dist, name)(*NAMES[name])
    assert_close(d.log_prob(tensor(np.arange(200.0))).exp().sum(), 1.0)


COUNTS = {
    "ZeroInflatedBinomial": {"total_count": 5, "probs": 0.4, "gate": 0.2},
    "ZeroInflatedNegativeBinomial": {"total_count": 3.0, "logits": 0.4, "gate": 0.2},
    "ZeroInflatedNegativeBinomial2": {"mean": 2.0, "concentration": 3.0, "gate_logits": 0.2},
}


@pytest.mark.parametrize("name", COUNTS)
def test_masses_of_inflated_counts_sum_to_one(name):
    d = getattr(dist, name)(**COUNTS[name])
    top = 6.0 if "total_count" in COUNTS[name] and name.endswith("dBinomial") else 300.0
    assert_close(d.log_prob(tensor(np.arange(top))).exp().sum(), 1.0)


@pytest.mark.parametrize("name", ["HurdleGamma", "HurdleLogNormal"])
def test_amounts_behind_a_hurdle_have_a_density_above_0(name):
    d = getattr(dist, name)(0.3, 1.5, 0.8)
    f = lambda t: math.exp(d.log_prob(tensor(np.exp(t))).item()) * math.exp(t)
    assert abs(integrate.quad(f, -30, 12, limit=300)[0] - 0.7) < 1e-7
    assert_close(d.log_prob(0.0), math.log(0.3), rtol=1e-6)
    assert abs((d.sample((2000,)).numpy() == 0).mean() - 0.3) < 5 * 0.5 / math.sqrt(2000)


MADE = {
    "truncated": lambda a: dist.TruncatedDistribution(dist.Gamma(a, 1.5), 0.2, a + 2.5),
    "censored": lambda a: dist.Censored(dist.Normal(a, 1.5), 0.0, 2.5),
    "right": lambda a: dist.RightCensoredDistribution(dist.Weibull(a, 0.8), [True, False, True]),
    "folded": lambda a: dist.FoldedDistribution(dist.Normal(a, 1.5)),
    "quantized": lambda a: dist.QuantizedDistribution(dist.Normal(a, 1.5), 0, 5),
    "inflated": lambda a: dist.ZeroInflatedPoisson(a, gate=0.3),
    "hurdle": lambda a: dist.HurdlePoisson(0.3, a),
}


@pytest.mark.parametrize("name", MADE)
def test_wrappers_are_trees_and_batch_expand_and_compile(name):
    make = MADE[name]
    a = tensor(np.array([0.7, 1.2, 1.9]))
    x = tensor(X if name in ("truncated", "censored", "right", "folded") else K)
    d = make(a)
    assert d.batch_shape == (3,) and d.sample((2,)).shape == (2, 3)
    again = unflatten(flatten(d)[1], flatten(d)[0])
    assert_close(again.log_prob(x), d.log_prob(x))
    wide = d.expand((2, 3))
    assert wide.sample().shape == (2, 3) and wide.log_prob(x).shape == (2, 3)
    density = lambda a, x: make(a).log_prob(x)
    native = compile(lambda a, x: grad(density(a, x).sum(), [a])[0])
    leaf = a.detach().requires_grad_()
    for _ in range(2):
        assert_close(native(leaf, x), grad(density(leaf, x).sum(), [leaf])[0], rtol=1e-10)
    assert native.reason is None
    if name != "right":
        assert_close(vmap(density)(a, x), density(a, x))


def test_what_cannot_be_wrapped_says_so():
    with pytest.raises(ArgumentError, match="a distribution of single numbers with a cdf"):
        dist.TruncatedDistribution(dist.MultivariateNormal(tensor([0.0]), tensor([[1.0]])), 0.0)
    with pytest.raises(ArgumentError, match="exactly one of gate, gate_logits"):
        dist.ZeroInflatedPoisson(2.0)
    with pytest.raises(ArgumentError, match="single numbers"):
        dist.HurdleDistribution(dist.Multinomial(2, tensor([0.5, 0.5])), gate=0.1)
    with pytest.raises(DomainError, match="gate"):
        dist.ZeroInflatedPoisson(2.0, gate=1.3)
    with pytest.raises(ArgumentError, match="use HurdleDistribution"):
        dist.ZeroInflatedDistribution(dist.Gamma(2.0), gate=0.3)
    for base in (dist.Normal(0.0, 1.0), dist.Skellam(2.0, 1.0), dist.Uniform(-1.0, 1.0)):
        with pytest.raises(ArgumentError, match="cut it off first"):
            dist.HurdleDistribution(base, gate=0.3)
    half = dist.Truncated(dist.Normal(np.array(0.0), 1.0), 0.0)
    d = dist.HurdleDistribution(half, gate=0.3)
    assert_close(d.mean, 0.7 * np.sqrt(2.0 / np.pi), rtol=1e-9)


def test_mixtures_and_transformed_distributions_are_wrapped_too():
    weights, ref = np.array([0.3, 0.7]), (stats.norm(0, 1), stats.norm(2, 0.5))
    mixed = dist.MixtureSameFamily(
        dist.Categorical(weights),
        dist.Normal(tensor(np.array([0.0, 2.0])), tensor(np.array([1.0, 0.5]))),
    )
    pdf = weights[0] * ref[0].pdf(X) + weights[1] * ref[1].pdf(X)
    cdf = lambda v: weights[0] * ref[0].cdf(v) + weights[1] * ref[1].cdf(v)
    mass = cdf(2.5) - cdf(0.2)
    d = dist.Truncated(mixed, 0.2, 2.5)
    assert_close(d.log_prob(tensor(X)), np.log(pdf / mass), rtol=1e-10)
    assert_close(d.icdf(d.cdf(tensor(X))), X)
    late = dist.RightCensoredDistribution(mixed, [True, False, True])
    assert_close(late.log_prob(tensor(X)), np.where([1, 0, 1], np.log(1 - cdf(X)), np.log(pdf)))
    shifted = dist.AffineBeta(2.0, 3.0, -1.0, 4.0)
    beta = stats.beta(2.0, 3.0, -1.0, 4.0)
    cut = dist.Truncated(shifted, 0.0, 2.5)
    expected = beta.logpdf(X) - np.log(beta.cdf(2.5) - beta.cdf(0.0))
    assert_close(cut.log_prob(tensor(X)), expected)


def test_an_infinite_bound_is_none():
    for infinity in (math.inf, np.inf, tensor(math.inf), np.full(3, np.inf)):
        d = dist.TruncatedDistribution(dist.Normal(tensor([0.0, 1.0, 2.0]), 1.0), 0.5, infinity)
        whole = dist.TruncatedDistribution(dist.Normal(tensor([0.0, 1.0, 2.0]), 1.0), 0.5)
        assert_close(d.icdf(tensor(0.3)), whole.icdf(tensor(0.3)))
        assert d.support.check(tensor(1e30)).all()
        draws = d.sample((2000,))
        assert draws.min() >= 0.5 and len(np.unique(draws.numpy())) > 5000
    left = dist.TruncatedDistribution(dist.Normal(0.0, 1.0), -np.inf, 1.0)
    assert_close(
        left.icdf(tensor(0.3)),
        dist.TruncatedDistribution(dist.Normal(0.0, 1.0), None, 1.0).icdf(tensor(0.3)),
    )
    rows = dist.TruncatedDistribution(dist.Normal(0.0, 1.0), 0.5, np.full(3, np.inf))
    assert rows.batch_shape == (3,)


def test_rows_with_and_without_bounds_have_their_own_quantiles():
    low, high = [-np.inf, 0.5, -np.inf, -1.0], [np.inf, np.inf, 1.0, 2.0]
    d = dist.TruncatedDistribution(dist.Logistic(tensor(0.3), 1.2), np.array(low), np.array(high))
    p = np.array([1e-6, 0.1, 0.5, 0.9, 0.999])[:, None]
    base = stats.logistic(0.3, 1.2)
    start, end = base.cdf(low), base.cdf(high)
    expected = base.ppf(start + p * (end - start))
    assert_close(d.icdf(tensor(p)), expected, rtol=1e-6, atol=1e-7)
    draws = d.sample((4000,), Generator(3)).numpy()
    for i in range(4):
        uniform = (base.cdf(draws[:, i]) - start[i]) / (end[i] - start[i])
        assert stats.kstest(uniform, "uniform").pvalue > 1e-4


ROWS = np.array([-math.inf, 0.5, -math.inf, 0.5]), np.array([math.inf, math.inf, 2.0, 2.0])


@pytest.mark.parametrize(
    "set_of", [constraints.interval, constraints.open_interval], ids=["closed", "open"]
)
def test_rows_of_a_set_with_and_without_bounds_have_a_bijection_and_an_interior(set_of):
    low, high = (tensor(b) for b in ROWS)
    rows = set_of(low, high)
    assert rows.check(rows.interior(low)).numpy().all()
    transform = biject_to(rows)
    x = tensor(np.linspace(-3.0, 3.0, 7)[:, None] * np.ones(4), requires_grad=True)
    y, ladj = transform.call_and_ladj(x)
    assert rows.check(y).numpy().all()
    assert_close(transform.inv(y), x, rtol=1e-12)
    (slope,) = grad(y.sum(), x)
    assert (slope > 0.0).numpy().all()
    assert_close(ladj, np.log(slope.numpy()), rtol=1e-12, atol=1e-14)
    for i, (a, b) in enumerate(zip(*ROWS, strict=True)):
        alone = constraints.real if i == 0 else set_of(a, b) if i == 3 else None
        if alone is not None:
            assert_close(y[:, i], biject_to(alone)(x[:, i]), rtol=1e-14)
    for one in (constraints.greater_than(low), constraints.less_than(high)):
        z = biject_to(one)(x.detach())
        assert one.check(z).numpy().all()
        assert one.check(one.interior(z)).numpy().all()


BASES_OF_ROWS = {
    "StudentT": (dist.StudentT(5.0, 0.3, 0.8), ROWS),
    "Gumbel": (dist.Gumbel(0.3, 0.8), ROWS),
    "Skellam": (dist.Skellam(3.0, 5.0), tuple(np.round(4.0 * b) for b in ROWS)),
}


@pytest.mark.parametrize("name", BASES_OF_ROWS)
def test_facts_and_tails_of_rows_are_those_of_each_row_alone(name):
    base, (low, high) = BASES_OF_ROWS[name]
    rows = dist.Truncated(base, low, high, validate_args=False)
    alone = [
        dist.Truncated(base, *(None if np.isinf(b) else b for b in bounds), validate_args=False)
        for bounds in zip(low, high, strict=True)
    ]
    for fact in ("mean", "variance", "skewness", "kurtosis", "mode"):
        expected = [getattr(d, fact).item() for d in alone]
        assert_close(getattr(rows, fact), expected, rtol=1e-6, atol=1e-6, msg=fact)
    assert_close(rows.entropy(), [d.entropy().item() for d in alone], rtol=1e-10)
    assert_close(rows.icdf(tensor(0.2)), [d.icdf(tensor(0.2)).item() for d in alone], rtol=1e-6)
    for x in (0.50000001, 1.0, 1.9999999, 400.0, -400.0):
        for tail in ("log_cdf", "log_survival"):
            found = getattr(rows, tail)(tensor(np.array(x)))
            expected = [getattr(d, tail)(tensor(np.array(x))).item() for d in alone]
            assert_close(found, expected, rtol=1e-9, msg=f"{tail} at {x}")


def test_a_latent_truncated_site_has_rows_with_and_without_bounds():
    def model():
        sample("x", dist.Truncated(dist.StudentT(5.0, 0.3, 0.8), *ROWS).to_event(1))

    mcmc = MCMC(NUTS(model), 2000, 300, num_chains=2, seed=3, progress_bar=False)
    mcmc.run()
    x = mcmc.get_samples()["x"].numpy()
    d = dist.Truncated(dist.StudentT(5.0, 0.3, 0.8), *ROWS)
    assert_close(x.mean(0), d.mean.numpy(), atol=0.1)
    assert d.support.check(tensor(x)).numpy().all()


@pytest.mark.parametrize("bound", ["low", "high"])
@pytest.mark.parametrize("wrapper", [dist.TruncatedDistribution, dist.Censored])
def test_draws_at_double_bounds_of_a_base_of_numbers_are_in_the_support(wrapper, bound):
    d = wrapper(dist.Gamma(2.0, 1.5), **{bound: np.array([0.1, 0.7])})
    x = d.sample((200,))
    assert x.array.dtype == np.float64
    assert np.isfinite(d.log_prob(x).numpy()).all()


@pytest.mark.parametrize("wrapper", [dist.TruncatedDistribution, dist.Censored])
def test_outcomes_between_whole_numbers_are_refused(wrapper):
    halves = dist.FiniteDiscrete(tensor([0.5, 1.5, 2.5]), tensor([0.2, 0.3, 0.5]))
    with pytest.raises(DomainError, match="outcomes"):
        wrapper(halves, 1.0, 3.0)
    whole = wrapper(dist.FiniteDiscrete(tensor([0.0, 1.0, 4.0]), tensor([0.2, 0.3, 0.5])), 1.0, 5.0)
    got = whole.log_prob(tensor([1.0, 4.0])).exp().numpy()
    exact = [0.375, 0.625] if wrapper is dist.TruncatedDistribution else [0.5, 0.5]
    assert_close(got, np.array(exact))


def test_bounds_have_the_names_that_either_wrapper_has():
    gamma = dist.Gamma(2.0, 1.5)
    x = tensor([0.2, 0.5])
    assert_close(
        dist.Truncated(gamma, low=0.1, high=2.0).log_prob(x),
        dist.Truncated(gamma, 0.1, 2.0).log_prob(x),
    )
    assert_close(
        dist.Censored(gamma, lower=0.1, upper=2.0).log_prob(x),
        dist.Censored(gamma, 0.1, 2.0).log_prob(x),
    )
