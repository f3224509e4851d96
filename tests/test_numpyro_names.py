"""Names of NumPyro's, and of Pyro's ``ops.stats``: the numbers are theirs.

Numbers were made by NumPyro 0.22 (in float64) and Pyro 1.9.2, by calls that are those of the tests.
"""

import functools

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import diagnostics, optim, sample, tensor
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.infer import (
    SVI,
    AutoNormal,
    Predictive,
    Trace_ELBO,
    initialize_model,
    psis_diagnostic,
    util,
)
from probtorch.ops import stats

WHEN = np.arange(3 * 41 * 2).reshape(3, 41, 2)
DRAWS = np.sin(WHEN * WHEN * 0.7) + 0.05 * np.cos(WHEN * 0.1) * np.arange(3)[:, None, None]

NUMPYRO = {
    "gelman_rubin": (DRAWS, [0.9949999487, 0.9896653308]),
    "split_gelman_rubin": (DRAWS, [0.9875955651, 0.9884431011]),
    "effective_sample_size": (DRAWS, [141.8571145415, 137.6460097625]),
}
ENDS = [[-0.7414473961, -0.9892065559], [0.9999541716, 0.6498190971]]


def assert_same(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=2e-10)


@pytest.mark.parametrize("name", NUMPYRO)
def test_diagnostics_of_arrays_are_numpyros(name):
    x, expected = NUMPYRO[name]
    fn = getattr(diagnostics, name)
    assert_same(fn(x), expected)
    assert_same(fn(np.moveaxis(x, 0, 2), chain_dim=2, sample_dim=0), expected)
    # One chain of Python numbers is enough, or is refused with what to use.
    if name == "gelman_rubin":
        with pytest.raises(ShapeError, match="split_gelman_rubin"):
            fn(x[:1])
    else:
        assert fn(x[:1].tolist()).shape == (2,)


def test_intervals_and_autocorrelations_are_numpyros():
    assert_same(diagnostics.hpdi(DRAWS[0], 0.8), ENDS)
    assert_same(diagnostics.hpdi(DRAWS[0].T, 0.8, axis=-1), np.transpose(ENDS))
    found = diagnostics.autocorrelation(DRAWS[0, :, 0])[:4]
    assert_same(found, [1.0, 0.0913710322, 0.0290643105, -0.122884854])
    found = diagnostics.autocovariance(DRAWS[0, :, 0], axis=0, bias=False)[:4]
    assert_same(found, [0.5019900502, 0.0470140328, 0.0153381996, -0.0665569983])


def test_a_table_is_printed_of_draws_by_name(capsys):
    diagnostics.print_summary({"a": tensor(DRAWS)}, prob=0.8)
    diagnostics.print_summary(DRAWS[0, :, 0], group_by_chain=False)
    shown = capsys.readouterr().out
    assert "a[1]" in shown and "hdi_90%" in shown and "Param:0" in shown


def test_statistics_of_tensors_are_pyros():
    x = tensor(DRAWS)
    assert_same(stats.effective_sample_size(x), [142.3199007145, 137.8945132341])
    low, high = [-0.7414473961, -0.730204455], [0.9598498994, 0.9451554371]
    assert_same(stats.quantile(x[0], [0.2, 0.9]), [low, high])
    assert_same(stats.quantile(x[0], 0.9), high)
    assert_same(stats.pi(x[0].mT, 0.8, -1), [[-0.9319079485, high[0]], [-0.9398441468, high[1]]])
    assert_same(stats.hpdi(x[0], 0.8), ENDS)
    assert_same(probtorch.stack(stats.waic(x[0])), [0.8587374975, 0.9576901816])
    truth = tensor([0.1, -0.2], dtype=probtorch.float64)
    assert_same(stats.crps_empirical(x[0], truth), [0.2235944913, 0.212440808])
    for at_a_time in (None, 7):
        assert_same(stats.energy_score_empirical(x[0], truth, at_a_time), 0.3055606345)
    found = stats.weighed_quantile(x[0, :, 0], [0.2, 0.8], x[1, :, 0])
    assert_same(found, [-0.5084809207, 0.9007012416])
    assert_same(stats.gelman_rubin(x), NUMPYRO["gelman_rubin"][1])
    assert_same(stats.split_gelman_rubin(x), NUMPYRO["split_gelman_rubin"][1])


