"""Automatic guides: exact on targets they contain, supports, plates, subsampling, questions."""

import functools
import math

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch.core.rng import Generator
from probtorch.distributions import (
    Beta,
    Categorical,
    Delta,
    Dirichlet,
    HalfCauchy,
    LKJCholesky,
    LogNormal,
    Normal,
    Poisson,
    Uniform,
    constraints,
)
from probtorch.distributions.transforms import spline_coupling
from probtorch.effects import deterministic, handlers, param, plate, sample
from probtorch.effects.params import ParamStore
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalizingFlow,
    AutoStructured,
    Trace_ELBO,
    TraceMeanField_ELBO,
    init_to_generated,
    init_to_mean,
    init_to_uniform,
    init_to_value,
)
from probtorch.infer.guides.low_rank import LowRankNormal
from probtorch.nn import Linear, Module
from probtorch.optim import Adam, PyroLRScheduler
from probtorch.optim.lr_scheduler import ExponentialLR
from probtorch.tensor import tensor
from tests.infer.svi.programs import COVARIANCE, EFFECT, ERROR, MEAN, correlated_model

F8 = np.dtype("f8")


def fit(model, guide, steps, *args, lr=0.1, objective=None, final=0.01, **kwargs):
    """Optimise with steps that shrink to `final` of their size."""
    gamma = final ** (1.0 / steps)
    schedule = {"optimizer": Adam, "optim_args": {"lr": lr}, "gamma": gamma}
    optim = PyroLRScheduler(ExponentialLR, schedule)
    objective = objective or Trace_ELBO(10, vectorize_particles=True)
    svi = SVI(model, guide, optim, objective, seed=0)
    step = functools.partial(lambda i, loss: optim.step())
    return svi.run(steps, *args, progress_bar=False, callback=step, **kwargs)


# ----------------------------------------------------------------- a correlated normal, exactly


@pytest.mark.parametrize("kind", [AutoMultivariateNormal, AutoLowRankMultivariateNormal])
def test_joint_guides_recover_mean_and_covariance(kind):
    guide = kind(correlated_model)
    fit(correlated_model, guide, 800)
    posterior = guide.get_posterior()
    np.testing.assert_allclose(posterior.mean.numpy(), MEAN, atol=0.05)
    draws = guide.sample_posterior(20_000, generator=Generator(0))["x"].numpy()
    # Monte Carlo error of a covariance of 2 is 0.02; the rest is for the last steps.
    np.testing.assert_allclose(np.cov(draws.T), COVARIANCE, atol=0.12)
    np.testing.assert_allclose(posterior.variance.numpy(), np.diag(COVARIANCE), rtol=0.05)


@pytest.mark.parametrize("kind", [AutoNormal, AutoDiagonalNormal])
def test_mean_field_guides_find_the_mean_and_the_conditional_spread(kind):
    """The best independent normal has the precisions of the diagonal (Bishop 2006, sec. 10.1.2)."""
    guide = kind(correlated_model)
    fit(correlated_model, guide, 600)
    np.testing.assert_allclose(guide.median()["x"].numpy(), MEAN, atol=0.05)
    low, high = guide.quantiles([0.158655254, 0.841344746])["x"].numpy()
    expected = np.diag(np.linalg.inv(COVARIANCE)) ** -0.5
    np.testing.assert_allclose(0.5 * (high - low), expected, rtol=0.03)


def test_laplace_is_exact_for_a_normal():
    guide = AutoLaplaceApproximation(correlated_model, init_loc_fn=init_to_uniform)
    fit(correlated_model, guide, 1000, objective=Trace_ELBO(), lr=0.3, final=1e-3)
    np.testing.assert_allclose(guide.median()["x"].numpy(), MEAN, atol=1e-3)
    normal = guide.laplace_approximation()
    posterior = normal.get_posterior()
    np.testing.assert_allclose(posterior.covariance_matrix.numpy(), COVARIANCE, rtol=1e-8)
    np.testing.assert_allclose(posterior.mean.numpy(), guide.median()["x"].numpy(), rtol=1e-12)


def test_laplace_needs_a_mode():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        probtorch.factor("f", x**2)

    guide = AutoLaplaceApproximation(model)
    guide()
    with pytest.raises(InferenceError, match="least eigenvalue -1"):
        guide.laplace_approximation()


