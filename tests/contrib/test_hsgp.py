"""Basis functions against the kernels that they approximate."""

import math

import numpy as np
import pytest
import scipy.integrate

import probtorch
import probtorch.distributions as dist
from probtorch.contrib.gp import kernels
from probtorch.contrib.hsgp.approximation import (
    hsgp_matern,
    hsgp_periodic_non_centered,
    hsgp_squared_exponential,
)
from probtorch.contrib.hsgp.laplacian import (
    eigenfunctions,
    eigenfunctions_periodic,
    eigenindices,
    sqrt_eigenvalues,
)
from probtorch.contrib.hsgp.spectral_densities import (
    diag_spectral_density_matern,
    diag_spectral_density_periodic,
    diag_spectral_density_squared_exponential,
    spectral_density_matern,
    spectral_density_squared_exponential,
)
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer import MCMC, NUTS

RNG = np.random.default_rng(0)
VARIANCE, LENGTH = 2.0, 0.5
LENGTHS = np.array([0.5, 0.75])


def tensors(*values):
    return [probtorch.tensor(v, dtype=probtorch.float64) for v in values]


def test_eigenfunctions_are_normal_to_each_other_and_bent_by_their_eigenvalues():
    x = np.linspace(-2.0, 2.0, 4001)
    phi = eigenfunctions(x, 2.0, 6).numpy()
    products = scipy.integrate.trapezoid(phi[:, :, None] * phi[:, None, :], x, axis=0)
    np.testing.assert_allclose(products, np.eye(6), atol=1e-6)
    bend = np.gradient(np.gradient(phi, x, axis=0), x, axis=0)[2:-2]
    values = sqrt_eigenvalues(2.0, 6, 1).numpy()[0] ** 2
    np.testing.assert_allclose(bend, -values * phi[2:-2], atol=1e-3 * values.max())
    both = eigenfunctions(np.array([[0.3, -0.2]]), [2.0, 3.0], [2, 3]).numpy()[0]
    one = eigenfunctions(np.array([0.3]), 2.0, 2).numpy()[0]
    other = eigenfunctions(np.array([-0.2]), 3.0, 3).numpy()[0]
    np.testing.assert_allclose(both, np.outer(one, other).ravel(), rtol=1e-12)
    assert eigenindices([2, 3], 2).T.tolist() == [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]


@pytest.mark.parametrize("nu", [None, 0.5, 1.5, 2.5], ids=str)
def test_spectral_densities_are_fourier_transforms(nu):
    kernel = {
        None: kernels.RBF, 0.5: kernels.Exponential, 1.5: kernels.Matern32, 2.5: kernels.Matern52,
    }[nu](1, *tensors(VARIANCE, LENGTH))  # fmt: skip

    def k(r):
        return kernel(probtorch.tensor([r]), probtorch.zeros(1, dtype=probtorch.float64)).item()

    for w in (0.0, 0.7, 3.0):
        expected = 2.0 * scipy.integrate.quad(k, 0.0, 20.0, weight="cos", wvar=w)[0]
        if nu is None:
            found = spectral_density_squared_exponential(1, np.array([w]), VARIANCE, LENGTH)
        else:
            found = spectral_density_matern(1, nu, np.array([w]), VARIANCE, LENGTH)
        assert found.item() == pytest.approx(expected, rel=1e-6)


