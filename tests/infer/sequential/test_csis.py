"""`CSIS` learns the posterior of a conjugate model for all data, and weights make it exact."""

import numpy as np
import pytest

import probtorch
from probtorch import distributions as dist
from probtorch.effects import param, sample
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import CSIS
from probtorch.optim import Adam

SIGMAS = 4.0


def model(observations=None):
    y = (observations or {"y": probtorch.tensor(0.0)})["y"]
    z = sample("z", dist.Normal(0.0, 1.0))
    sample("y", dist.Normal(z, 0.5), obs=y)


def guide(observations=None):
    y = (observations or {"y": probtorch.tensor(0.0)})["y"]
    slope = param("slope", probtorch.tensor(0.0))
    scale = param("scale", probtorch.tensor(1.0), constraint=dist.constraints.positive)
    sample("z", dist.Normal(slope * y, scale))


def made(**options):
    return CSIS(model, guide, Adam({"lr": 0.02}), seed=0, **options)


def test_guide_learns_the_posterior_for_all_data():
    csis = made(num_inference_samples=400, training_batch_size=20)
    csis.set_validation_batch()
    before = csis.validation_loss()
    losses = [csis.step() for _ in range(300)]
    assert csis.validation_loss() < before - 0.3
    assert np.mean(losses[-50:]) < np.mean(losses[:20])
    # E[z | y] = y / (1 + 0.25), with standard deviation sqrt(0.2).
    params = csis.svi.get_params()
    assert abs(params["slope"].item() - 0.8) < 0.1
    assert abs(params["scale"].item() - 0.2**0.5) < 0.1
    for y in (-1.0, 1.5):
        found = csis.run(observations={"y": probtorch.tensor(y)})
        assert found.ess > 300
        assert abs(found.expectation("z") - 0.8 * y) < SIGMAS * 0.2**0.5 / np.sqrt(found.ess)
        exact = dist.Normal(0.0, 1.25**0.5).log_prob(probtorch.tensor(y)).item()
        assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error + 1e-5


def test_what_does_not_fit_is_refused():
    with pytest.raises(InferenceError, match="validation_loss"):
        made().validation_loss()
    with pytest.raises(ArgumentError, match="training_batch_size"):
        made(training_batch_size=0)

    def stray(observations=None):
        sample("w", dist.Normal(param("loc", probtorch.tensor(0.0)), 1.0))

    with pytest.raises(ModelError, match="'w'"):
        CSIS(model, stray, Adam({"lr": 0.1}), seed=0).step()

    def unobserved(observations=None):
        sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="obs=observations"):
        CSIS(unobserved, guide, Adam({"lr": 0.1}), seed=0).step()
