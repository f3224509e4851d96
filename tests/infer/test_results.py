"""`make_draws`: labels, groups, and the round trip through ArviZ's files."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import Draws
from probtorch.distributions import Bernoulli, Beta, HalfNormal, Normal, Poisson
from probtorch.effects import deterministic, plate, sample
from probtorch.errors import InferenceError, ModelError, ShapeError
from probtorch.infer import Predictive, Target, results
from probtorch.infer.results import SampledDraws, make_draws

Y, SIGMA = np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.5, 2.0])


def schools(sigma, y=None):
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfNormal(5.0))
    with plate("school", coords=["A", "B", "C"]):
        z = sample("z", Normal(0.0, 1.0))
        theta = deterministic("theta", mu + tau * z)
        sample("y", Normal(theta, sigma), obs=y)


@pytest.fixture
def draws():
    target = Target.from_model(schools, SIGMA, y=Y)
    positions = np.random.default_rng(0).normal(size=(2, 30, target.dim))
    stats_ = {"diverging": np.zeros((2, 30), bool), "lp": np.zeros((2, 30))}
    return make_draws(target, positions, stats_, {"tuning_steps": 7})


def test_draws_are_constrained_named_and_labelled(draws):
    q = draws.positions
    np.testing.assert_allclose(draws.posterior["tau"], np.exp(q[..., 1]))
    np.testing.assert_allclose(
        draws.posterior["theta"], q[..., :1] + np.exp(q[..., 1:2]) * q[..., 2:]
    )
    assert list(draws.posterior) == ["mu", "tau", "z", "theta"]
    assert draws.dims["theta"] == ("school",) and list(draws.coords["school"]) == ["A", "B", "C"]
    assert draws.attrs == {"model_name": "schools", "tuning_steps": 7}
    np.testing.assert_array_equal(draws.groups["observed_data"]["y"], Y)
    np.testing.assert_array_equal(draws.groups["constant_data"]["sigma"], SIGMA)
    assert "theta[B]" in str(draws.summary())


def test_warm_up_is_kept_when_given():
    target = Target.from_model(schools, SIGMA, y=Y)
    zeros = np.zeros((2, 4, target.dim))
    kept = make_draws(
        target, zeros, {}, warmup_positions=zeros, warmup_stats={"lp": np.zeros((2, 4))}
    )
    np.testing.assert_array_equal(kept.groups["warmup_posterior"]["tau"], np.ones((2, 4)))
    assert kept.groups["warmup_sample_stats"]["lp"].shape == (2, 4)


def test_groups_are_computed_when_asked_for(draws):
    full = draws.extended(posterior_predictive=True, prior=40, seed=0)
    theta = draws.posterior["theta"]
    np.testing.assert_allclose(
        full.groups["log_likelihood"]["y"], stats.norm.logpdf(Y, theta, SIGMA), rtol=1e-12
    )
    replicated = full.groups["posterior_predictive"]
    assert list(replicated) == ["y"]
    # Standardised residuals of 180 replications are N(0, 1): 5 standard errors.
    residuals = (replicated["y"] - theta) / SIGMA
    assert abs(residuals.mean()) < 5 / np.sqrt(180)
    assert abs(residuals.std() - 1) < 5 / np.sqrt(2 * 180)
    assert full.groups["prior"]["theta"].shape == (1, 40, 3)
    assert list(full.groups["prior_predictive"]) == ["y"]


def test_given_groups_are_taken_over(draws):
    prior = {"mu": np.zeros((1, 5)), "y": np.zeros((1, 5, 3))}
    replicated = {"y": np.zeros((2, 30, 3))}
    full = draws.extended(False, posterior_predictive=replicated, prior=prior)
    assert "log_likelihood" not in full.groups
    assert list(full.groups["prior"]) == ["mu"] and list(full.groups["prior_predictive"]) == ["y"]
    assert full.groups["posterior_predictive"]["y"].shape == (2, 30, 3)


def test_predictions_are_taken_as_predictive_returns_them(draws):
    """One leading dim, as of joined draws, or two; the prior has another number of draws."""
    joined = draws.get_samples()
    replicated = Predictive(schools, joined, seed=0)(SIGMA)
    prior = Predictive(schools, num_samples=7, seed=1)(SIGMA)
    assert replicated["y"].shape == (60, 3) and prior["mu"].shape == (7,)
    full = draws.extended(
        posterior_predictive=replicated,
        prior=prior,
        constant_data={"weight": Y},
        coords={"who": ["a", "b", "c"]},
        dims={"weight": ["who"]},
    )
    by_chain = full.groups["posterior_predictive"]["y"]
    np.testing.assert_array_equal(by_chain[1, 3], replicated["y"].numpy()[33])
    np.testing.assert_array_equal(full.groups["prior"]["mu"][0], prior["mu"].numpy())
    assert full.groups["prior_predictive"]["y"].shape == (1, 7, 3)
    assert list(full.groups["constant_data"]) == ["sigma", "weight"]
    assert full.dims["weight"] == ("who",)
    grouped = Predictive(schools, draws.get_samples(group_by_chain=True), seed=0)(SIGMA)
    again = draws.extended(posterior_predictive=grouped).groups["posterior_predictive"]
    assert again["y"].shape == (2, 30, 3)


def test_predictions_from_some_draws_are_refused_with_what_to_do(draws):
    some = {name: x[::2] for name, x in draws.get_samples().items()}
    found = Predictive(schools, some, seed=0)(SIGMA)
    with pytest.raises(ShapeError, match=r"(?s)60 draws.*\(2 x 30\).*\(30, 3\).*from all draws"):
        draws.extended(posterior_predictive=found)


def test_predictions_for_new_arguments(draws):
    found = draws.predict(np.array([10.0, 10.0, 10.0]), seed=1)
    assert found["y"].shape == (2, 30, 3)
    np.testing.assert_allclose(found["theta"], draws.posterior["theta"])
    residuals = (found["y"] - found["theta"]) / 10.0
    assert abs(residuals.std() - 1) < 5 / np.sqrt(2 * 180)


def test_narrowed_draws_predict_as_the_whole(draws):
    whole = draws.predict(seed=1)["y"]
    np.testing.assert_array_equal(draws.select("mu").predict(seed=1)["y"], whole)


def test_a_log_likelihood_of_ones_own_stays(draws):
    """As where sites with the same rows are added up for `loo`."""
    own = draws.with_group("log_likelihood", {"sum": np.zeros((*draws.positions.shape[:2], 3))})
    assert list(own.extended().groups["log_likelihood"]) == ["sum"]
    assert list(own.extended(log_likelihood=True).groups["log_likelihood"]) == ["y"]


def test_large_log_likelihood_is_computed_only_when_asked_for(draws, monkeypatch):
    monkeypatch.setattr(results, "LIKELIHOOD_BYTES", 8 * 2 * 30 * 3 - 1)
    assert "log_likelihood" not in draws.extended().groups
    assert "log_likelihood" in draws.extended(log_likelihood=True).groups


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        # ArviZ and its dependencies announce their own plans at import.
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
def test_arviz_gets_every_group_with_dims_and_coords(draws):
    data = draws.to_arviz(posterior_predictive=True, prior=10)
    theta = data["posterior"]["theta"]
    assert theta.dims == ("chain", "draw", "school")
    assert list(theta.coords["school"].values) == ["A", "B", "C"]
    np.testing.assert_array_equal(theta.values, draws.posterior["theta"])
    for group in ("log_likelihood", "posterior_predictive", "prior_predictive"):
        assert data[group]["y"].dims == ("chain", "draw", "school")
    np.testing.assert_array_equal(data["observed_data"]["y"].values, Y)


@pytest.mark.usefixtures("quiet")
def test_sites_that_are_summed_out_have_the_dims_of_their_plates():
    """They are no variables of the posterior, but of what is predicted."""

    def kinds(y=None):
        share = sample("share", Beta(1.0, 1.0))
        with plate("row", coords=["A", "B", "C"]):
            kind = sample("kind", Bernoulli(share))
            sample("y", Normal(3.0 * kind, 1.0), obs=y)

    target = Target.from_model(kinds, y=Y)
    assert list(target.summed) == ["kind"]
    draws = make_draws(target, np.random.default_rng(0).normal(size=(2, 30, 1)), {})
    prior = Predictive(kinds, num_samples=5, seed=0)()
    told = Predictive(kinds, draws, infer_discrete=True, seed=0)(Y)
    data = draws.to_arviz(prior=prior, posterior_predictive=told)
    for group in ("prior", "posterior_predictive"):
        kind = data[group]["kind"]
        assert kind.dims == ("chain", "draw", "row")
        assert list(kind.coords["row"].values) == ["A", "B", "C"]


@pytest.mark.usefixtures("quiet")
def test_leave_one_out_runs_on_the_result(draws):
    import arviz

    # Draws of no posterior: the estimate may be unreliable, but it has to be there.
    found = arviz.loo(draws.to_arviz())
    # A record with this field in ArviZ 1.x, a series with the other name before.
    assert np.isfinite(float(found.elpd if hasattr(found, "elpd") else found["elpd_loo"]))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("ending", ["nc", "npz"])
def test_round_trip_through_a_file(draws, tmp_path, ending):
    path = tmp_path / f"draws.{ending}"
    full = draws.extended(posterior_predictive=True)
    full.save(path)
    back = Draws.load(path)
    for name, values in draws.posterior.items():
        np.testing.assert_array_equal(back.posterior[name], values)
    assert set(back.groups) == set(full.groups) and back.dims == full.dims
    again = SampledDraws.load(path)
    with pytest.raises(InferenceError, match=r"(?s)draws read from a file.*Predictive\(model"):
        again.predict()


def test_pickled_draws_lose_only_their_model(draws):
    back = pickle.loads(pickle.dumps(draws))
    np.testing.assert_array_equal(back.posterior["theta"], draws.posterior["theta"])
    assert back.target is None and draws.target is not None
    assert "log_likelihood" not in back.extended().groups


def test_draws_of_a_hand_written_density_have_no_predictions():
    target = Target.from_density(lambda q: -(q * q).sum(), 2)
    draws = make_draws(target, np.zeros((1, 4, 2)), {})
    assert draws.posterior["x"].shape == (1, 4, 2)
    assert draws.extended().groups == {}
    with pytest.raises(InferenceError, match="hand-written density"):
        draws.predict()


def line(x, y=None):
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("row", len(x)):
        mean = deterministic("mean", slope * x)
        sample("y", Normal(mean, 1.0), obs=y)


@pytest.mark.usefixtures("quiet")
def test_everything_that_predictive_returns_goes_to_arviz_in_one_call(tmp_path):
    """The rows that are predicted are others than those of the data, and more of them."""
    target = Target.from_model(line, SIGMA, y=Y)
    draws = make_draws(target, np.random.default_rng(0).normal(size=(2, 30, 1)), {})
    joined, new = draws.get_samples(), np.array([5.0, 6.0, 7.0, 8.0])
    predictions = Predictive(line, joined, seed=0)(new)
    data = draws.to_arviz(
        prior=Predictive(line, num_samples=7, seed=1)(SIGMA),
        posterior_predictive=Predictive(line, joined, seed=0)(SIGMA),
        predictions=predictions,
        predictions_constant_data={"x": new},
        pred_dims={"y": ["new"], "x": ["new"]},
        coords={"new": ["a", "b", "c", "d"]},
    )
    assert data["predictions"]["y"].dims == ("chain", "draw", "new")
    assert list(data["predictions"].coords["new"].values) == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(
        data["predictions"]["y"].values, predictions["y"].numpy().reshape(2, 30, 4)
    )
    assert data["predictions_constant_data"]["x"].dims == ("new",)
    assert data["posterior_predictive"]["y"].dims == ("chain", "draw", "row")
    assert data["prior"]["slope"].shape == (1, 7)
    for options, match in [
        ({"pred_dims": {"yy": ["new"]}}, r"(?s)to_arviz\(pred_dims=.*got: +'yy'.*did you mean 'y'"),
        ({"pred_dims": {"slope": ["new"]}}, "names among 'y', 'mean'|names among 'mean', 'y'"),
        ({"dims": {"sloop": ["new"]}}, r"(?s)to_arviz\(dims=.*did you mean 'slope'"),
    ]:
        with pytest.raises(ModelError, match=match):
            draws.to_arviz(predictions=predictions, **options)
    full = draws.extended(False, predictions=predictions)
    assert full.to_datatree()["predictions"]["mean"].dims == ("chain", "draw", "mean_dim_0")
    full.save(tmp_path / "full.nc")
    again = SampledDraws.load(tmp_path / "full.nc")
    assert again.groups["predictions"]["y"].shape == (2, 30, 4) and again.dims == full.dims


def test_counts_are_integers_for_arviz_and_data_with_gaps_are_not():
    pytest.importorskip("arviz")

    def counts(y, known):
        rate = sample("rate", HalfNormal(3.0))
        with plate("row", len(y)):
            sample("y", Poisson(rate), obs=y)
            sample("gap", Poisson(rate).mask(known), obs=y)
            sample("x", Normal(rate, 1.0), obs=y)

    y = np.array([2.0, 0.0, 3.0])
    target = Target.from_model(counts, y, np.array([True, False, True]))
    positions = np.random.default_rng(0).normal(size=(2, 5, 1))
    data = make_draws(target, positions, {}).to_arviz(posterior_predictive=True, prior=4)
    for group in ("posterior_predictive", "prior_predictive"):
        assert {n: data[group][n].dtype.kind for n in data[group]} == {
            "y": "i",
            "gap": "i",
            "x": "f",
        }
    observed = data["observed_data"]
    assert observed["y"].dtype == np.int64 and observed["y"].values.tolist() == y.tolist()
    assert observed["x"].dtype.kind == "f" and np.isnan(observed["gap"].values[1])
