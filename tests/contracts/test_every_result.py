"""What every engine returns answers to the same calls in the same way, whatever it is.

A new engine gets a row in `ROWS`: how it is run on `line`, a regression. Its result is asked what a
result of chains is asked: a summary, predictions, densities of the data, what ArviZ gets, files.
"""

import functools
import inspect
import warnings

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch import infer
from probtorch.diagnostics import Draws, loo, summary
from probtorch.errors import InferenceError
from probtorch.infer import (
    ABC,
    ABCSMC,
    AIS,
    ASVGD,
    CSIS,
    DADVI,
    INLA,
    MCMC,
    NUTS,
    SMC,
    SVGD,
    SVI,
    AutoNormal,
    Importance,
    Involution,
    InvolutiveMCMC,
    LaplaceApproximation,
    NaturalGradientVI,
    NestedSampler,
    ParticleGibbs,
    Pathfinder,
    Predictive,
    RandomWalk,
    RBFKernel,
    SteinVI,
    fit,
    power_sensitivity,
)
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.results import SampledDraws
from probtorch.optim import Adagrad, Adam
from tests.effects.conftest import clean_effects

__all__ = ["clean_effects"]

ROWS_OF_DATA = [f"r{i}" for i in range(12)]
_rng = np.random.default_rng(0)
X = _rng.normal(size=12)
Y = 0.3 + 0.5 * X + 0.3 * _rng.normal(size=12)
NEW = np.linspace(-1.0, 1.0, 5)
SITES = ("level", "slope", "scale")


def line(x, y=None, observations=None):
    y = y if observations is None else observations["y"]
    level = probtorch.sample("level", dist.Normal(0.0, 1.0))
    slope = probtorch.sample("slope", dist.Normal(0.0, 1.0))
    scale = probtorch.sample("scale", dist.LogNormal(-1.0, 0.5))
    mean = probtorch.deterministic("mean", level + slope * x)
    with probtorch.plate("row", len(x), coords=ROWS_OF_DATA[: len(x)]):
        probtorch.sample("y", dist.Normal(mean, scale), obs=y)


def near(x, y=None, observations=None):
    """A guide that is near the posterior, and has a parameter."""
    loc = probtorch.param("loc", probtorch.tensor(0.4))
    probtorch.sample("level", dist.Normal(loc, 0.2))
    probtorch.sample("slope", dist.Normal(loc, 0.2))
    probtorch.sample("scale", dist.LogNormal(-1.1, 0.3))


def moments(data):
    y = data["y"]
    return [y.mean(), y.std(), (X * y).mean()]


TENSORS = probtorch.tensor(X), probtorch.tensor(Y)
QUIET = {"progress_bar": False}
DRIFT = Involution.drift(0.15, of=SITES)
ADAM = functools.partial(Adam, {"lr": 0.05})

# An engine that is run on the data.
ROWS = {
    "MCMC": lambda: MCMC(NUTS(line), 200, 200, seed=0, **QUIET).run(*TENSORS),
    "SVI": lambda: SVI(line, AutoNormal(line), ADAM(), seed=0).run(400, *TENSORS, **QUIET),
    "Importance": lambda: Importance(line, near, 300, seed=0).run(*TENSORS),
    "CSIS": lambda: CSIS(line, near, ADAM(), 300, seed=0).run(
        TENSORS[0], observations={"y": TENSORS[1]}
    ),
    "SMC": lambda: SMC(RandomWalk(line), 200, seed=0, **QUIET).run(*TENSORS),
    "AIS": lambda: AIS(RandomWalk(line), 300, seed=0, **QUIET).run(*TENSORS),
    "NestedSampler": lambda: NestedSampler(line, 60, seed=0, **QUIET).run(*TENSORS),
    "ParticleGibbs": lambda: ParticleGibbs(line, 20, 60, 10, seed=0, **QUIET).run(*TENSORS),
    "InvolutiveMCMC": lambda: InvolutiveMCMC(line, [DRIFT], 200, 100, seed=0, **QUIET).run(
        *TENSORS
    ),
    "ABC": lambda: ABC(line, 100, 4000, summary=moments, seed=0).run({"y": Y}, TENSORS[0]),
    "ABCSMC": lambda: ABCSMC(line, 100, summary=moments, epsilon=0.5, seed=0, **QUIET).run(
        {"y": Y}, TENSORS[0]
    ),
    "Pathfinder": lambda: Pathfinder(line, seed=0).run(*TENSORS),
    "LaplaceApproximation": lambda: LaplaceApproximation(line, seed=0).run(*TENSORS),
    "DADVI": lambda: DADVI(line, seed=0).run(*TENSORS),
    "NaturalGradientVI": lambda: NaturalGradientVI(line, seed=0).run(*TENSORS),
    "INLA": lambda: INLA(line, latent=["level", "slope"], seed=0).run(*TENSORS),
    "SVGD": lambda: SVGD(line, RBFKernel(), Adagrad({"lr": 0.3}), 40, seed=0).run(
        100, *TENSORS, **QUIET
    ),
    "ASVGD": lambda: ASVGD(line, RBFKernel(), Adam({"lr": 0.1}), 40, seed=0).run(
        440, *TENSORS, **QUIET
    ),
    "SteinVI": lambda: SteinVI(line, AutoNormal(line), ADAM(), RBFKernel(), 3, seed=0).run(
        150, *TENSORS, **QUIET
    ),
    "fit": lambda: fit(line, *TENSORS, num_samples=100, warmup_steps=200, seed=0, verbose=False),
    "fit, particles": lambda: fit(
        line, *TENSORS, num_samples=100, method="particles", seed=0, verbose=False
    ),
}