def test_low_rank_normal_has_the_density_and_the_moments_of_its_covariance():
    rng = np.random.default_rng(0)
    factor, diag, loc = rng.standard_normal((5, 2)), rng.uniform(0.5, 2.0, 5), rng.normal(size=5)
    fn = LowRankNormal(tensor(loc), tensor(factor), tensor(diag))
    reference = stats.multivariate_normal(loc, factor @ factor.T + np.diag(diag))
    x = rng.standard_normal((3, 4, 5))
    np.testing.assert_allclose(fn.log_prob(tensor(x)).numpy(), reference.logpdf(x), rtol=1e-12)
    np.testing.assert_allclose(fn.variance.numpy(), np.diag(reference.cov), rtol=1e-12)
    draws = fn.sample((40_000,), Generator(0)).numpy()
    # Five standard errors of the largest covariance.
    bound = 5.0 * math.sqrt(2.0 / 40_000) * np.diag(reference.cov).max()
    np.testing.assert_allclose(np.cov(draws.T), reference.cov, atol=bound)


# ------------------------------------------------------------------------------- eight schools


def schools(sigma, y=None):
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfCauchy(5.0))
    with plate("school", 8):
        z = sample("z", Normal(0.0, 1.0))
        theta = deterministic("theta", mu + tau * z)
        sample("y", Normal(theta, sigma), obs=y)


# A divergence among thousands of draws comes and goes with the rounding of the processor.
@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.DivergenceWarning")
def test_mean_field_guide_agrees_with_nuts_on_eight_schools():
    """Means within a quarter of a posterior sd, sds within a third: what independence costs."""
    sampler = MCMC(
        NUTS(schools, target_accept_prob=0.9), 2000, 500, num_chains=4, seed=0, progress_bar=False
    )
    sampler.run(ERROR, y=EFFECT)
    guide = AutoNormal(schools)
    result = fit(schools, guide, 600, ERROR, y=EFFECT, lr=0.05)
    draws = result.draws()
    for name in ("mu", "z", "theta"):
        exact = sampler.draws.posterior[name].reshape(-1, *draws.posterior[name].shape[2:])
        mean, sd = exact.mean(0), exact.std(0)
        found = draws.posterior[name][0]
        np.testing.assert_array_less(np.abs(found.mean(0) - mean), 0.25 * sd)
        np.testing.assert_array_less(np.abs(found.std(0) / sd - 1.0), 1.0 / 3.0)
    log_tau = np.log(sampler.draws.posterior["tau"])
    assert abs(np.log(draws.posterior["tau"]).mean() - log_tau.mean()) < 0.35 * log_tau.std()


# -------------------------------------------------------------------------------------- supports


def supports():
    sample("positive", LogNormal(0.3, 0.5))
    sample("share", Beta(2.0, 3.0))
    sample("between", Uniform(-2.0, 5.0))
    sample("simplex", Dirichlet(tensor([1.0, 2.0, 3.0])))
    sample("factor", LKJCholesky(3, 1.5))
    with plate("rows", 2):
        sample("row", Dirichlet(tensor([2.0, 1.0, 1.0])))
        with plate("columns", 3):
            sample("cell", Beta(1.0, 2.0))


def AutoSpline(model, **settings):
    return AutoNormalizingFlow(model, spline_coupling, **settings)


ALL = [
    AutoNormal,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
    AutoLowRankMultivariateNormal,
]
FLOWS = [AutoIAFNormal, AutoSpline]


@pytest.mark.filterwarnings("ignore:draws of AutoLaplaceApproximation are the mode")
@pytest.mark.parametrize(
    "kind", [*ALL, *FLOWS, AutoStructured, AutoDelta, AutoLaplaceApproximation]
)
def test_draws_lie_in_the_supports(kind):
    guide = kind(supports, init_loc_fn=init_to_uniform)
    drawn = guide()
    seen = handlers.trace(handlers.replay(supports, handlers.trace(guide).get_trace())).get_trace()
    assert math.isfinite(seen.log_prob_sum().item())
    for values in (drawn, guide.median(), guide.sample_posterior(generator=Generator(0))):
        assert {n: tuple(x.shape) for n, x in values.items()} == {
            "positive": (),
            "share": (),
            "between": (),
            "simplex": (3,),
            "factor": (3, 3),
            "row": (2, 3),
            "cell": (3, 2),
        }
        for name, value in values.items():
            assert seen[name].fn.support.check(value).all().item(), name
    many = guide.sample_posterior((4, 2))
    assert {tuple(x.shape[:2]) for x in many.values()} == {(4, 2)}


