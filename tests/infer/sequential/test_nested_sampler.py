"""`NestedSampler`: evidence against closed forms and tempered SMC, plateaus, threads, warnings."""

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.core.rng import Generator
from probtorch.effects import plate, sample
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import (
    AIES,
    SMC,
    Checkpoint,
    NestedSampler,
    NestedSamplingWarning,
    RandomWalk,
    Slice,
    Target,
)
from probtorch.infer.sequential import mutation, nested_course
from probtorch.infer.sequential.nested_course import uniform_p_value
from probtorch.infer.sequential.shrinkage import evidence_error, log_widths, mean_log_volumes

RNG = np.random.default_rng(0)
X = RNG.normal(size=20)
Y = 1.0 + 2.0 * X + 0.5 * RNG.normal(size=20)
# Seeds are fixed; of a sound estimate one in 15,000 is further from the truth than this many
# standard errors.
SIGMAS = 4.0


def line(x, y):
    a = sample("a", dist.Normal(0.0, 2.0))
    b = sample("b", dist.Normal(0.0, 2.0))
    with plate("row", len(x)):
        sample("y", dist.Normal(a + b * x, 0.5), obs=y)


DESIGN = np.stack([np.ones(20), X])
EVIDENCE = stats.multivariate_normal(np.zeros(20), 0.25 * np.eye(20) + 4.0 * DESIGN.T @ DESIGN)
COVARIANCE = np.linalg.inv(DESIGN @ DESIGN.T / 0.25 + np.eye(2) / 4.0)
MEAN = COVARIANCE @ DESIGN @ Y / 0.25


def quiet(*args, **options):
    return NestedSampler(*args, progress_bar=False, **{"num_threads": 1, **options})


@pytest.mark.parametrize("kernel", [Slice, RandomWalk])
def test_evidence_and_posterior_of_a_linear_model(kernel):
    draws = quiet(kernel(line), 200, seed=1).run(X, Y)
    assert abs(draws.log_evidence - EVIDENCE.logpdf(Y)) < SIGMAS * draws.log_evidence_error
    assert 0.05 < draws.log_evidence_error < 0.3
    # Weighted points are worth so many draws, and about half of them are independent.
    sd = np.sqrt(np.diag(COVARIANCE) / (draws.num_draws / 2))
    for found in (
        [draws.weighted.expectation(name) for name in "ab"],
        [draws[name].mean() for name in "ab"],
    ):
        assert (np.abs(found - MEAN) < SIGMAS * sd).all()
    spread = [
        draws.weighted.expectation(lambda d, n=n, m=m: (d[n] - m) ** 2) for n, m in zip("ab", MEAN)
    ]
    np.testing.assert_allclose(spread / np.diag(COVARIANCE), 1.0, atol=0.4)
    at = draws.positions[0, 0]
    assert draws.sample_stats["lp"][0, 0] == pytest.approx(draws.target.value_and_grad(at)[0])
    a, b = (draws[name][0, 0] for name in "ab")
    likelihood = stats.norm.logpdf(Y, a + b * X, 0.5).sum()
    assert draws.sample_stats["log_likelihood"][0, 0] == pytest.approx(likelihood)


def test_information_of_a_gaussian_is_the_divergence_of_posterior_from_prior():
    draws = quiet(line, 400, seed=2).run(X, Y)
    exact = 0.5 * (
        np.trace(COVARIANCE / 4.0) + MEAN @ MEAN / 4.0 - 2.0
        - np.linalg.slogdet(COVARIANCE / 4.0)[1]
    )  # fmt: skip
    # What is not known of the volumes moves both alike.
    assert abs(draws.information - exact) < SIGMAS * draws.log_evidence_error


def test_tempered_smc_finds_the_same_evidence():
    nested = quiet(line, 200, seed=3).run(X, Y)
    tempered = SMC(RandomWalk(line), 400, seed=3, progress_bar=False, num_threads=1).run(X, Y)
    error = np.hypot(nested.log_evidence_error, tempered.log_evidence_error)
    assert abs(nested.log_evidence - tempered.log_evidence) < SIGMAS * error


