"""`check` and `power_sensitivity`: what is wrong is found, what is right is not."""

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import Draws
from probtorch.distributions import Normal
from probtorch.effects import factor, plate, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import Target, check, power_sensitivity
from probtorch.infer.results import make_draws
from probtorch.tensor import tensor

PRIOR_SD, NOISE = 1.0, 1.0


def level(y=None):
    mu = sample("mu", Normal(0.0, PRIOR_SD))
    with plate("row", 4):
        sample("y", Normal(mu, NOISE), obs=y)


def posterior_of(y, prior=1.0, likelihood=1.0):
    """Mean and sd with prior and likelihood to a power."""
    precision = prior / PRIOR_SD**2 + likelihood * len(y) / NOISE**2
    return likelihood * y.sum() / NOISE**2 / precision, precision**-0.5


def exact_draws(y, count=20000):
    mean, sd = posterior_of(y)
    q = np.random.default_rng(0).normal(mean, sd, (4, count // 4, 1))
    return make_draws(Target.from_model(level, tensor(y)), q, {})


def exact_distance(first, second):
    """The root of the normalised cumulative Jensen-Shannon distance of two normals."""
    x = np.linspace(-30.0, 30.0, 60001)
    found = []
    for sign in (1.0, -1.0):
        p, q = (stats.norm.cdf(sign * (x - mean) / sd) for mean, sd in (first, second))
        middle = (p + q) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.nan_to_num(p * np.log2(p / middle)) + np.nan_to_num(q * np.log2(q / middle))
        # Over the range of the draws: four and a bit standard deviations.
        inside = np.abs(x - first[0]) < 3.95 * first[1]
        found.append(terms[inside].sum() / (p + q)[inside].sum())
    return np.sqrt(max(found))


def exact_sensitivity(y, name):
    both = [exact_distance(posterior_of(y), posterior_of(y, **{name: a})) for a in (1 / 1.01, 1.01)]
    return sum(both) / (2 * np.log2(1.01))


NEAR, FAR = np.array([0.4, -0.6, 0.9, 0.1]), np.array([5.0, 6.0, 5.5, 5.8])


@pytest.mark.parametrize("y", [NEAR, FAR], ids=["agree", "disagree"])
def test_sensitivity_of_a_normal_mean_is_that_of_the_closed_form(y):
    found = power_sensitivity(exact_draws(y))
    assert found.labels == ("mu",) and found.pareto_k < 0.5
    # The range of 20,000 draws, which the norm depends on, varies by some per cent.
    assert found.prior[0] == pytest.approx(exact_sensitivity(y, "prior"), rel=0.15)
    assert found.likelihood[0] == pytest.approx(exact_sensitivity(y, "likelihood"), rel=0.15)


def test_prior_that_the_data_contradict_is_named():
    assert power_sensitivity(exact_draws(FAR)).verdicts == {"mu": "prior and data disagree"}
    assert power_sensitivity(exact_draws(NEAR)).sensitive == ()
    assert "mu" in repr(power_sensitivity(exact_draws(FAR)))


def test_sensitivity_needs_a_model_and_data():
    with pytest.raises(InferenceError, match=r"(?s)know their model.*mcmc\.draws"):
        power_sensitivity(Draws({"x": np.zeros((1, 100))}))
    with pytest.raises(ArgumentError, match=r"(?s)positive number.*0\.05"):
        power_sensitivity(exact_draws(NEAR), threshold=0.0)


# ------------------------------------------------------------------------------------------ reports


def test_a_model_that_is_right_passes(tmp_path):
    pytest.importorskip("matplotlib")
    parts = ["prior", "posterior", "predictions", "sensitivity"]
    report = check(level, tensor(NEAR), draws=exact_draws(NEAR, 2000), parts=parts)
    assert report.good, report
    assert [section.title for section in report.sections] == parts
    report.save(tmp_path / "check.html")
    page = (tmp_path / "check.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and page.count("<h2>") == 4
    assert "check of level" in page and report["prior"].verdict in page
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")


@pytest.mark.slow
def test_all_checks_of_a_model_that_is_right():
    report = check(level, tensor(NEAR), replications=60)
    assert report.good, report
    assert len(report.sections) == 6
    assert "calibrated" in report["calibration"].details
    assert "calibrated" in report["posterior calibration"].details


def test_data_that_the_prior_does_not_predict_are_found():
    report = check(
        level, tensor(FAR), draws=exact_draws(FAR, 2000), num_samples=200,
        parts=["prior", "sensitivity", "posterior"],
    )  # fmt: skip
    assert not report.good and report["posterior"].good
    assert report["prior"].good is False and "mean of y" in report["prior"].verdict
    assert "mu (prior and data disagree)" in report["sensitivity"].verdict
    assert "look here: the prior hardly predicts" in repr(report)


def test_without_data_two_checks_are_left_and_what_cannot_be_made_says_why():
    report = check(level, parts=["prior", "sensitivity"], num_samples=100)
    assert [section.title for section in report.sections] == ["prior"]
    assert report["prior"].verdict == "this is what the prior predicts"

    def weighted(y):
        level(y)
        factor("weight", tensor(0.5))

    report = check(weighted, tensor(NEAR), parts="prior", num_samples=100)
    assert report["prior"].good is None and "factor" in report["prior"].verdict
    assert report.good and "<span class='open'>" in report.html()


def test_unknown_parts_and_too_few_draws_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)prior, calibration.*'priors'"):
        check(level, tensor(NEAR), parts=["priors"])
    with pytest.raises(ArgumentError, match=r"(?s)at least 50.*10"):
        check(level, tensor(NEAR), num_samples=10)