def takes_a_model(engine):
    first = next(iter(inspect.signature(engine).parameters))
    return first in ("model", "kernel")


def engines():
    """All classes at the front door that run, but for kernels, which `MCMC` runs."""
    for name in infer.__all__:
        made = getattr(infer, name)
        if isinstance(made, type) and hasattr(made, "run") and not issubclass(made, Kernel):
            yield name, made


def test_every_engine_at_the_front_door_has_a_row():
    of_models = {name for name, engine in engines() if takes_a_model(engine)}
    assert of_models == {name for name in ROWS if not name.startswith("fit")}
    # Of series that are given by functions: tests/infer/sequential/test_of_series.py asks them.
    others = {name for name, _ in engines()} - of_models
    assert others == {"ParticleFilter", "EnsembleKalmanFilter"}


@functools.cache
def result_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few draws, and of poor guides
        return ROWS[name]()


@functools.cache
def draws_of(name):
    """The draws that a result is told by."""
    found = result_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return found if isinstance(found, Draws) else found.draws()


every = pytest.mark.parametrize("name", ROWS)
pytestmark = pytest.mark.filterwarnings("ignore")


def log_densities(draws):
    """Of each row at each draw, by SciPy."""
    level, slope, scale = (draws.posterior[n].astype(float)[..., None] for n in SITES)
    return stats.norm.logpdf(Y, level + slope * X, scale)


def mean_at(draws, x):
    return draws["level"][..., None] + draws["slope"][..., None] * x


@every
def test_draws_are_near_the_posterior(name):
    """Loosely: that what is asked next is asked of the right thing. By chains of NUTS."""
    draws, exact = draws_of(name), draws_of("MCMC")
    assert isinstance(draws, SampledDraws)
    for site in SITES:
        close = 1.5 * exact[site].std()
        assert abs(draws[site].mean() - exact[site].mean()) < close, site


@every
def test_draws_are_the_same_whenever_they_are_asked_for(name):
    draws, samples = draws_of(name), result_of(name).get_samples()
    total = draws.num_chains * draws.num_draws
    for site in SITES:
        np.testing.assert_array_equal(samples[site], draws[site].reshape(total))
    by_chain = result_of(name).get_samples(group_by_chain=True, names=["slope"])
    np.testing.assert_array_equal(by_chain["slope"], draws["slope"])


@every
def test_summary_has_a_row_for_each_number(name):
    for table in (result_of(name).summary(names=SITES), summary(result_of(name), names=SITES)):
        assert table.rows == SITES
        for site in SITES:
            np.testing.assert_allclose(table[site]["mean"], draws_of(name)[site].mean())


@every
def test_predictions_at_new_places_are_those_of_the_draws(name):
    draws, result = draws_of(name), result_of(name)
    new = probtorch.tensor(NEW)
    found, again = result.predict(new, seed=1), result.predict(new, seed=1)
    assert set(found) >= {"mean", "y"} and not set(found) & set(SITES)
    np.testing.assert_allclose(found["mean"], mean_at(draws, NEW), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["y"], again["y"])
    # Standard normal: a mean, and a mean square, six standard errors off at most.
    z = (found["y"] - mean_at(draws, NEW)) / draws["scale"][..., None]
    assert abs(z.mean()) < 6.0 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1.0) < 6.0 * np.sqrt(2.0 / z.size)
    by_name = Predictive(line, result, seed=1)(new)
    np.testing.assert_allclose(by_name["mean"].numpy(), found["mean"], rtol=1e-5, atol=1e-6)


