"""Messenger guides: the model with other distributions at its latent sites."""

import math

import numpy as np
import pytest

from probtorch.core.rng import Generator
from probtorch.distributions import Cauchy, Dirichlet, LogNormal, Normal
from probtorch.effects import deterministic, factor, param, plate, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    SVI,
    AutoHierarchicalNormalMessenger,
    AutoMessenger,
    AutoNormalMessenger,
    AutoRegressiveMessenger,
    Trace_ELBO,
)
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import COVARIANCE, MEAN, correlated_model
from tests.infer.svi.test_guides import fit
from tests.infer.svi.test_structured import chain, exact_chain


def groups(y):
    top = sample("top", Normal(0.0, 1.0))
    share = sample("share", Dirichlet(tensor([2.0, 3.0, 1.0])))
    with plate("row", len(y)):
        z = sample("z", LogNormal(top, 0.5))
        deterministic("double", 2.0 * z)
        sample("y", Normal(z + share[..., 0], 0.5), obs=y)
    factor("extra", -top * top)


Y = tensor([0.5, 1.5, 1.0])


@pytest.mark.parametrize(
    "kind", [AutoNormalMessenger, AutoHierarchicalNormalMessenger, AutoRegressiveMessenger]
)
def test_sites_supports_and_plates_are_those_of_the_model(kind):
    guide = kind(groups)
    values = guide(Y)
    assert {n: tuple(x.shape) for n, x in values.items()} == {"top": (), "share": (3,), "z": (3,)}
    one = Trace_ELBO(num_particles=3, vectorize_particles=True)
    svi = SVI(groups, guide, Adam({"lr": 0.05}), one, seed=0)
    losses = svi.run(40, Y, progress_bar=False).losses
    assert np.isfinite(losses).all() and losses[-10:].mean() < losses[:10].mean()
    assert svi.explain().startswith("SVI.step: 1 compiled path")
    draws = guide.sample_posterior((2, 3), generator=Generator(0))
    assert draws["share"].shape == (2, 3, 3) and (draws["z"].numpy() > 0.0).all()
    np.testing.assert_allclose(draws["share"].numpy().sum(-1), 1.0, rtol=1e-9)
    assert {"z_auto_loc", "z_auto_scale"} <= {n for n, _ in guide.named_parameters()}


@pytest.mark.slow
def test_a_normal_messenger_is_the_mean_field_normal():
    guide = AutoNormalMessenger(correlated_model)
    fit(correlated_model, guide, 500)
    draws = guide.sample_posterior(600, generator=Generator(1))["x"].numpy()
    best = np.diag(np.linalg.inv(COVARIANCE)) ** -0.5
    # Five standard errors of means and of standard deviations, and the last steps.
    assert (np.abs(draws.mean(0) - MEAN) < 5 * best / math.sqrt(600) + 0.05).all()
    assert (np.abs(draws.std(0) / best - 1.0) < 5 / math.sqrt(1200) + 0.03).all()


@pytest.mark.slow
def test_a_hierarchical_messenger_holds_what_follows_the_priors():
    """Of `chain` the prior means are a and a - b: two of its three ties are the model's own."""
    guide = AutoHierarchicalNormalMessenger(chain, weight_type="scalar")
    result = fit(chain, guide, 500, lr=0.05)
    alone = fit(chain, AutoNormalMessenger(chain), 500, lr=0.05)
    assert result.losses[-100:].mean() < alone.losses[-100:].mean() - 0.02
    mean, covariance = exact_chain()
    draws = guide.sample_posterior(500, generator=Generator(1))
    found = np.stack([draws[n].numpy() for n in "abc"])
    assert np.abs(found.mean(1) - mean).max() < 5 * math.sqrt(covariance.max() / 500) + 0.05
    assert np.cov(found)[0, 1] > 0.1  # zero without the tie


def test_a_regressive_messenger_begins_as_a_narrow_prior():
    def pair():
        x = sample("x", Normal(3.0, 2.0))
        sample("y", Normal(x, 1.0))

    guide = AutoRegressiveMessenger(pair, init_scale=0.5, init_loc_fn=lambda site: tensor(1.0))
    guide()
    draws = guide.sample_posterior(600, generator=Generator(0))
    x, y = draws["x"].numpy(), draws["y"].numpy()
    # x = 1 + x' / 2 with x' from N(3, 2), and y = 1 + y' / 2 with y' from N(x, 1).
    assert abs(x.mean() - 2.5) < 5 * 1.0 / math.sqrt(600)
    assert abs(np.corrcoef(x, y)[0, 1] - 0.5 / math.sqrt(0.5)) < 5 * 0.5 / math.sqrt(600)


def test_rows_of_amortized_plates_share_parameters():
    def rows(y):
        with plate("row", 6, subsample_size=2) as i:
            z = sample("z", Normal(0.0, 1.0).expand([2]).to_event(0))
            sample("y", Normal(z, 1.0), obs=y[i])

    y = tensor(np.arange(6.0))
    shared = AutoNormalMessenger(rows, amortized_plates=("row",))
    own = AutoNormalMessenger(rows)
    for guide, shape in ((shared, (1,)), (own, (6,))):
        svi = SVI(rows, guide, Adam({"lr": 0.1}), Trace_ELBO(), seed=0)
        result = svi.run(60, y, progress_bar=False)
        assert tuple(result.params["z_auto_loc"].shape) == shape
    assert (np.diff(result.params["z_auto_loc"].numpy()[[0, 3, 5]]) > 0.0).all()


def test_a_posterior_of_ones_own_may_be_a_value():
    class Mine(AutoMessenger):
        def get_posterior(self, name, prior):
            if name == "a":
                return param("a_at", tensor(0.3))
            return Normal(prior.mean, 0.1)

    guide = Mine(chain)
    svi = SVI(chain, guide, Adam({"lr": 0.01}), Trace_ELBO(), seed=0)
    svi.run(3, progress_bar=False)
    draws = guide.sample_posterior(4)
    assert len(set(draws["a"].tolist())) == 1 and len(set(draws["b"].tolist())) == 4


def test_what_does_not_fit_is_refused():
    class Wrong(AutoMessenger):
        def get_posterior(self, name, prior):
            return Normal(0.0, 1.0).expand([2]).to_event(1)

    with pytest.raises(InferenceError, match=r"get_posterior\('a', ...\)(.|\n)*event shape \(2,\)"):
        Wrong(chain)()
    with pytest.raises(ArgumentError, match="names of plates"):
        AutoNormalMessenger(chain, amortized_plates="row")
    with pytest.raises(ArgumentError, match="'element' or 'scalar'"):
        AutoHierarchicalNormalMessenger(chain, weight_type="none")
    guide = AutoHierarchicalNormalMessenger(lambda: sample("x", Cauchy(0.0, 1.0)))
    with pytest.raises(InferenceError, match="no mean to follow"):
        guide()
