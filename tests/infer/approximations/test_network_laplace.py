"""Networks with a posterior: exact where they are linear, by the Fisher matrix elsewhere."""

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

import probtorch
from probtorch import nn
from probtorch.autograd import grad
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.func import functional_call
from probtorch.infer import NetworkLaplace
from probtorch.tensor import tensor
from probtorch.utils.data import DataLoader, TensorDataset

STRUCTURES = ("kron", "diag", "full")


def mlp(width=3, outputs=3, seed=0):
    probtorch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def data(samples=7, seed=1):
    rng = np.random.default_rng(seed)
    return tensor(rng.standard_normal((samples, 2))).double(), rng.integers(0, 3, samples)


def precision(laplace):
    """The posterior precision without the prior, as a matrix in the order of the parameters."""
    spectrum = laplace._spectrum
    rows = spectrum.rotate(np.eye(spectrum.values.size))
    return rows @ np.diag(spectrum.values) @ rows.T


def fisher(net, x):
    """The curvature by expected squares of the score, which is that of Gauss and Newton."""
    names, weights = zip(*net.named_parameters())
    size = sum(w.numel() for w in weights)
    found = np.zeros((size, size))
    for row in x:
        log_p = functional_call(net, dict(zip(names, weights)), (row[None],)).log_softmax(-1)[0]
        for c in range(log_p.shape[0]):
            slope = grad(log_p[c], weights, retain_graph=True)
            score = np.concatenate([g.numpy().reshape(-1) for g in slope])
            found += np.exp(log_p[c].item()) * np.outer(score, score)
    return found