@every
def test_predictions_without_arguments_are_replications_of_the_data(name):
    draws, result = draws_of(name), result_of(name)
    for found in (result.predict(seed=2), result.replications(2)):
        assert list(found) == ["y"] and found["y"].shape == draws[
            "mean" if "mean" in draws else "slope"
        ].shape[:2] + (12,)
        z = (found["y"] - mean_at(draws, X)) / draws["scale"][..., None]
        assert abs(z.mean()) < 6.0 / np.sqrt(z.size)
        assert not np.array_equal(found["y"][..., 0, :], found["y"][..., 1, :])


@every
def test_densities_of_the_data_are_those_of_the_draws(name):
    expected = log_densities(draws_of(name))
    found = result_of(name).log_likelihood()
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)
    by_name = infer.log_likelihood(line, result_of(name), *TENSORS)
    np.testing.assert_allclose(by_name["y"], expected, rtol=1e-5, atol=1e-5)


@every
def test_leave_one_out_is_that_of_the_densities(name):
    draws = draws_of(name)
    known = Draws(
        draws.posterior, draws.sample_stats, groups={"log_likelihood": {"y": log_densities(draws)}}
    )
    found, expected = loo(result_of(name)), loo(known)
    np.testing.assert_allclose(found.elpd, expected.elpd, rtol=1e-4)
    np.testing.assert_allclose(found.pareto_k, expected.pareto_k, atol=1e-2)


@every
def test_arviz_gets_groups_with_names_and_labels(name):
    draws = draws_of(name)
    whole = result_of(name).extended(
        log_likelihood=True, posterior_predictive=True, prior=30, seed=3
    )
    assert {
        *("observed_data", "constant_data", "log_likelihood"),
        *("posterior_predictive", "prior", "prior_predictive"),
    } <= set(whole.groups)
    assert whole.groups["prior"]["slope"].shape == (1, 30)
    assert whole.groups["prior_predictive"]["y"].shape == (1, 30, 12)
    data = result_of(name).to_arviz(log_likelihood=True, posterior_predictive=True, seed=3)
    y = data["observed_data"]["y"]
    np.testing.assert_allclose(y, Y, rtol=1e-6)
    assert y.dims == ("row",) and list(y.coords["row"].values) == ROWS_OF_DATA
    np.testing.assert_allclose(data["constant_data"]["x"], X, rtol=1e-6)
    np.testing.assert_array_equal(data["posterior"]["slope"], draws["slope"])
    found = data["log_likelihood"]["y"]
    assert found.dims == data["posterior_predictive"]["y"].dims == ("chain", "draw", "row")
    np.testing.assert_allclose(found, log_densities(draws), rtol=1e-5, atol=1e-5)


@every
def test_log_likelihoods_go_to_arviz_unless_a_simulator_may_have_none(name):
    data = result_of(name).to_arviz()
    groups = set(getattr(data, "children", None) or data.groups())
    assert ("log_likelihood" in groups) == (not name.startswith("ABC"))


@every
def test_sensitivity_to_prior_and_likelihood_is_asked_of_any(name):
    found = power_sensitivity(result_of(name), names=["slope"])
    assert np.isfinite(found.likelihood).all() and np.isfinite(found.prior).all()


@every
def test_files_have_the_draws(name, tmp_path):
    path = tmp_path / "draws.npz"
    result_of(name).save(path)
    loaded = type(draws_of(name)).load(path)
    np.testing.assert_array_equal(loaded["slope"], draws_of(name)["slope"])
    np.testing.assert_allclose(loaded.groups["observed_data"]["y"], Y, rtol=1e-6)
    with pytest.raises(InferenceError, match="draws that know their model"):
        loaded.predict()


def test_narrowed_draws_do_not_take_what_is_missing_from_the_prior():
    narrowed = draws_of("Importance").select("slope")
    with pytest.raises(InferenceError, match="without 'level', 'scale'"):
        narrowed.predict(probtorch.tensor(NEW))
    runs = draws_of("ParticleGibbs")  # have each run by itself
    found = runs.select("slope").predict(probtorch.tensor(NEW))
    np.testing.assert_allclose(found["mean"], mean_at(runs, NEW), rtol=1e-5)
