"""`ParticleGibbs` on models whose sites change, against enumeration and conjugate posteriors."""

import itertools

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.effects import deterministic, handlers, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import ParticleGibbs

# Seeds are fixed; of a sound estimate one in 15,000 is further from the truth than this many
# standard errors.
SIGMAS = 4.0


def trials(y):
    """Another number of sites in every run."""
    n = 0
    while sample(f"c{n}", dist.Bernoulli(0.5)).item() == 1.0:
        n += 1
    deterministic("n", probtorch.tensor(float(n)))
    sample("y", dist.Normal(float(n), 1.0), obs=y)


def branches(y):
    """Either a level that is drawn, or one that is known; the number of observations differs."""
    if sample("free", dist.Bernoulli(0.3)).item():
        level = sample("level", dist.Normal(0.0, 1.0))
        sample("first", dist.Normal(level, 1.0), obs=y[0])
        sample("second", dist.Normal(level, 1.0), obs=y[1])
    else:
        sample("both", dist.Normal(probtorch.tensor([0.5, 0.5]), 1.0).to_event(1), obs=y)


def test_number_of_trials_agrees_with_enumeration():
    found = ParticleGibbs(trials, 5, 120, 5, seed=0).run(probtorch.tensor(2.0))
    n = np.arange(60)
    joint = 0.5 ** (n + 1) * stats.norm.pdf(2.0, n)
    mean = (n * joint).sum() / joint.sum()
    sd = np.sqrt((n**2 * joint).sum() / joint.sum() - mean**2)
    # A fifth of the draws and more stay where they were: half count.
    assert abs(found["n"].mean() - mean) < SIGMAS * sd / np.sqrt(60)
    assert found.expectation(lambda run: sum(name.startswith("c") for name in run) - 1) == (
        pytest.approx(found["n"].mean())
    )
    assert 0.5 < found.sample_stats["moved"].mean() < 1.0


def test_branches_with_other_sites_and_observations_agree_with_the_closed_form():
    y = np.array([1.5, 2.0])
    given_free = stats.multivariate_normal(np.zeros(2), np.eye(2) + 1.0).pdf(y)
    given_not = stats.norm.pdf(y, 0.5).prod()
    share = 0.3 * given_free / (0.3 * given_free + 0.7 * given_not)
    found = ParticleGibbs(branches, 6, 120, 5, seed=1).run(probtorch.tensor(y))
    assert abs(found["free"].mean() - share) < SIGMAS * 0.5 / np.sqrt(50)
    levels = [run["level"] for run in found.values[0] if "level" in run]
    assert "level" not in found and len(levels) == found["free"].sum()
    # The law of the level in its branch is N(sum / 3, 1 / 3).
    assert abs(np.mean(levels) - y.sum() / 3) < SIGMAS * np.sqrt(1 / 3 / (0.3 * len(levels)))
    run = found.values[0][-1]
    lp = np.log(0.3 if run["free"] else 0.7) + (
        stats.norm.logpdf(run["level"]) + stats.norm.logpdf(y, run["level"]).sum()
        if run["free"]
        else stats.norm.logpdf(y, 0.5).sum()
    )
    assert found.sample_stats["lp"][0, -1] == pytest.approx(lp)


@pytest.mark.slow
def test_hidden_chain_agrees_with_enumeration():
    switch, locs, y = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([-1.0, 1.0]), [0.6, -0.3, 1.2]

    def chain(y):
        z = 0
        for t in range(3):
            z = int(sample(f"z{t}", dist.Categorical(probs=probtorch.tensor(switch[z]))).item())
            sample(f"y{t}", dist.Normal(locs[z], 1.0), obs=y[t])

    found = ParticleGibbs(chain, 4, 500, 20, num_chains=2, seed=2).run(probtorch.tensor(y))
    joint = np.zeros((2, 2, 2))
    for path in itertools.product((0, 1), repeat=3):
        steps = itertools.pairwise((0, *path))
        joint[path] = np.prod([switch[a, b] for a, b in steps])
        joint[path] *= stats.norm.pdf(y, locs[list(path)]).prod()
    joint /= joint.sum()
    for t in range(3):
        share = joint.take(1, axis=t).sum()
        assert found[f"z{t}"].shape == (2, 500)
        # Two thirds of the draws may be repetitions.
        assert abs(found[f"z{t}"].mean() - share) < SIGMAS * 0.5 / np.sqrt(330)


def test_handlers_around_count_and_traces_see_nothing():
    gibbs = ParticleGibbs(trials, 3, 5, 0, seed=0)
    with handlers.trace() as seen, handlers.condition(data={"c0": probtorch.tensor(0.0)}):
        found = gibbs.run(probtorch.tensor(2.0))
    assert not list(seen) and (found["n"] == 0.0).all()


def test_draws_depend_on_the_seed_alone():
    one, same, other = (
        ParticleGibbs(trials, 3, 10, 0, seed=s).run(probtorch.tensor(2.0))["n"] for s in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_what_cannot_be_run_is_refused():
    def impossible(y):
        x = sample("x", dist.Normal(0.0, 1.0))
        sample("y", dist.Uniform(x, x + 1e-9), obs=y)

    with pytest.raises(InferenceError, match="no run of the model"):
        ParticleGibbs(impossible, 3, 5).run(probtorch.tensor(9.0))

    def twice(y):
        sample("x", dist.Normal(0.0, 1.0))
        sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="'x'"):
        ParticleGibbs(twice, 3, 5).run(probtorch.tensor(9.0))

    def rows(y):
        with plate("row", 4, subsample_size=2):
            sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(InferenceError, match="'row' draws a subsample"):
        ParticleGibbs(rows, 3, 5).run(probtorch.tensor(9.0))
    with pytest.raises(ArgumentError, match="num_particles"):
        ParticleGibbs(trials, 1)