@pytest.mark.slow
def test_stated_errors_are_those_of_the_evidence():
    """Over 60 seeds; a root mean square of sound scores is off by 0.35 once in 7,000 tests."""
    runs = [quiet(line, 100, seed=i).run(X, Y) for i in range(60)]
    scores = [(r.log_evidence - EVIDENCE.logpdf(Y)) / r.log_evidence_error for r in runs]
    assert abs(np.sqrt(np.mean(np.square(scores))) - 1.0) < 0.35


def test_a_density_without_a_reference_is_told_of_by_the_name_of_its_engine():
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)
    with pytest.raises(ArgumentError, match=r"^NestedSampler on .*, which is no model"):
        NestedSampler(target).run()
    with pytest.raises(ShapeError, match=r"^NestedSampler\(reference="):
        NestedSampler(target, reference=dist.Normal(0.0, 1.0)).run()


def test_both_modes_of_a_density_are_found_from_a_reference():
    def two(q):
        # Weights 0.3 and 0.7 at -6 and 6, in two dimensions; its integral is e.
        modes = [np.log(w) - 0.5 * ((q - m) ** 2).sum() for w, m in ((0.3, -6.0), (0.7, 6.0))]
        return probtorch.logsumexp(probtorch.stack(modes), 0) - np.log(2 * np.pi) + 1.0

    reference = dist.Normal(0.0, 6.0).expand([2]).to_event(1)
    draws = quiet(Target.from_density(two, 2), 400, reference=reference, seed=0).run()
    assert abs(draws.log_evidence - 1.0) < SIGMAS * draws.log_evidence_error
    share = draws.weighted.expectation(lambda draw: draw["x"][0] > 0.0)
    # The share of a mode is decided where they part, by some 100 live points.
    assert abs(share - 0.7) < SIGMAS * np.sqrt(0.21 / 100)


def test_a_likelihood_of_few_values_is_summed_exactly():
    """Plateaus: 1 where p > 0.5, else e^-3, but 0 below 0.1; the evidence is 0.5 + 0.4 e^-3."""

    def steps():
        p = sample("p", dist.Uniform(0.0, 1.0))
        low = probtorch.where(p > 0.1, -3.0, -np.inf)
        probtorch.factor("step", probtorch.where(p > 0.5, 0.0, low))

    draws = quiet(steps, 500, seed=1).run()
    exact = np.log(0.5 + 0.4 * np.exp(-3.0))
    assert abs(draws.log_evidence - exact) < SIGMAS * draws.log_evidence_error
    assert draws.log_evidence_error < 0.06
    share = 0.5 / np.exp(exact)
    found = draws.weighted.expectation(lambda draw: draw["p"] > 0.5)
    assert abs(found - share) < 0.02


def test_draws_depend_on_the_seed_and_not_on_the_number_of_threads():
    def positions(threads, seed):
        sampler = quiet(line, 150, num_delete=75, num_threads=threads, num_steps=3, seed=seed)
        return sampler.run(X, Y).positions

    one = positions(1, 3)
    np.testing.assert_array_equal(one, positions(3, Generator(3)))
    other = positions(1, 4)
    assert one.shape != other.shape or (one != other).any()


