"""`AIS`: evidence without bias against closed forms, weighted draws, threads, refusals."""

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch.core.rng import Generator
from probtorch.effects import plate, sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import AIS, HMC, RandomWalk, Slice, Target
from probtorch.infer.sequential import ais
from tests.infer.sequential.test_smc import COVARIANCE, EVIDENCE, MEAN, SIGMAS, X, Y, line


def run(kernel, num_particles=400, *, seed=1, **options):
    return AIS(kernel, num_particles, seed=seed, progress_bar=False, **options)


@pytest.mark.parametrize(
    "kernel, num_steps", [(RandomWalk, 10), (lambda m: HMC(m, num_steps=4), 1), (Slice, 1)]
)
def test_evidence_and_posterior_of_a_linear_model(kernel, num_steps):
    found = run(kernel(line), num_steps=num_steps).run(X, Y)
    assert abs(found.log_evidence - EVIDENCE.logpdf(Y)) < SIGMAS * found.log_evidence_error
    assert found.log_evidence_error < 0.3 and found.attrs["temperatures"][-1] == 1.0
    for name, mean, variance in zip("ab", MEAN, np.diag(COVARIANCE)):
        error = SIGMAS * np.sqrt(variance / found.ess)
        assert abs(found.expectation(name) - mean) < error
        spread = found.expectation(lambda draw, n=name, m=mean: (draw[n] - m) ** 2)
        assert abs(spread / variance - 1.0) < SIGMAS * np.sqrt(2.0 / found.ess)


def one(y):
    x = sample("x", dist.Normal(0.0, 1.0))
    with plate("row", len(y)):
        sample("y", dist.Normal(x, 1.0), obs=y)


ROWS = np.array([1.0, 2.0, 0.5])
EXACT = stats.multivariate_normal(np.zeros(3), np.eye(3) + 1.0).logpdf(ROWS)


def mean_ratio(runs, **options):
    """The mean over runs of the estimate over the truth, and its standard error."""
    made = run(RandomWalk(one), 20, seed=Generator(3), **options)
    ratios = np.exp([made.run(ROWS).log_evidence - EXACT for _ in range(runs)])
    return ratios.mean(), ratios.std(ddof=1) / np.sqrt(runs)


class Late(ais._Way):
    """With weights that the places after the last moves change, which no law of ways has."""

    def to_the_end(self):
        super().to_the_end()
        ratios = self.run.mutation.ratios(self.positions)
        self.log_weights = self.log_weights + 0.4 * (ratios - ratios.mean())
        return True


@pytest.mark.filterwarnings("ignore::probtorch.infer.ImportanceWarning")
@pytest.mark.parametrize("wrong", [False, True])
def test_few_particles_on_few_temperatures_have_no_bias_and_wrong_weights_have(wrong, monkeypatch):
    """Three temperatures and one poor move at each: weights take the ways as they are."""
    if wrong:
        monkeypatch.setattr(ais, "_Way", Late)
    mean, error = mean_ratio(50, temperatures=[0.2, 0.6, 1.0])
    assert error < 0.1
    assert (abs(mean - 1.0) < SIGMAS * error) != wrong


@pytest.mark.filterwarnings("ignore::probtorch.infer.ImportanceWarning")
def test_draws_depend_on_the_seed_and_not_on_the_number_of_threads():
    found = [run(Slice(line), 150, num_threads=n, num_steps=4).run(X, Y) for n in (1, 3)]
    np.testing.assert_array_equal(found[0].log_weights, found[1].log_weights)
    np.testing.assert_array_equal(found[0]["a"], found[1]["a"])
    other = run(Slice(line), 150, seed=2, num_steps=4).run(X, Y)
    assert (other.log_weights != found[0].log_weights).any()


def test_a_density_begins_at_a_reference():
    target = Target.from_density(lambda q: -0.5 * ((q - 3.0) ** 2).sum() + 1.5, dim=2)
    start = dist.Normal(0.0, 2.0).expand([2]).to_event(1)
    found = run(RandomWalk(target), reference=start).run()
    exact = 1.5 + np.log(2.0 * np.pi)
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error < 0.5


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda: AIS(line), "AIS.NUTS"),
        (lambda: run(RandomWalk(line), 1), "num_particles"),
        (lambda: run(RandomWalk(line), temperatures=[0.5]), "the last one 1"),
        (lambda: run(RandomWalk(line), ess_threshold=1.5), "ess_threshold"),
        (lambda: run(RandomWalk(line)).run(X, Y, max_seconds=1e-9), "time for"),
    ],
)
def test_what_cannot_be_run_is_refused(make, word):
    with pytest.raises((ArgumentError, InferenceError), match=word):
        make()
