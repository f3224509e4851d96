"""Guides of random parameters: when they are made, where they begin, and what has none."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.contrib import gp
from probtorch.errors import ArgumentError, DomainError
from probtorch.nn import PyroModule, PyroSample
from probtorch.optim import Adam

X = np.linspace(0.0, 1.0, 8)
Y = np.sin(6.0 * X)


def regression(prior, **options):
    return gp.models.GPRegression(X, Y, gp.kernels.RBF(1, lengthscale=prior), **options)


def test_an_optimizer_made_before_a_guide_was_asked_for_learns_it():
    process = regression(dist.LogNormal(0.0, 1.0))
    before = process.kernel.lengthscale_map.item()
    gp.util.train(process, Adam(process.parameters(), lr=0.05), num_steps=20)
    assert abs(process.kernel.lengthscale_map.item() - before) > 0.1


def test_an_optimizer_without_the_guides_of_priors_from_functions_is_refused():
    def make():
        return regression(PyroSample(lambda kernel: dist.LogNormal(kernel.variance.log(), 1.0)))

    process = make()
    with pytest.raises(ArgumentError, match="complete_guides"):
        gp.util.train(process, Adam(process.parameters(), lr=0.05), num_steps=2)
    process = make()
    process.complete_guides()
    assert len(gp.util.train(process, Adam(process.parameters(), lr=0.05), num_steps=2)) == 2


def test_what_was_learned_is_loaded_into_a_new_process():
    process = regression(dist.LogNormal(0.0, 1.0))
    gp.util.train(process, num_steps=5)
    other = regression(dist.LogNormal(0.0, 1.0))
    other.load_state_dict(process.state_dict())
    at = probtorch.tensor([0.3], dtype=probtorch.float64)
    assert other(at)[0].tolist() == process(at)[0].tolist()


@pytest.mark.parametrize(
    "prior", [dist.HalfCauchy(1.0), dist.Pareto(1.0, 0.5), dist.InverseGamma(0.5, 1.0)]
)
def test_priors_without_a_finite_mean_begin_at_a_draw(prior):
    process = regression(prior)
    assert np.isfinite(process.kernel.lengthscale_map.item())
    assert np.isfinite(gp.util.train(process, num_steps=3)).all()


@pytest.mark.parametrize("kind", [dist.Delta, dist.Normal, dist.MultivariateNormal])
def test_a_start_outside_of_the_support_is_refused(kind):
    kernel = gp.kernels.RBF(1, lengthscale=dist.LogNormal(0.0, 1.0))
    with pytest.raises(DomainError, match="support"):
        kernel.autoguide("lengthscale", kind, init=-1.0)


def test_another_prior_has_a_guide_of_its_own():
    kernel = gp.kernels.RBF(1, lengthscale=dist.LogNormal(0.0, 1.0))
    kernel.autoguide("lengthscale", dist.Normal)
    kernel.lengthscale = PyroSample(dist.Uniform(5.0, 10.0))
    kernel.set_mode("guide")
    assert kernel.lengthscale.item() == pytest.approx(7.5)
    assert not hasattr(kernel, "lengthscale_loc")


def test_a_number_in_the_place_of_a_prior_takes_the_guide_away():
    kernel = gp.kernels.RBF(1, lengthscale=dist.LogNormal(0.0, 1.0))
    kernel.lengthscale = probtorch.tensor(2.0)
    assert list(kernel.state_dict()) == ["variance_unconstrained"]
    kernel.set_mode("guide")
    assert kernel.lengthscale.item() == 2.0


def test_an_attribute_of_discrete_values_needs_no_guide():
    kernel = gp.kernels.RBF(1)
    kernel.rough = PyroSample(dist.Bernoulli(0.25))
    assert kernel.rough.item() in (0.0, 1.0)
    assert sorted(kernel.state_dict()) == ["lengthscale_unconstrained", "variance_unconstrained"]


class Line(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](1, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 10.0))

    def forward(self, x):
        return self.linear(x.float().unsqueeze(-1))[..., 0]


def test_a_random_mean_without_a_guide_is_refused_in_the_guide():
    process = regression(0.5, mean_function=Line())
    with pytest.raises(ArgumentError, match=r"mean_function\.linear\.weight.*\n.*Parameterized"):
        gp.util.train(process, num_steps=1)


@pytest.mark.parametrize("kind", ["exact", "sparse", "variational", "variational sparse"])
def test_whole_numbers_are_points(kind):
    def make(x):
        kernel, likelihood = gp.kernels.RBF(1), gp.likelihoods.Gaussian(0.1)
        return {
            "exact": lambda: gp.models.GPRegression(x, Y, kernel, noise=0.1),
            "sparse": lambda: gp.models.SparseGPRegression(x, Y, kernel, x[::2], noise=0.1),
            "variational": lambda: gp.models.VariationalGP(x, Y, kernel, likelihood),
            "variational sparse": lambda: gp.models.VariationalSparseGP(
                x, Y, kernel, x[::2], likelihood
            ),
        }[kind]()

    found = []
    for x in (np.arange(8), np.arange(8.0)):
        probtorch.manual_seed(0)
        process = make(x)
        found.append(gp.util.train(process, num_steps=3) + process(x[:2])[0].tolist())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
