"""A chain that stands still is named while it runs, and not told to run longer."""

import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import sample, tensor
from probtorch.diagnostics import diagnose
from probtorch.diagnostics.findings import ConvergenceWarning
from probtorch.infer import HMC, MCMC, NUTS
from probtorch.infer.mcmc.standstill import Standstill
from probtorch.ode import odeint


def rough(q):
    """A potential whose gradient knows nothing of its jumps."""
    q = q["q"]
    return 5e3 * (q**2).sum() - 3.0 * ((q * 1e7).floor() % 2.0).sum()


START = {"q": tensor(np.array([0.3, 0.2]))}


def told(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [w for w in found if issubclass(w.category, ConvergenceWarning)]


def test_nuts_that_stands_still_says_so_at_once_and_is_not_told_to_run_longer():
    mcmc = MCMC(
        NUTS(potential_fn=rough),
        num_samples=30,
        num_warmup=70,
        num_chains=1,
        seed=0,
        progress_bar=False,
        initial_params=START,
    )
    found = told(mcmc.run)
    first, last = str(found[0].message), str(found[-1].message)
    assert first.startswith("chain 0 stands still, after ")
    assert "in a row" in first
    assert found[0].filename == __file__
    assert last.startswith("chain 0 never moved from where it started")
    assert not any("run longer" in str(w.message) for w in found)
    assert [f.kind for f in diagnose(mcmc.draws, min_chains=1)].count("stuck") == 1


def test_hmc_whose_proposals_are_all_rejected_says_so():
    kernel = HMC(potential_fn=rough, step_size=10.0, num_steps=3, adapt_step_size=False)
    mcmc = MCMC(
        kernel,
        num_samples=100,
        num_warmup=0,
        num_chains=1,
        seed=0,
        progress_bar=False,
        initial_params=START,
    )
    found = [str(w.message) for w in told(mcmc.run)]
    standing = [text for text in found if "proposals in a row were rejected" in text]
    # So short a run is over when it is told, and cannot be ended.
    assert standing and "fix:      start elsewhere" in standing[0]


def test_a_chain_that_moves_is_left_alone():
    still = Standstill()
    rng = np.random.default_rng(0)
    told = {
        "step_size": np.full(40, 1e-3),
        "tree_depth": np.full(40, 10),
        "reached_max_treedepth": np.ones(40, bool),
    }.get
    for _ in range(5):  # long trajectories of small steps
        still.update(rng.normal(size=(40, 2)), told)
        assert not still.how
    kept = np.repeat(rng.normal(size=(4, 2)), 40, axis=0).reshape(4, 40, 2)
    for positions in kept:  # 40 rejections, then it moves
        still.update(positions, told)
        assert not still.how
    still.update(kept[-1], told)
    assert "proposals in a row" in still.how


def test_draws_of_conditionals_that_come_out_the_same_are_not_rejections():
    place, rates = np.ones((40, 2)), np.ones(40)
    still = Standstill()
    for _ in range(5):
        still.update(place, {"acceptance_rate": rates}.get)
    assert not still.how
    still.update(place, {"acceptance_rate": rates * 0.0}.get)
    assert not still.how  # 40 of them
    still.update(place, {"acceptance_rate": rates * 0.0}.get)
    assert "80 proposals in a row" in still.how


HARES = np.array(
    [[30, 4], [47.2, 6.1], [70.2, 9.8], [77.4, 35.2], [36.3, 59.4], [20.6, 41.7], [18.1, 19]]
    + [[21.4, 13], [22, 8.3], [25.4, 9.1], [27.1, 7.4], [40.3, 8], [57, 12.3], [76.6, 19.5]]
    + [[52.3, 45.7], [19.5, 51.1], [11.2, 29.7], [7.6, 15.8], [14.6, 9.7], [16.2, 10.1]]
    + [[24.7, 8.6]]
)


@pytest.mark.slow
def test_hares_that_died_out_do_not_hold_a_chain_without_a_word():
    """Far below the tolerance of the solver, log(z) is rough: step sizes of 1e-6 follow from it."""

    def model(y):
        start = np.log([10.0, 10.0])
        z0 = sample("z_init", dist.LogNormal(tensor(start), 1.0).to_event(1))
        loc, scale = np.array([1.0, 0.05, 1.0, 0.05]), np.array([0.2, 0.01, 0.2, 0.01])
        prior = dist.TruncatedNormal(tensor(loc), tensor(scale), low=0.0)
        a, b, c, d = sample("theta", prior.to_event(1)).unbind()
        sigma = sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))

        def slope(t, z):
            return probtorch.stack([(a - b * z[1]) * z[0], (-c + d * z[0]) * z[1]])

        z = odeint(slope, z0, tensor(np.arange(21.0)), rtol=1e-6, atol=1e-5)
        sample("y", dist.LogNormal(z.log(), sigma).to_event(2), obs=y)

    mcmc = MCMC(
        NUTS(model), num_samples=60, num_warmup=60, num_chains=1, seed=0, progress_bar=False
    )
    found = [str(w.message) for w in told(lambda: mcmc.run(HARES))]
    spread = np.asarray(mcmc.get_samples()["theta"]).std(0)
    stood = any(text.startswith("chain 0 stands still") for text in found)
    assert stood or spread.max() > 1e-3, found
    assert not (stood and any("run longer" in text for text in found))