def test_a_run_broken_off_goes_on_bit_for_bit(tmp_path, monkeypatch):
    whole = quiet(line, 64, seed=5).run(X, Y)
    rounds = nested_course.NestedCourse._round

    def broken(course):
        if len(course.counts) > 100:
            raise RuntimeError("killed")
        rounds(course)

    monkeypatch.setattr(nested_course.NestedCourse, "_round", broken)
    with pytest.raises(RuntimeError, match="killed"):
        quiet(line, 64, seed=5).run(X, Y, checkpoint=tmp_path, checkpoint_every=0.0)
    monkeypatch.setattr(nested_course.NestedCourse, "_round", rounds)
    parts = quiet(line, 64, seed=5).run(X, Y, checkpoint=Checkpoint(tmp_path))
    assert parts.positions.tobytes() == whole.positions.tobytes()
    assert parts.log_evidence_error == whole.log_evidence_error
    with pytest.raises(ArgumentError, match=r"dlogz=\S+ \(saved was "):
        quiet(line, 64, seed=5, dlogz=0.1).run(X, Y, checkpoint=tmp_path)


def test_points_that_do_not_move_are_warned_of():
    """One proposal of a random walk hardly gets away from the point that was copied."""
    with pytest.warns(NestedSamplingWarning, match="stay where they were copied"):
        quiet(RandomWalk(line), 200, num_steps=1, seed=0).run(X, Y)


def test_ranks_of_points_that_are_too_good_are_noticed(monkeypatch):
    """New points that are not drawn from all that is above the level: the better half of them."""
    move = mutation.Mutation.move

    def better(self, positions, level, steps):
        moved = move(self, np.concatenate([positions, positions]), level, steps)
        n, ratios = len(positions), moved.ratios.array[:, 0]
        best = np.argsort(-ratios)[:n]
        return type(moved)(*(type(x)(x.array[best]) for x in vars(moved).values()))

    monkeypatch.setattr(mutation.Mutation, "move", better)
    with pytest.warns(NestedSamplingWarning, match="do not come in evenly"):
        quiet(line, 100, seed=0).run(X, Y)


def test_time_that_is_up_leaves_the_live_points_for_the_rest(capsys):
    draws = quiet(line, 50, seed=0).run(X, Y, max_seconds=1e-9)
    assert draws.attrs["interrupted"] and draws.attrs["num_points"] == 50
    assert "live points" in capsys.readouterr().err


def test_volumes_and_widths_are_those_of_the_trapezoidal_rule():
    counts = np.array([3, 2, 1])
    volumes = np.exp(mean_log_volumes(counts))
    np.testing.assert_allclose(volumes, np.exp([-1 / 3, -5 / 6, -11 / 6]))
    edges = np.concatenate([[1.0], volumes, [0.0]])
    np.testing.assert_allclose(np.exp(log_widths(np.log(volumes))), 0.5 * (edges[:-2] - edges[2:]))


def test_error_of_a_constant_likelihood_is_none_but_the_first_half_step():
    """L = 1: the evidence is (1 + X_1) / 2 whatever else the volumes are."""
    error = evidence_error(np.zeros(1000), np.full(1000, 100), Generator(0))
    assert error == pytest.approx(0.5 / 100, rel=0.2)


@pytest.mark.parametrize("n", [20, 1000])
def test_p_values_are_those_of_scipy(n):
    x = np.random.default_rng(n).uniform(size=n) ** 1.1
    assert uniform_p_value(x) == pytest.approx(stats.kstest(x, "uniform").pvalue, rel=0.02)


def test_a_prior_that_cannot_have_made_the_data_is_an_error():
    def impossible():
        sample("p", dist.Uniform(0.0, 1.0))
        probtorch.factor("never", probtorch.tensor(-np.inf))

    with pytest.raises(InferenceError, match="a likelihood above 0"):
        quiet(impossible, 4).run()


@pytest.mark.parametrize(
    "options, match",
    [
        ({"num_live_points": 3}, "at least 4"),
        ({"dlogz": -1.0}, "dlogz"),
        ({"num_live_points": 10, "num_delete": 6}, "at most 5"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_samples": 0}, "num_samples"),
    ],
)
def test_settings_out_of_range_are_refused(options, match):
    with pytest.raises(ArgumentError, match=match):
        NestedSampler(line, **options)


def test_ensembles_are_refused():
    with pytest.raises(ArgumentError, match="one point"):
        NestedSampler(AIES(line))
