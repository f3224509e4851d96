"""The GPU benchmark computes what it says, on a stand-in for a GPU; nothing is timed."""

import numpy as np
import pytest
from scipy.special import expit

import probtorch
from benchmarks import gpu
from tests.backends import fake_cupy, host_gpu

pytestmark = pytest.mark.skipif(host_gpu.GXX is None, reason="there is no g++ to run kernels with")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    fake_cupy.install(monkeypatch)


def test_density_of_many_chains_is_that_of_numpy():
    size = gpu.DensitySize(chains=16, points=100, dim=5)
    evaluate, wait = gpu.ours_density(size, "cuda")
    x, y, q = (a.astype(float) for a in gpu.density_start(size))
    z = q @ x.T
    for _ in range(3):
        values, gradients = wait(evaluate())
    expected = (y * z - np.logaddexp(0.0, z)).sum(1) - 0.5 * (q * q).sum(1)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients, (y - expit(z)) @ x - q, atol=1e-4)


def test_autoencoder_learns():
    probtorch.manual_seed(0)
    step, wait = gpu.ours_vae(gpu.VAESize(pixels=64, hidden=32, latent=4, batch=16), "cuda")
    losses = [wait(step()) for _ in range(60)]
    # 64 pixels that are 1 with probability 0.3 have an entropy of 39.1; at first all are 0.5.
    assert losses[0] > 44.0 and np.mean(losses[-5:]) < 42.5


def test_results_that_differ_are_not_timed():
    contestants = {
        "probtorch": (lambda: 0, lambda out: [np.ones(2)]),
        "other": (lambda: 0, lambda out: [np.full(2, 1.1)]),
    }
    assert gpu.measure("density", contestants, 1e-3) == (
        "density: not measured, other disagrees with probtorch"
    )


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert gpu.unusable("jax") == "jax is not installed"
