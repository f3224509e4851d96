"""Chains that go in step are those that are run alone, bit for bit; what is special goes alone."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import InferenceError
from probtorch.infer import HMC, NUTS, fit_many, init_to_uniform
from probtorch.infer.many import fit_many as fit_many_module
from probtorch.infer.many import in_step
from probtorch.infer.mcmc.warm_up import guard

GROUP = np.repeat(np.arange(4), 5)


def regression(y, x):
    tau = probtorch.sample("tau", dist.HalfNormal(1.0))
    sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
    slope = probtorch.sample("slope", dist.Normal(0.0, 1.0))
    with probtorch.plate("group", 4):
        z = probtorch.sample("z", dist.Normal(0.0, 1.0))
    with probtorch.plate("row", 20):
        mean = (tau * z)[probtorch.tensor(GROUP)] + slope * x
        probtorch.sample("y", dist.Normal(mean, sigma), obs=y)


def data_sets(count):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=20) + GROUP, rng.normal(size=20)) for _ in range(count)]


def both_ways(model, data, monkeypatch, kernel=None, **settings):
    """The fits in step, how many data sets went so, and the fits of each alone."""
    named = {"num_samples": 150, "warmup_steps": 120, "seed": 0, "progress_bar": False, **settings}
    went = []
    original = fit_many_module.draw_in_step

    def watched(*args, **kwargs):
        found = original(*args, **kwargs)
        went.extend(found.done.tolist())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(fit_many_module, "draw_in_step", watched)
        together = fit_many(model, data, kernel, **named)
    with monkeypatch.context() as patch:
        patch.setattr(fit_many_module, "goes_in_step", lambda *_: False)
        alone = fit_many(model, data, kernel, **named)
    return together, len(went), alone


def assert_same(together, alone):
    assert together.labels == alone.labels
    for name, x in alone.groups[0].posterior.items():
        np.testing.assert_array_equal(together.groups[0].posterior[name], x)
    for name in ("divergences", "r_hat", "ess"):
        np.testing.assert_array_equal(together.diagnostics[name], alone.diagnostics[name])
    np.testing.assert_allclose(together.diagnostics["accept"], alone.diagnostics["accept"])


def hmc(model):
    return HMC(model, num_steps=5, full_mass=True, init_strategy=init_to_uniform)


@pytest.mark.parametrize(
    ("kernel", "settings"),
    [(None, {}), (None, {"num_chains": 3}), (hmc, {"thinning": 4})],
    ids=["NUTS", "chains", "thinned HMC"],
)
def test_draws_in_step_are_those_alone(monkeypatch, kernel, settings):
    data = data_sets(9)
    together, went, alone = both_ways(regression, data, monkeypatch, kernel, **settings)
    assert went == 9
    assert_same(together, alone)


def test_chains_do_not_depend_on_who_goes_with_them():
    data = data_sets(5)
    named = {"num_samples": 100, "warmup_steps": 100, "seed": 3, "progress_bar": False}
    whole = fit_many(regression, data, **named)
    probtorch.set_num_threads(threads := probtorch.get_num_threads())
    try:
        for count in (1, 3):
            probtorch.set_num_threads(count)
            again = fit_many(regression, data, **named)
            np.testing.assert_array_equal(again.draws.posterior["z"], whole.draws.posterior["z"])
    finally:
        probtorch.set_num_threads(threads)


def test_warm_ups_that_are_to_be_longer_go_alone(monkeypatch):
    original = guard.WarmupGuard.look
    seen = []

    def never_pleased(self, warm):
        # The same for a chain in step and alone: by its step size.
        again = [run for run in warm if not run.extensions and run.num_warmup == 120]
        again = [run for run in again if int(1e6 * run.course[0][0]) % 2]
        seen.append(len(again))
        for run in again:
            run.extend(50)
        return again

    monkeypatch.setattr(guard.WarmupGuard, "look", never_pleased)
    together, went, alone = both_ways(regression, data_sets(8), monkeypatch)
    assert 0 < went < 8 and original is not never_pleased
    assert_same(together, alone)


def test_data_sets_that_cannot_be_fitted_leave_the_others_alone(monkeypatch):
    data = data_sets(6)
    data[2] = (np.full(20, np.nan), data[2][1])
    together, went, alone = both_ways(regression, data, monkeypatch)
    assert went == 5 and set(together.failed) == {2}
    assert_same(together, alone)


def test_models_that_branch_on_data_go_in_step(monkeypatch):
    def branching(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        probtorch.sample("other", dist.Normal(mu, 1.0))
        scale = 1.0 if y.sum() > 0.0 else 2.0
        with probtorch.plate("row", 5):
            probtorch.sample("y", dist.Normal(mu, scale), obs=y)

    rng = np.random.default_rng(1)
    data = [rng.normal(size=5) for _ in range(8)]
    together, went, alone = both_ways(branching, data, monkeypatch)
    assert went == 8
    assert_same(together, alone)


def test_densities_that_are_none_are_refused():
    def improper(y):
        probtorch.sample("free", dist.ImproperUniform(dist.constraints.real, (), ()))
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu, 1.0).expand([3]).to_event(1), obs=y)

    with pytest.raises(InferenceError, match="free"):
        fit_many(improper, [np.zeros(3), np.ones(3)], progress_bar=False)


def test_what_cannot_go_in_step_is_known(monkeypatch):
    def asked(kernel, warmup=10):
        found = []
        original = in_step.goes_in_step

        def watched(*args):
            found.append(original(*args))
            return found[-1]

        with monkeypatch.context() as patch:
            patch.setattr(fit_many_module, "goes_in_step", watched)
            fit_many(
                regression,
                data_sets(1),
                kernel,
                num_samples=4,
                warmup_steps=warmup,
                progress_bar=False,
            )
        return found[0]

    assert asked(None)
    assert not asked(None, warmup=0)
    assert not asked(NUTS)  # its starts know of each other
    assert not asked(lambda m: NUTS(m, metric="diag", init_strategy=init_to_uniform))
