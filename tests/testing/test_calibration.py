"""`sbc`: ten models that are right pass, samplers that are wrong do not."""

import functools

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import plate, sample
from probtorch.core.rng import Generator
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions import Beta, Binomial, HalfNormal, LogNormal, Normal, Poisson
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.handlers import condition
from probtorch.infer import HMC, NUTS, Target, init_to_uniform, potential
from probtorch.infer.calibration.simulated import SimulatedTarget, data_sites, simulate
from probtorch.infer.slots import Evaluation
from probtorch.testing import sbc
from tests.testing.broken_kernels import MISTAKES, broken
from tests.testing.calibrated_models import MODELS, X, hidden_markov

QUIET = {"progress_bar": False}
SHORT = {"warmup_steps": 60, "num_samples": 31, **QUIET}
# Warm-up and starts take most of the time of short runs. A sampler is right whatever they find, so
# the many short tests have the cheapest of each; the slow ones have the defaults.
quick = functools.partial(NUTS, adapt_mass_matrix=False, init_strategy=init_to_uniform)
# Those that take longest get fewer replications by default.
FEWER = {"branch": 40, "correlation": 40, "hidden Markov": 40, "ordered and simplex": 60}
# The others are for the slow tests, with more replications of all.
USUAL = {"non-centred", "logistic", "beta-binomial", "branch"}
# Chance of a false alarm of one test, were the seed not fixed.
NEVER = 1e-6


def regression(x, y=None):
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(0.0, 2.0))
    s = sample("s", LogNormal(0.0, 0.5))
    with plate("row", len(x)):
        sample("y", Normal(a + b * x, s), obs=y)


def scales(y=None):
    with plate("row", 3):
        s = sample("s", HalfNormal(1.0))
        sample("y", Normal(0.0, s), obs=y)


def coin(tosses=10, y=None):
    p = sample("p", Beta(2.0, 2.0))
    sample("y", Binomial(tosses, p), obs=y)


# ----------------------------------------------------------------------------------- right models


@pytest.mark.parametrize(
    "name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_model_is_calibrated(name):
    model, args = MODELS[name]
    result = sbc(model, quick, FEWER.get(name, 100), args=args, level=NEVER, **SHORT)
    assert result.calibrated, result
    assert not result.failed
    assert "log_likelihood" in result.ranks


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_model_is_calibrated_in_a_thousand_replications(name):
    model, args = MODELS[name]
    result = sbc(model, NUTS, 1000, args=args, level=1e-5, warmup_steps=300, seed=1, **QUIET)
    assert result.calibrated, result
    assert not result.failed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["non-centred", "correlation", "branch", "hidden Markov"])
def test_other_kernels_are_calibrated_in_a_thousand_replications(name):
    model, args = MODELS[name]
    for kernel in (
        functools.partial(NUTS, full_mass=True),
        functools.partial(HMC, trajectory_length=2.0, jitter=0.3),
    ):
        result = sbc(model, kernel, 1000, args=args, level=1e-5, num_chains=2, seed=2, **QUIET)
        assert result.calibrated, result


# --------------------------------------------------------------------------------- wrong samplers


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sampler_with_a_mistake_is_caught(mistake):
    """p-values of the wrong ones are below 1e-8; the right one's chance to be among them is 1e-6.

    A force without the metric's factor leaves the posterior invariant, but hardly moves.
    """
    settings = {"step_size": 0.8, "adapt_step_size": False} if mistake == "acceptance" else {}
    kernel = broken(mistake, **settings, metric="diag", init_strategy=init_to_uniform)
    result = sbc(regression, kernel, 40, args=(X[::2],), thinning=4, level=NEVER, **SHORT)
    assert result.calibrated == (mistake == "none"), result


def test_forgotten_jacobian_is_caught(monkeypatch):
    class Forgetful(Evaluation):
        def on_sample(self, site):
            before = len(self.terms)
            super().on_sample(site)
            del self.terms[before:]

    monkeypatch.setattr(potential, "Evaluation", Forgetful)
    result = sbc(scales, quick, 100, level=NEVER, **SHORT)
    assert not result.calibrated
    assert "draws too low" in repr(result)


def test_wrong_scale_of_a_prior_is_caught():
    def wider(y=None):
        with plate("row", 3):
            s = sample("s", HalfNormal(3.0))
            sample("y", Normal(0.0, s), obs=y)

    result = sbc(scales, quick, 60, simulator=wider, level=NEVER, **SHORT)
    assert not any(result.verdicts[f"s[{i}]"] for i in range(3))
    assert "draws too low" in repr(result)


def test_posterior_that_ignores_the_data_is_caught_by_the_log_likelihood_alone():
    """Draws of the prior have uniform ranks: of a single parameter nothing can be seen."""
    result = sbc(coin, lambda _: quick(Target.from_model(coin)), 100, level=NEVER, **SHORT)
    assert result.verdicts == {"p": True, "log_likelihood": False}