def test_series_are_the_kernels_in_the_box():
    x, xx = probtorch.tensor(RNG.uniform(-1, 1, 7)), probtorch.tensor(RNG.uniform(-1, 1, (7, 2)))
    variance, length, lengths = tensors(VARIANCE, LENGTH, LENGTHS)
    cases = [
        (kernels.RBF(1, variance, length), x, 3.0, 40, None, 1e-10),
        (kernels.Matern52(1, variance, length), x, 4.0, 400, 2.5, 1e-6),
        (kernels.Matern32(1, variance, length), x, 4.0, 2000, 1.5, 1e-5),
        (kernels.RBF(2, variance, lengths), xx, [4.0, 5.0], [40, 40], None, 1e-7),
        (kernels.Matern52(2, variance, lengths), xx, [5.0, 6.0], [80, 80], 2.5, 1e-3),
    ]
    for kernel, points, ell, m, nu, error in cases:
        dim = points.dim()
        if nu is None:
            spd = diag_spectral_density_squared_exponential(
                variance, kernel.lengthscale, ell, m, dim
            )
        else:
            spd = diag_spectral_density_matern(nu, variance, kernel.lengthscale, ell, m, dim)
        phi = eigenfunctions(points, ell, m)
        assert ((phi * spd) @ phi.T - kernel(points)).abs().max() < error
    kernel = kernels.Periodic(1, variance, length, probtorch.tensor(1.5))
    cosines, sines = eigenfunctions_periodic(x, 2.0 * math.pi / 1.5, 40)
    q = diag_spectral_density_periodic(variance, length, 40)
    series = (cosines * q) @ cosines.T + (sines * q) @ sines.T
    assert (series - kernel(x)).abs().max() < 1e-10


@pytest.mark.parametrize("non_centered", [True, False])
def test_functions_are_drawn_with_the_covariances_of_the_kernel(non_centered):
    x = probtorch.tensor([-0.5, 0.0, 0.8], dtype=probtorch.float64)
    draws = {
        kernels.RBF(1, *tensors(VARIANCE, LENGTH)): lambda: hsgp_squared_exponential(
            x, VARIANCE, LENGTH, 3.0, 25, non_centered
        ),
        kernels.Matern52(1, *tensors(VARIANCE, LENGTH)): lambda: hsgp_matern(
            x, 2.5, VARIANCE, LENGTH, 3.0, 60, non_centered
        ),
        kernels.Periodic(1, *tensors(VARIANCE, LENGTH, 2.0)): lambda: hsgp_periodic_non_centered(
            x, VARIANCE, LENGTH, math.pi, 12
        ),
    }
    for kernel, draw in draws.items():
        probtorch.manual_seed(0)
        found = np.cov(np.stack([draw().numpy() for _ in range(1000)]).T)
        # A covariance of 1,000 normal pairs has a standard error of at most 2 sqrt(2 / 1000).
        assert abs(found - kernel(x).detach().numpy()).max() < 4.5 * VARIANCE * math.sqrt(0.002)


def test_a_function_is_found_by_nuts():
    x = np.linspace(-1.0, 1.0, 60)
    y = np.sin(4.0 * x) + 0.3 * np.random.default_rng(1).normal(size=60)

    def model(x, y=None):
        length = probtorch.sample("length", dist.LogNormal(-1.0, 0.5))
        alpha = probtorch.sample("alpha", dist.LogNormal(0.0, 1.0))
        noise = probtorch.sample("noise", dist.HalfNormal(1.0))
        f = probtorch.deterministic("f", hsgp_squared_exponential(x, alpha, length, ell=1.5, m=20))
        with probtorch.plate("data", len(x)):
            probtorch.sample("y", dist.Normal(f, noise), obs=y)

    nuts = NUTS(model, target_accept_prob=0.95)
    draws = MCMC(nuts, 2000, num_chains=2, seed=0, progress_bar=False).run(x, y)
    # The posterior has a standard deviation of 0.1 in the middle and twice that at the ends.
    assert abs(draws["f"].mean((0, 1)) - np.sin(4.0 * x)).max() < 0.4
    assert draws["beta"].shape[-1] == 20


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="ell a number, or one for each of 1 dims"):
        eigenfunctions(np.zeros(3), [1.0, 2.0], 5)
    with pytest.raises(ArgumentError, match="m a positive int, or one for each of 2 dims"):
        eigenfunctions(np.zeros((3, 2)), 1.0, [5])
    with pytest.raises(ShapeError, match=r"x of shape \(points, dims\)"):
        eigenfunctions(np.zeros((3, 2, 1)), 1.0, 5)
