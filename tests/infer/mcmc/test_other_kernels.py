"""Kernels beside HMC and its kin, from their warm-up to posteriors whose moments are known."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import AIES, MALA, MCMC, RandomWalk, Slice, Target

X = np.array([0.2, -1.0, 1.7, 3.1, 0.4])
Y = 1.0 + 0.5 * X + np.array([0.3, -0.1, 0.2, 0.0, -0.4])
# Prior precision 1 on both weights, noise 0.5.
DESIGN = np.stack([np.ones(5), X], axis=1)
COVARIANCE = np.linalg.inv(np.eye(2) + DESIGN.T @ DESIGN / 0.25)
MEAN = COVARIANCE @ DESIGN.T @ Y / 0.25


def line(x, y):
    a = probtorch.sample("a", dist.Normal(0.0, 1.0))
    b = probtorch.sample("b", dist.Normal(0.0, 1.0))
    with probtorch.plate("data", 5):
        probtorch.sample("y", dist.Normal(a + b * x, 0.5), obs=y)


ARGUMENTS = probtorch.tensor(X), probtorch.tensor(Y)
KERNELS = {
    "random walk": (RandomWalk, 8000),
    "random walk, variances": (lambda m: RandomWalk(m, metric="diag"), 8000),
    "mala": (MALA, 3000),
    "slice": (Slice, 2000),
    "affine-invariant ensemble": (lambda m: AIES(m, walkers=8), 5000),
}


def run(kernel, num_samples, **settings):
    settings = {"num_chains": 4, "seed": 2, "progress_bar": False, **settings}
    return MCMC(kernel, num_samples, 500, **settings)


@pytest.mark.parametrize("name", KERNELS)
def test_posterior_of_a_line_has_its_mean_and_covariance(name):
    """Five scores below 5: by chance one of them is above in 3 of a million runs."""
    make, num_samples = KERNELS[name]
    mcmc = run(make(line), num_samples)
    draws = mcmc.run(*ARGUMENTS).posterior  # and no warning: diagnose is content
    a, b = ((draws[n] - m) / s for n, m, s in zip("ab", MEAN, np.sqrt(np.diag(COVARIANCE))))
    r = COVARIANCE[0, 1] / np.sqrt(COVARIANCE.diagonal().prod())
    for values, sd in (
        (a, 1.0),
        (b, 1.0),
        (a**2 - 1.0, np.sqrt(2.0)),
        (b**2 - 1.0, np.sqrt(2.0)),
        (a * b - r, np.sqrt(1.0 + r**2)),
    ):
        assert ess_mean(values) > 400
        assert abs(values.mean()) < 5.0 * sd / np.sqrt(ess_mean(values))


@pytest.mark.parametrize("name, target", [("random walk", 0.234), ("mala", 0.574)])
def test_warmup_finds_the_acceptance_and_the_covariance(name, target):
    scale = np.array([1e-3, 1.0, 50.0])
    correlated = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    precision = probtorch.tensor(np.linalg.inv(correlated * np.outer(scale, scale)))
    make, _ = KERNELS[name]
    mcmc = run(make(Target.from_density(lambda q: -0.5 * (q * (precision @ q)).sum(), 3)), 3000)
    draws = mcmc.run()
    assert abs(draws.sample_stats["acceptance_rate"].mean() - target) < 0.1
    for chain in mcmc.adapted:
        found = chain.inverse_mass() / np.outer(scale, scale)
        assert 0.3 < found.diagonal().min() and found.diagonal().max() < 3.0
        assert found[0, 1] / np.sqrt(found[0, 0] * found[1, 1]) > 0.6


def test_walkers_are_chains_of_the_result():
    mcmc = run(AIES(line, walkers=6), 30, num_chains=2, keep_warmup=True, thinning=3)
    mcmc.diagnose = False
    draws = mcmc.run(*ARGUMENTS)
    assert draws.posterior["a"].shape == (12, 10)
    assert draws.sample_stats["acceptance_rate"].shape == (12, 10)
    assert (draws.sample_stats["n_steps"] == 3).all()
    assert draws.groups["warmup_posterior"]["a"].shape == (12, 500)
    # A walker moves or stays; it does not jump to where another one was.
    whole = run(AIES(line, walkers=6), 30, num_chains=2)
    whole.diagnose = False
    np.testing.assert_array_equal(whole.run(*ARGUMENTS).positions[:, 2::3], draws.positions)
    stays = np.diff(whole.draws.posterior["a"], axis=1) == 0.0
    assert 0.1 < stays.mean() < 0.9
    assert mcmc.more(3).num_draws == 11
    assert mcmc.adapted == []


@pytest.mark.parametrize("name", KERNELS)
def test_runs_depend_on_the_seed_alone_and_can_be_gone_on_with(name, tmp_path):
    make, _ = KERNELS[name]
    whole, threads, first = (
        run(make(line), n, num_chains=2, num_threads=t) for n, t in ((60, 1), (60, 2), (40, 2))
    )
    for mcmc in (whole, threads, first):
        mcmc.diagnose = False
        mcmc.run(*ARGUMENTS)
    np.testing.assert_array_equal(whole.draws.positions, threads.draws.positions)
    state = first.state_dict()
    np.testing.assert_array_equal(first.more(20).positions, whole.draws.positions)
    later = run(make(line), 20, num_chains=2)
    later.diagnose = False
    later.load_state_dict(state)
    np.testing.assert_array_equal(later.run(*ARGUMENTS).positions, whole.draws.positions[:, 40:])
    saved = run(make(line), 60, num_chains=2)
    saved.diagnose = False
    for _ in range(2):  # the second one finds the end of the first
        saved.run(*ARGUMENTS, checkpoint=tmp_path)
        np.testing.assert_array_equal(saved.draws.positions, whole.draws.positions)


def test_what_a_kernel_does_not_tell_is_done_without():
    mcmc = run(Slice(line), 100)
    mcmc.diagnose = False
    draws = mcmc.run(*ARGUMENTS, extra_fields=("potential_energy", "num_steps"))
    assert set(draws.sample_stats) == {"lp", "n_steps"}
    assert set(mcmc.get_extra_fields()) == {"potential_energy", "num_steps"}
    assert set(mcmc.diagnostics()) == {"a", "b"}
    with pytest.raises(ArgumentError, match="diverging"):
        mcmc.run(*ARGUMENTS, extra_fields=("diverging",))


def test_slice_sampling_copes_with_jumps():
    """A density of 2 on (0, 1) and 1 on (1, 3): a half of it in each."""
    inf = probtorch.tensor(-np.inf, dtype=probtorch.float64)

    def steps(q):
        x = q[0]
        inside = (x > 0.0) & (x < 3.0)
        return probtorch.where(inside, probtorch.where(x < 1.0, np.log(2.0), 0.0), inf)

    mcmc = run(Slice(Target.from_density(steps, 1)), 3000)
    x = mcmc.run(init_params=np.array([0.5])).posterior["x"]
    below = (x < 1.0).astype(float)
    assert abs(below.mean() - 0.5) < 5.0 * 0.5 / np.sqrt(ess_mean(below))
    assert x.min() > 0.0 and x.max() < 3.0


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: RandomWalk(line, metric="low_rank"), ["RandomWalk(metric=...)", "gradients"]),
        (lambda: RandomWalk(line, find_heuristic_step_size=True), ["leave it out"]),
        (lambda: MALA(line, target_accept_prob=1.5), ["MALA(target_accept_prob=...)", "(0, 1)"]),
        (lambda: MALA(), ["MALA", "one of model and potential_fn", "neither"]),
        (lambda: Slice(line, width=-1.0), ["Slice(width=...)", "-1.0"]),
        (lambda: Slice(line, max_treedepth=3), ["Slice(max_treedepth=...)", "a name among"]),
        (lambda: AIES(line, walkers=1), ["AIES(walkers=...)", "at least 2"]),
        (lambda: run(AIES(line, walkers=3), 9).run(*ARGUMENTS), ["at least 4", "walkers=4"]),
    ],
)
def test_settings_that_do_not_fit_are_told_with_a_cure(make, words):
    with pytest.raises(ArgumentError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_walkers_that_start_in_one_place_are_refused():
    mcmc = run(AIES(line, walkers=8), 10)
    with pytest.raises(InferenceError, match="span"):
        mcmc.run(*ARGUMENTS, init_params={"a": 0.0, "b": 0.0})
