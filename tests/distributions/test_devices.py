"""Draws of distributions whose parameters lie on a GPU, through a fake CuPy."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.tensor import tensor
from tests.backends import fake_cupy

MAKERS = {
    "normal": lambda m, s: dist.Normal(m, s),
    "expanded": lambda m, s: dist.Normal(m, s).expand((3, 4)),
    "independent": lambda m, s: dist.Normal(0.0, s).to_event(1),
    "transformed": lambda m, s: dist.LogNormal(m, s),
    "masked": lambda m, s: dist.Normal(m, s).mask(tensor([True, False, True, True]).to(m.device)),
    "bernoulli": lambda m, s: dist.Bernoulli(logits=m),
    "student": lambda m, s: dist.StudentT(s, m, s),
    "gamma of a number": lambda m, s: dist.Gamma(2.0, s),
    "factors of correlations": lambda m, s: dist.LKJCholesky(4, s),
    "weibull": lambda m, s: dist.Weibull(s, s),
    "multivariate": lambda m, s: dist.MultivariateNormal(m, probtorch.eye(4).to(m.device) * s),
    "mixture": lambda m, s: dist.MixtureSameFamily(dist.Categorical(logits=m), dist.Normal(m, s)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_draws_and_densities_on_a_device_are_those_of_the_host(name, monkeypatch):
    fake_cupy.install(monkeypatch)

    def results(device):
        probtorch.manual_seed(3)
        m, s = (tensor(x).to(device) for x in ([0.5, -1.0, 2.0, 0.1], [1.0, 0.5, 2.0, 1.5]))
        d = MAKERS[name](m, s)
        x = d.sample((2,))
        found = x, d.log_prob(x)
        assert all(t.is_cuda == (device == "cuda") for t in found)
        return [t.cpu().numpy() for t in found]

    for there, here in zip(results("cuda"), results("cpu"), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-6)