def linear_regression(sigma=0.5, delta=2.0):
    """A linear layer at the mode for known data, and the design with a column of ones."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((9, 3))
    y = x @ rng.standard_normal((3, 2)) + sigma * rng.standard_normal((9, 2))
    design = np.concatenate([x, np.ones((9, 1))], axis=1)
    inverse = np.linalg.inv(design.T @ design / sigma**2 + delta * np.eye(4))
    mode = inverse @ design.T @ y / sigma**2
    net = nn.Linear(3, 2).double()
    with probtorch.no_grad():
        net.weight.copy_(tensor(mode[:3].T))
        net.bias.copy_(tensor(mode[3]))
    return net, x, y, design, inverse


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_linear_regression_is_exact(structure):
    net, x, y, design, inverse = linear_regression()
    settings = {"prior_precision": 2.0, "sigma_noise": 0.5}
    laplace = NetworkLaplace(net, "regression", "all", structure, **settings)
    laplace.fit(tensor(x).double(), tensor(y).double())
    covariance = 0.25 * np.eye(9) + design @ design.T / 2.0
    exact = sum(multivariate_normal(np.zeros(9), covariance).logpdf(y[:, k]) for k in range(2))
    np.testing.assert_allclose(laplace.log_marginal_likelihood(), exact, rtol=1e-5)
    mean, variance = laplace(tensor(x).double())
    spread = np.einsum("ni,ij,nj->n", design, inverse, design)
    np.testing.assert_allclose(variance.numpy(), spread[:, None, None] * np.eye(2), rtol=1e-5,
                               atol=1e-7)  # fmt: skip
    np.testing.assert_allclose(mean.numpy(), net(tensor(x).double()).detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_curvature_is_the_fisher_matrix(structure):
    net = mlp()
    x, y = data(1 if structure == "kron" else 7)
    laplace = NetworkLaplace(net, "classification", "all", structure).fit(x, tensor(y))
    exact = fisher(net, x)
    if structure == "diag":
        exact = np.diag(np.diag(exact))
    if structure == "kron":  # for one sample exact within a layer, and nothing between layers
        exact[:9, 9:] = exact[9:, :9] = 0.0
    np.testing.assert_allclose(precision(laplace), exact, atol=1e-6 * np.abs(exact).max())


def test_kronecker_factors_of_a_convolution():
    probtorch.manual_seed(3)
    conv = nn.Conv2d(2, 3, 2, stride=2, padding=1, dilation=2)
    net = nn.Sequential(conv, nn.Flatten()).double()
    x = probtorch.randn(1, 2, 3, 3, dtype=probtorch.float64)
    assert net(x).shape == (1, 3 * 4)
    laplace = NetworkLaplace(net, "regression", "all").fit(x, probtorch.zeros_like(net(x)).detach())
    # By hand: the mean over places of a a', and with outputs that are the places themselves the
    # number of places times the identity.
    patches = nn.functional.unfold(x, 2, 2, 1, 2).numpy()[0].T
    places = len(patches)
    a = np.concatenate([patches, np.ones((places, 1))], axis=1)
    whole = np.kron(places * np.eye(3), a.T @ a / places)
    order = np.concatenate([np.arange(27).reshape(3, 9)[:, :8].reshape(-1), [8, 17, 26]])
    np.testing.assert_allclose(precision(laplace), whole[np.ix_(order, order)], atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_batches_add_up(structure):
    x, y = data(8)
    net = mlp()
    whole = NetworkLaplace(net, "classification", "all", structure).fit(x, tensor(y))
    loader = DataLoader(TensorDataset(x, tensor(y)), batch_size=3)
    parts = NetworkLaplace(net, "classification", "all", structure).fit(loader)
    np.testing.assert_allclose(precision(parts), precision(whole), atol=1e-10)
    np.testing.assert_allclose(parts.log_marginal_likelihood(), whole.log_marginal_likelihood())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("groups", ["scalar", "layerwise"])
def test_evidence_is_highest_at_what_is_chosen(structure, groups):
    rng = np.random.default_rng(4)
    x = tensor(rng.standard_normal((30, 2))).double()
    y = x.sin() + 0.3 * tensor(rng.standard_normal((30, 2)))
    net = mlp(width=4, outputs=2)
    laplace = NetworkLaplace(net, "regression", "all", structure).fit(x, y)
    before = laplace.log_marginal_likelihood()
    laplace.optimize_prior_precision(groups, fit_noise=True)
    best, delta, sigma = (
        laplace.log_marginal_likelihood(), laplace.prior_precision, laplace.sigma_noise,
    )  # fmt: skip
    assert best > before and (len(set(delta)) > 1) == (groups == "layerwise" and len(delta) > 1)
    for factor in (0.9, 1.1):
        assert laplace.log_marginal_likelihood(delta * factor) < best
        assert laplace.log_marginal_likelihood(delta, sigma * factor) < best


def test_last_layer_and_draws_of_weights():
    x, y = data(20)
    net = mlp()
    laplace = NetworkLaplace(net, "classification").fit(x, tensor(y))
    draws = laplace.sample(4000, seed=1)
    assert {name: w.shape for name, w in draws.items()} == {
        "2.weight": (4000, 3, 3),
        "2.bias": (4000, 3),
    }
    flat = np.concatenate([w.numpy().reshape(4000, -1) for w in draws.values()], axis=1)
    exact = np.linalg.inv(precision(laplace) + np.eye(12))
    # Entries of a covariance of 4000 draws: sd below 1 / sqrt(2000) for variances up to 1.
    assert np.abs(np.cov(flat.T) - exact).max() < 5.0 / np.sqrt(2000)
    outputs = laplace.predictive_samples(x, 200, seed=0).numpy()
    assert outputs.shape == (200, 20, 3)
    np.testing.assert_allclose(outputs.sum(-1), 1.0, rtol=1e-6)
    # Of the last layer outputs are linear: draws of the network and of the linear one agree.
    many = laplace(x, "mc", 4000).numpy()
    assert np.abs(outputs.mean(0) - many).max() < 5.0 * outputs.std(0).max() / np.sqrt(200)
    assert np.abs(laplace(x).numpy() - many).max() < 0.05
    plain = softmax(net(x).detach().numpy(), axis=-1)
    assert laplace(x).numpy().max() < plain.max()


def test_misuse_is_refused():
    net, (x, y) = mlp(), data()
    for make, words in (
        (lambda: NetworkLaplace(net, "poisson"), "likelihood"),
        (lambda: NetworkLaplace(net, "regression", "first"), "subset_of_weights"),
        (lambda: NetworkLaplace(net, "regression", "all", "dense"), "hessian_structure"),
        (lambda: NetworkLaplace(len, "regression"), "a module"),
        (lambda: NetworkLaplace(net, "regression", prior_precision=0.0), "prior_precision"),
        (lambda: NetworkLaplace(nn.ReLU(), "regression"), "requires_grad"),
        (lambda: NetworkLaplace(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "regression",
                                "all"), "Linear and Conv2d"),
        (lambda: NetworkLaplace(net, "classification").fit(x, tensor(y)).optimize_prior_precision(
            fit_noise=True), "regression"),
        (lambda: NetworkLaplace(net, "classification").fit(x, tensor(y))(x, "bridge"), "probit"),
        (lambda: NetworkLaplace(net, "classification").fit(x, tensor(y)).log_marginal_likelihood(
            [1.0, 2.0]), "positive number"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=words):
            make()
    with pytest.raises(ShapeError, match="a whole number from 0 to 2"):
        NetworkLaplace(net, "classification").fit(x, tensor(y + 1))
    with pytest.raises(ShapeError, match="shape of the outputs"):
        NetworkLaplace(net, "regression").fit(x, tensor(y))
    flat = nn.Sequential(mlp(), nn.Flatten(0))
    with pytest.raises(ShapeError, match=r"\(samples, outputs\)"):
        NetworkLaplace(flat, "regression", "all").fit(x, tensor(y))
    with pytest.raises(InferenceError, match="fit comes first"):
        NetworkLaplace(net, "classification").log_marginal_likelihood()
