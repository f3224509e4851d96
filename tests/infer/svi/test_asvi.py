"""`AutoASVI`: exact where the posterior has the priors' form, and the model's own structure."""

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import SVI, AutoASVI, AutoNormal, Trace_ELBO
from probtorch.optim import Adam
from probtorch.optim.lr_scheduler import ExponentialLR
from probtorch.optim.pyro import PyroLRScheduler
from tests.infer.svi.test_messenger_guides import Y, groups

SERIES = np.array([1.0, -0.5, 2.0, 1.5])
# Of a walk with unit steps that is seen with unit noise.
WALK = np.minimum.outer(np.arange(1.0, 5.0), np.arange(1.0, 5.0))
EVIDENCE = stats.multivariate_normal(np.zeros(4), WALK + np.eye(4)).logpdf(SERIES)
COVARIANCE = np.linalg.inv(np.linalg.inv(WALK) + np.eye(4))


def walk(y):
    x = 0.0
    for t in range(len(y)):
        x = probtorch.sample(f"x_{t}", dist.Normal(x, 1.0))
        probtorch.sample(f"y_{t}", dist.Normal(x, 1.0), obs=y[t])


def fitted(model, guide, *args, steps=1000):
    decay = {"optimizer": Adam, "optim_args": {"lr": 0.05}, "gamma": 0.01 ** (1.0 / steps)}
    schedule = PyroLRScheduler(ExponentialLR, decay)
    svi = SVI(model, guide, schedule, Trace_ELBO(num_particles=16), seed=0)
    for _ in range(steps):
        svi.step(*args)
        schedule.step()
    return svi


def bound(model, guide, *args):
    return -Trace_ELBO(num_particles=4000, vectorize_particles=True).loss(model, guide, *args)


def test_a_chain_is_exact_and_without_ties_it_is_not():
    """p(x_t | x_{t-1}, y) is linear in x_{t-1}: of the guide's form; the bound is the evidence."""
    y = probtorch.tensor(SERIES)
    gaps = []
    for kind in (AutoASVI, AutoNormal):
        guide = kind(walk)
        fitted(walk, guide, y)
        gaps.append(EVIDENCE - float(bound(walk, guide, y)))
        if kind is AutoASVI:
            draws = guide.sample_posterior((1500,))
            x = np.stack([draws[f"x_{t}"].numpy() for t in range(4)])
    assert -0.05 < gaps[0] < 0.05 and gaps[1] > 0.2
    mean = COVARIANCE @ SERIES
    assert np.abs((x.mean(axis=1) - mean) / np.sqrt(np.diag(COVARIANCE))).max() < 0.15
    np.testing.assert_allclose(np.cov(x), COVARIANCE, atol=0.12)


def test_conjugate_families_keep_their_form():
    """Beta and Gamma posteriors are of the priors' families: exact."""

    def model(heads, counts):
        p = probtorch.sample("p", dist.Beta(2.0, 3.0))
        rate = probtorch.sample("rate", dist.Gamma(2.0, 1.0))
        probtorch.sample("heads", dist.Binomial(10, p), obs=heads)
        with probtorch.plate("rows", 3):
            probtorch.sample("counts", dist.Poisson(rate), obs=counts)

    heads, counts = probtorch.tensor(7.0), probtorch.tensor([2.0, 4.0, 3.0])
    guide = AutoASVI(model)
    fitted(model, guide, heads, counts)
    draws = guide.sample_posterior((1500,))
    for name, exact in (("p", stats.beta(9, 6)), ("rate", stats.gamma(11, scale=1 / 4))):
        x = draws[name].numpy()
        assert abs(x.mean() - exact.mean()) < 0.15 * exact.std(), name
        assert abs(x.std() / exact.std() - 1.0) < 0.15, name


def test_it_starts_at_the_priors_and_keeps_sites_supports_and_plates():
    guide = AutoASVI(groups)
    values = guide(Y)
    assert {n: tuple(x.shape) for n, x in values.items()} == {"top": (), "share": (3,), "z": (3,)}
    start = guide.sample_posterior((1500,))
    assert abs(start["top"].numpy().mean()) < 0.1 and abs(start["top"].numpy().std() - 1.0) < 0.1
    shares = np.array([2.0, 3.0, 1.0]) / 6.0
    np.testing.assert_allclose(start["share"].numpy().mean(axis=0), shares, atol=0.03)
    one = Trace_ELBO(num_particles=3, vectorize_particles=True)
    svi = SVI(groups, guide, Adam({"lr": 0.05}), one, seed=0)
    losses = svi.run(40, Y, progress_bar=False).losses
    assert np.isfinite(losses).all() and losses[-10:].mean() < losses[:10].mean()
    assert svi.explain().startswith("SVI.step: 1 compiled path")
    names = {n for n, _ in guide.named_parameters()}
    assert {"z_auto_loc", "z_auto_scale_weight", "share_auto_concentration"} <= names


def test_rows_of_subsamples_and_rows_that_share_have_their_parameters():
    def model(y):
        top = probtorch.sample("top", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", 6, subsample_size=2) as rows:
            z = probtorch.sample("z", dist.Normal(top, 1.0).expand([3]).to_event(1))
            probtorch.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y[rows])

    y = probtorch.zeros(6, 3)
    for shared, rows in ((), 6), (("row",), 1):
        guide = AutoASVI(model, amortized_plates=shared)
        svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
        svi.run(5, y, progress_bar=False)
        found = dict(guide.named_parameters())
        assert tuple(found["z_auto_loc"].shape) == (rows, 3)


def test_bounds_stay_and_what_has_bounds_alone_is_refused():
    def cut():
        x = probtorch.sample("x", dist.TruncatedNormal(0.0, 1.0, low=-1.0))
        probtorch.sample("y", dist.Normal(x, 1.0), obs=probtorch.tensor(0.3))

    guide = AutoASVI(cut)
    guide()
    names = {n for n, _ in guide.named_parameters()}
    assert "x_auto_loc" in names and "x_auto_low" not in names

    def flat():
        probtorch.sample("x", dist.Uniform(0.0, 1.0))

    with pytest.raises(InferenceError, match="leave the support"):
        AutoASVI(flat)()
    with pytest.raises(ArgumentError, match="prior_weight"):
        AutoASVI(flat, prior_weight=1.0)
