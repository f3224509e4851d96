"""Distributions of PyMC, Stan and TFP: what the sweep of laws does not ask for by day."""

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.core.rng import Generator
from probtorch.errors import DomainError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

R = np.random.default_rng(5)


def radius(n):
    """Dvoretzky, Kiefer and Wolfowitz: exceeded once in 1e7 runs."""
    return np.sqrt(np.log(2 / 1e-7) / (2 * n))


SUMS = {
    "NoncentralChi2": (np.exp(R.normal(size=(2, 6))), stats.ncx2),
    "NoncentralT": ([np.exp(R.normal(size=6)), 2 * R.normal(size=6)], stats.nct),
    "Skellam": (np.exp(R.normal(size=(2, 6))) * [1, 1, 1, 30, 30, 1e4], stats.skellam),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_density_that_is_a_sum_has_the_values_of_scipy(name):
    arguments, reference = SUMS[name]
    d, reference = getattr(dist, name)(*arguments), reference(*arguments)
    x = d.sample((4,), Generator(1))
    log = getattr(reference, "logpmf", None) or reference.logpdf
    assert_close(d.log_prob(x), log(x.numpy()), rtol=1e-11, atol=1e-11)
    assert_close(d.cdf(x), reference.cdf(x.numpy()), rtol=1e-10, atol=1e-13)
    assert_close(d.survival(x), reference.sf(x.numpy()), rtol=1e-10, atol=1e-13)
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
