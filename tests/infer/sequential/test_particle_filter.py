"""`ParticleFilter` against the exact normal law of a linear series, and against enumeration."""

import itertools

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import ParticleFilter

# Seeds are fixed; of a sound estimate one in 15,000 is further from the truth than this many
# standard errors.
SIGMAS = 4.0
TIMES, PHI, Q, R = 6, 0.8, 0.7, 0.5
# The states of a stationary-free AR(1) that begins at N(0, 1), all at once.
LAGS = np.linalg.inv(np.eye(TIMES) - PHI * np.eye(TIMES, k=-1))
PRIOR = LAGS @ np.diag([1.0] + [Q**2] * (TIMES - 1)) @ LAGS.T
SERIES = np.random.default_rng(3).multivariate_normal(np.zeros(TIMES), PRIOR + R**2 * np.eye(TIMES))
EVIDENCE = stats.multivariate_normal(np.zeros(TIMES), PRIOR + R**2 * np.eye(TIMES)).logpdf(SERIES)
GAIN = PRIOR @ np.linalg.inv(PRIOR + R**2 * np.eye(TIMES))
SMOOTHED, SPREAD = GAIN @ SERIES, np.sqrt(np.diag(PRIOR - GAIN @ PRIOR))


def linear(num_particles=1500, **options):
    return ParticleFilter(
        dist.Normal(0.0, 1.0),
        lambda x, t: dist.Normal(PHI * x, Q),
        lambda x, t: dist.Normal(x, R),
        num_particles,
        **options,
    )


def guided(x, y, t):
    """The exact law of the next state given one and the observation."""
    mean, var = (0.0, 1.0) if x is None else (PHI * x, Q**2)
    precision = 1.0 / var + 1.0 / R**2
    return dist.Normal((mean / var + y / R**2) / precision, precision**-0.5)


@pytest.mark.parametrize(
    "options",
    [{}, {"resampling": "multinomial", "ess_threshold": 1.0}, {"proposal": guided}],
    ids=["bootstrap", "always multinomial", "guided"],
)
def test_filter_agrees_with_the_exact_normal_law(options):
    found = linear(seed=1, **options).run(SERIES)
    assert abs(found.log_evidence - EVIDENCE) < SIGMAS * found.log_evidence_error
    assert 0.0 < found.log_evidence_error < 0.25
    for t in range(TIMES):
        seen = PRIOR[: t + 1, : t + 1]
        gain = seen @ np.linalg.inv(seen + R**2 * np.eye(t + 1))
        mean, sd = gain[-1] @ SERIES[: t + 1], np.sqrt((seen - gain @ seen)[-1, -1])
        assert abs(found.mean[t] - mean) < SIGMAS * sd / np.sqrt(300)
        assert found.std[t] == pytest.approx(sd, rel=0.15)
    np.testing.assert_allclose(found.increments.sum(), found.log_evidence)


def test_trajectories_and_smoothing_have_the_law_given_all_observations():
    found = linear(seed=2).run(SERIES)
    for draws in (found.smooth(400, seed=0), found.trajectories(400, seed=0)):
        assert draws.shape == (400, TIMES)
        assert (np.abs(draws.mean(axis=0) - SMOOTHED) < SIGMAS * SPREAD / np.sqrt(150)).all()
        np.testing.assert_allclose(draws.std(axis=0), SPREAD, rtol=0.25)
    # Backward simulation keeps many states at the first time, where lines of descent have merged.
    first = [np.unique(d[:, 0]).size for d in (found.smooth(400), found.trajectories(400))]
    assert first[0] > first[1]


def test_kept_trajectory_makes_a_chain_with_the_right_law():
    """Particle Gibbs with ancestor sampling; the first time mixes slowest."""
    flt, rng = linear(20), Generator(4)
    x, draws = np.zeros(TIMES), []
    for _ in range(160):
        x = flt.run(SERIES, x, seed=rng).trajectories(1, seed=rng)[0]
        draws.append(x)
    draws = np.array(draws[10:])
    # Neighbours are correlated: 15 of 150 count at the first time, and more later.
    assert (np.abs(draws.mean(axis=0) - SMOOTHED) < SIGMAS * SPREAD / np.sqrt(15)).all()
    np.testing.assert_allclose(draws.std(axis=0), SPREAD, rtol=0.45)


def test_several_runs_tell_the_error_of_the_evidence():
    value, error = linear(100, seed=0).evidence(SERIES, 20)
    assert abs(value - EVIDENCE) < SIGMAS * error and 0.0 < error < 0.2


