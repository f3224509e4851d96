"""`draws.predict` of models whose finite discrete sites were summed out: their posterior counts."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS


def sampled(model, *args, **kwargs):
    mcmc = MCMC(NUTS(model), 500, 300, num_chains=2, seed=0, progress_bar=False)
    return mcmc.run(*args, **kwargs)


def switch(y=None):
    mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    on = probtorch.sample("on", dist.Bernoulli(0.5))
    probtorch.sample("y", dist.Normal(mu + 4.0 * on, 0.5), obs=y)


def test_a_site_that_all_data_share_is_drawn_from_its_posterior():
    draws = sampled(switch, probtorch.tensor(4.0))
    again, new = draws.predict(seed=1), draws.predict(None, seed=1)
    # From the prior it would be 0 in half of the draws, and the mean of y near 2.
    assert new["on"].mean() > 0.99
    for y in (again["y"], new["y"]):
        assert y.shape == draws["mu"].shape
        assert y.mean() == pytest.approx(4.0, abs=0.2)


def chain(steps, seen):
    """A hidden Markov model that stays where it is nine times in ten."""
    level = probtorch.sample("level", dist.Normal(0.0, 1.0))
    state = 0.0
    for t in range(steps):
        p_one = 0.1 + 0.8 * state
        state = probtorch.sample(f"state{t}", dist.Bernoulli(p_one))
        value = seen[t] if t < len(seen) else None
        probtorch.sample(f"y{t}", dist.Normal(level + 3.0 * state, 1.0), obs=value)


def test_forecasts_of_a_hidden_markov_model_go_on_from_where_it_was():
    seen = [0.2, -0.1, 3.1, 2.8, 3.3]
    draws = sampled(chain, len(seen), [probtorch.tensor(y) for y in seen])
    found = draws.predict(7, [], seed=2)
    level = draws["level"].ravel()
    # The filter by hand, at each draw.
    ones = np.zeros_like(level)
    for y in seen:
        ahead = 0.1 + 0.8 * ones
        odds = ahead * np.exp(-0.5 * (y - level - 3.0) ** 2)
        ones = odds / (odds + (1.0 - ahead) * np.exp(-0.5 * (y - level) ** 2))
    last = found["state4"].mean()
    assert last == pytest.approx(ones.mean(), abs=0.05)
    for t in (5, 6):
        ones = 0.1 + 0.8 * ones
        assert found[f"state{t}"].mean() == pytest.approx(ones.mean(), abs=0.06)
        assert found[f"y{t}"].mean() == pytest.approx((level + 3.0 * ones).mean(), abs=0.25)


def mixture(x, y=None):
    weight = probtorch.sample("weight", dist.Beta(1.0, 1.0))
    with probtorch.plate("row", len(x)):
        kind = probtorch.sample("kind", dist.Bernoulli(weight))
        probtorch.sample("y", dist.Normal(6.0 * kind, 1.0), obs=y)


def test_rows_of_a_plate_have_sites_of_their_own():
    y = np.repeat([0.0, 6.0], [12, 4])
    draws = sampled(mixture, y, probtorch.tensor(y))
    again, new = draws.predict(seed=3)["y"], draws.predict(y[:3], seed=3)
    share = draws["weight"].mean()
    assert again[..., 0].mean() == pytest.approx(6.0 * share, abs=0.5)
    assert new["kind"].shape == (2, 500, 3)
    assert new["kind"].mean() == pytest.approx(share, abs=0.1)


def bursts(brightness=None):
    count, each = 1, {"enumerate": "sequential"}
    one = probtorch.sample("one", dist.LogNormal(0.0, 0.1))
    while count < 4 and probtorch.sample(f"more_{count}", dist.Bernoulli(0.3), infer=each):
        count += 1
    probtorch.sample("brightness", dist.Normal(one * count, 0.3), obs=brightness)


def test_branches_are_those_of_the_posterior():
    draws = sampled(bursts, probtorch.tensor(3.0))
    found = draws.predict(None, seed=4)
    assert found["more_1"].mean() > 0.9  # 0.3 in the prior
    assert found["brightness"].mean() == pytest.approx(3.0, abs=0.25)
