"""Kernels on minibatches: posteriors in closed form, their bias, and what is told of it."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.diagnostics.findings import ConvergenceWarning, InferenceWarning
from probtorch.errors import InferenceError
from probtorch.infer import MCMC, NUTS, SGHMC, SGLD, SGNHT, CyclicalSGLD, Target
from probtorch.infer.mcmc.subsampling.subsampled import SubsampledTarget
from probtorch.infer.mcmc.warm_up.modes import mode_of

ROWS = 400
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 2))
Y = X @ [1.0, -2.0] + 0.5 * RNG.normal(size=ROWS)
COVARIANCE = np.linalg.inv(np.eye(2) + X.T @ X / 0.25)
MEAN = COVARIANCE @ X.T @ Y / 0.25
DATA = probtorch.tensor(X), probtorch.tensor(Y)


def regression(x, y, size=20):
    w = probtorch.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with probtorch.plate("rows", ROWS, subsample_size=size) as i:
        probtorch.sample("y", dist.Normal(x[i] @ w, 0.5), obs=y[i])


def run(kernel, num_samples, **settings):
    settings = {"num_chains": 4, "seed": 2, "progress_bar": False, **settings}
    mcmc = MCMC(kernel, num_samples, 300, **settings)
    mcmc.diagnose = False
    return mcmc


KERNELS = {
    "sgld": (lambda: SGLD(regression), 20000),
    "cyclical sgld": (
        lambda: CyclicalSGLD(
            regression, control_variates=True, step_size=0.3, exploration=0.1, temperature=1.0
        ),
        20000,
    ),
    "sghmc": (lambda: SGHMC(regression), 4000),
    "sgnht": (lambda: SGNHT(regression), 6000),
    "sgnht, noisy": (lambda: SGNHT(regression, control_variates=False, step_size=0.1), 20000),
}


@pytest.mark.parametrize("name", KERNELS)
def test_posterior_of_a_regression_is_right_but_for_the_bias_that_is_told(name):
    """Four scores below 5; the variances may be off by what is told, and by 5 percent."""
    make, num_samples = KERNELS[name]
    draws = run(make(), num_samples).run(*DATA)
    told = draws.sample_stats["excess_variance"].mean()
    assert told < 0.08 and not draws.sample_stats["diverging"].any()
    z = (draws.posterior["w"] - MEAN) / np.sqrt(np.diag(COVARIANCE))
    for values in np.moveaxis(z, -1, 0):
        size = ess_mean(values)
        assert size > 400
        assert abs(values.mean()) < 5.0 / np.sqrt(size)
        wide = (values**2).mean() - 1.0 - told
        assert abs(wide) < 0.05 + 5.0 * np.sqrt(2.0 / ess_mean(values**2))


def test_noise_of_gradients_is_told_by_its_measure_and_warned_of():
    """The share is that of the variances, within a seventh."""
    mcmc = run(SGHMC(regression, control_variates=False, step_size=0.1), 10000)
    mcmc.diagnose = True
    with pytest.warns(InferenceWarning, match="the draws are too wide"):
        draws = mcmc.run(*DATA)
    told = draws.sample_stats["excess_variance"].mean()
    z = (draws.posterior["w"] - MEAN) / np.sqrt(np.diag(COVARIANCE))
    assert told > 0.5
    assert abs(z.var() / (1.0 + told) - 1.0) < 0.15


@pytest.mark.parametrize("name", ["sgld", "sgnht"])
def test_runs_depend_on_the_seed_alone_and_can_be_gone_on_with(name, tmp_path):
    make, _ = KERNELS[name]
    whole, threads, first, later = (
        run(make(), n, num_chains=2, num_threads=t) for n, t in ((60, 1), (60, 2), (40, 2), (20, 2))
    )
    expected = whole.run(*DATA).positions
    np.testing.assert_array_equal(threads.run(*DATA).positions, expected)
    first.run(*DATA)
    state = first.state_dict()
    np.testing.assert_array_equal(first.more(20).positions, expected)
    later.load_state_dict(state)
    np.testing.assert_array_equal(later.run(*DATA).positions, expected[:, 40:])
    for _ in range(2):
        saved = run(make(), 60, num_chains=2)
        np.testing.assert_array_equal(saved.run(*DATA, checkpoint=tmp_path).positions, expected)


def test_the_density_of_rows_is_unbiased_and_that_of_all_rows_is_the_models():
    target = SubsampledTarget(regression, DATA, {"size": 4})
    assert (target.batch, target.rows, target.plate) == (4, ROWS, "rows")
    q = np.array([0.8, -1.5])
    value, grad = target.value_and_grad(q)
    exact = -0.5 * ((Y - X @ q) ** 2).sum() / 0.25 - 0.5 * q @ q
    exact -= ROWS * np.log(0.5 * np.sqrt(2.0 * np.pi)) + np.log(2.0 * np.pi)
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    # Each row once, in batches.
    parts = [
        target.row_density.value_and_grad(np.concatenate([q, rows]))
        for rows in np.arange(float(ROWS)).reshape(-1, 4)
    ]
    np.testing.assert_allclose(np.mean([v for v, _ in parts]), value, rtol=1e-12)
    np.testing.assert_allclose(np.mean([g[:2] for _, g in parts], axis=0), grad, rtol=1e-10)
    mode = mode_of(target, np.zeros(2))
    np.testing.assert_allclose(mode.position, MEAN, atol=1e-5)
    np.testing.assert_allclose(mode.covariance, COVARIANCE, rtol=1e-5, atol=1e-9)


def test_models_that_cannot_be_looked_at_in_part_are_refused():
    def local(y):
        with probtorch.plate("rows", ROWS, subsample_size=5) as i:
            z = probtorch.sample("z", dist.Normal(0.0, 1.0))
            probtorch.sample("y", dist.Normal(z, 1.0), obs=y[i])

    def twice(x, y):
        regression(x, y)
        with probtorch.plate("others", ROWS, subsample_size=5) as i:
            probtorch.sample("v", dist.Normal(0.0, 1.0), obs=y[i])

    def loop(y):
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        for i in probtorch.plate("rows", 3, subsample_size=2):
            probtorch.sample(f"y{i}", dist.Normal(a, 1.0), obs=y[i])

    with pytest.raises(InferenceError, match="as a loop"):
        run(SGLD(loop), 10).run(DATA[1])
    with pytest.raises(InferenceError, match="latent site 'z' in plate 'rows'"):
        run(SGLD(local), 10).run(DATA[1])
    with pytest.raises(InferenceError, match="'rows', 'others'"):
        run(SGLD(twice), 10).run(*DATA)
    with pytest.raises(InferenceError, match="draws 20 of 400 rows"):
        run(NUTS(regression), 10).run(*DATA)


def test_the_mode_of_a_target_follows_data_that_are_exchanged():
    """As `sbc` exchanges them: a mode that was kept would be that of other data."""
    data = probtorch.tensor(np.array([1.0, 2.0]))

    def model(y):
        loc = probtorch.sample("loc", dist.Normal(0.0, 10.0))
        probtorch.sample("y", dist.Normal(loc, 1.0).expand([2]).to_event(1), obs=y)

    target = Target.from_model(model, data)
    first = mode_of(target, np.zeros(1))
    assert mode_of(target, np.zeros(1)) is first
    data.array[...] = 7.0
    second = mode_of(target, np.zeros(1))
    np.testing.assert_allclose([first.position[0], second.position[0]], [3 / 2.01, 14 / 2.01])


def test_steps_that_lead_nowhere_are_told_of_as_divergences():
    def steep(y):
        a = probtorch.sample("a", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(a**3, 0.01), obs=y)

    mcmc = run(SGLD(steep, step_size=30.0), 200, num_chains=1)
    with pytest.warns(ConvergenceWarning, match="stands still"):
        draws = mcmc.run(probtorch.tensor(1.0))
    assert np.isfinite(draws.posterior["a"]).all()
    assert draws.sample_stats["diverging"].any()


def test_cycles_leave_the_mode_that_they_end_in_and_small_steps_do_not():
    """Two modes 4 sd from the middle: between them the density is 3000 times as small."""

    def hills(q):
        return probtorch.logaddexp(-0.5 * (q[0] - 4.0) ** 2, -0.5 * (q[0] + 4.0) ** 2)

    target, start = Target.from_density(hills, dim=1), np.full((2, 1), 4.0)
    found = {}
    for name, kernel in {
        "constant": SGLD(target, step_size=0.3, inverse_mass_matrix=[1.0]),
        "cyclical": CyclicalSGLD(target, step_size=1.9, temperature=1.0, inverse_mass_matrix=[1.0]),
    }.items():
        x = run(kernel, 4000, num_chains=2).run(init_params=start)["x"]
        found[name] = float((x < 0.0).mean())
    assert found["constant"] == 0.0
    assert 0.2 < found["cyclical"] < 0.8


def test_a_cycle_explores_before_its_first_draw_and_ends_in_steps_of_nothing():
    kernel = CyclicalSGLD(
        regression, step_size=0.2, cycle_length=10, exploration=0.3, control_variates=True
    )
    draws = run(kernel, 21, num_chains=1).run(*DATA)
    # The warm-up of 300 transitions ends 6 draws into a cycle of 7.
    steps = draws.sample_stats["n_steps"][0]
    assert steps.tolist() == [2] + 2 * ([8] + 6 * [2]) + [8] + 5 * [2]
    squares = (draws.sample_stats["step_size"][0][1:8] / 0.2) ** 2
    expected = 0.5 * (np.cos(np.pi * np.arange(3, 10) / 10) + 1.0)
    np.testing.assert_allclose(squares, expected, rtol=1e-12)


def test_exploration_without_noise_climbs_to_the_mode():
    kernel = CyclicalSGLD(
        regression, step_size=0.5, cycle_length=400, exploration=0.95, control_variates=True
    )
    draws = run(kernel, 20, num_chains=4).run(*DATA)
    # Noise of the last 20 steps moves it by a tenth of a standard deviation or so.
    z = (draws.posterior["w"] - MEAN) / np.sqrt(np.diag(COVARIANCE))
    assert np.abs(z).max() < 0.5