# -------------------------------------------------------------------------------- what it is given


def test_data_are_exchanged_wherever_the_model_has_them_from():
    """No data, data as an argument, data by a handler, and a site that is named: the same ranks."""
    y = probtorch.tensor(3.0)
    results = [
        sbc(coin, quick, 12, **SHORT),
        sbc(coin, quick, 12, args=(10, y), **SHORT),
        sbc(coin, quick, 12, kwargs={"y": y}, **SHORT),
        sbc(condition(coin, {"y": y}), quick, 12, **SHORT),
        sbc(coin, quick, 12, observed=("y",), **SHORT),
        sbc(coin, quick(coin), 12, **SHORT),
    ]
    for result in results:
        np.testing.assert_array_equal(result.ranks["p"], results[0].ranks["p"])
    assert len(set(results[0].ranks["p"])) > 3


def test_model_is_compiled_once_for_all_data():
    runs = []

    def counted(y=None):
        runs.append(None)
        coin(10, y)

    sbc(counted, quick, 10, **SHORT)
    few = len(runs)
    runs.clear()
    sbc(counted, quick, 40, **SHORT)
    # One run per replication finds the point of its parameters, one its start; some verify.
    assert len(runs) - few < 30 * 4


def test_integer_data_and_several_sites_reach_the_density_unchanged():
    def counts(y=None, z=None):
        rate = sample("rate", LogNormal(0.0, 0.5))
        with plate("row", 4):
            sample("y", Poisson(rate), obs=y)
        sample("z", Normal(rate, 1.0), obs=z)

    names = data_sites(counts, (), {}, (), "sbc")
    assert names == ("y", "z")
    drawn = simulate(counts, (), {}, 3, Generator(0))
    target = SimulatedTarget(counts, (), {}, {name: drawn[name][0] for name in names})
    for i in range(3):
        target.exchange({name: drawn[name][i] for name in names})
        fixed = condition(counts, {name: drawn[name][i] for name in names})
        expected = Target.from_model(fixed).value_and_grad([0.3])
        np.testing.assert_allclose(target.value_and_grad([0.3])[0], expected[0], rtol=1e-13)
        np.testing.assert_allclose(target.value_and_grad([0.3])[1], expected[1], rtol=1e-12)
        point = target.unconstrain({"rate": drawn["rate"][i]})
        found = target.scores(point[None], target.pack_data({n: drawn[n][i] for n in names})[None])
        rate = drawn["rate"][i]
        terms = stats.poisson(rate).logpmf(drawn["y"][i]).sum() + stats.norm(rate).logpdf(
            drawn["z"][i]
        )
        np.testing.assert_allclose(found["log_likelihood"][0], terms, rtol=1e-12)


def test_log_likelihood_of_a_hidden_markov_model_is_summed_over_all_paths():
    names = data_sites(hidden_markov, (4,), {}, (), "sbc")
    drawn = simulate(hidden_markov, (4,), {}, 2, Generator(5))
    target = SimulatedTarget(hidden_markov, (4,), {}, {n: drawn[n][0] for n in names})
    points = np.array([target.points(drawn)(i) for i in range(2)])
    found = target.scores(points, target.pack_data({n: drawn[n] for n in names}, lead=1))
    for i in range(2):
        high = [1.0 - drawn["stay_0"][i], drawn["stay_1"][i]]
        total = 0.0
        for path in np.ndindex(2, 2, 2, 2):
            weight, state = 1.0, 0
            for t, new in enumerate(path):
                weight *= high[state] if new else 1.0 - high[state]
                loc = drawn["loc"][i] + drawn["gap"][i] * new
                weight *= stats.norm(loc, 0.7).pdf(drawn[f"y_{t}"][i])
                state = new
            total += weight
        np.testing.assert_allclose(found["log_likelihood"][i], np.log(total), rtol=1e-12)


def test_compiled_way_to_unconstrained_points_is_the_eager_one():
    for name in ("correlation", "ordered and simplex", "dependent support"):
        model, args = MODELS[name]
        names = data_sites(model, args, {}, (), "sbc")
        drawn = simulate(model, args, {}, 600, Generator(1))
        target = SimulatedTarget(model, args, {}, {n: drawn[n][0] for n in names})
        point = target.points(drawn)
        for i in (0, 17, 599):
            values = {n: drawn[n][i] for n in target.slots}
            np.testing.assert_allclose(point(i), target.unconstrain(values), rtol=1e-9, atol=1e-9)


def test_test_quantities_see_parameters_and_data():
    result = sbc(
        regression, quick, 12, args=(X,),
        quantities={"slopes": lambda v: v["b"] / v["s"], "fit": lambda v: v["y"] - v["a"]},
        log_likelihood=False, **SHORT,
    )  # fmt: skip
    names = {"a", "b", "s", "slopes", *(f"fit[{i}]" for i in range(12))}
    assert set(result.ranks) == names
    # y - a is ranked the other way round than a.
    np.testing.assert_array_equal(result.ranks["fit[0]"], 31 - result.ranks["a"])


