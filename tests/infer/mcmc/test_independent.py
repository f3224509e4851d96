"""Proposals of `IndependentMH`: from draws, from guides, and as they are stated."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ShapeError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    IndependentMH,
    LaplaceApproximation,
    Pathfinder,
    Trace_ELBO,
)
from probtorch.infer.autoguide import AutoMultivariateNormal
from probtorch.optim import Adam
from tests.infer.mcmc.test_other_kernels import ARGUMENTS, COVARIANCE, MEAN, line


def guide_run():
    guide = AutoMultivariateNormal(line)
    svi = SVI(line, guide, Adam({"lr": 0.01}), Trace_ELBO(num_particles=20), seed=0)
    return svi.run(1500, *ARGUMENTS, progress_bar=False)


def some_draws():
    mcmc = MCMC(NUTS(line), 500, 300, num_chains=2, seed=1, progress_bar=False)
    return mcmc.run(*ARGUMENTS)


PROPOSALS = {
    "laplace": lambda: "laplace",
    "draws": some_draws,
    "a guide": guide_run,
    "an approximation": lambda: LaplaceApproximation(line, seed=0).run(*ARGUMENTS),
    "pathfinder": lambda: Pathfinder(line, seed=0).run(*ARGUMENTS),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_proposals_close_to_a_normal_posterior_are_accepted_almost_always(name):
    """The posterior is normal: a normal with its moments is the posterior, and no draw is lost."""
    kernel = IndependentMH(line, proposal=PROPOSALS[name](), df=None)
    mcmc = MCMC(kernel, 4000, 10, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run(*ARGUMENTS)
    accepted = draws.sample_stats["acceptance_rate"].mean()
    assert accepted > (0.9 if name != "laplace" else 0.999)
    x = np.stack([draws[n].reshape(-1) for n in "ab"], axis=1)
    score = (x.mean(axis=0) - MEAN) / np.sqrt(np.diag(COVARIANCE) / len(x))
    assert np.abs(score).max() < 5.5  # a tenth of the draws may be repeated
    assert np.ptp(draws.sample_stats["log_weight"]) < (1e-4 if name == "laplace" else 2.5)


def test_a_proposal_that_is_stated_is_used():
    kernel = IndependentMH(line, loc={"a": 1.0, "b": 0.5}, covariance=[0.5, 0.25], df=3)
    mcmc = MCMC(kernel, 10, 5, num_chains=1, seed=1, progress_bar=False)
    mcmc.diagnose = False
    mcmc.run(*ARGUMENTS)
    used = mcmc.last_state[0].kernel.gaussian
    np.testing.assert_array_equal(used.loc.array, [1.0, 0.5])
    np.testing.assert_allclose(used.metric.inverse_mass(), [0.5, 0.25])


def test_draws_of_another_model_are_refused():
    def other():
        probtorch.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    draws = MCMC(NUTS(other), 50, 50, num_chains=1, seed=0, progress_bar=False)
    draws.diagnose = False
    mcmc = MCMC(IndependentMH(line, proposal=draws.run()), 10, 5, num_chains=1, seed=1)
    with pytest.raises(ShapeError, match="of 2 unconstrained coordinates"):
        mcmc.run(*ARGUMENTS)