@pytest.mark.parametrize("kind", [*ALL, *FLOWS])
def test_the_density_of_a_draw_is_that_of_the_change_of_variables(kind):
    """log q(x) = log q(u) - log |dx/du|, with the Jacobian by automatic differentiation."""

    def model():
        sample("x", LogNormal(0.0, 1.0))
        sample("p", Dirichlet(tensor([1.0, 2.0, 3.0])))

    guide = kind(model, init_scale=0.4)
    with handlers.seed(None, 1):
        run = handlers.trace(guide).get_trace()
    log_q = run.log_prob_sum().item()
    joint = guide.get_posterior()
    free = {n: latent.transform.inv(run[n].value.detach()) for n, latent in guide.latents.items()}
    if isinstance(joint, dict):
        expected = sum(joint[n].log_prob(u).sum().item() for n, u in free.items())
    else:
        vector = probtorch.cat([u.reshape(-1) for u in free.values()])
        expected = joint.log_prob(vector).item()
    for name, u in free.items():
        transform = guide.latents[name].transform
        value = u.reshape(-1)

        def forward(v, transform=transform, shape=u.shape):
            # The last entry of a simplex is what the others leave.
            out = transform(v.reshape(shape)).reshape(-1)
            return out[:2] if out.shape[0] == 3 else out

        jacobian = probtorch.func.jacrev(forward)(value).numpy()
        expected -= math.log(abs(np.linalg.det(jacobian)))
    np.testing.assert_allclose(log_q, expected, rtol=1e-9)


@pytest.mark.parametrize("kind", [*ALL, *FLOWS, AutoStructured, AutoDelta])
def test_particles_can_be_vectorised(kind):
    """The first vectorised run compares itself with single ones, and raises if they differ."""
    guide = kind(supports, init_loc_fn=init_to_uniform)
    loss = Trace_ELBO(3, vectorize_particles=True).loss(supports, guide)
    assert math.isfinite(loss)


def test_a_support_that_depends_on_another_site_is_refused():
    def model():
        width = sample("width", LogNormal(0.0, 1.0))
        sample("x", Uniform(0.0, width))

    with pytest.raises(InferenceError, match="support of site 'x' depends on other sites") as error:
        AutoNormal(model)()
    assert "test_guides.py" in error.value.location


def test_a_discrete_site_without_a_finite_support_is_refused():
    def model():
        sample("z", Poisson(3.0))

    with pytest.raises(InferenceError, match="discrete site 'z'"):
        AutoNormal(model)()


def test_finite_discrete_sites_are_left_to_the_objective():
    def model():
        sample("z", Categorical(tensor([0.5, 0.5])))
        sample("x", Normal(0.0, 1.0))

    assert list(AutoNormal(model)()) == ["x"]


def test_a_model_of_discrete_sites_alone_is_told_what_to_do_with_them():
    def model():
        sample("z", Categorical(tensor([0.5, 0.5])))

    with pytest.raises(InferenceError, match="no continuous latent sites") as error:
        AutoNormal(model)()
    assert "'z'" in error.value.got and "TraceEnum_ELBO" in error.value.fix


def test_a_model_without_latent_sites_is_refused():
    def model():
        sample("y", Normal(0.0, 1.0), obs=tensor(1.0))

    with pytest.raises(InferenceError, match="no latent sites") as error:
        AutoNormal(model)()
    assert "'y'" in error.value.got and "takes an empty guide" in error.value.fix


# --------------------------------------------------------------------------------- point estimates


def test_delta_finds_the_mode():
    def model():
        sample("p", Beta(4.0, 3.0))
        sample("s", Dirichlet(tensor([2.0, 3.0, 4.0])))

    guide = AutoDelta(model)
    fit(model, guide, 400, objective=Trace_ELBO())
    np.testing.assert_allclose(guide.median()["p"].item(), 3.0 / 5.0, atol=1e-3)
    np.testing.assert_allclose(guide.median()["s"].numpy(), np.array([1, 2, 3]) / 6.0, atol=1e-3)


