"""Samplers run on spheres and circles, by an exact augmentation."""

import numpy as np
import pytest
from scipy import special

from probtorch.distributions import constraints
from probtorch.distributions.uniform import ImproperUniform
from probtorch.distributions.von_mises import VonMises
from probtorch.effects.primitives import factor, sample
from probtorch.infer import MCMC, NUTS

KAPPA = np.array([2.0, -1.0, 0.5])


def places():
    u = sample("u", ImproperUniform(constraints.sphere, (), (3,)))
    factor("pull", (u * KAPPA).sum())
    # Where most of the mass is at the cut between -pi and pi.
    sample("angles", VonMises(np.array([3.0, -3.0, 0.0]), np.array([1.0, 4.0, 0.01])).to_event(1))


@pytest.mark.slow
def test_directions_have_the_moments_of_their_distributions():
    mcmc = MCMC(NUTS(places), num_samples=1000, num_chains=2, seed=3, progress_bar=False)
    draws = mcmc.run()
    assert not np.any(draws.sample_stats["diverging"])
    u = draws.posterior["u"].reshape(-1, 3)
    np.testing.assert_allclose((u**2).sum(-1), 1.0, rtol=1e-9)
    size = np.linalg.norm(KAPPA)
    # The mean of a von Mises-Fisher distribution on the sphere.
    want = KAPPA / size * (1 / np.tanh(size) - 1 / size)
    # Spreads are below 1 and effective sizes above 800: five standard errors.
    assert np.abs(u.mean(0) - want).max() < 5 / np.sqrt(800)
    angles = draws.posterior["angles"].reshape(-1, 3)
    assert (np.abs(angles) <= np.pi).all()
    concentration = np.array([1.0, 4.0, 0.01])
    means = special.iv(1, concentration) / special.iv(0, concentration)
    found = np.cos(angles - np.array([3.0, -3.0, 0.0])).mean(0)
    assert np.abs(found - means).max() < 5 / np.sqrt(800)
