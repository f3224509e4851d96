"""How near the curvature comes to what a step size can follow, and the advice that rests on it."""

import warnings

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import sample, tensor
from probtorch.core.dispatch import wrap
from probtorch.diagnostics import DivergenceWarning
from probtorch.infer import MCMC, NUTS
from probtorch.infer.mcmc.metrics import DenseMetric, DiagonalMetric
from probtorch.infer.mcmc.warm_up.curvature import curvature_at_divergences, stability_share
from probtorch.infer.potential import Target
from tests.infer.mcmc.targets import funnel_logdensity, number


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_share_is_that_of_the_largest_eigenvalue(kind):
    """Of a Gaussian's precision in whitened coordinates, by NumPy."""
    rng, dim, step_size = np.random.default_rng(1), 6, 0.3
    root = rng.normal(size=(dim, dim)) + 3.0 * np.diag(np.arange(1.0, dim + 1))
    precision = wrap(root @ root.T)
    target = Target.from_density(lambda q: -0.5 * (q * (precision @ q)).sum(), dim)
    inverse_mass = np.diag(rng.uniform(0.5, 2.0, dim))
    metric = DiagonalMetric.from_inverse_mass(np.diag(inverse_mass))
    if kind == "dense":
        inverse_mass = inverse_mass + 0.3
        metric = DenseMetric.from_inverse_mass(inverse_mass)
    largest = np.linalg.eigvals(inverse_mass @ precision.array).real.max()
    share = stability_share(target, metric.inverse_mass(), step_size, rng.normal(size=dim))
    assert 0.9 < share / (0.25 * step_size**2 * largest) < 1.0 + 1e-6


def test_share_beyond_one_is_where_leapfrog_is_unstable():
    """A funnel's neck: the largest curvature at x = 0 is exp(-v), beside 1/9 along v."""
    target = Target.from_density(funnel_logdensity, 3)
    for v in (-6.0, -2.0, 0.0):
        share = stability_share(target, np.ones(3), 0.1, [v, 0.0, 0.0])
        np.testing.assert_allclose(share, 0.0025 * np.exp(-v), rtol=0.01)


def test_draws_of_both_kinds_are_compared():
    target = Target.from_density(funnel_logdensity, 3)
    kernels = [
        NUTS.of(None, step_size=number(h), metric=DiagonalMetric.unit(3)) for h in (0.1, 0.2)
    ]
    positions = np.zeros((2, 50, 3))
    diverging = np.zeros((2, 50), bool)
    assert curvature_at_divergences(target, kernels, positions, diverging) == {}
    diverging[:, :5] = True
    positions[:, :5, 0] = -4.0
    found = curvature_at_divergences(target, kernels, positions, diverging)
    np.testing.assert_allclose(found["curvature_at_divergences"], 0.01 * np.exp(4.0), rtol=0.01)
    assert 0.0024 < found["curvature_elsewhere"] < 0.0101


@pytest.mark.slow
def test_advice_for_a_latent_process_of_a_log_scale_works_when_followed():
    """A non-centred Gaussian process for a log scale: curvature peaks where the scale is small."""
    rng, n = np.random.default_rng(0), 20
    x = np.linspace(0.0, 1.0, n)
    root = np.linalg.cholesky(np.exp(-0.5 * ((x[:, None] - x) / 0.15) ** 2) + 1e-6 * np.eye(n))
    y = np.exp(2.0 * np.sin(6.0 * x) - 0.5) * rng.normal(size=n)

    def model():
        log_scale = sample("log_scale", dist.Normal(0.0, 1.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand((n,)).to_event(1))
        f = log_scale.exp() * (tensor(root) @ z)
        sample("y", dist.Normal(0.0, f.exp()).to_event(1), obs=tensor(y))

    # Of ten seeds eight are told; the few divergences of the other two lie beside the peak.
    advised = []
    for seed in range(4):
        with pytest.warns(DivergenceWarning) as caught:
            plain = MCMC(NUTS(model), 1000, num_chains=4, seed=seed, progress_bar=False).run()
        if any("NUTS(..., adaptive_steps=True)" in str(w.message) for w in caught):
            advised.append(seed)
            attrs = plain.attrs
            assert attrs["curvature_at_divergences"] > 3.0 * attrs["curvature_elsewhere"]
    assert len(advised) >= 2
    for seed in advised:
        kernel = NUTS(model, adaptive_steps=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cured = MCMC(kernel, 1000, num_chains=4, seed=seed, progress_bar=False).run()
        assert not cured.sample_stats["diverging"].any()