def test_a_point_has_no_quantiles():
    guide = AutoDelta(correlated_model)
    guide()
    with pytest.raises(InferenceError, match="point estimate"):
        guide.quantiles([0.5])


# ---------------------------------------------------------------------------------- starting points


def test_guides_start_where_they_are_told():
    guide = AutoNormal(correlated_model, init_loc_fn=init_to_value(values={"x": MEAN}))
    guide()
    np.testing.assert_allclose(guide.median()["x"].numpy(), MEAN)
    np.testing.assert_allclose(guide.get_posterior()["x"].scale.numpy(), 0.1)

    def model():
        sample("p", Beta(2.0, 6.0))

    joint = AutoMultivariateNormal(model, init_loc_fn=init_to_mean, init_scale=0.3)
    joint()
    np.testing.assert_allclose(joint.median()["p"].item(), 0.25)
    np.testing.assert_allclose(joint.get_posterior().variance.numpy(), 0.09)


def test_a_name_that_the_model_does_not_have_is_no_starting_point():
    guide = AutoNormal(correlated_model, init_loc_fn=init_to_value(values={"y": MEAN}))
    with pytest.raises(ModelError, match="no latent site 'y'"):
        guide()


def test_a_generated_strategy_is_made_once_for_all_sites():
    def model():
        a = sample("a", Normal(0.0, 1.0))
        sample("b", Normal(a, 1.0))

    made = iter([1.0, 2.0, 3.0])

    def generate():
        value = next(made)
        return init_to_value(values={"a": value, "b": value})

    guide = AutoNormal(model, init_loc_fn=init_to_generated(generate=generate))
    guide()
    found = guide.median()
    assert found["a"].item() == found["b"].item() == 1.0


def test_the_seed_of_the_inference_decides_where_a_random_start_is():
    starts = []
    for _ in range(2):
        guide = AutoNormal(correlated_model, init_loc_fn=init_to_uniform)
        svi = SVI(correlated_model, guide, Adam({"lr": 1e-12}), seed=5)
        svi.step()
        starts.append(guide.median()["x"].numpy())
    np.testing.assert_array_equal(*starts)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, "wide"])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ArgumentError, match="init_scale"):
        AutoNormal(correlated_model, init_scale=scale)


# ---------------------------------------------------------------------------------------- questions


