"""SVI steps whose guide draws by rejection are compiled whole, with the numbers of eager ones."""

import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.distributions import constraints
from probtorch.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from probtorch.optim import Adam
from tests.infer.svi.test_compiled_step import assert_same


def model(x, y):
    p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    rate = probtorch.sample("rate", dist.Gamma(2.0, 1.0))
    share = probtorch.sample("share", dist.Dirichlet(probtorch.ones(3)))
    with probtorch.plate("rows", len(y)):
        probtorch.sample("sign", dist.Bernoulli(p), obs=(y > 0.0).double())
        probtorch.sample("count", dist.Poisson(rate + share[0]), obs=y.abs().floor())


def guide(x, y):
    def positive(name, value):
        start = probtorch.tensor(value, dtype=probtorch.float64)
        return probtorch.param(name, start, constraint=constraints.positive)

    probtorch.sample("p", dist.Beta(positive("heads", 2.0), positive("tails", 2.0)))
    probtorch.sample("rate", dist.Gamma(positive("shape", 2.0), positive("scale", 2.0)))
    probtorch.sample("share", dist.Dirichlet(positive("weights", [1.0, 2.0, 3.0])))


@pytest.mark.parametrize("objective", [Trace_ELBO, TraceMeanField_ELBO])
def test_steps_with_gamma_beta_and_dirichlet_guides_are_compiled(objective):
    assert_same(lambda: SVI(model, guide, Adam({"lr": 0.05}), objective()))
