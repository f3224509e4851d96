"""Draws of a fitted guide, of a model that counts its dims from the left and so bears no batch."""

import numpy as np
import pytest

import probtorch as pt
import probtorch.distributions as dist
from probtorch.infer import SVI, AutoNormal, Predictive, Trace_ELBO
from probtorch.optim import Adam

RNG = np.random.default_rng(0)
X = pt.tensor(RNG.standard_normal(20))
Y = pt.tensor(1.0 + 2.0 * X.numpy() + 0.3 * RNG.standard_normal(20))
RUNS = []


def line(branch=False, noise=False):
    RUNS.append(1)
    w = pt.sample("w", dist.Normal(pt.zeros(2), 3.0).to_event(1))
    s = pt.sample("s", dist.HalfNormal(1.0))
    pt.deterministic("at_one", w[0] + w[1])
    # With more draws in front, w[0] would be the first draw.
    mean = w[0] + w[1] * X
    if branch and float(s) < 0.0:
        mean = mean * 2.0
    if noise:
        mean = mean + RNG.standard_normal()
    with pt.plate("n", 20):
        pt.sample("y", dist.Normal(mean, s), obs=Y)


def fitted(**kwargs):
    pt.manual_seed(0)
    svi = SVI(line, AutoNormal(line), Adam({"lr": 0.05}), Trace_ELBO())
    result = svi.run(400, progress_bar=False, **kwargs)
    RUNS.clear()
    return result


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@pytest.mark.parametrize("branch", [False, True], ids=["vmap", "one by one"])
def test_importance_ratios_are_those_of_the_draws(branch):
    result = fitted(branch=branch)
    found = result.draws(1000)
    draws = found.get_samples()
    w, s = (np.asarray(draws[n]).reshape(-1, *shape) for n, shape in (("w", (2,)), ("s", ())))
    assert (len(RUNS) > 900) is branch, "one run per draw where Python branches, else a few"
    np.testing.assert_allclose(
        np.asarray(draws["at_one"]).reshape(-1), w.sum(-1), rtol=1e-5, atol=1e-6
    )
    from scipy import stats

    mean = w[:, :1] + w[:, 1:] * X.numpy()
    expected = (
        stats.norm(0, 3).logpdf(w).sum(-1)
        + stats.halfnorm(0, 1).logpdf(s)
        + stats.norm(mean, s[:, None]).logpdf(Y.numpy()).sum(-1)
    )
    lp = np.asarray(found.sample_stats["lp"]).reshape(-1)
    np.testing.assert_allclose(lp, expected, rtol=1e-4, atol=1e-4)
    assert len(set(s.tolist())) == len(s)


@pytest.mark.filterwarnings("ignore::probtorch.infer.vi.guide_quality.GuideWarning")
def test_numbers_of_numpy_are_drawn_anew_for_each_draw():
    result = fitted(noise=True)
    result.draws(200)
    assert len(RUNS) > 200


def shifted(branch=False, noise=False):
    RUNS.append(1)
    w = pt.sample("w", dist.Normal(pt.zeros(2), 3.0).to_event(1))
    mean = w[0] + w[1] * X
    if branch and float(w[0]) > 1e6:
        mean = mean * 2.0
    if noise:
        mean = mean + RNG.standard_normal()
    pt.deterministic("twice", mean * 2.0)
    with pt.plate("n", 20):
        pt.sample("y", dist.Normal(mean, 0.1))


@pytest.mark.parametrize("settings", [{}, {"branch": True}, {"noise": True}], ids=str)
def test_predictions_of_a_model_that_counts_from_the_left(settings):
    w = RNG.standard_normal((200, 2))
    RUNS.clear()
    found = Predictive(shifted, {"w": w}, return_sites=["twice", "y"], seed=0)(**settings)
    assert (len(RUNS) > 200) is bool(settings), "one run per draw only if draws cannot share one"
    mean = w[:, :1] + w[:, 1:] * X.numpy()
    y, twice = found["y"].numpy(), found["twice"].numpy()
    if "noise" in settings:
        noise = twice / 2.0 - mean
        assert len(set(np.round(noise[:, 0], 9).tolist())) == 200, "numbers of NumPy are drawn anew"
        mean = mean + noise
    np.testing.assert_allclose(twice, 2.0 * mean, rtol=1e-9, atol=1e-9)
    z = (y - mean) / 0.1
    assert abs(z.mean()) < 4.5 / np.sqrt(z.size) and abs(z.std() - 1.0) < 4.5 / np.sqrt(2 * z.size)
    assert len(set(z.reshape(-1).tolist())) == z.size
