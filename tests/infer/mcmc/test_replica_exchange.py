"""Replica exchange: temperatures keep their laws, modes get their shares, whatever the kernel."""

import itertools

import numpy as np
import pytest

import probtorch
from probtorch.compiler.density import NativeDensity
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import replace
from probtorch.diagnostics.checks import diagnose
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError
from probtorch.infer import AIES, GHMC, HMC, MCMC, NUTS, RandomWalk, ReplicaExchange, Slice, Target
from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, key_of
from probtorch.infer.mcmc.starts import resumed_chains
from tests.infer.mcmc.targets import handle

POWERS = (1.0, 0.4, 0.15)


CENTRE = probtorch.tensor([4.0, 0.0], dtype=probtorch.float64)


def two(q):
    """3/10 around -4, the rest around 4, in the first of two dims."""
    left, right = (-0.5 * ((q - c) ** 2).sum() for c in (-CENTRE, CENTRE))
    return probtorch.logaddexp(np.log(0.3) + left, np.log(0.7) + right)


TARGET = Target.from_density(two, dim=2)
KERNELS = {
    "hmc": (lambda: HMC(TARGET, num_steps=4, step_size=0.7), 2000),
    "nuts": (lambda: NUTS(TARGET), 1000),
    "slice": (lambda: Slice(TARGET), 1500),
    "random walk": (lambda: RandomWalk(TARGET), 5000),
    "ghmc": (lambda: GHMC(TARGET), 5000),
}


def run(kernel, num_samples, **settings):
    settings = {"num_chains": 4, "seed": 5, "progress_bar": False, **settings}
    mcmc = MCMC(kernel, num_samples, 300, **settings)
    mcmc.diagnose = False
    return mcmc


@pytest.mark.parametrize("make", [KERNELS["hmc"][0], KERNELS["ghmc"][0]])
def test_every_temperature_keeps_its_law(make):
    """1500 exact draws of each power stay exact; one of 18 scores beyond 5: by chance 1e-5."""
    density = NativeDensity(lambda q: -0.5 * (q * q).sum() - 0.3 * q[0] * q[1], 2).context()
    precision = np.array([[1.0, 0.3], [0.3, 1.0]])
    covariance, powers = np.linalg.inv(precision), np.array(POWERS)
    made = ReplicaExchange(make(), inverse_temperatures=POWERS)
    values = {"metric": DiagonalMetric.unit(2), "step_size": wrap(np.array(0.7))}
    kernel = made.in_use(handle(density), **values)
    fresh = Chain(kernel, kernel.init(wrap(np.zeros(2))), key_of(Generator(1)), made.warmup.tuner)
    runner, ends = ChunkRunner(fresh), []
    starts = np.random.default_rng(4).multivariate_normal(np.zeros(2), covariance, (1500, 3))
    starts /= np.sqrt(powers)[:, None]
    for i, q in enumerate(starts):
        values = -0.5 * powers * np.einsum("ri,ij,rj->r", q, precision, q)
        grads = -powers[:, None] * (q @ precision)
        replicas = replace(
            fresh.state.replicas, position=wrap(q), logdensity=wrap(values), grad=wrap(grads)
        )
        state = replace(fresh.state, replicas=replicas)
        runner.chain = replace(fresh, state=state, key=Key(fresh.key.seed, wrap(np.array(i))))
        runner.run(3)
        ends.append(runner.chain.state.replicas.position.array.copy())
    ends = np.array(ends) * np.sqrt(powers)[:, None]
    n, sd = len(ends), np.sqrt(np.diag(covariance))
    assert np.abs(ends.mean(axis=0) / sd * np.sqrt(n)).max() < 5.0
    assert np.abs((ends.var(axis=0) / sd**2 - 1.0) * np.sqrt(n / 2.0)).max() < 5.0
    r = covariance[0, 1] / sd.prod()
    for k in range(3):
        found = np.corrcoef(ends[:, k].T)[0, 1]
        assert abs(np.arctanh(found) - np.arctanh(r)) * np.sqrt(n - 3.0) < 5.0


@pytest.mark.parametrize(
    "name", [n if n == "hmc" else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS]
)
def test_modes_that_no_step_connects_have_their_shares(name):
    """Share, mean of the second coordinate and its square: three scores below 5."""
    make, num_samples = KERNELS[name]
    kernel = ReplicaExchange(make(), inverse_temperatures=[1.0, 0.5, 0.25, 0.1, 0.04])
    draws = run(kernel, num_samples).run()
    x, y = np.moveaxis(draws.posterior["x"], -1, 0)
    left = (x < 0.0).astype(float)
    for values, mean, sd in ((left, 0.3, np.sqrt(0.21)), (y, 0.0, 1.0), (y**2, 1.0, np.sqrt(2.0))):
        assert ess_mean(values) > 150
        assert abs(values.mean() - mean) < 5.0 * sd / np.sqrt(ess_mean(values))
    assert 0.3 < draws.sample_stats["swap_rate"].mean() < 0.8
    assert not [f for f in diagnose(draws) if f.kind == "replicas"]
    # What is at 1 began everywhere.
    assert set(np.unique(draws.sample_stats["replica"])) == set(range(5))


