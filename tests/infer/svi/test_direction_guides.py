"""Guides reach angles and directions through the coordinates that samplers have."""

import numpy as np
import pytest

from probtorch.distributions.directional import VonMises3D
from probtorch.distributions.von_mises import VonMises
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.infer import SVI, AutoNormal
from probtorch.optim import Adam


def model():
    with plate("rows", 2):
        sample("angle", VonMises(np.array([3.1, 0.5]), 20.0))
    sample("direction", VonMises3D(np.array([0.0, 30.0, 0.0])))


@pytest.mark.slow
def test_a_guide_finds_the_mean_directions():
    guide = AutoNormal(model)
    SVI(model, guide, Adam({"lr": 0.05}), seed=0).run(400, progress_bar=False)
    assert guide.latents["angle"].free_shape == (2, 2)
    draws = guide.sample_posterior(2000)
    angle, direction = (draws[n].numpy() for n in ("angle", "direction"))
    np.testing.assert_allclose((direction**2).sum(-1), 1.0, rtol=1e-9)
    # Spreads of 0.22 and 0.18; a guide of independent numbers is about right where they are small.
    away = np.angle(np.exp(1j * (angle - np.array([3.1, 0.5]))))
    assert np.abs(away.mean(0)).max() < 0.1 and np.abs(away.std(0) - 0.23).max() < 0.06
    assert np.abs(direction.mean(0) - np.array([0.0, 0.97, 0.0])).max() < 0.06