def test_scores_of_tensors_have_gradients_and_those_of_arrays_agree():
    x = tensor(DRAWS[0], requires_grad=True)
    truth = tensor([0.1, -0.2], dtype=probtorch.float64)
    score = stats.crps_empirical(x, truth)
    assert_same(score.detach(), diagnostics.crps_empirical(DRAWS[0], truth))
    score.sum().backward()
    step = 1e-6 * np.cos(WHEN[0])
    ends = [stats.crps_empirical(tensor(DRAWS[0] + s), truth).sum() for s in (step, -step)]
    assert float(ends[0] - ends[1]) == pytest.approx(2 * (x.grad.numpy() * step).sum(), rel=1e-6)


def test_rows_are_drawn_with_and_without_repetitions():
    rows = stats.resample(probtorch.arange(5.0), 5)
    assert sorted(rows.tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert stats.resample(probtorch.zeros(2, 3), 7, dim=1, replacement=True).shape == (2, 7)


# -------------------------------------------------------------------------------- the unconstrained


def model(x, y=None):
    mu = sample("mu", dist.Normal(0.0, 3.0))
    tau = sample("tau", dist.HalfCauchy(2.0))
    p = sample("p", dist.Dirichlet(np.array([1.0, 2.0, 3.0])))
    u = sample("u", dist.Uniform(-1.0, 2.0))
    probtorch.deterministic("twice", 2 * mu)
    with probtorch.plate("rows", 3):
        b = sample("b", dist.Normal(mu, tau))
        sample("y", dist.Normal(b * x + u + p, 0.5), obs=y)


ARGS = (np.array([0.3, -1.0, 2.0]),), {"y": np.array([1.0, 0.0, 0.5])}
FREE = {
    "mu": 0.4,
    "tau": -0.3,
    "p": np.array([0.2, -0.5]),
    "u": 0.7,
    "b": np.array([0.1, 0.2, -0.3]),
}
CONSTRAINED = {
    "mu": 0.4,
    "tau": 0.7408182207,
    "p": [0.3791524531, 0.2343951981, 0.3864523488],
    "u": 1.0045633165,
    "b": [0.1, 0.2, -0.3],
}
SLOPES = {
    "b": [-0.0501767166, -4.5202578184, 1.0526421624],
    "mu": 2.2309870049,
    "p": [1.1245638553, 0.3242072134],
    "tau": 1.1115852499,
    "u": 4.9755576504,
}


def test_the_potential_energy_and_its_slopes_are_numpyros():
    free = {n: tensor(x, dtype=probtorch.float64, requires_grad=True) for n, x in FREE.items()}
    energy = util.potential_energy(model, *ARGS, free)
    assert_same(energy.detach(), 13.504937019)
    energy.backward()
    for name, expected in SLOPES.items():
        assert_same(free[name].grad, expected)


def test_values_go_to_the_supports_and_back():
    found = util.constrain_fn(model, *ARGS, FREE, return_deterministic=True)
    for name, expected in {**CONSTRAINED, "twice": 0.8}.items():
        assert_same(found[name], expected)
    del found["twice"]
    assert util.constrain_fn(model, *ARGS, FREE).keys() == CONSTRAINED.keys()
    assert_same(util.log_density(model, *ARGS, found)[0], -9.4258668911)
    transforms = util.get_transforms(model, *ARGS, found)
    back = [
        util.unconstrain_fn(model, *ARGS, found),
        util.transform_fn(transforms, found, invert=True),
    ]
    for values in back:
        for name, expected in FREE.items():
            assert_same(values[name], expected)
    assert_same(util.transform_fn(transforms, FREE)["u"], CONSTRAINED["u"])
    assert util.transform_fn({}, {"other": 2.0})["other"].item() == 2.0


def test_many_draws_are_constrained_at_a_time():
    many = {n: np.stack([[x, 0.5 * np.asarray(x)]] * 3) for n, x in FREE.items()}
    found = util.constrain_fn(model, *ARGS, many, batch_ndims=2)
    assert found["p"].shape == (3, 2, 3)
    one = util.constrain_fn(model, *ARGS, {n: 0.5 * np.asarray(x) for n, x in FREE.items()})
    for name in one:
        assert_same(found[name][2, 1], one[name].numpy())


def test_a_model_is_made_ready_for_a_sampler_of_ones_own():
    info = initialize_model(model, *ARGS, seed=3)
    start, potential_fn, postprocess_fn, run = info
    assert_same(potential_fn(start.z), start.potential_energy.numpy())
    assert_same(util.potential_energy(model, *ARGS, start.z), start.potential_energy.numpy())
    leaf = {n: x.clone().requires_grad_() for n, x in start.z.items()}
    potential_fn(leaf).backward()
    for name, x in leaf.items():
        assert_same(x.grad, start.z_grad[name].numpy())
    assert "twice" in postprocess_fn(start.z)
    assert_same(
        run.log_prob_sum(), util.log_density(model, *ARGS, {n: run[n].value for n in leaf})[0]
    )
    dynamic = initialize_model(model, *ARGS, seed=3, dynamic_args=True)
    assert_same(dynamic.potential_fn(*ARGS[0], **ARGS[1])(FREE), 13.504937019)
    again, valid = util.find_valid_initial_params(
        model, model_args=ARGS[0], model_kwargs=ARGS[1], seed=3
    )
    assert valid
    assert_same(again.potential_energy, start.potential_energy.numpy())


def test_keys_missing_values_and_draws_in_the_place_of_a_point_are_refused():
    with pytest.raises(ArgumentError, match="leave the key out"):
        initialize_model(0, model, model_args=ARGS[0], model_kwargs=ARGS[1])
    with pytest.raises(ArgumentError, match="leave the key out"):
        util.find_valid_initial_params(0, model, model_args=ARGS[0], model_kwargs=ARGS[1])
    with pytest.raises(ArgumentError, match="leave the key out"):
        initialize_model(rng_key=0, model=model, model_args=ARGS[0])
    with pytest.raises(ModelError, match="'u'"):
        util.potential_energy(model, *ARGS, {n: x for n, x in FREE.items() if n != "u"})
    with pytest.raises(ShapeError, match="batch_ndims"):
        util.constrain_fn(model, *ARGS, {**FREE, "u": [0.7, 0.7]})


def test_samples_of_another_model_predict_and_misspelt_names_are_refused():
    def new_group():
        mu, tau = sample("mu", dist.Normal(0.0, 5.0)), sample("tau", dist.HalfCauchy(5.0))
        return sample("obs", dist.Normal(mu, tau))

    draws = {"mu": np.arange(5.0), "tau": np.full(5, 1e-3), "theta": np.zeros((5, 8))}
    with pytest.warns(probtorch.InferenceWarning, match="'theta' are not used"):
        found = Predictive(new_group, draws)()
    np.testing.assert_allclose(found["obs"], np.arange(5.0), atol=0.01)
    for wrong in ({"mu": draws["mu"], "tua": draws["tau"]}, {"theta": draws["theta"]}):
        with pytest.raises(ModelError, match="has no site"):
            Predictive(new_group, wrong)()


def test_modules_of_scripts_have_their_names():
    from probtorch.contrib.control_flow import cond, scan
    from probtorch.contrib.einstein import SteinVI
    from probtorch.infer import autoguide, initialization, mcmc
    from probtorch.infer.autoguide.initialization import init_to_mean, init_to_median
    from probtorch.infer.mcmc.util import initialize_model as of_pyro

    assert (cond, scan) == (probtorch.cond, probtorch.scan)
    assert SteinVI is probtorch.infer.SteinVI
    assert probtorch.contrib.einstein.__name__ == "probtorch.contrib.einstein"
    assert initialization.init_to_mean is init_to_mean is autoguide.init_to_mean
    assert init_to_median is initialization.init_to_median
    start, potential_fn, transforms, run = of_pyro(model, *ARGS, seed=3)
    assert_same(
        potential_fn(start), initialize_model(model, *ARGS, seed=3)[0].potential_energy.numpy()
    )
    for name, transform in transforms.items():
        assert_same(transform(run[name].value), start[name].numpy())
    assert mcmc.NUTS(potential_fn=potential_fn).potential_fn is potential_fn


def test_the_tail_of_a_guide_is_that_of_its_weights():
    def coin(y):
        sample("y", dist.Normal(sample("b", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def guide(y, scale):
        sample("b", dist.Normal(0.5, scale))

    y = tensor(1.0)
    # The density of the posterior, N(0.5, 1/2), over that of a guide whose tails are lighter is a
    # power of a uniform number, with exponent minus k = 1 - 2 scale^2.
    for scale, close in ((0.8, True), (0.1, False)):
        narrow = functools.partial(guide, scale=scale)
        assert (psis_diagnostic(coin, narrow, y, num_particles=2000, seed=1) < 0.7) == close


def test_a_guide_says_that_its_parameters_are_its_own():
    guide = AutoNormal(lambda: sample("b", dist.Normal(0.0, 1.0)))
    for asked in (
        lambda: guide.sample_posterior(0, {}, (100,)),
        lambda: guide.sample_posterior(rng_key=0, params={}),
        lambda: guide.quantiles({"b": 1.0}, 0.5),
    ):
        with pytest.raises(ArgumentError, match="which are the guide's own"):
            asked()
    with pytest.raises(ArgumentError, match="arguments of the model to run and step"):
        SVI(guide.model, guide, optim.Adam(0.1), Trace_ELBO(), x=1.0)