UNEVEN = (1.0, 0.95, 0.9, 0.03)


def pair_rates(mcmc):
    """How often neighbours would swap, by chain, in 1000 further transitions."""
    rates = []
    for chain, context in resumed_chains(TARGET, mcmc.last_state, 4):
        runner, seen = ChunkRunner(chain), []
        for _ in range(10):
            seen.append(runner.run(100)[2].pair_probs[:, :-1].mean(axis=0))
        rates.append(np.mean(seen, axis=0))
        context.raise_error()
    return np.array(rates)


@pytest.mark.parametrize("name", ["hmc", pytest.param("slice", marks=pytest.mark.slow)])
def test_warm_up_makes_neighbours_swap_as_often(name):
    """The share of a mode stays right: a score below 5."""
    ladders = {}
    for adapted in (False, True):
        kernel = ReplicaExchange(
            KERNELS[name][0](), inverse_temperatures=UNEVEN, adapt_temperatures=adapted
        )
        mcmc = run(kernel, 1500)
        draws = mcmc.run()
        ladders[adapted] = pair_rates(mcmc).mean(axis=0), draws
    given, found = ladders[False][0], ladders[True][0]
    assert np.ptp(given) > 0.7
    assert np.ptp(found) < 0.12
    draws = ladders[True][1]
    left = (draws.posterior["x"][..., 0] < 0.0).astype(float)
    assert ess_mean(left) > 150
    assert abs(left.mean() - 0.3) < 5.0 * np.sqrt(0.21 / ess_mean(left))
    for powers in draws.attrs["adapted_inverse_temperatures"]:
        assert powers[0] == 1.0 and powers[-1] == pytest.approx(0.03)
        assert all(a > b for a, b in itertools.pairwise(powers))
    assert "adapted_inverse_temperatures" not in ladders[False][1].attrs


def test_temperatures_that_are_given_stay():
    kernel = ReplicaExchange(KERNELS["hmc"][0](), inverse_temperatures=UNEVEN)
    mcmc = run(kernel, 10)
    mcmc.run()
    for chain in mcmc.last_state:
        np.testing.assert_array_equal(chain.kernel.powers.array, UNEVEN)


@pytest.mark.parametrize("name, adapted", [("hmc", False), ("ghmc", False), ("hmc", True)])
def test_runs_can_be_gone_on_with_all_replicas(name, adapted, tmp_path):
    make, _ = KERNELS[name]
    powers = [1.0, 0.3, 0.1, 0.05, 0.02]
    kernel = ReplicaExchange(make(), inverse_temperatures=powers, adapt_temperatures=adapted)
    whole, first, later = (run(kernel, n, num_chains=2) for n in (60, 40, 20))
    expected = whole.run().positions
    first.run()
    state = first.state_dict()
    np.testing.assert_array_equal(first.more(20).positions, expected)
    later.load_state_dict(state)
    np.testing.assert_array_equal(later.run().positions, expected[:, 40:])
    for _ in range(2):
        saved = run(kernel, 60, num_chains=2)
        np.testing.assert_array_equal(saved.run(checkpoint=tmp_path).positions, expected)


def test_replicas_that_do_not_travel_are_told_of():
    mcmc = run(ReplicaExchange(KERNELS["hmc"][0](), inverse_temperatures=[1.0, 1e-5]), 150)
    mcmc.run()
    (finding,) = [f for f in diagnose(mcmc.draws) if f.kind == "replicas"]
    assert "1 of them never were" in finding.got
    assert "inverse_temperatures" in finding.fix


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ReplicaExchange(AIES(TARGET)), ["ReplicaExchange(kernel)", "with a metric"]),
        (lambda: ReplicaExchange(two), ["ReplicaExchange(NUTS(model))"]),
        (lambda: ReplicaExchange(HMC(TARGET), inverse_temperatures=[1.0, 0.0]), ["above 0"]),
        (lambda: ReplicaExchange(HMC(TARGET), inverse_temperatures=[0.9, 0.5]), ["from 1.0"]),
        (lambda: ReplicaExchange(HMC(TARGET), inverse_temperatures=2), ["got", "2"]),
    ],
)
def test_settings_that_do_not_fit_are_told_with_a_cure(make, words):
    with pytest.raises(ArgumentError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