def test_several_chains_are_ranked_together():
    result = sbc(coin, quick, 12, num_chains=2, **SHORT)
    assert result.num_draws == 62
    assert result.ranks["p"].max() > 31


def test_same_seed_gives_the_same_ranks():
    first, again = (sbc(coin, quick, 12, seed=3, **SHORT) for _ in range(2))
    np.testing.assert_array_equal(first.ranks["p"], again.ranks["p"])
    assert (first.ranks["p"] != sbc(coin, quick, 12, seed=4, **SHORT).ranks["p"]).any()


# ---------------------------------------------------------------------------------- what it returns


def test_result_prints_as_a_table_with_its_verdict():
    result = sbc(coin, quick, 12, level=NEVER, **SHORT)
    lines = repr(result).splitlines()
    assert lines[0] == "Calibration of coin with NUTS: 12 replications, 31 draws each"
    assert lines[1].split() == ["quantity", "p-value", "adjusted", "ranks"]
    assert {line.split()[0] for line in lines[2:4]} == {"p", "log_likelihood"}
    assert lines[4] == "calibrated, as far as this can tell (chance of a false alarm: 1e-06)"
    assert result.replications == 12


def test_result_draws_its_curves(tmp_path):
    pytest.importorskip("matplotlib")
    result = sbc(coin, quick, 12, **SHORT)
    assert result.plot(tmp_path / "ranks.png") == str(tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
    figure = result.plot(names=["p"])
    (axis,) = [axis for axis in figure.axes if axis.get_visible()]
    below = (result.ranks["p"] < 7).mean()
    assert axis.lines[0].get_ydata()[7] == pytest.approx(below - 7 / 32)
    with pytest.raises(ArgumentError, match="names among p, log_likelihood"):
        result.plot(names=["q"])


def test_interrupted_run_keeps_the_replications_that_are_done(capsys):
    runs = []

    def impatient(y=None):
        runs.append(None)
        if len(runs) == 60:
            raise KeyboardInterrupt
        coin(10, y)

    result = sbc(impatient, quick, 100, **SHORT)
    assert 5 < result.replications < 60
    assert result.wanted == 100
    assert f"keeping the {result.replications} replications" in capsys.readouterr().err
    assert f"{result.replications} of 100 replications" in repr(result)


def test_interrupt_before_the_first_replication_is_raised():
    runs = []

    def impatient(y=None):
        runs.append(None)
        if len(runs) == 12:
            raise KeyboardInterrupt
        coin(10, y)

    with pytest.raises(KeyboardInterrupt):
        sbc(impatient, quick, 100, **SHORT)


def test_replications_that_fail_are_told_of():
    class Refusing(NUTS):
        calls = 0

        def first_values(self, *start):
            Refusing.calls += 1
            if Refusing.calls % 3 == 0:
                raise InferenceError("x", expected="luck", got="none", fix="try again")
            return super().first_values(*start)

    with pytest.warns(InferenceWarning, match="replications of sbc failed"):
        result = sbc(coin, Refusing, 15, thinning=1, **SHORT)
    assert result.failed
    assert result.replications + len(result.failed) == 15
    assert "replications failed; number" in repr(result)


# ------------------------------------------------------------------------------------------ errors


def test_model_without_data_is_refused():
    def nothing():
        sample("x", Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match="observes nothing") as error:
        sbc(nothing, NUTS, 10)
    assert "observed=('x',)" in str(error.value)


def test_factor_is_refused():
    def weighted(y=None):
        x = sample("x", Normal(0.0, 1.0))
        probtorch.factor("weight", -x * x)
        sample("y", Normal(x, 1.0), obs=y)

    with pytest.raises(ArgumentError, match="no distribution to draw from"):
        sbc(weighted, NUTS, 10)


def test_unknown_data_site_is_refused_with_the_closest_one():
    with pytest.raises(ModelError, match="'y'"):
        sbc(coin, quick, 10, observed=("yy",))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kernel": 3}, "a function that makes one for a model"),
        ({"kernel": lambda model: model}, "a function that makes one for a model"),
        ({"replications": 1}, "at least 2"),
        ({"num_samples": 0}, "at least 4"),
        ({"thinning": 0}, "at least 1"),
        ({"level": 2.0}, "a chance in"),
        ({"draws": 10}, "num_samples"),
        ({"quantities": {"p": lambda v: v["p"]}}, "a name that is taken"),
        ({"quantities": {"odds": 3}}, "got:      int"),
        ({"quantities": {"nan": lambda v: v["p"] * np.nan}}, "nan at some"),
    ],
)
def test_setting_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        sbc(coin, **{"replications": 4, **SHORT, **settings})