def test_quantiles_and_medians_are_those_of_the_distribution():
    def model():
        sample("x", LogNormal(0.0, 1.0))

    levels = [0.05, 0.5, 0.95]
    expected = stats.lognorm(0.4, scale=math.exp(0.2)).ppf(levels)
    for kind in ALL:
        # Outside of an inference guides share the script's store, where joint ones share names.
        ParamStore().show()
        guide = kind(model, init_loc_fn=init_to_value(values={"x": math.exp(0.2)}), init_scale=0.4)
        guide()
        np.testing.assert_allclose(guide.quantiles(levels)["x"].numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(guide.median()["x"].item(), expected[1], rtol=1e-6)
        draws = guide.sample_posterior(5000, generator=Generator(0))["x"].numpy()
        # Kolmogorov-Smirnov at a false alarm rate of 1e-4.
        reference = stats.lognorm(0.4, scale=math.exp(0.2))
        assert stats.kstest(draws, reference.cdf).pvalue > 1e-4


@pytest.mark.parametrize("levels", [[0.0], [1.0], [0.5, 1.5]])
def test_quantiles_outside_the_unit_interval_are_refused(levels):
    guide = AutoNormal(correlated_model)
    guide()
    with pytest.raises(ArgumentError, match="quantiles"):
        guide.quantiles(levels)


def test_a_guide_that_was_not_run_says_so():
    with pytest.raises(InferenceError, match="has not met its model"):
        AutoNormal(correlated_model).median()


def test_a_guide_remembers_the_parameters_it_was_optimised_with():
    guide = AutoNormal(correlated_model)
    fit(correlated_model, guide, 300)
    found = guide.median()["x"].numpy()
    SVI(correlated_model, AutoNormal(correlated_model), Adam({"lr": 0.1})).step()
    np.testing.assert_array_equal(guide.median()["x"].numpy(), found)
    with handlers.seed(None, 0):
        draws = [guide()["x"].detach().numpy() for _ in range(200)]
    # Five standard errors of the mean of 200 draws.
    np.testing.assert_allclose(np.mean(draws, 0), found, atol=5.0 * 0.9 / math.sqrt(200))


def test_answers_do_not_change_with_later_steps():
    guide = AutoNormal(correlated_model)
    svi = SVI(correlated_model, guide, Adam({"lr": 0.1}), seed=0)
    svi.step()
    answers = guide.median(), guide.get_posterior()
    before = answers[0]["x"].numpy().copy(), answers[1]["x"].loc.numpy().copy()
    svi.step()
    np.testing.assert_array_equal(answers[0]["x"].numpy(), before[0])
    np.testing.assert_array_equal(answers[1]["x"].loc.numpy(), before[1])


# ------------------------------------------------------------------------------------- subsampling

ROWS = np.random.default_rng(0).normal(np.linspace(-2.0, 2.0, 12), 0.3)


def local(y):
    mu = sample("mu", Normal(0.0, 3.0))
    with plate("rows", 12, subsample_size=4) as rows:
        z = sample("z", Normal(mu, 1.0))
        sample("y", Normal(z, 0.3), obs=y[rows])


def exact_local():
    """Posterior mean of mu and the z, by the normal equations."""
    precision = np.zeros((13, 13))
    precision[0, 0] = 1.0 / 9.0 + 12.0
    precision[0, 1:] = precision[1:, 0] = -1.0
    precision[1:, 1:] = np.eye(12) * (1.0 + 1.0 / 0.09)
    return np.linalg.solve(precision, np.concatenate([[0.0], ROWS / 0.09]))


def test_a_step_moves_the_rows_in_use_and_no_others():
    guide = AutoNormal(local)
    svi = SVI(local, guide, Adam({"lr": 0.1}), seed=0)
    svi.setup(tensor(ROWS))
    before = svi.get_params()["z_auto_loc"].numpy()
    svi.step(tensor(ROWS))
    moved = before != svi.get_params()["z_auto_loc"].numpy()
    assert before.shape == (12,) and moved.sum() == 4


def test_local_latents_of_a_subsampled_plate_are_all_found():
    guide = AutoNormal(local)
    fit(local, guide, 1500, tensor(ROWS), objective=Trace_ELBO(4, vectorize_particles=True))
    expected = exact_local()
    median = guide.median()
    np.testing.assert_allclose(median["mu"].item(), expected[0], atol=0.1)
    np.testing.assert_allclose(median["z"].numpy(), expected[1:], atol=0.1)
    assert guide.sample_posterior((3,))["z"].shape == (3, 12)


def test_the_model_uses_the_rows_of_the_guide():
    guide = AutoNormal(local)
    guide(tensor(ROWS))
    run = handlers.trace(guide).get_trace(tensor(ROWS))
    seen = handlers.trace(handlers.replay(local, run)).get_trace(tensor(ROWS))
    np.testing.assert_array_equal(seen["rows"].value.numpy(), run["rows"].value.numpy())
    assert run["z_auto_loc"].value.shape == (4,)


def chosen(rows):
    mu = sample("mu", Normal(0.0, 3.0))
    with plate("rows", 12, subsample=rows):
        z = sample("z", Normal(mu, 1.0))
        sample("y", Normal(z, 0.3), obs=tensor(ROWS)[rows])


def test_rows_chosen_by_the_caller_come_through_create_plates():
    guide = AutoNormal(chosen, create_plates=lambda rows: plate("rows", 12, subsample=rows))
    svi = SVI(chosen, guide, Adam({"lr": 0.1}), seed=0)
    rows = tensor([7, 2, 11])
    svi.setup(rows)
    before = svi.get_params()["z_auto_loc"].numpy()
    svi.step(rows)
    moved = np.flatnonzero(before != svi.get_params()["z_auto_loc"].numpy())
    assert moved.tolist() == [2, 7, 11]


def test_rows_chosen_by_the_caller_without_create_plates_are_refused():
    with pytest.raises(InferenceError, match="rows of plate 'rows' are chosen") as error:
        AutoNormal(chosen)(tensor([7, 2, 11]))
    assert "create_plates" in error.value.fix


@pytest.mark.parametrize("kind", [AutoDelta, AutoNormal, AutoStructured])
def test_rows_of_nested_subsampled_plates_have_parameters_each(kind):
    y = tensor(np.random.default_rng(1).normal(size=(6, 8)))

    def nested(y):
        mu = sample("mu", Normal(0.0, 2.0))
        with plate("rows", 8, subsample_size=4, dim=-1) as i:
            a = sample("a", Normal(mu, 1.0))
            with plate("columns", 6, subsample_size=3, dim=-2) as j:
                b = sample("b", Normal(a, 0.5))
                sample("y", Normal(b, 1.0), obs=y[j][:, i])

    guide = kind(nested)
    objective = Trace_ELBO(3, vectorize_particles=True)
    svi = SVI(nested, guide, Adam({"lr": 0.1}), objective, seed=0)
    svi.setup(y)
    before = svi.get_params()
    assert before["a_auto_loc"].shape[:1] == (8,) and before["b_auto_loc"].shape[:2] == (6, 8)
    svi.step(y)
    after = svi.get_params()
    moved = {n: (before[n].numpy() != after[n].numpy()) for n in ("a_auto_loc", "b_auto_loc")}
    assert moved["a_auto_loc"].sum() == 4 and moved["b_auto_loc"].sum() == 12
    assert (moved["b_auto_loc"].reshape(6, 8).any(0) == moved["a_auto_loc"].reshape(8)).all()
    found = guide.sample_posterior((2,))
    assert found["a"].shape == (2, 8) and found["b"].shape == (2, 6, 8)


def test_points_of_rows_that_come_and_go_are_where_the_density_is_largest():
    guide = AutoDelta(local)
    fit(local, guide, 1000, tensor(ROWS), objective=Trace_ELBO())
    found = guide.median()
    np.testing.assert_allclose(found["z"].numpy(), exact_local()[1:], atol=0.05)
    np.testing.assert_allclose(found["mu"].item(), exact_local()[0], atol=0.1)


def test_a_guide_of_the_rows_by_hand_that_reads_the_data_is_exact_for_a_normal():
    """Given mu and its row z is normal, with a mean that is linear in the row: 12 of 12 by 4."""

    def rows_by_hand(y):
        slope, shift, gain = (param(n, tensor(0.1, dtype=F8)) for n in ("slope", "shift", "gain"))
        spread = param("spread", tensor(0.5, dtype=F8), constraints.positive)
        loc = param("loc", tensor(0.0, dtype=F8))
        width = param("width", tensor(0.5, dtype=F8), constraints.positive)
        mu = sample("mu", Normal(loc, width))
        with plate("rows", 12, subsample_size=4) as rows:
            sample("z", Normal(slope * y[rows] + shift + gain * mu, spread))

    def guide(y):
        rows_by_hand(tensor(y))

    def model(y):
        local(tensor(y))

    result = fit(model, guide, 3000, ROWS, objective=Trace_ELBO(5, vectorize_particles=True))
    precision = 1.0 + 1.0 / 0.09
    found = {n: p.item() for n, p in result.params.items()}
    assert abs(found["slope"] - 1.0 / 0.09 / precision) < 0.01
    # The data are all there are of mu: what the rows have from it goes by shift and gain.
    shift = found["shift"] + found["gain"] * found["loc"]
    assert abs(shift - exact_local()[0] / precision) < 0.02
    assert abs(found["spread"] - precision**-0.5) < 0.01
    assert abs(found["gain"] - 1.0 / precision) < 0.03
    assert abs(found["loc"] - exact_local()[0]) < 0.1
    exact = (1.0 / 9.0 + 12.0 - 12.0 / precision) ** -0.5
    assert abs(found["width"] / exact - 1.0) < 0.15


@pytest.mark.parametrize("kind", [AutoMultivariateNormal, AutoLaplaceApproximation, *FLOWS])
def test_joint_guides_refuse_rows_that_come_and_go(kind):
    with pytest.raises(InferenceError, match=r"site 'z' is in plate 'rows'.*4 of 12 rows"):
        kind(local)(tensor(ROWS))


def test_subsampled_data_without_local_latents_suit_every_guide():
    def model(y):
        mu = sample("mu", Normal(0.0, 3.0))
        with plate("rows", 12, subsample_size=4) as rows:
            sample("y", Normal(mu, 1.0), obs=y[rows])

    guide = AutoMultivariateNormal(model)
    fit(model, guide, 1000, tensor(ROWS))
    precision = 1.0 / 9.0 + 12.0
    # The minibatch's mean has an sd of about 0.5, which a step of 0.001 averages out.
    np.testing.assert_allclose(guide.median()["mu"].item(), ROWS.sum() / precision, atol=0.12)
    np.testing.assert_allclose(
        guide.get_posterior().variance.item() ** 0.5, precision**-0.5, rtol=0.1
    )


# -------------------------------------------------------------------------------------- composition


def test_a_list_of_guides_is_a_guide():
    def model():
        x = sample("x", Normal(0.0, 2.0))
        s = sample("s", LogNormal(0.0, 0.3))
        t = sample("t", LogNormal(1.0, 0.3))
        sample("y", Normal(x, s * t), obs=tensor(1.0))

    guide = AutoGuideList(model)
    guide.append(AutoNormal(handlers.block(model, hide=["s", "t"])))
    guide.append(AutoDelta(handlers.block(model, expose=["s"])))

    def by_hand():
        loc = param("t_loc", tensor(2.0), constraints.positive)
        return {"t": sample("t", Delta(loc))}

    guide.append(by_hand)
    assert len(guide) == 3 and sorted(guide()) == ["s", "t", "x"]
    result = fit(model, guide, 200)
    assert set(result.params) == {"x_auto_loc", "x_auto_scale", "s_auto1_loc", "t_loc"}
    assert set(guide.median()) == {"x", "s"}
    assert guide.sample_posterior((5,))["x"].shape == (5,)


def test_parts_of_a_list_use_the_same_rows():
    def model(y):
        with plate("rows", 12, subsample_size=4) as rows:
            a = sample("a", Normal(0.0, 1.0))
            b = sample("b", Normal(0.0, 1.0))
            sample("y", Normal(a + b, 1.0), obs=y[rows])

    guide = AutoGuideList(model)
    guide.append(AutoNormal(handlers.block(model, hide=["b"])))
    guide.append(AutoNormal(handlers.block(model, hide=["a"])))
    svi = SVI(model, guide, Adam({"lr": 0.1}), seed=0)
    svi.setup(tensor(ROWS))
    before = svi.get_params()
    svi.step(tensor(ROWS))
    after = svi.get_params()
    names = [n for n in after if n.endswith("_loc")]
    a, b = (before[n].numpy() != after[n].numpy() for n in names)
    assert a.sum() == 4 and (a == b).all()


def test_an_empty_list_is_refused():
    with pytest.raises(InferenceError, match="empty list"):
        AutoGuideList(correlated_model)()


def test_what_is_no_guide_is_not_appended():
    with pytest.raises(ArgumentError, match="append"):
        AutoGuideList(correlated_model).append("x")


# ----------------------------------------------------------------------------------- closed forms


def test_real_sites_have_their_divergence_in_closed_form():
    """Prior and guide are both normal: the loss of the mean field bound does not vary."""

    def model():
        with plate("rows", 3):
            sample("x", Normal(tensor([0.0, 1.0, 2.0]), 2.0))

    guide = AutoNormal(model, init_scale=0.5)
    expected = 3.0 * (0.5 * (0.0625 - 1.0) - math.log(0.25)) + 0.5 * (1.0 + 4.0) / 4.0
    for seed in range(3):
        with handlers.seed(None, seed):
            loss = TraceMeanField_ELBO().loss(model, guide)
        np.testing.assert_allclose(loss, expected, rtol=1e-10)


# ------------------------------------------------------------------------------- guides as modules


def two_sites(y):
    mu = sample("mu", Normal(0.0, 3.0))
    scale = sample("scale", LogNormal(0.0, 1.0))
    with plate("data", len(y)):
        sample("y", Normal(mu, scale), obs=y)


def in_parts(model):
    guide = AutoGuideList(model)
    guide.append(AutoNormal(handlers.block(model, hide=["scale"])))
    guide.append(AutoDelta(handlers.block(model, hide=["mu"])))
    return guide


GUIDES = {
    "AutoNormal": AutoNormal,
    "AutoDelta": AutoDelta,
    "AutoDiagonalNormal": AutoDiagonalNormal,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": AutoLowRankMultivariateNormal,
    "AutoLaplaceApproximation": AutoLaplaceApproximation,
    "AutoIAFNormal": AutoIAFNormal,
    "AutoNormalizingFlow": lambda model: AutoNormalizingFlow(model, spline_coupling),
    "AutoStructured": lambda model: AutoStructured(
        model, conditionals="normal", dependencies={"scale": {"mu": "linear"}}
    ),
    "AutoGuideList": in_parts,
}
TWO = tensor([0.3, 1.9, -0.7], dtype=F8)


@pytest.fixture(params=GUIDES)
def make(request):
    return GUIDES[request.param]


def test_a_guide_shows_the_parameters_that_are_optimised(make):
    guide = make(two_sites)
    assert isinstance(guide, Module)
    with pytest.raises(InferenceError, match=r"met its model(.|\n)*guide.setup\("):
        guide.parameters()
    svi = SVI(two_sites, guide, Adam({"lr": 0.05}), seed=0)
    svi.step(TWO)
    shown = dict(guide.named_parameters())
    assert shown.keys() == svi.params.keys()
    assert all(p is svi.params.unconstrained(name) for name, p in shown.items())
    assert [module for _, module in guide.named_modules()] == [guide]


def test_a_state_that_is_loaded_is_gone_on_with(make):
    guide = make(two_sites)
    svi = SVI(two_sites, guide, Adam({"lr": 0.05}), seed=0)
    svi.run(3, TWO, progress_bar=False)
    other = make(two_sites)
    other.setup(TWO)
    other.load_state_dict(guide.state_dict())
    for name, value in guide.median().items():
        np.testing.assert_array_equal(other.median()[name].numpy(), value.numpy())
    again = SVI(two_sites, other, Adam({"lr": 0.05}), seed=1)
    again.setup(TWO)
    for name, value in svi.get_params().items():
        np.testing.assert_array_equal(again.params[name].detach().numpy(), value.numpy())


def test_an_optimizer_over_the_parameters_of_a_guide_moves_them(make):
    guide = make(two_sites)
    guide.setup(TWO)
    optimizer = Adam(guide.parameters(), lr=0.05)
    before = {name: p.detach().numpy().copy() for name, p in guide.named_parameters()}
    svi = SVI(two_sites, guide, optimizer, seed=0)
    for _ in range(3):
        svi.step(TWO)
    assert "compiled path" in svi.explain().splitlines()[0]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(before)
    for name, p in guide.named_parameters():
        assert p is svi.params.unconstrained(name)
        if "bias" not in name and "weight" not in name and "unnorm" not in name:
            assert (p.detach().numpy() != before[name]).any()


def test_a_guide_inside_of_a_module_and_in_a_file(tmp_path):
    class Both(Module):
        def __init__(self):
            super().__init__()
            self.guide, self.net = AutoNormal(two_sites), Linear(2, 1)

    both = Both()
    both.guide.setup(TWO)
    names = {"guide.mu_auto_loc", "guide.scale_auto_scale", "net.weight", "net.bias"}
    assert names <= dict(both.named_parameters()).keys()
    probtorch.save(both.state_dict(), tmp_path / "both.pt")
    other = Both()
    other.guide.setup(TWO)
    next(iter(other.guide.parameters())).data.fill_(7.0)
    other.load_state_dict(probtorch.load(tmp_path / "both.pt"))
    for p, q in zip(both.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_a_network_as_model_is_no_part_of_its_guide():
    class Regression(Module):
        def __init__(self):
            super().__init__()
            self.net = Linear(1, 1)

        def forward(self, y):
            return two_sites(y)

    guide = AutoNormal(Regression())
    guide.setup(TWO)
    assert {n.split("_auto")[0] for n, _ in guide.named_parameters()} == {"mu", "scale"}


def test_a_state_before_the_model_was_met_is_refused():
    with pytest.raises(InferenceError, match="has not met its model"):
        AutoNormal(two_sites).load_state_dict({})


def test_call_gives_the_values_in_the_order_of_their_names():
    guide = AutoDelta(two_sites)
    mu, scale = guide.call(TWO)
    assert mu.item() == guide.median()["mu"].item()
    assert scale.item() == guide.median()["scale"].item()


def test_draws_of_a_point_that_stands_for_a_normal_are_told_of():
    def model():
        sample("x", Normal(0.0, 1.0))

    guide = AutoLaplaceApproximation(model)
    guide()
    with pytest.warns(probtorch.InferenceWarning, match=r"guide.laplace_approximation\(\*args\)"):
        guide.sample_posterior((3,))
    assert guide.sample_posterior()["x"].shape == ()
