"""The way to ArviZ: its tools run on our trees and read what they need."""

import json

import numpy as np
import pytest

from probtorch.diagnostics import Draws, bfmi, diagnose


def is_new(az):
    return int(az.__version__.split(".")[0]) >= 1


def test_tree_has_groups_dims_and_coords_of_the_plates(schools):
    tree = schools.to_datatree()
    assert tree.name == "schools"
    assert set(tree.children) == {
        "posterior", "sample_stats", "observed_data", "log_likelihood", "posterior_predictive",
    }  # fmt: skip
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert tree["observed_data"]["y"].dims == ("school",)
    chosen = tree["posterior"]["theta"].sel(school="Deerfield")
    np.testing.assert_array_equal(chosen, schools.posterior["theta"][..., 1])
    assert tree["sample_stats"]["reached_max_treedepth"].dtype == bool


def test_groups_say_who_made_them_and_how(schools):
    tree = schools.to_datatree()
    for group in ("posterior", "sample_stats"):
        attrs = tree[group].attrs
        assert attrs["inference_library"] == "probtorch"
        assert (attrs["sampling_time"], attrs["tuning_steps"]) == (0.25, 100)
        assert attrs["sample_dims"] == ["chain", "draw"]
        assert "created_at" in attrs
    assert "sample_dims" not in tree["observed_data"].attrs


def test_attributes_that_netcdf_refuses_become_json():
    attrs = {"seed": None, "jit": True, "settings": {"a": np.float32(0.5)}, "names": ["a", "b"]}
    draws = Draws({"x": np.zeros((1, 3))}, attrs=attrs)
    written = draws.to_datatree().attrs
    assert (written["seed"], written["jit"], written["names"]) == ("null", "true", ["a", "b"])
    assert json.loads(written["settings"]) == {"a": 0.5}


def test_a_variable_never_shares_its_name_with_a_dim():
    x = np.zeros((1, 3, 2))
    tree = Draws({"x": x, "y": x}, dims={"x": ("y",)}, coords={"y": ["a", "b"]}).to_datatree()
    assert tree["posterior"]["x"].dims == ("chain", "draw", "y_dim")
    assert "y" in tree["posterior"].data_vars
    assert list(tree["posterior"].coords["y_dim"].values) == ["a", "b"]


def test_booleans_become_integers_where_arviz_subtracts_them(az):
    flag = np.random.default_rng(0).random((2, 50)) < 0.5
    draws = Draws({"flag": flag}, {"diverging": flag}, groups={"observed_data": {"y": flag[0]}})
    tree = draws.to_datatree()
    assert tree["posterior"]["flag"].dtype == np.int64
    assert tree["observed_data"]["y"].dtype == np.int64
    assert tree["sample_stats"]["diverging"].dtype == bool
    assert az.summary(draws.to_arviz(), round_to="none")["mean"]["flag"] == flag.mean()


def test_arviz_gets_the_container_of_its_generation(az, schools):
    data = schools.to_arviz()
    assert type(data).__name__ == ("DataTree" if is_new(az) else "InferenceData")
    groups = {"prior": {"mu": np.zeros((1, 9))}, "log_prior": {"mu": schools.posterior["mu"]}}
    groups |= {"unconstrained_posterior": {"mu": schools.posterior["mu"]}}
    groups |= {"warmup_posterior": {"mu": np.zeros((4, 7))}}
    for name, values in groups.items():
        schools = schools.with_group(name, values)
    data = schools.to_arviz()
    for name, values in groups.items():
        assert data[name]["mu"].shape == values["mu"].shape


def test_loo_runs_on_a_log_likelihood_group(az, schools):
    result = az.loo(schools.to_arviz(), pointwise=True)
    elpd = result.elpd if is_new(az) else result.elpd_loo
    # Log likelihoods with a spread of 0.1 make leave-one-out nearly the log mean density.
    log_density = np.log(np.exp(schools.groups["log_likelihood"]["y"]).mean(axis=(0, 1)))
    assert float(elpd) == pytest.approx(log_density.sum(), abs=0.2)


def test_netcdf_is_read_by_arviz_and_the_file_is_closed(az, schools, tmp_path):
    path = tmp_path / "schools.nc"
    schools.save(path)
    data = az.from_netcdf(path)
    np.testing.assert_array_equal(data["posterior"]["theta"], schools.posterior["theta"])
    assert list(data["posterior"].coords["school"].values) == ["Choate", "Deerfield", "Phillips"]
    data.close()
    schools.save(path)


def test_bfmi_and_divergences_are_found_by_arviz(az, schools):
    data = schools.to_arviz()
    assert not data["sample_stats"]["diverging"].any()
    theirs = az.bfmi(data)
    theirs = theirs if isinstance(theirs, np.ndarray) else theirs["energy"].values
    np.testing.assert_allclose(bfmi(schools.sample_stats["energy"]), theirs, rtol=1e-10)


def test_one_chain_of_independent_draws_is_summarised(az):
    draws = Draws({"x": np.random.default_rng(1).normal(size=(1, 500))})
    theirs = az.summary(draws.to_arviz(), kind="stats", round_to="none")
    assert draws.summary()["x"]["mean"] == pytest.approx(theirs["mean"]["x"], rel=1e-12)


def test_arviz_diagnose_reads_our_statistics_and_agrees(az, schools):
    if not hasattr(az, "diagnose"):
        pytest.skip("this ArviZ has no diagnose (it came with 1.0)")
    shape = (4, 200)
    flags = np.zeros(shape, bool)
    flags[0, :30] = True
    stats = {**schools.sample_stats, "diverging": flags, "reached_max_treedepth": flags}
    draws = schools.with_group("sample_stats", stats)
    failed, theirs = az.diagnose(draws.to_arviz(), return_diagnostics=True, show_diagnostics=False)
    assert failed
    assert theirs["divergent"]["n_divergent"] == 30
    kinds = {finding.kind for finding in diagnose(draws)}
    assert {"divergence", "treedepth"} <= kinds
    assert ("energy" in kinds) == bool(theirs["bfmi"]["failed_chains"])