def test_discrete_states_agree_with_enumeration():
    switch = np.array([[0.9, 0.1], [0.3, 0.7]])
    locs = np.array([-1.0, 1.0])
    y = np.array([-0.5, 0.8, np.nan, 1.4])
    rows, levels = probtorch.tensor(switch), probtorch.tensor(locs)
    hmm = ParticleFilter(
        lambda: dist.Categorical(probs=probtorch.tensor([0.6, 0.4])),
        lambda z, t: dist.Categorical(probs=rows[z]),
        lambda z, t: dist.Normal(levels[z], 0.7),
        1000,
        seed=5,
    )
    total, ones = 0.0, 0.0
    for path in itertools.product((0, 1), repeat=4):
        p = (0.6, 0.4)[path[0]] * np.prod([switch[a, b] for a, b in itertools.pairwise(path)])
        p *= np.prod([stats.norm.pdf(v, locs[z], 0.7) for v, z in zip(y, path) if v == v])
        total, ones = total + p, ones + p * path[1]
    found = hmm.run(y)
    assert abs(found.log_evidence - np.log(total)) < SIGMAS * found.log_evidence_error
    share = found.smooth(1000)[:, 1].mean()
    assert abs(share - ones / total) < SIGMAS * 0.5 / np.sqrt(400)
    assert found.increments[2] == pytest.approx(0.0, abs=1e-12)


def test_vector_states_and_a_local_level_with_drift():
    y = np.array([0.1, 0.9, 2.2])
    move = probtorch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=probtorch.float64)
    found = ParticleFilter(
        lambda: dist.Normal(probtorch.zeros(2), 1.0).to_event(1),
        lambda x, t: dist.Normal(x @ move.mT, 0.3).to_event(1),
        lambda x, t: dist.Normal(x[:, 0], 0.5),
        1500,
        seed=6,
    ).run(y)
    assert found.mean.shape == (3, 2) and found.smooth(7).shape == (7, 3, 2)
    a, cov, laws = move.numpy(), np.zeros((6, 6)), [np.eye(2)]
    for _ in range(2):
        laws.append(a @ laws[-1] @ a.T + 0.09 * np.eye(2))
    for s, t in itertools.product(range(3), repeat=2):
        early, late = min(s, t), max(s, t)
        block = np.linalg.matrix_power(a, late - early) @ laws[early]
        cov[2 * s : 2 * s + 2, 2 * t : 2 * t + 2] = block if s >= t else block.T
    exact = stats.multivariate_normal(np.zeros(3), cov[::2, ::2] + 0.25 * np.eye(3)).logpdf(y)
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error


def test_evidence_agrees_with_the_kalman_filter_of_the_library():
    hmm = dist.GaussianHMM(
        dist.MultivariateNormal(probtorch.zeros(1), probtorch.eye(1)),
        probtorch.tensor([[PHI]]),
        dist.MultivariateNormal(probtorch.zeros(1), Q**2 * probtorch.eye(1)),
        probtorch.eye(1),
        dist.MultivariateNormal(probtorch.zeros(1), R**2 * probtorch.eye(1)),
        duration=12,
    )
    series = hmm.sample(generator=Generator(1))
    # There the state moves once before it is first observed.
    walk = linear(1500, seed=7)
    walk.initial = dist.Normal(0.0, (PHI**2 + Q**2) ** 0.5)
    found = walk.run(series[:, 0])
    exact = hmm.log_prob(series).item()
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error + 1e-4


def test_bad_models_are_refused():
    with pytest.raises(ShapeError, match="transition at time 1"):
        ParticleFilter(
            lambda: dist.Normal(0.0, 1.0),
            lambda x, t: dist.Normal(probtorch.zeros(3), 1.0),
            lambda x, t: dist.Normal(x, 1.0),
            20,
        ).run([0.0, 0.0])
    with pytest.raises(ShapeError, match="initial"):
        ParticleFilter(lambda: dist.Normal(probtorch.zeros(3), 1.0), guided, guided, 20).run([0.0])
    with pytest.raises(InferenceError, match="weights at time 0"):
        ParticleFilter(
            lambda: dist.Normal(0.0, 1.0), guided, lambda x, t: dist.Uniform(x, x + 1e-9), 20
        ).run([50.0])
    with pytest.raises(ShapeError, match="at least one time"):
        linear(20).run(np.zeros(0))
    with pytest.raises(ShapeError, match="a state for each of 6 times"):
        linear(20).run(SERIES, np.zeros(3))
    with pytest.raises(ArgumentError, match="transition"):
        ParticleFilter(dist.Normal(0.0, 1.0), dist.Normal(0.0, 1.0), guided)
